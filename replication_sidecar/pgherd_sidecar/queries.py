"""Statements by name, of files in which each follows a line ``-- name: NAME``."""

import re
from functools import cache
from importlib import resources
from typing import LiteralString

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


@cache
def statements(package: str, name: str) -> dict[str, LiteralString]:
    """Return the statements of ``sql/NAME.sql`` of a package."""
    text = resources.files(package).joinpath(f"sql/{name}.sql").read_text()
    _, *parts = _NAME.split(text)
    texts = (part.strip().removesuffix(";") for part in parts[1::2])
    return dict(zip(parts[::2], texts, strict=True))
