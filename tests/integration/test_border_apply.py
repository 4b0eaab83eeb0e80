"""An entry that can't be applied stops a database, never a sidecar, its log or its vote.

The herd's sidecars have one defect: rows of a table named ``poison`` make the applier fail with an
error that nobody has foreseen. The origin does not apply its own rows, so the other two fail.
"""

import asyncio
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from patience import wait_until

from .localherd import LocalHerd, free_port_base, home, query, scripted, settle, standing
from .test_capture_off import metrics

_POISON = """
import sys
from pgherd_sidecar.agent.main import main
from pgherd_sidecar.pg.rows import RowStatements

_change = RowStatements._change

def change(self, statement, records):
    if statement.table.endswith(".poison"):
        raise TypeError("SQL values must be strings, got None instead")
    return _change(self, statement, records)

RowStatements._change = change
main()
"""


@pytest.fixture(scope="module")
def poisoned(work_directory: Path) -> Iterator[LocalHerd]:
    """A herd of three whose sidecars have that defect."""
    environment = scripted(work_directory, "poisoned", _POISON)
    with standing(LocalHerd(work_directory / "border", free_port_base(), environment)) as herd:
        yield herd


def said(herd: LocalHerd, node: str, event: str) -> list[dict[str, Any]]:
    """What a sidecar has logged under this name."""
    lines = (home(herd) / node / "sidecar.log").read_text().splitlines()
    found = [json.loads(line) for line in lines if line.startswith("{")]
    return [line for line in found if line.get("event") == event]


def until(what: str, true: Callable[[], object]) -> None:
    """Wait until it is so."""
    wait_until(true, told=lambda: what)


def all_primary(herd: LocalHerd) -> bool:
    return [member["state"] for member in herd.members()] == ["primary"] * 3


def incidents(herd: LocalHerd, node: str) -> list[dict[str, Any]]:
    """What stopped a database, as ``status --json`` tells it."""
    found: list[dict[str, Any]] = herd.member(node)["incidents"]
    return found


def pids(herd: LocalHerd) -> list[str]:
    """The processes of the sidecars."""
    return [(home(herd) / n / "sidecar.pid").read_text() for n in ("n1", "n2", "n3")]


