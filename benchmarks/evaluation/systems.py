"""The systems that are measured: herds of any size, a plain server, Galera; all filled alike.

Starts, fills, settles and stops; runs no load. Each lives in a directory that the command lines of
its processes name. Called by the command line and by the tests.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import Protocol

import psycopg

from benchmarks.commands import owned_directory, postgres_bin, psql_file, server_account
from benchmarks.evaluation.plan import PLAIN, Point, Scale
from benchmarks.herd import Capture, Herd
from benchmarks.loading import await_gid
from benchmarks.peers import galera, postgres
from benchmarks.peers.base import Endpoint
from benchmarks.peers.postgres import PostgresServer

SQL = Path(__file__).parent / "sql"
PORT_BASE = 8300
PLAIN_PORT = 8299
MAX_CONNECTIONS = "400"
"""Of the plain server, which has all clients; each of a herd's takes 200."""
START_TIMEOUT_S = 600
_GID = "SELECT pgherd.last_gid()"


class System(Protocol):
    """One system under test."""

    @property
    def name(self) -> str:
        """As ``plan`` names it."""

    @property
    def nodes(self) -> int:
        """The number of its nodes."""

    @property
    def directory(self) -> Path:
        """Named in the command line of each of its processes."""

    @property
    def link_ports(self) -> Sequence[int]:
        """On which its members listen for each other; none if it is no herd."""

    def start(self) -> object:
        """Start all nodes.

        Raises:
            BenchmarkError: It cannot run here, or did not start.
        """

    def version(self) -> str:
        """Return name and version of the database server, and how rows are captured."""

    def stop(self) -> None:
        """Stop all nodes, also after half a start, and remove the directory."""


class PostgresSystem(System, Protocol):
    """A system whose clients are pgbench's."""

    @property
    def dsns(self) -> Sequence[str]:
        """One a node, of the role that owns the tables."""

    @property
    def admin_dsns(self) -> Sequence[str]:
        """One a node, of its superuser."""

    def settle(self) -> None:
        """Return when all nodes have what any of them has."""

    def proposer(self) -> str:
        """Return the name of the member that orders the log; empty if there is none."""


class Plain:
    """One PostgreSQL server with its default durability."""

    name = PLAIN
    nodes = 1
    link_ports = ()

    def __init__(self, directory: Path) -> None:
        postgres_bin()
        self.directory = directory
        self._server = PostgresServer(directory / "n1", PLAIN_PORT)
        self.dsns: Sequence[str] = (self._server.dsn,)
        self.admin_dsns = self.dsns

    def start(self) -> None:
        """See System."""
        self.directory.mkdir()
        self._server.create()
        self._server.configure({"max_connections": MAX_CONNECTIONS})
        self._server.start()
        self._server.create_database()

    def settle(self) -> None:
        """See PostgresSystem."""

    def proposer(self) -> str:
        """See PostgresSystem."""
        return ""

    def version(self) -> str:
        """See System."""
        return postgres.server_version(self._server.dsn)

    def stop(self) -> None:
        """See System."""
        self._server.stop()
        shutil.rmtree(self.directory, ignore_errors=True)


class HerdOf:
    """A herd of some nodes on this machine, reached through the command line.

    Args:
        nodes: how many, all with a database.
        capture: of rows: ``auto`` takes the native module where it is installed, ``native`` asks
            for it, ``sql`` does without.
        port_base: the first port of the herd's 300.
    """

    def __init__(
        self, directory: Path, nodes: int, capture: Capture = "auto", port_base: int = PORT_BASE
    ) -> None:
        self.name = f"herd{nodes}"
        self.nodes = nodes
        self.directory = directory
        self.link_ports = [port_base + 100 + number for number in range(1, nodes + 1)]
        self.dsns: Sequence[str] = ()
        self.admin_dsns: Sequence[str] = ()
        self._port_base = port_base
        self._capture = capture
        self._herd = Herd(directory / "herd")

    def start(self) -> None:
        """See System."""
        self.directory.mkdir()
        self._herd.up(
            port_base=self._port_base,
            quiet=True,
            capture=self._capture,
            nodes=self.nodes,
            timeout_s=START_TIMEOUT_S,
        )
        members = self._herd.members()
        self.dsns = [member.app_dsn for member in members]
        self.admin_dsns = [member.dsn for member in members]

    def settle(self) -> None:
        """See PostgresSystem.

        Raises:
            BenchmarkError: A member does not catch up.
        """
        newest = 0
        for dsn in self.dsns:
            with psycopg.connect(dsn, autocommit=True) as connection:
                row = connection.execute(_GID).fetchone()
                newest = max(newest, int(row[0]) if row else 0)
        for dsn in self.dsns:
            await_gid(dsn, newest)

    def proposer(self) -> str:
        """See PostgresSystem."""
        return self._herd.members()[0].proposer

    def version(self) -> str:
        """See System."""
        ways = " and ".join(sorted({one.capture or "sql" for one in self._herd.members()}))
        return f"{postgres.server_version(self.dsns[0])}, capture: {ways}"

    def stop(self) -> None:
        """See System.

        Raises:
            BenchmarkError: A sidecar's log tells of trouble: what was measured counts for nothing.
        """
        try:
            self._herd.require_no_trouble()
        finally:
            if self._herd.directory.exists():
                self._herd.destroy()
            shutil.rmtree(self.directory, ignore_errors=True)


