"""One HTTP/1.0 request and its answer, which ends with the connection.

A client library would take longer to import than most commands take to run. Called by
``AdminClient``; keeps nothing.
"""

import asyncio
import contextlib
import http.client
import json
import re
from typing import Any

_STATUS_LINE = re.compile(rb"HTTP/1\.\d (\d{3})")
_CONTENT_LENGTH = re.compile(rb"^content-length: *(\d+)", re.IGNORECASE | re.MULTILINE)


async def exchange(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    method: str,
    path: str,
    body: dict[str, Any] | None,
) -> tuple[int, bytes]:
    """Ask on a new connection, and close it; return status and content.

    Args:
        reader: of the connection.
        writer: of the connection.
        method: GET, POST or DELETE.
        path: of the route, with its query.
        body: sent as JSON; nothing is sent if it is None.

    Raises:
        OSError: the connection broke.
        http.client.HTTPException: what came is no answer, or not all of it.
    """
    content = b"" if body is None else json.dumps(body).encode()
    head = (
        f"{method} {path} HTTP/1.0\r\nHost: sidecar\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    try:
        writer.write(head.encode() + content)
        await writer.drain()
        return _parse(await reader.read())
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def _parse(answer: bytes) -> tuple[int, bytes]:
    head, separator, content = answer.partition(b"\r\n\r\n")
    match = _STATUS_LINE.match(head)
    if match is None or not separator:
        raise http.client.BadStatusLine(repr(answer[:80]))
    length = _CONTENT_LENGTH.search(head)
    if length is not None and int(length.group(1)) != len(content):
        raise http.client.IncompleteRead(content, int(length.group(1)) - len(content))
    return int(match.group(1)), content
