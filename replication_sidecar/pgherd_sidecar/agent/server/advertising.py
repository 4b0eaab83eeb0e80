"""Tells whoever connects to the server whether this member takes writes, in PostgreSQL's own words.

A driver that was given several hosts asks each of them: libpq by ``target_session_attrs``, JDBC by
``targetServerType``, and others alike. All of them look at ``default_transaction_read_only``. It is
on while this member takes no writes. That is a hint, not the fence: whoever switches it off for
himself is refused by the capture triggers and by ``certify()``.

The setting is made by ``ALTER SYSTEM``, and the server reads its files anew:

* open sessions learn of it with their next statement, since PostgreSQL reports this setting;
* it stays when the sidecar or the server dies: a member that has stopped says so until it is back;
* nothing of it is in a catalog, so it is neither dumped nor compared nor replicated;
* what a role, a database or a session says of the setting goes before it;
* our own sessions say ``off`` as they connect (``trusted``).

It concerns the whole server: sessions of its other databases begin read-only, too.

``postgresql.auto.conf`` keeps what it has told.
"""

import asyncio
from typing import Any, Final

import psycopg
import structlog

log = structlog.get_logger()

READ_ONLY_LINE: Final = "default_transaction_read_only = 'on'\n"
"""The lines that a server that nobody runs yet gets at the end of its ``postgresql.auto.conf``."""
_READ_ONLY: Final = "ALTER SYSTEM SET default_transaction_read_only = on"
_WRITES: Final = "ALTER SYSTEM RESET default_transaction_read_only"

_TOLD = """
SELECT coalesce(max(setting), '') FROM pg_file_settings
 WHERE name = 'default_transaction_read_only' AND sourcefile LIKE '%postgresql.auto.conf'
"""
_PACE_S = 0.005
_LOOKS = 400


async def advertise(connection: psycopg.AsyncConnection[Any], *, writes: bool) -> bool:
    """Tell clients whether this member takes writes; return when the server knows.

    A server that can't be told goes on as it was. A full disk is one reason: then a member that
    takes writes again still says that it takes none, so the caller tries again until it is told.

    Args:
        connection: of a superuser, in autocommit mode.
        writes: it takes them.

    Returns:
        Whether the server knows.

    Raises:
        psycopg.OperationalError: the server is gone.
    """
    try:
        told = await _value(connection, _TOLD)
        if told != ("" if writes else "on"):
            await connection.execute(_WRITES if writes else _READ_ONLY)
        return await _reload(connection)
    except psycopg.Error as error:
        if connection.broken:
            raise
        remedy = "give the disk room, or let the sidecar's role use ALTER SYSTEM"
        log.warning("clients.not_told", error=str(error), writes=writes, remedy=remedy)
        return False


async def _reload(connection: psycopg.AsyncConnection[Any]) -> bool:
    """Have the server read its files, and wait until it has.

    It tells its children after it has read them itself: once our own session has heard of it, new
    sessions begin with what the files say.
    """
    before = await _value(connection, "SELECT pg_conf_load_time()")
    await connection.execute("SELECT pg_reload_conf()")
    for _ in range(_LOOKS):
        if await _value(connection, "SELECT pg_conf_load_time()") != before:
            return True
        await asyncio.sleep(_PACE_S)
    log.warning("clients.not_told", error="the server has not read its files in time")
    return False


async def _value(connection: psycopg.AsyncConnection[Any], query: str) -> Any:
    row = await (await connection.execute(query)).fetchone()
    assert row is not None
    return row[0]
