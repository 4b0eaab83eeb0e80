"""Connection strings of the admin API: they name a server elsewhere, and nothing of the member.

Everybody who may write the Secret of a ``Subscription`` writes one, and members connect by it.
Commands need no such check: the herd's own account runs them.
"""

import ipaddress
import re
from collections.abc import Iterator
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict

from pgherd_sidecar.client.errors import HerdError

_ALLOWED: Final = frozenset({
    "host", "hostaddr", "port", "user", "password", "dbname", "sslmode", "sslrootcert",
    "connect_timeout", "application_name", "target_session_attrs", "load_balance_hosts",
    "channel_binding", "require_auth", "ssl_min_protocol_version", "sslnegotiation", "sslsni",
    "keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout",
})  # fmt: skip
"""No list of what is refused: later versions of libpq have more words for files."""
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+")
_UNREADABLE: Final = (
    "the connection string needs a host name or address in each place of its list of hosts, never a"
    " directory, and ports that are numbers: write postgresql://USER:PASSWORD@HOST:PORT/DATABASE,"
    " and %40 for @, %3A for : and %2F for / in the password"
)


def require_elsewhere(dsn: str) -> None:
    """Check that a connection string leads to hosts, by nothing that the member's machine has.

    A directory as host would be a socket there, which lets the member's account in as superuser. An
    @ or a / in a password that is not written as %40 or %2F ends the password for libpq, whose
    complaints about what follows would show the rest of it.

    Raises:
        HerdError: it does not; the message holds no value of it.
    """
    try:
        given = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError as error:
        raise HerdError(
            "the connection string is not one of libpq: write"
            " postgresql://USER:PASSWORD@HOST:PORT/DATABASE"
        ) from error
    if others := sorted(_others(given)):
        raise HerdError(
            f"leave {', '.join(others)} out of the connection string, which may name the subscriber"
            " but no file, service or option, and no sslrootcert but system"
        )
    names, addresses = _listed(given, "host"), _listed(given, "hostaddr")
    ports = [port for port in _listed(given, "port") if port]
    is_led = (names or addresses) and all(map(_is_name, names)) and all(map(_is_address, addresses))
    if not is_led or not all(port.isdecimal() for port in ports):
        raise HerdError(_UNREADABLE)
    if "://" in dsn and "@" in str(given.get("dbname") or ""):
        raise HerdError(_UNREADABLE)


def _others(given: dict[str, Any]) -> Iterator[str]:
    """Names of what a connection string may not have."""
    for name, value in given.items():
        if name not in _ALLOWED or (name == "sslrootcert" and value != "system"):
            yield name


def _listed(given: dict[str, Any], name: str) -> list[str]:
    """The places of a list; libpq takes an empty one for a socket."""
    value = str(given.get(name) or "")
    return value.split(",") if value else []


def _is_name(host: str) -> bool:
    return _NAME.fullmatch(host) is not None or _is_address(host)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
