"""Queries above the limit are reported once and read past, however the bytes arrive."""

import struct

import pytest
from pgherd_sidecar.pg.hookwire import OVERSIZED, HookWire

_STARTUP = struct.pack("!II", 8, 3 << 16)


def _query(text: bytes) -> bytes:
    return b"Q" + struct.pack("!I", len(text) + 5) + text + b"\0"


@pytest.mark.parametrize("step", [1, 3, 7, 50, 1000])
def test_an_oversized_query_is_one_mark_and_the_rest_is_read(step: int) -> None:
    wire = HookWire(query_max=50)
    wire.receive(_STARTUP)
    data = _query(b"x" * 100) + _query(b"y") + _query(b"z" * 80) + _query(b"k")
    seen: list[bytes] = []
    for start in range(0, len(data), step):
        seen += wire.receive(data[start : start + step])[1]
    assert seen == [OVERSIZED, b"y", OVERSIZED, b"k"]
