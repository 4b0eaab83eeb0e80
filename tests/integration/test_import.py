"""A running PostgreSQL is taken over while it takes writes: docs/importing.md."""

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, LiteralString

import psycopg
import pytest
from patience import join, wait_until
from pgherd_sidecar.importing import comparing, cutover, engine, following, schema
from pgherd_sidecar.importing.ends import source
from pgherd_sidecar.importing.ends.connections import Destination, SourceAddress
from pgherd_sidecar.importing.ends.errors import CutOverDone
from pgherd_sidecar.importing.ends.target import Target
from pgherd_sidecar.tables import rowsql
from pgherd_sidecar.tables.folding import RowChange
from pgherd_sidecar.tables.model import SourceTable
from pgherd_sidecar.tables.sessions import connect
from pgherd_sidecar.tables.values import Row

from . import installations
from .localherd import (
    COMMAND_TIMEOUT_S,
    LocalHerd,
    error_of,
    free_port_base,
    home,
    query,
    settle,
    standing,
)
from .plainpostgres import PlainPostgres, plain_postgres

SOURCE = (Path(__file__).parent / "sql" / "import_source.sql").read_text()
_TABLES = ("account", "entry", "history", "bag", "part_1", "part_2", '"Odd %s"')
_PHASES = ("", "begun", "copy", "keys", "follow", "done")
SETTINGS = "wal_level = logical\nmax_wal_size = '1GB'\nlog_statement = none\n"


@pytest.fixture(scope="module")
def herd(work_directory: Path) -> Iterator[LocalHerd]:
    with standing(LocalHerd(work_directory / "imported", free_port_base())) as herd:
        yield herd


@pytest.fixture(scope="module")
def server(work_directory: Path, herd: LocalHerd) -> Iterator[PlainPostgres]:
    with plain_postgres(
        work_directory / "source", free_port_base(1) + 1, herd.dsn("n1"), SETTINGS
    ) as server:
        make_reader(server)
        yield server


def make_reader(server: PlainPostgres) -> None:
    """A role that the source's objects belong to."""
    query(server.dsn("postgres"), "CREATE ROLE import_reader LOGIN PASSWORD 'secret'")
    query(server.dsn("postgres"), "ALTER ROLE import_reader SET work_mem = '5MB'")


@pytest.fixture(autouse=True)
def _nothing_goes_on(herd: LocalHerd, server: PlainPostgres) -> Iterator[None]:
    """Whatever a test that failed has left does not meet the test that comes next."""
    yield
    for running in Running.started:
        running.process.kill()
        running.process.communicate()
    Running.started.clear()
    if status(herd) != {"phase": None}:
        done = herd.top("import", "abort")
        assert done.returncode == 0, done.stderr


def database(server: PlainPostgres, name: str, text: str, encoding: str = "UTF8") -> str:
    with contextlib.suppress(psycopg.errors.InvalidCatalogName):  # not made before
        query(server.dsn("postgres"), f"ALTER DATABASE {name} CONNECTION LIMIT 0")
        ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname ="
        query(server.dsn("postgres"), f"{ended} '{name}'")
        query(server.dsn("postgres"), f"DROP DATABASE {name}")
    query(
        server.dsn("postgres"),
        f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0",
    )
    query(server.dsn(name), text)
    return server.dsn(name)


def options(programs: Path | None) -> list[str]:
    """What names the programs that dump the source, if they are not the herd's own."""
    return [] if programs is None else ["--postgres-bin", str(programs)]


class Running:
    """``pgherd import`` in the background."""

    started: ClassVar[list["Running"]] = []

    def __init__(self, herd: LocalHerd, dsn: str, programs: Path | None = None) -> None:
        self.herd = herd
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pgherd_sidecar.cli.main", "import", "--from", dsn,
             "--jobs", "2", "--dir", str(herd.directory), *options(programs)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.started.append(self)

    def kill(self) -> None:
        """As a machine that dies does; it must have been at work."""
        assert self.process.poll() is None, self.process.communicate()
        self.process.kill()
        self.process.communicate()

    def ended(self) -> tuple[int, str, str]:
        """Wait for its end: status, answer, complaints."""
        out, complaints = self.process.communicate(timeout=COMMAND_TIMEOUT_S)
        assert "Traceback" not in complaints
        return self.process.returncode, out, complaints

    def wait_for_its_turn(self) -> None:
        """It runs the import."""
        mine = f"process {self.process.pid} "
        wait_until(lambda: mine in progress(self.herd)[1] or self.process.poll() is not None)
        assert self.process.poll() is None, self.process.communicate()

    def wait_for(self, phase: str) -> None:
        at = _PHASES.index(phase)
        wait_until(
            lambda: self.process.poll() is not None or _PHASES.index(progress(self.herd)[0]) >= at
        )
        assert self.process.poll() is None, self.process.communicate()


