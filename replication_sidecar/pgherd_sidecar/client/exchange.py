"""One HTTP/1.0 request to a sidecar and its answer, which ends with the connection.

A client library would take longer to import than most commands take to run. It keeps nothing.
"""

import asyncio
import contextlib
import http.client
import json
import re
from typing import Any

_STATUS_LINE = re.compile(rb"HTTP/1\.\d (\d{3})")
_CONTENT_LENGTH = re.compile(rb"^content-length: *(\d+)", re.IGNORECASE | re.MULTILINE)


def encode(method: str, path: str, body: dict[str, Any] | None) -> bytes:
    """Return a request.

    Args:
        method: GET, POST or DELETE.
        path: of the route, with its query.
        body: sent as JSON; nothing is sent if it is None.
    """
    content = b"" if body is None else json.dumps(body).encode()
    head = (
        f"{method} {path} HTTP/1.0\r\nHost: sidecar\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


async def exchange(
    connection: tuple[asyncio.StreamReader, asyncio.StreamWriter], request: bytes
) -> bytes:
    """Send a request on a new connection, return all that is answered, and close it.

    Raises:
        OSError: the connection broke.
    """
    reader, writer = connection
    try:
        writer.write(request)
        await writer.drain()
        return await reader.read()
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def decode(answer: bytes) -> tuple[int, bytes]:
    """Return status and content of an answer.

    Raises:
        http.client.HTTPException: it is none, or not all of it.
    """
    head, separator, content = answer.partition(b"\r\n\r\n")
    match = _STATUS_LINE.match(head)
    if match is None or not separator:
        raise http.client.BadStatusLine(repr(answer[:80]))
    length = _CONTENT_LENGTH.search(head)
    if length is not None and int(length.group(1)) != len(content):
        raise http.client.IncompleteRead(content, int(length.group(1)) - len(content))
    return int(match.group(1)), content
