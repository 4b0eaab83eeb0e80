"""``pgherd local add`` and ``remove``: a herd on this machine grows and shrinks while it runs.

``add`` makes a directory and starts a sidecar in it. The sidecar finds that it has neither log nor
database: it copies a partner, asks to join, and takes writes when it has caught up. It goes on if
the command is interrupted, and the command given once more watches it, or starts it again.

``remove`` goes the other way: the member leaves the view first, then its processes end, then its
directory goes. Interrupted anywhere, it is done to its end by the same command.
"""

import asyncio
import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pgherd_sidecar.cli import certificates, cluster, herd
from pgherd_sidecar.cli.directory import require_space
from pgherd_sidecar.cli.errors import HerdError, progress
from pgherd_sidecar.cli.herd import Herd, Member
from pgherd_sidecar.cli.lock import locked
from pgherd_sidecar.cli.node import Node, states_of
from pgherd_sidecar.cli.rebuild import goes_on, watch


@dataclass(frozen=True, slots=True)
class RemoveOptions:
    """What the user asked for. ``dead``: the node does not run and will not come back."""

    dead: bool
    timeout_s: float


async def add(directory: Path, name: str | None, rate_bytes_s: int | None, timeout_s: float) -> str:
    """Add a node, or go on with adding it; return its name when it takes writes.

    Args:
        directory: the herd's.
        name: of the node; by default the next one that is free.
        rate_bytes_s: how fast it copies another one at most.
        timeout_s: how long to wait; it goes on joining afterwards.

    Raises:
        HerdError: it can't be added, or takes too long.
    """
    async with locked(directory):
        node = await _described(herd.load(directory), name)
        await node.start(timeout_s, rate_bytes_s)
    async with goes_on(node, timeout_s):
        await watch(node)
    return node.member.name


async def _described(description: Herd, name: str | None) -> Node:
    """The node, with an entry in ``herd.json``, a directory of its own, and certificates."""
    if name in {member.name for member in description.members}:
        node = Node(description, description.member(name or ""))
        if (await node.state()).is_up:
            raise HerdError(f"{name} is a node of this herd already: choose another name")
        progress(f"{name}: goes on joining")
        node.require_free_ports()
        certificates.provide(description)
        return node
    if not description.founded:
        raise HerdError("the herd is not whole yet: let `pgherd local up` end first")
    cluster.required(await voices(description))
    description, member = description.grown(name)
    node = Node(description, member)
    node.require_free_ports()
    require_space(description, nodes=1)
    _remove_files(description, member)  # of a former node of this name
    herd.save(description)
    progress(f"{member.name}: joins with number {member.number}")
    certificates.provide(description)
    return node


async def remove(directory: Path, name: str, options: RemoveOptions) -> None:
    """Take a node out of the view, end it, and remove its files.

    Raises:
        HerdError: it is refused, or takes too long.
    """
    async with locked(directory):
        description = herd.load(directory)
        member = description.member(name)
        if description.databases == (member,):
            raise HerdError(f"{name} is the last database: destroy the herd instead")
        node = Node(description, member)
        runs = node.sidecar.process() is not None
        if options.dead and runs:
            raise HerdError(f"the sidecar of {name} runs: leave --dead out, or kill it")
        if not options.dead and not runs:
            raise HerdError(
                f"the sidecar of {name} does not run: start it, or use --dead if it is lost"
            )
        try:
            async with asyncio.timeout(options.timeout_s):
                await cluster.take_out(partial(voices, description), name, dead=options.dead)
        except TimeoutError as error:
            raise HerdError(f"{name} is in the view after {options.timeout_s:g} s") from error
        progress(f"{name}: has left")
        await node.discard()
        herd.save(description.without(member))
        _remove_files(description, member)


async def voices(description: Herd) -> list[cluster.Voice]:
    """All sidecars that answer."""
    nodes = [Node(description, member) for member in description.members]
    states = await states_of(nodes)
    return [
        cluster.Voice(node.sidecar.admin, state.answer)
        for node, state in zip(nodes, states, strict=True)
        if state.answer is not None
    ]


def _remove_files(description: Herd, member: Member) -> None:
    paths = description.node(member)
    for path in {paths.root, paths.run.parent}:
        shutil.rmtree(path, ignore_errors=True)
