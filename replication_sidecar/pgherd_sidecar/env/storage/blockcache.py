"""The newest blocks of the log in memory, so that delivery and peers seldom read the disk.

Holds one contiguous run of blocks, bounded in bytes. Not thread-safe; `SegmentLog` guards it.
"""

from pgherd_sidecar.core.consensus import Block


class BlockCache:
    """A run of blocks, oldest dropped first.

    Invariant: each block but the first starts one position after another one ends. At most
    `max_bytes` are held, or one block.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._blocks: dict[int, Block] = {}  # by first position, in order
        self._oldest = 0
        self._size_bytes = 0

    def append(self, block: Block) -> None:
        """Add the block that follows the run."""
        if not self._blocks:
            self._oldest = block.first
        self._blocks[block.first] = block
        self._size_bytes += len(block.data)
        while self._size_bytes > self._max_bytes and len(self._blocks) > 1:
            dropped = self._blocks.pop(self._oldest)
            self._size_bytes -= len(dropped.data)
            self._oldest = dropped.last + 1

    def truncate(self, position: int) -> None:
        """Drop the blocks after `position`."""
        while self._blocks:
            first, block = self._blocks.popitem()
            if block.last <= position:
                self._blocks[first] = block
                return
            self._size_bytes -= len(block.data)

    def read(self, first: int, max_bytes: int) -> tuple[Block, ...]:
        """Return the blocks from the one that starts at `first` on; none if it isn't here."""
        found: list[Block] = []
        size = 0
        while (block := self._blocks.get(first)) is not None:
            size += len(block.data)
            if found and size > max_bytes:
                break
            found.append(block)
            first = block.last + 1
        return tuple(found)
