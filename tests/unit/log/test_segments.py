"""The log on disk: what was promised is there after any interruption, or known to be lost."""

import contextlib
import functools
import os
from collections.abc import Callable
from errno import EMFILE, ENOSPC
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from pgherd_sidecar.core.consensus import Block, Control, LogBase, Persist
from pgherd_sidecar.env.storage import disk
from pgherd_sidecar.env.storage.disk import File, RealDirectory
from pgherd_sidecar.env.storage.segment import pack_record
from pgherd_sidecar.env.storage.segments import (
    SegmentLog,
    StorageCorrupt,
    StorageDamaged,
    StorageError,
    StorageFailed,
    StorageFormat,
)

SEGMENT_BYTES = 1024


def open_log(path: Path, cache_bytes: int = 0) -> SegmentLog:
    return SegmentLog(RealDirectory(path), segment_bytes=SEGMENT_BYTES, cache_bytes=cache_bytes)


def blocks(first: int, last: int, term: int = 1, size: int = 100) -> tuple[Block, ...]:
    return tuple(
        Block.make(term, position, 1, f"{term}/{position} ".encode().ljust(size, b"."))
        for position in range(first, last + 1)
    )


def persist(
    *, control: Control | None = None, truncate: int | None = None, new: tuple[Block, ...] = ()
) -> Persist:
    return Persist(1, control, truncate, new)


def start(path: Path, *batches: tuple[Block, ...]) -> SegmentLog:
    log = open_log(path)
    log.persist(persist(control=Control(term=1, vote="n1")))
    for batch in batches:
        log.persist(persist(new=batch))
    return log


def contents(log: SegmentLog) -> tuple[Block, ...]:
    found: list[Block] = []
    while batch := log.read((found[-1].last if found else log.index.base) + 1, 10_000):
        found += batch
    return tuple(found)


def newest_segment(path: Path) -> Path:
    return max(path.glob("*.seg"))


class DyingDirectory(RealDirectory):
    """Dies before the operation number `lives`, and does nothing more from then on."""

    def __init__(self, path: Path, lives: int) -> None:
        super().__init__(path)
        self.lives = lives

    def step(self) -> None:
        self.lives -= 1
        if self.lives < 0:
            raise OSError("died")

    def create(self, name: str, size: int) -> "DyingFile":  # type: ignore[override]
        self.step()
        return DyingFile(self, super().create(name, size))

    def open(self, name: str) -> "DyingFile":  # type: ignore[override]
        return DyingFile(self, super().open(name))

    def replace(self, name: str, new_name: str) -> None:
        self.step()
        super().replace(name, new_name)

    def remove(self, name: str) -> None:
        self.step()
        super().remove(name)

    def sync(self) -> None:
        self.step()
        super().sync()


