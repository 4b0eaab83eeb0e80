"""SQL statements by name, from the files in ``sql/``; see ``pgherd_sidecar.queries``."""

from pgherd_sidecar.queries import statements
from psycopg import sql


def load(file: str) -> dict[str, sql.SQL]:
    """Return the statements of ``sql/FILE``; ``{...}`` in them are identifiers and literals.

    Args:
        file: its name.
    """
    found = statements("pgherd_spark", file.removesuffix(".sql"))
    return {name: sql.SQL(text) for name, text in found.items()}
