"""Answers another member's question whether this one could execute the commands of a transaction.

Statements are executed in a transaction that is rolled back, names are looked up and used once. A
session of its own does that beside the applier. Only what locks no table is tried, and a lock that
is not free at once is no reason for a veto: neither is anything else that may be otherwise soon.

Nothing survives an answer.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
import psycopg

from pgherd_sidecar.agent.base.config import NodeConfig
from pgherd_sidecar.agent.server.startup import connect
from pgherd_sidecar.pg.ddl.needs import Ballot, Need, Poll
from pgherd_sidecar.pg.failures import Trouble, judge_error

_BEGIN: Final = (
    "SET TRANSACTION READ WRITE; SET LOCAL lock_timeout = '200ms';"
    " SET LOCAL statement_timeout = '7s'; SET LOCAL search_path = pg_catalog"
)
_VISIBLE_S: Final = 4.0
"""How long to wait for what the asking transaction has seen."""
_LONGEST_S: Final = 9.0
"""Before the other member waits no more."""
_AT_ONCE: Final = 2
"""More questions than that are answered with nothing."""
_PASSING: Final = (Trouble.INTERRUPTED, Trouble.LOST, Trouble.RESOURCES)
_LACKS: Final = ("0A000", "22023", "42704", "42883", "58P01", "F0000")
"""A server says so of files, locales, zones and libraries that it lacks. Any other error may be a
conflict with a command of another member, which the order decides."""
_MISSING: Final = ("42704", "42883")
_OF_THE_MACHINE: Final = ("setting", "zone")
"""No GID changes whether a member has them."""
_SQL: Final = {
    "setting": "SELECT set_config($1, $2, true)",
    "zone": "SELECT timezone($1, now())",
    "search": "SELECT to_tsvector($1::oid::regconfig, 'a la the')",
    "update": "SELECT FROM pg_extension e LEFT JOIN pg_extension_update_paths(e.extname) p"
    " ON p.source = e.extversion AND p.target = $2"
    " WHERE e.extname = $1 AND (e.extversion = $2 OR p.path IS NOT NULL)",
}


class _LackedError(Exception):
    """Something is not here; the message says what."""


class Trial:
    """Looks whether this member could execute commands.

    Args:
        config: of this member.
        visible: waits until a GID is visible here.
        newest: returns the GID up to which the log was read here.
    """

    def __init__(
        self,
        config: NodeConfig,
        visible: Callable[[int], Awaitable[None]],
        *,
        newest: Callable[[], int],
    ) -> None:
        self._config = config
        self._visible = visible
        self._newest = newest
        self._answering = 0

    async def answer(self, question: bytes) -> bytes:
        """Answer a `Poll` with a `Ballot`."""
        if self._answering >= _AT_ONCE:
            return b""
        self._answering += 1
        try:
            poll = msgspec.json.decode(question, type=Poll)
            if any(need.kind not in _OF_THE_MACHINE for need in poll.needs):
                async with asyncio.timeout(_VISIBLE_S):
                    await self._visible(poll.gid)
            async with asyncio.timeout(_LONGEST_S - _VISIBLE_S):
                ballot = await self._look(poll.needs)
        except TimeoutError:
            ballot = Ballot(sure=False, slow=True)
        except (psycopg.Error, msgspec.DecodeError):
            ballot = Ballot(sure=False)
        finally:
            self._answering -= 1
        return msgspec.json.encode(ballot)

    async def _look(self, needs: list[Need]) -> Ballot:
        sure, veto, lacked = True, "", 0
        async with (
            await connect(self._config, "pgherd vote") as connection,
            connection.transaction(force_rollback=True),
        ):
            await connection.execute(_BEGIN)
            for place, need in enumerate(needs):
                try:
                    async with connection.transaction():
                        await _check(connection, need)
                except (psycopg.Error, _LackedError) as error:
                    if _is_certain(error, need):
                        veto, lacked = _words(error), place
                        break
                    sure = False
        return Ballot(veto, sure, need=lacked, gid=self._newest())


async def _check(connection: psycopg.AsyncConnection[Any], need: Need) -> None:
    """Find out whether one thing is here.

    Raises:
        psycopg.Error: it is not, or that can't be told.
        _LackedError: it is not.
    """
    match need.kind:
        case "command" | "schema":
            settings = msgspec.json.encode(need.settings).decode()
            await connection.execute(
                "SELECT pgherd.try_statement($1, $2, $3::jsonb)", (need.role, need.name, settings)
            )
        case "setting":
            await connection.execute(_SQL["setting"], (need.name, need.value))
        case "zone":
            await connection.execute(_SQL["zone"], (need.name,))
        case "collation":
            oid = await _look_up(connection, "regcollation", need)
            row = await connection.execute(
                "SELECT format('%I.%I', n.nspname, c.collname) FROM pg_collation c"
                " JOIN pg_namespace n ON n.oid = c.collnamespace WHERE c.oid = $1",
                (oid,),
            )
            (name,) = await row.fetchone() or ("",)
            await connection.execute(f"SELECT 'a'::text < 'b'::text COLLATE {name}".encode())
        case "search":
            oid = await _look_up(connection, "regconfig", need)
            await connection.execute(_SQL["search"], (oid,))
        case "update":
            found = await connection.execute(_SQL["update"], (need.name, need.value))
            if not found.rowcount:
                raise _LackedError(
                    f"extension {need.name} can't be updated to version {need.value} there"
                )


async def _look_up(connection: psycopg.AsyncConnection[Any], kind: str, need: Need) -> int:
    """The oid of what a name means to the session that has used it; nothing of a user's runs."""
    await connection.execute("SELECT pg_catalog.set_config('search_path', $1, true)", (need.path,))
    found = await connection.execute(
        f"SELECT $1::pg_catalog.{kind}::pg_catalog.oid::pg_catalog.text".encode(), (need.name,)
    )
    (oid,) = await found.fetchone() or ("0",)
    await connection.execute("SELECT pg_catalog.set_config('search_path', 'pg_catalog', true)")
    return int(oid)


def _is_certain(error: Exception, need: Need) -> bool:
    """Would the command fail here each time? What other commands make first may only be missing."""
    if not isinstance(error, psycopg.Error):
        return not need.loose
    found = judge_error(error)
    if found.trouble in _PASSING or found.sqlstate not in _LACKS:
        return False
    return not (need.loose and found.sqlstate in _MISSING)


def _words(error: Exception) -> str:
    """Return what the server says of it. It names what is missing, and no values of rows."""
    if isinstance(error, psycopg.Error):
        return error.diag.message_primary or str(error)
    return str(error)
