"""A fresh server filled with what was carried: the half that dump and snapshot have in common.

The server runs under the eyes of nobody: without a port, its socket where only this account can
go, and it dies with the sidecar. It writes without waiting for the disk, since a load that was
interrupted begins anew; all of it is put on stable storage before it counts. When it has stopped,
its files are as a copy of a partner's are.
"""

import asyncio
import contextlib
import json
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psycopg
import structlog
from psycopg.conninfo import make_conninfo

from pgherd_sidecar.agent.base.config import NodeConfig, RecoverySettings
from pgherd_sidecar.agent.recovery import carried as carrying
from pgherd_sidecar.agent.recovery.carried import Carried
from pgherd_sidecar.agent.recovery.columns import require_columns
from pgherd_sidecar.agent.recovery.dump import counting
from pgherd_sidecar.agent.server import startup
from pgherd_sidecar.env.processes.programs import (
    ProgramError,
    bytes_of,
    environment_of_modules,
    module,
    run_program,
    start_program,
)
from pgherd_sidecar.pg import apply_role, archives

log = structlog.get_logger()

_POLL_S = 0.1
_JOB = "pgherd_spark.restoring.load"
_RESTORE = ("--exit-on-error", "--no-tablespaces", "--no-password")
_UNSAFE_BUT_FAST = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_wal_size": "4GB",
    "archive_mode": "off",
    "autovacuum": "off",
}


async def fill(
    config: NodeConfig,
    recovery: RecoverySettings,
    target: Path,
    on_progress: Callable[[int, int], None],
) -> None:
    """Make a server and load it.

    Args:
        config: this node's.
        recovery: its part for this.
        target: its data directory; what an earlier attempt has left of it is removed.
        on_progress: called in a thread with the bytes of rows begun with and in total.

    Raises:
        ProgramError: a program failed, the server refuses something, or there is no room.
        UnfitError: it would not be the same database.
        OSError: the disk failed.
    """
    source = carrying.directory_of(target)
    carried = carrying.load_carried(source)
    await asyncio.to_thread(shutil.rmtree, target, ignore_errors=True)
    free, needed = shutil.disk_usage(target.parent).free, sum(carried.sizes.values())
    if needed > free:
        raise ProgramError(f"disk full: {needed >> 20} MB of rows, {free >> 20} free")
    await _initialise(config, recovery, carried, target)
    try:
        async with _alone(config, recovery, target, source) as inside:
            await _load(inside, recovery, carried, source, on_progress)
            await _take_over(inside, carried)
    except psycopg.Error as error:
        raise ProgramError(f"the new server: {error}") from error
    await run_program(recovery.postgres_bin / "initdb", "--sync-only", f"--pgdata={target}")


async def fetch_head(location: str, endpoint: str | None, directory: Path) -> None:
    """Copy a snapshot out of a store, all but its parts.

    Args:
        location: ``s3://BUCKET/PREFIX`` of one snapshot.
        endpoint: URL of the server, by default as the environment says.
        directory: to be made.

    Raises:
        ProgramError: the store fails, or holds none there.
    """
    await _run_job("head", location, str(directory), *_at(endpoint))


async def fetch_parts(
    location: str,
    endpoint: str | None,
    directory: Path,
    *,
    jobs: int,
    on_progress: Callable[[int, int], None],
) -> None:
    """Copy its parts.

    Args:
        location, endpoint, directory: as for ``fetch_head``, which comes before.
        jobs: how many at a time.
        on_progress: called in a thread with the bytes done and in total.

    Raises:
        ProgramError: the store fails.
    """
    await _run_job(
        "fetch", location, str(directory), *_at(endpoint), "--jobs", str(jobs),
        on_line=_told(on_progress),
    )  # fmt: skip


def _at(endpoint: str | None) -> list[str]:
    return [] if endpoint is None else ["--s3-endpoint", endpoint]


