"""The server's side of PostgreSQL's simple query protocol, as far as dblink speaks it. Free of IO.

``HookWire`` turns received bytes into queries and queries' answers into bytes. It knows neither
sockets nor what the queries mean; ``agent.hook.server`` does. Nothing survives the connection.
"""

import struct

_INT32 = struct.Struct("!I")
_HEADER = struct.Struct("!cI")
_PROTOCOL_3 = 3 << 16
_SSL_REQUEST = 80877103
_GSS_REQUEST = 80877104
_STARTUP_MAX = 10_000
OVERSIZED = b"\0"
_READY = b"Z\x00\x00\x00\x05I"


class HookWireError(Exception):
    """The peer does not speak the protocol: close the connection."""


def _message(kind: bytes, payload: bytes) -> bytes:
    return _HEADER.pack(kind, len(payload) + 4) + payload


_PARAMETERS = {
    "client_encoding": "UTF8",
    "server_encoding": "UTF8",
    "server_version": "15.0",
    "standard_conforming_strings": "on",
    "integer_datetimes": "on",
    "DateStyle": "ISO, YMD",
}
_GREETING = (
    _message(b"R", _INT32.pack(0))
    + b"".join(_message(b"S", f"{name}\0{value}\0".encode()) for name, value in _PARAMETERS.items())
    + _message(b"K", bytes(8))
    + _READY
)


def command_complete(tag: bytes) -> bytes:
    """Encode success: dblink_exec() returns the tag, of which libpq keeps 63 bytes."""
    return b"C" + _INT32.pack(len(tag) + 5) + tag + b"\0" + _READY


def error_response(sqlstate: str, message: str, detail: str = "", hint: str = "") -> bytes:
    """Encode an error that dblink raises unchanged in the transaction of the client."""
    fields = {"S": "ERROR", "V": "ERROR", "C": sqlstate, "M": message, "D": detail, "H": hint}
    body = "".join(f"{code}{value}\0" for code, value in fields.items() if value)
    return _message(b"E", body.encode() + b"\0") + _READY


class HookWire:
    """One connection's incoming bytes.

    Args:
        query_max: largest query accepted, in bytes; `OVERSIZED` stands for a larger one, which is
            read and forgotten.
    """

    __slots__ = ("_buffer", "_query_max", "_skip", "_started")

    def __init__(self, query_max: int) -> None:
        self._buffer = bytearray()
        self._query_max = query_max
        self._skip = 0
        self._started = False

    def receive(self, data: bytes) -> tuple[bytes, list[bytes]]:
        """Take received bytes.

        Returns:
            What to send at once, and the queries that are complete, without their final NUL.

        Raises:
            HookWireError: close the connection.
        """
        if self._skip:
            skipped = min(self._skip, len(data))
            self._skip -= skipped
            if self._skip:
                return b"", []
            self._buffer += data[skipped:]
            reply, rest = self.receive(b"")
            return reply, [OVERSIZED, *rest]
        self._buffer += data
        reply = b""
        while not self._started:
            step = self._startup()
            if step is None:
                return reply, []
            reply += step
        queries: list[bytes] = []
        position = 0
        buffer = self._buffer
        while len(buffer) - position >= _HEADER.size:
            kind, length = _HEADER.unpack_from(buffer, position)
            if length < 4 or (length > self._query_max and kind != b"Q"):
                raise HookWireError(f"message of {length} bytes")
            end = position + 1 + length
            if length > self._query_max:
                self._skip = max(end - len(buffer), 0)
                del buffer[:end]
                if self._skip:
                    return reply, queries
                queries.append(OVERSIZED)
                position = 0
                continue
            if len(buffer) < end:
                break
            if kind == b"Q":
                with memoryview(buffer) as view:  # a slice of the buffer would be one copy more
                    queries.append(view[position + _HEADER.size : end - 1].tobytes())
            elif kind != b"X":
                raise HookWireError(f"message of type {kind!r}")
            position = end
        del buffer[:position]
        return reply, queries

    def _startup(self) -> bytes | None:
        """Consume one message of the start-up phase; None while it is incomplete."""
        buffer = self._buffer
        if len(buffer) < 8:
            return None
        (length,) = _INT32.unpack_from(buffer)
        if length < 8 or length > _STARTUP_MAX:
            raise HookWireError(f"start-up message of {length} bytes")
        if len(buffer) < length:
            return None
        (code,) = _INT32.unpack_from(buffer, 4)
        del buffer[:length]
        if code in (_SSL_REQUEST, _GSS_REQUEST):
            return b"N"
        if code >> 16 != _PROTOCOL_3 >> 16:
            raise HookWireError(f"protocol version {code >> 16}")
        self._started = True
        return _GREETING
