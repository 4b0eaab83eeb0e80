"""Sessions with the settings under which the text of a value is the same in all databases."""

import asyncio
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import dict_row

SETTINGS: Final = {
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "xmloption": "content",
    "search_path": "pg_catalog",
    "check_function_bodies": "off",
    "standard_conforming_strings": "on",
    "default_transaction_read_only": "off",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "synchronous_commit": "on",
}
_TRANSIENT = ("08", "40", "53", "57", "25006", "55P03", "55006")

Session = psycopg.AsyncConnection[Any]


def is_transient(error: psycopg.Error) -> bool:
    """May the same work on another day, or on another member?"""
    state = error.sqlstate
    if state is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return state.startswith(_TRANSIENT) and state != "57P04"


def heed_cancellation() -> None:
    """End a task that was cancelled, and has heard the error of a server in place of that.

    A task that is cancelled while the server works on its statement has the server cancel that,
    too. If it answers by another error, as a herd does in a COMMIT, psycopg raises that one.

    Raises:
        asyncio.CancelledError: the task that calls was cancelled.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def in_one_line(error: Exception) -> str:
    """The text of an error without its line breaks."""
    return " ".join(str(error).split())


def message_of(error: psycopg.Error) -> str:
    """What the server says, in one line, with its hint."""
    said = error.diag.message_primary or in_one_line(error)
    hint = error.diag.message_hint
    return f"{said} ({hint})" if hint else said


async def connect(dsn: str, application: str) -> Session:
    """Open a session that commits each statement; rows are dictionaries.

    Args:
        dsn: a connection string of libpq. Its own options come first.
        application: the name of ours.

    Raises:
        psycopg.ProgrammingError: it is no connection string.
        psycopg.OperationalError: it can't be reached.
    """
    given = conninfo_to_dict(dsn)
    options = " ".join(f"-c {name}={value}" for name, value in SETTINGS.items())
    more = {} if "connect_timeout" in given else {"connect_timeout": "5"}
    words = make_conninfo(
        dsn, **more, application_name=application, client_encoding="UTF8",
        options=f"{given.get('options') or ''} {options}".strip(),
    )  # fmt: skip
    return await psycopg.AsyncConnection.connect(words, autocommit=True, row_factory=dict_row)
