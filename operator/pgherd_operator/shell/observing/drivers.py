"""Asks the driver of a job how far it is: plain HTTP to its pod, with little patience."""

import aiohttp
from pydantic import BaseModel, ValidationError

from pgherd_operator.objects import names

_PATIENCE = aiohttp.ClientTimeout(total=1)


class _Progress(BaseModel):
    doing: str
    done: int
    tasks: int


class HttpDrivers:
    """See Drivers."""

    async def progress(self, address: str) -> str:
        """See Drivers."""
        host = f"[{address}]" if ":" in address else address
        url = f"http://{host}:{names.PROGRESS_PORT}/"
        try:
            async with aiohttp.ClientSession(timeout=_PATIENCE) as session, session.get(url) as got:
                found = _Progress.model_validate_json(await got.read())
        except (aiohttp.ClientError, TimeoutError, ValidationError):
            return ""
        return f"{found.doing}: {found.done}/{found.tasks}" if found.tasks else found.doing
