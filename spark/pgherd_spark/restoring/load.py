"""``python -m pgherd_spark.restoring.load``: a snapshot, put into a new server without Spark.

A program of its own, so that the sidecar can end it. It fetches a snapshot out of a store, checks
one that is here, and loads it: roles and the database itself are there already then. Tells how far
it is as ``pg_basebackup`` does.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

import click

from pgherd_spark.restoring.restore import RestoreError, restore
from pgherd_spark.storing.fetching import fetch_head, fetch_parts
from pgherd_spark.storing.layout import parts_bytes, require_described, require_whole
from pgherd_spark.storing.parts import PartError
from pgherd_spark.storing.stores import DirectoryStore, at

_location = click.argument("location")
_endpoint = click.option("--s3-endpoint", "endpoint")
_directory = click.argument("directory", type=click.Path(path_type=Path))


@click.group()
def main() -> None:
    """Reads snapshots; for the sidecar."""


@main.command()
@_directory
def check(directory: Path) -> None:
    """Compare all files with the manifest."""
    with _said():
        require_whole(DirectoryStore(directory))


@main.command()
@_location
@_directory
@_endpoint
def head(location: str, directory: Path, endpoint: str | None) -> None:
    """Copy what says whether a snapshot will do out of a store."""
    with _said():
        fetch_head(at(location, endpoint), DirectoryStore(directory))


@main.command()
@_location
@_directory
@_endpoint
@click.option("--jobs", type=int, required=True)
def fetch(location: str, directory: Path, endpoint: str | None, jobs: int) -> None:
    """Copy the rest of it."""
    with _said():
        store = DirectoryStore(directory)
        total = parts_bytes(require_described(store))
        fetch_parts(at(location, endpoint), store, jobs=jobs, fetched=_Teller(total))


@main.command()
@_directory
@click.option("--dbname", "conninfo", required=True)
@click.option("--programs", type=click.Path(path_type=Path), required=True)
@click.option("--jobs", type=int, required=True)
def load(directory: Path, conninfo: str, programs: Path, jobs: int) -> None:
    """Fill a database that is there and empty."""
    with _said():
        store = DirectoryStore(directory)
        manifest = require_described(store)
        restore(
            store,
            manifest,
            conninfo=conninfo,
            programs=programs,
            jobs=jobs,
            say=click.echo,
            loaded=_Teller(parts_bytes(manifest)),
        )


class _Teller:
    """Says how far it is, as ``pg_basebackup`` does; from any thread."""

    def __init__(self, total: int) -> None:
        self._total, self._done, self._lock = total, 0, Lock()

    def __call__(self, size: int) -> None:
        with self._lock:
            self._done += size
            click.echo(f"{self._done >> 10}/{self._total >> 10} kB")


@contextmanager
def _said() -> Iterator[None]:
    """Have failures said in one line."""
    try:
        yield
    except (PartError, RestoreError, OSError) as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
