"""The SQL of this package, by name: ``sql/*.sql``, in which each statement follows its name."""

import re
from functools import cache
from importlib import resources
from typing import LiteralString

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


@cache
def _file(name: str) -> dict[str, str]:
    text = resources.files("pgherd_sidecar.importing").joinpath(f"sql/{name}.sql").read_text()
    _, *parts = _NAME.split(text)
    texts = (part.strip().removesuffix(";") for part in parts[1::2])
    return dict(zip(parts[::2], texts, strict=True))


def query(file: str, name: str) -> LiteralString:
    """Return a statement.

    Raises:
        KeyError: there is none of that name.
    """
    return _file(file)[name]
