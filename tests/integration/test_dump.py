"""A dump of plain PostgreSQL loads, and all members are equal afterwards: docs/loading.md.

The source is another database of the first node's server: such a database is plain PostgreSQL.
"""

import contextlib
import re
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import psycopg
import pytest
from patience import wait_until
from psycopg.conninfo import make_conninfo

from .installations import program
from .localherd import COMMAND_TIMEOUT_S, LocalHerd
from .nodes import Connection, Nodes, nobody_stops, nodes_of, run, sql_file

_SCHEMAS = ("shop", "Odd Name")
_ODD = '--schema="Odd Name"'
_ROLES = ("dump_owner", "dump_reader")

_SEQUENCES = """
SELECT schemaname || '.' || sequencename AS name FROM pg_sequences
 WHERE schemaname = 'shop' ORDER BY 1
"""
_RELATIONS = """
SELECT c.oid::regclass::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p', 'm', 'v') AND n.nspname IN ('shop', 'Odd Name')
   AND (c.relkind <> 'm' OR c.relispopulated) ORDER BY 1
"""


@pytest.fixture(scope="module")
def nodes(herd: LocalHerd) -> Iterator[Nodes]:
    with nodes_of(herd) as nodes:
        for name in _ROLES:
            run(nodes.admin[0], f"SELECT pgherd.run_everywhere('CREATE ROLE {name} LOGIN')")
            nodes.settle()
        yield nodes
        empty(nodes)
        for name in _ROLES:
            run(nodes.admin[0], f"DROP OWNED BY {name}")
            nodes.settle()
            run(nodes.admin[0], f"SELECT pgherd.run_everywhere('DROP ROLE {name}')")
            nodes.settle()


def empty(nodes: Nodes) -> None:
    """Remove what a dump has made."""
    nodes.settle()
    for name in _SCHEMAS:
        run(
            nodes.admin[0],
            f'SET client_min_messages = warning; DROP SCHEMA IF EXISTS "{name}" CASCADE',
        )
    run(nodes.admin[0], "DROP EXTENSION IF EXISTS pg_trgm, citext, hstore CASCADE")
    nodes.settle()