def progress(herd: LocalHerd) -> tuple[str, str]:
    """The phase, and who runs it, as the second member has it."""
    with contextlib.suppress(psycopg.errors.UndefinedTable):
        for phase, run_by in look(herd.dsn("n2"), "SELECT phase, run_by FROM pgherd_import.state"):
            return phase, run_by
    return "", ""


def look(dsn: str, statement: str) -> list[tuple[Any, ...]]:
    """Read, and read again where the reader gave way to a command or to a member's death."""
    gave_way = (psycopg.errors.SerializationFailure, psycopg.errors.AdminShutdown)
    return wait_until(lambda: query(dsn, statement), lambda _: True, despite=gave_way)


def status(herd: LocalHerd) -> dict[str, object]:
    done = herd.top("import", "status", "--json")
    assert done.returncode == 0, done.stderr
    told: dict[str, object] = json.loads(done.stdout)
    return told


def nothing_is_left(herd: LocalHerd, server: PlainPostgres, name: str) -> None:
    settle(herd)
    for node in herd.nodes():
        assert query(node.dsn, "SELECT to_regnamespace('pgherd_import')") == [(None,)]
    assert query(server.dsn(name), "SELECT slot_name FROM pg_replication_slots") == []
    assert query(server.dsn(name), "SELECT pubname FROM pg_publication") == []


