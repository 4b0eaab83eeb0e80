"""A member leaves its herd and is a plain server: docs/leaving.md.

One herd of four and a witness, which one member leaves after the other: the order matters.
"""

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from patience import wait_until
from psycopg import sql
from psycopg.conninfo import make_conninfo

from .localherd import LocalHerd, error_of, free_port_base, home, pids_in, query, settle, standing
from .plainpostgres import PlainPostgres, plain_postgres
from .shop import dumped, fill_herd, fill_plain, repeat

_NUMBERS = """
CREATE TABLE counted (id serial PRIMARY KEY, n int);
CREATE SEQUENCE free;
CREATE SEQUENCE backwards INCREMENT BY -2;
CREATE SEQUENCE never_used START WITH 41;
CREATE TABLE marked (id int PRIMARY KEY, at int8 DEFAULT setval('never_used', 41, false));
CREATE VIEW moved WITH (security_barrier = true) AS
    SELECT setval('free', 7) AS "once", setval('free', 8, true) AS again;
"""
_OURS = """
SELECT n.nspname FROM pg_namespace n WHERE n.nspname LIKE 'pgherd%'
UNION ALL SELECT r.rolname FROM pg_roles r WHERE r.rolname LIKE 'pgherd%'
UNION ALL SELECT e.evtname FROM pg_event_trigger e
UNION ALL SELECT t.tgname FROM pg_trigger t WHERE t.tgname ILIKE 'pgherd%'
UNION ALL SELECT x.extname FROM pg_extension x WHERE x.extname = 'dblink'
UNION ALL SELECT p.parname FROM pg_parameter_acl p
UNION ALL SELECT p.oid::regprocedure::text FROM pg_proc p
           WHERE p.oid >= 16384 AND p.pronamespace = 'pg_catalog'::regnamespace
"""
_ELSEWHERE = """
SELECT s.name FROM pg_settings s WHERE s.setting LIKE '%leaving/%'
UNION ALL SELECT f.name FROM pg_file_settings f WHERE f.sourcefile LIKE '%auto.conf'
UNION ALL SELECT s.name FROM pg_settings s
           WHERE s.name = 'default_transaction_read_only' AND s.setting <> 'off'
"""


@pytest.fixture(scope="module")
def herd(work_directory: Path) -> Iterator[LocalHerd]:
    herd = LocalHerd(work_directory / "leaving", free_port_base(5))
    with standing(herd, "--nodes", "4", "--witness", "1"):
        fill_herd(herd, _NUMBERS)
        yield herd


@pytest.fixture(scope="module")
def twin(work_directory: Path, herd: LocalHerd) -> Iterator[PlainPostgres]:
    """A plain server on which the same was executed."""
    base = free_port_base(1)
    with plain_postgres(work_directory / "twin", base + 1, herd.dsn("n1")) as server:
        fill_plain(server, _NUMBERS)
        yield server


def without_values(dump: str) -> str:
    """A dump without the values of those sequences that members have used: each its own share."""
    used = r"counted_id_seq|free|backwards"
    return re.sub(
        rf"^SELECT pg_catalog\.setval\('public\.({used})'.*\n", "", dump, flags=re.MULTILINE
    )


def place(herd: LocalHerd, name: str) -> Path:
    """Where the command puts a server by default."""
    there = home(herd)
    return there.with_name(f"{there.name}-{name}")


class Exported:
    """The plain server that a member has become."""

    def __init__(self, herd: LocalHerd, name: str, dsn: str) -> None:
        self.directory = place(herd, name)
        self.app_dsn = dsn
        word = next(
            line.rsplit(":", 1)[1]
            for line in (self.directory / "pgpass").read_text().splitlines()
            if ":postgres:" in line
        )
        self.dsn = make_conninfo(dsn, user="postgres", password=word)


def export(herd: LocalHerd, name: str, *options: str) -> str:
    """Have a member leave; return the way to its server."""
    return connection_told(herd.top("export", "plain", name, *options))


