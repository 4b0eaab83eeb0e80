"""One node's PostgreSQL server: created, configured, started, stopped, killed.

Nothing of pgherd is installed in the server here: that is the sidecar's work. The server is asked
for nothing but roles and the database. All functions run as the account that owns the herd.
"""

import asyncio
import errno
import os
import secrets
import shutil
import signal
from importlib import resources
from pathlib import Path
from typing import Literal

from pgherd_sidecar.client.errors import HerdError, disk_full, last_words
from pgherd_sidecar.env.processes.detached import ProcessId, postmaster, processes_in, wait_all_exit
from pgherd_sidecar.local.herd import Herd, HerdNode, NodePaths

SETTINGS_FILE = "pgherd.conf"
_DATABASE_SQL = "sql/database.sql"
_CHILDREN_EXIT_S = 10.0
"""How long a dead postmaster's children may take to notice; a child that waits for the network
inside a C function notices only when that wait ends."""
_SYSTEMD = Path("/run/systemd/system")
_FIRST_OF_PEOPLE = 1000
"""Accounts of people have this number and later ones."""
_NOT_IN_SHM = {"dynamic_shared_memory_type": "mmap", "min_dynamic_shared_memory": "32MB"}
"""systemd removes what an account of people has in /dev/shm at its last logout (RemoveIPC), and
new sessions of the server would find their segments no more."""

_ACCESS = """\
# Written by pgherd. The socket lies in a directory that only the owner's account can enter.
local  all          postgres,pgherd_apply                trust
local  all          all                                  scram-sha-256
host   all          pgherd_apply           127.0.0.1/32  reject
host   all          all                    127.0.0.1/32  scram-sha-256
host   replication  all                    127.0.0.1/32  scram-sha-256
"""