class TestReasons:
    """Before the others: it leaves the herd as it was."""

    def test_all_are_told_at_once_and_nothing_is_made(
        self, herd: LocalHerd, server: PlainPostgres
    ) -> None:
        dsn = database(
            server,
            "unfit",
            """
            CREATE TABLE bare (id int); INSERT INTO bare VALUES (1); UPDATE bare SET id = 2;
            CREATE UNLOGGED TABLE fleeting (id int PRIMARY KEY);
            CREATE FOREIGN DATA WRAPPER wrapper; CREATE SERVER far FOREIGN DATA WRAPPER wrapper;
            CREATE FOREIGN TABLE away (id int) SERVER far;
            SELECT lo_create(4711);
            CREATE SEQUENCE round MAXVALUE 10 CYCLE;
            CREATE TABLE named (id int PRIMARY KEY, t regclass);
            CREATE SUBSCRIPTION feed CONNECTION 'host=127.0.0.1' PUBLICATION p
                WITH (connect = false, slot_name = NONE);
            """,
        )
        wait_until(
            lambda: query(dsn, "SELECT pg_stat_get_tuples_updated('bare'::regclass)") != [(0,)]
        )
        done = herd.top("import", "--from", dsn)
        assert "can't be taken over" in error_of(done)
        reasons = [line for line in done.stderr.splitlines() if line.startswith("- ")]
        for word in (
            "rows of public.bare are changed", "public.fleeting is unlogged",
            "public.away is a foreign table", "large objects", "subscribes to others (feed)",
            "CYCLE", "regclass",
        ):  # fmt: skip
            assert any(word in line for line in reasons), (word, reasons)
        assert all(": " in line for line in reasons)
        nothing_is_left(herd, server, "unfit")
        for node in herd.nodes():
            assert query(node.dsn, "SELECT to_regclass('public.bare')") == [(None,)]
            assert query(node.dsn, "SELECT FROM pg_roles WHERE rolname = 'import_reader'") == []

    def test_bad_input_is_one_line(self, herd: LocalHerd, server: PlainPostgres) -> None:
        for words, said in (
            ((), "--from"),
            (("--from", "nonsense"), "connection string"),
            (("--from", "postgresql://127.0.0.1:1/x"), "can't be reached"),
            (("cut-over",), "no import is under way"),
        ):
            assert said in error_of(herd.top("import", *words))
        assert status(herd) == {"phase": None}

    def test_a_role_without_rights_hears_what_it_lacks(
        self, herd: LocalHerd, server: PlainPostgres
    ) -> None:
        dsn = database(server, "guarded", "CREATE TABLE t (id int PRIMARY KEY)")
        as_reader = dsn.replace("postgres@", "import_reader@")
        done = herd.top("import", "--check", "--from", as_reader)
        error_of(done)
        for word in ("may not replicate", "can't be read", "have other owners", "stop writes"):
            assert word in done.stderr

    def test_another_collation_of_the_database_is_told_and_bounds_of_partitions_need_the_same(
        self, herd: LocalHerd, server: PlainPostgres
    ) -> None:
        database(server, "sorted", "")
        query(server.dsn("postgres"), "DROP DATABASE sorted")
        query(
            server.dsn("postgres"),
            "CREATE DATABASE sorted LOCALE_PROVIDER icu ICU_LOCALE 'de' LOCALE 'C'"
            " TEMPLATE template0",
        )
        dsn = server.dsn("sorted")
        query(dsn, 'CREATE TABLE t (a text COLLATE "C" NOT NULL, b text) PARTITION BY RANGE (a)')
        done = herd.top("import", "--check", "--from", dsn)
        assert done.returncode == 0, done.stderr
        assert "goes by ICU de at the source and C.UTF-8 in the herd" in done.stderr
        query(dsn, "CREATE TABLE other (a text NOT NULL) PARTITION BY RANGE (a)")
        done = herd.top("import", "--check", "--from", dsn)
        [line] = [line for line in done.stderr.splitlines() if line.startswith("- ")]
        assert "partitions of public.other are bounded by text in the order of ICU de" in line

    def test_an_ordinary_role_of_the_source_gets_nothing_executed_as_superuser(
        self, herd: LocalHerd, server: PlainPostgres, work_directory: Path
    ) -> None:
        """Its settings are words, and its code runs as itself or is refused."""
        made = work_directory / "made"
        made.mkdir()
        made.chmod(0o777)
        dsn = database(server, "hostile", "CREATE TABLE t (id int PRIMARY KEY)")
        query(dsn, "CREATE ROLE intruder LOGIN; CREATE SCHEMA intruder AUTHORIZATION intruder")
        try:
            query(
                server.dsn("hostile", "intruder"),
                f"""
                SELECT set_config(
                    'search_path', $$a;copy(select/**/1)to/**/program'cat>{made}/setting'$$, false);
                ALTER ROLE CURRENT_USER SET search_path FROM CURRENT;
                SET search_path = intruder;
                CREATE FUNCTION act(file text) RETURNS bool LANGUAGE plpgsql AS $$
                BEGIN
                    IF (SELECT r.rolsuper FROM pg_roles r WHERE r.rolname = current_user) THEN
                        EXECUTE format('COPY (SELECT 1) TO PROGRAM %L', 'cat>{made}/' || file);
                    END IF;
                    RETURN true;
                END $$;
                CREATE FUNCTION seems_fixed(file text) RETURNS bool IMMUTABLE LANGUAGE plpgsql
                SET search_path = pg_catalog, pg_temp AS $$
                BEGIN
                    RETURN intruder.act(file);
                END $$;
                CREATE TABLE t (id int PRIMARY KEY);
                CREATE INDEX i ON t (id) WHERE seems_fixed('index');
                CREATE MATERIALIZED VIEW v AS SELECT seems_fixed('view');
                """,
            )
            done = herd.top("import", "--check", "--from", dsn)
            assert sorted(made.iterdir()) == []
            for word in ("may have other contents", "which is not a superuser's"):
                assert word in done.stderr
        finally:
            database(server, "hostile", "DROP ROLE intruder")


async def test_a_dump_holds_backslashes_as_the_herd_reads_them(server: PlainPostgres) -> None:
    dsn = database(server, "slashes", r"CREATE TABLE t (id int PRIMARY KEY, a text DEFAULT 'a\b')")
    query(dsn, "ALTER DATABASE slashes SET standard_conforming_strings = off")
    program = Path(installations.program("pg_dump", server.major))
    found = await schema.dump(program, dsn, "pgherd_import")
    assert any(r"'a\b'" in one.sql for one in found), found


