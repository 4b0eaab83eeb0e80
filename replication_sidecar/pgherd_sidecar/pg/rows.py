"""Statements that write merged rows: one prepared statement per table, operation and column set.

The records of a statement travel as one ``text[]`` parameter and become rows inside PostgreSQL
(record input), so Python never looks into a value. Each statement checks that it affected exactly
the rows it names. Called by the applier; keeps what it has read of the catalog until ``forget``.
"""

import struct
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from psycopg import sql

from pgherd_sidecar.core.merge import Op, Plan, Statement
from pgherd_sidecar.pg.pipeline import Prepared

_INT32 = struct.Struct("!i")
_INT64 = struct.Struct("!q")
_ARRAY_HEADER = struct.Struct("!iiiii")  # dimensions, nulls, element type, length, lower bound
_TEXT_OID = 25
_BINARY = 1


@dataclass(frozen=True, slots=True)
class TableShape:
    """What is needed of a replicated table to write it.

    Attributes:
        columns: quoted names of the live columns, in order.
        pk: positions of the primary key's columns, from 0.
        generated: positions of generated columns, which are never written.
        same_key: SQL condition, rows ``o`` and ``n`` have the same primary key.
        only: the table has inheritance children, which are written under their own names.
        row_type: the type in which records are read.
    """

    columns: Sequence[str]
    pk: Sequence[int]
    generated: frozenset[int]
    same_key: str
    only: bool
    row_type: str


Describe = Callable[[str], Awaitable[TableShape]]


class RowStatements:
    """Builds and names statements; remembers the shapes of tables.

    Args:
        describe: reads a table's shape from the catalog.
    """

    def __init__(self, describe: Describe) -> None:
        self._describe = describe
        self._shapes: dict[str, TableShape] = {}
        self._names: dict[tuple[Op, str, str], bytes] = {}
        self._queries: dict[bytes, bytes] = {}
        self._count = 0

    async def learn(self, tables: Sequence[str]) -> None:
        """Read the shapes of tables met for the first time."""
        for table in tables:
            if table not in self._shapes:
                self._shapes[table] = await self._describe(table)

    def knows(self, table: str) -> bool:
        """The table's shape has been read."""
        return table in self._shapes

    def forget(self) -> None:
        """The schema has changed. Names are never used twice, so old statements just lie idle."""
        self._shapes.clear()
        self._names.clear()
        self._queries.clear()

    def key_columns(self, table: str) -> Sequence[int]:
        """Positions of a known table's primary-key columns (see ``core.merge``)."""
        return self._shapes[table].pk

    def query(self, name: bytes) -> bytes:
        """The text of a statement."""
        return self._queries[name]

    def prepared(self, plan: Plan) -> list[Prepared]:
        """The statements of a plan in order; truncations of a wave are one statement."""
        result: list[Prepared] = []
        for wave in plan.waves:
            truncated = [s.table for s in wave.statements if s.op is Op.TRUNCATE]
            if truncated:
                result.append(Prepared(self._truncate(truncated), (), ()))
            result += [self._rows(s) for s in wave.statements if s.op is not Op.TRUNCATE]
        return result

    def plain(self, plan: Plan) -> list[tuple[bytes, list[list[str] | int]]]:
        """The same as queries and parameters, for an ordinary connection."""
        result: list[tuple[bytes, list[list[str] | int]]] = []
        for wave in plan.waves:
            truncated = [s.table for s in wave.statements if s.op is Op.TRUNCATE]
            if truncated:
                result.append((self.query(self._truncate(truncated)), []))
            for statement in wave.statements:
                if statement.op is not Op.TRUNCATE:
                    expected = statement.expected_rows
                    parameters: list[list[str] | int] = [statement.records]
                    if expected is not None:
                        parameters.append(expected)
                    result.append((self.query(self._statement_name(statement)), parameters))
        return result

    def _statement_name(self, statement: Statement) -> bytes:
        key = (statement.op, statement.table, statement.bitmap)
        return self._names.get(key) or self._name(key, self._text(statement))

    def _rows(self, statement: Statement) -> Prepared:
        name = self._statement_name(statement)
        records = text_array(statement.records)
        expected = statement.expected_rows
        if expected is None:
            return Prepared(name, (records,), (_BINARY,))
        return Prepared(name, (records, _INT64.pack(expected)), (_BINARY, _BINARY))

    def _name(self, key: tuple[Op, str, str], text: sql.Composable) -> bytes:
        self._count += 1
        name = b"pgherd_%d" % self._count
        self._names[key] = name
        self._queries[name] = text.as_string(None).encode()
        return name

    def _truncate(self, tables: Sequence[str]) -> bytes:
        key = (Op.TRUNCATE, ", ".join(tables), "")
        targets = sql.SQL(", ").join(sql.SQL("ONLY ") + _raw(table) for table in tables)
        return self._names.get(key) or self._name(key, sql.SQL("TRUNCATE {}").format(targets))

    def _text(self, statement: Statement) -> sql.Composable:
        shape = self._shapes[statement.table]
        parts = {
            "table": (sql.SQL("ONLY ") if shape.only else sql.SQL("")) + _raw(statement.table),
            "name": _raw(statement.table),
            "type": _raw(shape.row_type),
            "same_key": _raw(shape.same_key),
        }
        match statement.op:
            case Op.INSERT:
                written = [_raw(c) for i, c in enumerate(shape.columns) if i not in shape.generated]
                parts["columns"] = sql.SQL(", ").join(written)
                parts["values"] = sql.SQL(", ").join(sql.SQL("n.") + c for c in written)
                change = sql.SQL(
                    "INSERT INTO {name} ({columns}) OVERRIDING SYSTEM VALUE"
                    " SELECT {values} FROM unnest($1::text[]::{type}[]) n"
                )
            case Op.UPDATE:
                parts["set"] = sql.SQL(", ").join(
                    sql.SQL("{0} = n.{0}").format(_raw(column))
                    for column, bit in zip(shape.columns, statement.bitmap, strict=True)
                    if bit == "1"
                )
                change = sql.SQL(
                    "UPDATE {table} o SET {set} FROM unnest($1::text[]::{type}[]) n"
                    " WHERE {same_key}"
                )
            case _:
                change = sql.SQL(
                    "DELETE FROM {table} o USING unnest($1::text[]::{type}[]) n WHERE {same_key}"
                )
        if statement.expected_rows is None:
            return change.format(**parts)
        counted = sql.SQL(
            "WITH done AS ({change} RETURNING 1) SELECT pgherd.expect(count(*), $2::int8) FROM done"
        )
        return counted.format(change=change.format(**parts))


def _raw(quoted: str) -> sql.SQL:
    """A name that PostgreSQL has quoted already (format '%I', quote_ident)."""
    return sql.SQL(quoted)


def text_array(values: Sequence[str]) -> bytes:
    """Encode a ``text[]`` parameter in PostgreSQL's binary format."""
    parts = [_ARRAY_HEADER.pack(1, 0, _TEXT_OID, len(values), 1)]
    for value in values:
        data = value.encode()
        parts.append(_INT32.pack(len(data)))
        parts.append(data)
    return b"".join(parts)