class Source:
    """A database of plain PostgreSQL, and the programs that dump and load."""

    def __init__(self, herd: LocalHerd, directory: Path) -> None:
        self.herd = herd
        self.directory = directory
        self.dsn = make_conninfo(herd.nodes()[0].dsn, dbname="dump_source")
        with psycopg.connect(self.dsn) as connection:
            self.major = connection.info.server_version // 10000

    def call(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a program of PostgreSQL and return how it went."""
        return subprocess.run(
            [program(name, self.major), *arguments],
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )

    def dump(self, name: str, *options: str, program: str = "pg_dump") -> Path:
        """A dump of it in a file or directory of this name."""
        target = self.directory / name
        if not target.exists():
            done = self.call(program, *options, f"--file={target}", f"--dbname={self.dsn}")
            assert done.returncode == 0, done.stderr
        return target

    def psql(self, file: Path, *, admin: bool) -> None:
        """Load a file; the first error ends it."""
        self.must("psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", str(file), admin=admin)

    def must(self, name: str, *arguments: str, admin: bool) -> None:
        """Run a program on the first node, which has to succeed without an error."""
        node = self.herd.nodes()[0]
        done = self.call(name, *arguments, "-d", node.dsn if admin else node.app_dsn)
        assert done.returncode == 0, done.stderr
        assert "ERROR" not in done.stderr


@pytest.fixture(scope="module")
def source(nodes: Nodes, herd: LocalHerd, work_directory: Path) -> Iterator[Source]:
    directory = work_directory / "dumps"
    directory.mkdir()
    run(nodes.admin[0], "CREATE DATABASE dump_source")
    source = Source(herd, directory)
    with psycopg.connect(source.dsn, autocommit=True) as connection:
        connection.execute(sql_file("dump_source").encode())
    yield source
    run(nodes.admin[0], "DROP DATABASE dump_source WITH (FORCE)")


@pytest.fixture(autouse=True)
def _nobody_stops(herd: LocalHerd, nodes: Nodes) -> Iterator[None]:
    with nobody_stops(herd, nodes):
        yield


def assert_same_as_source(nodes: Nodes, source: Source) -> None:
    """All members have the relations and rows of the source, and numbers that it has not given."""
    nodes.settle()
    with psycopg.connect(source.dsn, autocommit=True, options="-c search_path=public") as plain:
        relations = [name for (name,) in run(plain, _RELATIONS)]
        assert len(relations) > 25
        for admin in nodes.admin:
            run(admin, "SET search_path = public")
            assert [name for (name,) in run(admin, _RELATIONS)] == relations
        for name in relations:
            rows = nodes.rows(name)
            assert rows == [rows_of(plain, name)] * len(rows), name
        for admin in nodes.admin:
            run(admin, "RESET search_path")
        for (name,) in run(plain, _SEQUENCES):
            assert_next_numbers(nodes, plain, name)
    assert_same_schema(nodes, source)


def rows_of(connection: Connection, name: str) -> list[str]:
    return sorted(row for (row,) in run(connection, f"SELECT (t.*)::text FROM {name} AS t"))


def assert_next_numbers(nodes: Nodes, plain: Connection, name: str) -> None:
    """The first number of each member is one that the source has not given, and nobody else's."""
    step = (
        f"SELECT increment_by FROM pg_sequences WHERE schemaname || '.' || sequencename = '{name}'"
    )
    [(by,)] = run(plain, step)
    [(following,)] = run(plain, f"SELECT nextval('{name}')")
    run(plain, f"SELECT setval('{name}', {following}, false)")
    first = [run(admin, f"SELECT nextval('{name}')")[0][0] for admin in nodes.admin]
    assert len(set(first)) == len(first), name
    for number in first:
        assert 0 <= (number - following) // by < 8, f"{name}: {first} after {following}"
        assert (number - following) % by == 0, name


def assert_same_schema(nodes: Nodes, source: Source) -> None:
    """What ``pg_dump`` says of all members is the same, but for what a sequence's share is."""
    said = []
    for node in source.herd.nodes():
        done = source.call(
            "pg_dump", "--schema-only", *(f'--schema="{name}"' for name in _SCHEMAS), "-d", node.dsn
        )
        assert done.returncode == 0, done.stderr
        # The names of our functions hold oids.
        own = r"START WITH -?\d+|\\(un)?restrict .*|-- Dumped .*|CREATE TRIGGER \"?[Pp]gherd.*"
        said.append(re.sub(own, "", done.stdout).splitlines())
    assert said == [said[0]] * len(said)


@pytest.mark.long
def test_psql_loads_a_plain_dump_as_superuser(nodes: Nodes, source: Source) -> None:
    empty(nodes)
    source.psql(source.dump("plain.sql"), admin=True)
    assert_same_as_source(nodes, source)


@pytest.mark.long
def test_pg_restore_loads_a_directory_with_jobs_as_the_databases_owner(
    nodes: Nodes, source: Source
) -> None:
    empty(nodes)
    dump = source.dump("directory", "--format=directory")
    options = ("--no-owner", "--no-privileges", "--jobs=4")
    source.must("pg_restore", *options, str(dump), admin=False)
    assert_same_as_source(nodes, source)


def test_schema_first_and_then_rows_from_a_custom_dump(nodes: Nodes, source: Source) -> None:
    empty(nodes)
    dump = str(source.dump("custom", "--format=custom", _ODD))
    source.must("pg_restore", "--schema-only", dump, admin=True)
    source.must("pg_restore", "--data-only", dump, admin=True)
    assert len(nodes.equal_rows('"Odd Name"."Quoted ""Table"""')) == 2


def test_indexes_keys_and_numbers_beside_each_other_wait_for_each_other(nodes: Nodes) -> None:
    nodes.create("CREATE TABLE whole (id int PRIMARY KEY)")
    for number in range(4):
        nodes.create(f"CREATE TABLE part_{number} (id serial PRIMARY KEY, whole int)")

    def one(number: int) -> None:
        session = nodes.connect(0)
        run(session, f"CREATE INDEX ON part_{number} (whole)")
        run(session, f"SELECT pg_catalog.setval('part_{number}_id_seq', 100)")
        run(session, f"ALTER TABLE part_{number} ADD FOREIGN KEY (whole) REFERENCES whole")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, range(4)))
    for admin in nodes.admin:
        nodes.settle()
        found = f"""SELECT count(*) FROM pg_constraint
                     WHERE contype = 'f' AND connamespace = '{nodes.schema}'::regnamespace"""
        assert run(admin, found) == [(4,)]


