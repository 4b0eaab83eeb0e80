"""Counts what one transaction costs its session: plain, captured in SQL, captured natively.

``python -m benchmarks.instructions`` starts a server of its own under callgrind, with one database
for each way of capture, and a stand-in for the sidecar that says yes at once. Instructions in user
space are counted, so other work on the machine does not matter; the kernel's part is not in them.
A session of many transactions minus one of few is what they cost: caches are filled by then.

Needs valgrind, and for the native way ``scripts/setup native``. Started as root the server runs as
the account ``postgres``.
"""

import argparse
import asyncio
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from pgherd_sidecar.agent.base.defaults import HOOK_SOCKET
from pgherd_sidecar.agent.server import startup
from pgherd_sidecar.pg.hookwire import HookWire, command_complete

from benchmarks.commands import postgres_bin

WAYS = ("plain", "sql", "native")
FEW, MANY = 20, 120
_TABLES = """
CREATE TABLE single (id int PRIMARY KEY, v int, note text);
CREATE TABLE sbtest (
    id int PRIMARY KEY, k int NOT NULL, c char(120) NOT NULL, pad char(60) NOT NULL);
CREATE INDEX ON sbtest (k);
INSERT INTO single SELECT i, 0, 'x' FROM generate_series(-1000, -1) i;
INSERT INTO sbtest SELECT i, i, 'c', 'p' FROM generate_series(1, 10000) i;
"""
_INSERT = "INSERT INTO single VALUES (%s, 1, 'a note')"
_UPDATE = "UPDATE single SET v = v + 1 WHERE id = -%s"
_INDEX = "UPDATE sbtest SET k = k + 1 WHERE id = %s"
_READ = "SELECT c FROM sbtest WHERE id = %s"
_RANGE = "SELECT c FROM sbtest WHERE id BETWEEN %s AND %s + 99"
_NON_INDEX = "UPDATE sbtest SET c = 'd' WHERE id = %s"
_DELETE = "DELETE FROM sbtest WHERE id = %s"
_AGAIN = "INSERT INTO sbtest VALUES (%s, 1, 'c', 'p')"


def _read_write(number: int) -> list[tuple[str, tuple[int, ...]]]:
    """As sysbench's: ten reads, four ranges, two updates, and a row deleted and made again."""
    reads = [(_READ, (number * 10 + i,)) for i in range(10)]
    ranges = [(_RANGE, (number * 7 + i, number * 7 + i)) for i in range(4)]
    ids = (number % 3000 + 1, number % 3000 + 3001, number % 3000 + 6001)
    return [*reads, *ranges, (_INDEX, (ids[0],)), (_NON_INDEX, (ids[1],)),
            (_DELETE, (ids[2],)), (_AGAIN, (ids[2],))]  # fmt: skip


TRANSACTIONS: dict[str, Callable[[int], list[tuple[str, tuple[int, ...]]]]] = {
    "insert": lambda number: [(_INSERT, (number,))],
    "update": lambda number: [(_UPDATE, (number % 900 + 1,))],
    "update_index": lambda number: [(_INDEX, (number % 10_000 + 1,))],
    "read_write": _read_write,
}