@pytest.mark.long
def test_a_difference_takes_cut_over_back_ddl_ends_it_and_abort_leaves_nothing(
    herd: LocalHerd, server: PlainPostgres
) -> None:
    dsn = database(
        server,
        "altered",
        "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a');"
        "CREATE TABLE bare (v text); ALTER TABLE t OWNER TO import_reader;"
        'CREATE TABLE U&"gr\\00fcn" (U&"gr\\00f6\\00dfe" text);'
        'INSERT INTO U&"gr\\00fcn" VALUES (chr(228))',
        encoding="LATIN1",
    )
    first = Running(herd, dsn)
    first.wait_for("follow")
    query(herd.dsn("n2"), "INSERT INTO t VALUES (99, 'of nobody')")
    said = error_of(herd.top("import", "cut-over"))
    assert "tables differ: public.t (1 rows at the source, 2 in the herd); the source" in said
    assert "the source takes writes again" in said
    assert first.ended()[0] == 0
    assert query(dsn, "SELECT to_regnamespace('pgherd_import')") == [(None,)]
    query(dsn, "UPDATE t SET v = 'b'")
    query(herd.dsn("n2"), "DELETE FROM t WHERE id = 99")
    running = Running(herd, dsn)
    running.wait_for_its_turn()
    wait_until(lambda: query(herd.dsn("n1"), "SELECT v FROM t") == [("b",)])
    query(dsn, "ALTER TABLE t ADD w int; INSERT INTO t VALUES (2, 'b', 3)")
    code, _, complaints = running.ended()
    assert (code, complaints.count("DDL at the source")) == (2, 1), complaints
    assert "DDL at the source" in error_of(herd.top("import", "--from", dsn))
    query(dsn, "DELETE FROM t WHERE id = 2")
    wrong = query(herd.dsn("n1"), "SELECT id FROM t")
    assert wrong == [(1,)]
    done = herd.top("import", "abort")
    assert done.returncode == 0, done.stderr
    nothing_is_left(herd, server, "altered")
    settle(herd)
    for node in herd.nodes():
        assert query(node.dsn, "SELECT to_regclass('public.t')") == [(None,)]
        assert query(node.dsn, "SELECT FROM pg_roles WHERE rolname = 'import_reader'") == []


@pytest.mark.long
def test_abort_removes_what_the_import_has_made_and_nothing_else(
    herd: LocalHerd, server: PlainPostgres
) -> None:
    dsn = database(
        server,
        "taken",
        "CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY); CREATE SCHEMA shop;"
        "CREATE DOMAIN shop.code AS text; CREATE TYPE shop.span AS RANGE (SUBTYPE = int);"
        "CREATE TABLE shop.u (id serial PRIMARY KEY, c shop.code, s shop.span);"
        "CREATE FUNCTION f(shop.u) RETURNS int LANGUAGE sql AS 'SELECT 1';"
        "CREATE MATERIALIZED VIEW shop.m AS SELECT id FROM shop.u;"
        "ALTER TABLE shop.u OWNER TO import_reader",
    )
    schedule = ("--sql", "ANALYZE", "--every", "0 3 1 1 *", "--name", "yearly")
    done = herd.top("maintain", *schedule)
    assert done.returncode == 0, done.stderr
    Running(herd, dsn).wait_for("follow")
    mine = (
        "CREATE SCHEMA mine; CREATE TABLE mine.n (id int PRIMARY KEY, c shop.code);"
        "CREATE VIEW mine.v AS SELECT id FROM t; CREATE TABLE beside (id int PRIMARY KEY);"
        "CREATE TABLE mine.of_role (id int PRIMARY KEY); INSERT INTO mine.n VALUES (1, 'a');"
        "ALTER TABLE mine.of_role OWNER TO import_reader"
    )
    for command in mine.split(";"):
        query(herd.dsn("n1"), command)
    said = error_of(herd.top("import", "abort"))
    for name in ("column c of table mine.n", "view mine.v", "public.beside", "table mine.of_role"):
        assert name in said
    assert " more" not in said
    assert "shop" not in said
    assert "public.t" not in said
    assert status(herd)["phase"] == "follow"
    for command in (
        "ALTER TABLE mine.n ALTER c TYPE text", "DROP VIEW mine.v", "DROP TABLE mine.of_role",
        "ALTER TABLE beside SET SCHEMA mine",
    ):  # fmt: skip
        query(herd.dsn("n1"), command)
    done = herd.top("import", "abort")
    assert done.returncode == 0, done.stderr
    nothing_is_left(herd, server, "taken")
    for node in herd.nodes():
        assert query(node.dsn, "SELECT * FROM mine.n") == [(1, "a")]
        assert query(node.dsn, "SELECT name FROM pgherd_maintenance.schedule") == [("yearly",)]
        assert query(node.dsn, "SELECT to_regclass('mine.beside') IS NULL") == [(False,)]
        assert query(node.dsn, "SELECT to_regclass('t'), to_regnamespace('shop')") == [(None, None)]
    query(herd.dsn("n1"), "DROP SCHEMA mine CASCADE")