class DyingFile:
    def __init__(self, directory: DyingDirectory, file: File) -> None:
        self._directory = directory
        self._file = file
        self.size = file.size
        self.read = file.read
        self.close = file.close

    def write(self, offset: int, data: bytes) -> None:
        if self._directory.lives == 0:  # the last thing it does is half a write
            self._file.write(offset, data[: len(data) // 2])
        self._directory.step()
        self._file.write(offset, data)

    def sync(self) -> None:
        self._directory.step()
        self._file.sync()


def die_at_every_operation(
    path: Path, prepare: Callable[[Path], None], last: Persist
) -> list[Path]:
    """Return a directory for each point at which `last` can be interrupted."""
    left = []
    for lives in range(100):
        copy = path / str(lives)
        prepare(copy)
        directory = DyingDirectory(copy, 100)
        log = SegmentLog(directory, segment_bytes=SEGMENT_BYTES, cache_bytes=0)
        directory.lives = lives
        left.append(copy)
        try:
            log.persist(last)
        except StorageFailed:
            log.close()
            continue
        log.close()
        return left
    raise AssertionError("it never ended")


def test_an_empty_directory_is_an_empty_log(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    assert (log.index.last, log.index.history, log.control) == (0, (), Control())
    assert log.read(1, 1000) == ()


def test_blocks_and_control_are_there_after_reopening(tmp_path: Path) -> None:
    written = blocks(1, 20) + blocks(21, 30, term=4)
    start(tmp_path, written[:3], written[3:]).close()
    log = open_log(tmp_path)
    assert contents(log) == written
    assert log.control == Control(term=1, vote="n1")
    assert log.index.history == ((1, 1), (4, 21))
    assert len(list(tmp_path.glob("*.seg"))) > 3


@pytest.mark.parametrize("cache_bytes", [0, 300, 100_000])
def test_reading_starts_at_the_block_asked_for_and_respects_the_limit(
    tmp_path: Path, cache_bytes: int
) -> None:
    start(tmp_path, blocks(1, 40)).close()
    log = open_log(tmp_path, cache_bytes)
    log.persist(persist(new=blocks(41, 45)))
    for first in range(1, 46):
        assert log.read(first, 1) == blocks(first, first)
        assert 1 <= len(log.read(first, 250)) <= 2
        assert log.read(first, 250)[0].first == first
    assert log.read(46, 1000) == ()


def test_a_block_too_large_for_an_emptied_segment_takes_its_place(tmp_path: Path) -> None:
    log = start(tmp_path / "log", blocks(1, 1))
    new = (*blocks(1, 1, term=2, size=2 * SEGMENT_BYTES), *blocks(2, 20, term=2))
    log.persist(persist(truncate=0))
    log.persist(persist(new=new))
    log.trim(0)  # nothing of it may go
    assert contents(log) == new
    log.close()
    assert contents(open_log(tmp_path / "log")) == new


def test_a_block_larger_than_a_segment_gets_one_of_its_own(tmp_path: Path) -> None:
    written = (*blocks(1, 2), *blocks(3, 3, size=5 * SEGMENT_BYTES), *blocks(4, 5))
    start(tmp_path, written).close()
    assert contents(open_log(tmp_path)) == written


def test_what_a_log_takes_after_a_position_is_known_up_to_a_step(tmp_path: Path) -> None:
    log = start(tmp_path, *((one,) for one in blocks(1, 40)))
    sizes = [log.bytes_after(position) for position in range(41)]
    assert sizes == sorted(sizes, reverse=True)
    assert 40 * 100 <= sizes[0] <= 40 * 100 * 2
    for position, size in enumerate(sizes):
        assert size >= (40 - position) * 100
    assert sizes[40] <= SEGMENT_BYTES
    log.trim(20)
    assert log.bytes_after(0) < sizes[0] and log.bytes_after(30) == sizes[30]


def test_a_prepared_spare_becomes_the_next_segment(tmp_path: Path) -> None:
    log = start(tmp_path, blocks(1, 2))
    log.prepare_spare()
    assert log.spare_ready
    log.persist(persist(new=blocks(3, 12)))
    assert not log.spare_ready
    log.close()
    assert contents(open_log(tmp_path)) == blocks(1, 12)


class FullDisk:
    """Takes so many bytes of files that grow, and no more."""

    def __init__(self, room: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room = room
        self._write, self._unlink = os.pwrite, Path.unlink
        monkeypatch.setattr(os, "pwrite", self._take)
        monkeypatch.setattr(Path, "unlink", functools.partialmethod(_unlink_on, self))

    def _take(self, fd: int, data: bytes, offset: int) -> int:
        grows = max(offset + len(data) - os.fstat(fd).st_size, 0)
        if grows > self.room:
            raise OSError(ENOSPC, "No space left on device")
        self.room -= grows
        return self._write(fd, data, offset)

    def give(self, path: Path) -> None:
        self.room += path.stat().st_size if path.exists() else 0
        self._unlink(path, missing_ok=True)


def _unlink_on(path: Path, full: FullDisk, *, missing_ok: bool = False) -> None:
    assert missing_ok or path.exists()
    full.give(path)


def test_a_log_opens_on_a_full_disk_with_the_spare_that_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = start(tmp_path, blocks(1, 2))
    log.prepare_spare()
    log.close()
    FullDisk(0, monkeypatch)
    log = open_log(tmp_path)
    log.prepare_spare()
    assert log.spare_ready
    log.close()


def test_a_spare_for_which_there_is_no_room_takes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = start(tmp_path, blocks(1, 2))
    monkeypatch.setattr(disk, "_ZEROS", bytes(SEGMENT_BYTES // 4))
    full = FullDisk(SEGMENT_BYTES // 2, monkeypatch)
    with pytest.raises(StorageFailed, match="No space"):
        log.prepare_spare()
    assert full.room == SEGMENT_BYTES // 2
    assert not list(tmp_path.glob("spare*"))
    log.close()


def test_a_tail_torn_at_any_byte_is_dropped_and_overwritten(tmp_path: Path) -> None:
    start(tmp_path, blocks(1, 3)).close()
    segment = newest_segment(tmp_path)
    log = open_log(tmp_path)
    before = segment.read_bytes()
    log.persist(persist(new=blocks(4, 4)))
    log.close()
    after = segment.read_bytes()
    begin = next(i for i, byte in enumerate(before) if byte != after[i])
    end = len(after.rstrip(b"\0"))
    for torn in range(begin, end):
        segment.write_bytes(after[:torn] + bytes(len(after) - torn))
        log = open_log(tmp_path)
        assert contents(log) == blocks(1, 3)
        log.persist(persist(new=blocks(4, 5, term=2)))
        log.close()
        log = open_log(tmp_path)
        assert contents(log) == blocks(1, 3) + blocks(4, 5, term=2)
        log.close()


def test_a_batch_torn_in_its_middle_keeps_its_beginning(tmp_path: Path) -> None:
    start(tmp_path, blocks(1, 2), blocks(3, 5)).close()
    segment = newest_segment(tmp_path)
    content = segment.read_bytes()
    at = content.index(b"1/4 ")
    segment.write_bytes(content[:at] + b"lost" + content[at + 4 :])
    assert contents(open_log(tmp_path)) == blocks(1, 3)


def test_what_looks_like_a_record_in_the_data_of_a_torn_one_proves_nothing(tmp_path: Path) -> None:
    forged = pack_record(Block.make(9, 9, 1, b"row"), flushed=1 << 40)
    torn = Block.make(1, 4, 1, b"data".ljust(100, b".") + forged + b"end of 4")
    start(tmp_path, blocks(1, 2), (*blocks(3, 3), torn)).close()
    segment = newest_segment(tmp_path)
    content = segment.read_bytes()
    segment.write_bytes(content.replace(b"end of 4", bytes(8)))
    log = open_log(tmp_path)
    assert not log.control.incomplete
    assert contents(log) == blocks(1, 3)


def damaged_position(log: SegmentLog) -> int:
    """Where the first block is that can't be read, 0 if all can."""
    with contextlib.suppress(StorageDamaged):
        contents(log)
        return 0
    with pytest.raises(StorageDamaged) as caught:
        contents(log)
    return caught.value.position


def test_a_flipped_bit_anywhere_before_the_last_flush_is_never_taken_for_the_end(
    tmp_path: Path,
) -> None:
    """[D5, D6] It is a hole that can be mended, or the log is known to be incomplete."""
    start(tmp_path, blocks(1, 2), blocks(3, 3), blocks(4, 4)).close()
    segment, control = newest_segment(tmp_path), tmp_path / "control"
    content, promised = segment.read_bytes(), control.read_bytes()
    seen = set()
    for at in [*range(7), *range(8, content.index(b"1/4 ") - 44)]:
        damaged = bytearray(content)
        damaged[at] ^= 0x10
        segment.write_bytes(bytes(damaged))
        control.write_bytes(promised)
        log = open_log(tmp_path)
        hole = damaged_position(log)
        if log.control.incomplete:
            assert (log.control.term, log.control.vote) == (2, None)
            assert contents(log) == blocks(1, log.index.last)
            assert log.index.last < 4
        else:
            assert log.hole == hole
            log.mend(blocks(hole, 4) if hole else ())
            log.close()
            log = open_log(tmp_path)
            assert contents(log) == blocks(1, 4), f"byte {at}"
        seen.add((log.control.incomplete, hole > 0))
        log.close()
        segment.write_bytes(content)
    assert seen == {(True, False), (False, True), (False, False)}  # the last one: padding


def test_a_lost_end_is_given_up_however_often_that_is_interrupted(tmp_path: Path) -> None:
    """[D6] Some of what follows the damage is there until it is all gone."""
    for lives in range(100):
        path = tmp_path / str(lives)
        start(path, blocks(1, 30)).close()
        second = sorted(path.glob("*.seg"))[1]
        content = bytearray(second.read_bytes())
        content[20] ^= 1
        second.write_bytes(bytes(content))
        directory = DyingDirectory(path, lives)
        with contextlib.suppress(StorageFailed):
            SegmentLog(directory, segment_bytes=SEGMENT_BYTES, cache_bytes=0).close()
        log = open_log(path)
        assert (log.control.term, log.control.incomplete) == (2, True)
        assert contents(log) == blocks(1, int(second.stem) - 1)
        log.persist(persist(new=blocks(log.index.last + 1, 35, term=3)))
        log.close()
        assert contents(open_log(path))[-1] == blocks(35, 35, term=3)[0]
        if directory.lives > 0:
            return
    raise AssertionError("it never ended")


def test_a_segment_of_a_former_version_is_not_called_damaged(tmp_path: Path) -> None:
    start(tmp_path, blocks(1, 2)).close()
    segment = newest_segment(tmp_path)
    segment.write_bytes(segment.read_bytes().replace(b"pgherdL2", b"pgherdL1"))
    with pytest.raises(StorageFormat, match=r"\.seg is in the format of another version"):
        open_log(tmp_path)


@pytest.mark.parametrize("change", [(b"base_membership", b"x"), (b'"vote"', b'"voted"')])
def test_a_control_file_of_another_version_is_not_called_damaged(
    tmp_path: Path, change: tuple[bytes, bytes]
) -> None:
    start(tmp_path, blocks(1, 2)).close()
    control = tmp_path / "control"
    line = control.read_bytes().partition(b"\n")[0]
    changed = line.replace(*change)
    assert changed != line
    control.write_bytes(changed + b"\n%08x\n" % crc32(changed))
    with pytest.raises(StorageFormat, match="control file"):
        open_log(tmp_path)


def test_damage_in_an_old_segment_is_mended_with_the_block_that_was_there_only(
    tmp_path: Path,
) -> None:
    start(tmp_path, blocks(1, 30)).close()
    oldest = min(tmp_path.glob("*.seg"))
    content = oldest.read_bytes()
    at = content.index(b"1/5 ") - 44  # a header: where the next block begins is hidden, too
    oldest.write_bytes(content.replace(b"1/3 ", b"1/8 ")[:at] + b"x" + content[at + 1 :])
    log = open_log(tmp_path)
    assert not log.control.incomplete
    assert log.read(1, 1000) == blocks(1, 2)
    assert log.read(4, 1000) == blocks(4, 4)
    for first in (3, 5, 6):
        with pytest.raises(StorageDamaged, match="position 3"):
            log.read(first, 1000)
    log.mend(blocks(3, 3, term=2))
    assert damaged_position(log) == 3
    log.mend(blocks(3, 4))
    assert damaged_position(log) == 5
    log.mend(blocks(7, 9))  # it can't be told where that is
    assert damaged_position(log) == 5
    log.mend(blocks(5, 9))
    log.close()
    assert contents(open_log(tmp_path)) == blocks(1, 30)


def assert_ends_before_loss_of(segment: Path) -> None:
    """Lose a segment; the log ends before it, and is incomplete, however often it is opened."""
    segment.unlink()
    for _ in range(2):
        log = open_log(segment.parent)
        assert (log.control.term, log.control.incomplete) == (2, True)
        assert contents(log) == blocks(1, int(segment.stem) - 1)
        log.close()


def test_a_log_ends_before_a_missing_segment_and_knows_that_it_is_incomplete(
    tmp_path: Path,
) -> None:
    start(tmp_path, blocks(1, 30)).close()
    assert_ends_before_loss_of(sorted(tmp_path.glob("*.seg"))[1])


def test_a_missing_newest_segment_is_noticed_if_the_log_is_known_to_have_gone_on(
    tmp_path: Path,
) -> None:
    log = start(tmp_path, blocks(1, 30))
    log.persist(persist(control=Control(term=2, vote=None, commit_position=30)))
    log.close()
    newest_segment(tmp_path).unlink()
    log = open_log(tmp_path)
    assert (log.control.term, log.control.incomplete) == (3, True)
    assert log.control.commit_position == log.index.last < 30


@pytest.mark.parametrize("reopened", [False, True])
def test_a_missing_newest_segment_is_noticed_before_anything_but_blocks_is_written(
    tmp_path: Path, reopened: bool
) -> None:
    """[D6] What was acknowledged in it was never seen by the control file."""
    log = start(tmp_path, blocks(1, 30))
    if reopened:
        log.close()
        log = open_log(tmp_path)
    log.close()
    assert_ends_before_loss_of(newest_segment(tmp_path))


def test_a_segment_that_was_begun_when_the_process_ended_is_missed_once_it_holds_blocks(
    tmp_path: Path,
) -> None:
    """[D6] Wherever the first append to it was interrupted, nothing is called lost before."""
    full = SEGMENT_BYTES // 150

    def prepare(path: Path) -> None:
        start(path, blocks(1, full)).close()
        assert len(list(path.glob("*.seg"))) == 1

    more = blocks(full + 1, full + 4)
    for path in die_at_every_operation(tmp_path, prepare, persist(new=more)):
        log = open_log(path)
        assert not log.control.incomplete
        log.persist(persist(new=blocks(log.index.last + 1, full + 4)))
        log.close()
        newest_segment(path).unlink()
        assert open_log(path).control.incomplete


def test_a_log_that_began_anew_or_was_emptied_misses_no_segment(tmp_path: Path) -> None:
    log = start(tmp_path, blocks(1, 30))
    log.persist(persist(truncate=0))
    log.close()
    log = open_log(tmp_path)
    assert not log.control.incomplete
    log.persist(persist(new=blocks(1, 30)))
    log.reset(LogBase(30, 1))
    log.close()
    log = open_log(tmp_path)
    assert not log.control.incomplete
    assert (log.index.base, log.index.last) == (30, 30)


def test_a_log_begins_anew_before_its_end_only_where_it_can_never_be_committed(
    tmp_path: Path,
) -> None:
    """[T4]"""
    log = start(tmp_path, blocks(1, 10), blocks(11, 30, term=2))
    for base in (LogBase(20, 2), LogBase(5, 1)):
        with pytest.raises(StorageError, match="the log ends at 30"):
            log.reset(base)
    log.reset(LogBase(20, 3))
    log.close()
    log = open_log(tmp_path)
    assert (log.index.base, log.index.last, log.control.incomplete) == (20, 20, False)
    log.persist(persist(new=blocks(21, 22, term=3)))
    assert contents(log) == blocks(21, 22, term=3)


@pytest.mark.parametrize(("committed", "damaged"), [(29, 0), (29, 1), (3, 0)])
def test_a_log_begins_behind_a_damaged_oldest_segment_if_that_is_committed(
    tmp_path: Path, committed: int, damaged: int
) -> None:
    log = start(tmp_path, blocks(1, 30))
    log.persist(persist(control=Control(term=1, vote="n1", commit_position=committed)))
    log.trim(10)
    first = log.index.base + 1
    log.close()
    segments = sorted(tmp_path.glob("*.seg"))
    content = bytearray(segments[damaged].read_bytes())
    content[20] ^= 1
    segments[damaged].write_bytes(bytes(content))
    behind = int(segments[1].stem)
    for _ in range(2):
        log = open_log(tmp_path)
        if (committed, damaged) == (29, 0):
            assert log.control == Control(term=1, vote="n1", commit_position=committed)
            assert (log.index.base, contents(log)) == (behind - 1, blocks(behind, 30))
        else:  # D6
            assert (log.control.term, log.control.incomplete) == (2, True)
            assert contents(log) == blocks(first, log.index.last)
        log.close()


def test_a_damaged_or_missing_control_file_is_refused(tmp_path: Path) -> None:
    start(tmp_path, blocks(1, 3)).close()
    control = tmp_path / "control"
    control.write_bytes(control.read_bytes().replace(b"n1", b"n2"))
    with pytest.raises(StorageCorrupt, match="control"):
        open_log(tmp_path)
    control.unlink()
    with pytest.raises(StorageCorrupt, match="control"):
        open_log(tmp_path)


@pytest.mark.parametrize("position", [0, 1, 7, 14, 29])
def test_truncation_and_new_blocks_survive_reopening(tmp_path: Path, position: int) -> None:
    log = start(tmp_path, blocks(1, 30))
    new = blocks(position + 1, position + 3, term=2)
    log.persist(persist(truncate=position, new=new))
    assert contents(log) == blocks(1, position) + new
    log.close()
    assert contents(open_log(tmp_path)) == blocks(1, position) + new


def test_truncated_records_that_would_fit_do_not_come_back(tmp_path: Path) -> None:
    """[D3] Old 5 (term 3) would follow new 4 (term 2), of the same size, without a gap."""
    log = start(tmp_path, blocks(1, 3), blocks(4, 5, term=3))
    log.persist(persist(truncate=3, new=blocks(4, 4, term=2)))
    log.close()
    assert contents(open_log(tmp_path)) == blocks(1, 3) + blocks(4, 4, term=2)


def test_a_truncation_that_damage_is_in_the_way_of_is_done_when_the_log_is_opened_again(
    tmp_path: Path,
) -> None:
    """[D6] The log fails, and then gives up what the damage hides."""
    log = start(tmp_path, blocks(1, 5))
    segment = newest_segment(tmp_path)
    content = bytearray(segment.read_bytes())
    content[content.index(b"1/3 ") - 44] ^= 1  # the header of its record
    segment.write_bytes(bytes(content))
    with pytest.raises(StorageError):
        log.persist(persist(truncate=4))
    log.close()
    log = open_log(tmp_path)
    assert (contents(log), log.control.incomplete) == (blocks(1, 2), True)
    log.persist(persist(new=blocks(3, 4, term=2)))
    assert contents(log)[2:] == blocks(3, 4, term=2)


@pytest.mark.parametrize("position", [1, 9, 26])
def test_a_truncation_interrupted_anywhere_leaves_the_old_log_or_the_new(
    tmp_path: Path, position: int
) -> None:
    def prepare(path: Path) -> None:
        start(path, blocks(1, 10), blocks(11, 30)).close()

    new = blocks(position + 1, position + 12, term=2)
    old = blocks(1, 30)
    seen = set()
    for path in die_at_every_operation(tmp_path, prepare, persist(truncate=position, new=new)):
        log = open_log(path)
        found = contents(log)
        log.close()
        allowed = {old, *((old[:position] + new[:kept]) for kept in range(len(new) + 1))}
        assert found in allowed
        seen.add(found)
    assert {old, old[:position], old[:position] + new} <= seen


def test_an_append_interrupted_anywhere_leaves_a_beginning_of_it(tmp_path: Path) -> None:
    def prepare(path: Path) -> None:
        start(path, blocks(1, 5)).close()

    everything = blocks(1, 20)
    for path in die_at_every_operation(tmp_path, prepare, persist(new=blocks(6, 20))):
        log = open_log(path)
        found = contents(log)
        assert len(found) >= 5
        assert found == everything[: len(found)]
        log.persist(persist(new=blocks(len(found) + 1, 21)))
        log.close()
        log = open_log(path)
        assert contents(log) == blocks(1, 21)
        log.close()


def test_trim_removes_whole_segments_and_keeps_the_rest(tmp_path: Path) -> None:
    log = start(tmp_path, blocks(1, 15), blocks(16, 30, term=2))
    base = log.trim(20)
    assert 10 < base <= 20
    assert contents(log) == (blocks(1, 15) + blocks(16, 30, term=2))[base:]
    assert log.read(base, 1000) == ()
    log.close()
    log = open_log(tmp_path)
    assert log.index.base == base
    assert log.index.term_at(base) == (1 if base <= 15 else 2)
    assert contents(log)[0].first == base + 1


def test_trim_keeps_as_many_bytes_as_it_was_told(tmp_path: Path) -> None:
    log = start(tmp_path, *((one,) for one in blocks(1, 40)))
    for newest in range(41, 61):
        log.persist(persist(new=blocks(newest, newest)))
        base = log.trim(newest, keep_bytes=SEGMENT_BYTES)
        assert base > 0
        assert SEGMENT_BYTES <= log.bytes_after(base) <= 2 * SEGMENT_BYTES


def test_nothing_is_written_after_a_failure(tmp_path: Path) -> None:
    start(tmp_path, blocks(1, 2)).close()
    directory = DyingDirectory(tmp_path, lives=100)
    log = SegmentLog(directory, segment_bytes=SEGMENT_BYTES)
    directory.lives = 1
    with pytest.raises(StorageFailed, match="died"):
        log.persist(persist(new=blocks(3, 3)))
    directory.lives = 1000
    with pytest.raises(StorageFailed):
        log.persist(persist(new=blocks(3, 3)))
    with pytest.raises(StorageFailed):
        log.read(1, 1000)
    log.close()


def test_a_log_of_many_segments_has_few_files_open(tmp_path: Path) -> None:
    def opened() -> int:
        return sum(path.exists() and tmp_path in path.resolve().parents for path in descriptors)

    descriptors = [Path(f"/proc/self/fd/{number}") for number in range(1024)]
    written = blocks(1, 400)
    log = start(tmp_path, written)
    assert len(list(tmp_path.glob("*.seg"))) > 50
    assert opened() < 20
    log.close()
    log = open_log(tmp_path)
    assert contents(log) == written
    assert opened() < 20
    log.persist(persist(truncate=30, new=blocks(31, 100, term=2)))
    assert contents(log) == written[:30] + blocks(31, 100, term=2)
    log.close()
    assert opened() == 0


def test_a_log_whose_files_can_not_be_opened_has_failed(tmp_path: Path) -> None:
    class Exhausted(RealDirectory):
        def open(self, name: str) -> Any:
            if name.endswith(".seg"):
                raise OSError(EMFILE, "Too many open files")
            return super().open(name)

    start(tmp_path, blocks(1, 2)).close()
    with pytest.raises(StorageFailed, match="Too many open files"):
        SegmentLog(Exhausted(tmp_path))
