"""One segment file of the log: its format, and reading and writing records in it.

A segment is created at its full size, filled with zeros::

    header   magic "pgherdL2" (8 bytes), size of the payload (4), CRC-32 of the payload (4),
             payload: first position of the segment (8), first position of the segment before (8),
             number of terms in the log before this segment (4), for each of them term and start
             position (8 + 8), then for each membership in the log before, and the newest before
             that: size (4) and the membership
    records  one per block, each starting at a multiple of 8 bytes:
             magic (4), size of the data (4), term (8), first position (8), kind and count (4),
             the block's CRC-32 (4), position known to be flushed when this was written (8),
             CRC-32 of the record's header so far (4), data
    zeros    to the end

All numbers are big-endian. The position known to be flushed tells damage from a torn write: a bad
record before a good one that was written when the bad one's positions were durable already is
damage, and must not be cut off as if it had never been there. Damage to what the very last flush
wrote can't be told from a torn write.

A record whose header is good and whose data are not is a *hole*: what it was is known, so the
records after it can be read, and the block can be written into its place again (`mend`).

Called by `SegmentLog`, and by `salvage` when a log is opened.
"""

from bisect import bisect_right
from collections.abc import Iterator
from struct import Struct
from struct import error as StructError
from zlib import crc32

from pgherd_sidecar.core.consensus import ENTRIES, Block, LogIndex, Membership, RemoteProtocolError
from pgherd_sidecar.core.consensus.model.blocks import COUNT_MASK, KIND_SHIFT
from pgherd_sidecar.env.storage.disk import Directory, File

_SEGMENT_MAGIC = b"pgherdL2"
_ANY_MAGIC = b"pgherdL"
"""What the headers of all versions begin with; one digit follows."""
_SEGMENT_HEAD = Struct(">8sII")
_SEGMENT_START = Struct(">QQI")
_HISTORY_ENTRY = Struct(">QQ")
_MEMBERSHIP_SIZE = Struct(">I")
_RECORD_MAGIC = 0x70676872
_MAGIC_BYTES = _RECORD_MAGIC.to_bytes(4, "big")
_RECORD = Struct(">IIQQIIQ")
_RECORD_CRC = Struct(">I")
_RECORD_HEAD_SIZE = _RECORD.size + _RECORD_CRC.size
#: one position in so many bytes is remembered with its offset
_INDEX_STEP = 64 << 10
_READ_AHEAD = 64 << 10
_REWRITE_BYTES = 1 << 20


class StorageError(Exception):
    """The log's storage can't do what it was asked."""


class StorageCorrupt(StorageError):
    """What is on disk can't be what was written: this member's log must be rebuilt."""


class StorageDamaged(StorageError):
    """A block can't be read, though it is known which one; it can be written again (`mend`).

    Attributes:
        position: where the block starts.
    """

    def __init__(self, name: str, position: int) -> None:
        super().__init__(f"{name}: no good block at position {position}")
        self.position = position


class StorageFormat(StorageError):
    """The log is whole, as far as can be told, and was written by another version of pgherd."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} is in the format of another version of pgherd: "
            "start this member with the version that wrote it; it is not damaged, do not remove it"
        )


class StorageFailed(StorageError):
    """A write or flush failed; what is on disk is unknown until the log is opened again."""


def pack_record(block: Block, flushed: int) -> bytes:
    """Return a block as it stands in a segment, padded."""
    head = _RECORD.pack(
        _RECORD_MAGIC,
        len(block.data),
        block.term,
        block.first,
        block.kind_and_count,
        block.crc,
        flushed,
    )
    size = _RECORD_HEAD_SIZE + len(block.data)
    return b"".join((head, _RECORD_CRC.pack(crc32(head)), block.data, bytes(-size % 8)))


def record_size(block: Block) -> int:
    """Return the size of `pack_record`'s result."""
    return _aligned(_RECORD_HEAD_SIZE + len(block.data))


def _aligned(size: int) -> int:
    return size + -size % 8


