"""Other major versions of PostgreSQL than the herd's: sources of imports and of dumps.

Skipped unless `PGHERD_TEST_OTHER_POSTGRES` names some: see `make test-versions`.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from patience import join, wait_until

from .installations import OTHERS, others, program
from .localherd import COMMAND_TIMEOUT_S, LocalHerd, free_port_base, put, query, settle, standing
from .nodes import sql_file
from .plainpostgres import PlainPostgres, major_of, plain_postgres
from .test_import import (
    SETTINGS,
    SOURCE,
    Running,
    Writer,
    database,
    equal_everywhere,
    make_reader,
    nothing_is_left,
    what_came_besides,
)

_MAJORS: list[Any] = list(others()) or [
    pytest.param(0, marks=pytest.mark.skip(f"OTHER VERSIONS are NOT tested: {OTHERS} names none"))
]
_TABLES = ("customer", "bill", "bare", "part_1", "part_2", "rich", "counted")


def programs_for(source: int, herd: int) -> Path | None:
    """Programs that can dump a source: the herd's own, unless the source is newer."""
    if source <= herd:
        return None
    return next(path for major, path in others().items() if major >= source and has_dump(path))


def has_dump(path: Path) -> bool:
    return (path / "pg_dump").exists()


@pytest.fixture(scope="module", params=_MAJORS)
def source(request: pytest.FixtureRequest, work_directory: Path) -> Iterator[PlainPostgres]:
    major: int = request.param
    directory = work_directory / f"source-{major}"
    with plain_postgres(directory, free_port_base(1) + 1, major, SETTINGS) as server:
        yield server


@pytest.fixture(scope="module")
def beside(work_directory: Path, source: PlainPostgres) -> Iterator[LocalHerd]:
    """A herd for this source; what one test has made is removed before the next."""
    herd = LocalHerd(work_directory / f"beside-{source.major}", free_port_base())
    with standing(herd, "--nodes", "2"):
        yield herd


def test_a_running_source_of_another_version_is_taken_over(
    beside: LocalHerd, source: PlainPostgres
) -> None:
    make_reader(source)
    dsn = database(source, "shop", SOURCE)
    programs = programs_for(source.major, major_of(beside.dsn("n1")))
    running, writer = Running(beside, dsn, programs), Writer(dsn, 1)
    running.wait_for("follow")
    wait_until(lambda: writer.done > 20 or writer.error is not None)
    assert writer.error is None
    done = beside.top("import", "cut-over")
    assert done.returncode == 0, done.stderr
    assert "all 7 tables are equal" in done.stdout
    assert running.ended()[0] == 0
    join(writer)
    equal_everywhere(beside, dsn)
    what_came_besides(beside, dsn)
    nothing_is_left(beside, source, "shop")


def contents(dsn: str, tables: tuple[str, ...]) -> dict[str, list[tuple[object, ...]]]:
    """The rows, as text, of each table."""
    with psycopg.connect(dsn, options="-c timezone=UTC -c extra_float_digits=1") as connection:
        return {
            table: connection.execute(
                f'SELECT t::text FROM shop.{table} t ORDER BY t::text COLLATE "C"'.encode()
            ).fetchall()
            for table in tables
        }


@pytest.mark.parametrize("form", ["plain", "directory"])
def test_a_dump_of_another_version_loads(
    beside: LocalHerd, source: PlainPostgres, work_directory: Path, form: str
) -> None:
    """By the newer programs of the two, as PostgreSQL's documentation has it."""
    put(beside, beside.dsn("n1"), "DROP SCHEMA IF EXISTS shop CASCADE")
    query(source.dsn("postgres"), "DROP DATABASE IF EXISTS sold")
    query(source.dsn("postgres"), "CREATE DATABASE sold")
    query(source.dsn("sold"), sql_file("other_versions"))
    tables: tuple[str, ...] = _TABLES
    if source.major >= 15:
        query(source.dsn("sold"), sql_file("other_versions_15"))
        tables += ("newer",)
    own = major_of(beside.dsn("n1"))
    programs = programs_for(source.major, own)
    target = work_directory / f"dump-{source.major}-{form}"

    def call(name: str, *arguments: str) -> None:
        path = str(programs / name) if programs else program(name, own)
        done = subprocess.run(
            [path, *arguments],
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        errors = [line for line in done.stderr.splitlines() if "ERROR" in line]
        if programs is None:
            assert (done.returncode, errors) == (0, []), done.stderr
        # Programs of 17 and newer set what an older server does not know, and go on.
        assert all("transaction_timeout" in line for line in errors), done.stderr

    # Else jobs that load partitions side by side exclude each other: docs/loading.md.
    root = "--load-via-partition-root"
    call("pg_dump", root, f"--format={form}", f"--file={target}", f"--dbname={source.dsn('sold')}")
    dsn = beside.dsn("n1")
    if form == "plain":
        call("psql", "-X", "-q", "-f", str(target), "-d", dsn)
    else:
        call("pg_restore", "--jobs=4", "-d", dsn, str(target))
    settle(beside)
    wanted = contents(source.dsn("sold"), tables)
    for node in beside.nodes():
        assert contents(node.dsn, tables) == wanted, node.name
    for node in beside.nodes():
        (bill,) = query(
            node.dsn, "INSERT INTO shop.bill (customer, amount) VALUES (1, 1) RETURNING id"
        )
        assert bill[0] > 5000
    beside.must("verify")
