"""The scrub's session with the server: it is opened when it is needed, and used by one at a time.

Nothing survives it but what it has counted.
"""

import asyncio
from typing import Any

import psycopg

from pgherd_sidecar.agent.base.config import NodeConfig
from pgherd_sidecar.agent.server.startup import connect

HELD_S = 40.0
"""No snapshot of the scrub is held for longer."""
PART_TIMEOUT_MS = 5_000


class ScrubConnection:
    """The session of one member's scrub.

    Args:
        config: this member's.

    Attributes:
        turn: held by whoever uses the session.
        work_s: for how long it was used, in seconds.
    """

    def __init__(self, config: NodeConfig) -> None:
        self.turn = asyncio.Lock()
        self.work_s = 0.0
        self._config = config
        self._connection: psycopg.AsyncConnection[Any] | None = None

    async def connected(self) -> psycopg.AsyncConnection[Any]:
        """Return the session, opened if it is not.

        Raises:
            psycopg.Error: the server is gone.
        """
        if self._connection is None or self._connection.closed:
            opened = await connect(self._config, "pgherd scrub", psycopg.AsyncCursor)
            self._connection = opened
            await opened.execute(
                "SET enable_seqscan = off; SET jit = off; SET lock_timeout = 200;"
                " SET max_parallel_workers_per_gather = 0"  # it may have a share of one core
            )
        return self._connection

    async def disconnect(self) -> None:
        """Close the session, whatever it is at."""
        closing, self._connection = self._connection, None
        if closing is not None:
            await closing.close()


def error_name(error: Exception) -> str:
    """The SQL state: messages may hold values of rows."""
    state = error.sqlstate if isinstance(error, psycopg.Error) else None
    return state or type(error).__name__
