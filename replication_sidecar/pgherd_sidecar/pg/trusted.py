"""Connections whose rights are worth stealing: they don't take settings from the database's owner.

``ALTER DATABASE ... SET`` is open to the owner of a database, who is no superuser. A search path of
his would have our superuser's queries call his functions, and a read-only default or a timeout
would stop the sidecar. What a client sends as it connects goes before such settings. Which
settings these are, ``settings`` knows.

It holds no state.
"""

from collections.abc import Mapping
from typing import Final

from pgherd_sidecar.pg import settings

_SETTINGS: Final = settings.FIXED | {
    "role": "none",
    "default_transaction_deferrable": "off",
    "idle_session_timeout": "0",
    "pgherd.ddl_wait": "0",
    "idle_in_transaction_session_timeout": "0",
}


_VALUES: Final = ", ".join(
    f"('{name}', '{value}')" for name, value in settings.FIXED_WHERE_KNOWN.items()
)
AFTERWARDS: Final = (
    "SELECT set_config(v.name, v.value, false)"  # noqa: S608 - of constants of this package
    f" FROM (VALUES {_VALUES}) AS v(name, value)"
    " WHERE current_setting(v.name, true) IS NOT NULL"
)
"""What sessions execute first: not every server knows these settings, so they can't be sent."""


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
