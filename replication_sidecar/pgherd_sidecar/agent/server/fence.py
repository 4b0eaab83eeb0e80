"""Tells PostgreSQL whether this member takes writes, as soon as that changes.

It is no protection by itself: ``certify()`` asks the sidecar, and can't be passed. But the first
write of a transaction fails early, with the reason, and drivers and poolers go elsewhere.

A server that can't be told, because its disk is full, say, is told again and again: else a member
that takes writes would turn drivers away for ever.

Nothing survives it but what the server was told.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg

from pgherd_sidecar.agent.base.beat import until_next_s
from pgherd_sidecar.agent.server.advertising import advertise
from pgherd_sidecar.agent.server.startup import set_writable

_PACE_S = 0.1
_AGAIN_S = (1.0, 15.0)
"""A server that could not be told is told again after the first, then twice as long up to this."""


class Fence:
    """Keeps the server informed, from the moment that this member has first caught up.

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
        self._refusal_told: str | None = None
        self._advertised: bool | None = None  # None: the server may say anything
        self._pause_s, self._due_s = _AGAIN_S[0], 0.0

    async def let_writes_pass(self) -> None:
        """Let writes pass for the first time.

        Raises:
            psycopg.Error: the server is gone.
        """
        await set_writable(self._connection, True, "")
        await self._advertise(writes=True)

    async def run(self) -> None:
        """Look for ever.

        Raises:
            psycopg.Error: the server is gone.
        """
        while True:
            refusal = self._refusal()
            if refusal != self._refusal_told:
                self._refusal_told, self._due_s = refusal, 0.0
                await set_writable(
                    self._connection, refusal is None, refusal or "", held=self._held()
                )
            await self._advertise(writes=refusal is None)
            await asyncio.sleep(until_next_s(_PACE_S))

    async def _advertise(self, *, writes: bool) -> None:
        now_s = asyncio.get_running_loop().time()
        if writes == self._advertised or now_s < self._due_s:
            return
        if await advertise(self._connection, writes=writes):
            self._advertised = writes
            self._pause_s, self._due_s = _AGAIN_S[0], 0.0
        else:
            self._advertised = None
            self._due_s = now_s + self._pause_s
            self._pause_s = min(2 * self._pause_s, _AGAIN_S[1])