def test_a_command_waits_no_longer_than_lock_timeout_and_temporary_tables_do_not_wait(
    nodes: Nodes,
) -> None:
    first, second = nodes.connect(0), nodes.connect(0)
    run(first, "BEGIN; CREATE TABLE held (id int PRIMARY KEY)")
    run(
        second,
        "CREATE TEMP TABLE passing (id int); CREATE INDEX ON passing (id); DROP TABLE passing",
    )
    run(second, "SET lock_timeout = '100ms'")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        run(second, "CREATE TABLE waiting (id int PRIMARY KEY)")
    run(first, "COMMIT")
    run(second, "SET lock_timeout = '60s'")
    run(second, "CREATE TABLE waiting (id int PRIMARY KEY)")


class TestSetval:
    """What every dump ends with."""

    @pytest.fixture(autouse=True)
    def _sequence(self, nodes: Nodes) -> None:
        run(nodes.app[0], "DROP SEQUENCE IF EXISTS s")
        nodes.create("CREATE SEQUENCE s")

    def numbers(self, nodes: Nodes) -> list[int]:
        nodes.settle()
        return [run(session, "SELECT nextval('s')")[0][0] for session in nodes.app]

    @pytest.mark.parametrize("admin", [False, True], ids=["owner", "superuser"])
    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            ("42, true", {49, 50, 43}),
            ("42, false", {49, 42, 43}),
            ("42", {49, 50, 43}),
            ("1, false", {1, 2, 3}),
        ],
    )
    def test_it_moves_all_members_each_to_its_own_numbers(
        self, nodes: Nodes, arguments: str, expected: set[int], admin: bool
    ) -> None:
        session = nodes.connect(0, admin=admin)
        [(told,)] = run(session, f"SELECT pg_catalog.setval('{nodes.schema}.s', {arguments})")
        assert told == int(arguments.partition(",")[0])
        assert set(self.numbers(nodes)) == expected

    def test_the_session_goes_on_with_its_own_number_as_in_postgresql(self, nodes: Nodes) -> None:
        session = nodes.connect(1)
        assert run(session, "SELECT setval('s', 42)") == [(42,)]
        assert run(session, "SELECT currval('s')") == [(42,)]
        assert run(session, "SELECT nextval('s')") == [(50,)]
        assert run(session, "SELECT setval('s', NULL), setval('s', 7, NULL)") == [(None, None)]

    def test_a_rollback_takes_it_back(self, nodes: Nodes) -> None:
        session = nodes.connect(0)
        run(session, "BEGIN; SELECT setval('s', 1000); ROLLBACK")
        assert self.numbers(nodes) == [1, 2, 3]

    def test_who_may_not_update_the_sequence_may_not_set_it(self, nodes: Nodes) -> None:
        session = nodes.connect(0, admin=True)
        run(session, f"GRANT USAGE ON SCHEMA {nodes.schema} TO dump_reader")
        run(session, "SET SESSION AUTHORIZATION dump_reader")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied for seq"):
            run(session, f"SELECT setval('{nodes.schema}.s', 1000)")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            run(session, f"SELECT pgherd.local_setval('{nodes.schema}.s'::regclass, 1000)")
        assert self.numbers(nodes) == [1, 2, 3]

    @pytest.mark.parametrize(
        ("statement", "state"),
        [
            ("SELECT setval('s', 0)", "22003"),
            ("SELECT setval('pg_class', 1)", "42809"),
            ("SELECT setval('no_such', 1)", "42P01"),
        ],
    )
    def test_what_postgresql_refuses_is_refused(
        self, nodes: Nodes, statement: str, state: str
    ) -> None:
        with pytest.raises(psycopg.Error) as error:
            run(nodes.app[0], statement)
        assert error.value.sqlstate == state

    def test_sequences_of_one_member_only_are_set_there(self, nodes: Nodes) -> None:
        session = nodes.connect(2)
        run(session, "CREATE TEMP SEQUENCE own; SELECT setval('own', 7)")
        assert run(session, "SELECT nextval('own')") == [(8,)]
        run(session, "CREATE TABLE local (id serial PRIMARY KEY); SELECT pgherd.set_local('local')")
        run(session, "SELECT setval('local_id_seq', 7)")
        nodes.settle()
        last = "SELECT last_value FROM local_id_seq"
        assert [run(admin, last)[0][0] for admin in nodes.app] == [1, 1, 7]
        run(session, "DROP TABLE local")

    def test_in_replica_role_it_is_a_superusers_own_affair(self, nodes: Nodes) -> None:
        session = nodes.connect(2, admin=True)
        run(session, "SET session_replication_role = replica")
        run(session, "SELECT setval('s', 803)")
        assert run(session, "SELECT last_value FROM s") == [(803,)]
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="session_replication_role"):
            run(session, "SELECT pgherd.set_local('public.tide')")
        assert run(nodes.app[0], "SELECT last_value FROM s") == [(1,)]
        run(session, "RESET session_replication_role; SELECT setval('s', 1)")

    @pytest.mark.long
    def test_at_once_from_two_members_numbers_never_collide(self, nodes: Nodes) -> None:
        run(nodes.app[0], "CREATE TABLE IF NOT EXISTS given (n int8 PRIMARY KEY, by int)")
        nodes.settle()
        until = time.monotonic() + 5

        def use(member: int) -> None:
            session = nodes.connect(member)
            while time.monotonic() < until:
                if session.closed:
                    session = nodes.connect(member)
                # Who has used the sequence gives way to the command.
                with contextlib.suppress(psycopg.OperationalError):
                    run(session, f"INSERT INTO given SELECT nextval('s'), {member}")

        def move() -> int:
            moved, session = 0, nodes.connect(0)
            while time.monotonic() < until:
                with contextlib.suppress(psycopg.OperationalError):
                    run(session, f"SELECT setval('s', {(moved + 1) * 1_000_000})")
                    moved += 1
            return moved

        with ThreadPoolExecutor(4) as pool:
            users = [pool.submit(use, member) for member in range(3)]
            moved = pool.submit(move).result()
            for user in users:
                user.result()
        assert moved > 0
        nodes.equal_rows("given")

    def test_what_leaves_replication_gets_its_own_back(self, nodes: Nodes) -> None:
        nodes.create(
            "CREATE SEQUENCE apart; CREATE TABLE marked (at int8 DEFAULT setval('apart', 5));"
            " CREATE VIEW moved WITH (security_barrier = true) AS"
            " SELECT setval('apart', 7) AS one, setval('apart', 8, true) AS other"
        )
        session = nodes.connect(0, admin=True)
        run(session, "BEGIN; SELECT pgherd.give_back_setval()")
        run(session, "INSERT INTO marked DEFAULT VALUES")
        assert run(session, "SELECT last_value FROM apart") == [(5,)]
        assert run(session, "SELECT * FROM moved") == [(7, 8)]
        options = "SELECT reloptions FROM pg_class WHERE oid = 'moved'::regclass"
        assert run(session, options) == [(["security_barrier=true"],)]
        found = "SELECT oid::int FROM pg_proc WHERE oid::regproc::text LIKE '%setval' ORDER BY 1"
        ours = "SELECT count(*) FROM pg_proc WHERE proname = 'setval' AND pronamespace = 11"
        assert run(session, f"{found}")[:2] == [(1576,), (1765,)]
        assert run(session, ours) == [(2,)]
        run(session, "ROLLBACK")


