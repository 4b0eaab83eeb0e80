"""Remembers what became of recent transactions of any member, by their tokens.

A client that lost its connection in COMMIT, or was told 08007, asks any member with the token of
its transaction (``pgherd.transaction_status``). Every member delivers every writeset, so every
member can answer, as far back as it remembers. Nothing survives a restart but what is delivered
again from the log.
"""

from pgherd_sidecar.core.replication.entries import Writeset
from pgherd_sidecar.core.replication.state import Decision, DecisionKind

_REMEMBERED = 100_000
_ABORTED = 0


class Outcomes:
    """The outcomes of the last writesets, the older half of them forgotten at once.

    To find the oldest of a dictionary takes the longer the more have been removed before it.
    """

    def __init__(self, remembered: int = _REMEMBERED) -> None:
        self._generation = remembered // 2
        self._gids: dict[tuple[int, int, int], int] = {}
        self._older: dict[tuple[int, int, int], int] = {}

    def note_writeset(self, gid: int, writeset: Writeset, decision: Decision) -> None:
        """Take note of a delivered writeset."""
        if decision.kind is DecisionKind.COMMIT:
            outcome = gid
        elif decision.kind in (DecisionKind.ABORT, DecisionKind.REFUSED):
            outcome = _ABORTED
        else:
            return  # a copy says nothing new
        if len(self._gids) >= self._generation:
            self._gids, self._older = {}, self._gids
        self._gids[writeset.member, writeset.incarnation, writeset.xid] = outcome

    def of(self, token: str) -> str:
        """Say what became of the transaction ``member.incarnation.xid``."""
        member, incarnation, xid = (int(part) for part in token.split("."))
        key = (member, incarnation, xid)
        gid = self._gids.get(key, self._older.get(key))
        if gid is None:
            return "unknown"
        return "aborted" if gid == _ABORTED else f"committed {gid}"
