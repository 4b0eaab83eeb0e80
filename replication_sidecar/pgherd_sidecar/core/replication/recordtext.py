"""PostgreSQL's record literals, such as ``(1,abc,"x y",)``, split into fields and joined again.

Follows ``record_out`` and ``record_in`` exactly: a field with nothing between its commas is NULL;
a field is quoted if it is empty or holds a quote, backslash, parenthesis, comma or white space;
inside quotes a quote and a backslash are doubled. ``record_in`` also accepts a backslash before
any character, quotes in the middle of a field, and white space around the parentheses; none of
that is ever written by ``record_out``, so it is refused here: a literal that PostgreSQL did not
write should not be guessed at.

It is needed only where two changes of the same row meet. It does not know types, and keeps nothing.
"""

import re
from collections.abc import Iterable
from functools import partial

_TEXT = r'"(?:[^"\\]++|""|\\\\)*+"|[^"\\(),\s]*+'
_FIELD = re.compile(_TEXT, re.ASCII)
_FIELDS = re.compile(f"[(,]({_TEXT})", re.ASCII)
_RECORD = re.compile(rf"\((?:{_TEXT})(?:,(?:{_TEXT}))*+\)", re.ASCII)
_NEEDS_QUOTES = re.compile(r'["\\(),\s]', re.ASCII)
_unescape = partial(re.compile(r'""|\\\\').sub, lambda match: match[0][0])
_escape = partial(re.compile(r'["\\]').sub, lambda match: match[0] * 2)


class RecordTextError(ValueError):
    """The text is no record literal as PostgreSQL writes it."""


def split_record(literal: str, count: int | None = None) -> list[str | None]:
    """Split a record literal into its fields, None for NULL.

    Args:
        literal: text with its parentheses. ``()`` is a record of one NULL field, since the
            literal of a record without fields cannot be told from it.
        count: stop after so many fields.

    Raises:
        RecordTextError: not a literal that ``record_out`` writes.
    """
    if count is None and _RECORD.fullmatch(literal):
        if '"' not in literal:
            return [text or None for text in literal[1:-1].split(",")]
        return [
            _field(text) if text[:1] == '"' else text or None for text in _FIELDS.findall(literal)
        ]
    fields: list[str | None] = []
    position, last = 1, len(literal) - 1
    if last < 1 or literal[0] != "(" or literal[last] != ")":
        raise RecordTextError("no parentheses around the record")
    while True:
        match = _FIELD.match(literal, position, last)
        assert match is not None  # the pattern matches the empty string
        fields.append(_field(match[0]))
        position = match.end()
        if position == last:
            return fields
        if literal[position] != ",":
            raise RecordTextError(f"unexpected character at offset {position}")
        if len(fields) == count:
            return fields
        position += 1


def _field(text: str) -> str | None:
    if not text:
        return None
    if text[0] != '"':
        return text
    inner = text[1:-1]
    return _unescape(inner) if '"' in inner or "\\" in inner else inner


def join_record(fields: Iterable[str | None]) -> str:
    """Write fields as the record literal that PostgreSQL would write."""
    return "(" + ",".join(map(_field_text, fields)) + ")"


def _field_text(value: str | None) -> str:
    if value is None:
        return ""
    if value == "" or _NEEDS_QUOTES.search(value):
        return '"' + _escape(value) + '"'
    return value
