"""Writes stop at the source and begin in the herd, or all is taken back, whatever interrupts it."""

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import psycopg
import pytest
from one_member_herd import HerdOfOne, lost, made
from pgherd_sidecar.importing import comparing
from pgherd_sidecar.importing.changes import pgoutput
from pgherd_sidecar.importing.cutover import CutOver, abort, finish
from pgherd_sidecar.importing.ends import source as source_module
from pgherd_sidecar.importing.ends.connections import SourceAddress
from pgherd_sidecar.importing.ends.errors import CutOverDone, ImportFailed
from pgherd_sidecar.importing.ends.model import SchemaStatement
from pgherd_sidecar.importing.ends.target import Target
from pgherd_sidecar.importing.engine import Engine, Ways


async def test_an_import_that_is_done_is_not_taken_up_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    herd = HerdOfOne()
    assert herd.state is not None
    herd.state |= {"phase": "done", "stopped": True}
    ways, source = made(monkeypatch, herd)
    with pytest.raises(CutOverDone):
        await Engine(ways).run()
    assert source.writes == []
    assert source.said == []


async def test_a_cut_over_that_was_committed_though_it_failed_is_not_taken_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    herd = HerdOfOne()

    def committing(state: Mapping[str, Any]) -> None:
        if state["phase"] == "done":
            raise ImportFailed("no node takes writes")

    herd.committing = committing
    ways, source = made(monkeypatch, herd)
    assert await CutOver(ways).run() is not None
    assert source.writes == ["stopped", "left"]


async def test_a_cut_over_that_is_committed_while_it_is_taken_back_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    herd = HerdOfOne()
    done: list[dict[str, Any]] = []

    def committing(state: Mapping[str, Any]) -> None:
        if state["phase"] == "done" and not done:  # on its way
            done.append(dict(state))
            herd.state = done[0] | {"phase": "follow", "version": state["version"] - 1}
            raise ImportFailed("no node takes writes")
        if done and herd.state is not None and herd.state["phase"] != "done":
            herd.state = done[0]
            raise psycopg.errors.SerializationFailure("another transaction came first")

    herd.committing = committing
    ways, source = made(monkeypatch, herd)
    assert await CutOver(ways).run() is not None
    assert source.writes == ["stopped", "left"]


async def test_an_import_that_is_done_meanwhile_is_not_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    herd = HerdOfOne()

    def others(_command: str) -> None:
        assert herd.state is not None
        herd.state |= {"phase": "done", "version": herd.state["version"] + 1, "stopped": True}

    herd.failing = others
    ways, source = made(monkeypatch, herd)
    with pytest.raises(CutOverDone):
        await abort(ways.target, cast("SourceAddress", source))
    assert source.writes == []
    assert len(herd.done) == 1
    assert herd.state is not None


async def test_no_cut_over_begins_while_an_import_is_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    herd = HerdOfOne()
    ways, source = made(monkeypatch, herd)

    async def forget(*_args: object) -> None:
        with pytest.raises(ImportFailed, match="is being removed"):
            await CutOver(ways).run()

    monkeypatch.setattr("pgherd_sidecar.importing.ends.source.forget", forget)
    await abort(ways.target, cast("SourceAddress", source))
    assert source.writes == []
    assert herd.state is None


async def test_a_take_back_that_was_interrupted_is_done_by_whoever_comes_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    herd = HerdOfOne()
    assert herd.state is not None
    herd.state["stopped"] = True
    ways, source = made(monkeypatch, herd)
    allowing = source_module.allow_writes

    async def interrupted(*_args: object) -> None:
        raise lost()

    monkeypatch.setattr(source_module, "allow_writes", interrupted)
    with pytest.raises(ImportFailed):
        await Engine(ways).run()
    monkeypatch.setattr(source_module, "allow_writes", allowing)
    await abort(ways.target, cast("SourceAddress", source))
    assert source.writes == ["allowed", "left"]


async def _interrupted(ways: Ways, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal comes while tables are compared."""
    reached = asyncio.Event()

    async def different(*_args: object) -> None:
        reached.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(comparing, "different", different)
    work = asyncio.create_task(CutOver(ways).run())
    await reached.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work


async def test_a_signal_takes_a_cut_over_back(monkeypatch: pytest.MonkeyPatch) -> None:
    herd = HerdOfOne()
    ways, source = made(monkeypatch, herd)
    await _interrupted(ways, monkeypatch)
    assert source.writes == ["stopped", "allowed"]
    assert source.said[-1] == "the source takes writes again"
    assert herd.state is not None
    assert not herd.state["stopped"]


async def test_a_signal_says_so_if_a_cut_over_cannot_be_taken_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ways, source = made(monkeypatch, HerdOfOne())

    async def refused(*_args: object) -> None:
        raise lost()

    monkeypatch.setattr(source_module, "allow_writes", refused)
    await _interrupted(ways, monkeypatch)
    assert "interrupted; the source may still refuse writes" in source.said[-1]


async def test_a_signal_that_comes_with_the_commit_takes_nothing_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    herd = HerdOfOne()

    def committing(state: Mapping[str, Any]) -> None:
        if state["phase"] == "done":
            raise asyncio.CancelledError

    herd.committing = committing
    ways, source = made(monkeypatch, herd)
    with pytest.raises(asyncio.CancelledError):
        await CutOver(ways).run()
    assert source.writes == ["stopped"]
    assert "cut-over is done" in source.said[-1]


async def test_a_source_that_sends_nonsense_at_cut_over_takes_writes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ways, source = made(monkeypatch, HerdOfOne())

    async def different(*_args: object) -> None:
        raise pgoutput.ProtocolError("nonsense")

    monkeypatch.setattr(comparing, "different", different)
    with pytest.raises(ImportFailed, match="nonsense; the source takes writes again"):
        await CutOver(ways).run()
    assert source.writes == ["stopped", "allowed"]


async def test_a_foreign_key_that_rows_violate_does_not_keep_the_end_from_coming(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    herd = HerdOfOne()
    assert herd.state is not None
    herd.state |= {"phase": "done", "stopped": True}
    ways, source = made(monkeypatch, herd)
    commands = ["ALTER TABLE t VALIDATE CONSTRAINT f", "ALTER TABLE u VALIDATE CONSTRAINT g"]

    async def statements(_target: Target) -> list[SchemaStatement]:
        return [SchemaStatement("after", one) for one in commands]

    def violated(command: str) -> None:
        if command == commands[0]:
            raise psycopg.errors.ForeignKeyViolation("table t violates f")

    monkeypatch.setattr(Target, "statements", statements)
    herd.failing = violated
    [left] = await finish(ways)
    assert herd.done == commands[1:]
    assert herd.state is None
    assert commands[0] in left
    assert "table t violates f" in left
    assert left in source.said


async def test_a_source_that_has_moved_to_another_herd_stays_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ways, source = made(monkeypatch, HerdOfOne())

    async def rows(*_args: object) -> list[dict[str, object]]:
        return [{"name": "t", "moved": True, "prepared": 0}]

    monkeypatch.setattr(source_module, "rows", rows)
    with pytest.raises(ImportFailed, match="another herd"):
        await CutOver(ways).run()
    assert source.writes == []
