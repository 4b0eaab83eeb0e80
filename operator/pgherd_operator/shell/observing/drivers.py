"""Asks the driver of a job how far it is: plain HTTP to its pod, with little patience."""

import aiohttp
from pydantic import BaseModel, ValidationError

from pgherd_operator.objects import names

_PATIENCE = aiohttp.ClientTimeout(total=1)


class _Progress(BaseModel):
    doing: str
    done: int
    tasks: int


async def asked(address: str) -> bytes:
    """What the program of a pod says of its progress; nothing if it does not answer at once."""
    host = f"[{address}]" if ":" in address else address
    url = f"http://{host}:{names.PROGRESS_PORT}/"
    try:
        async with aiohttp.ClientSession(timeout=_PATIENCE) as session, session.get(url) as got:
            return await got.read()
    except (aiohttp.ClientError, TimeoutError):
        return b""


class HttpDrivers:
    """See Drivers."""

    async def progress(self, address: str) -> str:
        """See Drivers."""
        try:
            found = _Progress.model_validate_json(await asked(address))
        except ValidationError:
            return ""
        return f"{found.doing}: {found.done}/{found.tasks}" if found.tasks else found.doing
