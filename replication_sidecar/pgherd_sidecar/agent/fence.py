"""Tells PostgreSQL whether this member takes writes, as soon as that changes.

It is no protection by itself: ``certify()`` asks the sidecar, and can't be passed. But the first
write of a transaction fails early, with the reason, and drivers and poolers go elsewhere.

Called by ``session``. Nothing survives it but what the server was told.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg

from pgherd_sidecar.agent.startup import set_writable

_PACE_S = 0.1


class Fence:
    """Keeps the server informed, from the moment that this member first takes writes.

    Args:
        connection: an administrative connection.
        refusal: why this member takes no writes, None if it does.
        held: whether that is only because the herd takes none.
    """

    def __init__(
        self,
        connection: psycopg.AsyncConnection[Any],
        refusal: Callable[[], str | None],
        held: Callable[[], bool],
    ) -> None:
        self._connection = connection
        self._refusal = refusal
        self._held = held
        self._told: str | None = None

    async def open(self) -> None:
        """Let writes pass for the first time.

        Raises:
            psycopg.Error: the server is gone.
        """
        await set_writable(self._connection, True, "")

    async def run(self) -> None:
        """Look for ever.

        Raises:
            psycopg.Error: the server is gone.
        """
        while True:
            refusal = self._refusal()
            if refusal != self._told:
                told, self._told = self._told, refusal
                await set_writable(
                    self._connection,
                    refusal is None,
                    refusal or "",
                    held=self._held(),
                    changed=(told is None) != (refusal is None),
                )
            await asyncio.sleep(_PACE_S)
