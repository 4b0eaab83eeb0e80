"""The server that a member has become: its files, its configuration, how it is started.

Its directory holds ``pgdata``, the log of its start, sockets in ``run``, and ``pgpass``. It keeps
its port and its roles. Nothing of the herd is needed to run it: ``pg_ctl`` does.
"""

import asyncio
import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from psycopg.conninfo import make_conninfo

from pgherd_sidecar.client.errors import HerdError, last_words
from pgherd_sidecar.env.storage import durable
from pgherd_sidecar.local.herd import SOCKET_PATH_MAX
from pgherd_sidecar.local.postgres import SETTINGS_FILE, quoted

_HOST = "127.0.0.1"
_BEGIN, _END = "# Kept from the time in a herd.", "# End of what was kept."
_BLOCK = re.compile(rf"\n?^{re.escape(_BEGIN)}$.*?^{re.escape(_END)}$\n", re.MULTILINE | re.DOTALL)
_INCLUDE = re.compile(
    rf"^[ \t]*include[ \t]*=?[ \t]*'{re.escape(SETTINGS_FILE)}'[^\n]*\n", re.MULTILINE
)
_ACCESS = """\
# Written by `pgherd export plain`, for clients on this machine.
local  all          all                scram-sha-256
host   all          all  127.0.0.1/32  scram-sha-256
host   replication  all  127.0.0.1/32  scram-sha-256
"""
_ACCESS_ALONE = "local all postgres trust\n"
_LOCKS = {"max_connections": 20, "max_locks_per_transaction": 10_000}
"""While the server is ours alone: every table's lock is taken in one transaction."""


class PlainServer:
    """A server in a directory of its own.

    Args:
        directory: of it.
        postgres_bin: PostgreSQL's programs.
        port: on which it listens.
        passwords: of roles, for the file that connection strings name.
    """

    def __init__(
        self, directory: Path, postgres_bin: Path, port: int, passwords: Mapping[str, str]
    ) -> None:
        self.pgdata = directory / "pgdata"
        self.passfile = directory / "pgpass"
        self.log = directory / "postgres.log"
        self.pg_ctl = postgres_bin / "pg_ctl"
        self._run_directory = directory / "run"
        self._port = port
        self._passwords = passwords

    @property
    def dsn(self) -> str:
        """Connection string of the ordinary role ``app``."""
        return f"postgresql://app@{_HOST}:{self._port}/app?passfile={quote(str(self.passfile))}"

    def exists(self) -> bool:
        """Whether the data have been moved here."""
        return self.pgdata.exists()

    def take(self, pgdata: Path) -> None:
        """Move the data of a server that does not run here."""
        pgdata.rename(self.pgdata)

    def configure(self) -> None:
        """Replace what a herd writes into the files of a server; any number of times."""
        main = self.pgdata / "postgresql.conf"
        text = plain_configuration(main.read_text(), self._settings())
        durable.replace(self.pgdata, main.name, text.encode(), 0o600)
        (self.pgdata / SETTINGS_FILE).unlink(missing_ok=True)
        (self.pgdata / "pg_hba.conf").write_text(_ACCESS)
        self._run_directory.mkdir(mode=0o700, exist_ok=True)
        lines = [f"{_HOST}:*:*:{role}:{word}\n" for role, word in self._passwords.items()]
        with os.fdopen(
            os.open(self.passfile, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w"
        ) as file:
            file.writelines(lines)

    def _settings(self) -> dict[str, str]:
        socket = self._run_directory / f".s.PGSQL.{self._port}"
        fits = len(os.fsencode(socket)) <= SOCKET_PATH_MAX and "," not in str(socket)
        return {
            "listen_addresses": _HOST,
            "port": str(self._port),
            "unix_socket_directories": str(self._run_directory) if fits else "",
            "max_connections": "200",
            "max_wal_size": "2GB",
            "logging_collector": "on",
            "log_directory": "log",
            "log_filename": "postgresql-%a.log",
            "log_rotation_age": "1d",
            "log_truncate_on_rotation": "on",
            "log_line_prefix": "%m [%p] %q%u@%d ",
        }

    def superuser(self, sockets: Path) -> str:
        """Connection string of the superuser to a server that was started alone."""
        return make_conninfo(host=str(sockets), port=self._port, user="postgres", dbname="app")

    async def start(self, timeout_s: float, alone_in: Path | None = None) -> None:
        """Start it and wait until it accepts connections.

        Args:
            timeout_s: how long to wait.
            alone_in: directory for its socket, by which the superuser alone can enter.

        Raises:
            HerdError: it does not start; carries the server's last words and their file.
        """
        arguments = [
            "start", "--wait", f"--timeout={timeout_s:.0f}", "--silent", f"--log={self.log}",
        ]  # fmt: skip
        if alone_in is not None:
            access = alone_in / "pg_hba.conf"
            access.write_text(_ACCESS_ALONE)
            settings = {
                "listen_addresses": "''",
                "unix_socket_directories": alone_in,
                "hba_file": access,
                "logging_collector": "off",
                **_LOCKS,
            }
            words = " ".join(f"-c {name}={value}" for name, value in settings.items())
            arguments.append(f"--options={words}")
        done, output = await self._call(*arguments)
        if done:
            told = self.log.read_text(errors="replace") if self.log.exists() else output
            raise HerdError(
                f"the server in {self.pgdata} does not start: {last_words(told)} (see {self.log})"
            )

    async def stop(self, timeout_s: float) -> None:
        """Stop it if it runs.

        Raises:
            HerdError: it still runs after that time.
        """
        if not (self.pgdata / "postmaster.pid").exists() or (await self._call("status"))[0]:
            return
        done, output = await self._call(
            "stop", "--mode=fast", f"--timeout={timeout_s:.0f}", "--silent"
        )
        if done:
            raise HerdError(f"the server in {self.pgdata} does not stop: {last_words(output)}")

    async def _call(self, *arguments: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            self.pg_ctl, *arguments, f"--pgdata={self.pgdata}",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            cwd=self.pgdata,
            env=os.environ | {"LC_ALL": "C.UTF-8"},
        )  # fmt: skip
        output, _ = await process.communicate()
        return process.returncode or 0, output.decode(errors="replace")


def plain_configuration(text: str, settings: Mapping[str, str]) -> str:
    """A ``postgresql.conf`` without the herd's, and with settings at its end."""
    text = _BLOCK.sub("", _INCLUDE.sub("", text)).rstrip("\n")
    lines = [f"{name} = '{quoted(value)}'" for name, value in settings.items()]
    return "\n".join([text, "", _BEGIN, *lines, _END, ""])
