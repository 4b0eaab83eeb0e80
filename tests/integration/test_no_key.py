"""Tables without a primary key: all members have as many of equal rows."""

import os
import random
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from .installations import program
from .localherd import COMMAND_TIMEOUT_S, LocalHerd
from .nodes import Connection, Nodes, nobody_stops, nodes_of, run, sql_cases
from .test_border_capture import play, tables_of

CASES = sql_cases("no_key")
LOST = ("40001", "40P01", "25006", "57P01")

#: Steps of `pgbench -i`, in all its ways to load.
_PGBENCH = (
    ("--init-steps=dtgvp",),
    ("--init-steps=dtGvpf",),
    ("--foreign-keys", "--unlogged-tables"),
    ("--partitions=2", "--partition-method=hash"),
)
_PGBENCH_TABLES = ("pgbench_accounts", "pgbench_branches", "pgbench_history", "pgbench_tellers")


@pytest.fixture(scope="module")
def nodes(herd: LocalHerd) -> Iterator[Nodes]:
    with nodes_of(herd) as nodes:
        yield nodes


@pytest.fixture(autouse=True)
def _nobody_stops(herd: LocalHerd, nodes: Nodes) -> Iterator[None]:
    with nobody_stops(herd, nodes):
        yield
    for (name,) in run(nodes.admin[0], _TABLES):
        run(
            nodes.admin[0],
            f"SET client_min_messages = warning; DROP TABLE IF EXISTS {name} CASCADE",
        )
    for name in ("TYPE mood", "DOMAIN few", "FUNCTION mark()", "COLLATION ci"):
        run(nodes.admin[0], f"DROP {name.split(maxsplit=1)[0]} IF EXISTS {name.split()[1]} CASCADE")
    nodes.settle()


_TABLES = (
    "SELECT c.oid::regclass::text FROM pg_class c WHERE c.relkind IN ('r', 'p')"
    " AND c.relnamespace = current_schema()::regnamespace"
)


@pytest.mark.family(every=3)
@pytest.mark.parametrize("text", CASES.values(), ids=CASES)
def test_all_members_have_as_many_of_equal_rows(nodes: Nodes, text: str) -> None:
    assert play(nodes.app[0], text) == ("0A000" if "\n-- refused" in text else None)
    for table in tables_of(text):
        nodes.equal_rows(table)


def test_columns_may_have_the_names_that_our_statements_use(nodes: Nodes) -> None:
    long = "pgherd_pair".ljust(63, "_")
    nodes.create(
        f"CREATE TABLE bag ({long} int, pgherd_pair int);"
        " CREATE TABLE chain (pgherd_pair int PRIMARY KEY,"
        " up int REFERENCES chain ON UPDATE CASCADE);"
    )
    app = nodes.app[0]
    run(app, "INSERT INTO bag VALUES (1, 1), (2, 2); INSERT INTO chain VALUES (1, NULL), (2, 1)")
    run(app, f"UPDATE bag SET {long} = {long} + 1")
    run(app, "UPDATE chain SET pgherd_pair = pgherd_pair + 10")
    assert nodes.equal_rows("bag", "chain") == ["(2,1)", "(3,2)", "(11,)", "(12,11)"]


def test_expressions_of_indexes_may_read_columns_with_the_names_of_our_variables(
    nodes: Nodes,
) -> None:
    names = ("v_xid", "v_base", "found", "old", "tg_op", "ours")
    nodes.create(
        f"CREATE TABLE bag (id int PRIMARY KEY, {', '.join(f'{name} text' for name in names)});"
        + "".join(f"CREATE UNIQUE INDEX ON bag (lower({name}));" for name in names)
    )
    for member, other in ((0, 1), (1, 2)):
        values = ", ".join(["'a'"] * len(names))
        run(nodes.app[member], f"INSERT INTO bag VALUES ({member}, {values})")
        nodes.settle()
        sets = ", ".join(f"{name} = {name} || {member}" for name in names)
        run(nodes.app[other], f"UPDATE bag SET {sets} WHERE id = {member}")
    run(nodes.app[0], "INSERT INTO bag SELECT 2 + g, g, g, g, g, g, g FROM generate_series(1, 2) g")
    assert len(nodes.equal_rows("bag")) == 4
    won = at_once(
        nodes,
        *(f"UPDATE bag SET tg_op = 'Z' WHERE id = {number}" for number in (0, 1)),
        "INSERT INTO bag (id, tg_op) VALUES (9, 'z')",
    )
    assert sum(won) == 1


def attempt(connection: Connection, statement: str) -> bool:
    """Whether a statement commits; it may lose against others, and only that."""
    try:
        run(connection, statement)
    except psycopg.Error as error:
        run(connection, "ROLLBACK")
        assert error.sqlstate in LOST, error
        return False
    return True


def at_once(nodes: Nodes, *statements: str) -> list[bool]:
    """Have each statement executed on a member of its own, all of them committed together."""
    together = threading.Barrier(len(statements))

    def one(number: int) -> bool:
        connection = nodes.app[number]
        if not attempt(connection, f"BEGIN; {statements[number]}"):
            together.wait()
            return False
        together.wait()
        return attempt(connection, "COMMIT")

    with ThreadPoolExecutor(len(statements)) as pool:
        return list(pool.map(one, range(len(statements))))


def test_inserts_of_equal_rows_on_all_members_never_conflict(nodes: Nodes) -> None:
    nodes.create("CREATE TABLE bag (v int)")
    for _ in range(5):
        assert at_once(nodes, *["INSERT INTO bag VALUES (1), (1)"] * 3) == [True] * 3
    assert len(nodes.equal_rows("bag")) == 30


_ONE = "DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag WHERE v = 1)"


