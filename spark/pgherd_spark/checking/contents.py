"""What the check compares beside rows: materialized views, leaves, and indexes with their tables.

A materialized view is a bag of rows, read at the marker in one query. Sums of a leaf's rows come
with those of its table. An index is compared with its table as both are after the marker, by each
member for itself, where its server has amcheck. ``inspect`` is a task; it keeps nothing.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import psycopg
from psycopg import sql

from pgherd_spark.checking.bundles import FAULTS, said
from pgherd_spark.checking.findings import DefinitionDifference, odd_ones
from pgherd_spark.reading import statements
from pgherd_spark.reading.checksums import NOTHING, Sum, sum_of
from pgherd_spark.reading.pace import paced
from pgherd_spark.reading.rowhash import record
from pgherd_spark.reading.sources import Relation, Source, at_marker, connected, unchanged

_SQL = statements.load("contents.sql")
_SESSION = statements.load("session.sql")
_SOUND = "agrees with its table"
_CHANGED = "it was changed meanwhile"
_INDEXES = "indexes"
_BEYOND = ("materialized views", _INDEXES)
"""Columns of the query ``limits``."""


@dataclass(frozen=True, slots=True)
class Contents:
    """One member's.

    Attributes:
        member: its name.
        views: what materialized views hold, by name; None of one that could not be read.
        faults: what is wrong with indexes, by name.
        unread: what could not be read or checked, and why.
        beyond: what its server can't compare, and why.
    """

    member: str
    views: Mapping[str, str | None]
    faults: Mapping[str, str]
    unread: Mapping[str, str] = field(default_factory=dict)
    beyond: Mapping[str, str] = field(default_factory=dict)


def inspect(source: Source, share: int) -> Contents:
    """Read the materialized views of a member, and check its indexes.

    Args:
        source: the member.
        share: percent of the time in which to work.

    Raises:
        psycopg.Error: the server or the snapshot is gone.
        TornSnapshotError: see ``reading``.
    """
    with connected(source) as connection:
        with at_marker(connection, source):
            views = connection.execute(_SQL["views"]).fetchall()
            limits = connection.execute(_SQL["limits"]).fetchone()
        assert limits is not None  # a query without a table has one row
        beyond = {what: why for what, why in zip(_BEYOND, limits, strict=True) if why is not None}
        found: dict[str, str | None] = {}
        unread: dict[str, str] = {}
        for name, populated, columns, schema, view, oid, filenode in paced(views, share):
            found[name] = "not populated"
            if populated:
                read = Relation(name, schema, view, oid, filenode, 0, 1)
                try:
                    with at_marker(connection, source):
                        found[name] = _view(connection, read, columns)
                except _UnreadError as error:
                    found[name] = None
                    unread[f"materialized view {name}"] = str(error)
        names = [name for (name,) in connection.execute(_SQL["indexes"])]
        faults: dict[str, str] = {}
        for name in paced(() if _INDEXES in beyond else names, share):
            try:
                fault = _index(connection, name)
            except _UnreadError as error:
                unread[f"index {name}"] = str(error)
            else:
                if fault is not None:
                    faults[name] = fault
        return Contents(source.member, found, faults, unread, beyond)


class _UnreadError(Exception):
    """Something could not be read or checked; the message says why."""


def _view(
    connection: psycopg.Connection[tuple[object, ...]], view: Relation, columns: list[str]
) -> str:
    """Its contents as a text.

    Raises:
        _UnreadError: it is not any more what it was at the marker, or can't be read now.
    """
    connection.execute(_SESSION["tables_only"])  # a view in its place is not even planned
    query = _SQL["contents"].format(row=record(columns), view=view.identifier)
    try:
        connection.execute(_SQL["claim"].format(view=view.identifier))
        if connection.execute(unchanged(view)).fetchone() != (True,):
            raise _UnreadError(_CHANGED)
        rows, first, second = _one(connection, query)
    except (
        psycopg.errors.UndefinedTable,
        psycopg.errors.InvalidSchemaName,
        psycopg.errors.WrongObjectType,
        psycopg.errors.ObjectNotInPrerequisiteState,
        psycopg.errors.UndefinedColumn,
    ):
        raise _UnreadError(_CHANGED) from None
    except (psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled, *FAULTS) as error:
        raise _UnreadError(said(error)) from error
    if connection.execute(unchanged(view)).fetchone() != (True,):
        raise _UnreadError(_CHANGED)
    return f"{rows} rows, checksum {sum_of(rows, first, second).hex()}"


def _one(
    connection: psycopg.Connection[tuple[object, ...]], query: sql.Composed
) -> tuple[int, int, int]:
    row = connection.execute(query).fetchone()
    assert row is not None  # an aggregate without GROUP BY
    rows, first, second = row
    return int(str(rows)), int(str(first)), int(str(second))


def _index(connection: psycopg.Connection[tuple[object, ...]], name: str) -> str | None:
    """What is wrong. An index that is gone is told among the definitions.

    Raises:
        _UnreadError: something was in the way.
    """
    query = _SQL["index"].format(name=sql.Literal(name))
    while (row := connection.execute(query).fetchone()) is not None:
        try:
            connection.execute(_SQL["check"].format(index=sql.Literal(row[0])))
        except FAULTS as error:
            return said(error)
        except psycopg.Error as error:
            if connection.broken:
                raise
            if connection.execute(query).fetchone() == row:
                raise _UnreadError(said(error)) from error
        else:
            break
    return None


def differing(
    found: Iterable[Contents], leaves: Mapping[str, Mapping[str, Sum]]
) -> list[DefinitionDifference]:
    """What is not the same everywhere.

    Args:
        found: of all members.
        leaves: sums of the rows of leaves by member, by the leaf's name; those of tables that
            could be read everywhere.
    """
    contents = list(found)
    members = [one.member for one in contents]
    versions: dict[tuple[str, str], dict[str, str | None]] = defaultdict(dict)
    for one in contents:
        for name, text in one.views.items():
            versions["materialized view contents", name][one.member] = text
    for name, sums in leaves.items():
        for member in members:
            total = sums.get(member, NOTHING)
            text = f"{total.rows} rows, checksum {total.hex()}"
            versions["partition contents", name][member] = text
    differences = [
        DefinitionDifference(kind, name, texts, odd_ones(texts))
        for (kind, name), texts in sorted(versions.items())
        if len(texts) == len(members)
        and None not in texts.values()
        and len(set(texts.values())) > 1
    ]
    for name in sorted({name for one in contents for name in one.faults}):
        texts = {one.member: _verdict(one, name) for one in contents}
        odd = tuple(sorted(one.member for one in contents if name in one.faults))
        differences.append(DefinitionDifference("index contents", name, texts, odd))
    return differences


def _verdict(one: Contents, index: str) -> str:
    unread = f"index {index}" in one.unread or _INDEXES in one.beyond
    return one.faults.get(index, "not checked" if unread else _SOUND)
