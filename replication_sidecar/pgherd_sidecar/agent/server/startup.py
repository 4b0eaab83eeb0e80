"""Brings the server beside the sidecar to a known state before a new incarnation begins.

In this order: the node takes no writes, our SQL is installed, the node is fenced under a new
secret, whatever an earlier incarnation left in the middle of a commit is ended, and only then the
end of the commit chain is read: nobody can add to it any more but this incarnation.
"""

import asyncio
import hashlib
import secrets
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

import psycopg
import structlog
from psycopg import sql
from psycopg.abc import RV, PQGen

from pgherd_sidecar.agent.base.config import NodeConfig
from pgherd_sidecar.agent.base.defaults import HOOK_SOCKET
from pgherd_sidecar.agent.base.errors import DivergedError
from pgherd_sidecar.agent.checkpoint import certstate
from pgherd_sidecar.agent.membership.identity import IdentityError
from pgherd_sidecar.agent.server.advertising import advertise
from pgherd_sidecar.pg import trusted

log = structlog.get_logger()

APPLY_ROLE = "pgherd_apply"
"""Writes what other members committed; see 095_apply_role.sql."""

ADMINISTRATION = (
    "SET session_replication_role = replica; SET statement_timeout = 0; SET lock_timeout = 0;"
    " SET idle_in_transaction_session_timeout = 0; SET client_min_messages = warning;"
    f" {trusted.AFTERWARDS}"
)
"""The statements that administrative sessions begin with."""

_REFUSE_WRITES = """
DO $$ BEGIN
    IF to_regclass('pgherd.node') IS NOT NULL THEN
        UPDATE pgherd.node SET writable = false, reason = 'it is starting';
    END IF;
END $$
"""

_END_WHO_IS_IN_THE_WAY = """
SELECT s.pid, s.usename, s.state, pg_terminate_backend(s.pid)
  FROM pg_locks l, unnest(pg_blocking_pids(l.pid)) AS b(pid) JOIN pg_stat_activity s USING (pid)
 WHERE l.pid = $1 AND l.waitstart < clock_timestamp() - interval '2 s'
"""
"""A session that holds a lock for so long is in no short transaction."""

_WAIT_S = 0.05
_BLOCKED_LOOK_S = 0.5
_LOOK_S = 10.0
"""So often a session that mostly waits is looked at, whatever its socket says."""


class _Idle(psycopg.AsyncConnection[Any]):
    """A session that mostly waits, and wakes the process when its server says something.

    psycopg would look ten times a second whether the socket was closed under it. Nobody closes one
    of these but the task that waits.
    """

    def wait(
        self, gen: PQGen[RV], interval: float = _LOOK_S, *args: Any, **kwargs: Any
    ) -> Coroutine[Any, Any, RV]:
        return super().wait(gen, interval, *args, **kwargs)


@dataclass(frozen=True, slots=True)
class Server:
    """The server, as a new incarnation knows it.

    Attributes:
        chain_end: everything up to this GID is applied.
        secret: what messages of certify() carry.
        sql_reason: why rows are captured in SQL; empty if the native module does it.
    """

    chain_end: int
    secret: str
    sql_reason: str


