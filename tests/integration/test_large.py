"""Transactions in pieces: the same as others to everybody, however large, whoever dies meanwhile.

Pieces are of 16 kB here, so that a few thousand rows take many of them.
"""

import asyncio
import contextlib
import random
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from patience import join, wait_until

from .ledger import create_everywhere, new_ledger
from .localherd import LocalHerd, free_port_base, limited, query, standing
from .nodes import TIDE, Nodes, once, run, sql_cases, sql_file

PIECE_BYTES = 16 << 10
ROWS = 1000


@pytest.fixture(scope="module")
def small_pieces(work_directory: Path) -> Iterator[LocalHerd]:
    """A herd whose transactions come in pieces early."""
    environment = limited(
        work_directory, "small_pieces", piece_bytes=PIECE_BYTES, row_bytes=1 << 20,
        transaction_bytes=4 << 20, log_cache_bytes=1 << 18, segment_bytes=1 << 20,
        checkpoint_ms=1000,
    )  # fmt: skip
    with standing(LocalHerd(work_directory / "large", free_port_base(), environment)) as herd:
        yield herd


@pytest.fixture(scope="module")
def kept(small_pieces: LocalHerd) -> Iterator[Nodes]:
    """Connections and tables for all tests; the last ones kill nodes."""
    create_everywhere(small_pieces, f"{TIDE}; CREATE SCHEMA large;")
    with contextlib.ExitStack() as stack:
        nodes = Nodes(stack, small_pieces, "large")
        nodes.create(sql_file("large_tables"))
        yield nodes


@pytest.fixture
def nodes(kept: Nodes) -> Nodes:
    """The tables are empty."""
    run(kept.app[0], "DELETE FROM part; DELETE FROM child; DELETE FROM parent; DELETE FROM item")
    kept.settle()
    return kept


def events(herd: LocalHerd, node: str, name: str) -> int:
    """How often a sidecar has said this so far."""
    return (herd.directory / node / "sidecar.log").read_text().count(f'"event":"{name}"')


def wait_for(what: str, true: Any) -> None:
    """Wait until it is so."""
    wait_until(true, brief=True, told=lambda: what)


def fill(nodes: Nodes, rows: int = ROWS) -> None:
    """Rows that all nodes can see."""
    rows_of = f"SELECT g, g, repeat('x', 100) FROM generate_series(1, {rows}) g"
    run(nodes.app[0], f"INSERT INTO item {rows_of}")
    nodes.settle()


def comes(connection: psycopg.Connection[Any]) -> bool:
    """Whether this node writes a transaction of which pieces still come."""
    sessions = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'pgherd large'"
    return bool(run(connection, sessions))


class Committer(threading.Thread):
    """A client that executes statements as one message, and hears how that ended."""

    def __init__(self, connection: psycopg.Connection[Any], statements: str) -> None:
        super().__init__(daemon=True)
        self.error: psycopg.Error | None = None
        self._connection = connection
        self._statements = statements
        self.start()

    def run(self) -> None:
        try:
            once(self._connection, self._statements)
        except psycopg.Error as error:
            self.error = error

    def ended(self) -> psycopg.Error | None:
        """The error it ended with, if it did."""
        join(self)
        return self.error


@pytest.mark.family(every=6)
@pytest.mark.parametrize(
    "statements", sql_cases("large_statements").values(), ids=sql_cases("large_statements")
)
def test_all_nodes_have_what_a_transaction_in_pieces_did(
    nodes: Nodes, small_pieces: LocalHerd, statements: str
) -> None:
    run(nodes.app[0], "INSERT INTO parent SELECT g FROM generate_series(1, 10) g")
    fill(nodes)
    before = nodes.equal_rows("item", "part", "child")
    applied = events(small_pieces, "n3", "large.applied")
    run(nodes.app[1], statements)
    assert nodes.equal_rows("item", "part", "child") != before
    assert events(small_pieces, "n3", "large.applied") == applied + 1


def test_rows_without_a_key_travel_once_where_a_temporary_table_came_between(nodes: Nodes) -> None:
    run(nodes.app[0], "CREATE TABLE bag (v int, w text)")
    run(nodes.app[0], "INSERT INTO bag SELECT g, repeat('x', 100) FROM generate_series(1, 300) g")
    nodes.settle()
    run(
        nodes.app[1],
        "BEGIN; UPDATE bag SET v = v + 1000; UPDATE bag SET w = w || 'y' WHERE v % 2 = 0;"
        " CREATE TEMP TABLE aside (k int); UPDATE bag SET v = v + 1 WHERE v % 3 = 0; COMMIT",
    )
    assert len(nodes.equal_rows("bag")) == 300
    run(nodes.app[0], "DROP TABLE bag")


