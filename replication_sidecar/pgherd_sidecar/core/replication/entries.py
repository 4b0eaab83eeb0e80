"""Log entries: what the opaque data of an ordered block means (wire format, version 1).

A block's data is a run of entries, each length-prefixed, so it can be walked without an index;
the entry's position in the log is its GID. ``docs/writeset-format.md`` is the specification and
its worked example is checked against this module.

The module only translates between bytes and values. It looks neither into the certification keys
of a writeset (``certifier`` does) nor into its body (``merge`` does): at the origin both are bytes
that PostgreSQL made, and no Python work is spent on each key or row.

Called by the agent, at the origin to encode and on every member to walk delivered blocks. Keeps
no state; what it encodes survives restarts as part of the ordered log, hence the version byte in
each entry: a member that meets a version, kind or flag it does not know must stop, since guessing
would make it differ from the others (C26).
"""

import struct
import sys
from array import array
from collections.abc import Iterator
from enum import IntEnum
from itertools import pairwise
from typing import assert_never

import msgspec

VERSION = 1
FLAG_DDL = 1
"""The writeset holds DDL: it is executed alone, never merged with others."""
FLAG_PIECES = 2
"""Keys and rows of the writeset are in PIECE entries before it; its body is a `PiecesBody`."""
FLAG_FINGERPRINT = 4
"""The last item of the body is a fingerprint (``merge.FINGERPRINT``)."""
PIECE_KEYS = 1
"""The piece holds keys; without it, rows."""
PIECE_MORE = 2
"""The items of the piece go on in the next one."""
PIECE_LAST = 4
"""Nothing more will come, and no writeset: the origin has given the transaction up."""

_KNOWN_FLAGS = FLAG_DDL | FLAG_PIECES | FLAG_FINGERPRINT
_KNOWN_PIECE_FLAGS = PIECE_KEYS | PIECE_MORE | PIECE_LAST
_HEADER = struct.Struct(">IBBH")  # length of the whole entry, kind, version, flags
_WRITESET = struct.Struct(">HIqqqI")  # member, incarnation, sequence, low water, xid, keys' length
_PIECE = struct.Struct(">HIqI")  # member, incarnation, serial, number
_INCARNATION = struct.Struct(">HI")
_PUBLISH = struct.Struct(">Hq")
_INTENTION = struct.Struct(">HIq")  # member, incarnation, xid
_DATABASE = struct.Struct(">HBBqqqI")  # member, condition, flags, after, gid, at, within
_SKIP = struct.Struct(">q")
CAUSE_BYTES = 64
"""A cause of divergence takes no more, in UTF-8."""
STATE_PAUSE = 1
"""Its member is configured to have an administrator decide."""
STATE_ASKED = 2
"""An administrator has asked for this rebuild."""
STATE_STOPPED = 4
"""The database is still as it was before the entry that it could not apply."""
_KNOWN_STATE_FLAGS = STATE_PAUSE | STATE_ASKED | STATE_STOPPED
_MARKER_ID_BYTES = 16
_NAMES_END = "\0"


class EntryFormatError(ValueError):
    """The bytes are no entry of a version, kind and shape that this member understands."""


class EntryKind(IntEnum):
    """What an entry is about; the number is on the wire and is never given to another kind."""

    NOOP = 0
    WRITESET = 1
    INCARNATION = 2
    PUBLISH = 3
    MARKER = 4
    MEMBERS = 5
    PIECE = 6
    INTENTION = 7
    DATABASE = 8
    SKIP = 9


class Condition(IntEnum):
    """What a member says of its database; the number is on the wire and in checkpoints."""

    #: it has applied what was acknowledged, or can
    WHOLE = 0
    #: it could not apply an entry, and is as it was before that
    DIVERGED = 1
    #: it is being replaced by a copy of another one
    REBUILDING = 2
    #: it is not, and will not be until an administrator says so
    FAILED = 3


class Noop(msgspec.Struct, frozen=True):
    """The first entry of a new term: carries nothing, lets older terms' entries commit."""


class Writeset(msgspec.Struct, frozen=True, gc=False):
    """Everything one transaction changed, to be certified and applied at its GID.

    Attributes:
        member: number of the origin member, from 1.
        incarnation: which start of the origin's server the transaction ran in.
        sequence: number of the writeset within the incarnation, from 1.
        low_water: oldest sequence of this incarnation that the origin has not resolved yet; it
            will never send a lower one again.
        xid: the transaction's 64-bit xid on its origin.
        flags: ``FLAG_DDL``, ``FLAG_PIECES`` or 0.
        keys: certification keys, big-endian int64 groups ``base, n, key1 .. keyn``.
        body: the changed rows as JSON.
    """

    member: int
    incarnation: int
    sequence: int
    low_water: int
    xid: int
    flags: int
    keys: bytes
    body: bytes


