"""Decodes what the plugin ``pgoutput`` says, in version 1 of its protocol, and frames around it.

Version 1 is what all servers from 10 on speak: transactions come whole, after their commit, in the
order of their commits. The formats are those of PostgreSQL's manual, "Logical Replication Message
Formats" and "Streaming Replication Protocol".

Pure; keeps nothing.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from pgherd_sidecar.tables.values import UNCHANGED, Row, Value

_XLOG: Final = struct.Struct("!QQq")
_KEEPALIVE: Final = struct.Struct("!QqB")
_STATUS: Final = struct.Struct("!cQQQqB")
_EPOCH_S: Final = 946_684_800
"""2000-01-01, from which PostgreSQL counts."""


class ProtocolError(Exception):
    """The bytes are not what the protocol says."""


class Data(NamedTuple):
    """A frame that holds a message; ``end`` is the server's end of WAL."""

    start: int
    end: int
    payload: bytes


class Keepalive(NamedTuple):
    """All before ``end`` has been sent."""

    end: int
    reply: bool


@dataclass(frozen=True, slots=True)
class Begin:
    """A transaction; its commit's record begins at ``final_lsn``."""

    final_lsn: int
    committed_s: float
    xid: int


@dataclass(frozen=True, slots=True)
class SourceCommit:
    """The end of it: the record begins at ``lsn`` and ends before ``end_lsn``."""

    lsn: int
    end_lsn: int
    committed_s: float


@dataclass(frozen=True, slots=True)
class SourceOrigin:
    """It was replicated to the source from elsewhere."""

    lsn: int
    name: str


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A column that is replicated."""

    name: str
    type: int
    modifier: int
    key: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """What a table is like from here on."""

    relid: int
    schema: str
    name: str
    identity: str
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True, slots=True)
class Type:
    """A type that is not built in."""

    oid: int
    schema: str
    name: str


@dataclass(frozen=True, slots=True)
class Insert:
    """A new row."""

    relid: int
    new: Row


@dataclass(frozen=True, slots=True)
class Update:
    """A changed row.

    Attributes:
        key: its old key, the other columns None, where the key was changed or may have been.
        old: the whole row as it was, of tables with REPLICA IDENTITY FULL.
    """

    relid: int
    key: Row | None
    old: Row | None
    new: Row


@dataclass(frozen=True, slots=True)
class Delete:
    """A row that is gone: ``key`` or ``old`` as of ``Update``."""

    relid: int
    key: Row | None
    old: Row | None


@dataclass(frozen=True, slots=True)
class Truncate:
    """Tables that were emptied together."""

    relids: tuple[int, ...]
    cascade: bool
    restart_identity: bool


@dataclass(frozen=True, slots=True)
class Emitted:
    """What somebody has said with ``pg_logical_emit_message``."""

    transactional: bool
    lsn: int
    prefix: str
    content: bytes


Message = (
    Begin
    | SourceCommit
    | SourceOrigin
    | Relation
    | Type
    | Insert
    | Update
    | Delete
    | Truncate
    | Emitted
)  # fmt: skip


def frame(data: bytes) -> Data | Keepalive:
    """Decode what a walsender sends as copy data.

    Raises:
        ProtocolError: it is neither of the two.
    """
    try:
        if data[:1] == b"w":
            start, end, _ = _XLOG.unpack_from(data, 1)
            return Data(start, end, data[1 + _XLOG.size :])
        if data[:1] == b"k":
            end, _, reply = _KEEPALIVE.unpack_from(data, 1)
            return Keepalive(end, bool(reply))
    except struct.error as error:
        raise ProtocolError(f"a frame of {len(data)} bytes: {error}") from error
    raise ProtocolError(f"an unknown frame {data[:1]!r}")


def status(received: int, applied: int, now_s: float, *, reply: bool) -> bytes:
    """What the walsender is told: how much has come, and that all before ``applied`` is safe."""
    moment = int((now_s - _EPOCH_S) * 1e6)
    return _STATUS.pack(b"r", max(received, applied), applied, applied, moment, reply)


def decode(payload: bytes) -> Message:
    """Decode a message.

    Raises:
        ProtocolError: it is not one of the protocol, or not whole.
    """
    reader = _ByteReader(payload)
    kind = chr(reader.byte())
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise ProtocolError(f"an unknown message {kind!r}")
    message: Message = decoder(reader)
    reader.must_end()
    return message


class _ByteReader:
    """Reads a message from its beginning to its end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, length: int) -> bytes:
        found = self._data[self._at : self._at + length]
        if length < 0 or len(found) != length:
            raise ProtocolError(f"{length} bytes are missing at {self._at}")
        self._at += length
        return found

    def byte(self) -> int:
        return self.take(1)[0]

    def number(self, width: int, *, signed: bool = False) -> int:
        return int.from_bytes(self.take(width), "big", signed=signed)

    def moment(self) -> float:
        return self.number(8, signed=True) / 1e6 + _EPOCH_S

    def text(self) -> str:
        end = self._data.find(b"\0", self._at)
        if end < 0:
            raise ProtocolError("a text without an end")
        found = self.take(end - self._at)
        self._at += 1
        return _text(found)

    def row(self) -> Row:
        return tuple(self._value() for _ in range(self.number(2)))

    def _value(self) -> Value:
        kind = self.byte()
        if kind == ord("t"):
            return _text(self.take(self.number(4)))
        if kind == ord("n"):
            return None
        if kind == ord("u"):
            return UNCHANGED
        raise ProtocolError(f"an unknown kind of value {chr(kind)!r}")

    def must_end(self) -> None:
        if self._at != len(self._data):
            raise ProtocolError(f"{len(self._data) - self._at} bytes too many")


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError("a text that is not UTF-8") from error


