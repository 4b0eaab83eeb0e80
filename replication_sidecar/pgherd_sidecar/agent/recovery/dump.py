"""A partner's database as ``pg_dump`` and ``pg_dumpall`` write it, at one GID.

A session on the partner holds the snapshot, and locks all tables before it takes it: what replaces
a table's file leaves nothing for a snapshot to read, and no error. A command that needs one of the
locks ends that session, since it is ordered already; then the dump has failed, and another begins.
Roles know no snapshot: if they have changed meanwhile the dump has failed, too.
"""

import contextlib
import re
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from pgherd_sidecar.agent.base.config import NodeConfig, PartnerServer, RecoverySettings
from pgherd_sidecar.agent.recovery.carried import ROLES, ROWS, Carried, prepare_directory
from pgherd_sidecar.agent.recovery.columns import columns_of
from pgherd_sidecar.agent.recovery.partners import conninfo
from pgherd_sidecar.env.processes.programs import ProgramError, run_program

_TABLE = re.compile(r"(?:dumping contents of|processing data for) table \"(.+)\"$")
_NO_LIMITS = """
SELECT set_config(name, '0', false) FROM pg_settings
 WHERE name IN ('idle_in_transaction_session_timeout', 'statement_timeout', 'transaction_timeout')
"""
_LOCK = sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE")


async def dump(
    config: NodeConfig,
    recovery: RecoverySettings,
    partner: PartnerServer,
    target: Path,
    on_progress: Callable[[int, int], None],
) -> None:
    """Dump roles, definitions and rows, on stable storage when this returns.

    Args:
        config: this node's.
        recovery: its part for this.
        partner: whom to dump.
        target: directory to make.
        on_progress: called in a thread with the bytes of rows begun with and in total.

    Raises:
        ProgramError: it failed, does not fit on the disk, or something was changed meanwhile.
        OSError: the disk failed.
    """
    prepare_directory(target)
    where = conninfo(config, recovery, partner)
    try:
        async with _standing_still(where) as (holder, sizes):
            free, needed = shutil.disk_usage(target).free, sum(sizes.values())
            if needed > free:
                raise ProgramError(f"disk full: {needed >> 20} MB of rows, {free >> 20} free")
            cluster = str(config.cluster_id)
            carried, snapshot = await _described(holder, target, sizes, cluster)
            await run_program(
                recovery.postgres_bin / "pg_dump", "--format=directory", f"--jobs={recovery.jobs}",
                f"--file={target / ROWS}", f"--snapshot={snapshot}", "--compress=1", "--verbose",
                "--exclude-schema=pgherd", "--exclude-schema=pgherd_gen", "--no-password",
                "--no-unlogged-table-data", "--lock-wait-timeout=60s",
                *(f"--exclude-table-data={name}" for name in carried.local_tables),
                f"--dbname={where}",
                on_line=counting(sizes, on_progress),
            )  # fmt: skip
            await run_program(
                recovery.postgres_bin / "pg_dumpall", "--roles-only", "--no-password",
                f"--file={target / ROLES}", f"--dbname={where}",
                f"--database={config.postgres.database}",
            )  # fmt: skip
            await _require_same_roles(where, holder)
        carried.save(target)
    except psycopg.Error as error:
        raise ProgramError(f"{partner.member}: {error}") from error


def counting(
    sizes: dict[str, int], on_progress: Callable[[int, int], None]
) -> Callable[[str], None]:
    """Return what reads the lines of ``pg_dump`` and ``pg_restore`` and tells how far they are."""
    total, begun = sum(sizes.values()), 0
    last = 0

    def read(line: str) -> None:
        nonlocal begun, last
        match = _TABLE.search(line)
        if match is not None:
            begun, last = begun + last, sizes.get(match[1], 0)
            on_progress(begun, total)

    return read


@contextlib.asynccontextmanager
async def _standing_still(
    where: str,
) -> "AsyncIterator[tuple[psycopg.AsyncConnection[Any], dict[str, int]]]":
    """A transaction in whose snapshot all tables are those that it has locked; with their sizes.

    Raises:
        ProgramError: a table was replaced before it was locked.
        psycopg.Error: the server is gone, or has ended the session.
    """
    async with await psycopg.AsyncConnection.connect(where, autocommit=True) as holder:
        await holder.execute(_NO_LIMITS)
        tables, files = await _tables(holder)
        await holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        if tables:
            await holder.execute("SET LOCAL lock_timeout = '60s'")
            names = sql.SQL(", ").join(sql.Identifier(*table[:2]) for table in tables)
            await holder.execute(_LOCK.format(names))
        tables, files_locked = await _tables(holder)
        if files != files_locked:
            raise ProgramError("tables were made or changed at this moment")
        yield holder, {f"{schema}.{name}": size for schema, name, size in tables}


async def _tables(
    holder: psycopg.AsyncConnection[Any],
) -> tuple[list[tuple[str, str, int]], str | None]:
    rows = await holder.execute("SELECT tables, files FROM pgherd.dumped_tables()")
    row = await rows.fetchone()
    assert row is not None  # it has aggregates only
    tables, files = row
    return tables, files


async def _described(
    holder: psycopg.AsyncConnection[Any], target: Path, sizes: dict[str, int], cluster: str
) -> tuple[Carried, str]:
    """Return what goes with the dump, and the name of the snapshot.

    Raises:
        ProgramError: it is of another cluster.
    """
    rows = await holder.execute(
        "SELECT pgherd.carried(), pg_export_snapshot(), getdatabaseencoding(), datcollate,"
        " datctype, (SELECT s.cluster_id FROM pgherd.recovery_source s)"
        " FROM pg_database WHERE datname = current_database()"
    )
    row = await rows.fetchone()
    assert row is not None  # a database is connected to
    said, snapshot, encoding, collate, ctype, found = row
    if found != cluster:
        raise ProgramError(f"the partner has split off: it is of cluster {found}")
    carried = Carried(
        **said,
        encoding=encoding,
        collate=collate,
        ctype=ctype,
        archive=str(target / ROWS),
        roles=str(target / ROLES),
        sizes=sizes,
        columns=await columns_of(holder),
    )
    return carried, snapshot


async def _require_same_roles(where: str, holder: psycopg.AsyncConnection[Any]) -> None:
    """Check that roles and what they may do are still those of the snapshot.

    Raises:
        ProgramError: they are not.
    """
    asked = "SELECT pgherd.roles_fingerprint()"
    async with await psycopg.AsyncConnection.connect(where) as other:
        now = await (await other.execute(asked)).fetchone()
    if now != await (await holder.execute(asked)).fetchone():
        raise ProgramError("roles were changed meanwhile")
