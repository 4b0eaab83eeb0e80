"""Inserted rows as lines: what COPY is given is what the records say, whatever the values hold."""

import csv as standard
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pgherd_sidecar.core.replication.entries import EntryFormatError
from pgherd_sidecar.core.replication.lines import (
    Lines,
    LinesFormatError,
    csv,
    holds_lines,
    read_lines,
    row_records,
)
from pgherd_sidecar.core.replication.merge import decode_items
from pgherd_sidecar.core.replication.recordtext import join_record

VALUES = st.none() | st.text('a,()\\\n\r\t "I.é', max_size=8)
ROWS = st.integers(1, 3).flatmap(
    lambda width: st.lists(st.lists(VALUES, min_size=width, max_size=width), min_size=1, max_size=6)
)


def lines_of(*records: str) -> Lines:
    """The lines of these records."""
    return Lines("public.t", len(records), "\n".join(records).encode())


def data_of(lines: Lines) -> bytes:
    """The same as the data of a piece."""
    return b'"%b",%d\n%b' % (lines.table.encode(), lines.count, lines.text)


@given(ROWS)
def test_csv_holds_the_values_of_the_records(rows: list[list[str | None]]) -> None:
    made = csv(lines_of(*("I" + join_record(row) for row in rows)))
    if made is None:
        assert any(value is not None and "\\." in value for row in rows for value in row)
        return
    assert made.endswith(b"\n")
    read = list(standard.reader(io.StringIO(made.decode(), newline=""), strict=True))
    # Python's reader passes over what it takes for an empty line, and knows no NULL
    assert [row or [""] for row in read] == [[value or "" for value in row] for row in rows]


@given(ROWS)
def test_null_is_empty_and_an_empty_text_is_quoted(rows: list[list[str | None]]) -> None:
    nulls = [[None if value else value for value in row] for row in rows]
    made = csv(lines_of(*("I" + join_record(row) for row in nulls)))
    assert made is not None
    texts = [",".join("" if value is None else '""' for value in row) for row in nulls]
    assert made.decode() == "\n".join(texts) + "\n"


@given(ROWS)
def test_whoever_wants_rows_has_the_records_as_they_were(rows: list[list[str | None]]) -> None:
    records = ["I" + join_record(row) for row in rows]
    lines = lines_of(*records)
    assert row_records(lines) == records
    assert decode_items(data_of(lines)) == [("public.t", [0] * len(records), records)]


def test_what_would_end_the_data_is_not_made() -> None:
    assert csv(lines_of('I("a\n\\\\.\nb")')) is None
    assert csv(lines_of('I("\\\\.")')) == b'"\\."\n'


def test_items_are_no_lines() -> None:
    assert not holds_lines(b'[["t",[4],["I(1)"]]]')
    assert holds_lines(data_of(lines_of("I(1)")))


@pytest.mark.parametrize(
    "data",
    [
        b'"t"\nI(1)',
        b'"t",0\nI(1)',
        b'"t",1\nD(1)',
        b'"t",1\nI(1',
        b'"t",1',
        b'"t,1\nI(1)',
    ],
)
def test_what_does_not_follow_the_format_is_refused(data: bytes) -> None:
    with pytest.raises(LinesFormatError):
        read_lines(data)
    with pytest.raises(EntryFormatError):
        decode_items(data)


@pytest.mark.parametrize(
    "lines",
    [
        Lines("t", 2, b"I(1)"),
        Lines("t", 1, b"I(1)\nI(2)"),
        Lines("t", 2, b"I(1)\nD(2)"),
        Lines("t", 2, b'I("a\nI(2)'),
    ],
)
def test_other_rows_than_the_head_says_are_refused(lines: Lines) -> None:
    with pytest.raises(LinesFormatError):
        csv(lines)
    with pytest.raises(LinesFormatError):
        row_records(lines)
