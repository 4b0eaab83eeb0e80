"""``python forwarder.py PORT TARGET``: a way to a server on this machine, which can
die, or be stopped, by itself.
"""

import asyncio
import contextlib
import sys
from functools import partial

_CHUNK = 1 << 20


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(ConnectionError):
        writer.close()


async def _forward(target: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    there, back = await asyncio.open_connection("127.0.0.1", target)
    await asyncio.gather(_pass_on(reader, back), _pass_on(there, writer))


async def _main(port: int, target: int) -> None:
    server = await asyncio.start_server(partial(_forward, target), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), int(sys.argv[2])))