def passes(nodes: Nodes) -> int:
    """How often the third node has read the table `bag`, or each of its partitions, as a whole."""
    [(number,)] = run(
        nodes.admin[2],
        "SELECT max(s.seq_scan)::int FROM pg_stat_user_tables s"
        f" WHERE s.schemaname = '{nodes.schema}' AND s.relname LIKE 'bag%'",
    )
    return int(number)


@pytest.mark.parametrize(
    "statements", sql_cases("large_no_key").values(), ids=sql_cases("large_no_key")
)
def test_rows_without_a_key_are_found_by_few_passes_however_many_pieces(
    nodes: Nodes, small_pieces: LocalHerd, statements: str
) -> None:
    made, _, changes = statements.partition("-- changes\n")
    run(nodes.app[0], f"DROP TABLE IF EXISTS bag, bag_too; {made}")
    nodes.settle()  # a look at the rows would be counted, too, at some time
    [(oid,)] = run(nodes.admin[2], f"SELECT '{nodes.schema}.bag'::regclass::oid")
    # Any owner of the database may say that, and what it means is ours.
    run(nodes.admin[2], f"ALTER DATABASE app SET \"pgherd.passes_{oid}\" = 'x'")
    read, applied = passes(nodes), events(small_pieces, "n3", "large.applied")
    run(nodes.app[1], changes)
    nodes.settle()
    wait_for("the passes are counted", lambda: passes(nodes) > read)
    # two that find rows, and one that notes where all are
    assert passes(nodes) <= read + 3
    nodes.equal_rows("bag")
    assert events(small_pieces, "n3", "large.applied") == applied + 1
    assert events(small_pieces, "n3", "large.by_row") == 0
    run(nodes.admin[2], f'ALTER DATABASE app RESET "pgherd.passes_{oid}"')


@pytest.mark.parametrize(
    ("table", "row"),
    [
        (
            "(a int, b text, c text[], d bytea)",
            "SELECT g, v, ARRAY[v, NULL, ''], convert_to(v, 'UTF8')",
        ),
        ("(a text)", "SELECT v"),
        ("(a int PRIMARY KEY, b word, c timestamptz, d float8)", "SELECT g, v, 'epoch', g / 7.0"),
        ("(a int, b text, c text GENERATED ALWAYS AS (b || 'c') STORED)", "SELECT g, v"),
        (
            "(a int GENERATED ALWAYS AS IDENTITY, b text, c text DEFAULT 'c')",
            "(b, c) SELECT v, NULL",
        ),
        ("(a int, b text) PARTITION BY HASH (a)", "SELECT g, v"),
        ('("A,""" int, "order" text)', "SELECT g, v"),
    ],
    ids=["types", "one column", "domain", "generated", "identity", "partitions", "names"],
)
def test_inserted_rows_are_the_same_on_all_nodes_whatever_they_hold(
    nodes: Nodes, small_pieces: LocalHerd, table: str, row: str
) -> None:
    run(nodes.app[0], "CREATE DOMAIN word AS text CHECK (length(VALUE) < 1000)")
    run(nodes.app[0], f"CREATE TABLE odd {table}")
    if "PARTITION" in table:
        run(
            nodes.app[0],
            "CREATE TABLE odd_0 PARTITION OF odd FOR VALUES WITH (MODULUS 2, REMAINDER 0);"
            "CREATE TABLE odd_1 PARTITION OF odd FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
        )
    nodes.settle()
    applied = events(small_pieces, "n3", "large.applied")
    # What COPY or a record could take for something else; the first comes in a few pieces only.
    values = (
        "ARRAY[CASE WHEN g < 100 THEN E'a\\n\\\\.\\nb' ELSE 'plain' END, NULL, '', ' ', 'NULL',"
        " E')\\nI(', E'\\\\', '\"', E'\\r\\n', '()', ',', E'\\\\.', 'ü€', 'I(1)', repeat('x', 200)]"
    )
    run(
        nodes.app[1],
        f"INSERT INTO odd {row} FROM generate_series(1, 1500) g"
        f" CROSS JOIN LATERAL (SELECT ({values})[1 + g % 15] AS v) w",
    )
    assert len(nodes.equal_rows("odd")) == 1500
    assert events(small_pieces, "n3", "large.applied") == applied + 1
    run(nodes.app[0], "DROP TABLE odd; DROP DOMAIN word")


