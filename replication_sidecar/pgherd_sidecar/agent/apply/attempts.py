"""Counts how often in a row the same entry has failed: no entry is tried for ever.

It is the same entry as long as nothing beyond the same GID becomes visible; how many writesets
are tried together may differ. Used by ``fitness``; nothing survives a restart, after which it is
tried as often again.
"""

from pgherd_sidecar.agent.base.errors import DivergedError, Failure
from pgherd_sidecar.pg.failures import Trouble, patience

_PAUSE_S = 0.2
_PAUSE_MAX_S = 30.0
_DOUBLED_MAX = 16
_BRIEF_MAX_S = 1.0
"""Nothing is wrong with the server: who waits for this member should not wait long."""
_WORDS = {
    Trouble.DISK: "the disk of its server is full; it goes on once there is room, and no copy of"
    " the database is made meanwhile",
    Trouble.RESOURCES: "its server lacks memory or open files; it goes on once there are some",
    Trouble.LOST: "the connection to its server breaks there",
    Trouble.INTERRUPTED: "something stood in its way",
    Trouble.FAILED: "its server could not do it",
    Trouble.REFUSED: "its server refuses it",
}


class Attempts:
    """The attempts at the entry that is next.

    Attributes:
        last: the last failure; None if there was none.
    """

    def __init__(self) -> None:
        self.last: Failure | None = None
        self._counts: dict[Trouble, int] = {}
        self._crashes = 0

    def crashed(self) -> None:
        """Note that a session ended with a defect, which is no failure of an entry."""
        self._crashes += 1

    def failed(self, failure: Failure) -> DivergedError | None:
        """Note a failure; what it has become if it is one too many."""
        if self.last is None or self.last.prev != failure.prev:
            self._counts.clear()
        self.last = failure
        count = self._counts[failure.trouble] = self._counts.get(failure.trouble, 0) + 1
        limit = patience(failure.trouble)
        if limit is None or count < limit:
            return None
        self.forget()
        times = "" if count == 1 else f" ({count} times in a row)"
        return DivergedError(f"{failure}{times}", failure)

    def forget(self) -> None:
        """The database is another one from now on."""
        self.last = None
        self._counts.clear()
        self._crashes = 0

    @property
    def gid(self) -> int:
        """Up to here writesets are applied one by one, so that it is known which fails; 0: none."""
        return 0 if self.last is None else self.last.gid

    @property
    def pause_s(self) -> float:
        """How long to wait before the next attempt."""
        crashed_s = _growing(self._crashes, _PAUSE_MAX_S)
        if self.last is None:
            return crashed_s
        slow = self.last.trouble in (Trouble.DISK, Trouble.RESOURCES)
        count = self._counts.get(self.last.trouble, 1)
        return max(crashed_s, _growing(count, _PAUSE_MAX_S if slow else _BRIEF_MAX_S))

    def reason(self, settled_gid: int | None) -> str | None:
        """Why this member does not go on; None if it does.

        Args:
            settled_gid: everything up to here is visible; None where nobody knows.
        """
        last = self.last
        if last is None or (settled_gid is not None and settled_gid > last.prev):
            return None
        return f"it can't apply GID {last.gid}, {_WORDS[last.trouble]} ({last})"


def _growing(count: int, limit_s: float) -> float:
    return min(_PAUSE_S * 2.0 ** max(min(count, _DOUBLED_MAX) - 1, 0), limit_s)
