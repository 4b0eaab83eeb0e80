"""A plain server that has followed a herd becomes a herd by one command: `pgherd found`."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from patience import join, wait_until
from pgherd_sidecar.local.herd import load, save

from . import installations
from .cascades import schema_to_follow
from .localherd import LocalHerd, error_of, free_port_base, home, put, query, settle
from .plainpostgres import PlainPostgres, plain_postgres
from .test_import import progress
from .test_subscriptions import caught_up, must, rows, state

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]


@pytest.fixture(scope="module")
def servers(herd: LocalHerd, work_directory: Path) -> Iterator[list[PlainPostgres]]:
    """The one that takes over, and one that follows."""
    port, like = free_port_base() + 94, herd.dsn("n1")
    more = "wal_level = logical\n"
    with (
        plain_postgres(work_directory / "taking-over", port, like, more) as a,
        plain_postgres(work_directory / "following", port + 1, like, more) as b,
    ):
        yield [a, b]


@pytest.fixture
def second(work_directory: Path) -> Iterator[LocalHerd]:
    """A herd that does not exist yet."""
    found = LocalHerd(work_directory / "second", free_port_base())
    yield found
    if found.directory.exists():
        found.run("destroy")
        shutil.rmtree(found.directory, ignore_errors=True)


@pytest.fixture
def name(herd: LocalHerd, subscriber: PlainPostgres) -> Iterator[str]:
    """A schema whose table follows at the subscriber."""
    with schema_to_follow(herd, [subscriber], "f") as found:
        must(herd, "set", "create", found, "--tables", f"{found}.*")
        must(herd, "subscribe", found, "--to", subscriber.dsn(user="app"), "--wait")
        yield found


def words_of(herd: LocalHerd, dsn: str, *words: str) -> list[str]:
    """``pgherd found``, with this herd's ports and account."""
    user = ["--user", os.environ.get("PGHERD_TEST_USER", "postgres")] if os.geteuid() == 0 else []
    ports = ["--port-base", str(herd.port_base)]
    return ["found", "--from", dsn, *ports, *user, *installations.own(), *words]


def found(herd: LocalHerd, dsn: str, *words: str) -> subprocess.CompletedProcess[str]:
    return herd.top(*words_of(herd, dsn, *words))


