"""A dead man's switch: a server whose sidecar was killed says by itself that it takes no writes.

A sidecar that ends tells the server so (``advertising``); one that was killed can't. Then drivers
that were given several hosts would choose this one again and again, and hear of it with each first
write. So a session of the server watches another session of the sidecar, and makes the
setting when that has ended: at the latest a few tenths of a second after the sidecar.

It is a hint, as the setting always is; the fence is elsewhere. A server that can't be told goes on
as it was. Nothing survives but the setting, which the next sidecar takes back when it takes writes.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final

import psycopg
import structlog

from pgherd_sidecar.agent.base.config import NodeConfig
from pgherd_sidecar.agent.server import startup

log = structlog.get_logger()

NAME: Final = "pgherd alone"
"""Of the session that watches, and of the one that makes the setting."""
_SELF = "SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()"
_PROBE = "SELECT pgherd.dblink_exec($1, 'RESET ALL')"
_WATCH = "CALL pgherd.tell_when_alone($1, $2, $3)"


@contextlib.asynccontextmanager
async def armed(config: NodeConfig, watched: psycopg.AsyncConnection[Any]) -> AsyncIterator[None]:
    """Have the server watch a session of this sidecar during the block.

    Args:
        config: how to reach the server, which has to reach itself in the same way.
        watched: the session; it must stay open as long as the sidecar lives.

    Raises:
        psycopg.OperationalError: the server is gone.
    """
    connection = await startup.connect(config, NAME, idle=True)
    async with connection:
        row = await (await watched.execute(_SELF)).fetchone()
        assert row is not None
        watching = asyncio.ensure_future(_watch(config, connection, row))
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.wait({watching})


async def _watch(
    config: NodeConfig, connection: psycopg.AsyncConnection[Any], watched: tuple[Any, ...]
) -> None:
    itself = startup.conninfo(config, NAME)
    try:
        await connection.execute(_PROBE, (itself,))
        await connection.execute(_WATCH, (*watched, itself))
    except psycopg.Error as error:
        if not connection.broken:  # else the server is gone, as others notice
            remedy = "let the server reach itself as the sidecar does, as a superuser"
            log.warning("clients.not_told_when_alone", error=str(error), remedy=remedy)
