"""HAProxy and PgBouncer in front of a herd on this machine, by the example files of docs/clients.

Knows where the files say ports and directories, and puts a herd's own into their place.
What is started ends with the block that started it.
"""

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.errors import BenchmarkError

EXAMPLES = Path(__file__).parents[1] / "docs" / "clients"
_NODES = (1, 2, 3)
_PATIENCE_S = 60
_SBIN = "/usr/sbin:/sbin"


@dataclass(frozen=True, slots=True)
class Ports:
    """Where balancer and pooler listen: in the range of the herd's own ports."""

    base: int

    @property
    def writers(self) -> int:
        """HAProxy's port for writers."""
        return self.base + 60

    @property
    def readers(self) -> int:
        """HAProxy's port for readers."""
        return self.base + 61

    @property
    def pool(self) -> int:
        """PgBouncer's port."""
        return self.base + 62


def example(name: str, port_base: int, directory: Path) -> str:
    """Return an example file with the ports of a herd of three.

    Args:
        name: of the file in docs/clients.
        port_base: the herd's.
        directory: what stands for /etc/pgbouncer.
    """
    text, ports = (EXAMPLES / name).read_text(), Ports(port_base)
    for shown, real in (
        *((f":{7500 + n}", f":{port_base + n}") for n in _NODES),
        *((f"port {7700 + n}", f"port {port_base + 200 + n}") for n in _NODES),
        *((f"{sign}5000", f"{sign}{ports.writers}") for sign in (":", "=")),
        *((f"{sign}5001", f"{sign}{ports.readers}") for sign in (":", "=")),
        ("6432", str(ports.pool)),
        ("/etc/pgbouncer", str(directory)),
    ):
        text = text.replace(shown, real)
    return text


def find(name: str) -> str | None:
    """Return where a program is, also where only administrators look; None if nowhere."""
    return shutil.which(name) or shutil.which(name, path=_SBIN)


def program(name: str) -> str:
    """Return where a program is.

    Raises:
        BenchmarkError: It is not installed.
    """
    found = find(name)
    if found is None:
        raise BenchmarkError(f"there is no {name} here: scripts/setup clients installs it")
    return found


@contextlib.contextmanager
def running(*command: str, port: int, user: str | None = None) -> Iterator[None]:
    """Run a program in the foreground until the end of the block.

    Args:
        command: the program and its arguments.
        port: of loopback; the block begins when somebody listens there.
        user: the account that it runs as, the caller's own by default.

    Raises:
        BenchmarkError: It ends at once, or does not listen.
    """
    process = subprocess.Popen(command, user=user, stderr=subprocess.PIPE, text=True)
    try:
        end = time.monotonic() + _PATIENCE_S
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            if process.poll() is not None:
                raise BenchmarkError(f"{command[0]}: {process.communicate()[1]}")
            if time.monotonic() > end:
                raise BenchmarkError(f"{command[0]} does not listen on {port}")
            time.sleep(0.05)
        yield
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def haproxy(port_base: int, directory: Path) -> Iterator[Ports]:
    """HAProxy by the example file, as soon as it has asked the members how they are."""
    binary, ports, file = program("haproxy"), Ports(port_base), directory / "haproxy.cfg"
    file.write_text(example("haproxy.cfg", port_base, directory))
    with running(binary, "-db", "-f", str(file), port=ports.writers):
        time.sleep(1.5)  # it takes all servers for good until it has asked them
        yield ports


@contextlib.contextmanager
def pgbouncer(
    port_base: int,
    directory: Path,
    password: str,
    *,
    user: str | None,
    size: int = 20,
    more: str = "",
) -> Iterator[str]:
    """PgBouncer by the example file; yields how to connect to it as ``app``.

    Args:
        port_base: the herd's.
        directory: for its files; made here.
        password: of the role ``app``.
        user: the account that it runs as; root it refuses.
        size: of its pool.
        more: further lines of its file.
    """
    binary, ports = program("pgbouncer"), Ports(port_base)
    directory.mkdir(mode=0o755)
    (directory / "userlist.txt").write_text(f'"app" "{password}"\n')
    text = example("pgbouncer.ini", port_base, directory)
    text = text.replace("default_pool_size = 20", f"default_pool_size = {size}\n{more}")
    (directory / "pgbouncer.ini").write_text(text)
    with running(binary, "-q", str(directory / "pgbouncer.ini"), port=ports.pool, user=user):
        yield f"postgresql://app:{password}@127.0.0.1:{ports.pool}/app"
