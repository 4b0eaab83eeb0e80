"""Statements that write merged rows; changes of different tables are joined into one.

The records of one table, operation and column set travel as one ``text[]`` parameter and become
rows inside PostgreSQL (record input), so Python never looks into a value. Changes of different
tables don't meet (foreign keys and triggers are silent in replica role), so they are data-modifying
CTEs of one prepared statement, as is the link of the commit chain: to begin and end statements is
most of what a small batch costs PostgreSQL.

A statement checks that it affected exactly the rows it names; of no table can it affect more than
these, so the sum tells. It keeps what it has read of the catalog until ``forget``.
"""

import struct
from collections.abc import Awaitable, Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from operator import attrgetter

from psycopg import sql

from pgherd_sidecar.core.replication.merge import IN_PAIRS, Op, Plan, Records, Statement
from pgherd_sidecar.core.replication.recordtext import split_record
from pgherd_sidecar.pg.pipeline import Prepared

_INT32 = struct.Struct("!i")
_INT64 = struct.Struct("!q")
_ARRAY_HEADER = struct.Struct("!iiiii")  # dimensions, nulls, element type, length, lower bound
_TEXT_OID = 25
_BINARY = 1
JOINT_MAX = 128
"""Joint statements prepared at most: there are as many as combinations of changes."""
NAMES_MAX = 2000
"""Statements kept at most: there are as many as sets of columns that clients update."""

_LINK = sql.SQL("link AS (INSERT INTO pgherd.applied VALUES ({gid}::int8, {prev}::int8))")
_CHECK = sql.SQL(
    "SELECT CASE WHEN count(*) <> {wanted}::int8"
    " THEN pgherd.expect(count(*), {wanted}) IS NULL END FROM ({rows}) c"
)

_table = attrgetter("table")
_Shape = tuple[tuple[Op, str, str], ...]


@dataclass(frozen=True, slots=True)
class TableShape:
    """What is needed of a replicated table to write it.

    Attributes:
        columns: quoted names of the live columns, in order.
        pk: positions of the columns that are a row's identity, from 0: mostly the primary key's.
            Empty where rows have none but their whole image.
        generated: positions of generated columns, which are never written.
        fixed: positions of columns that the UPDATE of a moved row may not set: identity columns;
            all, where a publication is of inserts without updates.
        same_key: SQL condition, rows ``o`` and ``n`` have the same identity.
        only: the table has inheritance children, which are written under their own names.
        row_type: the type in which records are read.
        erase: where rows have no identity, the function that takes rows with given images away,
            as many as there are images, or gives them new ones, and returns how many there were;
            else empty.
        updatable: INSERT ... ON CONFLICT finds a row by its identity, and may set each other
            column but the generated ones.
    """

    columns: Sequence[str]
    pk: Sequence[int]
    generated: frozenset[int]
    same_key: str
    only: bool
    row_type: str
    erase: str = ""
    updatable: bool = True
    fixed: frozenset[int] = frozenset()


Describe = Callable[[str], Awaitable[TableShape]]


