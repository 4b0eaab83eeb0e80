"""The newest blocks of the log in memory, so that delivery and peers seldom read the disk.

Holds one contiguous run of blocks, bounded in bytes. Not thread-safe; `SegmentLog` guards it.
"""

from bisect import bisect_left

from pgherd_sidecar.core.log import Block

_COMPACT_AT = 1024


class BlockCache:
    """A run of blocks, oldest dropped first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._blocks: list[Block] = []
        self._firsts: list[int] = []
        self._head = 0
        self._size_bytes = 0

    def append(self, block: Block) -> None:
        """Add the block that follows the run."""
        self._blocks.append(block)
        self._firsts.append(block.first)
        self._size_bytes += len(block.data)
        while self._size_bytes > self._max_bytes and self._head < len(self._blocks) - 1:
            self._size_bytes -= len(self._blocks[self._head].data)
            self._head += 1
        if self._head >= _COMPACT_AT and 2 * self._head >= len(self._blocks):
            del self._blocks[: self._head], self._firsts[: self._head]
            self._head = 0

    def truncate(self, position: int) -> None:
        """Drop the blocks after `position`."""
        while len(self._blocks) > self._head and self._blocks[-1].last > position:
            self._size_bytes -= len(self._blocks.pop().data)
            self._firsts.pop()

    def read(self, first: int, max_bytes: int) -> tuple[Block, ...]:
        """Return the blocks from the one that starts at `first` on; none if it isn't here."""
        i = bisect_left(self._firsts, first, self._head)
        if i == len(self._firsts) or self._firsts[i] != first:
            return ()
        found = [self._blocks[i]]
        size = len(self._blocks[i].data)
        for block in self._blocks[i + 1 :] if size < max_bytes else ():
            size += len(block.data)
            if size > max_bytes:
                break
            found.append(block)
        return tuple(found)