class Sidecar:
    """A stand-in: every writeset commits, with the next GID and nobody to wait for."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / HOOK_SOCKET
        self._gid = itertools.count(1)
        self._ready = threading.Event()
        threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True).start()
        self._ready.wait()

    async def _serve(self) -> None:
        server = await asyncio.start_unix_server(self._talk, self._path)
        self._path.chmod(0o777)
        self._ready.set()
        await server.serve_forever()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wire = HookWire(1 << 20)
        while data := await reader.read(1 << 16):
            reply, queries = wire.receive(data)
            for query in queries:
                assert query.startswith(b"W "), query
                gid = next(self._gid)
                reply += command_complete(b"C %d %d N" % (gid, gid - 1))
            writer.write(reply)
        writer.close()


class Server:
    """A PostgreSQL server in a directory of its own, for these measurements only."""

    def __init__(self, directory: Path, port: int) -> None:
        self.directory, self.port = directory, port
        self._bin = postgres_bin()
        self._process: subprocess.Popen[bytes] | None = None

    def dsn(self, database: str) -> str:
        """How to connect to it."""
        return f"host={self.directory} port={self.port} user=postgres dbname={database}"

    def initialise(self) -> None:
        """Make it."""
        subprocess.run(
            [*_as_account(), self._bin / "initdb", "--pgdata", self.directory / "data", "--no-sync",
             "--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8"],
            check=True, stdout=subprocess.DEVNULL, cwd="/",
        )  # fmt: skip
        with (self.directory / "data" / "postgresql.conf").open("a") as file:
            file.write(
                f"listen_addresses = ''\nunix_socket_directories = '{self.directory}'\n"
                f"port = {self.port}\nfsync = off\nautovacuum = off\njit = off\n"
            )

    @contextmanager
    def running(self, *under: str) -> Iterator[None]:
        """Start it, under another program if one is named, and stop it at the end."""
        command = [*_as_account(), *under, str(self._bin / "postgres"), "-D",
                   str(self.directory / "data")]  # fmt: skip
        with (self.directory / "server.log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd="/")
        try:
            while True:
                try:
                    psycopg.connect(self.dsn("postgres")).close()
                    break
                except psycopg.OperationalError:
                    assert process.poll() is None, "the server has not started: see server.log"
                    time.sleep(0.2)
            yield
        finally:
            pid = int((self.directory / "data" / "postmaster.pid").read_text().split()[0])
            os.kill(pid, 2)
            process.wait()


def _as_account() -> list[str]:
    return ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []


def _own(path: Path) -> None:
    if os.geteuid() == 0:
        shutil.chown(path, "postgres", "postgres")


async def _install(server: Server, way: str, hook: Path) -> None:
    """Make a database in which rows are captured in this way."""
    async with await psycopg.AsyncConnection.connect(
        server.dsn(way), autocommit=True, cursor_factory=psycopg.AsyncRawCursor
    ) as connection:
        await connection.execute(startup.ADMINISTRATION)
        reason = await startup.install(connection, native=way == "native")
        if way == "native" and reason:
            raise SystemExit(f"rows cannot be captured natively here: {reason}")
        await connection.execute(
            "INSERT INTO pgherd.node (member, member_name, slots, incarnation, epoch, secret,"
            " hook_conninfo, hook_socket, writable, reason, fingerprint_every)"
            " VALUES (1, 'n1', 8, 1, 1, 'secret', $1, $2, true, '', 1000000000)",
            (f"host={hook} port=1 user=pgherd dbname=pgherd", str(hook / HOOK_SOCKET)),
        )
        await connection.execute("INSERT INTO pgherd.alive VALUES (true)")
        await connection.execute("SELECT pgherd.reconcile()")


def _prepare(server: Server, ways: list[str], directory: Path) -> None:
    """Make the databases, and the tables in them."""
    for way in ways:
        with psycopg.connect(server.dsn("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {way}".encode())
        with psycopg.connect(server.dsn(way), autocommit=True) as connection:
            connection.execute(_TABLES.encode())
            connection.execute("VACUUM ANALYZE")
        if way != "plain":
            hook = directory / f"hook_{way}"
            hook.mkdir()
            _own(hook)
            Sidecar(hook)
            asyncio.run(_install(server, way, hook))


def _session(server: Server, way: str, kind: str, first: int, count: int) -> int:
    """Run transactions in one session; return its process id."""
    with psycopg.connect(server.dsn(way)) as connection:
        connection.prepare_threshold = 0
        for number in range(first, first + count):
            for statement, values in TRANSACTIONS[kind](number):
                connection.execute(statement.encode(), values)
            connection.commit()
        return connection.info.backend_pid


def _counted(directory: Path, pid: int) -> int:
    """Instructions of a session that has ended, from what callgrind has written of it."""
    path = directory / f"callgrind.{pid}"
    while not path.exists() or b"totals:" not in path.read_bytes()[-200:]:
        time.sleep(0.2)
    totals = [line for line in path.read_text().splitlines() if line.startswith("totals:")]
    path.unlink()
    return sum(int(line.split()[1]) for line in totals)


def measure(ways: list[str], kinds: list[str]) -> dict[str, dict[str, float]]:
    """Return thousands of instructions for one transaction, by kind and way."""
    directory = Path(tempfile.mkdtemp(prefix="pgherd-instructions-"))
    directory.chmod(0o755)
    _own(directory)
    server = Server(directory, 5432)
    try:
        server.initialise()
        with server.running():
            _prepare(server, ways, directory)
        result: dict[str, dict[str, float]] = {}
        under = ("valgrind", "--quiet", "--tool=callgrind", "--trace-children=yes",
                 f"--callgrind-out-file={directory}/callgrind.%p")  # fmt: skip
        with server.running(*under):
            for kind in kinds:
                for way in ways:
                    _, few, many = (
                        _counted(directory, _session(server, way, kind, first, count))
                        for first, count in ((1, 2), (101, FEW), (201, MANY))
                    )
                    result.setdefault(kind, {})[way] = (many - few) / (MANY - FEW) / 1000
        return result
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--kinds", nargs="+", choices=TRANSACTIONS, default=list(TRANSACTIONS))
    given = parser.parse_args()
    if shutil.which("valgrind") is None:
        sys.exit("valgrind is missing: apt-get install valgrind")
    found = measure(given.ways, given.kinds)
    print(f"| thousand instructions | {' | '.join(given.ways)} |")
    print(f"| --- |{' ---: |' * len(given.ways)}")
    for kind, by_way in found.items():
        print(f"| {kind} | {' | '.join(f'{by_way[way]:,.0f}' for way in given.ways)} |")


if __name__ == "__main__":
    main()
