"""Large transactions of a source are written in parts, and larger ones are committed in parts."""

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest
from pgherd_sidecar.importing import following as following_module
from pgherd_sidecar.importing.changes import pgoutput
from pgherd_sidecar.importing.changes.pgoutput import Data
from pgherd_sidecar.importing.ends.errors import ImportFailed
from pgherd_sidecar.importing.ends.target import NO_PART, Copied, SourcePart, Target
from pgherd_sidecar.importing.following import Following
from pgherd_sidecar.importing.stream import Stream
from pgherd_sidecar.tables.model import SourceColumn, SourceTable
from test_pgoutput import number, row

_ROWS, _LARGE = 40, 1 << 20


@dataclass
class HerdSession:
    """It notes how large each set of rows is, and which rows were committed.

    Attributes:
        standings: what was told with each commit.
        dies_after: so many commits.
    """

    sent: list[int] = field(default_factory=list)
    committed: list[int] = field(default_factory=list)
    standings: list[Mapping[str, Any]] = field(default_factory=list)
    dies_after: int = -1
    _written: list[int] = field(default_factory=list)

    async def execute(self, command: object, values: object = None) -> SimpleNamespace:
        if command == "COMMIT":
            if len(self.standings) > self.dies_after >= 0:
                raise psycopg.errors.ProgramLimitExceeded("it has died")
            self.committed += self._written
            self._written = []
        if isinstance(values, dict):
            self.standings.append(values)
        if not isinstance(values, list):
            return SimpleNamespace(rowcount=1)
        self.sent.append(sum(len(one) for one in values))
        ids = [int(one.strip('"')) for one in values[0].strip("{}").split(",")]
        self._written += ids
        return SimpleNamespace(rowcount=len(ids))

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        yield


@dataclass
class SlotStream:
    """One transaction of many large rows."""

    frames: list[Data]
    received: int = 0

    @property
    def pending(self) -> bool:
        return bool(self.frames)

    async def next(self) -> Data:
        return self.frames.pop(0)

    def confirm(self, _position: int) -> None:
        pass


def frames() -> list[Data]:
    """A transaction that inserts rows."""
    insert = b"I" + number(4, 1) + b"N"
    begin = b"B" + number(8, 100) + number(8, 0) + number(4, 7)
    commit = b"C" + number(1, 0) + number(8, 100) + number(8, 101) + number(8, 0)
    rows = [insert + row(str(one), "x" * _LARGE) for one in range(_ROWS)]
    return [Data(1, 1, payload) for payload in (begin, *rows, commit)]


def with_type(told: list[Data]) -> list[Data]:
    """A server tells of a type once in each session, before the first row that has it."""
    kind = b"Y" + number(4, 20_000) + b"s\0mood\0"
    return [told[0], Data(1, 1, kind), *told[1:]]


def following(session: HerdSession, part: SourcePart = NO_PART) -> Following:
    columns = tuple(
        SourceColumn(name, kind, 25, -1, generated=False, as_text=False)
        for name, kind in (("id", "integer"), ("v", "text"))
    )
    table = SourceTable(1, "s.t", "s", "t", 0, columns, "key", (0,))

    async def the_session() -> HerdSession:
        return session

    async def drop() -> None:
        pass

    target = SimpleNamespace(
        session=the_session, drop=drop, run=None, version=0, progressed=lambda: None
    )
    copied = Copied(table, 0, 0, 0, done=True, since=None, changed=0)
    return Following(cast("Target", target), [copied], 0, part)


async def test_a_transaction_of_large_rows_is_written_in_parts_of_some_megabytes() -> None:
    session = HerdSession()
    work = following(session)
    await work.run(cast("Stream", SlotStream(frames())), until=101)
    assert work.figures.changes == _ROWS
    assert sum(session.sent) > _ROWS * _LARGE
    assert max(session.sent) < 10 * _LARGE
    assert len(session.standings) == 1


async def test_parts_of_a_very_large_transaction_are_committed_each_exactly_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(following_module, "_PARTS", 2)
    session = HerdSession(dies_after=1)
    with pytest.raises(ImportFailed):
        await following(session).run(cast("Stream", SlotStream(frames())), until=101)
    told = session.standings[0]
    assert told["position"] is None
    assert 0 < told["part_changes"] == len(session.committed) < _ROWS
    again = HerdSession()
    part = SourcePart(pgoutput.lsn(told["part"]), told["part_changes"])
    await following(again, part).run(cast("Stream", SlotStream(frames())), until=101)
    assert session.committed + again.committed == list(range(_ROWS))
    assert again.standings[-1]["position"] == pgoutput.lsn_text(101)


@pytest.mark.parametrize("first", [False, True])
async def test_a_type_that_only_one_reading_tells_of_is_no_change_of_a_part(
    monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    monkeypatch.setattr(following_module, "_PARTS", 2)
    with_it, without_it = with_type(frames()), frames()
    before, after = (with_it, without_it) if first else (without_it, with_it)
    session, again = HerdSession(dies_after=1), HerdSession()
    with pytest.raises(ImportFailed):
        await following(session).run(cast("Stream", SlotStream(before)), until=101)
    told = session.standings[0]
    part = SourcePart(pgoutput.lsn(told["part"]), told["part_changes"])
    await following(again, part).run(cast("Stream", SlotStream(after)), until=101)
    assert session.committed + again.committed == list(range(_ROWS))