class TestRefused:
    """What a dump may hold that a herd refuses, in clear words."""

    def refusal(self, session: Connection, statement: str) -> str:
        with pytest.raises(psycopg.errors.FeatureNotSupported) as error:
            run(session, statement)
        run(session, "ROLLBACK")
        return f"{error.value.diag.message_primary} {error.value.diag.message_hint}"

    @pytest.mark.parametrize("which", ["ALL", "USER"])
    def test_disabling_all_triggers_says_what_to_do_instead(self, nodes: Nodes, which: str) -> None:
        nodes.create("CREATE TABLE IF NOT EXISTS quiet (id int PRIMARY KEY)")
        told = self.refusal(
            nodes.admin[0], f"ALTER TABLE {nodes.schema}.quiet DISABLE TRIGGER {which}"
        )
        assert "would end the replication of table" in told
        assert "without --disable-triggers" in told

    def test_a_dump_made_with_disable_triggers(self, nodes: Nodes, source: Source) -> None:
        empty(nodes)
        source.psql(source.dump("odd.sql", "--schema-only", _ODD), admin=True)
        dump = source.dump("triggers.sql", "--data-only", "--disable-triggers", _ODD)
        done = source.call(
            "psql", "-X", "-v", "ON_ERROR_STOP=1", "-f", str(dump), "-d", nodes_dsn(source)
        )
        assert done.returncode == 3
        assert "without --disable-triggers" in done.stderr
        source.psql(source.dump("rows.sql", "--data-only", _ODD), admin=True)
        assert len(nodes.equal_rows('"Odd Name"."Quoted ""Table"""')) == 2

    def test_large_objects(self, nodes: Nodes) -> None:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            run(nodes.app[0], "SELECT lo_create(4711)")


