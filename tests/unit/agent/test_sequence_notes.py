"""Noting where sequences are, while others drop some."""

import json
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest
from pgherd_sidecar.agent.checkpoint import sequences


class Server:
    """Answers, after it has failed a number of times."""

    def __init__(self, failures: int, error: type[psycopg.Error]) -> None:
        self.failures = failures
        self.error = error

    async def execute(self, query: str) -> "Server":
        assert "sequence_positions" in query
        self.failures -= 1
        if self.failures >= 0:
            raise self.error("could not open relation with OID 26182")
        return self

    async def fetchone(self) -> tuple[dict[str, int]]:
        return ({"public.s": 7},)


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
