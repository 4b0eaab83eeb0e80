"""Sessions and a stock of empty schemas stay from test to test.

The first command of DDL in a session takes twice the time of the next one, since the functions that
judge it are planned anew. PostgreSQL forgets all plans of all sessions when a schema comes or goes,
so the schemas of many tests come together, and go together.
"""

import os
import random
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import psycopg
from patience import wait_until
from pgherd_sidecar.pg import trusted

from .localherd import LAST_GID, LocalHerd, query_on, settle

_REFUSED = (psycopg.errors.ReadOnlySqlTransaction,)
_WAITS = (
    psycopg.errors.SerializationFailure,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.LockNotAvailable,
    psycopg.errors.QueryCanceled,
)
_NAMED = "SELECT to_regnamespace('{}')"
_NO_RELATIONS = """
SELECT FROM pg_depend
 WHERE refclassid = 'pg_namespace'::regclass AND refobjid = to_regnamespace('{}')
   AND classid <> 'pg_class'::regclass LIMIT 1"""
_MANY = 24  # schemas that come or go together
_sessions: dict[tuple[str, str], psycopg.Connection[Any]] = {}


@dataclass
class _Schemas:
    """The schemas of one herd: the empty ones, and each used one with the test that used it."""

    empty: list[str] = field(default_factory=list)
    used: dict[str, str] = field(default_factory=dict)
    together: int = 2


_schemas: dict[str, _Schemas] = {}


def take_schema(herd: LocalHerd) -> str:
    """An empty schema of ``app``, which all members have, when they take writes."""
    first = herd.nodes()[0]
    stock = _schemas.setdefault(first.dsn, _Schemas())
    for node in herd.nodes():  # the test before may have stopped some
        writable = partial(_query, node.dsn, "SELECT writable FROM pgherd.node")
        wait_until(writable, lambda rows: rows == [(True,)])
    if stock.empty and _query(first.dsn, _NAMED.format(stock.empty[-1])) == [(None,)]:
        stock = _schemas[first.dsn] = _Schemas()  # another herd has the place of the former one
    if not stock.empty:
        stock.empty = [f"t_{random.getrandbits(40):x}" for _ in range(stock.together)]
        execute(first.app_dsn, "; ".join(f"CREATE SCHEMA {name}" for name in stock.empty))
        settle(herd)
        stock.together = min(2 * stock.together, _MANY)
    return stock.empty.pop()


def give_back(herd: LocalHerd, schema: str) -> None:
    """Have a schema dropped: at once where it holds code or types, which concern other tests."""
    dsn = herd.nodes()[0].dsn
    stock = _schemas[dsn]
    stock.used[schema] = os.environ.get("PYTEST_CURRENT_TEST", "")
    if len(stock.used) == _MANY or _query(dsn, _NO_RELATIONS.format(schema)):
        drop_used(herd)


def drop_used(herd: LocalHerd) -> None:
    """Drop all schemas that tests have given back.

    Raises:
        psycopg.Error: a test has left what does not go, alone or together with the others.
    """
    dsn = herd.nodes()[0].dsn
    stock = _schemas.setdefault(dsn, _Schemas())
    used, stock.used = stock.used, {}
    try:
        _drop(dsn, *used)
    except psycopg.Error as together:
        for name, test in used.items():  # the error does not say which of them it is
            try:
                _drop(dsn, name)
            except psycopg.Error as error:
                error.add_note(f"{test} has left this in schema {name}")
                raise
        if not isinstance(together, _WAITS):
            raise


def _drop(dsn: str, *schemas: str) -> None:
    if schemas:
        execute(dsn, f"DROP SCHEMA IF EXISTS {', '.join(schemas)} CASCADE")


def execute(dsn: str, command: str) -> None:
    """Execute a command, again after 40001 or 25006: a node may have no majority for a moment."""
    wait_until(partial(_query, dsn, command), lambda _: True, despite=_REFUSED)


def last_gid(dsn: str) -> int:
    """What a node has applied; settings of the database that are on their way don't matter."""
    return int(_query(dsn, LAST_GID, trusted.options())[0][0])


def _query(dsn: str, statement: str, options: str = "") -> list[tuple[Any, ...]]:
    session = _sessions.get((dsn, options))
    if session is not None:
        try:
            return query_on(session, statement)
        except psycopg.Error:
            if not session.closed:
                raise
    session = psycopg.connect(dsn, autocommit=True, options=options)
    _sessions[dsn, options] = session
    return query_on(session, statement)
