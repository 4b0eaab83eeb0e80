"""What a writer demands of the rows that it finds; the database is a stand-in."""

from typing import Any, cast

import pytest
from pgherd_sidecar.tables.folding import RowChange
from pgherd_sidecar.tables.model import SourceColumn, SourceTable
from pgherd_sidecar.tables.rowsql import RowsMissingError, Writer
from pgherd_sidecar.tables.sessions import Session


class _Empty:
    """A database without a row."""

    rowcount = 0

    async def execute(self, *_: object) -> "_Empty":
        return self

    async def fetchone(self) -> dict[str, Any]:
        return {"found": 0, "deleted": 0}


def _table(identity: Any) -> SourceTable:
    column = SourceColumn("v", "integer", 23, -1, generated=False, as_text=False)
    return SourceTable(
        1, "s.t", "s", "t", 0, (column,), identity, (0,) if identity == "key" else ()
    )


async def test_a_row_without_a_key_that_is_deleted_must_have_been_there() -> None:
    """The log may delete a key that was not there, but no row that is told as a whole."""
    session, gone = cast("Session", _Empty()), RowChange("s.t", ("1",), None)
    await Writer({"s.t": _table("key")}, exact=False).one_by_one(session, [gone])
    writer = Writer({"s.t": _table("full")}, exact=False)
    with pytest.raises(RowsMissingError):
        await writer.one_by_one(session, [gone])
    with pytest.raises(RowsMissingError):
        await writer.one_by_one(session, [RowChange("s.t", ("1",), ("2",))])