class RowStatements:
    """Builds and names statements; remembers the shapes of tables.

    Args:
        describe: reads a table's shape from the catalog.
    """

    def __init__(self, describe: Describe) -> None:
        self._describe = describe
        self._shapes: dict[str, TableShape] = {}
        self._names: dict[tuple[_Shape, bool], tuple[bytes, bytes]] = {}  # name, text; see _named
        self._joint: set[_Shape] = set()
        self._count = 0
        self._apart: set[str] = set()

    async def learn_tables(self, tables: Sequence[str]) -> None:
        """Read the shapes of tables met for the first time."""
        for table in tables:
            if table not in self._shapes:
                self._shapes[table] = await self._describe(table)

    def knows(self, table: str) -> bool:
        """The table's shape has been read."""
        return table in self._shapes

    def forget_shapes(self) -> None:
        """The schema has changed. Names are never used twice: old statements are closed in time."""
        self._shapes.clear()
        self._names.clear()
        self._joint.clear()
        self._apart.clear()

    def key_columns(self, table: str) -> Sequence[int]:
        """Positions of a known table's identity columns (see ``core.replication.merge``)."""
        return self._shapes[table].pk

    def other_columns(self, table: str) -> str:
        """A bitmap of the other columns of a known table (see ``core.replication.merge``)."""
        shape = self._shapes[table]
        return _all_but(shape, {*shape.pk, *shape.generated})

    def settable_columns(self, table: str) -> str:
        """A bitmap of the columns that an update may set (see ``core.replication.merge``)."""
        shape = self._shapes[table]
        return _all_but(shape, shape.generated | shape.fixed)

    def together(self, table: str) -> bool:
        """The table's rows were not kept apart (see ``core.replication.merge``)."""
        return table not in self._apart

    def keep_apart(self, tables: Iterable[str]) -> None:
        """From now on rows of known tables that move together are deleted and inserted."""
        self._apart.update(tables)

    def prepared(self, plan: Plan, gid: int, prev: int) -> list[Prepared]:
        """The statements of a batch in order; the last one also adds its link to the chain."""
        stages = [part for stage in _stages(plan) for part in self._parts(stage)]
        if not stages or stages[-1][0].op is Op.TRUNCATE:
            stages.append([])
        result = [self._prepared(stage) for stage in stages[:-1]]
        result.append(self._prepared(stages[-1], (_INT64.pack(gid), _INT64.pack(prev))))
        return result

    def unlinked(self, plan: Plan) -> list[Prepared]:
        """The statements of a part of a transaction, in order."""
        return [self._prepared(part) for stage in _stages(plan) for part in self._parts(stage)]

    def plain(self, plan: Plan) -> list[tuple[bytes, list[Records | int]]]:
        """The rows of a plan as queries and parameters, for an ordinary connection."""
        return [(self._named(s, linked=False)[1], _values(s)) for s in _stages(plan)]

    def copy(self, table: str) -> bytes | None:
        """The COPY that takes whole rows of a known table as CSV; None where it takes none.

        Generated columns are in a record, empty, and COPY would not pass them over.
        """
        shape = self._shapes[table]
        if shape.generated:
            return None
        columns = sql.SQL(", ").join(map(_raw, shape.columns))
        query = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(_raw(table), columns)
        return query.as_string(None).encode()

    def single(self, statement: Statement) -> Prepared:
        """A statement of a plan, alone; see ``rows_of``."""
        return self._prepared([statement])

    def plain_single(self, plan: Plan) -> list[tuple[bytes, list[Records | int]]]:
        """Like ``plain``, with one row in each query."""
        return [(self._named([s], linked=False)[1], _values([s])) for s in rows_of(plan)]

    def link(self, gid: int, prev: int) -> Prepared:
        """The statement that adds nothing but a link to the chain."""
        return self._prepared([], (_INT64.pack(gid), _INT64.pack(prev)))

    def primary_key(self, statement: Statement) -> str:
        """The identity of a statement of one row, for people; empty if it has no row or none."""
        if not statement.records:
            return ""
        shape = self._shapes[statement.table]
        if not shape.pk:
            return ""
        record = statement.records[0]
        data = record.encode() if isinstance(record, str) else record
        # Latin-1: Python takes up to four bytes for each character of a wide row in UTF-8.
        values = split_record(data.decode("latin-1"), max(shape.pk) + 1)
        named = [(shape.columns[i], values[i]) for i in shape.pk if i < len(values)]
        return ", ".join(
            f"{name} = {value and value.encode('latin-1').decode()}" for name, value in named
        )

    def _parts(self, stage: list[Statement]) -> list[list[Statement]]:
        """The stage as one statement, or each change alone if too many joint ones are prepared."""
        if len(stage) == 1 or stage[0].op is Op.TRUNCATE:
            return [stage]
        shape = _shape(stage)
        if shape not in self._joint:
            if len(self._joint) == JOINT_MAX:
                return [[statement] for statement in stage]
            self._joint.add(shape)
        return [stage]

    def _prepared(self, stage: list[Statement], link: tuple[bytes, ...] = ()) -> Prepared:
        parameters = [
            text_array(value) if isinstance(value, list) else _INT64.pack(value)
            for value in _values(stage)
        ]
        parameters += link
        name, query = self._named(stage, linked=bool(link))
        return Prepared(name, parameters, (_BINARY,) * len(parameters), query)

    def _named(self, stage: list[Statement], *, linked: bool) -> tuple[bytes, bytes]:
        """The name and the text of a statement; those that were not used for long are forgotten."""
        key = (_shape(stage), linked)
        named = self._names.pop(key, None)
        if named is None:
            self._count += 1
            text = self._text(stage, linked=linked).as_string(None).encode()
            named = b"pgherd_%d" % self._count, text
            if len(self._names) >= NAMES_MAX:
                del self._names[next(iter(self._names))]
        self._names[key] = named
        return named

    def _text(self, stage: list[Statement], *, linked: bool) -> sql.Composable:
        if stage and stage[0].op is Op.TRUNCATE:
            # The applier's role may write any row, but not this.
            tables = sql.SQL(", ").join(sql.Literal(statement.table) for statement in stage)
            return sql.SQL("SELECT pgherd.truncate(ARRAY[{}]::regclass[])").format(tables)
        changes: list[sql.Composable] = []
        counted: list[sql.Composable] = []
        for i, statement in enumerate(stage, 1):
            name, change = sql.Identifier(f"c{i}"), self._change(statement, _parameter(i))
            if statement.expected_rows is not None:
                if not self._by_image(statement):
                    change += sql.SQL(" RETURNING 1")
                counted.append(sql.SQL("SELECT FROM {}").format(name))
            changes.append(sql.SQL("{} AS ({})").format(name, change))
        last = len(stage) + bool(counted)
        if linked:
            changes.append(_LINK.format(gid=_parameter(last + 1), prev=_parameter(last + 2)))
        rows = sql.SQL(" UNION ALL ").join(counted)
        check = _CHECK.format(rows=rows, wanted=_parameter(last)) if counted else sql.SQL("SELECT")
        return sql.SQL("WITH {} {}").format(sql.SQL(", ").join(changes), check)

    def _by_image(self, statement: Statement) -> bool:
        """Whether a statement takes away or replaces rows that have no identity."""
        if statement.op in (Op.DELETE, Op.ERASE):
            return bool(self._shapes[statement.table].erase)
        return statement.op is Op.REPLACE

    def _change(self, statement: Statement, records: sql.Composable) -> sql.Composed:
        shape = self._shapes[statement.table]
        if self._by_image(statement):
            # As many rows as it has found: they are counted like those of other statements.
            return sql.SQL("SELECT FROM generate_series(1, {}({}::text[], {}))").format(
                _raw(shape.erase), records, sql.Literal(statement.op is Op.REPLACE)
            )
        parts: dict[str, sql.Composable] = {
            "table": (sql.SQL("ONLY ") if shape.only else sql.SQL("")) + _raw(statement.table),
            "name": _raw(statement.table),
            "rows": sql.SQL("unnest({}::text[]::{}[]) n").format(records, _raw(shape.row_type)),
            "same_key": _raw(shape.same_key),
        }
        match statement.op:
            case Op.INSERT | Op.PUT:
                written = [_raw(c) for i, c in enumerate(shape.columns) if i not in shape.generated]
                parts["columns"] = sql.SQL(", ").join(written)
                parts["values"] = sql.SQL(", ").join(sql.SQL("n.") + c for c in written)
                # by another name: a table that is called excluded would hide what ON CONFLICT does
                change = sql.SQL(
                    "INSERT INTO {name} AS o ({columns}) OVERRIDING SYSTEM VALUE"
                    " SELECT {values} FROM {rows}{else_update}"
                )
                parts["else_update"] = sql.SQL("")
                if statement.op is Op.PUT:
                    key = sql.SQL(", ").join(_raw(shape.columns[i]) for i in shape.pk)
                    parts["else_update"] = sql.SQL(" ON CONFLICT ({}) DO UPDATE SET {}").format(
                        key, _assignments(shape, statement, "excluded")
                    )
            case Op.MOVE:
                parts["set"] = _assignments(shape, statement, "m")
                parts["record"] = sql.SQL("({}::text[])").format(records)
                parts["type"] = _raw(shape.row_type)
                change = sql.SQL(
                    "UPDATE {table} o SET {set} FROM unnest({record}) WITH ORDINALITY k(r, i),"
                    " unnest(ARRAY[k.r]::{type}[]) n, unnest(ARRAY[{record}[k.i + 1]]::{type}[]) m"
                    " WHERE k.i % 2 = 1 AND {same_key}"
                )
            case Op.UPDATE:
                parts["set"] = _assignments(shape, statement, "n")
                change = sql.SQL("UPDATE {table} o SET {set} FROM {rows} WHERE {same_key}")
            case _:
                change = sql.SQL("DELETE FROM {table} o USING {rows} WHERE {same_key}")
        return change.format(**parts)