def connection_told(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    found = re.search(r"^connect: psql '(.*)'$", done.stdout, re.MULTILINE)
    assert found is not None, done.stdout
    return found[1]


class TestRefused:
    """One line each, and the member stays."""

    def refusal(self, herd: LocalHerd, *words: str) -> str:
        told = error_of(herd.top("export", "plain", *words))
        assert all(member["state"] in ("primary", "witness") for member in herd.members())
        assert not place(herd, words[0]).exists()
        return told

    def test_a_witness_an_unknown_node_and_a_directory_in_use(
        self, herd: LocalHerd, work_directory: Path
    ) -> None:
        assert "w1 is a witness and has no database" in self.refusal(herd, "w1")
        assert "unknown node n9" in self.refusal(herd, "n9")
        assert "is not empty" in self.refusal(herd, "n2", "--into", str(work_directory))
        inside = str(home(herd) / "x")
        assert "is in the herd's directory" in self.refusal(herd, "n2", "--into", inside)

    def test_a_view_of_the_users_that_calls_what_is_ours(self, herd: LocalHerd) -> None:
        repeat(herd.app_dsn("n1"), "CREATE VIEW shop.gid AS SELECT pgherd.last_gid()")
        settle(herd)
        told = self.refusal(herd, "n2")
        assert "view shop.gid uses function pgherd.last_gid()" in told
        assert "a plain server has nothing in its place" in told
        repeat(herd.app_dsn("n1"), "DROP VIEW shop.gid")
        settle(herd)

    def test_a_member_that_has_other_rows(self, herd: LocalHerd) -> None:
        quiet = "SET session_replication_role = replica;"
        query(herd.dsn("n2"), quiet + "INSERT INTO counted VALUES (-1, 4)")
        assert "the members differ at GID" in (told := self.refusal(herd, "n2"))
        assert "public.counted" in told
        query(herd.dsn("n2"), quiet + "DELETE FROM counted WHERE n = 4")

    @pytest.mark.long
    def test_a_member_that_lags(self, herd: LocalHerd) -> None:
        herd.must("kill", "n2", "--process", "sidecar")
        told = error_of(herd.top("export", "plain", "n2"))
        assert "n2 is stopped" in told
        assert "only a member that takes writes has all rows" in told
        herd.must("start", "n2")
        settle(herd)

    def test_sql_while_the_sidecar_is_at_work(self, herd: LocalHerd) -> None:
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState) as error:
            query(herd.dsn("n2"), "SELECT pgherd.uninstall()")
        assert "stop its sidecar first" in str(error.value.diag.message_hint)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            query(herd.app_dsn("n2"), "SELECT pgherd.uninstall()")


def test_it_leaves_under_load_with_all_that_was_committed(
    herd: LocalHerd, twin: PlainPostgres
) -> None:
    given = give_out_numbers(herd)
    committed: list[int] = []
    stop = threading.Event()

    def write() -> None:
        with psycopg.connect(herd.app_dsn("n1"), autocommit=True) as connection:
            while not stop.is_set():
                try:
                    row = connection.execute("INSERT INTO counted (n) VALUES (0) RETURNING id")
                    committed.append(row.fetchall()[0][0])
                except (psycopg.errors.SerializationFailure, psycopg.errors.ReadOnlySqlTransaction):
                    time.sleep(0.01)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        wait_until(lambda: len(committed) >= 20)
        before = list(committed)
        plain = Exported(herd, "n2", export(herd, "n2"))
        left = len(committed)
        wait_until(lambda: len(committed) >= left + 20)
    finally:
        stop.set()
        writer.join()
    rows = {id_ for (id_,) in query(plain.app_dsn, "SELECT id FROM counted WHERE n = 0")}
    assert set(before) <= rows <= set(committed)
    assert rows == set(committed[: len(rows)])
    assert herd.must("verify")
    nothing_of_ours(plain)
    same_catalogs(plain, twin)
    numbers_go_on(plain, given | {"counted": max(*rows, given["counted"])})


def give_out_numbers(herd: LocalHerd) -> dict[str, int]:
    """Use the sequences on all members, in rows and in vain; return the last numbers."""
    given = {"counted": 0, "free": 0, "backwards": 0}
    for _, _dsn, app_dsn in herd.nodes():
        for _ in range(3):
            ((free, backwards),) = query(app_dsn, "SELECT nextval('free'), nextval('backwards')")
            given["free"] = max(given["free"], free)
            given["backwards"] = min(given["backwards"], backwards)
        with psycopg.connect(app_dsn) as connection:
            row = connection.execute("INSERT INTO counted (n) VALUES (1) RETURNING id").fetchone()
            assert row is not None
            id_ = row[0]
            connection.rollback()
        given["counted"] = max(given["counted"], id_)
    return given


def nothing_of_ours(plain: Exported) -> None:
    assert query(plain.dsn, _OURS) == []
    assert query(plain.dsn, _ELSEWHERE) == []
    for path in (plain.directory / "pgdata").glob("*.conf"):
        assert "herd" not in path.read_text().replace("Kept from the time in a herd", "").replace(
            str(plain.directory), ""
        ).replace("pgherd export plain", ""), path
    query(plain.app_dsn, "SELECT setval('free', currval('free')) FROM (SELECT nextval('free')) n")
    query(plain.app_dsn, "SELECT lo_unlink(lo_create(0))")


