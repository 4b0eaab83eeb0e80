"""A member's snapshot at a marker, and sessions that read in exactly that snapshot.

Used by tasks, on executors. A task that could not tell that its snapshot is another one would
report differences that are none, so each session proves that it has the right one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from pgherd_spark.reading import statements

_SQL = statements.load("session.sql")
_CONNECT_S = 20


class TornSnapshotError(Exception):
    """A session did not get the snapshot that it asked for."""


class TableChangedError(Exception):
    """DDL has changed a table since the marker, so its rows at the marker can't be read."""


@dataclass(frozen=True, slots=True)
class Source:
    """One member at the marker.

    Attributes:
        member: its name.
        conninfo: how to reach its server as a superuser; names a file of passwords, holds none.
        gid: of the marker.
        snapshot: what ``SET TRANSACTION SNAPSHOT`` takes.
        visible: ``pg_current_snapshot()`` in it.
    """

    member: str
    conninfo: str
    gid: int
    snapshot: str
    visible: str


@dataclass(frozen=True, slots=True)
class Relation:
    """A table or a partition as a file of rows: what of it a task reads.

    Attributes:
        table: the replicated table that it is or belongs to, as pgherd names it.
        schema, name: its own.
        oid: on this member.
        filenode: which file held its rows at the marker.
        blocks: how long the file was a moment ago.
        block_bytes: size of a block.
    """

    table: str
    schema: str
    name: str
    oid: int
    filenode: int
    blocks: int
    block_bytes: int

    @property
    def identifier(self) -> sql.Composed:
        """Its quoted name; without what inherits from it."""
        return sql.SQL("ONLY {}").format(sql.Identifier(self.schema, self.name))


@contextmanager
def connected(source: Source) -> Iterator[psycopg.Connection[Any]]:
    """A session on the member, with the settings under which a value's text is the same anywhere.

    Raises:
        psycopg.Error: the server is not there, or refuses.
    """
    with psycopg.connect(
        source.conninfo, autocommit=True, connect_timeout=_CONNECT_S, application_name="pgherd job"
    ) as connection:
        connection.execute(_SQL["settings"])
        yield connection


@contextmanager
def reading(source: Source) -> Iterator[psycopg.Connection[Any]]:
    """A session whose transaction sees what was there at the marker, and nothing else.

    Raises:
        psycopg.Error: the server is gone, or the snapshot is.
        TornSnapshotError: it is another snapshot.
    """
    with connected(source) as connection, at_marker(connection, source):
        yield connection


@contextmanager
def at_marker(connection: psycopg.Connection[Any], source: Source) -> Iterator[None]:
    """Around a transaction in a session of ``connected`` that sees what ``reading`` does.

    Raises:
        psycopg.Error, TornSnapshotError: as there.
    """
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        connection.execute(_SQL["import"].format(snapshot=sql.Literal(source.snapshot)))
        row = connection.execute(_SQL["visible"]).fetchone()
        if row != (source.visible,):
            raise TornSnapshotError(f"{source.member}: {row} is not {source.visible}")
        yield
    finally:
        if not connection.closed:
            connection.execute("ROLLBACK")


@contextmanager
def unchanging(connection: psycopg.Connection[Any], relation: Relation) -> Iterator[None]:
    """Around what reads the relation's rows: they are those of the marker, or it fails.

    Raises:
        TableChangedError: they are not, or a column is gone.
    """
    _claim(connection, relation)
    try:
        yield
    except (psycopg.errors.UndefinedColumn, psycopg.errors.UndefinedObject) as error:
        raise TableChangedError("its columns were changed") from error
    # Once more: a lock on a table does not keep its schema's name.
    _require_unchanged(connection, relation)


def _claim(connection: psycopg.Connection[Any], relation: Relation) -> None:
    """Keep the relation as it is until the transaction ends, if it still is as at the marker.

    A snapshot does not protect from what replaces a table's file (TRUNCATE, a rewriting ALTER):
    then a reader finds no rows, or all at other places, and no error. Nobody waits for this lock
    longer than a task takes: the marker itself holds none.

    Raises:
        TableChangedError: it is not.
    """
    try:
        connection.execute(_SQL["lock"].format(relation=relation.identifier))
    except (
        psycopg.errors.UndefinedTable,
        psycopg.errors.InvalidSchemaName,
        psycopg.errors.WrongObjectType,
    ) as error:
        raise TableChangedError("it was dropped or renamed") from error
    except psycopg.errors.LockNotAvailable as error:
        raise TableChangedError("a command that changes it held its lock for too long") from error
    connection.execute(_SQL["tables_only"])
    _require_unchanged(connection, relation)


def _require_unchanged(connection: psycopg.Connection[Any], relation: Relation) -> None:
    """Check that the relation's name stands for it, and its rows are in the file of the marker.

    Raises:
        TableChangedError: not so.
    """
    if connection.execute(unchanged(relation)).fetchone() != (True,):
        raise TableChangedError("it was truncated, rewritten, renamed or replaced")


def unchanged(relation: Relation) -> sql.Composed:
    """The query that says whether the relation is what it was at the marker."""
    return _SQL["unchanged"].format(
        schema=sql.Literal(relation.schema),
        name=sql.Literal(relation.name),
        oid=sql.Literal(relation.oid),
        filenode=sql.Literal(relation.filenode),
    )
