"""Inserted rows of one table as lines of text, which a member hands to COPY as they are.

A piece that holds nothing but inserts need not be taken apart row by row: a record literal is
almost a line of CSV. Both leave NULL empty, quote what is empty or holds a comma, a quote or white
space, and double a quote. ``record_out`` doubles a backslash, too, and has parentheses around it.

The format is on docs/writeset-format.md. Called by ``merge`` and ``piecerows``, for who wants rows,
and by ``agent.apply.large``, who wants CSV. Knows no SQL and no types. Keeps nothing.
"""

import msgspec

_BETWEEN = b")\nI("
_HEAD = b'"'


class LinesFormatError(ValueError):
    """The data holds no rows as lines."""


class Lines(msgspec.Struct, frozen=True, gc=False):
    """Inserted rows.

    Attributes:
        table: quoted qualified name.
        count: how many rows there are, at least one.
        text: a record for each, ``I(...)``, with a newline between two of them. A value may hold
            newlines, too.
    """

    table: str
    count: int
    text: bytes


def holds_lines(data: bytes) -> bool:
    """Whether the data of a piece is rows as lines; else it is items in JSON."""
    return data.startswith(_HEAD)


def read_lines(data: bytes) -> Lines:
    """Decode the data of a piece that holds lines.

    Raises:
        LinesFormatError: it does not follow the format.
    """
    head, _, text = data.partition(b"\n")
    try:
        table, count = msgspec.json.decode(b"[%b]" % head, type=tuple[str, int])
    except msgspec.DecodeError as error:
        raise LinesFormatError(f"head of rows as lines: {error}") from None
    if count < 1 or not text.startswith(b"I(") or not text.endswith(b")"):
        raise LinesFormatError("rows as lines are cut off")
    return Lines(table, count, text)


def row_records(lines: Lines) -> list[str]:
    """The records ``I(...)``, one by one.

    Raises:
        LinesFormatError: there are not as many as the head says.
    """
    try:
        return [record.decode() for record in line_records(lines)]
    except UnicodeDecodeError as error:
        raise LinesFormatError(f"rows as lines: {error}") from None


def line_records(lines: Lines) -> list[bytes]:
    """The same in bytes: one may be large."""
    text = lines.text
    found: list[bytes] = []
    begin, end, quotes = 0, -1, 0
    while end < len(text):
        line = end + 1
        end = text.find(b"\n", line)
        if end < 0:
            end = len(text)
        quotes += text.count(b'"', line, end)
        if quotes % 2 == 0:  # a newline inside quotes belongs to a value
            found.append(text[begin:end])
            begin = end + 1
    if quotes % 2 or len(found) != lines.count or not all(r[:2] == b"I(" for r in found):
        raise LinesFormatError(f"{len(found)} rows as lines instead of {lines.count}")
    return found


def csv(lines: Lines) -> bytes | None:
    """The rows as ``COPY ... (FORMAT csv)`` reads them; None where that could be misread.

    ``\\.`` at the beginning of a line would end the data for a server older than version 18, also
    inside quotes.

    Raises:
        LinesFormatError: there are not as many rows as the head says.
    """
    text = lines.text
    if text.count(b"\n") == lines.count - 1:  # no value holds any: these are all between rows
        inside = text.replace(_BETWEEN, b"\n")
        if len(inside) != len(text) - (len(_BETWEEN) - 1) * (lines.count - 1):
            raise LinesFormatError("rows as lines: not each is an insert")
        inside = inside[2:-1]
    else:
        inside = b"\n".join(record[2:-1] for record in line_records(lines))
    if b"\\" in inside:
        inside = inside.replace(b"\\\\", b"\\")
        if b"\n\\." in inside or b"\r\\." in inside or inside.startswith(b"\\."):
            return None
    return inside + b"\n"  # also after the last: a row of one NULL is an empty line
