"""Noting where sequences are, while others drop some."""

import json
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest
from pgherd_sidecar.agent.checkpoint import sequences


class Server:
    """Answers, after it has failed a number of times."""

    def __init__(
        self, failures: int = 0, error: type[psycopg.Error] = psycopg.OperationalError
    ) -> None:
        self.failures = failures
        self.error = error
        self.positions = {"public.s": 7}

    async def execute(self, query: str, parameters: tuple[int, ...] = ()) -> "Server":
        assert "sequence_positions" in query or "increment_by < 0" in query
        self.failures -= 1
        if self.failures >= 0:
            raise self.error("could not open relation with OID 26182")
        return self

    async def fetchone(self) -> tuple[None, dict[str, int]]:
        return None, self.positions

    async def fetchall(self) -> list[tuple[str]]:
        return [(name,) for name in self.positions if name.startswith("public.down")]


async def noted(server: Server, directory: Path) -> Any:
    await sequences.note(cast("psycopg.AsyncConnection[Any]", server), directory)
    return json.loads((directory / "sequences.json").read_text())


async def test_a_sequence_that_is_dropped_meanwhile_is_no_reason_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequences, "_AGAIN_S", 0.0)
    found = await noted(Server(3, psycopg.errors.InternalError_), tmp_path)
    assert found == {"public.s": 7} == sequences.load(tmp_path)


@pytest.mark.parametrize("error", [psycopg.errors.InternalError_, psycopg.OperationalError])
async def test_a_server_that_goes_on_failing_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[psycopg.Error]
) -> None:
    monkeypatch.setattr(sequences, "_AGAIN_S", 0.0)
    with pytest.raises(error):
        await noted(Server(1000, error), tmp_path)


async def test_an_older_database_takes_no_sequence_back(tmp_path: Path) -> None:
    server = Server()
    server.positions = {"public.up": 50, "public.on": 9, "public.down": -50, "public.down_on": -9}
    await noted(server, tmp_path)
    server.positions = {"public.up": 7, "public.on": 10, "public.down": -7, "public.down_on": -10}
    await sequences.note_farther(cast("psycopg.AsyncConnection[Any]", server), tmp_path)
    assert sequences.load(tmp_path) == {
        "public.up": 50,
        "public.on": 10,
        "public.down": -50,
        "public.down_on": -10,
    }
    server.positions = {"public.new": 3}
    await sequences.note_farther(cast("psycopg.AsyncConnection[Any]", server), tmp_path)
    assert sequences.load(tmp_path)["public.up"] == 50
    assert sequences.load(tmp_path)["public.new"] == 3


class Parts:
    """Has two parts of sequences; a part may tell of none."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    async def execute(self, query: str, parameters: tuple[int, ...]) -> "Parts":
        assert "sequence_positions" in query or "sequences_after_crash" in query
        self.asked += parameters
        return self

    async def fetchone(self) -> tuple[int | None, dict[str, int]]:
        after = self.asked[-1]
        return {0: (7, {"public.s": 5}), 7: (9, {}), 9: (12, {"public.u": 6})}.get(
            after, (None, {})
        )


async def test_sequences_are_asked_for_in_parts(tmp_path: Path) -> None:
    parts = Parts()
    await sequences.note(cast("psycopg.AsyncConnection[Any]", parts), tmp_path)
    assert sequences.load(tmp_path) == {"public.s": 5, "public.u": 6}
    assert parts.asked == [0, 7, 9, 12]
