"""A damaged block is asked for where it can be, and given by who has it [D5]."""

from pathlib import Path
from typing import Any, cast

from log_herd import led_by
from pgherd_sidecar.agent.log.reader import LogReader
from pgherd_sidecar.core.consensus import Block, Persist
from pgherd_sidecar.core.consensus.model.messages import Mend
from pgherd_sidecar.env.storage.disk import RealDirectory
from pgherd_sidecar.env.storage.segments import SegmentLog


def test_a_damaged_block_that_was_overwritten_is_not_asked_for_any_more() -> None:
    """[D5] It was on no other disk; now another block holds its position."""
    herd = led_by("n1", 3)
    herd.isolate("n1")
    herd.order("n1", b"lost")
    herd["n1"].member.damaged(2, herd.now)
    assert herd["n1"].member.damaged_at == 2
    herd.elect("n2")
    herd.order("n2", b"instead", 3)
    herd.heal()
    herd.pass_time(3)
    assert herd["n1"].data == herd["n2"].data
    assert herd["n1"].member.damaged_at == 0


def test_who_is_asked_for_the_middle_of_a_block_does_not_say_that_it_was_trimmed() -> None:
    """[D5] Else the block might be taken for lost for good."""
    herd = led_by("n1", 3)
    herd.order("n1", b"three", 3)
    asked = herd["n2"].member
    asked.receive("n3", Mend(asked.term, asked.last_position), herd.now)
    (fetch,) = asked.take_effects().fetch
    asked.fetched(fetch, (), herd.now)
    assert asked.take_effects().send == []


def test_no_block_is_read_from_the_middle_of_one_and_no_other_is_taken_for_damaged(
    tmp_path: Path,
) -> None:
    log = SegmentLog(RealDirectory(tmp_path), segment_bytes=4096, cache_bytes=0)
    written = tuple(Block.make(1, first, 3, b"x" * 100) for first in (1, 4, 7))
    log.persist(Persist(1, None, None, written))
    assert log.read(5, 1000) == ()
    assert log.start_of(5) == 4
    assert log.read(4, 1000) == written[1:]
    log.close()


async def test_a_log_that_is_to_hold_a_position_begins_with_the_block_that_does(
    tmp_path: Path,
) -> None:
    log = SegmentLog(RealDirectory(tmp_path), segment_bytes=4096, cache_bytes=0)
    written = tuple(Block.make(1, first, 3, b"x" * 100) for first in (1, 4, 7))
    log.persist(Persist(1, None, None, written))
    nobody = cast("Any", None)
    reader = LogReader(log, nobody, now=nobody, wake=nobody)
    assert [await reader.begin_before(needed) for needed in (4, 6, 10)] == [3, 3, 9]
    log.close()