@pytest.mark.long
async def test_a_source_takes_writes_after_a_cut_over_that_was_interrupted_and_never_after_its_end(
    herd: LocalHerd, server: PlainPostgres
) -> None:
    dsn = database(
        server,
        "switched",
        "CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (t int CONSTRAINT f REFERENCES t);"
        "CREATE TABLE v (t int CONSTRAINT g REFERENCES t);"
        "SET session_replication_role = replica; INSERT INTO u VALUES (7)",  # of nobody
    )
    running = Running(herd, dsn)
    running.wait_for("follow")
    reached = asyncio.Event()

    def say(text: str) -> None:
        if text == "comparing":
            reached.set()

    ways = engine.Ways(
        SourceAddress(dsn), Target([Destination("n1", herd.dsn("n1"))]), Path("pg_dump"), 1,
        say, say,
    )  # fmt: skip
    interrupted = asyncio.create_task(cutover.CutOver(ways).run())
    await reached.wait()
    interrupted.cancel()
    with pytest.raises(asyncio.CancelledError):
        await interrupted
    assert running.ended()[0] == 0
    query(dsn, "INSERT INTO t VALUES (1)")
    assert status(herd)["stopped"] is False
    await cutover.CutOver(ways).run()  # and it dies before its end
    for words in (("--from", dsn), ("abort",)):
        assert "the cut-over is done, and the herd is in use" in error_of(
            herd.top("import", *words)
        )
    with pytest.raises(CutOverDone):
        await engine.Engine(ways).run()
    await ways.target.refresh()
    with pytest.raises(CutOverDone):
        await ways.target.advance(stopped=False)
    await ways.target.close()
    for refused in ("INSERT INTO t VALUES (2)", "BEGIN READ WRITE; DELETE FROM t; COMMIT"):
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            query(dsn, refused)
    done = herd.top("import", "cut-over")
    assert done.returncode == 0, done.stderr
    assert 'VALIDATE CONSTRAINT "f"' in done.stderr
    assert 'Key (t)=(7) is not present in table "t"' in done.stderr
    nothing_is_left(herd, server, "switched")
    unchecked = "SELECT conname FROM pg_constraint WHERE NOT convalidated"
    for node in herd.nodes():
        assert query(node.dsn, unchecked) == [("f",)]
    query(herd.dsn("n1"), "DROP TABLE u, v, t")


