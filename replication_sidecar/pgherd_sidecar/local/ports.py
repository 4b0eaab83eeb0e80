"""Are the ports free, and if not, who has them?"""

import errno
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from pgherd_sidecar.client.errors import HerdError

_LISTEN = "0A"
_INODE_FIELD = 9


def require_free(ports: Iterable[int], *, choosable: bool) -> None:
    """Check that this account could listen on these loopback ports, and nobody does.

    Args:
        ports: all of them.
        choosable: the user can choose others.

    Raises:
        HerdError: it could not, or a port is taken; names the process if this account may see it.
    """
    for port in ports:
        obstacle = _obstacle(port)
        if obstacle == errno.EADDRINUSE:
            holder = _holder(port)
            who, it = (f" by {holder}", "it") if holder else ("", "what listens there")
            remedy = f"stop {it} or choose another --port-base" if choosable else f"stop {it}"
            raise HerdError(f"port {port} is taken{who}: {remedy}")
        if obstacle == errno.EACCES:
            remedy = f"`sysctl net.ipv4.ip_unprivileged_port_start={port}` lets it"
            remedy = "choose a higher --port-base" if choosable else remedy
            raise HerdError(f"this account may not listen on port {port}: {remedy}")


def _obstacle(port: int) -> int | None:
    """Why nobody could begin to listen there: an errno."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As PostgreSQL does it: connections of a former server in TIME_WAIT are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen(1)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return error.errno
            raise
    return None


def _holder(port: int) -> str | None:
    inodes = set(_listening_inodes(port))
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal():
            continue
        with suppress(OSError):  # gone meanwhile, or another account's
            for descriptor in (process / "fd").iterdir():
                target = str(descriptor.readlink())
                if target.startswith("socket:[") and target[8:-1] in inodes:
                    return f"{(process / 'comm').read_text().strip()} (pid {process.name})"
    return None


def _listening_inodes(port: int) -> Iterable[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                    yield fields[_INODE_FIELD]
