"""Bytes and segments that members have sent each other, as the kernel counts them: ``ss``.

Members keep one connection to each other and send on it, TLS included, so what their sockets have
sent is what a network would carry. A connection that ends in between takes its counts along.
"""

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

_SENT = re.compile(r"\bbytes_sent:(\d+)")
_SEGMENTS = re.compile(r"\bdata_segs_out:(\d+)")


@dataclass(frozen=True, slots=True)
class Traffic:
    """The traffic of all links together."""

    bytes: int
    segments: int
    """Packets with data: on loopback a message is one, unless several go out together."""


def traffic(ports: Sequence[int]) -> Traffic | None:
    """Return what was sent to these ports so far; None without ports, or without ``ss``."""
    program = shutil.which("ss")
    if program is None or not ports:
        return None
    where = f"( {' or '.join(f'dport = :{port}' for port in ports)} )"
    done = subprocess.run([program, "-tinHO", where], capture_output=True, text=True, check=False)
    return parse(done.stdout) if done.returncode == 0 else None


def parse(output: str) -> Traffic:
    """Return the sum over the sockets that ``ss -tinHO`` shows, one a line."""
    return Traffic(
        bytes=sum(int(sent) for sent in _SENT.findall(output)),
        segments=sum(int(count) for count in _SEGMENTS.findall(output)),
    )
