"""Which tables a pattern means. Pure."""

import re
from collections.abc import Iterable, Sequence

_PART = re.compile(r'("(?:[^"]|"")*"|[^."]+)')


def matching(patterns: Iterable[str], names: Sequence[str]) -> dict[str, list[str]]:
    """The tables that each pattern means.

    Args:
        patterns: ``SCHEMA.TABLE``, or ``TABLE`` of the schema public; ``*`` stands for any text.
        names: all tables, as ``schema.table``, quoted where SQL needs it.
    """
    known = {name: "\0".join(_parts(name)) for name in names}
    found = {}
    for pattern in patterns:
        parts = _parts(pattern)
        text = "\0".join(parts if len(parts) > 1 else ["public", *parts])
        shape = re.compile("[^\0]*".join(map(re.escape, text.split("*"))))
        found[pattern] = [name for name, bare in known.items() if shape.fullmatch(bare)]
    return found


def _parts(name: str) -> list[str]:
    """Schema and table: a dot in quotes is a part of a name."""
    return [_bare(part) for part in _PART.findall(name)]


def _bare(part: str) -> str:
    """A name without its quotes."""
    return part[1:-1].replace('""', '"') if part.startswith('"') else part
