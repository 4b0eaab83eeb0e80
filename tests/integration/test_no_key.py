"""Tables without a primary key: all members have as many of equal rows."""

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from .localherd import LocalHerd
from .nodes import Connection, Nodes, nodes_of, run, sql_cases
from .test_border_capture import complaints, play, tables_of

CASES = sql_cases("no_key")
LOST = ("40001", "40P01", "25006", "57P01")

#: What `pgbench -i` of PostgreSQL 15 sends, with option -q: all its steps, in its words.
PGBENCH = (
    "drop table if exists pgbench_accounts, pgbench_branches, pgbench_history, pgbench_tellers",
    "create table pgbench_history(tid int,bid int,aid    int,delta int,mtime timestamp,"
    "filler char(22))",
    "create table pgbench_tellers(tid int not null,bid int,tbalance int,filler char(84))"
    " with (fillfactor=100)",
    "create table pgbench_accounts(aid    int not null,bid int,abalance int,filler char(84))"
    " with (fillfactor=100)",
    "create table pgbench_branches(bid int not null,bbalance int,filler char(88))"
    " with (fillfactor=100)",
)
PGBENCH_FILL = (
    "begin",
    "truncate table pgbench_accounts, pgbench_branches, pgbench_history, pgbench_tellers",
    "insert into pgbench_branches(bid,bbalance) values(1,0)",
    *(f"insert into pgbench_tellers(tid,bid,tbalance) values ({tid},1,0)" for tid in range(1, 11)),
)
PGBENCH_KEYS = (
    "vacuum analyze pgbench_branches",
    "vacuum analyze pgbench_tellers",
    "vacuum analyze pgbench_accounts",
    "vacuum analyze pgbench_history",
    "alter table pgbench_branches add primary key (bid)",
    "alter table pgbench_tellers add primary key (tid)",
    "alter table pgbench_accounts add primary key (aid)",
    "alter table pgbench_tellers add constraint pgbench_tellers_bid_fkey"
    " foreign key (bid) references pgbench_branches",
    "alter table pgbench_accounts add constraint pgbench_accounts_bid_fkey"
    " foreign key (bid) references pgbench_branches",
    "alter table pgbench_history add constraint pgbench_history_bid_fkey"
    " foreign key (bid) references pgbench_branches",
)


@pytest.fixture(scope="module")
def nodes(herd: LocalHerd) -> Iterator[Nodes]:
    with nodes_of(herd) as nodes:
        yield nodes


@pytest.fixture(autouse=True)
def _nobody_stops(herd: LocalHerd, nodes: Nodes) -> Iterator[None]:
    """A quick rebuild would hide that members differed."""
    before = complaints(herd)
    yield
    nodes.settle()
    assert complaints(herd) == before
    for (name,) in run(nodes.admin[0], _TABLES):
        run(
            nodes.admin[0],
            f"SET client_min_messages = warning; DROP TABLE IF EXISTS {name} CASCADE",
        )
    for name in ("TYPE mood", "DOMAIN few", "FUNCTION mark()"):
        run(nodes.admin[0], f"DROP {name.split(maxsplit=1)[0]} IF EXISTS {name.split()[1]} CASCADE")
    nodes.settle()


_TABLES = (
    "SELECT c.oid::regclass::text FROM pg_class c WHERE c.relkind IN ('r', 'p')"
    " AND c.relnamespace = current_schema()::regnamespace"
)


@pytest.mark.parametrize("text", CASES.values(), ids=CASES)
def test_all_members_have_as_many_of_equal_rows(nodes: Nodes, text: str) -> None:
    assert play(nodes.app[0], text) == ("0A000" if "\n-- refused" in text else None)
    for table in tables_of(text):
        nodes.equal_rows(table)


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
    run(nodes.app[1], "BEGIN; UPDATE k SET b = 1 WHERE a = 5")
    run(nodes.app[0], "ALTER TABLE k ADD PRIMARY KEY (a)")
    with pytest.raises(psycopg.Error) as lost:
        run(nodes.app[1], "COMMIT")
    assert lost.value.sqlstate in LOST
    run(nodes.app[1], "UPDATE k SET b = 2 WHERE a = 5")
    assert len(nodes.equal_rows("k")) == 10


def test_copy_and_pgbench_s_initialization_in_its_own_words(nodes: Nodes) -> None:
    app = nodes.app[0]
    for statement in (*PGBENCH, *PGBENCH_FILL):
        run(app, statement)
    with (
        app.cursor() as cursor,
        cursor.copy("copy pgbench_accounts from stdin with (freeze on)") as copy,
    ):
        for aid in range(1, 20_001):
            copy.write(f"{aid}\t1\t0\t\n")
    run(app, "commit")
    for statement in PGBENCH_KEYS:
        run(app, statement)
    for number in range(3):
        attempt(
            nodes.app[number],
            f"begin; update pgbench_accounts set abalance = abalance + 1 where aid = {number + 1};"
            f" update pgbench_tellers set tbalance = tbalance + 1 where tid = {number + 1};"
            " insert into pgbench_history (tid, bid, aid, delta, mtime)"
            f" values ({number + 1}, 1, {number + 1}, 1, current_timestamp); commit",
        )
    names = ("accounts", "branches", "history", "tellers")
    rows = nodes.equal_rows(*(f"pgbench_{name}" for name in names))
    assert len(rows) == 20_000 + 1 + 10 + 3


def test_a_notice_says_that_a_key_would_be_faster(nodes: Nodes) -> None:
    said: list[str] = []
    connection = nodes.connect(0)
    connection.add_notice_handler(lambda notice: said.append(notice.message_primary or ""))
    run(connection, "CREATE TABLE bag (v int)")
    run(connection, "CREATE TABLE keyed (v int PRIMARY KEY)")
    assert said == [f"table {nodes.schema}.bag has no primary key"]


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
