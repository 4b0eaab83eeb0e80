"""``pgherd local add`` and ``remove``: a herd on this machine grows and shrinks while it runs.

``add`` makes a directory and starts a sidecar in it. The sidecar finds that it has neither log nor
database: it copies a partner, asks to join, and takes writes when it has caught up. It goes on if
the command is interrupted, and the command given once more watches it, or starts it again.

``remove`` goes the other way: the member leaves the view first, then its processes end, then
``herd.json`` forgets it, then its directory goes. Interrupted anywhere, it is done to its end by
the same command.
"""

import asyncio
import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pgherd_sidecar.client import cluster
from pgherd_sidecar.client.errors import HerdError, progress
from pgherd_sidecar.lazily import lazily
from pgherd_sidecar.local import binaries, herd
from pgherd_sidecar.local.directory import require_space
from pgherd_sidecar.local.herd import COPIED, Herd, HerdNode, HerdNodeOrigin, NodeKind
from pgherd_sidecar.local.lock import locked
from pgherd_sidecar.local.node import Node, states_of
from pgherd_sidecar.local.operations.rebuild import goes_on, watch_copy

with lazily():
    from pgherd_sidecar.local import certificates


@dataclass(frozen=True, slots=True)
class AddOptions:
    """What the user asked for.

    Attributes:
        name: of the node; by default the next one that is free.
        kind: what it is for.
        rate_bytes_s: how fast it copies another one at most.
        timeout_s: how long to wait; it goes on joining afterwards.
        origin: what its database is made by and from; one that goes on joining keeps its own.
    """

    name: str | None
    kind: NodeKind
    rate_bytes_s: int | None
    timeout_s: float
    origin: HerdNodeOrigin = COPIED


@dataclass(frozen=True, slots=True)
class RemoveOptions:
    """What the user asked for. ``dead``: the node does not run and will not come back."""

    dead: bool
    timeout_s: float


async def add(directory: Path, options: AddOptions) -> HerdNode:
    """Add a node, or go on with adding it; return it when it does what it is there for.

    Raises:
        HerdError: it can't be added, or takes too long.
    """
    async with locked(directory):
        node = await _described(herd.load(directory), options)
        await node.start(options.timeout_s, options.rate_bytes_s)
    async with goes_on(node, options.timeout_s):
        await watch_copy(node)
    return node.member


async def promote(directory: Path, name: str, timeout_s: float) -> HerdNode:
    """Have a reader vote and take writes; return it when it does. Its server goes on meanwhile.

    Given once more it goes on with what it has begun.

    Raises:
        HerdError: it can't, or takes too long.
    """
    async with locked(directory):
        description = herd.load(directory)
        member = description.member(name)
        if member.reader or (await Node(description, member).state()).is_up:
            description, member = description.promoted(member)
            cluster.required(await voices(description))
            herd.save(description)
        node = Node(description, member)
        progress(f"{name}: is to vote")
        await node.stop(server=False)
        await node.start(timeout_s)
    async with goes_on(node, timeout_s):
        await watch_copy(node)
    return member


def whole_snapshot(location: Path | str, endpoint: str | None) -> str:
    """Return where the newest whole snapshot at a location is.

    Args:
        location: of one, or of the directory or prefix that holds several.
        endpoint: URL of its S3 server, if it is named.

    Raises:
        HerdError: there is none.
        OSError: nothing can be read there.
    """
    from pgherd_spark.restoring import seeding  # noqa: PLC0415 - not for those who never do
    from pgherd_spark.storing import stores  # noqa: PLC0415 - not for those who never do

    try:
        return str(seeding.newest(stores.at(str(location), endpoint)))
    except seeding.SeedError as error:
        raise HerdError(str(error)) from error


async def _described(description: Herd, options: AddOptions) -> Node:
    """The node, with an entry in ``herd.json``, a directory of its own, and certificates."""
    name = options.name
    if name in {member.name for member in description.members}:
        node = Node(description, description.member(name or ""))
        kinds = options.kind == "witness", options.kind == "reader"
        if (await node.state()).is_up or kinds != (node.member.witness, node.member.reader):
            raise HerdError(f"{name} is a node of this herd already: choose another name")
        progress(f"{name}: goes on joining")
        node.require_free_ports()
        certificates.provide(description)
        return node
    if not description.founded:
        raise HerdError("the herd is not whole yet: let `pgherd local up` end first")
    _require_possible(description, options)
    cluster.required(await voices(description))
    description, member = description.grown(options.name, kind=options.kind, origin=options.origin)
    node = Node(description, member)
    node.require_free_ports()
    require_space(description, nodes=1)
    remove_files(description, member.name)  # of a former node of this name
    herd.save(description)
    progress(f"{member.name}: joins with number {member.number}")
    certificates.provide(description)
    return node


def _require_possible(description: Herd, options: AddOptions) -> None:
    origin = options.origin
    if options.kind == "witness" and origin != COPIED:
        raise HerdError("a witness has no database: leave out what says how to make it")
    by_rows = origin.method == "dump" or origin.snapshot is not None
    if by_rows and options.rate_bytes_s is not None:
        raise HerdError("only a base backup can be slowed down: leave --max-rate out")
    programs = binaries.find(origin.postgres_bin or description.postgres_bin)
    major, others = map(binaries.major_version, (programs, description.postgres_bin))
    if major != others and origin.method != "dump":
        raise HerdError(
            f"PostgreSQL {major} can't run on a base backup of PostgreSQL {others}: "
            "add --method dump"
        )


async def remove(directory: Path, name: str, options: RemoveOptions) -> None:
    """Take a node out of the view, end it, and remove its files.

    Raises:
        HerdError: it is refused, or takes too long.
    """
    async with locked(directory):
        description = herd.load(directory)
        if _is_leftover(description, name):
            remove_files(description, name)
            return
        member = description.member(name)
        if description.writers == (member,):
            raise HerdError(f"{name} is the last database: destroy the herd instead")
        node = Node(description, member)
        runs = node.sidecar.process() is not None
        if options.dead and runs:
            raise HerdError(f"the sidecar of {name} runs: leave --dead out, or kill it")
        if not options.dead and not runs and not await is_out(description, name):
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
        remove_files(description, name)


async def is_out(description: Herd, name: str) -> bool:
    """Say whether no member has this name: a removal was interrupted, or it has never joined."""
    others = [one for one in await voices(description) if one.status.name != name]
    view = cluster.required(others).status.view
    return view is not None and view.member(name) is None


def _is_leftover(description: Herd, name: str) -> bool:
    """Whether there is the directory of a node that ``herd.json`` has forgotten."""
    known = name in {member.name for member in description.members}
    return not known and herd.is_name(name) and description.node(name).config.is_file()


async def voices(description: Herd) -> list[cluster.Voice]:
    """All sidecars that answer."""
    nodes = [Node(description, member) for member in description.members]
    states = await states_of(nodes)
    return [
        cluster.Voice(node.sidecar.admin, state.answer)
        for node, state in zip(nodes, states, strict=True)
        if state.answer is not None
    ]


def remove_files(description: Herd, name: str) -> None:
    """Remove what a node has in the herd's directory; of one that has nothing, nothing."""
    paths = description.node(name)
    for path in (paths.run.parent, paths.pgdata, paths.root):  # last what `_is_leftover` looks at
        shutil.rmtree(path, ignore_errors=True)
