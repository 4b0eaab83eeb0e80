"""Connections whose rights are worth stealing: they don't take settings from the database's owner.

``ALTER DATABASE ... SET`` is open to the owner of a database, who is no superuser. A search path of
his would have our superuser's queries call his functions, and a read-only default or a timeout
would stop the sidecar. What a client sends as it connects goes before such settings.

Called by whoever connects with more rights than an application has. Holds no state.
"""

from collections.abc import Mapping

_SETTINGS = {
    "search_path": "pg_catalog",
    "role": "none",
    "default_transaction_read_only": "off",
    "default_transaction_deferrable": "off",
    "default_transaction_isolation": "read committed",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_session_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
}


def options(more: Mapping[str, str] | None = None) -> str:
    """Return the parameter ``options`` of a connection.

    Args:
        more: settings, and values, that it needs besides.
    """
    settings = _SETTINGS | dict(more or {})
    return " ".join(f"-c {name}={_escaped(value)}" for name, value in settings.items())


def _escaped(value: str) -> str:
    """The server splits at blanks."""
    return value.replace("\\", "\\\\").replace(" ", "\\ ")