class Segment:
    """A segment. Its file is opened when it is needed, and stays open until `close`.

    Attributes:
        size: of the file.
        first: the position its first block has or will have.
        previous: `first` of the segment before, 0 for none.
        before: index of the log before `first`.
        end: offset after the last record known.
    """

    def __init__(self, name: str, directory: Directory) -> None:
        """Open a segment.

        Raises:
            StorageCorrupt: its header is damaged.
            StorageFormat: another version made it.
        """
        self.name = name
        self._directory = directory
        self._file: File | None = None
        file = self.file
        self.size = file.size()
        magic, size, crc = _unpack_head(name, file.read(0, _SEGMENT_HEAD.size))
        payload = file.read(_SEGMENT_HEAD.size, size)
        if magic != _SEGMENT_MAGIC and magic[:-1] == _ANY_MAGIC and magic[-1:].isdigit():
            raise StorageFormat(name)
        if magic != _SEGMENT_MAGIC or len(payload) != size or crc32(payload) != crc:
            raise StorageCorrupt(f"{name}: the header is damaged")
        self.first, self.previous, terms = _SEGMENT_START.unpack_from(payload)
        self.before = _unpack_index(name, self.first - 1, terms, payload)
        self._start = _aligned(_SEGMENT_HEAD.size + size)
        self.end = self._start
        self._positions: list[int] = []
        self._offsets: list[int] = []

    @staticmethod
    def header(first: int, previous: int, before: LogIndex) -> bytes:
        """Return the header of a new segment, padded."""
        pieces = [_SEGMENT_START.pack(first, previous, len(before.history))]
        pieces += [_HISTORY_ENTRY.pack(*entry) for entry in before.history]
        for membership in before.memberships:
            data = membership.encode()
            pieces += [_MEMBERSHIP_SIZE.pack(len(data)), data]
        payload = b"".join(pieces)
        header = _SEGMENT_HEAD.pack(_SEGMENT_MAGIC, len(payload), crc32(payload)) + payload
        return header + bytes(-len(header) % 8)

    @property
    def file(self) -> File:
        """The open file."""
        if self._file is None:
            self._file = self._directory.open(self.name)
        return self._file

    def close(self) -> None:
        """Close the file, until it is needed again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def remember(self, block: Block, offset: int, end: int) -> None:
        """Account for a record."""
        if not self._offsets or offset - self._offsets[-1] >= _INDEX_STEP:
            self._positions.append(block.first)
            self._offsets.append(offset)
        self.end = end

    def bytes_after(self, position: int) -> int:
        """What its records after a position take, rounded up to a step of the index."""
        known = bisect_right(self._positions, position + 1) - 1
        return self.end - (self._offsets[known] if known >= 0 else self._start)

    def records(self, offset: int, position: int) -> Iterator[tuple[Block, int, bool]]:
        """Yield blocks, the offsets of their ends, and whether they are good.

        Ends with the first whose header is not good. Of a hole, all but the data is right.

        Args:
            offset: where to begin.
            position: the position expected there.
        """
        buffer, base = b"", offset
        while True:
            if base + len(buffer) < offset + _RECORD_HEAD_SIZE:
                buffer, base = self.file.read(offset, _READ_AHEAD), offset
            parsed = _parse_head(buffer, offset - base)
            if parsed is None:
                return
            size, block_head, _ = parsed
            end = offset + _RECORD_HEAD_SIZE + size
            if base + len(buffer) < end:
                buffer, base = self.file.read(offset, max(end - offset, _READ_AHEAD)), offset
            term, first, kind_and_count, crc = block_head
            count, kind = kind_and_count & COUNT_MASK, kind_and_count >> KIND_SHIFT
            data = buffer[offset - base + _RECORD_HEAD_SIZE : end - base]
            block = Block(term, first, count, data, crc, kind)
            if first != position or count < 1:
                return
            offset, position = _aligned(end), first + count
            yield block, offset, block.intact()

    def load(self) -> Iterator[tuple[Block, bool]]:
        """Yield all blocks and whether they are good, and learn where they are.

        A bad one counts only if it was flushed once; else the log was torn there, and ends. Who
        votes is not known after a hole that may have said so: then the log ends there, too.
        """
        self._positions.clear()
        self._offsets.clear()
        self.end = self._start
        for block, end, good in self.records(self._start, self.first):
            hole = not good and block.kind == ENTRIES and self.flushed_after(block.last, end)
            if not (good or hole):
                return
            self.remember(block, self.end, end)
            yield block, good

    def start_of(self, position: int) -> int:
        """Return where the block that holds `position` starts, 0 if damage hides that."""
        for block, _, good in self.records(*self._near(position)):
            if not good:
                return 0
            if block.last >= position:
                return block.first
        return 0

    def read(self, first: int, last: int, max_bytes: int) -> tuple[Block, ...]:
        """Return the blocks from `first` to `last`, at least one, at most `max_bytes` of data.

        They end before damage. None if no block starts at `first`.

        Raises:
            StorageDamaged: that one is damaged, or damage hides it.
        """
        found: list[Block] = []
        size = 0
        for block in self._blocks_from(first):
            size += len(block.data)
            if block.last > last or (found and size > max_bytes):
                break
            found.append(block)
        if found and found[0].first == first:
            return tuple(found)
        if self.start_of(first) in (0, first):
            raise self.damage(first)
        return ()

    def _blocks_from(self, position: int) -> Iterator[Block]:
        """Yield the blocks from the one that starts at `position` on, up to damage."""
        for block, _, good in self.records(*self._near(position)):
            if block.first >= position:
                if not good:
                    return
                yield block

    def _near(self, position: int) -> tuple[int, int]:
        """Return offset and position of a record at or before a position."""
        if not self._offsets:
            for _ in self.load():
                pass
        i = bisect_right(self._positions, position) - 1
        return (self._offsets[i], self._positions[i]) if i >= 0 else (self._start, self.first)

    def damage(self, position: int) -> StorageDamaged:
        """Return the error for the block that has to be mended before `position` can be read."""
        offset, at = self._near(position)
        for block, _, good in self.records(offset, at):
            if not good:
                break
            at = block.last + 1
        return StorageDamaged(self.name, at)

    def mend(self, block: Block) -> bool:
        """Write a block into its place again, durably, unless it is there.

        Returns:
            False if damage before it hides where that is.

        Raises:
            StorageCorrupt: it does not fit in there.
        """
        offset, at = self._near(block.first)
        for found, end, good in self.records(offset, at):
            if found.first == block.first and good:
                return True
            if found.first >= block.first:
                break
            offset, at = end, found.last + 1
        if at != block.first:
            return False
        record = pack_record(block, block.first - 1)
        if offset + len(record) > self.size:
            raise StorageCorrupt(f"{self.name}: no room for the block at position {block.first}")
        self.file.write(offset, record)
        self.file.sync()
        return True

    def flushed_after(self, position: int, offset: int) -> bool:
        """Tell whether a record from `offset` on was written when `position` was durable.

        Where one record follows the other, only they are asked, not what looks like one in their
        data. After a header that is not good, whatever looks like one is taken for one.
        """
        rest = self.file.read(offset, self.size - offset)
        at = 0
        while (parsed := _parse_head(rest, at)) is not None:
            size, _, flushed = parsed
            if flushed >= position:
                return True
            at += _aligned(_RECORD_HEAD_SIZE + size)
        at = rest.find(_MAGIC_BYTES, at)
        while at >= 0:
            parsed = _parse_head(rest, at)
            if parsed is not None and parsed[2] >= position:
                return True
            at = rest.find(_MAGIC_BYTES, at + 1)
        return False

    def rewrite(self) -> None:
        """Write the file over itself, durably.

        The process before may not have flushed what the cache shows. A flush alone does not do:
        after one that failed, the system takes what it could not write for clean.
        """
        for offset in range(0, self.size, _REWRITE_BYTES):
            self.file.write(offset, self.file.read(offset, _REWRITE_BYTES))
        self.file.sync()

    def cut(self, end: int) -> None:
        """Zero everything from offset `end` on, durably."""
        rest = self.file.read(end, self.size - end)
        used = len(rest.rstrip(b"\0"))
        if used:
            self.file.write(end, bytes(used))
            self.file.sync()
        while self._offsets and self._offsets[-1] >= end:
            self._offsets.pop()
            self._positions.pop()
        self.end = end

    def end_of(self, position: int) -> int:
        """Return the offset after the block that ends at `position`.

        Raises:
            StorageCorrupt: no block ends there.
        """
        if position < self.first:
            return self._start
        for block, end, _ in self.records(*self._near(position)):
            if block.last == position:
                return end
        raise StorageCorrupt(f"{self.name}: no block ends at {position}")


def _unpack_index(name: str, last: int, terms: int, payload: bytes) -> LogIndex:
    offset, history, memberships = _SEGMENT_START.size, [], []
    try:
        for _ in range(terms):
            term, start = _HISTORY_ENTRY.unpack_from(payload, offset)
            history.append((term, start))
            offset += _HISTORY_ENTRY.size
        while offset < len(payload):
            (size,) = _MEMBERSHIP_SIZE.unpack_from(payload, offset)
            offset += _MEMBERSHIP_SIZE.size
            memberships.append(Membership.decode(payload[offset : offset + size]))
            offset += size
    except (StructError, RemoteProtocolError) as error:
        raise StorageFormat(name) from error
    return LogIndex(history, last, memberships=memberships)


def _unpack_head(name: str, head: bytes) -> tuple[bytes, int, int]:
    try:
        magic, size, crc = _SEGMENT_HEAD.unpack(head)
    except StructError as error:
        raise StorageCorrupt(f"{name}: too short for a segment") from error
    return magic, size, crc


def _parse_head(buffer: bytes, at: int) -> tuple[int, tuple[int, int, int, int], int] | None:
    """Return (data size, (term, first, kind and count, crc), flushed) of a good record header."""
    if at + _RECORD_HEAD_SIZE > len(buffer):
        return None
    magic, size, term, first, kind_and_count, crc, flushed = _RECORD.unpack_from(buffer, at)
    (head_crc,) = _RECORD_CRC.unpack_from(buffer, at + _RECORD.size)
    if magic != _RECORD_MAGIC or head_crc != crc32(buffer[at : at + _RECORD.size]):
        return None
    return size, (term, first, kind_and_count, crc), flushed
