"""The simple query protocol as dblink speaks it, cut into pieces at any byte."""

import struct
import tracemalloc

import pytest
from pgherd_sidecar.pg.hookwire import HookWire, HookWireError, command_complete, error_response

_STARTUP_BODY = struct.pack("!I", 3 << 16) + b"user\0pgherd\0\0"
STARTUP = struct.pack("!I", len(_STARTUP_BODY) + 4) + _STARTUP_BODY
SSL_REQUEST = struct.pack("!II", 8, 80877103)


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body


def started(query_max: int = 1000) -> HookWire:
    wire = HookWire(query_max)
    wire.receive(STARTUP)
    return wire


def test_start_up_is_answered_with_a_greeting_that_ends_ready() -> None:
    reply, queries = HookWire(1000).receive(STARTUP)
    assert reply.startswith(b"R")
    assert reply.endswith(b"Z\0\0\0\x05I")
    assert queries == []


def test_encryption_is_refused_and_the_connection_goes_on() -> None:
    wire = HookWire(1000)
    assert wire.receive(SSL_REQUEST) == (b"N", [])
    assert wire.receive(STARTUP)[0].startswith(b"R")


def test_queries_arrive_whole_however_the_bytes_are_cut() -> None:
    stream = STARTUP + message(b"Q", b"W one\0") + message(b"Q", b"R two\0")
    for size in (1, 2, 3, 7, len(stream)):
        wire = HookWire(1000)
        found: list[bytes] = []
        for start in range(0, len(stream), size):
            found += wire.receive(stream[start : start + size])[1]
        assert found == [b"W one", b"R two"]


def test_a_large_query_is_in_memory_twice_at_most() -> None:
    size = 4 << 20
    wire, sent = started(2 * size), message(b"Q", b"a" * size + b"\0")
    parts = sent[:-2], sent[-2:]
    tracemalloc.start()
    try:
        assert wire.receive(parts[0])[1] == []
        (query,) = wire.receive(parts[1])[1]
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(query) == size
    assert most < 2.5 * size


def test_a_query_may_hold_newlines_and_any_byte_but_its_end() -> None:
    query = bytes(range(1, 256)) + b"\n\n"
    assert started().receive(message(b"Q", query + b"\0"))[1] == [query]


@pytest.mark.parametrize(
    "bad",
    [
        message(b"P", b"parse\0"),
        b"Q" + struct.pack("!I", 3),
    ],
    ids=["another message", "length below its own"],
)
def test_what_is_not_understood_closes_the_connection(bad: bytes) -> None:
    with pytest.raises(HookWireError):
        started().receive(bad)


def test_another_protocol_version_closes_the_connection() -> None:
    with pytest.raises(HookWireError):
        HookWire(1000).receive(struct.pack("!II", 8, 2 << 16))


def test_a_goodbye_is_no_query() -> None:
    assert started().receive(message(b"X", b"")) == (b"", [])


def test_success_carries_its_tag_and_ends_ready() -> None:
    assert command_complete(b"C 7 6 N") == message(b"C", b"C 7 6 N\0") + b"Z\0\0\0\x05I"


def test_an_error_carries_code_message_detail_and_hint_without_empty_fields() -> None:
    reply = error_response("40001", "lost", "to GID 7", "")
    assert b"C40001\0" in reply
    assert b"Mlost\0" in reply
    assert b"Dto GID 7\0" in reply
    assert b"\0H" not in reply
