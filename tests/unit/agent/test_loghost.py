"""Three log hosts on loopback and real disks: one order, whatever is stopped and started."""

import asyncio
import threading
from pathlib import Path

import pytest
from log_trio import NAMES, Trio, entry, trio
from patience import until
from pgherd_sidecar.agent.base.config import LimitSettings, NodeConfig
from pgherd_sidecar.agent.log import host as loghost
from pgherd_sidecar.agent.log.writer import FlushPace
from pgherd_sidecar.core.consensus import LocalProtocolError, LogBase, Membership, Persist, Role
from pgherd_sidecar.env.storage.segments import SegmentLog, StorageFailed


async def test_one_proposer_is_elected_and_every_member_told(tmp_path: Path) -> None:
    async with trio(tmp_path) as herd:
        leader = await herd.proposer()
        assert leader.host.role is Role.PROPOSER
        await until(lambda: all(node.proposers for node in herd.nodes.values()))
        for node in herd.nodes.values():
            assert node.proposers[-1] == (leader.host.term, leader.config.name)


async def test_submissions_of_all_members_come_in_one_order(tmp_path: Path) -> None:
    async with trio(tmp_path) as herd:
        await herd.proposer()
        nodes = list(herd.nodes.values())
        await asyncio.gather(
            *(
                herd.order(node, *range(1000 * i + burst, 1000 * i + burst + 3))
                for i, node in enumerate(nodes)
                for burst in range(0, 60, 3)
            )
        )
        await until(lambda: len({node.position for node in nodes}) == 1)
        herd.assert_same_order()
        assert nodes[0].delivered == nodes[1].delivered == nodes[2].delivered


async def test_two_go_on_when_the_proposer_stops_and_it_catches_up_later(tmp_path: Path) -> None:
    async with trio(tmp_path) as herd:
        first = await herd.proposer()
        await herd.order(first, 1, 2)
        await herd.stop(first.config.name)
        second = await herd.proposer()
        assert second.host.term > 1
        await herd.order(second, 3, 4)
        await herd.start(first.config.name)
        await herd.order(first, 5)
        await until(lambda: len({node.position for node in herd.nodes.values()}) == 1)
        herd.assert_same_order()
        assert set(first.delivered.values()) >= {1, 2, 3, 4, 5}


async def test_a_member_that_was_away_for_long_is_fed_from_disk(tmp_path: Path) -> None:
    limits = LimitSettings(segment_bytes=1 << 16, log_cache_bytes=1 << 12)
    async with trio(tmp_path, limits) as herd:
        leader = await herd.proposer()
        away = next(name for name in NAMES if name != leader.config.name)
        await herd.stop(away)
        for start in range(0, 9_000, 500):
            await herd.order(leader, *range(start, start + 500))
        assert len(list((tmp_path / leader.config.name / "log").glob("*.seg"))) > 2
        await herd.start(away)
        await until(lambda: herd.nodes[away].position == leader.position)
        herd.assert_same_order()


async def test_everything_is_still_there_after_all_have_stopped(tmp_path: Path) -> None:
    async with trio(tmp_path) as herd:
        leader = await herd.proposer()
        await herd.order(leader, *range(100))
        await herd.stop()
        await herd.start()
        leader = await herd.proposer()
        await herd.order(leader, 1000)
        for node in herd.nodes.values():
            before, node.delivered, node.position = node.delivered, {}, 0
            node.deliver()
            assert before.items() <= node.delivered.items()
        herd.assert_same_order()


async def test_logs_that_are_damaged_in_different_places_mend_each_other(tmp_path: Path) -> None:
    """[D5] A bit of the data in two logs and the header of a record in the third. [D6]"""
    async with trio(tmp_path) as herd:
        leader = await herd.proposer()
        for number in range(40):
            await herd.order(leader, number)
        await herd.stop()
        for name, marker, before in (("n1", 5, 0), ("n2", 9, 0), ("n3", 7, 60)):
            [segment] = (tmp_path / name / "log").glob("*.seg")
            content = bytearray(segment.read_bytes())
            content[content.index(entry(marker)) - before] ^= 1
            segment.write_bytes(bytes(content))
            herd.nodes[name].position = 0
        await herd.start()
        await until(lambda: min(node.position for node in herd.nodes.values()) >= leader.position)
        await until(lambda: all(node.host.whole.is_set() for node in herd.nodes.values()))
        await herd.order(herd.nodes["n3"], 40)
        herd.assert_same_order()
        assert [node.host.reader.trouble for node in herd.nodes.values()] == [None] * 3
        await until(lambda: len({node.host.membership for node in herd.nodes.values()}) == 1)


async def test_a_minority_commits_nothing(tmp_path: Path) -> None:
    async with trio(tmp_path) as herd:
        leader = await herd.proposer()
        await herd.order(leader, 1)
        await herd.stop(*(name for name in NAMES if name != leader.config.name))
        position = leader.host.commit_position
        leader.host.submit(entry(2), 1)
        await until(lambda: leader.host.proposer is None)
        assert leader.host.commit_position == position
        assert not leader.host.submit(entry(3), 1)


async def test_reading_from_inside_a_block_returns_the_whole_block(tmp_path: Path) -> None:
    async with trio(tmp_path) as herd:
        leader = await herd.proposer()
        await herd.order(leader, *range(50))
        [block] = [b for b in leader.host.reader.read(1, 1 << 20) if b.count >= 50][:1]
        for position in (block.first, block.first + 20, block.last, block.first + 1):
            assert leader.host.reader.read(position, 1)[0] == block
        assert leader.host.reader.read(leader.host.commit_position + 1, 1 << 20) == []