def begins(herd: LocalHerd) -> str:
    """Where the log begins that a row's history is read from."""
    said = herd.top("history", "large.parent", "77").stderr
    assert "since GID" in said, said
    return said


@pytest.mark.long
def test_the_history_of_a_row_is_read_from_a_log_that_begins_among_pieces(
    nodes: Nodes, small_pieces: LocalHerd
) -> None:
    for number in range(1, 4):
        begun = begins(small_pieces)
        run(
            nodes.app[0],
            "INSERT INTO item SELECT g, g, string_agg(md5(g * i || 'x'), '')"
            f" FROM generate_series(1, {ROWS}) g, generate_series(1, 60) i GROUP BY g",
        )
        run(nodes.app[0], f"INSERT INTO parent VALUES ({number}); DELETE FROM item")
        nodes.settle()
        wait_for("the log begins later", partial(lambda was: begins(small_pieces) != was, begun))
        told = small_pieces.top("history", "large.parent", str(number))
        assert told.stdout.count("insert") == 1, told.stderr


def test_a_row_above_the_limit_is_refused_and_the_session_goes_on(nodes: Nodes) -> None:
    with pytest.raises(psycopg.errors.ProgramLimitExceeded, match="a row of the transaction"):
        run(nodes.app[0], "INSERT INTO item VALUES (1, 1, repeat('x', 2000000))")
    run(nodes.app[0], "INSERT INTO item VALUES (1, 1, repeat('x', 900000))")
    assert len(nodes.equal_rows("item")) == 1


def test_a_transaction_above_the_limit_is_refused_and_nothing_stays_open(nodes: Nodes) -> None:
    fill(nodes, 100)
    with pytest.raises(psycopg.errors.ProgramLimitExceeded, match="the transaction writes more"):
        run(
            nodes.app[0],
            "INSERT INTO item SELECT g, g, repeat('x', 500000) FROM generate_series(101, 120) g",
        )
    run(nodes.app[0], "UPDATE item SET t = 'y'")
    assert len(nodes.equal_rows("item")) == 100


def test_a_small_transaction_that_was_faster_wins(nodes: Nodes) -> None:
    fill(nodes)
    large = nodes.connect(0)
    run(large, "BEGIN; UPDATE item SET t = t || 'large'")
    with pytest.raises(psycopg.Error) as lost:  # told so, or ended as it was in the way
        run(nodes.app[1], "UPDATE item SET t = 'small' WHERE id = 7")
        run(large, "COMMIT")
    assert lost.value.sqlstate in ("40001", "57P01", None)
    assert sum("large" in row for row in nodes.equal_rows("item")) == 0


def test_a_small_transaction_that_was_slower_loses(nodes: Nodes) -> None:
    fill(nodes)
    small = nodes.connect(1)
    run(small, "BEGIN; UPDATE item SET t = 'small' WHERE id = 7")
    run(nodes.app[0], "UPDATE item SET t = t || 'large'")
    with pytest.raises(psycopg.Error) as lost:
        run(small, "COMMIT")
    assert lost.value.sqlstate in ("40001", "57P01", None)
    assert sum("large" in row for row in nodes.equal_rows("item")) == ROWS


def test_of_two_large_ones_that_overlap_one_commits(nodes: Nodes) -> None:
    fill(nodes)
    with ending([nodes.connect(n) for n in (0, 1)], "UPDATE item SET t = t || '{}'") as errors:
        pass
    assert sum(error is None for error in errors) <= 1
    rows = nodes.equal_rows("item")
    assert len({row.split("x")[-1] for row in rows}) == 1


@contextlib.contextmanager
def ending(
    connections: list[psycopg.Connection[Any]], statement: str
) -> Iterator[list[psycopg.Error | None]]:
    """Execute on all at the same time; the errors are known after the block."""
    errors: list[psycopg.Error | None] = []
    clients = [
        Committer(connection, statement.format(number))
        for number, connection in enumerate(connections)
    ]
    yield errors
    errors += [client.ended() for client in clients]


