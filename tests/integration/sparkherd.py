"""What the tests of the jobs need: members as jobs reach them, and one Spark for all tests."""

import asyncio
import importlib.util
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pgherd_sidecar.client.admin import AdminClient, AdminError
from pgherd_sidecar.local import herd as herds
from pgherd_spark.reading.cluster import Cluster, is_installed
from pgherd_spark.reading.leases import Member
from pgherd_spark.restoring.restore import restore
from pgherd_spark.snapshots.snapshot import SnapshotOptions, snapshot
from pgherd_spark.storing.layout import JOB, require_described, snapshots
from pgherd_spark.storing.stores import DirectoryStore, Store
from psycopg import sql
from psycopg.conninfo import make_conninfo

from .localherd import COMMAND_TIMEOUT_S, LocalHerd

Snapshot = tuple[DirectoryStore, dict[str, Any]]
NEEDS_SPARK = pytest.mark.skipif(
    not is_installed(),
    reason="NO JAVA OR PYSPARK: the jobs on Spark are NOT tested. Run `scripts/setup spark`",
)
NEEDS_PYARROW = pytest.mark.skipif(
    importlib.util.find_spec("pyarrow") is None,
    reason="NO PYARROW: parts of snapshots are NOT tested. Run `scripts/setup spark`",
)


class OneByOne(Cluster):
    """Runs tasks in this process: a snapshot without Spark."""

    def __init__(self) -> None:
        pass

    def each(self, tasks: Any, run: Callable[[Any], Any], **_: int) -> list[Any]:
        return [run(task) for task in tasks]

    async def in_thread(self, action: Callable[[], Any]) -> Any:
        return await asyncio.to_thread(action)

    def cancel(self) -> None:
        pass


def members_of(herd: LocalHerd) -> dict[str, Member]:
    """The members of a herd on this machine, as the jobs reach them."""
    description = herds.load(herd.directory.resolve())
    return {
        member.name: Member(
            member.name,
            AdminClient(description.node(member).admin_socket),
            description.dsn(member),
        )
        for member in description.members
    }


def run_job(herd: LocalHerd, job: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``pgherd JOB ... --dir`` with two cores and return how it went."""
    program = [sys.executable, "-m", "pgherd_sidecar.cli.main", job, "--cores", "2", *arguments]
    return subprocess.run(
        [*program, "--dir", str(herd.directory)],
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        check=False,
    )


def given_back(herd: LocalHerd, store: Store) -> None:
    """Have the members give up at once what failed jobs could have been gone on with."""
    for marker in markers(store):
        for member in members_of(herd).values():
            asyncio.run(member.admin.drop_marker(marker))


def markers_held(herd: LocalHerd, store: Store) -> set[str]:
    """The members that hold a snapshot for one of the jobs whose files are in the store."""
    return {name for marker in markers(store) for name in holders(herd, marker)}


def holders(herd: LocalHerd, marker: str) -> set[str]:
    """The members that hold a marker's snapshot."""
    held = set()
    for name, member in members_of(herd).items():
        with suppress(AdminError):
            asyncio.run(member.admin.lease_marker(marker, 1))
            held.add(name)
    return held


def markers(store: Store) -> list[str]:
    """Those of the jobs whose files are in the store."""
    return [json.loads(store.below(name).get(JOB))["marker"] for name in snapshots(store)]


def behind_the_herd_s_back(herd: LocalHerd, node: str, *statements: str) -> None:
    """What only a superuser can do, and never should."""
    with psycopg.connect(
        herd.member(node)["dsn"], autocommit=True, options="-c session_replication_role=replica"
    ) as connection:
        for statement in statements:
            connection.execute(statement.encode())


async def take(
    herd: LocalHerd,
    to: Path,
    say: Callable[[str], None] = print,
    *,
    read: tuple[str, ...] = ("n1",),
    part_bytes: int = 256 << 20,
) -> Snapshot:
    """A new snapshot, without Spark."""
    options = SnapshotOptions(
        to=DirectoryStore(to),
        read=read,
        programs=herds.load(herd.directory.resolve()).postgres_bin,
        cluster_id="of this test",
        part_bytes=part_bytes,
    )
    store = await snapshot(OneByOne(), members_of(herd), options, say)
    assert isinstance(store, DirectoryStore)
    return store, require_described(store)


@contextmanager
def database(herd: LocalHerd) -> Iterator[str]:
    """An empty database beside the herd's."""
    description = herds.load(herd.directory.resolve())
    first = description.databases[0]
    name = f"r_{random.getrandbits(40):x}"
    way = make_conninfo(description.dsn(first), host=str(description.node(first).run))
    with psycopg.connect(make_conninfo(way, dbname="postgres"), autocommit=True) as server:
        server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        yield make_conninfo(way, dbname=name)
        server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def put(
    herd: LocalHerd,
    store: Store,
    manifest: dict[str, Any],
    into: str,
    say: Callable[[str], None] = print,
) -> None:
    """Load a snapshot into such a database."""
    programs = herds.load(herd.directory.resolve()).postgres_bin
    restore(store, manifest, conninfo=into, programs=programs, jobs=2, say=say)