def _all_but(shape: TableShape, left_out: Set[int]) -> str:
    """Bitmap of the other columns of a table; empty if its rows can't be updated whole."""
    if not shape.updatable or not shape.pk:
        return ""
    return "".join("01"[place not in left_out] for place in range(len(shape.columns)))


def _assignments(shape: TableShape, statement: Statement, source: str) -> sql.Composed:
    """The list behind SET: each column that the bitmap marks, from the row of this name."""
    return sql.SQL(", ").join(
        sql.SQL("{0} = {1}.{0}").format(_raw(column), _raw(source))
        for column, bit in zip(shape.columns, statement.bitmap, strict=True)
        if bit == "1"
    )


def _stages(plan: Plan) -> list[list[Statement]]:
    """The plan as steps to be taken in order; the tables of a step are all different."""
    stages: list[list[Statement]] = []
    floor = 0
    following: dict[str, int] = {}  # table -> first stage after its last statement
    for wave in plan.waves:
        truncations = [s for s in wave.statements if s.op is Op.TRUNCATE]
        if truncations:
            stages.append(truncations)
            floor = len(stages)
        for statement in wave.statements:
            if statement.op is not Op.TRUNCATE:
                stage = max(following.get(statement.table, 0), floor)
                if stage == len(stages):
                    stages.append([])
                stages[stage].append(statement)
                following[statement.table] = stage + 1
    for statements in stages:
        statements.sort(key=_table)  # so that equal work has equal shapes
    return stages