def _begin(reader: _ByteReader) -> Begin:
    return Begin(reader.number(8), reader.moment(), reader.number(4))


def _commit(reader: _ByteReader) -> SourceCommit:
    reader.byte()  # flags, none is in use
    return SourceCommit(reader.number(8), reader.number(8), reader.moment())


def _origin(reader: _ByteReader) -> SourceOrigin:
    return SourceOrigin(reader.number(8), reader.text())


def _relation(reader: _ByteReader) -> Relation:
    relid, schema, name = reader.number(4), reader.text() or "pg_catalog", reader.text()
    identity = chr(reader.byte())
    columns = []
    for _ in range(reader.number(2)):
        key = bool(reader.byte() & 1)
        column = reader.text(), reader.number(4), reader.number(4, signed=True)
        columns.append(RelationColumn(*column, key))
    return Relation(relid, schema, name, identity, tuple(columns))


def _type(reader: _ByteReader) -> Type:
    return Type(reader.number(4), reader.text() or "pg_catalog", reader.text())


def _insert(reader: _ByteReader) -> Insert:
    relid = reader.number(4)
    _expect(reader, "N")
    return Insert(relid, reader.row())


def _update(reader: _ByteReader) -> Update:
    relid = reader.number(4)
    kind = chr(reader.byte())
    key = reader.row() if kind == "K" else None
    old = reader.row() if kind == "O" else None
    if kind in "KO":
        kind = chr(reader.byte())
    if kind != "N":
        raise ProtocolError(f"an UPDATE with a row {kind!r}")
    return Update(relid, key, old, reader.row())


def _delete(reader: _ByteReader) -> Delete:
    relid = reader.number(4)
    kind = chr(reader.byte())
    if kind not in "KO":
        raise ProtocolError(f"a DELETE with a row {kind!r}")
    row = reader.row()
    return Delete(relid, row if kind == "K" else None, row if kind == "O" else None)


def _truncate(reader: _ByteReader) -> Truncate:
    count, options = reader.number(4), reader.byte()
    relids: Sequence[int] = [reader.number(4) for _ in range(count)]
    return Truncate(tuple(relids), bool(options & 1), bool(options & 2))


def _emitted(reader: _ByteReader) -> Emitted:
    transactional, lsn, prefix = bool(reader.byte() & 1), reader.number(8), reader.text()
    return Emitted(transactional, lsn, prefix, reader.take(reader.number(4)))


def _expect(reader: _ByteReader, kind: str) -> None:
    found = chr(reader.byte())
    if found != kind:
        raise ProtocolError(f"a row {found!r} in place of {kind!r}")


_DECODERS: Final[Mapping[str, Callable[[_ByteReader], Message]]] = {
    "B": _begin, "C": _commit, "O": _origin, "R": _relation, "Y": _type, "I": _insert,
    "U": _update, "D": _delete, "T": _truncate, "M": _emitted,
}  # fmt: skip


def lsn(text: str) -> int:
    """A position as a number, of one like ``16/B374D848``.

    Raises:
        ValueError: it is none.
    """
    high, low = text.split("/")
    return int(high, 16) << 32 | int(low, 16)


def lsn_text(number: int) -> str:
    """A position as PostgreSQL writes it."""
    return f"{number >> 32:X}/{number & 0xFFFFFFFF:X}"
