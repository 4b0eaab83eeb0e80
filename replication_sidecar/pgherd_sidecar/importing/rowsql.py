"""Statements that write rows into the herd: all rows of one kind in one, as arrays of columns.

Values are texts, which the types' own input functions read. Arrays can't be unnested into arrays,
so columns of these come as text and are cast. A row must be found where the source has it: another
number of rows means that the two differ.
"""

from collections.abc import Iterable, Mapping, Sequence

from psycopg import sql

from pgherd_sidecar.importing.connections import Session
from pgherd_sidecar.importing.errors import ImportFailed
from pgherd_sidecar.importing.folding import Emptied, Key, Net, Step, alike
from pgherd_sidecar.importing.model import Column, Table
from pgherd_sidecar.importing.pgoutput import Row, Value


class Writer:
    """Writes rows of the tables that it knows."""

    def __init__(self, tables: Mapping[str, Table]) -> None:
        self._tables = tables

    async def joined(self, session: Session, nets: Mapping[str, Net]) -> None:
        """Write what becomes of tables.

        Raises:
            psycopg.Error: the herd says no.
            ImportFailed: a row is not there.
        """
        await self._empty(session, [name for name, net in nets.items() if net.emptied])
        for name, net in nets.items():
            table = self._tables[name]
            await _delete(session, table, net.deletes)
            await _update(session, table, net.updates)
            await _insert(session, table, net.inserts)

    async def one_by_one(self, session: Session, steps: Iterable[Step]) -> None:
        """Write changes in their order; as ``joined``."""
        for step in steps:
            if isinstance(step, Emptied):
                await self._empty(session, step.tables)
                continue
            table = self._tables[step.table]
            if step.old is None:
                await _insert(session, table, [step.new or ()])
            elif step.new is None:
                await _delete(session, table, [step.old])
            elif table.identity == "key":
                await _update(session, table, [(step.old, step.new)])
            else:
                await _delete(session, table, [step.old])
                await _insert(session, table, [step.new])

    async def _empty(self, session: Session, names: Sequence[str]) -> None:
        if names:
            found = sql.SQL(", ").join(
                sql.SQL("ONLY {}").format(_relation(self._tables[name])) for name in names
            )
            await session.execute(sql.SQL("TRUNCATE {}").format(found))


def _name(*parts: str) -> sql.Composable:
    """A name in a statement with parameters."""
    return sql.SQL(sql.Identifier(*parts).as_string(None).replace("%", "%%"))


def _relation(table: Table) -> sql.Composable:
    return _name(table.schema, table.relation)


def literal(values: Iterable[Value]) -> str:
    """The text of an array of texts."""
    return "{" + ",".join(map(_element, values)) + "}"


def _element(value: Value) -> str:
    if value is None:
        return "NULL"
    assert isinstance(value, str)
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _type_name(column: Column) -> sql.Composable:
    return sql.SQL(column.type.replace("%", "%%"))


def _type(column: Column) -> sql.Composable:
    return sql.SQL("text") if column.as_text else _type_name(column)


def _read(number: int, column: Column) -> sql.Composable:
    value = sql.Identifier("v", f"c{number}")
    if not column.as_text:
        return value
    return sql.SQL("{}::{}").format(value, _type_name(column))


def _values(columns: Sequence[Column]) -> sql.Composed:
    """``unnest(...) AS v (c0, c1, ...)``."""
    arrays = sql.SQL(", ").join(sql.SQL("%s::{}[]").format(_type(column)) for column in columns)
    names = sql.SQL(", ").join(sql.Identifier(f"c{number}") for number in range(len(columns)))
    return sql.SQL("unnest({}) AS v ({})").format(arrays, names)


def _arrays(columns: Sequence[Column], rows: Sequence[Sequence[Value]]) -> list[str]:
    return [literal(row[number] for row in rows) for number in range(len(columns))]


async def _insert(session: Session, table: Table, rows: Sequence[Row]) -> None:
    if not rows:
        return
    columns = table.stored
    command = sql.SQL("INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE SELECT {} FROM {}").format(
        _relation(table),
        sql.SQL(", ").join(_name(column.name) for column in columns),
        sql.SQL(", ").join(_read(number, column) for number, column in enumerate(columns)),
        _values(columns),
    )
    await session.execute(command, _arrays(columns, rows))


def _matches(table: Table, first: int) -> sql.Composed:
    """The row has this key, whose values begin at a number."""
    stored = table.stored
    return sql.SQL(" AND ").join(
        sql.SQL("t.{} = {}").format(
            _name(stored[position].name), _read(first + number, stored[position])
        )
        for number, position in enumerate(table.key)
    )


async def _delete(session: Session, table: Table, keys: Sequence[Key]) -> None:
    if not keys:
        return
    if table.identity == "key":
        columns = [table.stored[position] for position in table.key]
        command = sql.SQL("DELETE FROM ONLY {} AS t USING {} WHERE {}").format(
            _relation(table), _values(columns), _matches(table, 0)
        )
    else:
        columns = list(table.stored)
        command = _as_many_as(table)
    cursor = await session.execute(command, _arrays(columns, keys))
    _require(table, cursor.rowcount, len(keys))


def _as_many_as(table: Table) -> sql.Composed:
    """Deletes as many of equal rows as are named; it reads the table once."""
    columns = table.stored
    have = sql.SQL(", ").join(sql.SQL("t.{}").format(_name(column.name)) for column in columns)
    wanted = sql.SQL(", ").join(_read(number, column) for number, column in enumerate(columns))
    return sql.SQL(
        "WITH wanted AS MATERIALIZED ("
        "  SELECT ROW({wanted})::text AS image, count(*) AS rows FROM {values} GROUP BY 1),"
        " found AS ("
        "  SELECT t.ctid AS place, w.rows, row_number() OVER (PARTITION BY w.image) AS number"
        "    FROM ONLY {table} AS t JOIN wanted w ON w.image = ROW({have})::text)"
        " DELETE FROM ONLY {table} WHERE ctid = ANY (ARRAY("
        "  SELECT f.place FROM found f WHERE f.number <= f.rows))"
    ).format(wanted=wanted, values=_values(columns), table=_relation(table), have=have)


async def _update(session: Session, table: Table, updates: Sequence[tuple[Key, Row]]) -> None:
    stored = table.stored
    for told, numbers in alike(updates):
        set_to = [stored[position] for position in told]
        columns = [*set_to, *(stored[position] for position in table.key)]
        rows = [
            (*(updates[number][1][position] for position in told), *updates[number][0])
            for number in numbers
        ]
        command = sql.SQL("UPDATE ONLY {} AS t SET {} FROM {} WHERE {}").format(
            _relation(table),
            sql.SQL(", ").join(
                sql.SQL("{} = {}").format(_name(column.name), _read(number, column))
                for number, column in enumerate(set_to)
            ),
            _values(columns),
            _matches(table, len(set_to)),
        )
        cursor = await session.execute(command, _arrays(columns, rows))
        _require(table, cursor.rowcount, len(rows))


def _require(table: Table, found: int, wanted: int) -> None:
    if found != wanted:
        raise ImportFailed(
            f"{wanted - found} rows of {table.name} are missing in the herd, which somebody else"
            " has written to: `pgherd import abort`, and begin anew"
        )
