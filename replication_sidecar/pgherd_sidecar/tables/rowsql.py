"""Statements that write rows into a database: all rows of one kind in one, as arrays of columns.

Values are texts, which the types' own input functions read. Arrays can't be unnested into arrays
or into whole composite values, so columns of these come as text and are cast. Keys are equal by the
operators of the source's key: sessions find none but PostgreSQL's own by their names. A row must be
found where the source has it: another number of rows means that the two differ.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import count

import psycopg
from psycopg import sql

from pgherd_sidecar.tables.folding import Emptied, Folding, FoldingError, Key, Net, Step, alike
from pgherd_sidecar.tables.model import KeyEquality, SourceColumn, SourceTable
from pgherd_sidecar.tables.sessions import Session
from pgherd_sidecar.tables.values import UNCHANGED, Row, Value


class RowsMissingError(Exception):
    """Rows are not there: somebody else has written to the table, or a trigger drops rows."""

    def __init__(self, table: str, rows: int) -> None:
        super().__init__(f"{rows} rows of {table} are missing")


class RowsKeptError(Exception):
    """Rows are not written as they were sent: a trigger or a rule of the table drops them."""

    def __init__(self, table: str, what: str) -> None:
        super().__init__(f"a trigger or a rule of table {table} {what}")


class Writer:
    """Writes rows of the tables that it knows.

    Args:
        tables: by the names that changes have.
        exact: a row that is deleted must be there. In a table without a key it must in any case.
        truncates: a table is emptied by TRUNCATE, which is quick. Readers with an older snapshot
            see an empty table then, so where there are readers it is DELETE.
        partial: names of tables that have some of the source's rows only, so that a row which is
            updated need not be there.
    """

    def __init__(
        self,
        tables: Mapping[str, SourceTable],
        *,
        exact: bool = True,
        truncates: bool = True,
        partial: Collection[str] = (),
    ) -> None:
        self._tables = tables
        self._partial = partial
        self._exact = exact
        self._truncates = truncates
        self._keys = {
            name: table.key if table.identity == "key" else () for name, table in tables.items()
        }

    async def write(self, session: Session, steps: Sequence[Step]) -> None:
        """Apply changes: joined if that goes, else one by one.

        Raises:
            psycopg.Error: the database says no.
            RowsMissingError: a row is not there.
            RowsKeptError: a trigger drops rows.
        """
        await session.execute("SET CONSTRAINTS ALL DEFERRED")
        if not steps:
            return
        folding = Folding(self._keys)
        try:
            for step in steps:
                folding.add(step)
            async with session.transaction():
                await self.joined(session, folding.result())
        except (FoldingError, psycopg.errors.UniqueViolation, psycopg.errors.ExclusionViolation):
            await self.one_by_one(session, steps)

    async def joined(self, session: Session, nets: Mapping[str, Net]) -> None:
        """Write what becomes of tables; errors as of ``write``."""
        await self._empty(session, [name for name, net in nets.items() if net.emptied])
        for name, net in nets.items():
            table = self._tables[name]
            await _delete(session, table, net.deletes, exact=self._is_exact(table))
            again = net.replaced
            if not self._exact and await _replace(session, table, again):
                again = []
            await _delete(session, table, [key for key, _ in again], exact=self._exact)
            await _update(session, table, net.updates, exact=name not in self._partial)
            await _insert(session, table, [*net.inserts, *(row for _, row in again)])

    async def one_by_one(self, session: Session, steps: Iterable[Step]) -> None:
        """Write changes in their order; errors as of ``write``."""
        for step in steps:
            if isinstance(step, Emptied):
                await self._empty(session, step.tables)
                continue
            table = self._tables[step.table]
            if step.old is None:
                await _insert(session, table, [step.new or ()])
            elif step.new is None:
                await _delete(session, table, [step.old], exact=self._is_exact(table))
            elif table.identity == "key":
                exact = step.table not in self._partial
                await _update(session, table, [(step.old, step.new)], exact=exact)
            else:
                await _delete(session, table, [step.old], exact=True)
                await _insert(session, table, [step.new])

    def _is_exact(self, table: SourceTable) -> bool:
        return self._exact or table.identity != "key"

    async def _empty(self, session: Session, names: Sequence[str]) -> None:
        if not self._truncates:
            for name in names:
                await clear(session, self._tables[name])
        elif names:
            found = sql.SQL(", ").join(
                sql.SQL("ONLY {}").format(_relation(self._tables[name])) for name in names
            )
            await session.execute(sql.SQL("TRUNCATE {}").format(found))


async def clear(session: Session, table: SourceTable) -> None:
    """Delete all rows.

    Raises:
        psycopg.Error: the database says no.
        RowsKeptError: a trigger keeps rows.
    """
    relation = sql.Identifier(table.schema, table.relation)
    await session.execute(sql.SQL("DELETE FROM ONLY {}").format(relation))
    cursor = await session.execute(sql.SQL("SELECT FROM ONLY {} LIMIT 1").format(relation))
    if cursor.rowcount:
        raise RowsKeptError(table.name, "keeps rows that were to be deleted")


async def exchange(
    session: Session, table: SourceTable, columns: sql.Composable, copy: sql.Composable
) -> None:
    """Have a table hold the rows of another one. With a key those are written that differ.

    Args:
        session: in its transaction.
        table: what is changed.
        columns: names of those that both have, and that can be written.
        copy: name of the other one.

    Raises:
        psycopg.Error: the database says no.
        RowsKeptError: a trigger or a rule drops rows, or keeps them.
    """
    place = sql.Identifier(table.schema, table.relation)
    wanted = await _count_of(session, copy)
    if table.key:
        same = _same(table)
        mine, theirs = _image(table, "t"), _image(table, "c")
        await session.execute(
            sql.SQL(
                "DELETE FROM ONLY {} t WHERE NOT EXISTS"
                " (SELECT FROM ONLY {} c WHERE {} AND {} = {})"
            ).format(place, copy, same, mine, theirs)
        )
        await session.execute(
            sql.SQL(
                "INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE SELECT {} FROM ONLY {} c"
                " WHERE NOT EXISTS (SELECT FROM ONLY {} t WHERE {})"
            ).format(place, columns, columns, copy, place, same)
        )
        if await _count_of(session, place) == wanted:
            return  # else it has no unique key, or a trigger keeps rows
    await clear(session, table)
    cursor = await session.execute(
        sql.SQL("INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE SELECT {} FROM ONLY {}").format(
            place, columns, columns, copy
        )
    )
    require_all(table, cursor.rowcount, wanted)


async def _count_of(session: Session, relation: sql.Composable) -> int:
    cursor = await session.execute(sql.SQL("SELECT count(*) AS rows FROM ONLY {}").format(relation))
    row = await cursor.fetchone()
    assert row is not None
    found: int = row["rows"]
    return found


def _same(table: SourceTable) -> sql.Composed:
    """The rows t and c have one key."""
    return sql.SQL(" AND ").join(
        _equal(equality, sql.Identifier("c", column.name), sql.Identifier("t", column.name))
        for column, equality in table.key_columns
    )


def _equal(
    equality: KeyEquality, one: sql.Composable, other: sql.Composable, percent: str = "%"
) -> sql.Composed:
    """Two values of a column are equal; a statement with parameters has each percent sign twice."""
    operator = sql.SQL(equality.operator.replace("%", percent))
    if equality.base is None:
        return sql.SQL("{} OPERATOR({}) {}").format(one, operator, other)
    base = sql.SQL(equality.base.replace("%", percent))
    return sql.SQL("{}::{} OPERATOR({}) {}::{}").format(one, base, operator, other, base)


def _image(table: SourceTable, row: str) -> sql.Composed:
    """The text of a row's values."""
    columns = sql.SQL(", ").join(sql.Identifier(row, column.name) for column in table.stored)
    return sql.SQL('ROW({})::text COLLATE pg_catalog."C"').format(columns)


