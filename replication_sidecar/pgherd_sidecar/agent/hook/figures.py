"""Figures of the commits of one member's sessions: for people who look, not for decisions.

How long a session waits in its COMMIT, from its writeset to its verdict, as counts in ranges that
grow by a quarter each; which tables and keys its transactions lost against. Keys are told by their
hashes, because values of rows may be private: ``pgherd explain`` tells more of the winner's GID.

Lost when the session of the replica ends.
"""

from bisect import bisect_left
from dataclasses import dataclass
from typing import Final

from pgherd_sidecar.agent.admin.port import StatusValue
from pgherd_sidecar.agent.hook.text import tables_of
from pgherd_sidecar.core.certification.certifier import Conflict

BOUNDS_S: Final = tuple(round(0.0001 * 1.25**step, 7) for step in range(60))
"""Upper bounds of the ranges, up to 52 s."""
HOT_TOLD: Final = 20
_HOT_KEPT: Final = 512
_MODE_BITS: Final = 3


@dataclass(slots=True)
class HotKey:
    """A key that transactions of this member have lost against: how often, and to whom last."""

    count: int
    gid: int


class CommitFigures:
    """Counts what happens to the transactions of this member's own sessions."""

    def __init__(self) -> None:
        self._waits = [0] * (len(BOUNDS_S) + 1)
        self._waited_s = 0.0
        self._conflicts = 0
        self._hot: dict[tuple[str, int], HotKey] = {}

    def committed(self, waited_s: float) -> None:
        """Note a verdict to commit, and how long the session has waited for it."""
        self._waits[bisect_left(BOUNDS_S, waited_s)] += 1
        self._waited_s += waited_s

    def lost(self, conflict: Conflict, body: bytes, flags: int = 0) -> None:
        """Note that a session was told that it has lost.

        Args:
            conflict: against what.
            body: of its writeset.
            flags: likewise.
        """
        self._conflicts += 1
        tables = ", ".join(tables_of(conflict, body, flags)) if conflict.key else ""
        key = tables or conflict.reason.name.lower().replace("_", " "), conflict.key & ~_MODE_BITS
        found = self._hot.get(key)
        if found is not None:
            found.count, found.gid = found.count + 1, conflict.winner
            return
        if len(self._hot) >= _HOT_KEPT:
            self._forget()
        self._hot[key] = HotKey(1, conflict.winner)

    def _forget(self) -> None:
        """Make room: of those with the fewest losses, those that were met first."""
        ranked = sorted(self._hot.items(), key=lambda item: item[1].count, reverse=True)
        self._hot = dict(ranked[: _HOT_KEPT // 2])

    def status(self) -> dict[str, StatusValue]:
        """Return the counters. ``commit_waits``: by the upper bound of the range, in seconds."""
        bounds = (*map(str, BOUNDS_S), "inf")
        waits = {bound: n for bound, n in zip(bounds, self._waits, strict=True) if n}
        hottest = sorted(self._hot.items(), key=lambda item: item[1].count, reverse=True)
        return {
            "own_commits": sum(self._waits),
            "own_conflicts": self._conflicts,
            "commit_waits": waits,
            "commit_waited_s": round(self._waited_s, 6),
            "hot_keys": [
                {
                    "table": table,
                    "key": f"{key & (1 << 64) - 1:016x}" if key else "",
                    "count": one.count,
                    "gid": one.gid,
                }
                for (table, key), one in hottest[:HOT_TOLD]
            ],
        }
