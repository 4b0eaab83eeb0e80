"""Three MariaDB nodes with Galera, all taking writes: the synchronous multi-master peer.

Each node flushes its own commit (``innodb_flush_log_at_trx_commit=1``), as PostgreSQL does by
default. Replication acknowledges on receipt, before the other nodes have it on disk; that is
Galera's promise and cannot be made stronger by a setting.
"""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from string import Template

from benchmarks.commands import last_line, owned_directory, program, run, server_account, wait_until
from benchmarks.errors import BenchmarkError
from benchmarks.peers.base import Contents, Endpoint

HERE = Path(__file__).parent
ACCOUNT = "mysql"
DATABASE = "sbtest"
USER = "sbtest"
NODES = 3
PORT_BASE = 7620
START_S = 90
STOP_S = 60
PROVIDERS = (Path("/usr/lib/galera/libgalera_smm.so"), Path("/usr/lib/libgalera_smm.so"))


class Galera:
    """A cluster of three on loopback; parallel appliers as its documentation advises."""

    def __init__(self, directory: Path) -> None:
        self._server = program("mariadbd", package="mariadb-server")
        self._install = program("mariadb-install-db", package="mariadb-server")
        self._client = program("mariadb", package="mariadb-client")
        self._provider = provider()
        self.directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> Sequence[Endpoint]:
        """See System."""
        owned_directory(self.directory, server_account(ACCOUNT))
        for number in range(1, NODES + 1):
            owned_directory(self._data(number), server_account(ACCOUNT))
            self._configuration(number).write_text(
                configuration(self.directory, number, self._provider)
            )
        self._install_first()
        for number in range(1, NODES + 1):
            self._start_node(number)
        self._run_sql("galera_bootstrap.sql")
        return [
            Endpoint("mysql", "127.0.0.1", PORT_BASE + number, USER, "", DATABASE)
            for number in range(1, NODES + 1)
        ]

    def load(self, contents: Contents) -> None:
        """See System."""
        for number in range(1, contents.tables + 1):
            self._run_sql(
                "galera_table.sql",
                table=f"sbtest{number}",
                rows=contents.rows,
                last=contents.last_id,
                step=contents.step,
            )

    def version(self) -> str:
        """See System."""
        row = self._query("SELECT concat('MariaDB ', @@version, ', Galera ', variable_value) "
                          "FROM information_schema.global_status "
                          "WHERE variable_name = 'wsrep_provider_version'")  # fmt: skip
        return row.strip()

    def stop(self) -> None:
        """See System."""
        for process in reversed(self._processes):
            process.terminate()
            try:
                process.wait(timeout=STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _install_first(self) -> None:
        """Make the first node's system tables; the others receive them when they join."""
        run(
            [self._install, "--no-defaults",
             f"--datadir={self._data(1)}", "--auth-root-authentication-method=normal",
             "--skip-test-db"],
            account=server_account(ACCOUNT),
        )  # fmt: skip

    def _start_node(self, number: int) -> None:
        first = ["--wsrep-new-cluster"] if number == 1 else []
        account = server_account(ACCOUNT)
        with self._log(number).open("wb") as log:
            process = subprocess.Popen(
                [self._server,
                 f"--defaults-file={self._configuration(number)}", *first],
                user=account, group=account, extra_groups=None if account is None else [],
                cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        self._processes.append(process)
        wait_until(
            lambda: self._is_synced(number, process),
            timeout_s=START_S,
            failure=f"Galera node {number} did not join",
        )

    def _is_synced(self, number: int, process: subprocess.Popen[bytes]) -> bool:
        if process.poll() is not None:
            reason = last_line(self._log(number).read_text(errors="replace"))
            raise BenchmarkError(f"Galera node {number} stopped: {reason}")
        try:
            state = self._query("SHOW STATUS LIKE 'wsrep_local_state_comment'", number)
        except BenchmarkError:
            return False
        return state.split()[-1:] == ["Synced"]

    def _run_sql(self, name: str, **values: str | int) -> None:
        statements = Template((HERE / "sql" / name).read_text()).substitute(values)
        self._query(statements)

    def _query(self, statements: str, number: int = 1) -> str:
        return run(
            [self._client, "--no-defaults", "--user=root",
             f"--socket={self._data(number)}/socket", "--skip-column-names",
             f"--execute={statements}"]
        )  # fmt: skip

    def _data(self, number: int) -> Path:
        return self.directory / f"n{number}"

    def _configuration(self, number: int) -> Path:
        return self.directory / f"n{number}.cnf"

    def _log(self, number: int) -> Path:
        return self.directory / f"n{number}.log"


def provider() -> Path:
    """Return the path of the Galera library.

    Raises:
        BenchmarkError: It is not installed.
    """
    found = next((path for path in PROVIDERS if path.exists()), None)
    if found is None:
        raise BenchmarkError("Galera is not installed: run benchmarks/setup or install galera-4")
    return found


def configuration(directory: Path, number: int, library: Path) -> str:
    """Return the configuration file of node ``number``."""
    members = ",".join(f"127.0.0.1:{group_port(n)}" for n in range(1, NODES + 1))
    return Template((HERE / "galera.cnf").read_text()).substitute(
        data=directory / f"n{number}",
        number=number,
        provider=library,
        members=members,
        port=PORT_BASE + number,
        group_port=group_port(number),
        ist_port=group_port(number) + 10,
        sst_port=group_port(number) + 20,
    )


def group_port(number: int) -> int:
    """Return the port of a node's group communication."""
    return PORT_BASE + 10 + number