@pytest.mark.long
async def test_a_transaction_that_is_too_large_comes_in_parts_each_exactly_once(
    herd: LocalHerd, server: PlainPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    dsn = database(server, "bulky", "CREATE TABLE t (id int PRIMARY KEY, v int)")
    running = Running(herd, dsn)
    running.wait_for("follow")
    running.kill()
    monkeypatch.setattr(following, "_PARTS", 1)
    query(dsn, "INSERT INTO t SELECT g, 0 FROM generate_series(1, 60000) g")

    def part() -> list[tuple[Any, ...]]:
        return look(herd.dsn("n1"), "SELECT part_changes FROM pgherd_import.state")

    for _ in range(2):
        target = Target([Destination("n1", herd.dsn("n1"))])
        ways = engine.Ways(SourceAddress(dsn), target, Path("pg_dump"), 1, print, print)
        before = part()
        work = asyncio.create_task(engine.Engine(ways).run())
        await asyncio.to_thread(
            wait_until, part, lambda seen, before=before: seen not in (before, [(None,)])
        )
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        assert work.cancelled()
        await target.close()
    query(dsn, "UPDATE t SET v = 1 WHERE id = 1")
    running = Running(herd, dsn)
    count = "SELECT count(*), sum(v) FROM t"
    wait_until(
        lambda: look(herd.dsn("n1"), count) == [(60000, 1)] or running.process.poll() is not None
    )
    assert running.process.poll() is None, running.process.communicate()
    done = herd.top("import", "abort")
    assert done.returncode == 0, done.stderr


class Writer(threading.Thread):
    """Writes to the source until it may not any more.

    It slows down with time: the import has to come to an end on the busiest machine, too.
    """

    def __init__(self, dsn: str, seed: int) -> None:
        super().__init__(daemon=True)
        self.dsn = dsn
        self.random = random.Random(seed)
        self.done = 0
        self.error: Exception | None = None
        self.stopped = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            with psycopg.connect(self.dsn, autocommit=True) as connection:
                while not self.stopped.is_set():
                    with (
                        contextlib.suppress(
                            psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected
                        ),
                        connection.transaction(),
                    ):
                        for _ in range(self.random.randint(1, 4)):
                            self.one(connection)
                    self.done += 1
                    time.sleep(0.02 + self.done / 10_000)
        except psycopg.Error as error:
            self.error = error

    def one(self, connection: psycopg.Connection) -> None:
        number, other = self.random.randint(1, 320), self.random.randint(1, 320)
        five = number % 5
        statements: list[tuple[LiteralString, tuple[object, ...]]] = [
            ("UPDATE shop.account SET balance = balance + 1 WHERE id = %s", (number,)),
            ("UPDATE shop.account SET large = repeat(md5(large), 120) WHERE id = %s", (number,)),
            (
                "INSERT INTO shop.entry (account, amount) SELECT id, 7 FROM shop.account"
                " WHERE id = %s",
                (number,),
            ),
            ("DELETE FROM shop.entry WHERE account = %s AND amount < 500", (number,)),
            ("UPDATE shop.bag SET b = b || 'x' WHERE a = %s AND length(b) < 5", (five,)),
            ("DELETE FROM shop.bag WHERE ctid = (SELECT min(ctid) FROM shop.bag)", ()),
            ("INSERT INTO shop.bag SELECT %s, 'same', '(1,2)' FROM generate_series(1, 2)", (five,)),
            ("UPDATE shop.part SET day = day + 20 WHERE id = %s", (number,)),
            ("UPDATE shop.part SET id = id + 1000 WHERE id = %s", (number,)),
            ("INSERT INTO shop.account (balance, code) VALUES (1, %s)", (1000 + other * number,)),
            ("UPDATE shop.account SET code = -code WHERE id IN (%s, %s)", (number, other)),
            # unique values that move from row to row: joined they collide
            ("UPDATE shop.account SET code = NULL WHERE id = %s", (number,)),
            ("UPDATE shop.account SET code = %s WHERE id = %s", (number, other)),
            ("UPDATE shop.account SET home = (%s, id) WHERE id = %s", (str(other), number)),
            ("UPDATE shop.bag SET home = ROW('', a) WHERE a = %s AND home IS NULL", (five,)),
        ]
        connection.execute(*self.random.choice(statements))


def rows_of(dsn: str, table: str) -> list[tuple[object, ...]]:
    setting = "-c extra_float_digits=3 -c timezone=UTC -c default_transaction_read_only=off"
    with psycopg.connect(dsn, options=setting) as connection:
        text = f'SELECT t::text FROM ONLY shop.{table} t ORDER BY (t::text) COLLATE "C"'
        return connection.execute(text.encode()).fetchall()


def test_a_source_is_taken_over_under_load(herd: LocalHerd, server: PlainPostgres) -> None:
    """Killed at random moments, with the death of the member that it writes to."""
    dsn = database(server, "shop", SOURCE)
    writers = [Writer(dsn, seed) for seed in range(2)]
    chance = random.Random()
    running = Running(herd, dsn)
    running.wait_for("copy")
    running.kill()
    for _ in range(2):  # while tables are copied, keys are made, and changes applied
        running = Running(herd, dsn)
        running.wait_for_its_turn()
        time.sleep(chance.uniform(0, 3))
        running.kill()
    running = Running(herd, dsn)
    running.wait_for("follow")
    die(herd, "n1")
    position = position_on(herd, "n2")
    wait_until(lambda: position_on(herd, "n2") > position or running.process.poll() is not None)
    assert running.process.poll() is None, running.process.communicate()
    assert herd.up().returncode == 0
    query(dsn, "BEGIN; TRUNCATE shop.history; INSERT INTO shop.history VALUES (1, 'after'); COMMIT")
    query(dsn, "UPDATE shop.entry SET amount = amount + 1")  # more than one statement's worth
    assert all(one.error is None for one in writers), [one.error for one in writers]
    done = herd.top("import", "cut-over")
    assert done.returncode == 0, done.stderr
    assert "all 7 tables are equal" in done.stdout
    assert "connect: postgresql://app@" in done.stdout
    code, out, complaints = running.ended()
    assert (code, "goes on in another process" in out) == (0, True), complaints
    for one in writers:
        join(one)
        assert one.error is not None  # its session was ended
        assert one.done > 20, one.done
    equal_everywhere(herd, dsn)
    what_came_besides(herd, dsn)
    nothing_is_left(herd, server, "shop")
    for table in ("history", "part"):
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction, match="moved to a herd"):
            query(dsn, f"BEGIN READ WRITE; DELETE FROM shop.{table}; COMMIT")
    assert "refuse writes since a cut-over" in herd.top("import", "--check", "--from", dsn).stderr


