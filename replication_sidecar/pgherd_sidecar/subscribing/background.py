"""Work at the subscriber's server that goes on while the next changes are read and decoded."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class Background:
    """Does one thing after the other, in their order, while its caller prepares the next one."""

    def __init__(self) -> None:
        self._running: asyncio.Task[Any] | None = None

    async def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin something as soon as what was begun before it is done.

        Raises:
            Exception: what was begun before it has failed so; this one is not begun.
        """
        try:
            await self.settle()
        except BaseException:
            work.close()
            raise
        self._running = asyncio.create_task(work)
        await asyncio.sleep(0)  # it sends its first statement

    async def settle(self) -> None:
        """Wait until all that was begun is done.

        Raises:
            Exception: it has failed so.
        """
        running, self._running = self._running, None
        if running is not None:
            await running  # if this is cancelled, so is that, and it is waited for

    async def end(self) -> None:
        """Break off what was begun, and wait until it has heard of that."""
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
