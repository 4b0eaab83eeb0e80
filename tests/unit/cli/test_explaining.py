"""Whom ``pgherd explain`` asks, and what it prints."""

from typing import Any, cast

import pytest
from pgherd_sidecar.cli import explaining
from pgherd_sidecar.client.admin import AdminError
from pgherd_sidecar.client.answers import Status
from pgherd_sidecar.client.cluster import Voice
from pgherd_sidecar.client.errors import HerdError

TOLD: dict[str, Any] = {
    "gid": 8,
    "kind": "writeset",
    "token": "1.2.3",
    "verdict": "committed",
    "ddl": True,
    "tables": {"public.t": {"inserted": 2, "deleted": 1}},
    "commands": [{"kind": "CREATE TABLE", "sql": "CREATE TABLE t (\n  id int)", "role": "app"}],
    "keys": [{"key": "0f", "mode": "UPDATE", "base": 7, "of": "row of public.t"}] * 30,
    "keys_total": 1000,
    "incidents": [{"at": "2026-01-01", "reason": "it differs", "outcome": "rebuilt", "cure": "x"}],
}


class Member:
    """Tells what it was given, or refuses."""

    def __init__(self, told: "dict[str, Any] | AdminError") -> None:
        self.told = told

    async def explain(self, gid: int, *, rows: bool) -> dict[str, Any]:
        if isinstance(self.told, AdminError):
            raise self.told
        return {**self.told, "gid": gid, "asked_rows": rows}


def voice(name: str, told: "dict[str, Any] | AdminError", log: int = 9) -> Voice:
    status = Status(name=name, cluster_id="c", state="primary", log_position=log)
    return Voice(cast("Any", Member(told)), status)


async def ask(*voices: Voice, **options: Any) -> dict[str, Any]:
    async def listen() -> list[Voice]:
        return list(voices)

    return await explaining.explain(listen, 8, rows=options.pop("rows", False), **options)


async def test_a_member_that_knows_the_verdict_is_preferred() -> None:
    witness, database = voice("w1", {"verdict": "unknown"}, 10), voice("n2", TOLD)
    assert (await ask(witness, database))["told_by"] == "n2"
    assert (await ask(witness))["told_by"] == "w1"
    assert (await ask(witness, database, on="w1"))["told_by"] == "w1"


async def test_a_member_whose_log_begins_later_is_passed_over() -> None:
    gone = voice("n1", AdminError("POST /explain: gone", 409, "it begins at GID 9 here"), 10)
    assert (await ask(gone, voice("n2", TOLD), rows=True))["asked_rows"] is True
    with pytest.raises(HerdError, match=r"^it begins at GID 9 here$"):
        await ask(gone, gone)


async def test_without_an_answer_there_is_an_error() -> None:
    with pytest.raises(HerdError, match="no sidecar answers as n7"):
        await ask(voice("n1", TOLD), on="n7")


def test_the_text_tells_tables_commands_keys_and_what_it_has_stopped() -> None:
    lines = explaining.text(TOLD | {"told_by": "n1"}).splitlines()
    assert lines[0] == "GID 8: writeset, told by n1"
    assert "  ddl         yes" in lines
    assert "  table public.t: 2 inserted, 1 deleted" in lines
    assert "  command CREATE TABLE as app" in lines
    assert "      id int)" in lines
    assert "  key 0f UPDATE since GID 7: row of public.t" in lines
    assert "  and 980 keys more" in lines
    assert lines[-1] == "  2026-01-01: it differs: rebuilt"
