"""Tables that their owner replaces while a job or `verify` reads: neither his code nor other rows.

On a plain server: what is tested needs no herd, and moments that a herd leaves to chance.
"""

import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pgherd_sidecar.local import binaries
from pgherd_sidecar.pg.comparison import checksum
from pgherd_spark.reading.catalog import Table
from pgherd_spark.reading.checksums import NOTHING, Part, bucket_sums
from pgherd_spark.reading.sources import Relation, Source, TableChangedError
from pgherd_spark.storing import parts
from pgherd_spark.storing.parts import PartError, WritePart, write_part
from pgherd_spark.storing.stores import DirectoryStore

from .localherd import free_port_base
from .sparkherd import NEEDS_PYARROW

_TABLE = Table("public.t", ("id", "v"), ("integer", "text"), ("id",), ("id", "v"))
_AS_A_HERD_HAS_IT = """
    CREATE ROLE mallory LOGIN;
    GRANT CREATE ON SCHEMA public TO mallory;
    CREATE SCHEMA pgherd;
    CREATE VIEW pgherd.replicated_tables AS
    SELECT oid AS relid, format('public.%I', relname) AS name FROM pg_class
     WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND relname = 't';
"""
_TABLES = "CREATE TABLE {} (id int PRIMARY KEY, v text); INSERT INTO {} VALUES (1, 'a'), (2, 'b')"
_TRAP = """
    CREATE FUNCTION public.evil() RETURNS int LANGUAGE plpgsql AS
    $$ BEGIN RAISE 'evil() runs as %', current_user; END $$;
    ALTER TABLE public.t RENAME TO t_old;
    CREATE VIEW public.t AS SELECT '(0,1)'::tid AS ctid, public.evil() AS id, 'a' AS v;
"""
_SWAP = """
    ALTER TABLE public.t RENAME TO t_old;
    CREATE TABLE public.t (LIKE public.t_old INCLUDING ALL);
"""
_CAST = """
    CREATE TYPE public.mood AS ENUM ('glad');
    CREATE FUNCTION public.evil(public.mood) RETURNS json LANGUAGE plpgsql AS
    $$ BEGIN RAISE 'evil() runs as %', current_user; END $$;
    CREATE CAST (public.mood AS json) WITH FUNCTION public.evil(public.mood);
    ALTER TABLE public.t ADD COLUMN m public.mood DEFAULT 'glad', ADD COLUMN to_json text;
"""
REPLACED = pytest.mark.parametrize("command", [_TRAP, _SWAP, "TRUNCATE public.t"])


@pytest.fixture(scope="module")
def conninfo(work_directory: Path) -> Iterator[str]:
    """How to reach a server of this module's own as its superuser."""
    programs = binaries.find(None)
    directory, port = work_directory / "plain", free_port_base()
    directory.mkdir()
    user = None
    if os.geteuid() == 0:
        user = os.environ.get("PGHERD_TEST_USER", "postgres")
        subprocess.run(["chown", user, directory], check=True)

    def run(program: str, *arguments: str) -> None:
        command = [str(programs / program), "-D", str(directory / "data"), *arguments]
        subprocess.run(command, check=True, user=user, cwd="/", stdout=subprocess.DEVNULL)

    run("initdb", "-U", "postgres", "-A", "trust", "--no-sync")
    settings = f"-c port={port} -c unix_socket_directories={directory} -c listen_addresses="
    run("pg_ctl", "start", "-w", "-l", str(directory / "log"), "-o", f"{settings} -c fsync=off")
    reach = f"host={directory} port={port} dbname=postgres user="
    do(f"{reach}postgres", _AS_A_HERD_HAS_IT)
    yield reach + "postgres"
    run("pg_ctl", "stop", "-m", "immediate")


@pytest.fixture
def mallory(conninfo: str) -> Iterator[str]:
    """How the owner of the table reaches it."""
    reach = conninfo.replace("user=postgres", "user=mallory")
    do(reach, _TABLES.format("public.t", "public.t"))
    yield reach
    do(conninfo, "DROP OWNED BY mallory; GRANT CREATE ON SCHEMA public TO mallory")


def do(conninfo: str, commands: str) -> None:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(commands.encode())


@contextmanager
def a_part(conninfo: str) -> Iterator[Part]:
    """All of the table at a moment that lasts."""
    with psycopg.connect(conninfo, autocommit=True) as holder:
        holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        row = holder.execute(
            "SELECT pg_export_snapshot(), pg_current_snapshot()::text,"
            " oid::int8, relfilenode::int8 FROM pg_class WHERE oid = 'public.t'::regclass"
        ).fetchone()
        assert row is not None
        snapshot, visible, oid, filenode = row
        source = Source("n1", conninfo, 8, snapshot, visible)
        relation = Relation("public.t", "public", "t", oid, filenode, 1, 8192)
        yield Part(source, _TABLE, relation, 0, None)