def test_of_those_who_delete_one_of_equal_rows_at_once_one_wins(nodes: Nodes) -> None:
    nodes.create("CREATE TABLE bag (v int)")
    run(nodes.app[0], "INSERT INTO bag SELECT 1 FROM generate_series(1, 50)")
    nodes.settle()
    removed = 0
    for _ in range(5):
        won = at_once(nodes, _ONE, _ONE, _ONE)
        assert sum(won) >= 1
        removed += sum(won)
        assert len(nodes.equal_rows("bag")) == 50 - removed
    won = at_once(nodes, _ONE, "UPDATE bag SET v = 2", "INSERT INTO bag VALUES (1)")
    assert won[2]
    nodes.equal_rows("bag")


def test_many_writers_of_few_images(nodes: Nodes) -> None:
    nodes.create("CREATE TABLE bag (v int)")
    nodes.create("CREATE TABLE keyed (id int PRIMARY KEY, n int)")
    run(nodes.app[0], "INSERT INTO keyed VALUES (1, 0)")
    run(nodes.app[0], "INSERT INTO bag SELECT g % 3 FROM generate_series(1, 30) g")
    nodes.settle()

    def write(number: int) -> int:
        chance, won = random.Random(number), 0
        connection = nodes.connect(number)
        for _ in range(40):
            value = chance.randrange(3)
            one = f"ctid = (SELECT ctid FROM bag WHERE v = {value} LIMIT 1)"
            changes = [
                f"INSERT INTO bag VALUES ({value})",
                f"INSERT INTO bag VALUES ({value})",
                f"DELETE FROM bag WHERE {one}",
                f"UPDATE bag SET v = (v + 1) % 3 WHERE {one}",
                "UPDATE keyed SET n = n + 1",
            ]
            chosen = chance.sample(changes, chance.choice((1, 1, 2, 3)))
            won += attempt(connection, "; ".join(["BEGIN", *chosen, "COMMIT"]))
        return won

    with ThreadPoolExecutor(3) as pool:
        won = list(pool.map(write, range(3)))
    assert all(won)
    nodes.equal_rows("bag", "keyed")


def test_a_key_that_comes_excludes_those_who_wrote_without_it(nodes: Nodes) -> None:
    nodes.create("CREATE TABLE k (a int, b int)")
    run(nodes.app[0], "INSERT INTO k SELECT g, 0 FROM generate_series(1, 10) g")
    nodes.settle()
    writer = nodes.connect(1)
    run(writer, "BEGIN; UPDATE k SET b = 1 WHERE a = 5")
    run(nodes.app[0], "ALTER TABLE k ADD PRIMARY KEY (a)")
    with pytest.raises(psycopg.Error) as lost:
        run(writer, "COMMIT")
    assert lost.value.sqlstate in LOST
    nodes.settle()
    run(nodes.app[1], "UPDATE k SET b = 2 WHERE a = 5")
    assert len(nodes.equal_rows("k")) == 10


@pytest.mark.long
@pytest.mark.parametrize("options", _PGBENCH, ids=" ".join)
def test_pgbench_initializes_and_runs(nodes: Nodes, options: tuple[str, ...]) -> None:
    done = pgbench(nodes, 0, "-i", *options)
    assert done.returncode == 0, done.stderr
    assert len(nodes.equal_rows(*_PGBENCH_TABLES)) == 100_000 + 1 + 10
    done = pgbench(nodes, 1, "-n", "-t", "20", "--max-tries=100")
    assert done.returncode == 0, done.stderr
    assert len(nodes.equal_rows(*_PGBENCH_TABLES)) > 100_000 + 1 + 10


def pgbench(nodes: Nodes, number: int, *options: str) -> subprocess.CompletedProcess[str]:
    """Run pgbench on a member, in the schema of the test."""
    info = nodes.app[number].info
    return subprocess.run(
        [program("pgbench", info.server_version // 10000), *options],
        env=os.environ
        | {
            "PGHOST": info.host,
            "PGPORT": str(info.port),
            "PGUSER": info.user,
            "PGPASSWORD": info.password,
            "PGDATABASE": info.dbname,
            "PGOPTIONS": f"-c search_path={nodes.schema},public",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_TIMEOUT_S,
    )


def test_they_are_listed_and_their_client_hears_nothing(nodes: Nodes) -> None:
    said: list[str] = []
    connection = nodes.connect(0)
    connection.add_notice_handler(lambda notice: said.append(notice.message_primary or ""))
    run(connection, "CREATE TABLE bag (v int)")
    run(connection, "CREATE TABLE keyed (v int PRIMARY KEY)")
    run(connection, "SELECT 1 AS v INTO sack")
    assert said == []
    [(listed,)] = run(nodes.admin[1], "SELECT pgherd.tables_without_key()")
    own = [name for name in listed if name.startswith(f"{nodes.schema}.")]
    assert own == [f"{nodes.schema}.bag", f"{nodes.schema}.sack"]


def test_verify_compares_them(nodes: Nodes, herd: LocalHerd) -> None:
    nodes.create("CREATE TABLE bag (v int)")
    run(nodes.app[0], "INSERT INTO bag VALUES (1), (1)")
    nodes.settle()
    done = herd.run("verify")
    assert done.returncode == 0, done.stdout + done.stderr
    hidden = "SET session_replication_role = replica; {}; RESET session_replication_role"
    run(nodes.admin[2], hidden.format("INSERT INTO bag VALUES (1)"))
    try:
        done = herd.run("verify")
        assert done.returncode == 1
        assert f"{nodes.schema}.bag" in done.stdout
    finally:
        run(nodes.admin[2], hidden.format(_ONE))
    nodes.equal_rows("bag")
