"""Reads the pieces of a transaction back from the log, in order, a few at a time.

The rule of ``core.replication.pieces`` decides which count: each is the next piece, or a copy.
A reader keeps its place and nothing else.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from pgherd_sidecar.agent.base.errors import LeftBehindError
from pgherd_sidecar.core.consensus import Block
from pgherd_sidecar.core.consensus.model.blocks import ENTRIES
from pgherd_sidecar.core.replication.entries import Piece, iter_entries
from pgherd_sidecar.env.storage.segments import StorageDamaged, StorageError

_READ_BYTES = 1 << 20

_MENDING_S = 0.1


class LogSource(Protocol):
    """The log on this member's disk: see ``LogReader``."""

    def read_back(self, position: int, max_bytes: int) -> Sequence[Block]:
        """Return committed blocks from the one that holds a position on; in a thread."""

    def damaged(self, position: int) -> bool:
        """Note damage; whether the block will be mended."""


class PieceReader:
    """The pieces of one transaction.

    Args:
        log: where they are.
        identity: member, incarnation and serial.
        first: position of its first piece.
    """

    def __init__(self, log: LogSource, identity: tuple[int, int, int], first: int) -> None:
        self.count = 0
        self._log = log
        self._identity = identity
        self._position = first

    async def fetch(self, last: int) -> list[tuple[int, Piece]]:
        """Return the next pieces up to position ``last``, with theirs; none if there are no more.

        Raises:
            LeftBehindError: nobody has the log any more.
            StorageError: the log can't go on.
        """
        while True:
            try:
                return await asyncio.to_thread(self.next, last)
            except StorageDamaged as error:
                if not self._log.damaged(error.position):
                    raise LeftBehindError(f"no log holds entry {error.position}") from error
                await asyncio.sleep(_MENDING_S)

    def next(self, last: int) -> list[tuple[int, Piece]]:
        """The same in a thread, as far as the log is not damaged.

        Raises:
            StorageDamaged: it has to be mended first.
            StorageError: it can't go on.
        """
        found: list[tuple[int, Piece]] = []
        while not found and self._position <= last:
            blocks = self._log.read_back(self._position, _READ_BYTES)
            if not blocks:
                raise StorageError(f"the log does not hold position {self._position}")
            for block in blocks:
                if block.kind == ENTRIES and self._position <= last:
                    found += self._pieces_of(block, last)
                self._position = max(self._position, min(block.last, last) + 1)
        return found

    def _pieces_of(self, block: Block, last: int) -> list[tuple[int, Piece]]:
        found = []
        for position, entry in enumerate(iter_entries(block.data), block.first):
            if (
                isinstance(entry, Piece)
                and self._position <= position <= last
                and (entry.member, entry.incarnation, entry.serial) == self._identity
                and entry.number == self.count
            ):
                self.count += 1
                found.append((position, entry))
        return found
