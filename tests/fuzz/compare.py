"""What a schema holds on a server, in a form that servers can be compared by.

*Rows* are those of each leaf, as text under fixed settings, also of materialized views. *Catalog*
is what ``sql/catalog.sql`` finds. *Orphans* are rows that break a foreign key, whatever all members
say. What differs by right is left out: rows of local, unlogged and temporary tables; between the
herd and a plain server also columns named ``seq_...``, since members deal numbers out to each
other; and that a table is unlogged, since a herd makes an ordinary one of it.
"""

import difflib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

Connection = psycopg.Connection[Any]
Line = tuple[str, str, str]

_CATALOG = (Path(__file__).parent / "sql" / "catalog.sql").read_text()
_SETTINGS = (
    "SET search_path = pg_catalog; SET DateStyle = ISO; SET IntervalStyle = postgres;"
    "SET TimeZone = UTC; SET extra_float_digits = 3; SET bytea_output = hex; SET row_security = on;"
    "SET quote_all_identifiers = off; SET xmloption = content; SET statement_timeout = '30s'"
)
_LEAVES = """
SELECT c.relname, array_agg(a.attname::text ORDER BY a.attnum)
  FROM pg_class c
  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
 WHERE c.relnamespace = to_regnamespace(%(schema)s) AND c.relkind IN ('r', 'm')
   AND (c.relpersistence = 'p' OR %(portable)s AND c.relpersistence = 'u')
   AND (c.relkind = 'r' OR c.relispopulated)
   AND NOT c.relname = ANY (%(but)s)
 GROUP BY c.oid, c.relname ORDER BY 1
"""
_LOCAL = """
SELECT c.relname::text FROM pgherd.local_tables l JOIN pg_class c ON c.oid = l.relid
 WHERE c.relnamespace = to_regnamespace(%s)
"""
_FOREIGN_KEYS = """
SELECT k.conname, -- a key concerns partitions, but no inheritance children
       (SELECT CASE c.relkind WHEN 'r' THEN 'ONLY ' ELSE '' END || c.oid::regclass::text
          FROM pg_class c WHERE c.oid = k.conrelid),
       (SELECT CASE c.relkind WHEN 'r' THEN 'ONLY ' ELSE '' END || c.oid::regclass::text
          FROM pg_class c WHERE c.oid = k.confrelid),
       (SELECT array_agg(a.attname::text ORDER BY o) FROM unnest(k.conkey) WITH ORDINALITY u (n, o)
          JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = u.n),
       (SELECT array_agg(a.attname::text ORDER BY o) FROM unnest(k.confkey) WITH ORDINALITY u (n, o)
          JOIN pg_attribute a ON a.attrelid = k.confrelid AND a.attnum = u.n)
  FROM pg_constraint k
 WHERE k.contype = 'f' AND k.convalidated AND k.conparentid = 0 -- not for partitions
   AND k.connamespace = to_regnamespace(%(schema)s)
   AND NOT (SELECT relname FROM pg_class WHERE oid = k.conrelid) = ANY (%(but)s)
"""
_INDEXES = """
SELECT i.indexrelid::regclass::text FROM pg_index i
  JOIN pg_class c ON c.oid = i.indexrelid AND c.relkind = 'i' AND c.relpersistence = 'p'
  JOIN pg_am m ON m.oid = c.relam AND m.amname = 'btree'
 WHERE c.relnamespace = to_regnamespace(%(schema)s) AND i.indisvalid AND i.indisready
"""
_GENERATED = (
    "SELECT relid::regclass::text, concat(fingerprint, ' ', triggers) FROM pgherd.generated"
)
_OWN = "seq_"


@dataclass(frozen=True, slots=True)
class State:
    """What one server holds of a schema.

    Attributes:
        rows: as (relation, "", row).
        catalog: as (kind, name, text).
    """

    rows: Counter[Line]
    catalog: Counter[Line]


def prepare(connection: Connection) -> None:
    """Give a superuser's session the settings under which all servers are read."""
    connection.execute(_SETTINGS)


