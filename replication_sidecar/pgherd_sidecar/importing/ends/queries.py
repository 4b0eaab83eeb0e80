"""The SQL of this package, by name: ``sql/*.sql``."""

from typing import LiteralString

from pgherd_sidecar.queries import statements


def query(file: str, name: str) -> LiteralString:
    """Return a statement.

    Raises:
        KeyError: there is none of that name.
    """
    return statements("pgherd_sidecar.importing", file)[name]
