"""What a member held at the marker, as its catalog tells: tables, their files, and definitions.

One task a member (``describe``). Two members are compared by the driver; this module does not.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any, Literal

import psycopg

from pgherd_spark.reading import statements
from pgherd_spark.reading.sources import Relation, Source, connected, reading

_SQL = statements.load("catalog.sql")
_STRUCTURE = statements.load("structure.sql")["structure"]
_ATTEMPTS = 5
EVERYTHING = "everything"


@dataclass(frozen=True, slots=True)
class Table:
    """A replicated table: columns by name, their types in the same order, and its key.

    ``stored`` are the columns that are not generated from others; ``form`` is that in which COPY
    can write and read all of them.
    """

    name: str
    columns: tuple[str, ...]
    types: tuple[str, ...]
    key: tuple[str, ...]
    stored: tuple[str, ...]
    form: Literal["binary", "text"] = "binary"


@dataclass(frozen=True, slots=True)
class Definition:
    """One thing that has a definition: an index, a role, ...; ``version`` see structure.sql."""

    kind: str
    name: str
    text: str
    version: str


@dataclass(frozen=True, slots=True)
class Server:
    """What the member runs on: where these differ, equal values may have other texts or order."""

    version: int
    system: str
    encoding: str
    collate: str
    ctype: str
    build: str


@dataclass(frozen=True, slots=True)
class Description:
    """One member at the marker.

    Attributes:
        member: its name.
        server: what it runs on.
        tables: the replicated tables.
        columns: what the names of their columns stand for, see ``columns_now``.
        types: what values of the users' types are made of, see ``types_now``.
        relations: the files of their rows.
        not_replicated: tables whose rows are the member's own.
        structure: all definitions.
        changing: names of what has been defined anew since the marker; ``EVERYTHING`` if so much
            that the definitions at the marker can't be read any more.
    """

    member: str
    server: Server
    tables: tuple[Table, ...]
    columns: Mapping[str, tuple[str, ...]]
    types: Mapping[tuple[int, str], str]
    relations: tuple[Relation, ...]
    not_replicated: tuple[str, ...]
    structure: tuple[Definition, ...]
    changing: tuple[str, ...]


def describe(source: Source) -> Description:
    """Read a member's catalog at the marker, and once more as it is by then.

    Raises:
        psycopg.Error: the server or the snapshot is gone.
        TornSnapshotError: see ``reading``.
    """
    with reading(source) as connection:
        tables = tuple(
            Table(
                name,
                tuple(columns or ()),
                tuple(types or ()),
                tuple(key or ()),
                tuple(stored or ()),
                form,
            )
            for name, columns, types, key, stored, form in connection.execute(_SQL["tables"])
        )
        columns = columns_of(connection)
        types = _types_of(connection)
        relations = tuple(Relation(*row) for row in connection.execute(_SQL["relations"]))
        not_replicated = tuple(name for (name,) in connection.execute(_SQL["not_replicated"]))
        row = connection.execute(_SQL["server"]).fetchone()
        assert row is not None  # a database is connected to
    structure = _structure(source, reading)
    now = _structure(source, connected)
    changing = {EVERYTHING}
    if structure is not None and now is not None:
        changing = {f"{one.kind} {one.name}" for one in set(now) ^ set(structure)}
    return Description(
        member=source.member,
        server=Server(*row),
        tables=tables,
        columns=columns,
        types=types,
        relations=relations,
        not_replicated=not_replicated,
        structure=structure or (),
        changing=tuple(sorted(changing)),
    )


def columns_now(source: Source) -> Mapping[str, tuple[str, ...]]:
    """Name and number of each column of the replicated tables, as they are by now.

    Raises:
        psycopg.Error: the server is gone.
    """
    with connected(source) as connection:
        return columns_of(connection)


def columns_changed(description: Description, now: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Tables of which a column's name stands for another column, or none, since the marker.

    A column that is dropped and made anew leaves a table's file as it is, and rows read in the
    marker's snapshot have its default.

    Args:
        description: the member at the marker.
        now: ``columns_now`` of it, asked when all has been read.
    """
    return sorted(name for name, known in description.columns.items() if now.get(name) != known)


def types_now(source: Source) -> Mapping[tuple[int, str], str]:
    """Labels of enumerations and columns of composite types, as they are by now: whose each is.

    Raises:
        psycopg.Error: the server is gone.
    """
    with connected(source) as connection:
        return _types_of(connection)


def types_changed(description: Description, now: Mapping[tuple[int, str], str]) -> list[str]:
    """Types whose values are not read as at the marker any more; more labels do no harm.

    Args:
        description: the member at the marker.
        now: ``types_now`` of it, asked when all has been read.
    """
    return sorted({name for what, name in description.types.items() if what not in now})


def columns_of(connection: psycopg.Connection[Any]) -> dict[str, tuple[str, ...]]:
    """``columns_now`` in an open session, outside of any transaction.

    Raises:
        psycopg.Error: the server is gone.
    """
    return {name: tuple(columns) for name, columns in connection.execute(_SQL["columns"])}


def _types_of(connection: psycopg.Connection[Any]) -> dict[tuple[int, str], str]:
    return {(oid, what): name for oid, what, name in connection.execute(_SQL["types"])}


def _structure(
    source: Source,
    session: Callable[[Source], AbstractContextManager[psycopg.Connection[Any]]],
) -> tuple[Definition, ...] | None:
    """Read all definitions. What is dropped at this very moment makes the query fail: once more."""
    for _ in range(_ATTEMPTS):
        with suppress(psycopg.errors.InternalError_), session(source) as connection:
            return tuple(Definition(*row) for row in connection.execute(_STRUCTURE))
    return None