def killed(herd: LocalHerd, dsn: str, moment: Callable[[], object], *words: str) -> bool:
    """Run it until a moment, and kill it then; False: it has come to its end before."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pgherd_sidecar.cli.main", *words_of(herd, dsn, *words),
         "--dir", str(herd.directory)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    wait_until(lambda: moment() or process.poll() is not None, brief=True)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # root runs it in another process
    _, complaints = process.communicate()
    assert process.returncode in (0, -signal.SIGKILL), complaints
    return process.returncode != 0


class Writer(threading.Thread):
    """Writes to the source whenever it may; ``done`` has what was acknowledged."""

    def __init__(self, dsn: str, schema: str) -> None:
        super().__init__(daemon=True)
        self._dsn = dsn
        self._schema = schema
        self.done: list[int] = []
        self._ended = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._ended.is_set():
            with (
                contextlib.suppress(psycopg.Error),
                psycopg.connect(self._dsn, autocommit=True) as connection,
            ):
                while not self._ended.is_set():
                    text = f"INSERT INTO {self._schema}.u (v) VALUES ('new') RETURNING id"
                    row = connection.execute(text.encode()).fetchone()
                    assert row is not None
                    self.done.append(row[0])
                    time.sleep(0.02)
            time.sleep(0.1)

    def end(self) -> None:
        self._ended.set()
        join(self)


@contextlib.contextmanager
def open_transaction(dsn: str) -> Iterator[None]:
    """A slot is not made before a transaction ends that has written."""
    with psycopg.connect(dsn) as connection:
        connection.execute("SELECT pg_current_xact_id()")
        yield


def stops_writes(herd: LocalHerd) -> bool:
    """A cut-over is under way."""
    with contextlib.suppress(psycopg.Error):
        return query(herd.dsn("n1"), "SELECT stopped FROM pgherd_import.state") == [(True,)]
    return False


def test_a_new_origin_becomes_a_herd_that_the_others_follow_without_a_copy(
    herd: LocalHerd, second: LocalHerd, servers: list[PlainPostgres]
) -> None:
    """Killed while the herd is made, in the import, and in the cut-over; clients write."""
    a, b = servers
    name = f"n_{random.getrandbits(32):x}"
    query(
        herd.app_dsn("n1"),
        f"CREATE SCHEMA {name}; CREATE TABLE {name}.t (id int PRIMARY KEY, v text);"
        f" CREATE TABLE {name}.w (id int PRIMARY KEY, v text);"
        f" CREATE TABLE {name}.u (id serial PRIMARY KEY, v text);"
        f" INSERT INTO {name}.t SELECT i, 'v' || i FROM generate_series(1, 500) i;"
        f" INSERT INTO {name}.u (v) SELECT 'v' || i FROM generate_series(1, 500) i",
    )
    settle(herd)
    must(herd, "set", "create", name, "--tables", f"{name}.*", "--sequences", f"{name}.*")
    for server, hop in ((a, "a"), (b, "b")):
        to = ("--to", server.dsn(user="app"), "--wait")
        must(herd, "subscribe", name, "--name", f"{name}_{hop}", *to)
    put(herd, herd.app_dsn("n2"), f"UPDATE {name}.t SET v = 'w' WHERE id < 9")
    for server, hop in ((a, "a"), (b, "b")):
        caught_up(herd, server, f"{name}_{hop}")
    places = [f"--at={name}_{hop}={server.dsn(user='app')}" for server, hop in ((a, "a"), (b, "b"))]
    done = herd.without_directory("failover", *places, "--yes")
    assert done.returncode == 0, done.stderr
    new, other = (a, b) if f"{name}_a takes writes" in done.stdout else (b, a)
    query(new.dsn(user="app"), f"INSERT INTO {name}.w VALUES (1, 'new')")
    query(new.dsn(), f"CREATE ROLE {name}; GRANT USAGE ON SCHEMA {name} TO {name}")
    query(
        new.dsn(user="app"),
        f"ALTER TABLE {name}.u ALTER id SET DEFAULT nextval('{name}.u_id_seq'),"
        f" ADD t int DEFAULT 1, ADD FOREIGN KEY (t) REFERENCES {name}.t;"
        f" GRANT SELECT ON {name}.t TO {name}",
    )
    writer = Writer(new.dsn(user="app"), name)
    try:
        assert killed(second, new.dsn(), lambda: is_made(second))
        said = error_of(found(second, other.dsn()))
        assert "takes another server over" in said
        with open_transaction(new.dsn()):
            # There is a herd only when the command has gone on.
            assert killed(second, new.dsn(), lambda: in_phase(second, "begun"))
        killed(second, new.dsn(), lambda: stops_writes(second))
        done = found(second, new.dsn())
        assert done.returncode == 0, done.stderr
    finally:
        writer.end()
    assert "connect: postgresql://app@" in done.stdout
    again = found(second, new.dsn())
    assert (again.returncode, "nothing is left to do" in again.stdout) == (0, True), again.stderr
    settle(second)
    is_the_herd(second, name, writer.done)
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        query(new.dsn(user="app"), f"DELETE FROM {name}.u")
    # As if it had been killed when nothing was left of the import.
    description = load(home(second))
    assert description.taken is not None
    switched = description.taken.model_copy(update={"state": "switched"})
    save(description.model_copy(update={"taken": switched}))
    if os.geteuid() == 0:
        owner = (home(second) / "n1").stat()
        os.chown(home(second) / "herd.json", owner.st_uid, owner.st_gid)
    done = found(second, new.dsn())
    assert (done.returncode, "connect: " in done.stdout) == (0, True), done.stderr
    follows_without_a_copy(second, other, name)
    must(herd, "unsubscribe", f"{name}_a", "--herd-only")
    must(herd, "unsubscribe", f"{name}_b", "--herd-only")
    must(herd, "set", "drop", name)


def is_made(herd: LocalHerd) -> bool:
    return (home(herd) / "herd.json").exists()


def in_phase(herd: LocalHerd, phase: str) -> bool:
    with contextlib.suppress(psycopg.Error):
        return progress(herd)[0] == phase
    return False


def is_the_herd(herd: LocalHerd, name: str, written: list[int]) -> None:
    """It has what the source had, and nothing of what kept the source a subscriber."""
    assert written
    for node in herd.nodes():
        have = {row[0] for row in query(node.dsn, f"SELECT id FROM {name}.u")}
        assert set(written) <= have
        assert query(node.dsn, "SELECT to_regnamespace('pgherd_subscriber')::text") == [(None,)]
        assert query(node.dsn, "SELECT to_regnamespace('pgherd_import')::text") == [(None,)]
        guards = "SELECT tgname FROM pg_trigger WHERE tgname = 'follows_herd'"
        assert query(node.dsn, guards) == []
        assert query(node.dsn, f"SELECT has_table_privilege('{name}', '{name}.t', 'SELECT')") == [
            (True,)
        ]
        with pytest.raises(psycopg.errors.ForeignKeyViolation):
            query(node.app_dsn, f"INSERT INTO {name}.u (v, t) VALUES ('x', -1)")
        made = query(node.app_dsn, f"INSERT INTO {name}.u (v) VALUES ('of herd') RETURNING id")
        assert made[0][0] > max(written)
        settle(herd)


def follows_without_a_copy(herd: LocalHerd, other: PlainPostgres, name: str) -> None:
    """The fence against the lost herd is there still."""
    versions = f"SELECT xmin::text FROM {name}.t WHERE id = 50"
    before = query(other.dsn(), versions)
    must(herd, "set", "create", name, "--tables", f"{name}.t,{name}.w")
    must(herd, "subscribe", name, "--to", other.dsn(user="app"), "--wait")
    assert query(other.dsn(), versions) == before  # nothing was copied
    put(herd, herd.app_dsn("n2"), f"UPDATE {name}.t SET v = 'x' WHERE id = 60")
    caught_up(herd, other, name)
    for table in "tw":
        assert rows(other.dsn(), f"{name}.{table}") == rows(herd.dsn("n1"), f"{name}.{table}")
    fences = query(other.dsn(), "SELECT count(*) FROM pgherd_subscriber.standing")
    assert fences == [(2,)]


def test_what_is_in_the_way_is_one_error_before_anything_is_made(
    herd: LocalHerd, second: LocalHerd, subscriber: PlainPostgres, name: str
) -> None:
    dsn = subscriber.dsn()
    done = found(second, dsn)
    assert "the source can't be taken over, for" in error_of(done)
    assert "nothing was made" in error_of(done)
    assert "ALTER SYSTEM SET wal_level = logical" in done.stderr
    query(dsn, "ALTER SYSTEM SET wal_level = logical")
    subscriber.stop()
    subscriber.start()
    said = error_of(found(second, dsn))
    assert f"`pgherd switchover SET --to {name}`" in said and "--take-over" in said
    caught_up(herd, subscriber, name)  # its feeder is there again
    said = error_of(found(second, dsn, "--take-over"))
    assert f"a herd that lives feeds subscription {name}" in said
    said = error_of(found(herd, dsn))
    assert "was not made by `pgherd found`" in said
    said = error_of(found(second, "postgresql://127.0.0.1:1/x"))
    assert "can't be reached" in said
    done = herd.top("import", "--check", "--from", dsn)
    assert f"tables of the source follow a herd: {name}.t" in done.stderr
    assert not second.directory.exists()
    assert query(dsn, "SELECT slot_name FROM pg_replication_slots") == []
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        query(subscriber.dsn(user="app"), f"INSERT INTO {name}.t VALUES (2000)")
    assert state(herd, name)["state"] == "following"


def test_a_subscriber_of_a_lost_herd_takes_over_and_becomes_a_herd(
    herd: LocalHerd, second: LocalHerd, subscriber: PlainPostgres, name: str
) -> None:
    caught_up(herd, subscriber, name)
    wanted = rows(herd.dsn("n1"), f"{name}.t")
    must(herd, "unsubscribe", name, "--herd-only")  # nobody feeds it any more
    query(subscriber.dsn(), "ALTER SYSTEM SET wal_level = logical")
    subscriber.stop()
    subscriber.start()
    done = found(second, subscriber.dsn(), "--check", "--take-over")
    assert (done.returncode, "nothing is in the way" in done.stdout) == (0, True), done.stderr
    assert not second.directory.exists()
    # It dies in the middle of the failover, or just after it.
    assert killed(second, subscriber.dsn(), lambda: is_fenced(subscriber), "--take-over")
    done = found(second, subscriber.dsn(), "--take-over")
    assert done.returncode == 0, done.stderr
    settle(second)
    for number, node in enumerate(second.nodes()):
        assert rows(node.dsn, f"{name}.t") == wanted
        query(node.app_dsn, f"INSERT INTO {name}.t VALUES ({number + 3000}, 'x')")
        wanted = rows(node.dsn, f"{name}.t")
        settle(second)
    assert query(second.dsn("n2"), "SELECT to_regnamespace('pgherd_subscriber')::text") == [(None,)]
    assert is_fenced(subscriber)  # from the herd that was lost, should it come back
    query(subscriber.dsn("postgres"), "ALTER DATABASE app RESET default_transaction_read_only")
    query(subscriber.dsn(), "DROP SCHEMA pgherd_import CASCADE")


def is_fenced(server: PlainPostgres) -> bool:
    """No feeder of the herd writes there any more."""
    fence = f"SELECT revision >= {1 << 62} FROM pgherd_subscriber.standing"
    return query(server.dsn(), fence) == [(True,)]
