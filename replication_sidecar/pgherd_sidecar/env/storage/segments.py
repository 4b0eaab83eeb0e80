"""The log on disk: segments of blocks, and the control file.

A directory holds::

    control                    term, vote, commit position, whether the log is incomplete, where
                               it ended, its newest segment, a pending truncation, and what it
                               began after; replaced atomically (format: controlfile.py)
    00000000000000000001.seg   segments, named by their first position (format: segment.py)
    spare                      a zero-filled file that becomes the next segment
    *.new                      what was being made when the process ended; ignored, overwritten

`persist` makes a `Persist` durable, in its order. `read` gives back blocks, `trim` removes old
segments, `reset` begins anew after a position known to be committed, `mend` writes damaged blocks
again. What survives a restart: all of it up to the last completed `persist`, and perhaps part of
one that wasn't completed. Opening makes durable what it finds, drops a torn tail, and completes an
interrupted truncation or reset. What else is damaged or missing is read around (`StorageDamaged`),
or ends the log and has `Control.incomplete` say so; see `salvage`. Without a good control file
there is no log.

`persist`, `trim`, `mend` and `prepare_spare` block and run in worker threads, the first three one
at a time. `read` may be called from any thread meanwhile; it answers from memory for recent blocks
and reads a file, up to a whole segment of it, for older ones.

After a failed write or flush nobody knows what is on disk, so the object refuses everything from
then on (`StorageFailed`).
"""

from bisect import bisect_right
from dataclasses import replace
from threading import Lock
from types import TracebackType

from pgherd_sidecar.core.consensus import Block, Control, LogBase, LogIndex, Persist
from pgherd_sidecar.env.storage import controlfile
from pgherd_sidecar.env.storage.blockcache import BlockCache
from pgherd_sidecar.env.storage.controlfile import ControlFile
from pgherd_sidecar.env.storage.disk import Directory
from pgherd_sidecar.env.storage.salvage import SUFFIX, Known, survey
from pgherd_sidecar.env.storage.segment import (
    Segment,
    StorageCorrupt,
    StorageDamaged,
    StorageError,
    StorageFailed,
    StorageFormat,
    pack_record,
    record_size,
)

__all__ = [
    "SegmentLog",
    "StorageCorrupt",
    "StorageDamaged",
    "StorageError",
    "StorageFailed",
    "StorageFormat",
]

_SPARE = "spare"
_OPEN_MAX = 8
"""A descriptor for each segment would be thousands, where a member is away for long."""


class _Failing:
    """A block that can't be entered any more once an error of the disk has left it."""

    __slots__ = ("failed",)

    def __init__(self) -> None:
        self.failed = False

    def __enter__(self) -> None:
        if self.failed:
            raise StorageFailed("the log has failed or is closed")

    def __exit__(
        self,
        _: type[BaseException] | None,
        error: BaseException | None,
        __: TracebackType | None,
    ) -> None:
        if isinstance(error, OSError):
            self.failed = True
            raise StorageFailed(f"the log can't go on: {error}") from error


