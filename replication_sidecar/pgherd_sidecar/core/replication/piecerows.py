"""The rows of a piece as statements, in bytes: a row may be large.

As Python's str a row takes up to four times its bytes, and one such row is on every member. So the
JSON around the records is taken apart here, and nothing is decoded. The rows of a piece are a part
of a net effect, no two of one row, so there is nothing to merge. It keeps nothing.
"""

import msgspec

from pgherd_sidecar.core.replication.entries import EntryFormatError
from pgherd_sidecar.core.replication.lines import holds_lines, line_records, read_lines
from pgherd_sidecar.core.replication.merge import Plan, Wave, statements_of

_decoder = msgspec.json.Decoder(list[tuple[str, list[int], list[msgspec.Raw]]])
_text = msgspec.json.Decoder(str)
_ESCAPED = (
    (rb"\"", b'"'),
    (rb"\/", b"/"),
    (rb"\n", b"\n"),
    (rb"\r", b"\r"),
    (rb"\t", b"\t"),
    (rb"\b", b"\b"),
    (rb"\f", b"\f"),
)
_QUOTE = ord('"')
_EMPTY = b'""'
_SMALL = 4096
"""A text below this size is decoded all the same, which is faster."""
_INSERTS = {b"I"}
_BACKSLASH = b"\0"
"""In the place of one while others are taken away: no JSON holds this byte as it is."""


def plan_piece(data: bytes) -> Plan:
    """Return what the data of a piece write.

    Raises:
        EntryFormatError: they are malformed, or a record has an unknown operation.
    """
    groups: dict[str, dict[str, list[bytes]]] = {}
    try:
        if holds_lines(data):
            lines = read_lines(data)
            groups[lines.table] = {"I": [record[1:] for record in line_records(lines)]}
        else:
            for table, pk_keys, records in _decoder.decode(data):
                if len(pk_keys) != len(records) or not records:
                    raise ValueError("not one key for each row")
                _place(groups.setdefault(table, {}), [_unquoted(record) for record in records])
    except (msgspec.DecodeError, ValueError) as error:
        raise EntryFormatError(f"data of a piece: {error}") from None
    return Plan([Wave(statements_of(groups))])


def _place(groups: dict[str, list[bytes]], records: list[bytes]) -> None:
    """Group the records of a table; what a row has become follows what it was."""
    operations = {record[:1] for record in records}
    if operations == _INSERTS:
        groups.setdefault("I", []).extend([record[1:] for record in records])
        return
    replaces = False
    for place, record in enumerate(records, 1):
        operation = record[:1]
        if operation == b"U":
            operation = record[: record.index(b"(")]
        elif replaces:
            operation, replaces = b"R", False
        elif operation == b"R":
            replaces = place < len(records) and records[place][:1] == b"I"
            operation = b"R" if replaces else b"D"
        groups.setdefault(operation.decode(), []).append(record[len(operation) :])


def _unquoted(text: msgspec.Raw) -> bytes:
    """The value of a string in JSON, of which PostgreSQL escapes no more than it must."""
    value = bytes(text)
    if b"\\" in value and len(value) < _SMALL:
        return _text.decode(text).encode()
    if value[0] != _QUOTE or len(value) == len(_EMPTY):
        raise ValueError("a record is empty, or no text")
    value = value[1:-1]
    if b"\\" not in value:
        return value
    value = value.replace(rb"\\", _BACKSLASH)
    if rb"\u" in value:
        return _text.decode(text).encode()
    for escaped, byte in _ESCAPED:
        value = value.replace(escaped, byte)
    return value.replace(_BACKSLASH, b"\\")
