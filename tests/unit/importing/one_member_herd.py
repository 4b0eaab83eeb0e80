"""A herd of one member that knows an import, and the source of that import, in this process.

The standing is a row of a dictionary. What a test does at the commit of a transaction happens
before the one who commits hears of it.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import psycopg
import pytest
from pgherd_sidecar.importing import comparing
from pgherd_sidecar.importing.ends import source
from pgherd_sidecar.importing.ends.connections import Destination, SourceAddress
from pgherd_sidecar.importing.ends.queries import query
from pgherd_sidecar.importing.ends.target import Target
from pgherd_sidecar.importing.engine import Engine, Ways

_NAMES = {
    query("state", name): name
    for name in ("exists", "read", "writable", "take", "take_tables", "advance", "leave")
}


class Rows:
    """What a statement gives."""

    def __init__(self, *rows: Mapping[str, Any], count: int = 1) -> None:
        self.rowcount = count
        self._rows = rows

    async def fetchall(self) -> list[Mapping[str, Any]]:
        return list(self._rows)

    async def fetchone(self) -> Mapping[str, Any] | None:
        return next(iter(self._rows), None)


@dataclass
class HerdOfOne:
    """The herd.

    Attributes:
        state: ``pgherd_import.state``; None: no import is under way.
        done: other statements, in their order.
        committing: is called with the state that was just committed.
        failing: is called with each other statement, and may raise.
    """

    state: dict[str, Any] | None = field(
        default_factory=lambda: {
            "version": 7, "run": uuid4(), "run_by": "nobody", "phase": "follow", "source": "",
            "slot": "pgherd_import_1", "statement": 0, "position": "0/1", "roles": [],
            "stopped": False, "part": None,
        }
    )  # fmt: skip
    done: list[str] = field(default_factory=list)
    committing: Callable[[Mapping[str, Any]], None] = lambda _state: None
    failing: Callable[[str], None] = lambda _command: None

    @property
    def place(self) -> tuple[str, str]:
        return "", ""

    async def session(self) -> "HerdSession":
        return HerdSession(self)


class HerdSession:
    """With the member."""

    def __init__(self, herd: HerdOfOne) -> None:
        self.closed = self.broken = False
        self.pgconn = SimpleNamespace(host=b"", port=b"")
        self._herd = herd
        self._changed: dict[str, Any] | None = None

    async def close(self) -> None:
        self.closed = True

    @contextlib.asynccontextmanager
    async def transaction(self, **_how: object) -> AsyncIterator[None]:
        self._changed = None
        yield
        if self._changed is not None:
            self._herd.state, changed, self._changed = self._changed, self._changed, None
            self._herd.committing(changed)

    async def execute(self, command: str | bytes, values: dict[str, Any] | None = None) -> Rows:
        text = command if isinstance(command, str) else command.decode()
        herd, name = self._herd, _NAMES.get(text)
        state = self._changed or herd.state
        match name:
            case "exists":
                return Rows({"found": state is not None})
            case "writable":
                return Rows({"writable": True})
            case "read":
                return Rows(*[state] if state else ())
            case "leave":
                herd.state = None
            case "take":
                assert state is not None
                assert values is not None
                self._changed = state | values | {"version": state["version"] + 1}
            case "advance":
                assert values is not None
                return self._advanced(state, values)
            case None:
                herd.failing(text)
                herd.done.append(text)
        return Rows()

    def _advanced(self, state: dict[str, Any] | None, values: dict[str, Any]) -> Rows:
        if (
            state is None
            or (state["run"], state["version"]) != (values["run"], values["version"])
            or state["phase"] == "done"
        ):
            return Rows(count=0)
        given = {name: value for name, value in values.items() if value is not None}
        self._changed = state | given | {"version": state["version"] + 1}
        return Rows()


@dataclass
class Source:
    """The source: whether it takes writes, and what the user was told.

    Attributes:
        writes: what has become of the writes, in order.
    """

    said: list[str] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)

    async def session(self) -> "Source":
        return self

    async def close(self) -> None:
        pass

    async def execute(self, *_command: object) -> Rows:
        return Rows({"mine": True})


def made(monkeypatch: pytest.MonkeyPatch, herd: HerdOfOne) -> tuple[Ways, Source]:
    """An import that follows a source which has no tables."""
    found = Source()

    def noted(what: str) -> Callable[..., Any]:
        async def note(*_args: object) -> None:
            found.writes.append(what)

        return note

    def always(value: object) -> Callable[..., Any]:
        async def answer(*_args: object, **_more: object) -> object:
            return value

        return answer

    for name, what in (("stop_writes", "stopped"), ("allow_writes", "allowed"), ("forget", "left")):
        monkeypatch.setattr(source, name, noted(what))
    for name, value in (
        ("mark", 1), ("rows", [{"prepared": 0, "moved": False}]), ("definitions", {}),
        ("sequences", []),
    ):  # fmt: skip
        monkeypatch.setattr(source, name, always(value))
    monkeypatch.setattr(comparing, "different", always([]))
    monkeypatch.setattr(Engine, "follow", always(0))
    monkeypatch.setattr(Engine, "fill", always(None))
    for name in ("copied", "statements"):
        monkeypatch.setattr(Target, name, always([]))
    monkeypatch.setattr(Target, "definitions", always({}))
    ways = Ways(
        cast("SourceAddress", found), Target([cast("Destination", herd)], found.said.append),
        Path("pg_dump"), 1, found.said.append, found.said.append,
    )  # fmt: skip
    return ways, found


def lost() -> psycopg.Error:
    """The member has died."""
    return psycopg.OperationalError("server closed the connection unexpectedly")
