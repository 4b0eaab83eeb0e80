"""A plain PostgreSQL server and sysbench's tables in it: what three of the systems share.

Knows nothing of replication. Called by ``plain``, ``pgsync`` and ``pgherd``.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from benchmarks.commands import (
    owned_directory,
    postgres_bin,
    psql_file,
    run,
    server_account,
    wait_until,
)
from benchmarks.errors import BenchmarkError
from benchmarks.peers.base import Contents, Endpoint

SQL = Path(__file__).parent / "sql"
ACCOUNT = "postgres"
DATABASE = "app"
CATCH_UP_S = 120

SETTINGS: Mapping[str, str] = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "max_wal_size": "2GB",
    "wal_level": "replica",
    "jit": "off",
}
"""The same as a herd's servers have; durability is PostgreSQL's default."""


@dataclass(frozen=True, slots=True)
class PostgresServer:
    """One server on loopback, in ``directory/data``."""

    directory: Path
    port: int

    @property
    def data(self) -> Path:
        """The server's data directory."""
        return self.directory / "data"

    @property
    def dsn(self) -> str:
        """Connection string of the superuser."""
        return make_conninfo(host="127.0.0.1", port=self.port, user="postgres", dbname=DATABASE)

    def create(self) -> None:
        """Make a new, empty server.

        Raises:
            BenchmarkError: initdb failed.
        """
        owned_directory(self.directory, server_account(ACCOUNT))
        self.program("initdb", "--auth=trust", "--username=postgres", "--data-checksums",
                     "--locale=C.UTF-8", "--encoding=UTF8", "--no-sync")  # fmt: skip
        self.configure(SETTINGS)

    def copy_of(self, primary: "PostgresServer", name: str) -> None:
        """Make this server a streaming standby of ``primary``.

        Raises:
            BenchmarkError: The base backup failed.
        """
        owned_directory(self.directory, server_account(ACCOUNT))
        source = make_conninfo(primary.dsn, dbname="replication", application_name=name)
        run(
            [postgres_bin() / "pg_basebackup", f"--pgdata={self.data}", f"--dbname={source}",
             "--write-recovery-conf", "--checkpoint=fast", "--no-sync"],
            account=server_account(ACCOUNT),
        )  # fmt: skip
        self.configure({})

    def configure(self, settings: Mapping[str, str]) -> None:
        """Add settings, which the next start reads."""
        own = {"port": str(self.port), "unix_socket_directories": str(self.directory)}
        lines = [f"{name} = '{value}'\n" for name, value in {**settings, **own}.items()]
        with (self.data / "postgresql.conf").open("a") as file:
            file.writelines(lines)

    def start(self) -> None:
        """Start the server and return when it accepts connections.

        Raises:
            BenchmarkError: It did not start.
        """
        log = self.directory / "log"
        try:
            self.program("pg_ctl", "start", "--wait", f"--log={log}")
        except BenchmarkError as error:
            raise BenchmarkError(f"PostgreSQL on port {self.port} did not start: {log}") from error

    def stop(self) -> None:
        """Stop the server, if it runs, and remove all of it."""
        if (self.data / "postmaster.pid").exists():
            self.program("pg_ctl", "stop", "--wait", "--mode=fast")
        shutil.rmtree(self.directory, ignore_errors=True)

    def program(self, name: str, *arguments: str) -> None:
        """Run one of PostgreSQL's own programs on this server's data directory."""
        run(
            [postgres_bin() / name, *arguments, f"--pgdata={self.data}"],
            account=server_account(ACCOUNT),
        )

    def create_database(self) -> None:
        """Create the benchmark's database."""
        with psycopg.connect(make_conninfo(self.dsn, dbname="postgres"), autocommit=True) as server:
            server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))


def endpoint(dsn: str) -> Endpoint:
    """Return the endpoint that a libpq connection string describes."""
    parts = conninfo_to_dict(dsn)
    return Endpoint(
        driver="pgsql",
        host=str(parts["host"]),
        port=int(parts["port"] or 5432),
        user=str(parts["user"]),
        password=str(parts.get("password") or ""),
        database=str(parts["dbname"]),
    )


def load(writers: Sequence[str], admins: Sequence[str], contents: Contents) -> None:
    """Create and fill sysbench's tables on the first writer and settle every server.

    Args:
        writers: Connection strings of the nodes that take writes.
        admins: Superusers' connection strings of all servers whose statistics are their own.

    Raises:
        BenchmarkError: A statement failed or a node did not receive the rows.
    """
    names = [f"sbtest{number}" for number in range(1, contents.tables + 1)]
    for name in names:
        psql_file(
            SQL / "postgres_table.sql",
            writers[0],
            table=name,
            rows=contents.rows,
            last=contents.last_id,
            step=contents.step,
        )
    for dsn in writers:
        with psycopg.connect(dsn, autocommit=True) as connection:
            for name in names:
                _await_rows(connection, name, contents.rows)
                _pass_over(connection, name, contents.last_id)
    for dsn in admins:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
            connection.execute("CHECKPOINT")


def server_version(dsn: str) -> str:
    """Return PostgreSQL's name and version."""
    with psycopg.connect(dsn) as connection:
        return f"PostgreSQL {connection.info.parameter_status('server_version')}"


def _await_rows(connection: psycopg.Connection, table: str, rows: int) -> None:
    count = sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(table))

    def complete() -> bool:
        try:
            row = connection.execute(count).fetchone()
        except psycopg.errors.UndefinedTable:
            return False
        return row == (rows,)

    wait_until(complete, timeout_s=CATCH_UP_S, failure=f"{table} did not reach every node")


def _pass_over(connection: psycopg.Connection, table: str, last: int) -> None:
    """Move this node's sequence past the ids that were loaded explicitly.

    By nextval, which is right on every system: setval would have to know how the sequence is
    interleaved.
    """
    statement = (SQL / "postgres_pass_over.sql").read_bytes()
    connection.execute(statement, {"table": table, "last": last})