@asynccontextmanager
async def at_a_moment(conninfo: str) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """As the sidecar holds a marker."""
    async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as connection:
        await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SELECT")
        yield connection


@REPLACED
def test_a_task_reads_nothing_under_the_name_of_a_table_that_was_replaced(
    conninfo: str, mallory: str, command: str
) -> None:
    with a_part(conninfo) as part:
        assert sum(rows.rows for _, rows in bucket_sums(part, 1)) == 2
        do(mallory, command)
        with pytest.raises(TableChangedError):
            bucket_sums(part, 1)


@pytest.fixture
def with_cast(mallory: str) -> Iterator[str]:
    """The owner of the table, in which a column is called as a function that uses a cast of his."""
    do(mallory, _CAST)
    yield mallory
    do(mallory, "DROP CAST (public.mood AS json)")


def test_a_column_that_was_dropped_is_not_taken_for_a_function_of_the_row(
    conninfo: str, with_cast: str
) -> None:
    table = Table("public.t", ("id", "to_json"), ("integer", "text"), ("id",), ("id", "to_json"))
    with a_part(conninfo) as part:
        do(with_cast, "ALTER TABLE public.t DROP COLUMN to_json")
        with pytest.raises(TableChangedError, match="columns were changed"):
            bucket_sums(replace(part, table=table), 1)


@NEEDS_PYARROW
@REPLACED
def test_no_part_is_written_of_a_table_that_was_replaced(
    conninfo: str, mallory: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    psql = binaries.find(None) / "psql"
    store = DirectoryStore(tmp_path)
    with a_part(conninfo) as part:
        assert write_part(WritePart(part, store, "before", psql)).sum.rows == 2
        do(mallory, command)
        monkeypatch.setattr(parts, "total", lambda _: NOTHING)  # psql looks for itself
        with pytest.raises(PartError, match="replaced since the marker"):
            write_part(WritePart(part, store, "after", psql))
    assert store.size("after") is None


@pytest.mark.parametrize("kind", ["", "PARTITION BY RANGE (id)"])
async def test_verify_reads_what_is_as_it_was(conninfo: str, mallory: str, kind: str) -> None:
    do(mallory, f"DROP TABLE public.t; CREATE TABLE public.t (id int PRIMARY KEY, v text) {kind}")
    if kind:
        do(mallory, "CREATE TABLE public.low PARTITION OF public.t FOR VALUES FROM (0) TO (5)")
    do(mallory, "INSERT INTO public.t VALUES (1, 'a')")
    async with at_a_moment(conninfo) as connection:
        found = await checksum.table_checksums(connection)
        assert found["public.t"].rows == 1
        assert len(await checksum.bucket_checksums(connection, "public.t")) == 1


async def test_verify_looks_into_a_table_that_has_a_column_called_bucket(
    conninfo: str, mallory: str
) -> None:
    do(mallory, "ALTER TABLE public.t ADD COLUMN bucket int")
    async with at_a_moment(conninfo) as connection:
        assert await checksum.bucket_checksums(connection, "public.t")


async def test_verify_reads_rows_without_the_columns_that_were_added(
    conninfo: str, mallory: str
) -> None:
    async with at_a_moment(conninfo) as before, at_a_moment(conninfo) as after:
        found = await checksum.table_checksums(before)
        await before.execute("ROLLBACK")
        do(mallory, "ALTER TABLE public.t ADD COLUMN w int DEFAULT 7")
        assert await checksum.table_checksums(after) == found


async def test_verify_reads_nothing_of_a_table_that_has_lost_a_column(
    conninfo: str, with_cast: str
) -> None:
    async with at_a_moment(conninfo) as connection:
        do(with_cast, "ALTER TABLE public.t DROP COLUMN to_json")
        with pytest.raises(checksum.TableChangedError, match=r"public\.t has lost a column"):
            await checksum.table_checksums(connection)


@REPLACED
async def test_verify_reads_nothing_under_the_name_of_a_table_that_was_replaced(
    conninfo: str, mallory: str, command: str
) -> None:
    async with at_a_moment(conninfo) as connection:
        do(mallory, command)
        with pytest.raises(checksum.TableChangedError, match=r"public\.t was"):
            await checksum.table_checksums(connection)


async def test_verify_reads_nothing_of_a_table_with_a_partition_that_was_truncated(
    conninfo: str, mallory: str
) -> None:
    do(
        mallory,
        "DROP TABLE public.t; CREATE TABLE public.t (id int PRIMARY KEY) PARTITION BY RANGE (id)",
    )
    do(mallory, "CREATE TABLE public.low PARTITION OF public.t FOR VALUES FROM (0) TO (5)")
    async with at_a_moment(conninfo) as connection:
        do(mallory, "TRUNCATE public.low")
        with pytest.raises(checksum.TableChangedError):
            await checksum.table_checksums(connection)
