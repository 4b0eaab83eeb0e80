"""Members that are killed, stopped or cut off for as long as a block lasts."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Collection, Mapping
from pathlib import Path

from integration.localherd import LocalHerd, home, pids_in
from pgherd_sidecar.client.admin import AdminClient, AdminError
from workloads.recorder import Recorder

Cut = Mapping[str, Collection[str]]
"""Whose links each node closes and refuses; or to whom it sends nothing, one way."""


@contextlib.asynccontextmanager
async def killed(
    herd: LocalHerd, recorder: Recorder, node: str, process: str
) -> AsyncIterator[None]:
    """SIGKILL, and started anew at the end of the block."""
    await asyncio.to_thread(herd.must, "kill", node, "--process", process)
    if process != "sidecar":
        recorder.crashed(node)
    try:
        yield
    finally:
        await asyncio.to_thread(herd.must, "start", node)


@contextlib.asynccontextmanager
async def stopped(herd: LocalHerd, node: str, process: str) -> AsyncIterator[None]:
    """SIGSTOP, and SIGCONT at the end of the block: it wakes up with old beliefs."""
    pids = [
        pid
        for pid in pids_in(herd.directory / node)
        if process == "node" or _is_sidecar(pid) == (process == "sidecar")
    ]
    try:
        _send(pids, signal.SIGSTOP)
        yield
    finally:
        _send(pids, signal.SIGCONT)


def _is_sidecar(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return b"--config" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def _send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@contextlib.asynccontextmanager
async def cut(herd: LocalHerd, links: Cut, *, one_way: bool = False) -> AsyncIterator[None]:
    """Links of those that run are cut until the end of the block."""
    for name, others in links.items():
        try:
            await admin(herd, name).block_links(*([], others) if one_way else (others, []))
        except AdminError:
            down = [member["name"] for member in herd.members() if member["sidecar"] != "up"]
            if name not in down:
                raise
    try:
        yield
    finally:
        await asyncio.to_thread(herd.must, "heal")


def admin(herd: LocalHerd, name: str) -> AdminClient:
    """The admin API of a member's sidecar."""
    return AdminClient(home(herd) / name / "run" / "admin.sock")
