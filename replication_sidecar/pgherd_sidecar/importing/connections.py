"""Sessions on both sides, with the settings under which the text of a value is the same on both."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import dict_row

from pgherd_sidecar.importing.errors import ImportFailed

APPLICATION = "pgherd import"
_CONNECT_S = "10"
_SETTINGS = {
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "xmloption": "content",
    "search_path": "pg_catalog",
    "check_function_bodies": "off",
    "standard_conforming_strings": "on",
    "default_transaction_read_only": "off",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "synchronous_commit": "on",
}
_OF_SOURCE = {"row_security": "off"}
"""A row that a policy hides must be an error and not be missing."""

Session = psycopg.AsyncConnection[Any]


def conninfo(dsn: str, settings: dict[str, str], **more: str) -> str:
    """A connection string with our settings.

    Raises:
        ImportFailed: it is none.
    """
    try:
        given = conninfo_to_dict(dsn)
        options = " ".join(f"-c {name}={value}" for name, value in settings.items())
        before = str(given.get("options") or "")
        more = {"connect_timeout": _CONNECT_S} | more
        more = {name: value for name, value in more.items() if name not in given}
        return make_conninfo(
            dsn, **more, application_name=APPLICATION, client_encoding="UTF8",
            options=f"{before} {options}".strip(),
        )  # fmt: skip
    except psycopg.ProgrammingError as error:
        raise ImportFailed(
            f"the connection string of the source is not one of libpq ({_line(error)}): give"
            " --from postgresql://USER@HOST/DATABASE"
        ) from error


def without_password(dsn: str) -> str:
    """A connection string that may be kept."""
    given = conninfo_to_dict(dsn)
    kept = {name: value for name, value in given.items() if name not in ("password", "options")}
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
        return await self._open(conninfo(self.dsn, _SETTINGS | _OF_SOURCE))

    async def replication(self) -> Session:
        """Open a session of a walsender.

        Raises:
            ImportFailed: it can't be reached.
        """
        return await self._open(conninfo(self.dsn, _SETTINGS, replication="database"))

    async def _open(self, words: str) -> Session:
        try:
            return await psycopg.AsyncConnection.connect(
                words, autocommit=True, row_factory=dict_row
            )
        except psycopg.OperationalError as error:
            raise ImportFailed(f"the source can't be reached: {_line(error)}") from error


@dataclass(frozen=True, slots=True)
class Member:
    """A member of the herd with a database, reached as the superuser."""

    name: str
    dsn: str

    async def session(self) -> Session:
        """Open a session that commits each statement.

        Raises:
            psycopg.OperationalError: it can't be reached.
        """
        return await psycopg.AsyncConnection.connect(
            conninfo(self.dsn, _SETTINGS, connect_timeout="5"),
            autocommit=True, row_factory=dict_row, prepare_threshold=1,
        )  # fmt: skip


Members = Sequence[Member]


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def message_of(error: psycopg.Error) -> str:
    """What the server says, in one line, with its hint."""
    said = error.diag.message_primary or _line(error)
    hint = error.diag.message_hint
    return f"{said} ({hint})" if hint else said
