"""Certifies writesets that came in pieces: reads their keys back from the log, step by step.

Millions of keys take seconds. They are read in a thread and checked in steps of milliseconds, so
that links, heartbeats and other sessions are served in between; only delivery waits, since what
comes after depends on the verdict. Called by ``session``; nothing survives it.
"""

import asyncio
from collections.abc import Callable

from pgherd_sidecar.agent.piecereader import LogSource, PieceReader
from pgherd_sidecar.core.entries import PIECE_KEYS, Writeset, key_array, pieces_body
from pgherd_sidecar.core.state import Decision, Examination, OpenTransaction, ReplicatedState

Decided = Callable[[int, Writeset, Decision, int], None]
"""Takes GID, writeset, decision, and the position of the first piece."""


class LargeDecider:
    """Decides one writeset at a time.

    Args:
        state: nobody else delivers to it while this is ``busy``.
        log: where the pieces are.
        decided: called with each decision, once the state has been advanced.
        failed: called with the error if the keys can't be read.
    """

    def __init__(
        self,
        state: ReplicatedState,
        log: LogSource,
        decided: Decided,
        failed: Callable[[BaseException], None],
    ) -> None:
        self._state = state
        self._log = log
        self._decided = decided
        self._failed = failed
        self._task: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether a decision is being made."""
        return self._task is not None

    def begin(self, gid: int, writeset: Writeset) -> bool:
        """Begin to decide the next entry; False if its keys do not matter: deliver it as it is."""
        examined = self._state.examine(writeset)
        if examined is None:
            return False
        self._task = asyncio.get_running_loop().create_task(self._decide(gid, writeset, *examined))
        self._task.add_done_callback(self._ended)
        return True

    def stop(self) -> None:
        """Break off; nothing is called back any more."""
        if self._task is not None:
            self._task.cancel()

    async def _decide(
        self, gid: int, writeset: Writeset, opened: OpenTransaction, examination: Examination
    ) -> None:
        identity = writeset.member, writeset.incarnation, pieces_body(writeset.body).serial
        reader = PieceReader(self._log, identity, opened.first)
        while reader.count < opened.key_pieces and examination.conflict is None:
            for _, piece in await reader.fetch(gid):
                if piece.flags & PIECE_KEYS:
                    for _ in examination.take(key_array(piece.data)):
                        await asyncio.sleep(0)
        for _ in examination.end():
            await asyncio.sleep(0)
        decision = self._state.deliver(gid, writeset, examination=examination)
        self._task = None
        self._decided(gid, writeset, decision, opened.first)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)