def nodes_dsn(source: Source) -> str:
    return source.herd.nodes()[0].dsn


_PAGE = Path(__file__).parents[2] / "docs" / "loading.md"


def test_roles_of_pg_dumpall_come_to_all_members(
    nodes: Nodes, source: Source, herd: LocalHerd
) -> None:
    """By the command on the page, word for word."""
    [command] = re.findall(r"```sh\n(pg_dumpall --roles-only.*?)```", _PAGE.read_text(), re.DOTALL)
    roles = source.dump("roles.sql", "--roles-only", program="pg_dumpall")
    text = (
        roles.read_text().replace("dump_owner", "moved_owner").replace("dump_reader", "moved_all")
    )
    text += "ALTER ROLE moved_owner SET work_mem TO '8MB';\nGRANT moved_all TO moved_owner;\n"
    given = "\n".join(line for line in text.splitlines() if "moved_" in line or " postgres" in line)
    filtering = command[command.index("|") + 1 : command.rindex("|")]
    script = subprocess.run(
        ["sh", "-c", filtering.replace("\\\n", " ")],
        input=given + "\n", capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert " ROLE postgres" not in script
    try:
        done = subprocess.run(
            [program("psql", source.major), "-X", "-v", "ON_ERROR_STOP=1", "-d", nodes_dsn(source)],
            input=script, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found = """
            SELECT EXISTS (SELECT FROM pgherd.grants g
                            WHERE (g.role, g.member) = ('moved_all', 'moved_owner')),
                   r.rolconfig, r.rolcanlogin
              FROM pg_roles r WHERE r.rolname = 'moved_owner'"""
        for admin in nodes.admin:
            wait_until(
                partial(run, admin, found), lambda seen: seen == [(True, ["work_mem=8MB"], True)]
            )
    finally:
        for name in ("moved_owner", "moved_all"):
            nodes.settle()
            run(nodes.admin[0], f"SELECT pgherd.run_everywhere('DROP ROLE IF EXISTS {name}')")