def write(herd: LocalHerd, *statements: str, dsn: str = "") -> None:
    """Execute statements on n1, as ``app`` unless told otherwise.

    What only says that the member had no majority just then is repeated.
    """

    def execute() -> None:
        with psycopg.connect(dsn or herd.app_dsn("n1"), autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    refused = (psycopg.errors.SerializationFailure, psycopg.errors.ReadOnlySqlTransaction)
    wait_until(execute, lambda _: True, despite=refused)


def same_everywhere(herd: LocalHerd, statement: str) -> list[tuple[Any, ...]]:
    """The result, which is the same on all nodes."""
    settle(herd)
    results = [query(node.dsn, statement) for node in herd.nodes()]
    assert results[0] == results[1] == results[2]
    return results[0]


@pytest.mark.long
def test_the_longest_statement_that_fits_the_stack_fits_everywhere(poisoned: LocalHerd) -> None:
    """BD2: the others run it some calls deeper than its origin."""
    all_gid = query(poisoned.dsn("n1"), "SELECT pgherd.last_gid()")[0][0]
    with psycopg.connect(poisoned.app_dsn("n1")) as connection:

        def fits(additions: int) -> bool:
            view = "CREATE VIEW deep AS SELECT 1" + "+1" * additions + " AS x"
            try:
                connection.execute(view.encode())
            except psycopg.errors.StatementTooComplex:
                return False
            finally:
                connection.rollback()
            return True

        low, high = 100, 100_000
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
    for additions in range(low, low - 40, -1):  # what the commit itself needs is not in it
        try:
            write(poisoned, "CREATE VIEW deep AS SELECT 1" + "+1" * additions + " AS x")
            break
        except (psycopg.errors.StatementTooComplex, psycopg.errors.FeatureNotSupported):
            continue
    else:
        pytest.fail("no length of the view is taken")
    write(poisoned, "CREATE TABLE after_deep (id int PRIMARY KEY)")
    write(poisoned, "INSERT INTO after_deep VALUES (1)")
    until(
        "the members do not go on",
        lambda: all(
            query(node.dsn, "SELECT to_regclass('after_deep') IS NOT NULL") == [(True,)]
            for node in poisoned.nodes()
        ),
    )
    rule = "SELECT count(*) FROM pg_rewrite WHERE ev_class = to_regclass('deep')"
    assert same_everywhere(poisoned, rule) == [(1,)]  # it is too deep to be read
    for node in ("n2", "n3"):
        assert incidents(poisoned, node) == []
        assert poisoned.member(node)["gid"] > all_gid


@pytest.mark.long
def test_rows_as_deep_as_the_stack_allows_are_written_everywhere(poisoned: LocalHerd) -> None:
    """BD2: the text of a row is read some calls deeper, too."""
    write(poisoned, "CREATE TABLE nested (id int PRIMARY KEY, v json)")
    with psycopg.connect(poisoned.app_dsn("n1"), autocommit=True) as connection:

        def fits(depth: int) -> bool:
            try:
                connection.execute(f"SELECT '{'[' * depth}{']' * depth}'::json".encode())
            except psycopg.errors.StatementTooComplex:
                return False
            return True

        low, high = 100, 1_000_000
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
    text = "[" * low + "]" * low
    taken = 0
    for less in range(0, 400, 4):
        text = "[" * (low - less) + "]" * (low - less)
        try:
            write(poisoned, f"INSERT INTO nested VALUES (1, '{text}')")
        except psycopg.errors.StatementTooComplex:
            continue
        taken = low - less
        break
    assert taken
    assert same_everywhere(poisoned, "SELECT length(v::text) FROM nested") == [(2 * taken,)]
    assert incidents(poisoned, "n2") == incidents(poisoned, "n3") == []


@pytest.mark.parametrize("method", ["lz4", "pglz"])
def test_an_index_takes_elsewhere_what_it_took_at_the_origin(
    poisoned: LocalHerd, method: str
) -> None:
    """BD10: index tuples are compressed as the session says that writes them."""
    table = f"cmpr_{method}"
    large = (
        "(SELECT string_agg(chr(19968 + (i * 7919) % 20000), '') FROM generate_series(1, 450) i)"
        " || repeat('a', 6000)"
    )
    write(poisoned, f"CREATE TABLE {table} (id int PRIMARY KEY, k text UNIQUE)")
    refused = 0
    with psycopg.connect(poisoned.app_dsn("n1"), autocommit=True) as connection:
        connection.execute(f"SET default_toast_compression = {method}".encode())
        try:
            rows = f"INSERT INTO {table} SELECT g, g || {large} FROM generate_series(1, 3) g"
            connection.execute(rows.encode())
            connection.execute(f"INSERT INTO {table} VALUES (4, 'small')".encode())
            several = f"CREATE TABLE {table}_2 (id int PRIMARY KEY, k text)"
            connection.execute(several.encode())
        except (psycopg.errors.ProgramLimitExceeded, psycopg.errors.FeatureNotSupported):
            refused = 1  # this is a member that says no in time
    wanted = [(0,)] if refused else [(4,)]
    assert same_everywhere(poisoned, f"SELECT count(*) FROM {table}") == wanted
    assert incidents(poisoned, "n2") == incidents(poisoned, "n3") == []


def test_an_index_is_built_elsewhere_as_it_was_at_the_origin(poisoned: LocalHerd) -> None:
    """BD10: a command is retried with the other compression, too."""
    write(poisoned, "CREATE TABLE built (id int PRIMARY KEY, k text)")
    large = (
        "(SELECT string_agg(chr(19968 + (i * 7919) % 20000), '') FROM generate_series(1, 450) i)"
        " || repeat('a', 6000)"
    )
    write(poisoned, f"INSERT INTO built SELECT 1, {large}")
    built = True
    with psycopg.connect(poisoned.app_dsn("n1"), autocommit=True) as connection:
        connection.execute(b"SET default_toast_compression = lz4")
        try:
            connection.execute(b"CREATE INDEX built_k ON built (k)")
        except psycopg.errors.FeatureNotSupported:
            built = False
    found = same_everywhere(poisoned, "SELECT to_regclass('built_k') IS NOT NULL")
    assert found == [(built,)]
    assert incidents(poisoned, "n2") == incidents(poisoned, "n3") == []


@pytest.mark.long
@pytest.mark.expects_trouble("DivergedError", reason="these sidecars have a defect")
def test_an_unforeseen_error_stops_two_databases_and_no_vote(poisoned: LocalHerd) -> None:
    """BD20: the type of an exception does not matter."""
    write(poisoned, "CREATE TABLE poison (id int PRIMARY KEY)", "CREATE TABLE well (id int)")
    write(poisoned, "DROP TABLE well", "CREATE TABLE well (id int PRIMARY KEY)")
    settle(poisoned)
    before = pids(poisoned)
    write(poisoned, "INSERT INTO poison VALUES (1)")
    for node in ("n2", "n3"):
        until("it did not stop", partial(said, poisoned, node, "node.needs_rebuild"))
    for number in range(20):
        write(poisoned, f"INSERT INTO well VALUES ({number})")
    until("the herd does not get well", lambda: all_primary(poisoned))
    assert pids(poisoned) == before
    assert same_everywhere(poisoned, "SELECT count(*) FROM well") == [(20,)]
    assert same_everywhere(poisoned, "SELECT id FROM poison") == [(1,)]
    for node in ("n2", "n3"):
        assert said(poisoned, node, "process.crashed") == []
        (one,) = incidents(poisoned, node)
        assert (one["kind"], one["table"], one["cure"]) == ("diverged", "public.poison", "rebuild")
        assert one["outcome"] == "rebuilt"
        assert one["row"] == "id = 1"
        assert "TypeError" in one["reason"]
        assert f"diverged at GID {one['gid']}, INSERT, public.poison" in poisoned.must("status")
        member = poisoned.member(node)
        assert member["divergences_total"] == {"rows": 1}
        assert member["rebuilds_total"] == {"done": 1}
    shown = asyncio.run(metrics(poisoned))
    assert 'pgherd_divergences_total{member="n3",kind="rows"} 1\n' in shown
    assert 'pgherd_rebuilds_total{member="n3",outcome="done"} 1\n' in shown
    poisoned.must("kill", "n2", "--process", "sidecar")
    poisoned.must("start", "n2")
    until("it does not come up again", lambda: all_primary(poisoned))
    assert len(incidents(poisoned, "n2")) == 1  # a restart forgets nothing
    assert said(poisoned, "n2", "process.crashed") == []


@pytest.mark.expects_trouble("DivergedError", reason="a constraint fails on the members only")
def test_what_a_function_raises_on_the_members_only_is_not_tried_for_ever(
    poisoned: LocalHerd,
) -> None:
    """A constraint that calls itself a deadlock where it is applied."""
    write(
        poisoned,
        """
        CREATE FUNCTION picky(int) RETURNS bool IMMUTABLE LANGUAGE plpgsql
        SET search_path = pg_catalog AS $$
        BEGIN
            IF current_setting('session_replication_role') = 'replica' THEN
                RAISE EXCEPTION 'not here' USING ERRCODE = '40P01';
            END IF;
            RETURN true;
        END $$
        """,
        dsn=poisoned.dsn("n1"),
    )
    write(poisoned, "CREATE TABLE picked (id int PRIMARY KEY, CHECK (picky(id)))")
    settle(poisoned)
    known = len(incidents(poisoned, "n2"))
    write(poisoned, "INSERT INTO picked VALUES (1)")
    until("it is tried for ever", lambda: len(incidents(poisoned, "n2")) > known)
    one = incidents(poisoned, "n2")[-1]
    assert one["sqlstate"] == "40P01"
    assert "3 times in a row" in one["reason"]
    until("the herd does not get well", lambda: all_primary(poisoned))
    assert same_everywhere(poisoned, "SELECT id FROM picked") == [(1,)]


def test_an_entry_is_explained_with_its_verdict_and_what_it_has_stopped(
    poisoned: LocalHerd,
) -> None:
    write(poisoned, "CREATE TABLE told (id int PRIMARY KEY, v text)")
    (made,) = query(poisoned.dsn("n1"), "SELECT pgherd.last_gid()")[0]
    write(poisoned, "INSERT INTO told SELECT g, 'private' FROM generate_series(1, 3) g")
    (gid,) = query(poisoned.dsn("n1"), "SELECT pgherd.last_gid()")[0]
    settle(poisoned)
    shown = poisoned.top("explain", str(gid))
    assert shown.returncode == 0, shown.stderr
    assert f"GID {gid}: writeset" in shown.stdout
    assert "committed" in shown.stdout
    assert "table public.told: 3 inserted" in shown.stdout
    assert "UPDATE since GID" in shown.stdout and "table public.told" in shown.stdout
    assert "private" not in shown.stdout
    assert "private" in poisoned.top("explain", str(gid), "--rows").stdout
    asked = json.loads(poisoned.top("explain", str(gid), "--json").stdout)
    assert asked["tables"] == {"public.told": {"inserted": 3}}
    assert "table public.told" in [key["of"] for key in asked["keys"]]
    command = json.loads(poisoned.top("explain", str(made), "--json").stdout)
    assert command["commands"][0]["sql"].startswith("CREATE TABLE told")
    met = incidents(poisoned, "n2")[0]  # of a test before this one
    assert met["reason"] in poisoned.top("explain", str(met["gid"]), "--on", "n2").stdout
    future = poisoned.top("explain", str(gid + 1000))
    assert future.returncode == 2 and "has not been ordered yet" in future.stderr


@pytest.mark.long
def test_what_a_writeset_lost_against_is_told(poisoned: LocalHerd) -> None:
    write(poisoned, "CREATE TABLE race (id int PRIMARY KEY, v int)")
    write(poisoned, "INSERT INTO race VALUES (1, 0)")
    settle(poisoned)
    found: list[tuple[int, Any]] = []
    last = query(poisoned.dsn("n1"), "SELECT pgherd.last_gid()")[0][0]
    with (
        psycopg.connect(poisoned.app_dsn("n1")) as first,
        psycopg.connect(poisoned.app_dsn("n2")) as second,
        ThreadPoolExecutor(2) as pool,
    ):
        for _ in range(40):
            first.execute("UPDATE race SET v = 1")
            second.execute("UPDATE race SET v = 2")
            list(pool.map(committed, (first, second)))
            settle(poisoned)
            end = query(poisoned.dsn("n1"), "SELECT pgherd.last_gid()")[0][0]
            for gid in range(last + 1, end + 1):
                told = json.loads(poisoned.top("explain", str(gid), "--json").stdout)
                if told.get("verdict") == "did not commit":
                    found.append((gid, told))
            last = end
            if found:
                break
    assert found, "nothing was ordered that lost"
    gid, told = found[0]
    assert told["winner"] < gid
    winner = json.loads(poisoned.top("explain", str(told["winner"]), "--json").stdout)
    assert winner["verdict"] == "committed"
    assert told["winner_key"][:-1] in [key["key"][:-1] for key in winner["keys"]]


def committed(connection: psycopg.Connection[Any]) -> bool:
    """Commit; False if it lost."""
    try:
        connection.commit()
    except psycopg.errors.SerializationFailure:
        connection.rollback()
        return False
    return True
