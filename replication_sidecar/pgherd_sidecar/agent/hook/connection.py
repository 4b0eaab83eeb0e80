"""One session's connection to the hook socket.

Turns bytes into requests and answers into bytes. Nothing survives the connection.
"""

import asyncio
from typing import Protocol, cast

import structlog

from pgherd_sidecar.pg.hookwire import (
    HookWire,
    HookWireError,
    command_complete,
    error_response,
)

log = structlog.get_logger()


class Requests(Protocol):
    """The handler of the requests of a connection."""

    query_max: int

    def opened(self, connection: "HookConnection") -> None:
        """Note a new session."""

    def closed(self, connection: "HookConnection") -> None:
        """Note the end of a session."""

    def request(self, connection: "HookConnection", query: bytes) -> None:
        """Handle one query."""


class HookConnection(asyncio.Protocol):
    """One session's connection."""

    def __init__(self, server: Requests) -> None:
        self._server = server
        self._wire = HookWire(server.query_max)
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass
        self._server.opened(self)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        try:
            reply, queries = self._wire.receive(data)
        except HookWireError as error:
            log.warning("hook.protocol_error", error=str(error))
            self.close()
            return
        if reply:
            self._write(reply)
        for query in queries:
            try:
                self._server.request(self, query)
            except (ValueError, IndexError) as error:
                log.warning("hook.bad_request", error=str(error))
                self.fail("08P01", "malformed request")

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._transport = None
        self._server.closed(self)

    def done(self, tag: bytes) -> None:
        """Answer with a command tag of at most 63 bytes."""
        self._write(command_complete(tag))

    def fail(self, sqlstate: str, message: str, detail: str = "", hint: str = "") -> None:
        """Answer with an error."""
        self._write(error_response(sqlstate, message, detail, hint))

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)
