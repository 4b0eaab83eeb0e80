"""What must not be left half done when whoever does it is cancelled."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def to_its_end(doing: Coroutine[Any, Any, None]) -> None:
    """Do all of something, also when cancelled meanwhile.

    Raises:
        asyncio.CancelledError: the caller was cancelled, and it is done all the same.
    """
    task = asyncio.ensure_future(doing)
    try:
        await asyncio.shield(task)
    finally:
        await asyncio.wait({task})