class GaleraOf(galera.Galera):
    """Galera with another number of nodes than the comparison's three."""

    link_ports = ()

    def __init__(self, directory: Path, nodes: int) -> None:
        super().__init__(directory)
        self.name = f"galera{nodes}"
        self.nodes = nodes
        self.endpoints: Sequence[Endpoint] = ()

    def start(self) -> Sequence[Endpoint]:
        """See System."""
        account = server_account(galera.ACCOUNT)
        owned_directory(self.directory, account)
        members = ",".join(
            f"127.0.0.1:{galera.group_port(number)}" for number in range(1, self.nodes + 1)
        )
        for number in range(1, self.nodes + 1):
            owned_directory(self._data(number), account)
            text = galera.configuration(self.directory, number, self._provider)
            # The last line of a kind counts.
            text += f"wsrep_cluster_address = gcomm://{members}\n"
            self._configuration(number).write_text(text)
        self._install_first()
        for number in range(1, self.nodes + 1):
            self._start_node(number)
        self._run_sql("galera_bootstrap.sql")
        self.endpoints = [
            Endpoint("mysql", "127.0.0.1", galera.PORT_BASE + number, galera.USER, "",
                     galera.DATABASE)
            for number in range(1, self.nodes + 1)
        ]  # fmt: skip
        return self.endpoints

    def fill(self, rows: int) -> None:
        """Make the ten tables of updates."""
        text = Template((SQL / "mysql_updates.sql").read_text())
        for number in range(1, 11):
            self._query(f"USE {galera.DATABASE}; {text.substitute(table=number, rows=rows)}")


def fill_tpcw(system: PostgresSystem, scale: Scale) -> None:
    """Make TPC-W's tables and wait until all nodes have them.

    Raises:
        BenchmarkError: A statement failed, or a node did not receive the rows.
    """
    psql_file(SQL / "tpcw.sql", system.dsns[0], items=scale.items, customers=scale.customers)
    analyse(system)


def fill_updates(system: PostgresSystem, scale: Scale) -> None:
    """Make the ten tables of updates, and wait; see ``fill_tpcw``."""
    psql_file(SQL / "updates.sql", system.dsns[0], rows=scale.rows)
    analyse(system)


def fill_rows(system: PostgresSystem, rows: int) -> None:
    """Make a table of that many rows, and wait; see ``fill_tpcw``."""
    psql_file(SQL / "rows.sql", system.dsns[0], rows=rows)
    analyse(system)


def fill_bytes(system: PostgresSystem) -> None:
    """Make the texts that large transactions copy, and wait; see ``fill_tpcw``."""
    psql_file(SQL / "bytes.sql", system.dsns[0])
    analyse(system)


def analyse(system: PostgresSystem) -> None:
    """Wait until all nodes have the rows, and give each statistics of its own."""
    system.settle()
    for dsn in system.admin_dsns:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")


def tidy(system: PostgresSystem, point: Point) -> None:
    """Remove what a point leaves that would slow the next ones, and wait until all nodes have."""
    command = {"rows": f"DROP TABLE r{point.size}", "bytes": "TRUNCATE document"}.get(
        point.workload
    )
    if command is not None:
        with psycopg.connect(system.dsns[0], autocommit=True) as connection:
            connection.execute(command.encode())
        system.settle()