class SegmentLog:
    """One member's log.

    Args:
        directory: where the log is, or will be.
        segment_bytes: size of a segment; one that begins with a larger block is larger.
        cache_bytes: newest blocks kept in memory.

    Raises:
        StorageCorrupt: the control file is damaged or missing.
        StorageFormat: the log is one of another version.
        StorageFailed: a file can't be opened, read or written.

    Attributes:
        hole: where a damaged block was found when the log was opened, 0 if none was.
    """

    def __init__(
        self, directory: Directory, *, segment_bytes: int = 16 << 20, cache_bytes: int = 32 << 20
    ) -> None:
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._lock = Lock()
        self._spare_lock = Lock()
        self._failing = _Failing()
        self._cache = BlockCache(cache_bytes)
        self._segments: list[Segment] = []
        self._spare_ready = False
        #: older segments with an open file, the one used last at the end
        self._opened: list[Segment] = []
        with self._failing:
            self.control, self._base, known = self._load_control()
            self._index = LogIndex.beginning(self._base)
            self._open(known)

    @property
    def index(self) -> LogIndex:
        """A summary of the log, for `LogMember`."""
        with self._lock:
            return self._index.copy()

    @property
    def size_bytes(self) -> int:
        """What the segments take on the disk, whatever is in them; the spare one not counted."""
        return sum(segment.size for segment in tuple(self._segments))

    def bytes_after(self, position: int) -> int:
        """What the log takes after a position, rounded up; all that there is if it begins later."""
        with self._lock:
            if not self._segments:
                return 0
            number = max(
                bisect_right(self._segments, position + 1, key=lambda one: one.first) - 1, 0
            )
            later = sum(one.end for one in self._segments[number + 1 :])
            return later + self._segments[number].bytes_after(position)

    @property
    def spare_ready(self) -> bool:
        """Whether the next segment is prepared."""
        return self._spare_ready

    # ---- use -------------------------------------------------------------------------------

    def persist(self, persist: Persist) -> None:
        """Make control, truncation and blocks durable, in this order.

        Raises:
            StorageFailed: now or earlier, a write or flush failed.
        """
        with self._failing:
            if persist.control is not None:
                self.control = persist.control
            if persist.control is not None or persist.truncate_after is not None:
                self._save_control(persist.truncate_after)
            if persist.truncate_after is not None:
                self._finish_truncation(persist.truncate_after)
            if persist.blocks:
                self._append(persist.blocks)

    def read(self, first: int, max_bytes: int) -> tuple[Block, ...]:
        """Return durable blocks from the one that starts at `first` on.

        At least one, as many as fit into `max_bytes` of data and lie in one segment; none if
        `first` is trimmed, or not written yet, or in the middle of a block.

        Raises:
            StorageDamaged: a block has to be mended first.
            StorageFailed: the log has failed before, or can't be read.
        """
        with self._failing, self._lock:
            if not self._index.base < first <= self._index.last:
                return ()
            cached = self._cache.read(first, max_bytes)
            return cached or self._segment_of(first).read(first, self._index.last, max_bytes)

    def start_of(self, position: int) -> int:
        """Return where the block that holds `position` starts, 0 if the log doesn't hold it.

        Raises:
            StorageDamaged: a block has to be mended first.
            StorageFailed: the log has failed before, or can't be read.
        """
        with self._failing, self._lock:
            if not self._index.base < position <= self._index.last:
                return 0
            segment = self._segment_of(position)
            first = segment.start_of(position)
            if not first:
                raise segment.damage(position)
            return first

    def mend(self, blocks: tuple[Block, ...]) -> None:
        """Write blocks into their places again, where they are damaged; not if they are others'.

        Raises:
            StorageFailed: now or earlier, a write or flush failed.
            StorageCorrupt: they do not fit there.
        """
        with self._failing, self._lock:
            for block in blocks:
                index = self._index
                within = index.base < block.first and block.last <= index.last
                if not within or index.term_at(block.last) != block.term:
                    return
                if not self._segment_of(block.first).mend(block):
                    return
            self.hole = 0

    def trim(self, position: int, keep_bytes: int = 0) -> int:
        """Remove the oldest segments that hold nothing after `position`.

        Args:
            position: the last position that may go.
            keep_bytes: so many of the newest stay all the same, for members that come back.

        Returns:
            The last position that is gone.

        Raises:
            StorageFailed: the directory can't be changed.
        """
        with self._failing:
            while len(self._segments) > 1:
                last = self._segments[1].first - 1
                if last > position or self.bytes_after(last) < keep_bytes:
                    break
                with self._lock:
                    segment = self._segments.pop(0)
                    self._index.trim(last)
                    self._close(segment)
                self._directory.remove(segment.name)
                self._directory.sync()
            return self._index.base

    def prepare_spare(self) -> None:
        """Make the file for the next segment, so that no commit waits for that.

        Raises:
            StorageFailed: the file can't be made.
        """
        with self._failing, self._spare_lock:
            if not self._spare_ready:
                self._make_spare(self._segment_bytes)
                self._spare_ready = True

    @property
    def fresh(self) -> bool:
        """Whether nothing was ever written here: `reset` says how the log begins."""
        return controlfile.NAME not in self._directory.names()

    def reset(self, base: LogBase) -> None:
        """Drop what is here and begin anew after `base`; term and vote stay.

        Only for a log that ends at or before `base`, or has other blocks there, so that nothing is
        lost that this member has acknowledged and that counts: a disk that forgets is another disk
        (C18).

        Raises:
            StorageError: the log goes beyond that.
            StorageFailed: now or earlier, a write or flush failed.
        """
        with self._failing:
            if base.position < self._index.last and not self._index.contradicts(base):
                raise StorageError(f"the log ends at {self._index.last}, after {base.position}")
            self._base = base
            self.control = replace(self.control, commit_position=base.position)
            with self._lock:
                dropped, self._segments = self._segments, []
                self._index = LogIndex.beginning(base)
                self._cache.truncate(0)
                for segment in dropped:
                    self._close(segment)
            self._save_control(None)
            self._remove_files([segment.name for segment in dropped])

    def close(self) -> None:
        """Release the files; the object refuses everything afterwards."""
        self._failing.failed = True
        with self._lock:
            for segment in self._segments:
                segment.close()

    # ---- control ---------------------------------------------------------------------------

    def _save_control(self, truncate_after: int | None) -> None:
        done = truncate_after is None
        content = ControlFile(
            control=self.control,
            base=self._base,
            end=self._index.last if truncate_after is None else truncate_after,
            newest=self._segments[-1].first if done and self._segments else 0,
            truncate_after=truncate_after,
        )
        controlfile.save(self._directory, content)

    def _load_control(self) -> tuple[Control, LogBase, Known]:
        """Return the control state, what the log began after, and what else is known of it."""
        names = self._directory.names()
        if controlfile.NAME not in names:
            if any(name.endswith(SUFFIX) for name in names):
                raise StorageCorrupt("segments without a control file")
            return Control(), LogBase(), Known()
        self._directory.sync()  # the process before may have died before it did
        said = controlfile.load(self._directory)
        committed = said.control.commit_position
        known = Known(committed, max(said.end, committed), said.newest, said.truncate_after)
        return said.control, said.base, known

    # ---- opening ---------------------------------------------------------------------------

    def _open(self, known: Known) -> None:
        """Find what is there, and make it durable."""
        found = survey(self._directory, self._base, known)
        while found.lost:  # what is left may be damaged, too
            known = self._give_up_after(found.index.last)
            found = survey(self._directory, self._base, known)
        self._segments, self._index, self.hole = found.segments, found.index, found.hole
        for block in found.recent:
            self._cache.append(block)
        if self._segments:
            self._segments[-1].rewrite()  # each older one was flushed before the next was begun
        self._remove_files(found.surplus)
        if known.truncating is not None:
            self._finish_truncation(known.truncating)
        elif self._segments:
            self._segments[-1].cut(self._segments[-1].end)
            if self._segments[-1].first != known.newest:  # it was begun, and nothing is in it
                self._save_control(None)

    def _give_up_after(self, last: int) -> Known:
        """Have this member give no votes until it was fed what it may have acknowledged [D6].

        Its next term is one in which it has promised nothing yet, so whoever proposes in that was
        elected without it.

        Args:
            last: where the log ends now: what is beyond has to go.
        """
        control = self.control
        committed = min(control.commit_position, last)
        self.control = Control(control.term + 1, None, committed, incomplete=True)
        self._save_control(last)
        return Known(committed, last, truncating=last)

    def _remove_files(self, names: list[str]) -> None:
        for name in reversed(names):
            self._directory.remove(name)
            self._directory.sync()

    # ---- writing ---------------------------------------------------------------------------

    def _append(self, blocks: tuple[Block, ...]) -> None:
        flushed = self._index.last
        waiting: list[Block] = []
        records: list[bytes] = []
        end = self._segments[-1].end if self._segments else 0
        for block in blocks:
            if not self._segments or end + record_size(block) > self._segments[-1].size:
                self._write(waiting, records)
                self._roll(block)
                waiting, records, end = [], [], self._segments[-1].end
            waiting.append(block)
            records.append(pack_record(block, flushed))
            end += len(records[-1])
        self._write(waiting, records)

    def _write(self, blocks: list[Block], records: list[bytes]) -> None:
        """Write and flush records at the end of the newest segment, then let them be read."""
        if not blocks:
            return
        newest = self._segments[-1]
        newest.file.write(newest.end, b"".join(records))
        newest.file.sync()
        with self._lock:
            for block, record in zip(blocks, records, strict=True):
                newest.remember(block, newest.end, newest.end + len(record))
                self._index.append(block)
                self._cache.append(block)

    def _roll(self, block: Block) -> None:
        """Begin a new segment with `block`; all of the segment before is durable.

        An empty one that is too small for the block goes: the new one has its name.
        """
        newest = self._segments[-1] if self._segments else None
        empty = newest is not None and newest.first == block.first
        previous = 0 if newest is None else newest.previous if empty else newest.first
        header = Segment.header(block.first, previous, self._index)
        size = max(self._segment_bytes, len(header) + record_size(block))
        name = f"{block.first:020}{SUFFIX}"
        with self._spare_lock:
            if not self._spare_ready or size > self._segment_bytes:
                self._make_spare(size)
            self._spare_ready = False
            file = self._directory.open(_SPARE)
            file.write(0, header)
            file.sync()
            file.close()
            self._directory.replace(_SPARE, name)
            self._directory.sync()
        segment = Segment(name, self._directory)
        with self._lock:
            if empty:
                self._close(self._segments.pop())
            elif newest is not None:
                self._keep_open(newest)
            self._segments.append(segment)
        self._save_control(None)  # if this segment is lost with all that will be in it, that shows

    def _make_spare(self, size: int) -> None:
        if _SPARE in self._directory.names():  # of an earlier process: its room may be all there is
            self._directory.remove(_SPARE)
        file = self._directory.create(_SPARE + ".new", size)
        file.sync()
        file.close()
        self._directory.replace(_SPARE + ".new", _SPARE)

    def _finish_truncation(self, position: int) -> None:
        """Drop everything after `position`, newest first, then forget that it was to be done.

        The intention is in the control file, so a crash in between resumes here. What is cut off
        is zeroed: an old record that happened to fit after the new end would come back to life.
        """
        with self._lock:
            self._cache.truncate(position)
            if position < self._index.last:
                self._index.truncate(position)
            while len(self._segments) > 1 and self._segments[-1].first > position:
                segment = self._segments.pop()
                self._close(segment)
                self._directory.remove(segment.name)
                self._directory.sync()
            if self._segments:
                newest = self._segments[-1]
                newest.cut(newest.end_of(position))
        self._save_control(None)

    def _segment_of(self, position: int) -> Segment:
        i = bisect_right(self._segments, position, key=lambda segment: segment.first) - 1
        segment = self._segments[i]
        if segment is not self._segments[-1]:
            self._keep_open(segment)
        return segment

    def _close(self, segment: Segment) -> None:
        """Close the file of a segment that goes, once: its descriptor may soon be another's."""
        if segment in self._opened:
            self._opened.remove(segment)
        segment.close()

    def _keep_open(self, segment: Segment) -> None:
        """Keep the file of an older segment open, and close the one that was used longest ago."""
        if segment in self._opened:
            self._opened.remove(segment)
        self._opened.append(segment)
        if len(self._opened) > _OPEN_MAX:
            longest_ago = self._opened.pop(0)
            if longest_ago is not self._segments[-1]:  # a truncation has made it the newest
                longest_ago.close()
