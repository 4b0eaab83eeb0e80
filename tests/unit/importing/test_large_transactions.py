"""Large transactions of a source are written in parts."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

from pgherd_sidecar.importing.changes.pgoutput import Data
from pgherd_sidecar.importing.ends.target import Copied, Target
from pgherd_sidecar.importing.following import Following
from pgherd_sidecar.importing.stream import Stream
from pgherd_sidecar.tables.model import SourceColumn, SourceTable
from test_pgoutput import number, row

_ROWS, _LARGE = 40, 1 << 20


@dataclass
class HerdSession:
    """It notes how large each set of rows is."""

    sent: list[int] = field(default_factory=list)

    async def execute(self, _command: object, values: object = None) -> SimpleNamespace:
        if not isinstance(values, list):
            return SimpleNamespace(rowcount=1)
        self.sent.append(sum(len(one) for one in values))
        return SimpleNamespace(rowcount=values[0].count(",") + 1)

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


async def test_a_transaction_of_large_rows_is_written_in_parts_of_some_megabytes() -> None:
    columns = tuple(
        SourceColumn(name, kind, 25, -1, generated=False, as_text=False)
        for name, kind in (("id", "integer"), ("v", "text"))
    )
    table = SourceTable(1, "s.t", "s", "t", 0, columns, "key", (0,))
    insert = b"I" + number(4, 1) + b"N"
    begin = b"B" + number(8, 100) + number(8, 0) + number(4, 7)
    commit = b"C" + number(1, 0) + number(8, 100) + number(8, 101) + number(8, 0)
    rows = [insert + row(str(one), "x" * _LARGE) for one in range(_ROWS)]
    frames = [Data(1, 1, payload) for payload in (begin, *rows, commit)]
    session = HerdSession()
    target = SimpleNamespace(session=None, run=None, version=0)

    async def the_session() -> HerdSession:
        return session

    target.session = the_session
    following = Following(
        cast("Target", target), [Copied(table, 0, 0, 0, done=True, since=None, changed=0)], 0
    )
    await following.run(cast("Stream", SlotStream(frames)), until=101)
    assert following.figures.changes == _ROWS
    assert sum(session.sent) > _ROWS * _LARGE
    assert max(session.sent) < 10 * _LARGE