def same_catalogs(plain: Exported, twin: PlainPostgres) -> None:
    assert without_values(dumped(plain.dsn, "--exclude-table-data=counted")) == without_values(
        dumped(twin.dsn(), "--exclude-table-data=counted")
    )
    roles = ("--roles-only", "--no-role-passwords")
    assert dumped(plain.dsn, *roles, name="pg_dumpall") == dumped(
        twin.dsn(), *roles, name="pg_dumpall"
    )
    settings = (
        "SELECT setrole::regrole::text, setdatabase <> 0, setconfig"
        " FROM pg_db_role_setting ORDER BY 1, 2"
    )
    assert query(plain.dsn, settings) == query(twin.dsn(), settings)
    acl = "SELECT datacl IS NULL FROM pg_database WHERE datname = 'app'"
    assert query(plain.dsn, acl) == query(twin.dsn(), acl)


def numbers_go_on(plain: Exported, given: dict[str, int]) -> None:
    steps = (
        "SELECT sequencename, increment_by, start_value FROM pg_sequences"
        " WHERE schemaname = 'public' ORDER BY 1"
    )
    assert query(plain.app_dsn, steps) == [
        ("backwards", -2, -1), ("counted_id_seq", 1, 1), ("free", 1, 1), ("never_used", 1, 41),
    ]  # fmt: skip
    ((first,),) = query(plain.app_dsn, "INSERT INTO counted (n) VALUES (2) RETURNING id")
    ((second,),) = query(plain.app_dsn, "INSERT INTO counted (n) VALUES (2) RETURNING id")
    assert second == first + 1
    assert first > given["counted"]
    ((free, backwards, unused),) = query(
        plain.app_dsn, "SELECT nextval('free'), nextval('backwards'), nextval('never_used')"
    )
    assert free > given["free"]
    assert backwards < given["backwards"]
    assert unused == 41


@pytest.mark.parametrize(
    ("name", "word"), [("n3", "has left"), ("n4", "taking out of its database")]
)
def test_it_goes_on_after_a_kill(
    herd: LocalHerd, twin: PlainPostgres, name: str, word: str
) -> None:
    given = give_out_numbers(herd)
    command = herd.command("", name)
    command[command.index("local") : command.index(name)] = ["export", "plain"]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if word in line:
                break
        os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    plain = Exported(herd, name, export(herd, name))
    nothing_of_ours(plain)
    same_catalogs(plain, twin)
    numbers_go_on(plain, given)
    assert f"unknown node {name}" in error_of(herd.top("export", "plain", name))


def test_the_last_one_is_told_what_to_do(herd: LocalHerd) -> None:
    told = error_of(herd.top("export", "plain", "n1"))
    assert "n1 is the last database" in told
    assert "pgherd export dump n1" in told


def test_a_superuser_does_it_by_sql(herd: LocalHerd, twin: PlainPostgres) -> None:
    herd.must("kill", "n1", "--process", "sidecar")
    ours = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pgherd %'"
    wait_until(lambda: query(herd.dsn("n1"), ours) == [(0,)])  # the server ends them by and by
    with psycopg.connect(herd.dsn("n1")) as connection:
        connection.execute("SET default_transaction_read_only = off")
        connection.rollback()
        connection.execute("SET TRANSACTION READ WRITE")
        connection.execute("SELECT pgherd.uninstall()")
        connection.execute("INSERT INTO counted (n) VALUES (3)")
        wanted = "SELECT c.oid::regclass::text, c.relkind FROM pg_class c WHERE c.relnamespace = {}"
        mine = "'shop'::regnamespace ORDER BY 1"
        found = connection.execute(sql.SQL(wanted).format(sql.SQL(mine))).fetchall()
        assert found == query(twin.dsn(), wanted.format(mine))
        assert connection.execute(_OURS.encode()).fetchall() == []
        connection.rollback()
    herd.must("start", "n1")


def test_the_servers_outlive_the_herd(herd: LocalHerd, twin: PlainPostgres) -> None:
    for name in ("n2", "n3", "n4"):
        pgdata = place(herd, name) / "pgdata"
        assert pids_in(pgdata)
        assert not (home(herd) / name).exists()
        PlainPostgres(pgdata, 0, twin.major).stop()
        PlainPostgres(pgdata, 0, twin.major).start()
        PlainPostgres(pgdata, 0, twin.major).stop("immediate")
