"""Sessions on both sides, with the settings under which the text of a value is the same on both."""

from collections.abc import Sequence
from dataclasses import dataclass

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Conninfo
from psycopg.rows import dict_row

from pgherd_sidecar.importing.ends.errors import ImportFailed
from pgherd_sidecar.tables.sessions import SETTINGS, Session, in_one_line

APPLICATION = "pgherd import"
_CONNECT_S = "10"
_OF_SOURCE = {"row_security": "off"}
"""A row that a policy hides must be an error and not be missing."""


_UNREADABLE = (
    "the connection string of the source is not one of libpq: write"
    " postgresql://USER:PASSWORD@HOST:PORT/DATABASE, and %40 for @, %3A for : and %2F for / in the"
    " password"
)


def conninfo(dsn: str, settings: dict[str, str], **more: str) -> str:
    """A connection string with our settings.

    An @ or a / in a password that is not written as %40 or %2F ends the password for libpq. What
    libpq says of the rest shows it, so we say something else.

    Raises:
        ImportFailed: it is none.
    """
    try:
        given = conninfo_to_dict(dsn)
        ports = str(given.get("port") or "0").split(",")
        if "@" in f"{given.get('host')}{given.get('dbname')}" or not all(
            port.isdecimal() for port in ports if port
        ):
            raise ImportFailed(_UNREADABLE)
        options = " ".join(f"-c {name}={value}" for name, value in settings.items())
        before = str(given.get("options") or "")
        more = {"connect_timeout": _CONNECT_S} | more
        more = {name: value for name, value in more.items() if name not in given}
        return make_conninfo(
            dsn, **more, application_name=APPLICATION, client_encoding="UTF8",
            options=f"{before} {options}".strip(),
        )  # fmt: skip
    except psycopg.ProgrammingError as error:
        raise ImportFailed(_UNREADABLE) from error


def without_password(dsn: str) -> str:
    """A connection string that may be kept: without any words that libpq shows to nobody."""
    hidden = {one.keyword.decode() for one in Conninfo.get_defaults() if one.dispchar}
    given = conninfo_to_dict(dsn)
    kept = {name: value for name, value in given.items() if name not in {*hidden, "options"}}
    return make_conninfo("", **kept)


@dataclass(frozen=True, slots=True)
class SourceAddress:
    """How to reach the source."""

    dsn: str

    async def session(self) -> Session:
        """Open a session that commits each statement.

        Raises:
            ImportFailed: it can't be reached.
        """
        return await self._open(conninfo(self.dsn, SETTINGS | _OF_SOURCE))

    async def replication(self) -> Session:
        """Open a session of a walsender.

        Raises:
            ImportFailed: it can't be reached.
        """
        return await self._open(conninfo(self.dsn, SETTINGS, replication="database"))

    async def _open(self, words: str) -> Session:
        try:
            return await psycopg.AsyncConnection.connect(
                words, autocommit=True, row_factory=dict_row
            )
        except psycopg.OperationalError as error:
            raise ImportFailed(f"the source can't be reached: {in_one_line(error)}") from error


@dataclass(frozen=True, slots=True)
class Destination:
    """A member of the herd with a database, reached as the superuser."""

    name: str
    dsn: str

    @property
    def place(self) -> tuple[str, str]:
        """Host and port, as a session with it names them."""
        given = conninfo_to_dict(self.dsn)
        return str(given.get("host", "")), str(given.get("port", ""))

    async def session(self) -> Session:
        """Open a session that commits each statement.

        Raises:
            psycopg.OperationalError: it can't be reached.
        """
        return await psycopg.AsyncConnection.connect(
            conninfo(self.dsn, SETTINGS, connect_timeout="5"),
            autocommit=True, row_factory=dict_row, prepare_threshold=1,
        )  # fmt: skip


Members = Sequence[Destination]
