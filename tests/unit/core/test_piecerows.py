"""What a piece writes is what merging its decoded rows gives."""

import json
from array import array
from unittest import mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pgherd_sidecar.core.replication import piecerows
from pgherd_sidecar.core.replication.entries import EntryFormatError
from pgherd_sidecar.core.replication.merge import Statement, decode_body, merge_writesets
from pgherd_sidecar.core.replication.piecerows import plan_piece
from pgherd_sidecar.core.replication.recordtext import join_record
from test_merge_images import NoIdentity
from writeset_strategies import texts

VALUES = st.none() | st.text('a,()\\/\n\r\t\b\f\x01 "Ié\U0001f40f', max_size=8)
PREFIXES = st.sampled_from(["I", "D", "E", "U01", "U11", "R", "T"])


@st.composite
def items(draw: st.DrawFn) -> list[tuple[str, list[int], list[str]]]:
    """Rows of a piece; no two are of one row."""
    made = []
    for number in range(draw(st.integers(0, 2))):
        records = []
        for prefix in draw(st.lists(PREFIXES, min_size=1, max_size=6)):
            row = "" if prefix == "T" else join_record(draw(st.tuples(VALUES, VALUES)))
            records.append(prefix + row)
        keys = [100 * number + place for place in range(len(records))]
        made.append((("s.t", '"é"."\n"')[number], keys, records))
    return made


def decoded(data: bytes) -> list[Statement]:
    """The statements of a piece by way of text."""
    plan = merge_writesets([(array("q"), decode_body(data))], NoIdentity())
    return [statement for wave in plan.waves for statement in wave.statements]


def in_text(data: bytes) -> list[Statement]:
    """The statements of a piece, made readable."""
    (wave,) = plan_piece(data).waves
    return [msgspec.structs.replace(one, records=texts(one)) for one in wave.statements]


@given(items(), st.booleans(), st.sampled_from([0, 1 << 20]))
def test_a_piece_writes_what_its_decoded_rows_do(
    rows: list[tuple[str, list[int], list[str]]], ascii_only: bool, small: int
) -> None:
    data = json.dumps(rows, ensure_ascii=ascii_only).encode()
    with mock.patch.object(piecerows, "_SMALL", small):
        assert in_text(data) == decoded(data)


def test_lines_are_inserts() -> None:
    data = '"t",2\nI(1,"\n\\\\é")\nI(2,)'.encode()
    assert in_text(data) == decoded(data)


@pytest.mark.parametrize(
    "data",
    [
        b'[["t",[1],["I(1)"]',
        b'[["t",[1],["X(1)"]]]',
        b'[["t",[1],[""]]]',
        b'[["t",[1],[7]]]',
        b'[["t",[1],["U"]]]',
        b'[["t",[1,2],["I(1)"]]]',
        b'[["t",[],[]]]',
        b'"t",2\nI(1)',
    ],
)
def test_what_follows_no_format_is_refused(data: bytes) -> None:
    with pytest.raises(EntryFormatError):
        plan_piece(data)
