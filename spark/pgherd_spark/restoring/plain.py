"""Puts a snapshot into a database of a plain server, which has nothing of pgherd's afterwards.

Rows are written by the role that connects, a superuser, as ``pg_restore`` would: no role of ours
can log in to somebody else's server.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
from pgherd_sidecar.pg import apply_role

from pgherd_spark.reading import statements
from pgherd_spark.restoring.restore import RestoreError, let_in, limited, restore, run_script
from pgherd_spark.restoring.seeding import SeedError, newest
from pgherd_spark.storing.layout import ROLES, require_described
from pgherd_spark.storing.parts import PartError
from pgherd_spark.storing.stores import Store

_SQL = statements.load("restore.sql")
_MAKES = re.compile(r'^(?:CREATE|ALTER) ROLE (?:"((?:[^"]|"")+)"|(\w+))[ ;]')
_OURS = ("pgherd_apply", "pgherd_jobs")
_NAMES_OURS = re.compile(r"\bpgherd_(apply|jobs)\b")


def put(
    source: Store, *, conninfo: str, programs: Path, jobs: int, say: Callable[[str], None]
) -> int:
    """Fill an empty database; return the GID at which its rows stand.

    Args:
        source: the snapshot, or a folder of several, of which the newest whole one is taken.
        conninfo: of the database, as a superuser.
        programs: directory of PostgreSQL's programs.
        jobs: parts to load at a time.
        say: told what is going on.

    Raises:
        SeedError: the snapshot is damaged, or the database is not one that can be filled.
        OSError: its store fails.
    """
    try:
        source = newest(source)
        manifest = require_described(source)
        _require_plain(manifest)
        with psycopg.connect(conninfo, autocommit=True) as connection:
            _require_empty(connection)
            there = {name for (name,) in connection.execute(_SQL["roles_there"])}
        say(f"reading the snapshot {source}")
        script = missing_roles(source.get(ROLES).decode(), there)
        run_script(programs, conninfo, script)
        let_in(conninfo, [name for name in limited(manifest) if name not in there], say)
        run_script(programs, conninfo, apply_role.script())  # grants name it
        restore(
            source, manifest, conninfo=conninfo, programs=programs, jobs=jobs, say=say,
            writes_rows=None,
        )  # fmt: skip
        with psycopg.connect(conninfo, autocommit=True) as connection:
            connection.execute(_SQL["make_plain"])
    except (PartError, RestoreError) as error:
        raise SeedError(f"the snapshot can't be used: {error}") from error
    except psycopg.Error as error:
        raise SeedError(f"the server can't be used: {error}") from error
    return int(manifest["gid"])


def _require_plain(manifest: dict[str, Any]) -> None:
    if found := manifest["uses_ours"]:
        raise SeedError(
            f"a plain server has nothing in its place: {'; '.join(found)}: change or drop these in"
            " the herd, and take another snapshot"
        )


def _require_empty(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    row = connection.execute(_SQL["emptiness"]).fetchone()
    assert row is not None  # it has no FROM
    superuser, member, table = row
    if not superuser:
        raise SeedError("only a superuser can make all that a snapshot holds: give another --to")
    if member:
        raise SeedError(
            "the server is a member of a herd, or an earlier attempt has left something in another"
            " of its databases: give a plain server's --to, or drop that database"
        )
    if table is not None:
        raise SeedError(f"the database is not empty, it has {table}: give another --to")


def missing_roles(script: str, there: set[str]) -> str:
    """What ``pg_dumpall`` wrote of the roles, without ours and those that a server has."""
    kept = []
    for line in script.splitlines(keepends=True):
        made = _MAKES.match(line)
        name = (made[1] or made[2]).replace('""', '"') if made else ""
        if name not in there and not _NAMES_OURS.search(line):
            kept.append(line)
    return "".join(kept)
