"""Fills the servers of a new herd from a snapshot, before its sidecars first run.

The first server takes the snapshot in; the others get a copy of its files: so all begin with the
same rows at GID 0, and each takes its own share of the sequences' numbers when its sidecar starts.
"""

import asyncio
from typing import TYPE_CHECKING

from psycopg.conninfo import make_conninfo

from pgherd_sidecar.client.errors import HerdError, progress
from pgherd_sidecar.local.herd import Herd
from pgherd_sidecar.local.postgres import PostgresServer

if TYPE_CHECKING:
    from pgherd_spark.storing.stores import Store

_SERVER_S = 60.0


async def fill(description: Herd, source: "Store", jobs: int) -> None:
    """Put the snapshot into every server of the herd; none of them runs afterwards.

    Args:
        description: of a herd without data.
        source: where the snapshot is.
        jobs: parts to load at a time.

    Raises:
        HerdError: the snapshot is damaged, or does not fit.
        OSError: its store fails.
    """
    from pgherd_spark.restoring.seeding import SeedError, seed  # noqa: PLC0415 - not for those who never do

    first, *others = description.databases
    server = PostgresServer(description, first)
    try:
        await server.initialise()
        await server.start(_SERVER_S)
        await server.provide_database()
        socket, programs = description.node(first).run, description.postgres_bin
        conninfo = make_conninfo(description.dsn(first), host=str(socket))
        await asyncio.to_thread(
            seed, source, conninfo=conninfo, programs=programs, jobs=jobs, say=progress
        )
        await server.stop(_SERVER_S)
    except SeedError as error:
        raise HerdError(str(error)) from error
    finally:
        await server.stop(_SERVER_S, mode="immediate")  # if it still runs
    for member in others:
        progress(f"{member.name}: copying the files of {first.name}")
        await PostgresServer(description, member).initialise(like=server)