async def test_tables_are_equal_in_two_encodings(herd: LocalHerd, server: PlainPostgres) -> None:
    made = (
        "CREATE SCHEMA enc; CREATE TABLE enc.same (v text); INSERT INTO enc.same VALUES (chr(228));"
        " CREATE TABLE enc.other (v text); INSERT INTO enc.other VALUES "
    )
    latin = SourceAddress(database(server, "latin", f"{made}(chr(246))", encoding="LATIN1"))
    query(herd.dsn("n1"), f"{made}(chr(252))")
    target = Target([Destination("n1", herd.dsn("n1"))])
    async with await latin.session() as session:
        tables = await source.tables(session)
    found = await comparing.different(latin, target, tables, 1, lambda _done, _of: None)
    query(herd.dsn("n1"), "DROP SCHEMA enc CASCADE")
    assert found == ["enc.other (1 rows at the source, 1 in the herd)"]


async def test_rows_are_found_by_values_of_every_kind_of_type(server: PlainPostgres) -> None:
    """By what the key's index calls equal, also where that is not in pg_catalog."""
    dsn = database(
        server,
        "typed",
        """
        CREATE EXTENSION isn; CREATE EXTENSION citext; CREATE EXTENSION ltree;
        CREATE TYPE place AS (street text, number int);
        CREATE DOMAIN site AS place;
        CREATE TYPE mood AS ENUM ('sad', 'happy');
        CREATE DOMAIN temper AS mood;
        CREATE TABLE book (id isbn PRIMARY KEY, p place, q site, v text);
        CREATE TABLE word (w citext, t ltree, v text, PRIMARY KEY (t, w));
        CREATE TABLE spot (p place, m temper, v text, UNIQUE (p, m) INCLUDE (v));
        ALTER TABLE spot ALTER p SET NOT NULL, ALTER m SET NOT NULL, ALTER v SET NOT NULL;
        ALTER TABLE spot REPLICA IDENTITY USING INDEX spot_p_m_v_key;
        CREATE TABLE bag (p place, ps place[], i isbn, w citext);
        ALTER TABLE bag REPLICA IDENTITY FULL;
        """,
    )
    isbn = "0-393-04002-X"
    rows: dict[str, tuple[Row, Row]] = {
        "book": ((isbn, "(Elm,1)", "(,)", "a"), (isbn, None, '("Oak ""x"" St",2)', "b")),
        "word": (("Ann", "a.b", "1"), ("ann", "a.b", "2")),
        "spot": (("(Elm,1)", "sad", "1"), ("(Elm,1)", "happy", "2")),
        "bag": (("(Elm,1)", '{"(Elm,1)",NULL}', isbn, "Ann"), ("(,2)", None, None, "bob")),
    }
    async with await connect(dsn, "test") as session:
        tables = {one.name: one for one in await source.tables(session)}
        writer = rowsql.Writer(tables)
        for relation, (first, second) in rows.items():
            table = tables[f"public.{relation}"]
            places = table.key or range(len(first))
            old, new = (tuple([row[place] for place in places]) for row in (first, second))
            for step, wanted in (
                (RowChange(table.name, None, first), [first]),
                (RowChange(table.name, old, second), [second]),
                (RowChange(table.name, new, None), []),
            ):
                async with session.transaction():
                    await writer.write(session, [step])
                assert texts(dsn, table) == wanted


