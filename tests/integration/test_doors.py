"""A client is told which members take writes: by PostgreSQL's own setting, and by HTTP."""

import contextlib
import json
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from patience import wait_until
from pgherd_sidecar.local.herd import load
from pgherd_sidecar.local.sidecar import Sidecar

from .localherd import LocalHerd, free_port_base, home, put, query, settle, standing

Connection = psycopg.Connection[tuple[Any, ...]]

_SETTING = b"default_transaction_read_only"


@pytest.fixture(scope="module")
def doors(work_directory: Path) -> Iterator[LocalHerd]:
    """A herd with a witness, for these tests only."""
    herd = LocalHerd(work_directory / "doors", free_port_base(4))
    with standing(herd, "--witness", "1", "--nodes", "3"):
        query(herd.app_dsn("n1"), "CREATE TABLE t (id int PRIMARY KEY, v int)")
        query(herd.app_dsn("n1"), "CREATE TABLE mine (id int PRIMARY KEY)")
        put(herd, herd.app_dsn("n1"), "SELECT pgherd.set_local('mine')")
        yield herd


def test_a_new_herd_orders_nothing_before_its_first_command(doors: LocalHerd) -> None:
    """The first command would hear of a conflict with an earlier order."""
    [(gid,)] = query(doors.dsn("n1"), "SELECT pgherd.last_gid()")
    told = doors.top("changes", "--after", "0", "--through", str(gid)).stdout.splitlines()
    assert "CREATE TABLE t " in json.loads(told[0])["command"]


def reached(what: str, so: Callable[[], bool]) -> None:
    wait_until(so, brief=True, told=lambda: what)


@contextlib.contextmanager
def cut_off(herd: LocalHerd, node: str) -> Iterator[None]:
    """A node is in the minority, and the others know."""
    others = ",".join(one["name"] for one in herd.members() if one["name"] != node)
    herd.must("partition", f"{node}|{others}")
    try:
        reached("fenced", lambda: asked(herd, node, "/primary")[0] == 503)
        reached("told", lambda: is_read_only(herd, node))
        yield
    finally:
        herd.must("heal")
        for one in load(home(herd)).databases:
            reached("back", lambda name=one.name: asked(herd, name, "/primary")[0] == 200)  # type: ignore[misc]
            reached("told", lambda name=one.name: not is_read_only(herd, name))  # type: ignore[misc]


def asked(herd: LocalHerd, node: str, path: str, method: str = "GET") -> tuple[int, str]:
    """Return the answer that a balancer gets; its status is 0 if nobody answers."""
    port = load(home(herd)).member(node).health_port
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return 0, ""


def is_read_only(herd: LocalHerd, node: str, dsn: str | None = None) -> bool:
    """Return what the server tells a new session, to libpq and to other drivers alike."""

    def told() -> tuple[str, tuple[Any, ...] | None]:
        with psycopg.connect(dsn or herd.app_dsn(node), autocommit=True) as connection:
            reported = (connection.pgconn.parameter_status(_SETTING) or b"").decode()
            asked_for = connection.execute("SHOW transaction_read_only").fetchone()
        return reported, asked_for  # JDBC and pgx ask for it

    reported, _ = wait_until(told, lambda both: both[1] == (both[0],))
    return reported == "on"


def open_session(herd: LocalHerd, node: str) -> Connection:
    return psycopg.connect(herd.app_dsn(node), autocommit=True)


def auto_conf(herd: LocalHerd, node: str) -> str:
    return (load(home(herd)).node(node).pgdata / "postgresql.auto.conf").read_text()


def test_a_member_in_the_minority_says_so_and_takes_it_back(doors: LocalHerd) -> None:
    herd = doors
    line = herd.summary()["application_dsn"]
    with contextlib.closing(open_session(herd, "n1")) as old:
        assert old.pgconn.parameter_status(_SETTING) == b"off"
        with psycopg.connect(line) as connection:
            assert connection.info.port == load(home(herd)).member("n1").port  # the first of all
        with cut_off(herd, "n1"):
            # A new session goes elsewhere.
            with psycopg.connect(line) as connection:
                assert connection.info.port != load(home(herd)).member("n1").port
                connection.execute("INSERT INTO t VALUES (1, 0)")
            # An open session learns it with its next statement.
            assert old.execute("SELECT count(*) FROM t").fetchone() == (0,)
            assert old.pgconn.parameter_status(_SETTING) == b"on"
            with pytest.raises(psycopg.errors.ReadOnlySqlTransaction, match="cannot execute INS"):
                old.execute("INSERT INTO t VALUES (2, 0)")
            why = old.execute("SELECT pgherd.why_read_only()").fetchone()
            assert why is not None and "no majority" in why[0]
            # Whoever switches it off for himself is refused all the same, and hears why.
            old.execute("SET default_transaction_read_only = off")
            with pytest.raises(psycopg.errors.ReadOnlySqlTransaction, match="no majority") as hint:
                old.execute("INSERT INTO t VALUES (2, 0)")
            assert "primary" in (hint.value.diag.message_hint or "")
            old.execute("INSERT INTO mine VALUES (1)")
            old.execute("RESET default_transaction_read_only")
            assert is_read_only(herd, "n1") and not is_read_only(herd, "n2")
        old.execute("INSERT INTO t VALUES (3, 0)")
        assert old.pgconn.parameter_status(_SETTING) == b"off"
        assert old.execute("SELECT pgherd.why_read_only()").fetchone() == (None,)
    assert "read_only" not in auto_conf(herd, "n1")
    herd.must("verify")


