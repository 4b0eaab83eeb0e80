"""The servers of a run: a herd of three whose members differ in all that may, and a plain server.

What may differ between members: the numbers that objects get (oids), the positions of sequences,
the settings of the database, which every session of a sidecar inherits. The plain server has the
same role, database and extensions, and functions in place of pgherd's requests. One of each for a
whole run; a herd that broke is replaced by a new one.
"""

import contextlib
import json
import os
import random
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from integration.localherd import LocalHerd, free_port_base
from places import free_port
from psycopg import sql
from psycopg.conninfo import make_conninfo

from benchmarks.herd import sidecar_logs
from benchmarks.peers.postgres import PostgresServer
from benchmarks.trouble import Logs, Trouble
from fuzz.extremes import DATABASE_SETTINGS, USUAL

PLAIN = "plain"
MEMBERS = ("n1", "n2", "n3")
OTHER_ROLE = "fuzz_bob"
EXTENSIONS = ("citext", "btree_gist", "amcheck")
_PASSWORD = "fuzz"
_OIDS_APART = 20_000
_HEALTHY_S = 120.0
_SETTLE_S = 30.0
_LOOK_S = 0.005
_KEPT = "kept.json"
_ESCAPED_SPACE = "\\ "
_BOUNDS = {
    "statement_timeout": "12s",
    "lock_timeout": "8s",
    "idle_in_transaction_session_timeout": "60s",
    "client_min_messages": "error",
}
"""Of each session: the fuzzer never hangs."""
_USE_NUMBERS = """
DO $$ BEGIN
    FOR i IN 1..{} LOOP
        PERFORM lo_unlink(lo_creat(-1)) FROM generate_series(1, 500);
        COMMIT;
    END LOOP;
END $$
"""
_REQUESTS = (Path(__file__).parent / "sql" / "requests.sql").read_text()


class StuckError(Exception):
    """Members do not come to the same position."""