def rows_of(plan: Plan) -> list[Statement]:
    """The plan as statements of one row each, in order; a truncation as it is."""
    return [
        Statement(one.op, one.table, one.bitmap, records)
        for stage in _stages(plan)
        for one in stage
        for records in (_single_rows(one) or [[]])
    ]


def _single_rows(statement: Statement) -> list[Records]:
    size = 2 if statement.op in IN_PAIRS else 1
    records = statement.records
    return [records[place : place + size] for place in range(0, len(records), size)]


def _shape(stage: list[Statement]) -> _Shape:
    return tuple([(s.op, s.table, s.bitmap) for s in stage])


def _values(stage: list[Statement]) -> list[Records | int]:
    """The parameters of a step: records of each change, and the rows they affect together."""
    values: list[Records | int] = [s.records for s in stage if s.op is not Op.TRUNCATE]
    expected = [s.expected_rows for s in stage if s.expected_rows is not None]
    if expected:
        values.append(sum(expected))
    return values


def _parameter(number: int) -> sql.Composable:
    return sql.SQL("$") + sql.Literal(number)


def _raw(quoted: str) -> sql.SQL:
    """A name that PostgreSQL has quoted already (format '%I', quote_ident)."""
    return sql.SQL(quoted)


def text_array(values: Sequence[str] | Sequence[bytes]) -> bytes:
    """Encode a ``text[]`` parameter in PostgreSQL's binary format."""
    parts = [_ARRAY_HEADER.pack(1, 0, _TEXT_OID, len(values), 1)]
    for value in values:
        data = value.encode() if isinstance(value, str) else value
        parts.append(_INT32.pack(len(data)))
        parts.append(data)
    return b"".join(parts)