@pytest.mark.long
def test_a_server_that_could_not_be_told_is_told_later(doors: LocalHerd) -> None:
    """PostgreSQL can't write the file that it would rename, as on a full disk."""
    herd = doors
    in_the_way = load(home(herd)).node("n1").pgdata / "postgresql.auto.conf.tmp"
    log = home(herd) / "n1" / "sidecar.log"
    others = "n2,n3," + next(m["name"] for m in herd.members() if m["name"] not in "n1n2n3")
    herd.must("partition", f"n1|{others}")
    try:
        reached("told", lambda: is_read_only(herd, "n1"))
        in_the_way.mkdir()
        herd.must("heal")
        reached("not told", lambda: "clients.not_told" in log.read_text())
        reached("back", lambda: asked(herd, "n1", "/primary")[0] == 200)
        assert is_read_only(herd, "n1")
    finally:
        herd.must("heal")
        in_the_way.rmdir()
    reached("told at last", lambda: not is_read_only(herd, "n1"))


@pytest.mark.long
def test_what_roles_and_databases_say_goes_before_it_and_stays(doors: LocalHerd) -> None:
    herd = doors
    query(herd.dsn("n1"), "SELECT pgherd.run_everywhere('CREATE ROLE stubborn LOGIN')")
    query(herd.dsn("n1"), "ALTER ROLE stubborn SET default_transaction_read_only = off")
    query(herd.dsn("n1"), "ALTER ROLE app SET default_transaction_read_only = off")
    mine = "SELECT setconfig FROM pg_db_role_setting WHERE setrole = 'app'::regrole"
    before = query(herd.dsn("n1"), mine)
    try:
        herd.must("partition", "n1|n2,n3,w1")
        reached("fenced", lambda: asked(herd, "n1", "/primary")[0] == 503)
        reached("told", lambda: is_read_only(herd, "n1", herd.dsn("n1")))
        assert not is_read_only(herd, "n1")
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction, match="no majority"):
            query(herd.app_dsn("n1"), "INSERT INTO t VALUES (9, 0)")
        assert query(herd.dsn("n1"), mine) == before
    finally:
        herd.must("heal")
        reached("back", lambda: asked(herd, "n1", "/primary")[0] == 200)
        reached("told", lambda: not is_read_only(herd, "n1", herd.dsn("n1")))
        after = query(herd.dsn("n1"), mine)
        query(herd.dsn("n1"), "ALTER ROLE app RESET default_transaction_read_only")
    assert after == before
    query(herd.dsn("n1"), "SELECT pgherd.run_everywhere('DROP ROLE stubborn')")
    # The others hear a moment later what is said of a role.
    reached("reset", lambda: not any(query(node.dsn, mine) for node in herd.nodes()))


@pytest.mark.long
def test_our_own_work_goes_on_where_sessions_begin_read_only(doors: LocalHerd) -> None:
    """Apply, DDL, a rebuild from a partner that says so, start and verify."""
    herd = doors
    with cut_off(herd, "n1"):
        query(herd.app_dsn("n2"), "CREATE TABLE made (id int PRIMARY KEY, v int)")
        query(herd.app_dsn("n2"), "INSERT INTO made SELECT g, g FROM generate_series(1, 1000) g")
        # n3 applies it a moment after n2 has answered.
        applied = "SELECT to_regclass('made') IS NOT NULL"
        reached("applied", lambda: query(herd.app_dsn("n3"), applied) == [(True,)])
        query(herd.app_dsn("n3"), "ALTER TABLE made ADD w int NOT NULL DEFAULT 3")
    settle(herd)
    assert query(herd.app_dsn("n1"), "SELECT count(*), sum(w) FROM made") == [(1000, 3000)]
    # A member does not believe what a copy brings along, in the files or in the database.
    query(herd.app_dsn("n1"), "ALTER DATABASE app SET default_transaction_read_only = on")
    try:
        for one in ("n1", "n3"):
            query(herd.dsn(one), "ALTER SYSTEM SET default_transaction_read_only = on")
        herd.must("rebuild", "n2", "--from", "n1")
        assert "read_only" not in auto_conf(herd, "n2")
    finally:
        for one in ("n1", "n2"):  # the copy has it, too
            with psycopg.connect(
                herd.app_dsn(one), autocommit=True, options="-c default_transaction_read_only=off"
            ) as connection:
                connection.execute("ALTER DATABASE app RESET default_transaction_read_only")
        for one in ("n1", "n3"):
            query(herd.dsn(one), "ALTER SYSTEM RESET default_transaction_read_only")
    settle(herd)
    herd.must("verify")


