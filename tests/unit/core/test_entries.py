"""Wire format of log entries: round trips, refusal of garbage, stability between versions."""

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pgherd_sidecar.core.replication.entries import (
    CAUSE_BYTES,
    FLAG_DDL,
    FLAG_FINGERPRINT,
    Condition,
    DatabaseState,
    Entry,
    EntryFormatError,
    Incarnation,
    Intention,
    Marker,
    Members,
    Noop,
    Publish,
    Skip,
    Writeset,
    encode_entry,
    iter_entries,
    key_array,
)
from writeset_strategies import groups, wire

_U16 = st.integers(0, 2**16 - 1)
_U32 = st.integers(0, 2**32 - 1)
_U63 = st.integers(0, 2**63 - 1)
_key_bytes = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=9).map(
    lambda k: wire(groups((0, k)))
)
_entries: st.SearchStrategy[Entry] = st.one_of(
    st.just(Noop()),
    st.builds(Incarnation, _U16, _U32),
    st.builds(Publish, _U16, _U63),
    st.builds(Intention, _U16, _U32, _U63, _key_bytes),
    st.builds(
        Marker,
        st.binary(min_size=16, max_size=16),
        st.lists(st.sampled_from(["n1", "n2", "ñ"]), max_size=3).map(tuple),
    ),
    st.builds(Members, st.sets(st.integers(1, 1023), max_size=9).map(lambda n: tuple(sorted(n)))),
    st.builds(Skip, st.integers(1, 2**63 - 1)),
    st.builds(
        DatabaseState,
        _U16,
        st.sampled_from(Condition),
        _U63,
        _U63,
        _U63,
        _U32,
        st.integers(0, 7),
        st.sampled_from(["", "P0001 in rows", "ñ" * (CAUSE_BYTES // 2)]),
    ),
    st.builds(
        Writeset,
        _U16,
        _U32,
        _U63,
        _U63,
        _U63,
        st.sampled_from([0, FLAG_DDL, FLAG_FINGERPRINT, FLAG_DDL | FLAG_FINGERPRINT]),
        _key_bytes,
        st.binary(max_size=50),
    ),
)


@given(st.lists(_entries, max_size=6))
def test_entries_survive_the_wire(entries: list[Entry]) -> None:
    data = b"".join(map(encode_entry, entries))
    assert list(iter_entries(data)) == entries


@given(st.lists(_entries, min_size=1, max_size=3), st.data())
def test_cut_off_data_is_refused_except_between_entries(
    entries: list[Entry], data: st.DataObject
) -> None:
    encoded = [encode_entry(entry) for entry in entries]
    blob = b"".join(encoded)
    boundaries = {sum(map(len, encoded[:n])) for n in range(len(encoded) + 1)}
    cut = data.draw(st.integers(0, len(blob)))
    if cut in boundaries:
        assert list(iter_entries(blob[:cut])) == entries[: len(list(iter_entries(blob[:cut])))]
    else:
        with pytest.raises(EntryFormatError):
            list(iter_entries(blob[:cut]))


@given(st.binary(max_size=80))
def test_garbage_raises_the_format_error_only(data: bytes) -> None:
    with contextlib.suppress(EntryFormatError):
        list(iter_entries(data))


@given(_entries, st.data())
def test_flipped_bytes_raise_the_format_error_only(entry: Entry, data: st.DataObject) -> None:
    blob = bytearray(encode_entry(entry))
    position = data.draw(st.integers(0, len(blob) - 1))
    blob[position] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(EntryFormatError):
        list(iter_entries(bytes(blob)))


@pytest.mark.parametrize(
    "header",
    [
        pytest.param((8, 0, 2, 0), id="newer version"),
        pytest.param((8, 250, 1, 0), id="unknown kind"),
        pytest.param((8, 0, 1, 1), id="flags of a kind that has none"),
        pytest.param((50, 1, 1, 0x8000), id="unknown writeset flag"),
    ],
)
def test_c26_a_member_refuses_what_it_does_not_know(header: tuple[int, int, int, int]) -> None:
    data = struct.pack(">IBBH", *header).ljust(header[0], b"\0")
    with pytest.raises(EntryFormatError):
        list(iter_entries(data))


def test_c26_version_1_stays_as_it_was_written() -> None:
    writeset = Writeset(2, 3, 4, 5, 6, FLAG_DDL, wire(groups((7, [-8]))), b"[]")
    assert encode_entry(writeset) == bytes.fromhex(
        "00000044 01 01 0001"
        "0002 00000003 0000000000000004 0000000000000005 0000000000000006 00000018"
        "0000000000000007 0000000000000001 fffffffffffffff8"
        "5b5d"
    )


@pytest.mark.parametrize(
    "entry",
    [
        Marker(b"short"),
        Marker(bytes(16), ("",)),
        Marker(bytes(16), ("n\0",)),
        Publish(1, -1),
        Publish(70_000, 1),
        Incarnation(1, 2**32),
        Writeset(1, 1, -1, 1, 1, 0, b"", b""),
        Writeset(1, 1, 1, 1, 1, 8, b"", b""),
        Writeset(1, 1, 1, 1, 1, 0, b"1234567", b""),
    ],
)
def test_values_that_do_not_fit_are_not_encoded(entry: Entry) -> None:
    with pytest.raises(EntryFormatError):
        encode_entry(entry)


def test_key_bytes_must_be_whole_numbers() -> None:
    with pytest.raises(EntryFormatError):
        key_array(b"123456789")