def test_large_ones_that_do_not_overlap_all_commit(nodes: Nodes) -> None:
    statement = (
        f"INSERT INTO item SELECT g, g, repeat('x', 100)"
        f" FROM generate_series({{0}} * {ROWS}, {{0}} * {ROWS} + {ROWS - 1}) g"
    )
    with ending([nodes.connect(number) for number in range(3)], statement) as errors:
        pass
    assert errors == [None] * 3
    assert len(nodes.equal_rows("item")) == 3 * ROWS


def test_a_cancelled_commit_is_rolled_back_everywhere(nodes: Nodes) -> None:
    large = nodes.connect(0)
    client = Committer(
        large,
        f"INSERT INTO item SELECT g, g, repeat('x', 300) FROM generate_series(1, {5 * ROWS}) g",
    )
    pid = large.info.backend_pid
    wait_for("it commits", lambda: comes(nodes.admin[2]))
    run(nodes.admin[0], f"SELECT pg_cancel_backend({pid})")
    error = client.ended()
    assert error is not None and error.sqlstate == "57014"
    run(large, "INSERT INTO item VALUES (1, 1, 'after')")
    assert len(nodes.equal_rows("item")) == 1


def test_a_transaction_whose_session_is_ended_between_pieces_never_was(nodes: Nodes) -> None:
    large = nodes.connect(0)
    client = Committer(
        large,
        f"INSERT INTO item SELECT g, g, repeat('x', 300) FROM generate_series(1, {5 * ROWS}) g",
    )
    pid = large.info.backend_pid
    wait_for("it commits", lambda: comes(nodes.admin[2]))
    run(nodes.admin[0], f"SELECT pg_terminate_backend({pid})")
    assert client.ended() is not None
    wait_for("it is given up", lambda: not comes(nodes.admin[2]))
    fill(nodes)
    assert len(nodes.equal_rows("item")) == ROWS


@pytest.mark.long
async def test_small_ones_go_on_all_the_while(small_pieces: LocalHerd) -> None:
    ledger = new_ledger(small_pieces)
    query(
        small_pieces.nodes()[0].app_dsn,
        f"CREATE TABLE {ledger.schema}.bulk (id int PRIMARY KEY, t text)",
    )
    small_pieces.must("verify")
    async with ledger.load(clients=2):
        await ledger.commits(50)
        for number, member in enumerate(small_pieces.members()):
            first = number * 5 * ROWS
            await asyncio.to_thread(
                query,
                member["app_dsn"],
                f"INSERT INTO {ledger.schema}.bulk SELECT g, repeat('z', 200)"
                f" FROM generate_series({first + 1}, {first + 5 * ROWS}) g",
            )
        await ledger.commits(50)
    ledger.check()
    counted = query(small_pieces.nodes()[1].dsn, f"SELECT count(*) FROM {ledger.schema}.bulk")
    assert counted == [(3 * 5 * ROWS,)]
    ledger.drop()


@pytest.mark.parametrize(
    ("victim", "process"),
    [("n1", "sidecar"), pytest.param("n2", "node", marks=pytest.mark.long)],
)
def test_who_is_killed_between_pieces_has_the_same_rows_as_all(
    small_pieces: LocalHerd, victim: str, process: str
) -> None:
    """The origin's sidecar, or another member that is writing them."""
    table = f"public.k_{random.getrandbits(40):x}"
    members = small_pieces.members()
    create_everywhere(
        small_pieces,
        f"CREATE TABLE {table} (id int PRIMARY KEY, t text);"
        f"INSERT INTO {table} SELECT g, 'x' FROM generate_series(1, {ROWS}) g",
    )
    with psycopg.connect(members[0]["app_dsn"], autocommit=True) as large:
        client = Committer(large, f"UPDATE {table} SET t = repeat('y', 2000)")
        with psycopg.connect(members[2]["dsn"], autocommit=True) as third:
            wait_for("its pieces come", lambda: comes(third))
        small_pieces.must("kill", victim, "--process", process)
        error = client.ended()
    small_pieces.must("start", victim)
    small_pieces.must("verify")
    changed = f"SELECT count(*) FROM {table} WHERE t LIKE 'y%'"
    counts = {query(member["dsn"], changed)[0][0] for member in members}
    assert counts == {ROWS} if error is None else counts in ({0}, {ROWS})
    assert error is None or counts == {0} or error.sqlstate == "08007"
    query(members[0]["app_dsn"], f"DROP TABLE {table}")