def conninfo(
    config: NodeConfig,
    application_name: str,
    user: str | None = None,
    database: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> str:
    """How to connect to the server: by default as superuser, to the replicated database.

    Args:
        settings: what the session begins with, and ``RESET ALL`` returns to.
    """
    return psycopg.conninfo.make_conninfo(
        host=config.postgres.host,
        port=config.postgres.port,
        user=user or config.postgres.user,
        dbname=database or config.postgres.database,
        application_name=application_name,
        connect_timeout=10,
        options=trusted.options(settings),
    )


async def connect(
    config: NodeConfig,
    application_name: str,
    cursor: type[psycopg.AsyncCursor[Any]] = psycopg.AsyncRawCursor,
    *,
    database: str | None = None,
    settings: Mapping[str, str] | None = None,
    idle: bool = False,
) -> psycopg.AsyncConnection[Any]:
    """Open an administrative connection: outside replication, and with no limits of its own.

    Args:
        idle: it will mostly wait for its server; nobody closes it while a task waits with it.
    """
    kind = _Idle if idle else psycopg.AsyncConnection[Any]
    connection = await kind.connect(
        conninfo(config, application_name, database=database, settings=settings),
        autocommit=True,
        cursor_factory=cursor,
    )
    await connection.execute(ADMINISTRATION)
    return connection


async def refuse_lost_identity(
    config: NodeConfig, connection: psycopg.AsyncConnection[Any], incarnation: int
) -> None:
    """Refuse to go on if the server knows this member's incarnations better than its disk (C18).

    Called before the next incarnation begins: each failed start would come one nearer.

    Args:
        incarnation: the newest one on disk.

    Raises:
        IdentityError: the sidecar's directory is lost, or is an older copy.
        psycopg.Error: the server is gone.
    """
    known = await connection.execute("SELECT to_regclass('pgherd.node') IS NOT NULL")
    if not (await known.fetchone() or (False,))[0]:
        return
    newer = await connection.execute(
        "SELECT incarnation FROM pgherd.node WHERE member = $1 AND incarnation > $2",
        (config.number, incarnation),
    )
    row = await newer.fetchone()
    if row is not None:
        raise IdentityError(
            f"the database has seen incarnation {row[0]} of member {config.name}, {config.data_dir}"
            f" knows of {incarnation}: it is not the directory this member had"
        )


async def prepare_server(
    config: NodeConfig,
    connection: psycopg.AsyncConnection[Any],
    watch: psycopg.AsyncConnection[Any],
    incarnation: int,
) -> Server:
    """Do all of the above.

    Args:
        connection: an administrative connection.
        watch: another one.
        incarnation: the new one.

    Raises:
        DivergedError: the commit chain has a hole.
        psycopg.Error: the server is not there, or refuses.
    """
    await connection.execute(_REFUSE_WRITES)
    sql_reason = await _install_now(config, connection, watch)
    checkpoint = config.data_dir / certstate.FILE
    await connection.execute(
        "SELECT pgherd.offer_copies($1, $2)", (str(config.cluster_id), str(checkpoint))
    )
    await _roll_back_copied(config, connection)
    secret = secrets.token_hex(16)
    await _fence(config, connection, incarnation, secret)
    await _end_old_commits(connection)
    await connection.execute("SELECT pgherd.keep_commands_waiting(), pgherd.let_apply()")
    row = await (await connection.execute("SELECT * FROM pgherd.chain_end()")).fetchone()
    assert row is not None
    chain_end, broken_at = row
    if broken_at is not None:
        raise DivergedError(f"the commit chain is broken at GID {broken_at}")
    await _warn_of_collations(connection)
    return Server(chain_end, secret, sql_reason)


async def _warn_of_collations(connection: psycopg.AsyncConnection[Any]) -> None:
    """Say so where an index may be in the wrong order: it may miss rows, and let duplicates in."""
    row = await (await connection.execute("SELECT pgherd.stale_collations()")).fetchone()
    if row is not None and row[0]:
        log.warning(
            "server.collations_stale",
            collations=row[0],
            remedy="REINDEX what uses them, then ALTER COLLATION or DATABASE ... REFRESH VERSION",
        )


async def _install_now(
    config: NodeConfig,
    connection: psycopg.AsyncConnection[Any],
    watch: psycopg.AsyncConnection[Any],
) -> str:
    """Install our SQL, and end the sessions that hold the locks it needs; see ``install``.

    All writes would wait behind them, and nobody tells how long an idle transaction lasts.
    """
    installing = asyncio.create_task(install(connection, native=config.capture == "auto"))
    try:
        while not (await asyncio.wait({installing}, timeout=_BLOCKED_LOOK_S))[0]:
            rows = await watch.execute(_END_WHO_IS_IN_THE_WAY, (connection.info.backend_pid,))
            for pid, user, state, _ in await rows.fetchall():
                log.warning("server.in_the_way", pid=pid, user=user, state=state)
    finally:
        installing.cancel()
        await asyncio.wait({installing})
    return await installing


async def install(connection: psycopg.AsyncConnection[Any], *, native: bool) -> str:
    """Run our SQL files, unless they were run last and on such a server, and choose how to capture.

    Args:
        connection: an administrative connection.
        native: rows may be captured by the native module, where it is.

    Returns:
        Why rows are captured in SQL; empty if the native module does it.

    Raises:
        psycopg.Error: the server is gone, or refuses.
    """
    folder = resources.files("pgherd_sidecar.pg") / "sql"
    scripts = sorted(
        (entry for entry in folder.iterdir() if entry.name[:2].isdigit()), key=lambda e: e.name
    )
    texts = [script.read_text() for script in scripts]
    server = str(connection.info.server_version)  # some of our SQL depends on it
    fingerprint = hashlib.sha256("\0".join([*texts, server]).encode()).hexdigest()
    known = await connection.execute("SELECT to_regclass('pgherd.installed') IS NOT NULL")
    if (await known.fetchone() or (False,))[0]:
        same = await connection.execute(
            "SELECT FROM pgherd.installed WHERE fingerprint = $1"
            # A database that was restored from a dump has PostgreSQL's own again.
            " AND 'pg_catalog.setval(regclass, int8)'::regprocedure::oid >= 16384",
            (fingerprint,),
        )
        if await same.fetchone() is not None:
            return await _choose_capture(connection, native=native, anew=False)
    async with connection.transaction():
        for text in texts:
            await connection.execute(text)
        await connection.execute("DELETE FROM pgherd.installed")
        await connection.execute("INSERT INTO pgherd.installed VALUES ($1)", (fingerprint,))
        sql_reason = await _choose_capture(connection, native=native, anew=True)
    log.info("server.installed", fingerprint=fingerprint[:12])
    return sql_reason


async def _choose_capture(
    connection: psycopg.AsyncConnection[Any], *, native: bool, anew: bool
) -> str:
    """Have rows captured by the native module, if it is there and wanted; say why if in SQL."""
    rows = await connection.execute("SELECT pgherd.choose_capture($1, $2)", (native, anew))
    row = await rows.fetchone()
    assert row is not None
    reason = str(row[0])
    log.info("server.capture", mode="sql" if reason else "native", reason=reason)
    return reason


async def _roll_back_copied(config: NodeConfig, connection: psycopg.AsyncConnection[Any]) -> None:
    """End the prepared transactions that came with a copy of a partner: they are not ours (C18)."""
    rows = await connection.execute(
        "SELECT c.gid, c.database, EXISTS (SELECT FROM pg_prepared_xacts p WHERE p.gid = c.gid)"
        " FROM pgherd.copied_transaction c"
    )
    for gid, database, there in await rows.fetchall():
        if there:
            elsewhere = await connect(config, "pgherd", database=database)
            async with elsewhere:
                await elsewhere.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid)))
        await connection.execute("DELETE FROM pgherd.copied_transaction WHERE gid = $1", (gid,))


