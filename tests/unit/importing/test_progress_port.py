"""The port at which an import in a pod tells how it is."""

import asyncio
import contextlib

from pgherd_sidecar.importing.job import Told, served


async def test_who_asks_without_end_is_hung_up_on() -> None:
    async with served(Told(), 0) as port:
        reader, writer = await asyncio.open_connection("localhost", port)
        writer.write(b"x" * (1 << 18))
        with contextlib.suppress(ConnectionResetError):  # it has not read all of that
            assert await reader.read() == b""
        writer.close()