async def check_snapshot(directory: Path) -> None:
    """Compare all files of a snapshot with its manifest.

    Raises:
        ProgramError: it is damaged, or not a whole one.
    """
    await _run_job("check", str(directory))


async def _initialise(
    config: NodeConfig, recovery: RecoverySettings, carried: Carried, target: Path
) -> None:
    await run_program(
        recovery.postgres_bin / "initdb", f"--pgdata={target}",
        f"--username={config.postgres.user}", f"--encoding={carried.encoding}",
        f"--lc-collate={carried.collate}", f"--lc-ctype={carried.ctype}",
        "--auth=reject", "--data-checksums", "--no-sync", "--no-instructions",
    )  # fmt: skip
    if recovery.settings is not None:
        with (target / "postgresql.conf").open("a") as file:
            file.write(f"\ninclude '{recovery.settings}'\n")


@contextlib.asynccontextmanager
async def _alone(
    config: NodeConfig, recovery: RecoverySettings, target: Path, source: Path
) -> AsyncIterator[NodeConfig]:
    """Run the server for this sidecar only; yield a configuration that leads there.

    Raises:
        ProgramError: it does not start, or not stop.
    """
    inside = config.model_copy(
        update={"postgres": config.postgres.model_copy(update={"host": str(config.hook_dir)})}
    )
    (source / "pg_hba.conf").write_text("local all all trust\n")
    settings = _UNSAFE_BUT_FAST | {
        "config_file": str(source / "postgresql.conf"),
        "hba_file": str(source / "pg_hba.conf"),
        "listen_addresses": "",
        "unix_socket_directories": str(config.hook_dir),
        "port": str(config.postgres.port),
    }
    (source / "postgresql.conf").write_text("# all by the command line\n")
    words = [f"--{name}={value}" for name, value in settings.items()]
    log = source / "server.log"
    with log.open("wb") as output:
        server = start_program(
            recovery.postgres_bin / "postgres", "-D", str(target), *words,
            output=output, dies_by=signal.SIGQUIT,
        )  # fmt: skip
    try:
        await _accepts(inside, server, log)
        yield inside
        server.send_signal(signal.SIGINT)
        if await asyncio.to_thread(server.wait) != 0:
            raise ProgramError(f"the new server did not stop cleanly: {_last_line(log)}")
    finally:
        if server.poll() is None:
            server.send_signal(signal.SIGQUIT)
            await asyncio.to_thread(server.wait)
        if server.stdin is not None:
            server.stdin.close()


async def _accepts(inside: NodeConfig, server: "subprocess.Popen[bytes]", log: Path) -> None:
    while server.poll() is None:
        with contextlib.suppress(psycopg.OperationalError):
            await (await startup.connect(inside, "pgherd load", database="postgres")).close()
            return
        await asyncio.sleep(_POLL_S)
    raise ProgramError(f"the new server does not start: {_last_line(log)}")


def _last_line(log: Path) -> str:
    return next(reversed(log.read_text(errors="replace").splitlines()), "it said nothing")


async def _load(
    inside: NodeConfig,
    recovery: RecoverySettings,
    carried: Carried,
    source: Path,
    on_progress: Callable[[int, int], None],
) -> None:
    """Roles, the database itself, then what is in it."""
    programs = recovery.postgres_bin
    roles = await asyncio.to_thread(Path(carried.roles).read_text)
    await run_program(
        programs / "psql", "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--file=-",
        f"--dbname={_where(inside, 'postgres')}",
        stdin=archives.without_role(roles, inside.postgres.user).encode(),
    )  # fmt: skip
    outer, inner = archives.divided(await _contents(programs, carried.archive))
    (source / "outer.list").write_text(outer)
    await run_program(
        programs / "pg_restore", *_RESTORE, "--create", f"--use-list={source / 'outer.list'}",
        f"--dbname={_where(inside, 'postgres')}", carried.archive,
    )  # fmt: skip
    where = _where(inside, inside.postgres.database)
    if carried.snapshot is not None:
        await _run_job(
            "load", carried.snapshot, "--dbname", where, "--programs", str(programs),
            "--jobs", str(recovery.jobs), on_line=_told(on_progress),
        )  # fmt: skip
        await _require_columns(inside, carried)
    else:
        await _load_dump(inside, recovery, carried, source, inner, on_progress)


