"""A copy of a member's database beside it: nothing that is written there reaches the herd.

The copy has all that is ours, among it how the member reaches its sidecar.
"""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from patience import wait_until

from .installations import program
from .localherd import COMMAND_TIMEOUT_S, NATIVE, LocalHerd, free_port_base, query, settle
from .nodes import Nodes, nodes_of
from .plainpostgres import PlainPostgres, as_account, major_of

COPY = "copy_of_app"
ROWS = "SELECT id, v FROM goods ORDER BY id"


@pytest.fixture(scope="module")
def nodes(herd: LocalHerd) -> Iterator[Nodes]:
    with nodes_of(herd) as nodes:
        nodes.create(
            "CREATE TABLE goods (id int PRIMARY KEY, v text);"
            "INSERT INTO goods VALUES (1, 'one'), (2, 'two');"
        )
        nodes.settle()
        yield nodes


@pytest.fixture
def restored(herd: LocalHerd, nodes: Nodes) -> Iterator[str]:
    """A database on the server of the first node that was filled by ``pg_dump | psql``."""
    dsn = herd.dsn("n1")
    major = major_of(dsn)
    query(dsn, f"CREATE DATABASE {COPY}")
    copy = psycopg.conninfo.make_conninfo(dsn, dbname=COPY)
    try:
        with subprocess.Popen([program("pg_dump", major), dsn], stdout=subprocess.PIPE) as dump:
            # What other tests have left in the database may not be restored; nobody needs it here.
            subprocess.run(
                [program("psql", major), "--quiet", copy],
                stdin=dump.stdout,
                stdout=subprocess.DEVNULL,
                timeout=COMMAND_TIMEOUT_S,
                check=True,
            )
        assert dump.returncode == 0
        # The hashes of rows fail in such a copy, and would hide the rest.
        query(copy, "UPDATE pgherd.node SET fingerprint_every = 1000000000")
        query(copy, f"ALTER DATABASE {COPY} SET search_path = {nodes.schema}")
        yield copy
    finally:
        query(dsn, f"DROP DATABASE {COPY}")


def refuses(dsn: str, statement: str, told: str) -> None:
    with pytest.raises(psycopg.Error, match=told) as refused:
        query(dsn, statement)
    assert "pgherd.uninstall()" in str(refused.value.diag.message_hint)


def test_a_restored_dump_writes_nothing_into_the_herd(
    herd: LocalHerd, nodes: Nodes, restored: str
) -> None:
    before = nodes.equal_rows("goods")
    told = "copy of n1's database app"
    unknown = "the native module knows nothing of table"
    refuses(restored, "UPDATE goods SET v = 'of the copy'", unknown if NATIVE else told)
    refuses(restored, "SET ROLE app; CREATE TABLE other (id int PRIMARY KEY)", told)
    refuses(restored, "DROP TABLE goods", told)
    assert query(restored, ROWS) == [(1, "one"), (2, "two")]
    assert nodes.equal_rows("goods") == before


def test_a_restored_dump_becomes_an_ordinary_database(
    herd: LocalHerd, nodes: Nodes, restored: str
) -> None:
    query(restored, "SELECT pgherd.uninstall()")
    query(restored, "UPDATE goods SET v = 'of the copy'; ALTER TABLE goods ADD w int")
    nodes.connect(1).execute("UPDATE goods SET v = 'uno' WHERE id = 1")
    settle(herd)
    assert nodes.equal_rows("goods") == ["(1,uno)", "(2,two)"]
    nodes.connect(1).execute("UPDATE goods SET v = 'one' WHERE id = 1")


def test_a_copy_of_the_files_writes_nothing_into_the_herd(
    herd: LocalHerd, nodes: Nodes, work_directory: Path
) -> None:
    before = nodes.equal_rows("goods")
    dsn = herd.dsn("n1")
    parent = work_directory / "copies"
    parent.mkdir()
    parent.chmod(0o777)
    clone = PlainPostgres(parent / "clone", free_port_base(1), major_of(dsn))
    clone.call("pg_basebackup", f"--pgdata={clone.directory}", f"--dbname={dsn}", "--no-sync")
    with (clone.directory / "postgresql.auto.conf").open("a") as file:
        file.write(
            f"port = {clone.port}\nlisten_addresses = '127.0.0.1'\nunix_socket_directories = ''\n"
            "default_transaction_read_only = off\n"
        )
    (clone.directory / "pg_hba.conf").write_text("host all all 127.0.0.1/32 trust\n")
    clone.start()
    try:
        told = "its sidecar has not begun since the server was started"
        update = f"UPDATE {nodes.schema}.goods SET v = 'of the copy'"
        refuses(clone.dsn(), update, told)
    finally:
        clone.stop("immediate")
    assert nodes.equal_rows("goods") == before


KEPT = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), restart_lsn) FROM pg_replication_slots"
UNDER_WAY = """
SELECT count(*) FROM pg_stat_progress_basebackup, pg_replication_slots
 WHERE phase ~ 'streaming' AND active
"""
BOUND = 1 << 20


@pytest.fixture
def frozen_copy(herd: LocalHerd, work_directory: Path) -> Iterator[LocalHerd]:
    """The first node is being copied by somebody who stands still."""
    dsn = herd.dsn("n1")
    parent = work_directory / "frozen"
    parent.mkdir()
    parent.chmod(0o777)
    named = psycopg.conninfo.make_conninfo(dsn, application_name="pgherd copy n9")
    with subprocess.Popen(
        [
            *as_account(), program("pg_basebackup", major_of(dsn)), f"--pgdata={parent / 'copy'}",
            f"--dbname={named}", "--max-rate=32k", "--checkpoint=fast", "--no-sync",
        ],
        start_new_session=True,
        cwd="/",
    ) as copying:  # fmt: skip
        try:
            wait_until(lambda: query(dsn, UNDER_WAY), [(1,)].__eq__)
            os.killpg(copying.pid, signal.SIGSTOP)
            yield herd
        finally:
            os.killpg(copying.pid, signal.SIGKILL)


def test_a_copy_that_stands_still_does_not_fill_the_disk_of_whom_it_copies(
    frozen_copy: LocalHerd,
) -> None:
    dsn = frozen_copy.dsn("n1")

    def write() -> list[tuple[Any, ...]]:
        query(dsn, f"SELECT pg_logical_emit_message(false, 'x', repeat('x', {BOUND}))")
        return query(dsn, KEPT)

    wait_until(write, lambda kept: kept[0][0] > BOUND)
    assert query(dsn, f"SELECT pgherd.end_copies({1 << 40})") == [(None,)]
    assert query(dsn, f"SELECT pgherd.end_copies({BOUND})") == [(["pgherd copy n9"],)]
    wait_until(lambda: query(dsn, KEPT), [].__eq__)