async def test_a_reader_delays_the_end_of_a_stop_only_for_the_table_that_it_reads(
    server: PlainPostgres,
) -> None:
    dsn = database(server, "read", "CREATE TABLE a (id int); CREATE TABLE b (id int)")
    async with await SourceAddress(dsn).session() as session:
        await source.stop_writes(session)
        with psycopg.connect(dsn) as reader:
            reader.execute("SELECT FROM a")
            allowing = asyncio.create_task(source.allow_writes(session))
            refusals = (psycopg.errors.ReadOnlySqlTransaction,)
            written = "INSERT INTO b VALUES (1) RETURNING id"
            await asyncio.to_thread(
                wait_until, lambda: query(dsn, written), bool, despite=refusals
            )  # fmt: skip
            assert not allowing.done()
        await allowing
    query(dsn, "INSERT INTO a VALUES (1)")
    assert query(dsn, "SELECT to_regnamespace('pgherd_import')") == [(None,)]


def texts(dsn: str, table: SourceTable) -> list[Row]:
    """The rows of a table, each value as text."""
    columns = ", ".join(f"{name}::text" for name in table.names)
    return list(query(dsn, f"SELECT {columns} FROM {table.name}"))


def die(herd: LocalHerd, name: str) -> None:
    """As a machine does on which a member is."""
    node = home(herd) / name
    for file in (node / "sidecar.pid", node / "pgdata" / "postmaster.pid"):
        os.kill(int(file.read_text().split()[0]), signal.SIGKILL)


def position_on(herd: LocalHerd, name: str) -> str:
    """How far the import is, as a member has it; it sorts as the numbers do."""
    position = "SELECT lpad(position::text, 20) FROM pgherd_import.state"
    return str(look(herd.dsn(name), position)[0][0])


def equal_everywhere(herd: LocalHerd, dsn: str) -> None:
    settle(herd)
    for table in _TABLES:
        wanted = rows_of(dsn, table)
        for node in herd.nodes():
            assert rows_of(node.dsn, table) == wanted, (node.name, table)


def what_came_besides(herd: LocalHerd, dsn: str) -> None:
    """Sequences, triggers, keys, roles, views; and the source takes no writes."""
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        query(dsn, "DELETE FROM shop.bag")
    [(last,)] = query(dsn, "SELECT last_value FROM shop.entry_id_seq")
    for node in herd.nodes():
        account = query(node.dsn, "SELECT min(id) FROM shop.account")[0][0]
        count = "SELECT count(*) FROM shop.history WHERE note = 'by a trigger'"
        before = query(node.dsn, count)[0][0]
        made = f"INSERT INTO shop.entry (account, amount) VALUES ({account}, 1) RETURNING id"
        assert query(node.dsn, made)[0][0] > last
        assert query(node.dsn, count)[0][0] == before + 1
        with pytest.raises(psycopg.errors.ForeignKeyViolation):
            query(node.dsn, "INSERT INTO shop.entry (account, amount) VALUES (-1, 1)")
        with pytest.raises(psycopg.errors.GeneratedAlways):
            query(node.dsn, "INSERT INTO shop.account (id, balance) VALUES (-1, 1)")
        unchecked = "SELECT FROM pg_constraint WHERE NOT convalidated"
        assert query(node.dsn, unchecked) == []
        assert query(
            node.dsn, "SELECT rolpassword FROM pg_authid WHERE rolname = 'import_reader'"
        ) == (query(dsn, "SELECT rolpassword FROM pg_authid WHERE rolname = 'import_reader'"))
        owner = "SELECT tableowner FROM pg_tables WHERE tablename = 'bag'"
        assert query(node.dsn, owner) == [("import_reader",)]
        counted = query(node.dsn, "SELECT c FROM shop.counted")
        assert counted == query(dsn, "SELECT count(*) FROM shop.account")