def _name(*parts: str) -> sql.Composable:
    """A name in a statement with parameters."""
    return sql.SQL(sql.Identifier(*parts).as_string(None).replace("%", "%%"))


def _relation(table: SourceTable) -> sql.Composable:
    return _name(table.schema, table.relation)


def literal(values: Iterable[Value]) -> str:
    """The text of an array of texts."""
    texts = list(values)
    assert UNCHANGED not in texts
    everything = "".join([text for text in texts if isinstance(text, str)])
    if '"' in everything or "\\" in everything:
        texts = [_escape(text) if isinstance(text, str) else text for text in texts]
    return "{" + ",".join(["NULL" if text is None else f'"{text}"' for text in texts]) + "}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _type_name(column: SourceColumn) -> sql.Composable:
    return sql.SQL(column.type.replace("%", "%%"))


def _type(column: SourceColumn) -> sql.Composable:
    return sql.SQL("text") if column.as_text else _type_name(column)


def _read(number: int, column: SourceColumn) -> sql.Composable:
    value = sql.Identifier("v", f"c{number}")
    if not column.as_text:
        return value
    return sql.SQL("{}::{}").format(value, _type_name(column))


def _values(columns: Sequence[SourceColumn]) -> sql.Composed:
    """``unnest(...) AS v (c0, c1, ...)``."""
    arrays = sql.SQL(", ").join(sql.SQL("%s::{}[]").format(_type(column)) for column in columns)
    names = sql.SQL(", ").join(sql.Identifier(f"c{number}") for number in range(len(columns)))
    return sql.SQL("unnest({}) AS v ({})").format(arrays, names)


def _arrays(rows: Sequence[Sequence[Value]]) -> list[str]:
    """The arrays of the columns of some rows, of which all values are told."""
    return [literal(column) for column in zip(*rows, strict=True)]


async def _insert(
    session: Session, table: SourceTable, rows: Sequence[Row], *, absent: int | None = None
) -> None:
    """Insert rows; if a number is given, only those whose keys are not there: so many."""
    sent = len(rows) if absent is None else absent
    if not sent:
        return
    columns = table.stored
    command = sql.SQL("INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE SELECT {} FROM {}").format(
        _relation(table),
        sql.SQL(", ").join(_name(column.name) for column in columns),
        sql.SQL(", ").join(_read(number, column) for number, column in enumerate(columns)),
        _values(columns),
    )
    if absent is not None:
        command += sql.SQL(" WHERE NOT EXISTS (SELECT FROM ONLY {} AS t WHERE {})").format(
            _relation(table), _matches(table, table.key)
        )
    cursor = await session.execute(command, _arrays(rows))
    require_all(table, cursor.rowcount, sent)


