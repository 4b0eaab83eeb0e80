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
    known = {name: ".".join(map(_bare, _PART.findall(name))) for name in names}
    found = {}
    for pattern in patterns:
        parts = [_bare(part) for part in _PART.findall(pattern)]
        text = ".".join(parts if len(parts) > 1 else ["public", *parts])
        shape = re.compile(".*".join(map(re.escape, text.split("*"))), re.DOTALL)
        found[pattern] = [name for name, bare in known.items() if shape.fullmatch(bare)]
    return found


def _bare(part: str) -> str:
    """A name without its quotes."""
    return part[1:-1].replace('""', '"') if part.startswith('"') else part