def state(
    connection: Connection, schema: str, local: Sequence[str], *, portable: bool = False
) -> State:
    """Read a server.

    Args:
        connection: of a superuser, prepared.
        schema: which.
        local: tables whose rows are left out.
        portable: without what a plain server may have otherwise.
    """
    parameters: dict[str, Any] = {"schema": schema, "but": list(local), "portable": portable}
    catalog = Counter[Line](connection.execute(_CATALOG.encode(), parameters).fetchall())
    rows: Counter[Line] = Counter()
    parts: list[sql.Composable] = []
    for relation, columns in connection.execute(_LEAVES, parameters).fetchall():
        kept = [one for one in columns if not (portable and one.startswith(_OWN))]
        row = sql.SQL(", ").join(map(sql.Identifier, kept))
        parts.append(
            sql.SQL("SELECT {}, '', ROW({})::text FROM ONLY {}").format(
                sql.Literal(relation), row, sql.Identifier(schema, relation)
            )
        )
    if parts:
        rows.update(connection.execute(sql.SQL(" UNION ALL ").join(parts)).fetchall())
    return State(rows, catalog)


def generated_otherwise(connection: Connection) -> str:
    """Tables of a member whose capture would be generated otherwise now; empty if there are none.

    Args:
        connection: of a superuser, prepared.
    """
    with connection.transaction(force_rollback=True):
        connection.execute("SET LOCAL session_replication_role = replica")
        had = dict(connection.execute(_GENERATED).fetchall())
        connection.execute("SELECT pgherd.reconcile()")
        now = dict(connection.execute(_GENERATED).fetchall())
    return ", ".join(sorted(name for name in had.keys() | now if had.get(name) != now.get(name)))


def local_tables(connection: Connection, schema: str) -> list[str]:
    """The tables whose rows each member has for itself, by a member's word."""
    return [row[0] for row in connection.execute(_LOCAL, (schema,)).fetchall()]


def difference(one: State, other: State, names: tuple[str, str]) -> str:
    """How two states differ, in a few lines; empty when they are the same."""
    return "\n".join(
        line
        for found in (
            _lines(one.catalog, other.catalog, names),
            _lines(one.rows, other.rows, names),
        )
        for line in found
    )


def _lines(one: Counter[Line], other: Counter[Line], names: tuple[str, str]) -> Iterable[str]:
    if one == other:
        return []
    before, after = (sorted((" | ".join(map(str, k))) for k in c.elements()) for c in (one, other))
    found = difflib.unified_diff(before, after, *names, n=0, lineterm="")
    return [line for line in found if not line.startswith("@@")][:14]


def orphans(connection: Connection, schema: str, local: Sequence[str]) -> str:
    """Rows whose foreign keys name nothing; empty when there are none."""
    parameters = {"schema": schema, "but": list(local)}
    for name, child, parent, columns, keys in connection.execute(
        _FOREIGN_KEYS, parameters
    ).fetchall():
        same = sql.SQL(" AND ").join(
            sql.SQL("p.{} = c.{}").format(sql.Identifier(key), sql.Identifier(column))
            for column, key in zip(columns, keys, strict=True)
        )
        given = sql.SQL(" AND ").join(
            sql.SQL("c.{} IS NOT NULL").format(sql.Identifier(column)) for column in columns
        )
        query = sql.SQL(
            "SELECT c::text FROM {} AS c WHERE {} AND NOT EXISTS (SELECT FROM {} AS p WHERE {})"
        ).format(sql.SQL(child), given, sql.SQL(parent), same)
        connection.execute(
            sql.SQL("SET search_path = {}, public, pg_catalog").format(sql.Identifier(schema))
        )
        found = connection.execute(query).fetchall()
        prepare(connection)
        if found:
            return f"{child} {name}: no {parent} for {[row[0] for row in found[:3]]}"
    return ""


def damaged_indexes(connection: Connection, schema: str) -> str:
    """What amcheck says of the schema's B-trees against their tables; empty when all is well."""
    for (name,) in connection.execute(_INDEXES, {"schema": schema}).fetchall():
        try:
            connection.execute("SELECT public.bt_index_check(%s::regclass, true)", (name,))
        except psycopg.errors.IndexCorrupted as error:
            return f"{name}: {error}"
    return ""


def same_everywhere(
    connections: Sequence[tuple[str, Connection]], look: Callable[[Connection], State]
) -> str:
    """How the first server differs from any other; empty when all are the same."""
    (first, connection), *others = connections
    wanted = look(connection)
    for name, other in others:
        told = difference(wanted, look(other), (first, name))
        if told:
            return told
    return ""