class Piece(msgspec.Struct, frozen=True, gc=False):
    """A part of a transaction that is too large for one writeset, which follows its pieces.

    Attributes:
        member: number of the origin member.
        incarnation: as in a writeset.
        serial: which transaction in pieces of this incarnation, from 1.
        number: which piece, from 0; pieces of keys come before those of rows.
        flags: ``PIECE_KEYS``, ``PIECE_MORE``, ``PIECE_LAST`` or 0.
        data: keys, or items as in the body of a writeset.
    """

    member: int
    incarnation: int
    serial: int
    number: int
    flags: int
    data: bytes


class PiecesBody(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The body, in JSON, of a writeset whose rows came in pieces.

    Attributes:
        serial: of the pieces.
        pieces: how many there are.
        tables: whose rows they hold.
    """

    serial: int
    pieces: int
    tables: tuple[str, ...]


class Incarnation(msgspec.Struct, frozen=True, gc=False):
    """A member's server started anew: nothing of its older incarnations commits after this."""

    member: int
    incarnation: int


class Publish(msgspec.Struct, frozen=True, gc=False):
    """A member says that none of its running transactions has a base GID below ``base``."""

    member: int
    base: int


class Marker(msgspec.Struct, frozen=True, gc=False):
    """A point in the total order at which members export a snapshot.

    Attributes:
        id: 16 bytes.
        names: of the members that are to do so; all if there is none.
    """

    id: bytes
    names: tuple[str, ...] = ()


class Members(msgspec.Struct, frozen=True, gc=False):
    """Who may be an origin from here on: a change of the log's membership, as it is delivered.

    Attributes:
        numbers: of the members that have a database, ascending.
    """

    numbers: tuple[int, ...]


class Intention(msgspec.Struct, frozen=True, gc=False):
    """A transaction is going to take these keys: who takes them before it aborts (``intentions``).

    Attributes:
        member: number of the origin member.
        incarnation: as in a writeset.
        xid: the transaction's 64-bit xid on its origin.
        keys: certification keys, big-endian int64; none: the intention is withdrawn.
    """

    member: int
    incarnation: int
    xid: int
    keys: bytes = b""


class DatabaseState(msgspec.Struct, frozen=True, gc=False):
    """A member says what has become of its database (see ``databases``).

    Attributes:
        member: number of the member whose database it is.
        condition: what it is.
        after: position of the entry that said last what it was, 0 if none did; it says nothing
            unless that is so when it is delivered.
        gid: the entry that could not be applied, 0 if there is none.
        at_s: when, in seconds since the epoch, by the member's clock.
        within_s: for so long the same cause counts as one that comes again.
        flags: ``STATE_PAUSE``, ``STATE_ASKED``, ``STATE_STOPPED`` or 0.
        cause: why, in a few words that are the same wherever it is the same, without values.
    """

    member: int
    condition: Condition
    after: int
    gid: int = 0
    at_s: int = 0
    within_s: int = 0
    flags: int = 0
    cause: str = ""


class Skip(msgspec.Struct, frozen=True, gc=False):
    """An administrator has an entry count as having no effect, since some can't apply it."""

    gid: int


Entry = (
    Noop
    | Writeset
    | Piece
    | Incarnation
    | Publish
    | Marker
    | Members
    | Intention
    | DatabaseState
    | Skip
)


def encode_entry(entry: Entry) -> bytes:
    """Encode one entry.

    Args:
        entry: the entry; numbers are non-negative and fit their fields.

    Raises:
        EntryFormatError: a value does not fit the format.
    """
    flags = 0
    try:
        match entry:
            case Writeset():
                kind, flags, payload = EntryKind.WRITESET, entry.flags, _writeset_payload(entry)
            case Piece():
                kind, flags, payload = EntryKind.PIECE, entry.flags, _piece_payload(entry)
            case Noop():
                kind, payload = EntryKind.NOOP, b""
            case Incarnation():
                kind = EntryKind.INCARNATION
                payload = _INCARNATION.pack(entry.member, entry.incarnation)
            case Publish():
                _require(entry.base >= 0, "negative base GID")
                kind, payload = EntryKind.PUBLISH, _PUBLISH.pack(entry.member, entry.base)
            case Marker():
                kind, payload = EntryKind.MARKER, _marker_payload(entry)
            case Members():
                kind, payload = EntryKind.MEMBERS, _members_payload(entry.numbers)
            case Intention():
                kind, payload = EntryKind.INTENTION, _intention_payload(entry)
            case DatabaseState():
                kind, payload = EntryKind.DATABASE, _database_payload(entry)
            case Skip():
                _require(entry.gid > 0, "GIDs begin with 1")
                kind, payload = EntryKind.SKIP, _SKIP.pack(entry.gid)
            case _:
                assert_never(entry)
        return _HEADER.pack(_HEADER.size + len(payload), kind, VERSION, flags) + payload
    except struct.error as error:
        raise EntryFormatError(f"{type(entry).__name__}: a number does not fit: {error}") from None


def iter_entries(data: bytes) -> Iterator[Entry]:
    """Walk the entries of a block's data in log order.

    Args:
        data: concatenated entries, as made by ``encode_entry``.

    Raises:
        EntryFormatError: the data is malformed, or newer than this member understands.
    """
    position, end = 0, len(data)
    while position < end:
        try:
            length, kind, version, flags = _HEADER.unpack_from(data, position)
        except struct.error:
            raise EntryFormatError(f"offset {position}: header cut off") from None
        next_position = position + length
        if length < _HEADER.size or next_position > end:
            raise EntryFormatError(f"offset {position}: length {length} does not fit the block")
        if version != VERSION:
            raise EntryFormatError(f"entry version {version}, this member reads {VERSION}")
        payload_position = position + _HEADER.size
        if kind == EntryKind.WRITESET:
            yield _read_writeset(data, payload_position, next_position, flags)
        elif kind == EntryKind.PIECE:
            yield _read_piece(data, payload_position, next_position, flags)
        else:
            _require(flags == 0, f"flags {flags:#x} unknown to kind {kind}")
            yield _read_small(kind, data[payload_position:next_position])
        position = next_position


def pieces_body(body: bytes) -> PiecesBody:
    """Decode the body of a writeset with ``FLAG_PIECES``.

    Raises:
        EntryFormatError: it is none.
    """
    try:
        return msgspec.json.decode(body, type=PiecesBody)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise EntryFormatError(f"body of a writeset in pieces: {error}") from None


def key_array(keys: bytes) -> "array[int]":
    """Turn a writeset's key bytes into native integers (still groups ``base, n, key1 .. keyn``).

    Raises:
        EntryFormatError: the length is not a multiple of eight.
    """
    try:
        numbers = array("q", keys)
    except ValueError:
        raise EntryFormatError("keys are not a stream of int64") from None
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers


def _writeset_payload(writeset: Writeset) -> bytes:
    _require(writeset.flags & ~_KNOWN_FLAGS == 0, f"flags {writeset.flags:#x} unknown")
    _require(len(writeset.keys) % 8 == 0, "keys are not a stream of int64")
    _require(
        min(writeset.sequence, writeset.low_water, writeset.xid) >= 0,
        "negative sequence, low water mark or xid",
    )
    head = _WRITESET.pack(
        writeset.member,
        writeset.incarnation,
        writeset.sequence,
        writeset.low_water,
        writeset.xid,
        len(writeset.keys),
    )
    return head + writeset.keys + writeset.body


def _read_writeset(data: bytes, start: int, end: int, flags: int) -> Writeset:
    keys_start = start + _WRITESET.size
    if keys_start > end:
        raise EntryFormatError(f"offset {start}: writeset cut off")
    member, incarnation, sequence, low_water, xid, keys_bytes = _WRITESET.unpack_from(data, start)
    keys_end = keys_start + keys_bytes
    if keys_end > end or keys_bytes & 7:
        raise EntryFormatError(f"offset {start}: {keys_bytes} bytes of keys do not fit")
    if flags & ~_KNOWN_FLAGS or sequence < 0 or low_water < 0 or xid < 0:
        raise EntryFormatError(f"offset {start}: writeset with values out of range")
    keys, body = data[keys_start:keys_end], data[keys_end:end]
    return Writeset(member, incarnation, sequence, low_water, xid, flags, keys, body)


def _piece_payload(piece: Piece) -> bytes:
    _require(piece.flags & ~_KNOWN_PIECE_FLAGS == 0, f"flags {piece.flags:#x} unknown")
    _require(piece.serial > 0, "serials begin with 1")
    return _PIECE.pack(piece.member, piece.incarnation, piece.serial, piece.number) + piece.data


def _read_piece(data: bytes, start: int, end: int, flags: int) -> Piece:
    first = start + _PIECE.size
    if first > end or flags & ~_KNOWN_PIECE_FLAGS:
        raise EntryFormatError(f"offset {start}: piece cut off, or flags {flags:#x} unknown")
    member, incarnation, serial, number = _PIECE.unpack_from(data, start)
    _require(serial > 0, "serials begin with 1")
    return Piece(member, incarnation, serial, number, flags, data[first:end])


def _members_payload(numbers: tuple[int, ...]) -> bytes:
    _require(_ascending(numbers), "numbers of members are not ascending")
    return struct.pack(f">{len(numbers)}H", *numbers)


def _read_members(payload: bytes) -> tuple[int, ...]:
    numbers: tuple[int, ...] = struct.unpack(f">{len(payload) // 2}H", payload)
    _require(_ascending(numbers), "numbers of members are not ascending")
    return numbers


def _intention_payload(entry: Intention) -> bytes:
    _require(entry.xid >= 0, "negative xid")
    _require(len(entry.keys) % 8 == 0, "keys are not a stream of int64")
    return _INTENTION.pack(entry.member, entry.incarnation, entry.xid) + entry.keys


def _read_intention(payload: bytes) -> Intention:
    member, incarnation, xid = _INTENTION.unpack_from(payload)
    _require(xid >= 0, "negative xid")
    keys = payload[_INTENTION.size :]
    _require(len(keys) % 8 == 0, "keys are not a stream of int64")
    return Intention(member, incarnation, xid, keys)


def _ascending(numbers: tuple[int, ...]) -> bool:
    return all(before < after for before, after in pairwise((0, *numbers)))


def _read_small(kind: int, payload: bytes) -> Entry:  # noqa: PLR0911 - one for each kind
    try:
        match kind:
            case EntryKind.NOOP:
                _require(not payload, "a no-op carries nothing")
                return Noop()
            case EntryKind.INCARNATION:
                return Incarnation(*_INCARNATION.unpack(payload))
            case EntryKind.PUBLISH:
                member, base = _PUBLISH.unpack(payload)
                _require(base >= 0, "negative base GID")
                return Publish(member, base)
            case EntryKind.MARKER:
                return _read_marker(payload)
            case EntryKind.MEMBERS:
                return Members(_read_members(payload))
            case EntryKind.INTENTION:
                return _read_intention(payload)
            case EntryKind.DATABASE:
                return _read_database(payload)
            case EntryKind.SKIP:
                (gid,) = _SKIP.unpack(payload)
                _require(gid > 0, "GIDs begin with 1")
                return Skip(gid)
            case _:
                raise EntryFormatError(f"entry kind {kind} unknown to version {VERSION}")
    except struct.error:
        raise EntryFormatError(f"{EntryKind(kind).name}: wrong length") from None


def _marker_payload(marker: Marker) -> bytes:
    _require(len(marker.id) == _MARKER_ID_BYTES, "a marker's id has 16 bytes")
    names = _NAMES_END.join(marker.names)
    _require(tuple(filter(None, names.split(_NAMES_END))) == marker.names, "not names of members")
    return marker.id + names.encode()


def _read_marker(payload: bytes) -> Marker:
    _require(len(payload) >= _MARKER_ID_BYTES, "a marker's id has 16 bytes")
    try:
        names = payload[_MARKER_ID_BYTES:].decode()
    except UnicodeDecodeError as error:
        raise EntryFormatError(f"names in a marker: {error}") from None
    return Marker(payload[:_MARKER_ID_BYTES], tuple(filter(None, names.split(_NAMES_END))))


def _database_payload(state: DatabaseState) -> bytes:
    _require(state.flags & ~_KNOWN_STATE_FLAGS == 0, f"flags {state.flags:#x} unknown")
    _require(min(state.after, state.gid, state.at_s) >= 0, "negative position or time")
    cause = state.cause.encode()
    _require(len(cause) <= CAUSE_BYTES, f"a cause takes at most {CAUSE_BYTES} bytes")
    _require(b"\0" not in cause, "a cause with a zero byte")
    head = _DATABASE.pack(
        state.member,
        state.condition,
        state.flags,
        state.after,
        state.gid,
        state.at_s,
        state.within_s,
    )
    return head + cause


def _read_database(payload: bytes) -> DatabaseState:
    head, cause = payload[: _DATABASE.size], payload[_DATABASE.size :]
    member, condition, flags, after, gid, at_s, within_s = _DATABASE.unpack(head)
    known = flags & ~_KNOWN_STATE_FLAGS == 0 and condition in Condition._value2member_map_
    _require(known, f"condition {condition} or flags {flags:#x} unknown")
    _require(min(after, gid, at_s) >= 0, "negative position or time")
    _require(len(cause) <= CAUSE_BYTES and b"\0" not in cause, "not a cause")
    try:
        text = cause.decode()
    except UnicodeDecodeError as error:
        raise EntryFormatError(f"cause: {error}") from None
    return DatabaseState(member, Condition(condition), after, gid, at_s, within_s, flags, text)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise EntryFormatError(message)
