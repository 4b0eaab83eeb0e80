"""What must not be left half done when whoever does it is cancelled."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def to_its_end(doing: Coroutine[Any, Any, None]) -> None:
    """Do all of something, however often it is cancelled meanwhile.

    Raises:
        asyncio.CancelledError: the caller was cancelled, and it is done all the same.
    """
    task = asyncio.ensure_future(doing)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled from None if task.cancelled() else task.exception()
    task.result()
