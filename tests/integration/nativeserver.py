"""A server that captures by the native module, and a stand-in for its sidecar.

No herd: every transaction commits with the next GID, unless the test has the stand-in say something
else. It keeps what it is asked. Needs the module (``scripts/setup native``).
"""

import asyncio
import contextlib
import itertools
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
from pgherd_sidecar.agent.base.defaults import HOOK_SOCKET
from pgherd_sidecar.agent.server import startup
from pgherd_sidecar.local import binaries
from pgherd_sidecar.pg.hookwire import HookWire, command_complete

from .localherd import free_port_base
from .plainpostgres import PlainPostgres

SECRET = "of-the-stand-in"
Answer = Callable[[bytes], bytes | None]
_NODE = """
INSERT INTO pgherd.node (member, member_name, slots, incarnation, epoch, secret, hook_conninfo,
                         hook_socket, writable, reason, fingerprint_every, piece_bytes)
VALUES (1, 'n1', 8, 1, 1, $1, $2, $3, true, '', 1000000000, 100000)
"""


class StandInSidecar:
    """Answers the hook.

    Attributes:
        path: its socket.
        requests: what it was asked, oldest first.
        answer: what it says, in bytes of the protocol; None closes the connection.
        predecessor: whom a verdict names, ``N`` for nobody.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.requests: list[bytes] = []
        self.answer: Answer = self.commit
        self.predecessor = b"N"
        self._gids = itertools.count(1)
        self._gid = 0
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))
        self._stop = asyncio.Event()
        self._asked: asyncio.StreamWriter

    def commit(self, query: bytes) -> bytes:
        """The verdict of a herd in which nobody else writes."""
        if not query.startswith(b"W "):
            return command_complete(b"OK")
        prev, self._gid = self._gid, next(self._gids)
        return command_complete(b"C %d %d %s" % (self._gid, prev, self.predecessor))

    @contextlib.contextmanager
    def saying(self, answer: Answer) -> Iterator[None]:
        """Say something else for as long as the block lasts."""
        self.answer = answer
        try:
            yield
        finally:
            self.answer = self.commit

    def say_late(self, answer: bytes) -> None:
        """Say it where the newest request came from, which was answered with nothing."""
        self._loop.call_soon_threadsafe(self._asked.write, answer)

    def start(self) -> None:
        self._thread.start()
        self._ready.wait()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_unix_server(self._talk, self.path)
        self.path.chmod(0o777)
        self._ready.set()
        await self._stop.wait()
        server.close()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wire = HookWire(64 << 20)
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                reply, queries = wire.receive(data)
                writer.write(reply)
                for query in queries:
                    self._asked = writer
                    self.requests.append(query)
                    answer = self.answer(query)
                    if answer is None:
                        writer.close()
                        return
                    writer.write(answer)
        writer.close()


@contextlib.contextmanager
def native_server(directory: Path) -> Iterator[tuple[PlainPostgres, StandInSidecar]]:
    """A server with a database ``app`` that captures natively; removed at the end."""
    server = PlainPostgres(directory / "data", free_port_base() + 1, _major())
    hook = directory / "hook"
    directory.mkdir()
    hook.mkdir()
    hook.chmod(0o755)
    _own(directory)
    server.call(
        "initdb", f"--pgdata={server.directory}", "--username=postgres", "--auth=trust",
        "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync",
    )  # fmt: skip
    with (server.directory / "postgresql.conf").open("a") as file:
        file.write(
            f"port = {server.port}\nlisten_addresses = '127.0.0.1'\nunix_socket_directories = ''\n"
            "fsync = off\ntrack_functions = all\nmax_prepared_transactions = 1\n"
        )
    sidecar = StandInSidecar(hook / HOOK_SOCKET)
    sidecar.start()
    server.start()
    try:
        with psycopg.connect(server.dsn("postgres"), autocommit=True) as connection:
            connection.execute("CREATE ROLE app LOGIN")
            connection.execute("CREATE DATABASE app OWNER app")
        asyncio.run(_install(server.dsn(), hook))
        yield server, sidecar
    finally:
        server.stop("immediate")
        sidecar.stop()
        shutil.rmtree(directory)


async def _install(dsn: str, hook: Path) -> None:
    async with await psycopg.AsyncConnection.connect(
        dsn, autocommit=True, cursor_factory=psycopg.AsyncRawCursor
    ) as connection:
        await connection.execute(startup.ADMINISTRATION)
        reason = await startup.install(connection, native=True)
        assert not reason, reason
        conninfo = f"host={hook} port=1 user=pgherd dbname=pgherd"
        await connection.execute(_NODE, (SECRET, conninfo, str(hook / HOOK_SOCKET)))
        await connection.execute("INSERT INTO pgherd.alive VALUES (true)")


def _major() -> int:
    return binaries.major_version(binaries.find(None))


def _own(directory: Path) -> None:
    if os.geteuid() == 0:
        shutil.chown(directory, os.environ.get("PGHERD_TEST_USER", "postgres"))
