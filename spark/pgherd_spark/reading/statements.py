"""SQL statements by name, from the files in ``sql/``. Each follows a line ``-- name: NAME``."""

import re
from importlib import resources
from typing import LiteralString, cast

from psycopg import sql

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


def load(file: str) -> dict[str, sql.SQL]:
    """Return the statements of ``sql/FILE``; ``{...}`` in them are identifiers and literals.

    Args:
        file: its name.
    """
    text = resources.files("pgherd_spark").joinpath("sql").joinpath(file).read_text()
    _, *parts = _NAME.split(text)
    # The file is part of this package, so its text is as trusted as a literal in a module.
    return {
        name: sql.SQL(cast(LiteralString, statement.strip()))
        for name, statement in zip(parts[::2], parts[1::2], strict=True)
    }