async def _fence(
    config: NodeConfig,
    connection: psycopg.AsyncConnection[Any],
    incarnation: int,
    secret: str,
) -> None:
    hook = psycopg.conninfo.make_conninfo(
        host=str(config.hook_dir), port=1, user="pgherd", dbname="pgherd", connect_timeout=5
    )
    async with connection.transaction():
        await connection.execute("DELETE FROM pgherd.node")
        await connection.execute(
            "INSERT INTO pgherd.node (member, member_name, slots, incarnation, epoch, secret,"
            " hook_conninfo, hook_socket, writable, reason, piece_bytes, fingerprint_every)"
            " VALUES ($1, $2, $3, $4, $4, $5, $6, $7, false, $8, $9, $10)",
            (
                config.number,
                config.name,
                config.sequence_slots,
                incarnation,
                secret,
                hook,
                str(config.hook_dir / HOOK_SOCKET),
                "it is starting",
                config.limits.piece_bytes,
                config.fingerprint_every,
            ),
        )
        await connection.execute("INSERT INTO pgherd.alive VALUES (true) ON CONFLICT DO NOTHING")
    await advertise(connection, writes=False)


async def _end_old_commits(connection: psycopg.AsyncConnection[Any]) -> None:
    """Terminate whoever holds a commit token or wrote for the applier; wait until none is left.

    A repair of an earlier incarnation, say, would add to the commit chain behind our back.
    """
    while True:
        rows = await connection.execute(
            "SELECT pgherd.end_token_holders() + pgherd.end_old_writers()"
        )
        left = await rows.fetchone()
        if left is None or left[0] == 0:
            return
        await asyncio.sleep(_WAIT_S)


async def set_writable(
    connection: psycopg.AsyncConnection[Any], writable: bool, reason: str, *, held: bool = False
) -> None:
    """Let the first write of a transaction pass, or fail with this reason.

    Args:
        connection: an administrative connection.
        writable: it passes.
        reason: why not.
        held: it fails because the herd takes none: the node can be copied all the same.
    """
    await connection.execute(
        "UPDATE pgherd.node SET writable = $1, reason = $2, held = $3", (writable, reason, held)
    )
