"""The copy itself: a base backup of a partner, made this member's own before anybody can enter it.

Everything happens in a directory of its own beside the server's data directory.
"""

import asyncio
import contextlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from psycopg import sql

from pgherd_sidecar.agent.base.config import NodeConfig, PartnerServer, RecoverySettings
from pgherd_sidecar.agent.base.errors import UnfitError
from pgherd_sidecar.agent.membership.notes import SPLIT_AT, Note
from pgherd_sidecar.agent.recovery.partners import conninfo
from pgherd_sidecar.agent.server.advertising import READ_ONLY_LINE
from pgherd_sidecar.env.processes.pacing import Pace
from pgherd_sidecar.env.processes.programs import ProgramError, bytes_of, end_leftovers, run_program
from pgherd_sidecar.env.storage import durable

_FINGERPRINT = re.compile(r'key_fingerprint = "(\w+)"')
_SETTINGS = "postgresql.auto.conf"
_NO_ARCHIVE_LINE = "archive_mode = 'off'\n"
"""A copy writes other WAL than its partner, under names that the partner's archive may hold."""
_OWN_SEQUENCES = (
    "DECLARE last pg_catalog.oid := 0; positions pg_catalog.jsonb := {};"
    " BEGIN LOOP last := pgherd.own_sequences(last, positions); EXIT WHEN last IS NULL;"
    " COMMIT; END LOOP; END"
)
"""One line, as the server in single-user mode reads a command."""
_OF_THIS_CLUSTER = (
    "BEGIN IF EXISTS (SELECT FROM pgherd.recovery_source s"
    " WHERE s.cluster_id OPERATOR(pg_catalog.<>) {})"
    " AND (SELECT c.gid FROM pgherd.chain_end() c) OPERATOR(pg_catalog.>) {}"
    " THEN RAISE EXCEPTION 'the copy is of another cluster'; END IF; END"
)
"""A partner's sidecar writes its cluster down before the first commit there."""


async def copy(
    config: NodeConfig,
    recovery: RecoverySettings,
    partner: PartnerServer,
    target: Path,
    *,
    rate: int | Pace,
    on_progress: Callable[[int, int], None],
) -> None:
    """Take a base backup with the WAL it needs, on stable storage when this returns.

    Args:
        config: this node's.
        recovery: its part for this.
        partner: whom to copy.
        target: where to; must not exist.
        rate: bytes a second at most; or what depends on the partner's clients.
        on_progress: called in a thread with the bytes done and in total, now and then.

    Raises:
        ProgramError: the copy failed, or does not fit on the disk.
    """
    free = shutil.disk_usage(target.parent).free

    def read(line: str) -> None:
        told = bytes_of(line)
        if told is not None:
            total = told[1]
            if total > free:
                raise ProgramError(f"disk full: a copy takes {total >> 20} MB, {free >> 20} free")
            on_progress(*told)

    limit = [f"--max-rate={rate >> 10}"] if isinstance(rate, int) else []
    await run_program(
        recovery.postgres_bin / "pg_basebackup", f"--pgdata={target}", *limit,
        f"--dbname={conninfo(config, recovery, partner)}", "--no-password", "--progress",
        "--wal-method=stream", "--no-manifest", f"--checkpoint={recovery.checkpoint}",
        on_line=read,
        beside=rate.accompany if isinstance(rate, Pace) else None,
    )  # fmt: skip


async def make_own(
    config: NodeConfig,
    recovery: RecoverySettings,
    target: Path,
    *,
    needed_gid: int,
    fingerprint: str,
    sequences: dict[str, int],
) -> None:
    """Replay the copy's WAL and reset its identity (C18), with no server that could be entered.

    May be repeated.

    Args:
        config: this node's.
        recovery: its part for this.
        target: the copy.
        needed_gid: the copy must not end before it.
        fingerprint: how the other members hash keys, if that is known.
        sequences: where this member is known to have been with its sequences.

    Raises:
        ProgramError: it can't be used.
        UnfitError: this server hashes keys otherwise than the other members'.
        OSError: the disk failed.
    """

    told = ""

    def compare(line: str) -> None:
        nonlocal told
        match = _FINGERPRINT.search(line)
        told = told if match is None else match[1]
        if told and fingerprint not in ("", told):
            raise UnfitError(
                "PostgreSQL on this machine hashes keys otherwise than that of the other members: "
                "use the same major version, encoding and ICU"
            )

    for path in recovery.overlay.iterdir() if recovery.overlay is not None else ():
        await asyncio.to_thread(durable.replace, target, path.name, path.read_bytes())
    (target / "postmaster.pid").unlink(missing_ok=True)  # of an attempt that was killed
    settings = (target / _SETTINGS).read_text() + READ_ONLY_LINE  # until the sidecar says otherwise
    settings += _NO_ARCHIVE_LINE
    await asyncio.to_thread(durable.replace, target, _SETTINGS, settings.encode(), 0o600)
    common = int(Note(config.data_dir, SPLIT_AT).text or 0)
    of_this_cluster = sql.SQL(_OF_THIS_CLUSTER).format(str(config.cluster_id), common)
    own_sequences = sql.SQL(_OWN_SEQUENCES).format(json.dumps(sequences)).as_string(None)
    statements = sql.SQL(
        "SET default_transaction_read_only = off\n"  # whatever the files or the database say
        "SELECT pgherd.key_fingerprint()\nDO {}\n"
        "SELECT pgherd.become_member({}, {}, {})\nDO {}\n"
    ).format(of_this_cluster.as_string(None), config.number, config.name, needed_gid, own_sequences)
    await run_program(
        recovery.postgres_bin / "postgres", "--single", "-D", str(target),
        "-c", "exit_on_error=on", "-c", "logging_collector=off", "-c", "log_destination=stderr",
        config.postgres.database,
        stdin=statements.as_string(None).encode(), on_line=compare,
    )  # fmt: skip
    if not told:
        raise ProgramError("the copy did not tell how it hashes keys")


def make_room(target: Path, copy_name: str) -> None:
    """Remove what an earlier exchange has kept; it takes long, so it comes before the downtime."""
    if target.exists() and target.with_name(copy_name).exists():
        shutil.rmtree(replaced(target), ignore_errors=True)


def exchange(target: Path, copy_name: str) -> None:
    """Put the copy into the place of the data directory; that one is kept beside it.

    May be repeated after a crash at any point.
    """
    copied = target.with_name(copy_name)
    if copied.exists():
        old = replaced(target)
        if target.exists():
            shutil.rmtree(old, ignore_errors=True)
            target.rename(old)
        copied.rename(target)
    durable.sync_directory(target.parent)  # also if it was a former attempt that has renamed them


def replaced(target: Path) -> Path:
    """Where the old data directory is until the copy has caught up."""
    return target.with_name(target.name + ".replaced")


def copies(target: Path) -> list[Path]:
    """The directory that attempts to copy have left, or are writing."""
    return list(target.parent.glob(f"{target.name}.copy-*"))


def remove_copies(target: Path, *, but: str | None = None) -> None:
    """End and remove what earlier attempts have left."""
    for option in ("--pgdata", "--file"):
        end_leftovers(f"{option}={target}.copy-")
    for path in copies(target):
        if path.name != but:
            with contextlib.suppress(OSError):
                shutil.rmtree(path)
