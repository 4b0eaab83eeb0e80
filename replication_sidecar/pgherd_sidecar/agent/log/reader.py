"""Reads a member's own log for delivery, and knows what can't be read because the disk was damaged.

A damaged block is asked for at the other members by the log's core, and written again; until then
nothing is delivered beyond it. Nothing survives a restart.
"""

import asyncio
from collections.abc import Callable

import structlog

from pgherd_sidecar.agent.log.setup import delivered
from pgherd_sidecar.core.consensus import Block, LogMember
from pgherd_sidecar.env.storage.segments import SegmentLog, StorageDamaged

_log = structlog.get_logger()


class LogReader:
    """The reading side of one member's log.

    Args:
        storage: the log.
        member: told of damage.
        now: the loop's clock.
        wake: called when the member has something to do.
    """

    def __init__(
        self,
        storage: SegmentLog,
        member: LogMember,
        *,
        now: Callable[[], float],
        wake: Callable[[], None],
    ) -> None:
        self._storage = storage
        self._member = member
        self._now = now
        self._wake = wake
        self._next = 1
        self._stuck = 0
        self._closed = False
        if storage.hole:
            self.damaged(storage.hole)

    def close(self) -> None:
        """Have nothing read any more: the log is about to be closed, and may begin anew."""
        self._closed = True

    def read(self, first: int, max_bytes: int) -> list[Block]:
        """Return committed blocks from the one that holds position ``first`` on.

        At least one, as many as fit into ``max_bytes``; none if ``first`` was trimmed or is not
        committed yet, or after ``close``, or while ``mending``: then the host's listeners are told
        once more.
        Recent blocks come from memory. Older ones are read on the loop, which takes tens of
        milliseconds once a segment, and whenever ``first`` is not where the last read ended.

        Raises:
            StorageError: the log can't go on.
        """
        last = self._member.commit_position
        if self._closed or first > last or (self.mending and first == self._stuck):
            return []  # whoever is told of each commit asks again and again
        try:
            start = first if first == self._next else self._storage.start_of(first)
            found = self._storage.read(start, max_bytes)
        except StorageDamaged as error:
            self._stuck = first
            self.damaged(error.position)
            return []
        blocks = [delivered(block) for block in found if block.last <= last]
        if blocks:
            self._next = blocks[-1].last + 1
        return blocks

    async def read_apart(self, first: int, max_bytes: int) -> list[Block]:
        """Do the same in a thread, for who needs old blocks out of turn.

        Raises:
            StorageError: the log can't go on.
        """
        last = self._member.commit_position
        if self._closed or not self._storage.index.base < first <= last:
            return []
        try:
            found = await asyncio.to_thread(self.read_back, first, max_bytes)
        except StorageDamaged as error:
            self.damaged(error.position)
            return []
        return [delivered(block) for block in found if block.last <= last]

    def read_back(self, position: int, max_bytes: int) -> tuple[Block, ...]:
        """Return blocks from the one that holds ``position`` on, as they are on disk.

        For a thread: it waits for the disk. Blocks behind the commit position may change. None if
        the log does not hold the position, or after ``close``.

        Raises:
            StorageDamaged: a block has to be mended first: ``damaged``.
            StorageError: the log can't go on.
        """
        first = 0 if self._closed else self._storage.start_of(position)
        return self._storage.read(first, max_bytes) if first else ()

    async def begin_before(self, position: int) -> int | None:
        """Return after which position a log may begin that is to hold ``position``.

        A log begins with a block, or else nobody could feed it. None if damage hides where: then
        the block is asked for.

        Raises:
            StorageError: the log can't go on.
        """
        try:
            first = await asyncio.to_thread(self._storage.start_of, position)
        except StorageDamaged as error:
            self.damaged(error.position)
            return None
        return (first or position) - 1

    def damaged(self, position: int) -> bool:
        """Have the block that starts at ``position`` asked for; False if nobody has it any more."""
        if position != self._member.damaged_at:
            _log.error("log.damaged", position=position)
        self._member.damaged(position, self._now())
        self._wake()
        return self.mending

    def mended(self) -> None:
        """Note that the block has been written again."""
        _log.info("log.mended", position=self._member.damaged_at)
        self._member.mended()
        self._wake()

    @property
    def mending(self) -> bool:
        """A block is damaged, and is being looked for."""
        return self._member.damaged_at > 0 and not self._member.damaged_for_good

    @property
    def trouble(self) -> str | None:
        """The damage of the log on this member's disk, None if nothing is known."""
        member = self._member
        if member.incomplete:
            return (
                f"its log was damaged after {member.last_position}: it gives no votes until it "
                "was fed by a proposer that was elected without it"
            )
        if member.damaged_for_good:
            return f"its log is damaged at {member.damaged_at}, and nobody has that any more"
        if member.damaged_at:
            return f"its log is damaged at {member.damaged_at}: it asks the other members"
        return None
