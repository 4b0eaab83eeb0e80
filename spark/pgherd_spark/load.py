"""``python -m pgherd_spark.load``: a snapshot put into a server that is being made, without Spark.

A program of its own, so that the sidecar can end it. Roles and the database itself are there
already. Tells how far it is as ``pg_basebackup`` does.
"""

from pathlib import Path
from threading import Lock

import click

from pgherd_spark.layout import parts_in, require_described, require_whole
from pgherd_spark.parts import PartError
from pgherd_spark.restore import RestoreError, restore
from pgherd_spark.stores import DirectoryStore

_directory = click.argument("directory", type=click.Path(path_type=Path))


@click.group()
def main() -> None:
    """Reads snapshots; for the sidecar."""


@main.command()
@_directory
def check(directory: Path) -> None:
    """Compare all files with the manifest."""
    try:
        require_whole(DirectoryStore(directory))
    except (PartError, OSError) as error:
        raise click.ClickException(str(error)) from error


@main.command()
@_directory
@click.option("--dbname", "conninfo", required=True)
@click.option("--programs", type=click.Path(path_type=Path), required=True)
@click.option("--jobs", type=int, required=True)
def load(directory: Path, conninfo: str, programs: Path, jobs: int) -> None:
    """Fill a database that is there and empty."""
    store, done, told = DirectoryStore(directory), 0, Lock()

    try:
        manifest = require_described(store)
        total = sum(part["bytes"] for part in parts_in(manifest))

        def tell(size: int) -> None:
            nonlocal done
            with told:
                done += size
                click.echo(f"{done >> 10}/{total >> 10} kB")

        restore(
            store,
            manifest,
            conninfo=conninfo,
            programs=programs,
            jobs=jobs,
            say=click.echo,
            loaded=tell,
        )
    except (PartError, RestoreError, OSError) as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