@dataclass
class Servers:
    """The servers; ``start`` before anything else, ``close`` at the end.

    Args:
        directory: for all files.
        seed: of what differs between members.
        environment: of the herd's processes, for planted bugs.
        extremes: whether databases get extreme settings.
    """

    directory: Path
    seed: int = 0
    environment: dict[str, str] = field(default_factory=dict)
    extremes: bool = True
    _generation: int = 0
    _schemas: int = 0

    def start(self) -> None:
        """Start the plain server and a herd, or go on with those that an earlier run has kept."""
        kept = self.directory / _KEPT
        if kept.exists():
            port, self._generation, self._schemas = json.loads(kept.read_text())
            self.plain = PostgresServer(self.directory / PLAIN, port)
            self.herd = LocalHerd(self._home(), free_port_base(), dict(self.environment))
            self._meet_herd()
            self.recover()
            return
        self.plain = PostgresServer(self.directory / PLAIN, free_port())
        self.plain.create()
        self.plain.start()
        self._furnish_plain()
        self._start_herd()

    def keep(self) -> None:
        """Leave all running, for a later run."""
        held = [self.plain.port, self._generation, self._schemas]
        (self.directory / _KEPT).write_text(json.dumps(held))

    def close(self) -> None:
        """Stop all."""
        with contextlib.suppress(AttributeError):
            self.herd.run("destroy")
        with contextlib.suppress(AttributeError):
            self.plain.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def replace_herd(self) -> None:
        """Destroy the herd and found another one."""
        self.herd.run("destroy")
        shutil.rmtree(self.herd.directory, ignore_errors=True)
        self._start_herd()

    def _start_herd(self) -> None:
        self._generation += 1
        self.herd = LocalHerd(self._home(), free_port_base(), dict(self.environment))
        done = self.herd.up()
        if done.returncode:
            raise StuckError(f"the herd does not come up: {done.stderr}")
        self._meet_herd()
        self._furnish()
        self._tell_apart()
        if self.extremes:
            self._restart()

    def _meet_herd(self) -> None:
        home = self._home()
        self.logs = Logs(lambda: sidecar_logs(home))
        self._ways = {node.name: node for node in self.herd.nodes()}

    def _home(self) -> Path:
        return self.directory / f"herd{self._generation}"

    # ---- what is there before the first case -------------------------------------------------

    def _furnish(self) -> None:
        with self.admin("n1") as connection:
            role = f"CREATE ROLE {OTHER_ROLE} LOGIN PASSWORD '{_PASSWORD}'"
            repeat(connection, sql.SQL("SELECT pgherd.run_everywhere({})").format(role))
            for name in EXTENSIONS:
                repeat(connection, sql.SQL("CREATE EXTENSION {}").format(sql.Identifier(name)))
        self.settle()

    def _furnish_plain(self) -> None:
        dsn = make_conninfo(self.plain.dsn, dbname="postgres")
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("CREATE ROLE app LOGIN")
            connection.execute(f"CREATE ROLE {OTHER_ROLE} LOGIN")
            connection.execute("CREATE DATABASE app OWNER app")
        with self.admin(PLAIN) as connection:
            for name in EXTENSIONS:
                connection.execute(f"CREATE EXTENSION {name}")
            connection.execute(_REQUESTS.encode())

    def _tell_apart(self) -> None:
        """Have each member number objects from elsewhere, and keep other settings."""
        chance = random.Random(self.seed)
        for number, name in enumerate(MEMBERS):
            with self.admin(name, database="postgres") as connection:
                count = _OIDS_APART * number + chance.randrange(2000)
                connection.execute(_USE_NUMBERS.format(count // 500).encode())
            with self.admin(name) as connection:
                for setting, values in DATABASE_SETTINGS.items() if self.extremes else ():
                    value = values[number % len(values)]
                    # the sidecar looks after the settings of its database
                    repeat(
                        connection,
                        sql.SQL("ALTER DATABASE app SET {} = {}").format(
                            sql.SQL(setting), sql.Literal(value)
                        ),
                    )

    def _restart(self) -> None:
        """Sidecars read the database's settings when they connect."""
        self.herd.must("down")
        done = self.herd.up()
        if done.returncode:
            raise StuckError(f"the herd does not come up again: {done.stderr}")
        self.settle()

    # ---- cases -------------------------------------------------------------------------------

    def new_schema(self) -> str:
        """Make a schema on all servers, and return its name."""
        self._schemas += 1
        name = f"f{self._generation}_{self._schemas}"
        create = sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name))
        with self.user("n1") as connection:
            repeat(connection, create)
        with self.user(PLAIN) as connection:
            connection.execute(create)
        self.settle()
        return name

    def drop_schema(self, name: str) -> None:
        """Remove it from the herd, whose members agree, and from the plain server."""
        drop = sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(name))
        self.drop_plain(name)
        with self.admin("n1") as connection:
            repeat(connection, drop)
        self.settle()

    def drop_plain(self, name: str) -> None:
        """Remove it from the plain server."""
        with self.admin(PLAIN) as connection:
            connection.execute(
                sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(name))
            )

    def user(
        self, member: str, schema: str = "public", *, role: str = "", database: str = ""
    ) -> psycopg.Connection:
        """A session of the ordinary owner of the database, or of another role."""
        options = USUAL | _BOUNDS | {"search_path": f"{schema},public"}
        if member == PLAIN:
            dsn = make_conninfo(self.plain.dsn, user=role or "app")
        else:
            dsn = self._ways[member].app_dsn
            if role:
                dsn = make_conninfo(dsn, user=role, password=_PASSWORD)
        return _connect(make_conninfo(dsn, dbname=database or "app"), options)

    def admin(self, member: str, *, database: str = "app") -> psycopg.Connection:
        """A superuser's session."""
        dsn = self.plain.dsn if member == PLAIN else self._ways[member].dsn
        return _connect(make_conninfo(dsn, dbname=database), {"client_min_messages": "error"})

    # ---- how the herd is ---------------------------------------------------------------------

    def settle(self, sessions: Sequence[psycopg.Connection] = ()) -> None:
        """Wait until each member has what any of them has committed.

        Args:
            sessions: superusers' on all members, to ask in; without them others are made.

        Raises:
            StuckError: they do not get there.
        """
        if not sessions:
            with contextlib.ExitStack() as stack:
                self.settle([stack.enter_context(self.admin(name)) for name in MEMBERS])
            return
        until_s = time.monotonic() + _SETTLE_S
        wanted = max(_last_gid(one) for one in sessions)
        for name, session in zip(MEMBERS, sessions, strict=True):
            while _last_gid(session) < wanted:
                if time.monotonic() > until_s:
                    raise StuckError(f"{name} stays behind GID {wanted}")
                time.sleep(_LOOK_S)

    def trouble(self) -> list[Trouble]:
        """What the sidecars' logs say that they had not said before."""
        return self.logs.pop()

    def copy_first(self) -> None:
        """Make the others copies of the first member, whatever differs."""
        for name in MEMBERS[1:]:
            if self.herd.run("rebuild", name, "--from", MEMBERS[0]).returncode:
                self.replace_herd()
                return
        self.recover()

    def recover(self) -> None:
        """Wait until all members are well again, or take another herd."""
        until_s = time.monotonic() + _HEALTHY_S
        while time.monotonic() < until_s:
            states = {one["name"]: one["state"] for one in self.herd.members()}
            if "diverged" in states.values() or "stopped" in states.values():
                break
            if set(states.values()) == {"primary"}:
                with contextlib.suppress(StuckError, psycopg.Error):
                    self.settle()
                    self.trouble()
                    return
            time.sleep(0.5)
        self.replace_herd()


def _connect(dsn: str, options: dict[str, str]) -> psycopg.Connection:
    words = " ".join(
        f"-c {name}={value.replace(' ', _ESCAPED_SPACE)}" for name, value in options.items()
    )
    return psycopg.connect(
        dsn, autocommit=True, prepare_threshold=None, options=words, connect_timeout=10
    )


def _last_gid(connection: psycopg.Connection) -> int:
    row = connection.execute("SELECT pgherd.last_gid()").fetchone()
    assert row is not None
    return int(row[0])


def repeat(connection: psycopg.Connection, command: sql.Composed) -> None:
    """Execute a command; again after a conflict with what another session has committed."""
    until_s = time.monotonic() + _SETTLE_S
    while True:
        try:
            connection.execute(command)
            return
        except (
            psycopg.errors.SerializationFailure,
            psycopg.errors.ReadOnlySqlTransaction,
            psycopg.errors.InternalError_,  # tuple concurrently updated
        ):
            if time.monotonic() > until_s:
                raise
            time.sleep(0.05)


def place() -> Path:
    """Where servers of other accounts can live."""
    parent = os.environ.get("PGHERD_TEST_DIR") or "/dev/shm"
    return Path(parent)
