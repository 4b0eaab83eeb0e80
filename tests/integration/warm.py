"""Sessions that stay open from test to test, for what is done before and after each.

The first command of DDL in a session takes twice the time of the next one, since the functions that
judge it are planned anew.
"""

from functools import partial
from typing import Any

import psycopg
from patience import wait_until
from pgherd_sidecar.pg import trusted

from .localherd import LAST_GID, query_on

_REFUSED = (psycopg.errors.ReadOnlySqlTransaction,)
_sessions: dict[tuple[str, str], psycopg.Connection[Any]] = {}


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
