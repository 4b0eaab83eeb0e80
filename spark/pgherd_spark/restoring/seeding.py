"""Fills an empty server from a snapshot: the content that a new herd begins with.

``python -m pgherd_spark.restoring.seeding LOCATION [ENDPOINT]`` fills the one that libpq's
environment names (``PGHOST``, ``PGUSER``), which has the applications' role and database: so a
founder's container does on Kubernetes. ``pgherd seed`` calls ``seed``. Needs no Spark.
"""

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import click

from pgherd_spark.restoring.restore import RestoreError, make_roles, restore
from pgherd_spark.storing.layout import MANIFEST, herd_of, require_described, snapshots
from pgherd_spark.storing.parts import PartError
from pgherd_spark.storing.stores import Store, at

_DATABASE = "app"
_LIMIT = Path("/sys/fs/cgroup/cpu.max")


class SeedError(Exception):
    """The snapshot can't be used; the message says why."""


def seed(
    source: Store, *, conninfo: str, programs: Path, jobs: int, say: Callable[[str], None]
) -> None:
    """Put a snapshot into a new server.

    Args:
        source: the snapshot, or a folder of several, of which the newest whole one is taken.
        conninfo: of the empty database; see ``restore``.
        programs: directory of PostgreSQL's programs.
        jobs: parts to load at a time.
        say: told what is going on.

    Raises:
        SeedError: it is damaged, or does not fit.
        OSError: its store fails.
    """
    try:
        source = newest(source)
        say(f"reading the snapshot {source}")
        manifest = require_described(source)
        make_roles(source, manifest, conninfo=conninfo, programs=programs, say=say)
        restore(source, manifest, conninfo=conninfo, programs=programs, jobs=jobs, say=say)
    except (PartError, RestoreError) as error:
        raise SeedError(f"the snapshot can't be used: {error}") from error


def newest(store: Store) -> Store:
    """Return a snapshot, or the newest whole one of a folder of several of one herd.

    GIDs of two herds can't be compared. One that was made from a snapshot begins with small ones.

    Raises:
        SeedError: there is none, or there are those of several herds.
        OSError: the store fails.
    """
    if store.size(MANIFEST) is not None:
        return store
    last: dict[str, str] = {}
    for name in snapshots(store):
        try:
            herd = herd_of(store.below(name))
        except (ValueError, KeyError) as error:
            raise SeedError(f"{name} in {store} is damaged: name the folder of another") from error
        if herd is not None:
            last[herd] = name
    if len(last) > 1:
        found = ", ".join(f"{name} (of herd {herd})" for herd, name in sorted(last.items()))
        raise SeedError(f"{store} holds snapshots of several herds: name a folder, such as {found}")
    if not last:
        raise SeedError(f"{store} holds no snapshot that is whole: name the folder of one, gid-...")
    return store.below(*last.values())


def cores(limit: Path) -> int:
    """How many cores this process may take: all that it may run on, or what its container may.

    Args:
        limit: the file of the container's control group that tells, if there is one: how many
            microseconds, or ``max``, in a period of how many.
    """
    found = len(os.sched_getaffinity(0))
    try:
        quota, period = limit.read_text().split()
    except OSError:
        return found
    return found if quota == "max" else max(1, min(found, int(quota) // int(period)))


@click.command()
@click.argument("location")
@click.argument("endpoint", required=False)
def main(location: str, endpoint: str | None) -> None:
    """Fill the server from the snapshot at LOCATION, on an S3 server at ENDPOINT."""
    programs = Path(shutil.which("pg_restore") or "/usr/bin/pg_restore").parent
    jobs = cores(_LIMIT)
    try:
        seed(
            at(location, endpoint),
            conninfo=f"dbname={_DATABASE}", programs=programs, jobs=jobs,
            say=lambda text: click.echo(text, err=True),
        )  # fmt: skip
    except (SeedError, OSError) as error:
        sys.exit(f"pgherd-seed: {error}")  # so that it can be told from the server's log


if __name__ == "__main__":
    main()