@pytest.mark.parametrize(
    "how", [pytest.param(signal.SIGTERM, marks=pytest.mark.long), signal.SIGKILL]
)
def test_a_member_whose_sidecar_was_ended_says_so_until_it_is_back(
    doors: LocalHerd, how: signal.Signals
) -> None:
    herd = doors
    description = load(home(herd))
    process = Sidecar(description, description.member("n3")).process()
    assert process is not None
    query(herd.dsn("n3"), "UPDATE pgherd.node SET held = true")
    process.signal(how)
    reached("told", lambda: is_read_only(herd, "n3"))
    reached("silent", lambda: asked(herd, "n3", "/live")[0] == 0)
    why = query(herd.app_dsn("n3"), "SELECT pgherd.why_read_only()")
    assert why == [("its sidecar does not run",)]
    assert query(herd.dsn("n3"), "SELECT writable FROM pgherd.partner_status()") == [(False,)]
    herd.must("kill", "n3", "--process", "postgres")  # it is there after a crash, too
    herd.must("start", "n3")
    assert not is_read_only(herd, "n3")
    query(herd.app_dsn("n3"), f"INSERT INTO t VALUES ({30 + how}, 0)")


def test_the_session_that_watches_for_a_dead_sidecar_keeps_no_row_from_vacuum(
    doors: LocalHerd,
) -> None:
    watch = "FROM pg_stat_activity WHERE application_name = 'pgherd alone'"
    assert query(doors.dsn("n1"), f"SELECT count(*) {watch}") == [(1,)]
    (began,) = query(doors.dsn("n1"), f"SELECT xact_start {watch}")
    reached("anew", lambda: query(doors.dsn("n1"), f"SELECT xact_start {watch}")[0] != began)


def test_balancers_hear_who_takes_writes_and_who_can_be_read(doors: LocalHerd) -> None:
    herd = doors
    wanted = ("/", "/primary", "/leader", "/read-write")
    read = ("/readable", "/replica", "/read-only", "/replica?lag=16MB", "/readable?lag=1MB&age=30s")
    for path in (*wanted, *read, "/ready", "/readiness", "/live", "/liveness", "/health"):
        assert asked(herd, "n1", path)[0] == 200, (path, asked(herd, "n1", path))
        assert asked(herd, "n1", path, "HEAD") == (200, ""), path
        assert asked(herd, "n1", path, "OPTIONS")[0] == 200, path
    for path in ("/ready", "/live", "/health"):
        assert asked(herd, "w1", path)[0] == 200, path
    for path in (*wanted, *read):
        assert asked(herd, "w1", path)[0] == 503, path
    with cut_off(herd, "n1"):
        for path in (*wanted, "/ready"):
            assert asked(herd, "n1", path)[0] == 503, path
        for path in ("/readable", "/replica?lag=1MB", "/live", "/health", "/readable?age=1h"):
            assert asked(herd, "n1", path)[0] == 200, path
        reached("old", lambda: asked(herd, "n1", "/readable?age=500ms")[0] == 503)
    reached("fresh", lambda: asked(herd, "n1", "/readable?age=5s")[0] == 200)


def test_status_tells_applications_in_one_line_where_to_connect(doors: LocalHerd) -> None:
    herd = doors
    said = herd.must("status").splitlines()
    line = next(one for one in said if one.startswith("for applications: "))
    dsn = line.removeprefix("for applications: ")
    assert not re.search(r"app:[^@]*@", dsn)  # no password
    assert [
        one["health"] is not None for one in json.loads(herd.must("status", "--json"))["members"]
    ]
    with psycopg.connect(dsn) as connection:  # by the file that it names
        assert connection.execute("SELECT current_user").fetchone() == ("app",)
    with psycopg.connect(herd.summary()["reading_dsn"]) as connection:
        assert connection.execute("SELECT current_user").fetchone() == ("app",)