class PostgresServer:
    """The server of one member of a herd on this machine."""

    def __init__(self, herd: Herd, member: HerdNode) -> None:
        self._bin = herd.programs_of(member)
        self._herd = herd
        self._member = member
        self._paths: NodePaths = herd.node(member)

    def process(self) -> ProcessId | None:
        """Return the running postmaster, if any."""
        return postmaster(self._paths.run, self._member.port, self._paths.pgdata)

    def exists(self) -> bool:
        """Whether the server has a data directory."""
        return self._paths.pgdata.exists()

    async def initialise(self, like: "PostgresServer | None" = None) -> None:
        """Create the data directory unless it is there; a half-made one is made again.

        Args:
            like: a server of the same programs that does not run. Its files are copied, which is
                quicker than ``initdb``.
        """
        if self._paths.pgdata.exists():
            return
        self._paths.root.mkdir(exist_ok=True, mode=0o700)
        # initdb outlives a command that was killed, and may still work in the one that it made.
        for former in self._paths.root.glob("pgdata.new-*"):
            shutil.rmtree(former, ignore_errors=True)
        unfinished = self._paths.root / f"pgdata.new-{secrets.token_hex(4)}"
        if like is None:
            await self._make_data(unfinished)
        else:
            await asyncio.to_thread(shutil.copytree, like._paths.pgdata, unfinished)
            await self._run("initdb", "--sync-only", f"--pgdata={unfinished}")
        unfinished.rename(self._paths.pgdata)

    async def _make_data(self, directory: Path) -> None:
        password_file = self._paths.root / "password.new"
        with os.fdopen(
            os.open(password_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w"
        ) as file:
            file.write(self._herd.superuser_password + "\n")
        try:
            await self._run(
                "initdb", f"--pgdata={directory}", "--username=postgres",
                f"--pwfile={password_file}", "--auth=scram-sha-256", "--encoding=UTF8",
                "--locale=C.UTF-8", "--data-checksums", "--no-instructions",
            )  # fmt: skip
        finally:
            password_file.unlink()
        with (directory / "postgresql.conf").open("a") as file:
            file.write(f"\ninclude '{SETTINGS_FILE}'\n")

    async def start(self, timeout_s: float) -> None:
        """Start the server and wait until it accepts connections (crash recovery included).

        Raises:
            HerdError: it does not start; carries the server's last words and their file. Or
                another account has the directory of its sockets.
        """
        self._herd.make_sockets(self._member)
        self._paths.log_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        await self._clear_remains()
        self.write_overlay()
        shutil.copytree(self._paths.overlay, self._paths.pgdata, dirs_exist_ok=True)
        self._paths.postgres_log.unlink(missing_ok=True)
        try:
            await self._run(
                "pg_ctl", "start", "--wait", f"--timeout={timeout_s:.0f}", "--silent",
                f"--pgdata={self._paths.pgdata}", f"--log={self._paths.postgres_log}",
            )  # fmt: skip
        except HerdError as error:
            raise self._failure(
                f"PostgreSQL of {self._member.name} does not come up: {self.last_words()}"
            ) from error

    def write_overlay(self) -> None:
        """Write the configuration files that are this node's own, also for a copy of another's."""
        self._paths.overlay.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self._paths.overlay / SETTINGS_FILE).write_text(self._settings())
        (self._paths.overlay / "pg_hba.conf").write_text(_ACCESS)

    async def provide_database(self) -> None:
        """Create the role and the database ``app`` unless they exist."""
        with resources.as_file(resources.files("pgherd_sidecar.pg") / _DATABASE_SQL) as script:
            await self._run(
                "psql", "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", f"--file={script}",
                f"--host={self._paths.run}", f"--port={self._member.port}",
                "--username=postgres", "--dbname=postgres",
                environment={
                    "PGHERD_APP_PASSWORD": self._herd.app_password,
                    "PGOPTIONS": "-c default_transaction_read_only=off",
                },
            )  # fmt: skip

    async def stop(self, timeout_s: float, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop the server: ``fast`` with a checkpoint, ``immediate`` without (but, unlike a
        SIGKILL, without leaving its shared memory behind).

        Not by ``pg_ctl``, which finds no server whose data directory was removed.

        Raises:
            HerdError: it still runs after ``timeout_s``.
        """
        running = self.process()
        if running is None:
            return
        running.signal(signal.SIGINT if mode == "fast" else signal.SIGQUIT)
        if not await running.wait_exit(timeout_s):
            raise HerdError(
                f"PostgreSQL of {self._member.name} (pid {running.pid}) still runs "
                f"{timeout_s:g} s after it was told to stop: see {self._paths.log_dir}"
            )

    async def kill(self) -> bool:
        """SIGKILL the postmaster, then wait until no child holds its data any more.

        Returns:
            False when there was nothing to kill.
        """
        postmaster = self.process()
        if postmaster is not None:
            postmaster.signal(signal.SIGKILL)
            await postmaster.wait_exit(_CHILDREN_EXIT_S)
        return await self._end_children() or postmaster is not None

    async def _end_children(self) -> bool:
        """End a dead postmaster's children; False when there were none."""
        children = processes_in(self._paths.pgdata)
        for survivor in await wait_all_exit(children, _CHILDREN_EXIT_S):
            survivor.signal(signal.SIGKILL)
            await survivor.wait_exit(_CHILDREN_EXIT_S)
        return bool(children)

    async def _clear_remains(self) -> None:
        """Remove what a killed postmaster left and PostgreSQL would take for a running server.

        It asks only whether *some* process has the pid in its lock files: a recycled one or, where
        init is slow to reap, a zombie would keep it from starting.
        """
        await self._end_children()
        (self._paths.pgdata / "postmaster.pid").unlink(missing_ok=True)
        (self._paths.run / f".s.PGSQL.{self._member.port}.lock").unlink(missing_ok=True)

    def _settings(self) -> str:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self._member.port,
            "unix_socket_directories": f'"{self._paths.run}"',
            "unix_socket_permissions": "0700",
            "cluster_name": self._member.name,
            "max_connections": 200,
            "shared_buffers": "128MB",
            "wal_level": "replica",
            "synchronous_commit": "on",
            "max_wal_size": "2GB",
            "jit": "off",
            "password_encryption": "scram-sha-256",
            "logging_collector": "on",
            "log_directory": self._paths.log_dir,
            "log_filename": "postgresql-%a.log",
            "log_rotation_age": "1d",
            "log_truncate_on_rotation": "on",
            "log_line_prefix": "%m [%p] %q%u@%d ",
        }
        if os.geteuid() >= _FIRST_OF_PEOPLE and _SYSTEMD.exists():
            settings |= _NOT_IN_SHM
        lines = [f"{name} = '{quoted(str(value))}'" for name, value in settings.items()]
        return "\n".join(["# Written by pgherd at each start: changes are lost.", *lines, ""])

    async def _run(
        self, program: str, *arguments: str, environment: dict[str, str] | None = None
    ) -> None:
        process = await asyncio.create_subprocess_exec(
            self._bin / program,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,  # a Ctrl-C is ours to handle, in order
            cwd=self._paths.root,
            env=_server_environment() | (environment or {}),
        )
        finishing = asyncio.ensure_future(process.communicate())
        try:
            output, _ = await asyncio.shield(finishing)
        except asyncio.CancelledError:
            await finishing  # what it is starting must be known before anybody can undo it
            raise
        if process.returncode:
            text = output.decode(errors="replace")
            raise self._failure(f"{program} of {self._member.name} failed: {last_words(text)}")

    def last_words(self) -> str:
        """Its last complaint, and the log it is in."""
        logs = [self._paths.postgres_log, *self._paths.log_dir.glob("*.log")]
        newest = max((log for log in logs if log.exists()), key=_modified, default=None)
        if newest is None:
            return "it said nothing"
        return f"{last_words(newest.read_text(errors='replace'))} (see {newest})"

    def _failure(self, message: str) -> HerdError:
        if os.strerror(errno.ENOSPC) in message:
            return disk_full(self._paths.root)
        return HerdError(message)


def _server_environment() -> dict[str, str]:
    """Our environment without what is meant for our own interpreter: PL/Python has its own."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PYTHON") and name != "LD_LIBRARY_PATH"
    } | {"LC_ALL": "C.UTF-8"}


def quoted(value: str) -> str:
    """Return a value as it stands between quotes in a file of settings."""
    return value.replace("'", "''")


def _modified(path: Path) -> float:
    return path.stat().st_mtime