async def _require_columns(inside: NodeConfig, carried: Carried) -> None:
    async with await startup.connect(inside, "pgherd load") as connection:
        may_have_changed = carried.snapshot is not None
        await require_columns(connection, carried.columns, may_have_changed=may_have_changed)


async def _load_dump(
    inside: NodeConfig,
    recovery: RecoverySettings,
    carried: Carried,
    source: Path,
    inner: str,
    on_progress: Callable[[int, int], None],
) -> None:
    """Definitions, rows, then what is built on rows.

    Rows are written by who is no superuser: code of users runs then, in constraints and domains.
    """
    async with await startup.connect(inside, "pgherd load") as connection:
        await connection.execute(apply_role.script())
        await connection.execute(archives.free_functions())
    rows, rest = archives.rows_apart(inner)
    (source / "rows.list").write_text(rows)
    (source / "rest.list").write_text(rest)
    database, superuser = inside.postgres.database, inside.postgres.user
    for what, user, *sections in (
        ("rest", superuser, "pre-data"),
        ("rows", apply_role.APPLY_ROLE, "data"),
        ("rest", superuser, "data", "post-data"),
    ):
        await run_program(
            recovery.postgres_bin / "pg_restore", *_RESTORE, f"--jobs={recovery.jobs}", "--verbose",
            *(f"--section={section}" for section in sections),
            f"--use-list={source / f'{what}.list'}", f"--dbname={_where(inside, database, user)}",
            carried.archive,
            on_line=counting(carried.sizes, on_progress) if what == "rows" else lambda line: None,
        )  # fmt: skip
        if sections == ["pre-data"]:
            await _require_columns(inside, carried)


async def _contents(programs: Path, archive: str) -> str:
    lines: list[str] = []
    await run_program(programs / "pg_restore", "--list", "--create", archive, on_line=lines.append)
    return "\n".join(lines)


def _told(on_progress: Callable[[int, int], None]) -> Callable[[str], None]:
    def read(line: str) -> None:
        if (told := bytes_of(line)) is not None:
            on_progress(*told)
        else:
            log.info("rebuild.loading", said=line)

    return read


async def _run_job(*arguments: str, on_line: Callable[[str], None] = lambda line: None) -> None:
    """Run what reads snapshots: a program of its own, which can be ended."""
    await run_program(
        *module(_JOB), *arguments, on_line=on_line, environment=environment_of_modules()
    )


async def _take_over(inside: NodeConfig, carried: Carried) -> None:
    """Make it a pgherd database that stands at the GID."""
    said = {
        "gid": carried.gid,
        "local_tables": carried.local_tables,
        "sequences": carried.sequences,
        "shared": carried.shared,
        "role_limits": carried.role_limits,
        "skipped": carried.skipped,
        "long_commands": carried.long_commands,
    }
    async with await startup.connect(inside, "pgherd load") as connection:
        await startup.install(connection, native=inside.capture == "auto")
        await connection.execute(
            "SELECT pgherd.take_over($1, $2, $3, $4)",
            (inside.number, inside.name, inside.sequence_slots, json.dumps(said)),
        )
        await connection.execute("ANALYZE")


def _where(inside: NodeConfig, database: str, user: str | None = None) -> str:
    return make_conninfo(
        host=inside.postgres.host,
        port=inside.postgres.port,
        user=user or inside.postgres.user,
        dbname=database,
        application_name="pgherd load",
        options=apply_role.OPTIONS,
    )