def require_all(table: SourceTable, written: int, sent: int) -> None:
    """Check how many rows an INSERT has written.

    Raises:
        RowsKeptError: another number than was sent.
    """
    if written != sent:
        raise RowsKeptError(table.name, f"has dropped {sent - written} of {sent} new rows")


def _matches(table: SourceTable, numbers: Iterable[int]) -> sql.Composed:
    """The row has this key, whose values have these numbers."""
    return sql.SQL(" AND ").join(
        _equal(equality, _name("t", column.name), _read(number, column), percent="%%")
        for number, (column, equality) in zip(numbers, table.key_columns, strict=False)
    )


async def _delete(
    session: Session, table: SourceTable, keys: Sequence[Key], *, exact: bool
) -> None:
    if not keys:
        return
    if table.identity == "key":
        columns = [table.stored[position] for position in table.key]
        rows, where = _values(columns), _matches(table, count())
        command = sql.SQL("DELETE FROM ONLY {} AS t USING {} WHERE {}").format(
            _relation(table), rows, where
        )
        arrays = _arrays(keys)
        deleted = found = (await session.execute(command, arrays)).rowcount
        if not exact and deleted != len(keys):  # they were not there, or they still are
            found += await _count(session, table, keys)
    else:
        cursor = await session.execute(_as_many_as(table), _arrays(keys))
        row = await cursor.fetchone()
        assert row is not None
        deleted, found = row["deleted"], row["found"]
    if found != deleted:
        raise RowsKeptError(table.name, f"keeps {found - deleted} rows that were to be deleted")
    if exact:
        _require(table, deleted, len(keys))


def _as_many_as(table: SourceTable) -> sql.Composed:
    """Deletes as many of equal rows as are named; it reads the table once.

    It tells how many there were to delete, and how many it has deleted.
    """
    columns = table.stored
    have = sql.SQL(", ").join(sql.SQL("t.{}").format(_name(column.name)) for column in columns)
    wanted = sql.SQL(", ").join(_read(number, column) for number, column in enumerate(columns))
    return sql.SQL(
        "WITH wanted AS MATERIALIZED ("
        "  SELECT ROW({wanted})::text AS image, count(*) AS rows FROM {values} GROUP BY 1),"
        " had AS ("
        "  SELECT t.ctid AS place, w.rows, row_number() OVER (PARTITION BY w.image) AS number"
        "    FROM ONLY {table} AS t JOIN wanted w ON w.image = ROW({have})::text),"
        " places AS MATERIALIZED (SELECT h.place FROM had h WHERE h.number <= h.rows),"
        " gone AS ("
        "  DELETE FROM ONLY {table} WHERE ctid = ANY (ARRAY(SELECT p.place FROM places p))"
        "  RETURNING 1)"
        " SELECT (SELECT count(*) FROM places) AS found, (SELECT count(*) FROM gone) AS deleted"
    ).format(wanted=wanted, values=_values(columns), table=_relation(table), have=have)


async def _update(
    session: Session, table: SourceTable, updates: Sequence[tuple[Key, Row]], *, exact: bool
) -> int:
    """Update rows, and return how many were there."""
    stored, updated = table.stored, 0
    for told, numbers in alike(updates, table.key):
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
            _matches(table, count(len(set_to))),
        )
        wanted, found = len(rows), (await session.execute(command, _arrays(rows))).rowcount
        if not exact and found != wanted:
            wanted = await _count(session, table, [updates[number][0] for number in numbers])
        _require(table, found, wanted)
        updated += found
    return updated


async def _replace(session: Session, table: SourceTable, rows: Sequence[tuple[Key, Row]]) -> bool:
    """Update rows, and insert those whose keys are not there.

    Rows that refer to one stay so, and so do columns of the subscriber's own. False: unique values
    move between the rows, or a column is always generated as identity. Nothing is written then.
    """
    if not rows:
        return True
    try:
        async with session.transaction():
            found = await _update(session, table, rows, exact=False)
            await _insert(session, table, [row for _, row in rows], absent=len(rows) - found)
    except (
        psycopg.errors.UniqueViolation,
        psycopg.errors.ExclusionViolation,
        psycopg.errors.GeneratedAlways,
    ):
        return False
    return True


async def _count(session: Session, table: SourceTable, keys: Sequence[Key]) -> int:
    """How many rows of these keys there are."""
    columns = [table.stored[position] for position in table.key]
    command = sql.SQL("SELECT FROM ONLY {} AS t, {} WHERE {}").format(
        _relation(table), _values(columns), _matches(table, count())
    )
    return (await session.execute(command, _arrays(keys))).rowcount


def _require(table: SourceTable, found: int, wanted: int) -> None:
    if found != wanted:
        raise RowsMissingError(table.name, wanted - found)