async def test_trimmed_positions_are_gone_and_the_rest_is_not(tmp_path: Path) -> None:
    async with trio(tmp_path) as herd:
        leader = await herd.proposer()
        for start in range(0, 6_000, 500):
            await herd.order(leader, *range(start, start + 500))
        with pytest.raises(LocalProtocolError):
            leader.host.trim(leader.host.commit_position + 1)
        segments = tmp_path / leader.config.name / "log"
        before = len(list(segments.glob("*.seg")))
        leader.host.trim(leader.host.commit_position)
        await until(lambda: len(list(segments.glob("*.seg"))) == 1)
        assert before > 1
        assert leader.host.reader.read(1, 1 << 20) == []
        await herd.order(leader, 99_999)


async def test_what_a_member_has_yet_to_flush_is_kept_for_it_and_then_trimmed(
    tmp_path: Path,
) -> None:
    limits = LimitSettings(segment_bytes=1 << 16, log_retention_bytes=1 << 30)
    async with trio(tmp_path, limits) as herd:
        leader = await herd.proposer()
        away = next(name for name in NAMES if name != leader.config.name)
        await herd.stop(away)
        for start in range(0, 6_000, 500):
            await herd.order(leader, *range(start, start + 500))
        leader.host.trim(leader.host.commit_position)
        await herd.order(leader, 10_000)
        assert leader.host.extent.base < leader.host.commit_position // 2
        await herd.start(away)
        await until(lambda: herd.nodes[away].position == leader.position)
        segments = tmp_path / leader.config.name / "log"

        def trimmed() -> bool:
            leader.host.trim(leader.host.commit_position)
            return len(list(segments.glob("*.seg"))) == 1

        await until(trimmed)


async def test_a_failed_disk_silences_the_member_and_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    herd = Trio(tmp_path)
    await herd.start()
    leader = await herd.proposer()
    await herd.order(leader, 1)
    sick = leader.host._storage
    persist = SegmentLog.persist

    def fail(log: SegmentLog, what: Persist) -> None:
        if log is sick:
            raise StorageFailed("no space")
        persist(log, what)

    monkeypatch.setattr(SegmentLog, "persist", fail)
    leader.host.submit(entry(2), 1)
    await until(lambda: leader.failure)
    assert isinstance(leader.failure, StorageFailed)
    leader.running = False
    others = herd.alive()
    await until(lambda: all(n.host.proposer not in (None, leader.config.name) for n in others))
    await herd.order(others[0], 3)
    assert leader.host.submit(entry(4), 1) is False
    await leader.host.stop()
    await herd.stop()


async def test_a_member_whose_log_has_begun_anew_still_notices_silence(tmp_path: Path) -> None:
    async with trio(tmp_path) as herd:
        leader = await herd.proposer()
        await herd.order(leader, 1)
        follower = next(node for node in herd.alive() if node is not leader)
        host = follower.host
        await until(lambda: host.commit_position > 0)
        await host.begin_after(host.extent.base_at(host.commit_position))
        await until(lambda: host.proposer == leader.config.name)
        await herd.stop(*(name for name in NAMES if name != follower.config.name))
        await until(lambda: host.proposer is None)


@pytest.mark.parametrize("fast", [True, False])
async def test_fast_disks_are_flushed_on_the_loop_and_slow_ones_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fast: bool
) -> None:
    on_loop: set[bool] = set()
    persist = SegmentLog.persist

    def noting(log: SegmentLog, what: Persist) -> None:
        on_loop.add(threading.current_thread() is threading.main_thread())
        persist(log, what)

    monkeypatch.setattr(FlushPace, "inline", lambda _pace, _now: fast)
    async with trio(tmp_path) as herd:
        leader = await herd.proposer()
        await herd.order(leader, 1)
        await until(lambda: all(n.host._storage.spare_ready for n in herd.nodes.values()))
        monkeypatch.setattr(SegmentLog, "persist", noting)
        await herd.order(leader, 2, 3)
    assert on_loop == {fast}


def test_one_stall_ends_inline_flushes_until_a_trial_is_short() -> None:
    pace = FlushPace()
    for second in range(100):
        assert pace.inline(second)
        pace.note_flush(50e-6, second)
    pace.note_flush(1.0, 100.0)
    assert not pace.fast and not pace.inline(100.1)
    assert pace.inline(101.0)
    pace.note_flush(50e-6, 101.0)
    assert pace.fast and pace.slowest_s == 1.0


def test_trials_in_vain_become_rare() -> None:
    pace = FlushPace()
    trials = 0
    for tick in range(6_000):  # a minute
        now = tick / 100
        if pace.inline(now):
            trials += 1
            pace.note_flush(20e-3, now)
    assert 5 < trials < 15


async def test_a_log_that_can_not_begin_anew_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Trio(tmp_path).nodes[NAMES[0]]
    await node.start()

    def fail(config: NodeConfig, base: LogBase) -> None:
        raise StorageFailed("no space left")

    monkeypatch.setattr(loghost, "reset_log", fail)
    with pytest.raises(StorageFailed):
        await node.host.begin_after(LogBase(7, 1, Membership.fixed(*NAMES)))
    assert isinstance(node.failure, StorageFailed)  # else nobody would start it again
