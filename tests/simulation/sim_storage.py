"""The disks that simulated members keep their logs on: real segments, or a model of them.

`SegmentDisk` runs the product's storage on a simulated directory. `ModelDisk` keeps blocks in a
list and does at a crash what a correct storage may do: any prefix of "control, truncation, blocks"
of what was being written is there. It is several times as fast.
"""

from bisect import bisect_left
from contextlib import suppress
from random import Random
from typing import Protocol

from pgherd_sidecar.core.consensus import Block, Control, LogBase, LogIndex, Persist
from pgherd_sidecar.env.storage.segment import Segment
from pgherd_sidecar.env.storage.segments import SegmentLog, StorageCorrupt
from sim_disk import PowerLoss, SimDirectory


class Log(Protocol):
    """What a member's process does with its log."""

    control: Control

    @property
    def index(self) -> LogIndex:
        """A summary, for `LogMember`."""

    @property
    def fresh(self) -> bool:
        """Whether nothing was ever written."""

    def persist(self, persist: Persist) -> None:
        """Make durable."""

    def read(self, first: int, max_bytes: int) -> tuple[Block, ...]:
        """Return blocks."""

    def mend(self, blocks: tuple[Block, ...]) -> None:
        """Write damaged blocks again."""

    def trim(self, position: int) -> int:
        """Remove what is old, return what is gone."""

    def reset(self, base: LogBase) -> None:
        """Begin anew."""


class Disk(Protocol):
    """What is left when the process has died."""

    def open(self) -> Log:
        """Open the log."""

    def crash(self, rng: Random, writing: Persist | None, mending: tuple[Block, ...] = ()) -> None:
        """Die, perhaps in the middle of what is being written, and perhaps with the machine."""

    def rot(self, rng: Random, proven: int) -> None:
        """Change something that was written long ago, of blocks up to `proven` at most."""

    def headed(self) -> bool:
        """Tell whether all segments could be opened again."""


class SegmentDisk:
    """The product's own storage."""

    def __init__(self) -> None:
        self.directory = SimDirectory()
        self._log: SegmentLog | None = None

    def open(self) -> SegmentLog:
        """Open the log."""
        self._log = SegmentLog(self.directory, segment_bytes=2048, cache_bytes=2000)
        return self._log

    def crash(self, rng: Random, writing: Persist | None, mending: tuple[Block, ...] = ()) -> None:
        """Die between any two operations of the disk: alone, with the power, or of a flush."""
        with suppress(PowerLoss, StorageCorrupt):  # damage may hide where to truncate
            if mending and self._log is not None:
                self.directory.crash_after = rng.randrange(1, 4)
                self._log.mend(mending)
            if writing is not None and self._log is not None:
                few = writing.truncate_after is None
                self.directory.crash_after = rng.randrange(4 if few else 12)
                self._log.persist(writing)
        rng.choice((self.directory.crash, self.directory.fail_flush, self._kill))(rng)

    def _kill(self, _: Random) -> None:
        self.directory.kill()

    def rot(self, rng: Random, proven: int) -> None:
        """Flip a bit of a segment; not of what the last flush wrote: that can't be told."""
        assert self._log is not None
        segments = self._log._segments
        if not segments:
            return
        segment = rng.choice(segments)
        end = segment.end
        if segment is segments[-1]:
            end = segment._start
            for block, after, _ in segment.records(end, segment.first):
                if block.last <= proven:
                    end = after
        self.directory.rot(rng, segment.name, end)

    def headed(self) -> bool:
        """Tell whether all segments could be opened again."""
        assert self._log is not None
        with suppress(StorageCorrupt):
            for segment in self._log._segments:
                Segment(segment.name, self.directory)
            return True
        return False


class ModelDisk:
    """A list of blocks."""

    def __init__(self) -> None:
        self.control = Control()
        self.fresh = True
        self._index = LogIndex()
        self._blocks: list[Block] = []

    def open(self) -> "ModelDisk":
        """Open the log."""
        return self

    @property
    def index(self) -> LogIndex:
        """A summary, for `LogMember`."""
        return self._index.copy()

    def persist(self, persist: Persist) -> None:
        """Make durable."""
        self.control = persist.control or self.control
        if persist.truncate_after is not None:
            self._index.truncate(persist.truncate_after)
            while self._blocks and self._blocks[-1].last > persist.truncate_after:
                self._blocks.pop()
        for block in persist.blocks:
            self._index.append(block)
            self._blocks.append(block)

    def read(self, first: int, max_bytes: int) -> tuple[Block, ...]:
        """Return blocks from `first` on."""
        i = bisect_left(self._blocks, first, key=lambda block: block.first)
        if i == len(self._blocks) or self._blocks[i].first != first:
            return ()
        found, size = [self._blocks[i]], len(self._blocks[i].data)
        for block in self._blocks[i + 1 : i + 100]:
            size += len(block.data)
            if size > max_bytes:
                break
            found.append(block)
        return tuple(found)

    def mend(self, blocks: tuple[Block, ...]) -> None:
        """The model has no bits."""

    def trim(self, position: int) -> int:
        """Remove blocks up to `position`."""
        keep = bisect_left(self._blocks, position + 1, key=lambda block: block.last)
        if keep:
            self._index.trim(self._blocks[keep - 1].last)
            del self._blocks[:keep]
        return self._index.base

    def reset(self, base: LogBase) -> None:
        """Begin anew after `base`."""
        assert base.position >= self._index.last or self._index.contradicts(base)
        self.fresh = False
        self.control = Control(self.control.term, self.control.vote, base.position)
        self._index = LogIndex.beginning(base)
        self._blocks = []

    def crash(self, rng: Random, writing: Persist | None, mending: tuple[Block, ...] = ()) -> None:
        """Keep a prefix of what was being written."""
        if writing is None or (steps := rng.randrange(3 + len(writing.blocks))) == 0:
            return
        truncate = writing.truncate_after if steps > 1 else None
        blocks = writing.blocks[: steps - 2] if steps > 2 else ()
        self.persist(Persist(writing.ticket, writing.control, truncate, blocks))

    def rot(self, rng: Random, proven: int) -> None:
        """The model has no bits."""

    def headed(self) -> bool:
        """The model has no segments."""
        return True
