"""Sessions at a subscriber: a plain server, or a herd of which one member is reached."""

from typing import Any, LiteralString

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import dict_row

from pgherd_sidecar.queries import statements
from pgherd_sidecar.subscribing.state.errors import StoppedError
from pgherd_sidecar.tables.sessions import SETTINGS, Session

_DEFAULTS = {
    "connect_timeout": "5",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
_ALIVE = {
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}
"""So the server notices within half a minute that a feeder is gone, and gives its lock up."""
_READ_ONLY = "default_transaction_read_only"
"""A member of a herd says by it whether it takes writes; so it is not overridden."""


def subscriber_query(name: str) -> LiteralString:
    """A statement of ``sql/subscriber.sql``."""
    return statements("pgherd_sidecar.subscribing", "subscriber")[name]


async def ask_subscriber(session: Session, name: str, /, **values: Any) -> list[dict[str, Any]]:
    """Run one of these statements, and return its rows."""
    cursor = await session.execute(subscriber_query(name), values or None)
    return await cursor.fetchall() if cursor.description else []


async def lock_schema(session: Session, name: str) -> None:
    """Have others that make this schema, or what is in it, wait for the caller's transaction."""
    await ask_subscriber(session, "lock_schema", schema=name)


async def require_schema(session: Session, name: str) -> None:
    """Have a schema there, for what the caller's transaction is about to make in it."""
    if await _has_schema(session, name):
        return
    await lock_schema(session, name)
    if not await _has_schema(session, name):
        await session.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))


async def _has_schema(session: Session, name: str) -> bool:
    cursor = await session.execute(
        "SELECT FROM pg_catalog.pg_namespace n WHERE n.nspname = %s", (name,)
    )
    return await cursor.fetchone() is not None


async def connect(dsn: str, *, beside: Session | None = None) -> Session:
    """Open a session that commits each statement, with settings that make values plain text.

    Of several hosts one that takes writes is meant, unless the string says otherwise.

    Args:
        dsn: connection string of the subscriber.
        beside: a session by this connection string; the new one is at the same server.

    Raises:
        StoppedError: this is no connection string.
        psycopg.Error: it can't be reached.
    """
    try:
        given = conninfo_to_dict(dsn)
        several = "," in f"{given.get('host') or ''}{given.get('hostaddr') or ''}"
        settings = SETTINGS | _ALIVE
        more: dict[str, str] = dict(_DEFAULTS)
        if several:
            settings = {name: value for name, value in settings.items() if name != _READ_ONLY}
            more["target_session_attrs"] = "read-write"
        options = " ".join(f"-c {name}={value}" for name, value in settings.items())
        more = {name: value for name, value in more.items() if name not in given}
        options = f"{given.get('options') or ''} {options}".strip()
        if beside is not None and several:
            more |= {
                "host": beside.info.host, "hostaddr": beside.info.hostaddr,
                "port": str(beside.info.port),
            }  # fmt: skip
        words = make_conninfo(
            dsn, **more, application_name="pgherd subscription", client_encoding="UTF8",
            options=options,
        )  # fmt: skip
    except psycopg.ProgrammingError as error:
        # The words of libpq may hold a part of a password.
        raise StoppedError(
            "the connection string is not one of libpq: write postgresql://USER@HOST/DATABASE"
        ) from error
    try:
        return await psycopg.AsyncConnection.connect(
            words, autocommit=True, row_factory=dict_row, prepare_threshold=2
        )
    except psycopg.OperationalError as error:
        password = given.get("password")
        if not password or str(password) not in str(error):
            raise
        raise psycopg.OperationalError(str(error).replace(str(password), "***")) from None
