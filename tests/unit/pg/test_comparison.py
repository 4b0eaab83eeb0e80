"""What is asked of a server whose tables are compared."""

from typing import Any, cast

import pytest
from pgherd_sidecar.pg.comparison import indexes
from pgherd_sidecar.pg.comparison.checksum import (
    STATEMENTS,
    TableChangedError,
    find_table,
    read_unchanged,
)
from psycopg import AsyncConnection, errors, sql

_TABLE = (
    "public.t", "public", "t", "r", True, "c", ["a", "to_json"], ["a"], ["int"],
    True, 7, "{}", "{}",
)  # fmt: skip


class Server:
    """A server with one table, which has lost a column since the marker."""

    async def execute(self, query: sql.Composable, *_: object) -> "Server":
        if "hashtextextended" in query.as_string(None):
            raise errors.UndefinedColumn('column "to_json" does not exist')
        return self

    async def fetchone(self) -> tuple[bool]:
        return (True,)

    async def fetchall(self) -> list[tuple[object, ...]]:
        return [_TABLE]


def test_a_column_may_be_called_as_a_result_is() -> None:
    """GROUP BY takes a name for that of a column first."""
    assert "GROUP BY 1" in STATEMENTS["buckets"].as_string(None)


async def test_a_row_is_what_the_columns_of_the_snapshot_hold() -> None:
    """Whatever columns are added meanwhile; and no column is a function of the row."""
    table = await find_table(cast(AsyncConnection[Any], Server()), "public.t")
    assert table.row.as_string(None) == 'ROW("a", "to_json")'


async def test_a_column_that_was_dropped_is_told_as_any_other_change() -> None:
    server = cast(AsyncConnection[Any], Server())
    table = await find_table(server, "public.t")
    query = sql.SQL("SELECT hashtextextended({}::text, 0)").format(table.row)
    with pytest.raises(TableChangedError, match=r"public\.t has lost a column"):
        await read_unchanged(server, table, query)


@pytest.mark.parametrize("error", [errors.IoError("bad disk"), errors.IndexCorrupted("bad disk")])
async def test_an_index_that_can_t_be_read_from_its_disk_is_at_fault(error: errors.Error) -> None:
    class Disk:
        async def execute(self, *_: object) -> None:
            raise error

    assert await indexes.check(cast(AsyncConnection[Any], Disk()), "public.i") == "bad disk"
