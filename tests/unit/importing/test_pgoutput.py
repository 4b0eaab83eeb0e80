"""Messages of pgoutput, as a server of PostgreSQL 15 sent them and as its manual describes them."""

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pgherd_sidecar.importing.changes import pgoutput
from pgherd_sidecar.importing.changes.pgoutput import (
    Begin,
    Data,
    Delete,
    Emitted,
    Insert,
    Keepalive,
    ProtocolError,
    Relation,
    RelationColumn,
    SourceCommit,
    SourceOrigin,
    Truncate,
    Type,
    Update,
    decode,
    frame,
)
from pgherd_sidecar.tables.values import UNCHANGED, Row, Value

_2026 = 830_000_000_000_000
"""Microseconds since 2000."""


def text(value: str) -> bytes:
    return value.encode() + b"\0"


def number(width: int, value: int) -> bytes:
    return value.to_bytes(width, "big", signed=value < 0)


def row(*values: Value) -> bytes:
    found = number(2, len(values))
    for value in values:
        if isinstance(value, str):
            found += b"t" + number(4, len(value.encode())) + value.encode()
        else:
            found += b"n" if value is None else b"u"
    return found


class TestRecorded:
    """What PostgreSQL 15 sent for ``INSERT INTO t VALUES (1, 'a'), (2, NULL)``."""

    def test_begin(self) -> None:
        payload = bytes.fromhex("420000000001925ae8000303f8a13578f5000002d8")
        message = decode(payload)
        assert isinstance(message, Begin)
        assert (message.final_lsn, message.xid) == (0x1925AE8, 0x2D8)

    def test_relation(self) -> None:
        payload = "5200004002" + b"public\0t\0d".hex() + "0002" + "01" + b"id\0".hex()
        payload += "00000017ffffffff" + "00" + b"v\0".hex() + "00000019ffffffff"
        assert decode(bytes.fromhex(payload)) == Relation(
            0x4002,
            "public",
            "t",
            "d",
            (RelationColumn("id", 23, -1, True), RelationColumn("v", 25, -1, False)),
        )

    def test_rows(self) -> None:
        assert decode(bytes.fromhex("49000040024e0002740000000131740000000161")) == Insert(
            0x4002, ("1", "a")
        )
        assert decode(bytes.fromhex("49000040024e00027400000001326e")) == Insert(
            0x4002, ("2", None)
        )

    def test_commit(self) -> None:
        payload = "43000000000001925ae80000000001925b18000303f8a13578f5"
        message = decode(bytes.fromhex(payload))
        assert isinstance(message, SourceCommit)
        assert (message.lsn, message.end_lsn) == (0x1925AE8, 0x1925B18)


class TestEveryKind:
    def test_begin_tells_when_it_was_committed(self) -> None:
        payload = b"B" + number(8, 7) + number(8, _2026) + number(4, 99)
        assert decode(payload) == Begin(7, 946_684_800 + _2026 / 1e6, 99)

    def test_origin(self) -> None:
        assert decode(b"O" + number(8, 5) + text("elsewhere")) == SourceOrigin(5, "elsewhere")

    def test_type(self) -> None:
        assert decode(b"Y" + number(4, 17000) + text("shop") + text("mood")) == Type(
            17000, "shop", "mood"
        )

    def test_an_empty_schema_is_pg_catalog(self) -> None:
        message = decode(b"R" + number(4, 1) + text("") + text("t") + b"f" + number(2, 0))
        assert message == Relation(1, "pg_catalog", "t", "f", ())

    @pytest.mark.parametrize(
        ("before", "key", "old"),
        [
            (b"", None, None),
            (b"K" + row("1", None), ("1", None), None),
            (b"O" + row("1", "a"), None, ("1", "a")),
        ],
    )
    def test_update(self, before: bytes, key: Row | None, old: Row | None) -> None:
        payload = b"U" + number(4, 3) + before + b"N" + row("2", UNCHANGED)
        assert decode(payload) == Update(3, key, old, ("2", UNCHANGED))

    def test_delete(self) -> None:
        assert decode(b"D" + number(4, 3) + b"K" + row("1", None)) == Delete(3, ("1", None), None)
        assert decode(b"D" + number(4, 3) + b"O" + row("1", "")) == Delete(3, None, ("1", ""))

    @pytest.mark.parametrize("options", range(4))
    def test_truncate(self, options: int) -> None:
        payload = b"T" + number(4, 2) + number(1, options) + number(4, 8) + number(4, 9)
        assert decode(payload) == Truncate((8, 9), bool(options & 1), bool(options & 2))

    def test_message(self) -> None:
        payload = b"M\1" + number(8, 4) + text("who") + number(4, 3) + b"\0ab"
        assert decode(payload) == Emitted(True, 4, "who", b"\0ab")


class TestFrames:
    def test_data(self) -> None:
        data = b"w" + struct.pack("!QQq", 1, 2, _2026) + b"payload"
        assert frame(data) == Data(1, 2, b"payload")

    @pytest.mark.parametrize("reply", [False, True])
    def test_keepalive(self, reply: bool) -> None:
        assert frame(b"k" + struct.pack("!QqB", 9, _2026, reply)) == Keepalive(9, reply)

    def test_status_tells_what_has_come_and_what_is_safe(self) -> None:
        data = pgoutput.status(9, 5, 946_684_801.5, reply=True)
        assert data == b"r" + struct.pack("!QQQqB", 9, 5, 5, 1_500_000, 1)
        assert pgoutput.status(3, 5, 946_684_800, reply=False)[1:9] == number(8, 5)

    def test_an_unknown_frame_is_refused(self) -> None:
        for data in (b"", b"x", b"w123", b"k"):
            with pytest.raises(ProtocolError):
                frame(data)


MESSAGES = [
    b"B" + number(8, 7) + number(8, _2026) + number(4, 99),
    b"C\0" + number(8, 7) + number(8, 8) + number(8, _2026),
    b"O" + number(8, 5) + text("elsewhere"),
    b"R"
    + number(4, 1)
    + text("s")
    + text("t")
    + b"d"
    + number(2, 1)
    + b"\1"
    + text("c")
    + b"\0" * 8,
    b"Y" + number(4, 17000) + text("shop") + text("mood"),
    b"I" + number(4, 3) + b"N" + row("ä", None),
    b"U" + number(4, 3) + b"K" + row("1", None) + b"N" + row("2", UNCHANGED),
    b"D" + number(4, 3) + b"O" + row("1", ""),
    b"T" + number(4, 1) + b"\0" + number(4, 8),
    b"M\0" + number(8, 4) + text("who") + number(4, 1) + b"x",
]


@pytest.mark.parametrize("payload", MESSAGES, ids=lambda payload: chr(payload[0]))
def test_a_message_that_is_not_whole_is_refused(payload: bytes) -> None:
    decode(payload)
    for length in range(len(payload)):
        with pytest.raises(ProtocolError):
            decode(payload[:length])
    with pytest.raises(ProtocolError):
        decode(payload + b"\0")


@given(st.binary(max_size=60))
def test_other_bytes_are_refused_or_decoded(data: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        decode(data)


@given(st.integers(0, 2**64 - 1))
def test_positions_are_written_and_read(position: int) -> None:
    assert pgoutput.lsn(pgoutput.lsn_text(position)) == position


def test_a_position_is_written_as_postgresql_does() -> None:
    assert pgoutput.lsn_text(0x16B374D848) == "16/B374D848"
