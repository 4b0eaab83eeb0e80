"""A herd that lacks room or memory: the user is told, and nothing waits for ever."""

import itertools

import psycopg
import pytest
from one_member_herd import HerdOfOne, made
from pgherd_sidecar.importing import comparing, preflight
from pgherd_sidecar.importing.cutover import CutOver
from pgherd_sidecar.importing.ends import target as target_module
from pgherd_sidecar.importing.ends.errors import ImportFailed
from pgherd_sidecar.importing.ends.model import SchemaStatement
from pgherd_sidecar.importing.roles import SourceRoles
from pgherd_sidecar.tables.sessions import Session


def full(_command: str) -> None:
    raise psycopg.errors.DiskFull("could not extend file")


def out_of_locks(_command: str) -> None:
    raise psycopg.errors.OutOfMemory("out of shared memory")


async def test_a_trial_that_finds_no_room_for_locks_is_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ways, _ = made(monkeypatch, HerdOfOne(failing=out_of_locks))
    reasons = await preflight._trial(
        ways.target, SourceRoles((), (), (), ()), [SchemaStatement("before", "CREATE TABLE t ()")]
    )
    assert len(reasons) == 1
    assert "out of shared memory" in str(reasons[0])
    assert "max_locks_per_transaction" in str(reasons[0])


async def test_a_disk_that_is_full_ends_a_cut_over_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    herd = HerdOfOne(failing=full)
    ways, source = made(monkeypatch, herd)

    async def different(*_args: object) -> list[str]:
        await ways.target.read("others")
        return []

    monkeypatch.setattr(comparing, "different", different)
    with pytest.raises(ImportFailed, match=r"could not extend file: .* disk.*; the source takes"):
        await CutOver(ways).run()
    assert source.writes == ["stopped", "allowed"]


async def test_a_disk_that_is_full_ends_the_work_of_definitions_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ways, _ = made(monkeypatch, HerdOfOne(failing=full))
    await ways.target.take()

    async def work(session: Session) -> None:
        await session.execute("CREATE INDEX")

    with pytest.raises(psycopg.errors.DiskFull):
        await ways.target.advance(work, statement=1)


async def test_what_is_tried_again_is_told_and_given_up_without_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    herd = HerdOfOne(failing=full)
    ways, source = made(monkeypatch, herd)
    seconds = itertools.count(0, 50)
    monkeypatch.setattr(target_module, "_PAUSE_S", 0)
    monkeypatch.setattr(target_module, "monotonic", lambda: next(seconds))
    with pytest.raises(ImportFailed, match="could not extend file"):
        await ways.target.read("others")
    assert len(source.said) == 1
    assert "could not extend file" in source.said[0]
    assert "tried again" in source.said[0]
    assert next(seconds) > target_module._GIVE_UP_S


async def test_progress_begins_the_time_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    ways, source = made(monkeypatch, HerdOfOne())
    await ways.target.take()
    seconds = itertools.count(0, 50)
    monkeypatch.setattr(target_module, "_PAUSE_S", 0)
    monkeypatch.setattr(target_module, "monotonic", lambda: next(seconds))
    error = psycopg.errors.TooManyConnections("too many clients")
    for _ in range(40):
        await ways.target.recover(await ways.target.session(), error)
        await ways.target.advance(position=1)
    assert len(source.said) == 40
