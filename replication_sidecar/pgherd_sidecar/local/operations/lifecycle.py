"""What ``pgherd local`` does to a herd on this machine: up, start, restart, kill, down,
destroy.

Runs as the account that owns the herd (``delegate.py`` sees to it). Whoever changes a herd holds
its lock; waiting for a node to take writes is done without it where another command may be
needed to get there.
"""

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pgherd_sidecar.client.errors import HerdError, progress
from pgherd_sidecar.lazily import lazily
from pgherd_sidecar.local import binaries, herd
from pgherd_sidecar.local.directory import (
    create_directory,
    remove_content,
    remove_if_empty,
    require_empty,
    require_empty_or_claimed,
    require_space,
)
from pgherd_sidecar.local.herd import Herd, TakenServer
from pgherd_sidecar.local.lock import locked
from pgherd_sidecar.local.node import Node, NodeState

with lazily():
    from pgherd_sidecar.local import certificates

DEFAULT_NODES = 3
DEFAULT_PORT_BASE = 7500
_POLL_S = 0.05
_RESTART_S = 30.0
"""So late a member may do again what it is there for, after its sidecar was started anew."""


_TUNABLE = (
    "evict_s",
    "split_s",
    "scrub_s",
    "scrub_share",
    "fingerprint_every",
    "capture",
    "on_divergence",
)


@dataclass(frozen=True, slots=True)
class UpOptions:
    """What the user asked for; None means: the default, or what the existing herd has.

    ``fill`` puts data into the servers of a herd that is made, before its sidecars first run.
    ``taken`` is the server whose rows a herd that is made will take over.
    """

    nodes: int | None
    port_base: int | None
    postgres_bin: Path | None
    timeout_s: float
    witnesses: int | None = None
    evict_s: float | None = None
    split_s: float | None = None
    scrub_s: float | None = None
    scrub_share: float | None = None
    fingerprint_every: int | None = None
    capture: Literal["auto", "sql"] | None = None
    on_divergence: Literal["rebuild", "pause"] | None = None
    fill: Callable[[Herd], Awaitable[None]] | None = None
    taken: TakenServer | None = None


def nodes_of(description: Herd) -> list[Node]:
    """Return the nodes of a herd, in the order of their numbers."""
    return [Node(description, member) for member in description.members]


async def up(directory: Path, options: UpOptions) -> list[NodeState]:
    """Create the herd or resume it; return when every node takes writes.

    When it fails, what it started is stopped again, what ran goes on, and a herd that it created
    is removed.

    Raises:
        HerdError: anything the user has to act on.
    """
    created = create_directory(directory)
    if not herd.is_herd(directory):
        require_empty_or_claimed(directory)  # before a lock file is put into another's directory
    try:
        async with locked(directory):
            if herd.is_herd(directory):
                return await _resume(directory, options)
            return await _create(directory, options)
    finally:
        remove_if_empty(created)


async def _create(directory: Path, options: UpOptions) -> list[NodeState]:
    require_empty(directory)
    try:
        description = herd.new_herd(
            directory,
            nodes=DEFAULT_NODES if options.nodes is None else options.nodes,
            port_base=DEFAULT_PORT_BASE if options.port_base is None else options.port_base,
            postgres_bin=binaries.find(options.postgres_bin),
            witnesses=options.witnesses or 0,
        )
        description = _tuned(description, options).model_copy(update={"taken": options.taken})
        _require_accepted(description)
        require_space(description, len(description.databases))
        nodes = nodes_of(description)
        for node in nodes:
            node.require_free_ports(choosable=True)
        if options.fill is not None:
            await options.fill(description)  # no herd yet: nobody resumes one that is half filled
        herd.save(description)
        certificates.provide(description)
        first, *others = [node.server for node in nodes if not node.member.witness]
        await first.initialise()
        for server in others:
            await server.initialise(like=first)
        states = await _start_all(nodes, options.timeout_s)
        _founded(description)
        return states
    except BaseException:  # a Ctrl-C, too, leaves nothing behind
        await _remove(directory)
        raise


async def _resume(directory: Path, options: UpOptions) -> list[NodeState]:
    description = _adapted(herd.load(directory), options)
    nodes = nodes_of(description)
    for node in nodes:
        node.require_free_ports()
    were_running = [
        (node, node.server.process() is not None, node.sidecar.process() is not None)
        for node in nodes
    ]
    certificates.provide(description)
    try:
        states = await _start_all(nodes, options.timeout_s)
        _founded(description)
        return states
    except BaseException:
        for node, server, sidecar in were_running:
            await node.stop(server=not server, sidecar=not sidecar)
        raise


def _founded(description: Herd) -> None:
    """Note that all first members have taken writes: from now on an empty disk is a new member."""
    if not description.founded:
        herd.save(description.model_copy(update={"founded": True}))


def _tuned(description: Herd, options: UpOptions) -> Herd:
    """With what is asked for of that which may be changed at any time."""
    asked = {name: getattr(options, name) for name in _TUNABLE}
    return description.model_copy(
        update={name: one for name, one in asked.items() if one is not None}
    )


def _adapted(description: Herd, options: UpOptions) -> Herd:
    """Check that the options fit the existing herd; some may be others from now on."""
    for option, asked, has in (
        ("--nodes", options.nodes, len(description.writers)),
        ("--witness", options.witnesses, len(description.voters) - len(description.writers)),
        ("--port-base", options.port_base, description.port_base),
    ):
        if asked not in (None, has):
            raise HerdError(
                f"{description.directory} holds another herd, with {option} {has}: "
                "leave the option out or choose another --dir"
            )
    adapted = _tuned(description, options)
    _require_accepted(adapted)
    programs = _programs(description, options.postgres_bin)
    adapted = adapted.model_copy(update={"postgres_bin": programs})
    sidecars = [node.sidecar for node in nodes_of(adapted)]
    if any(one.process() is not None and one.has_old_settings() for one in sidecars):
        _require_patience([description, adapted], "this command again")
    if adapted != description:
        herd.save(adapted)
    return adapted


def _require_accepted(description: Herd) -> None:
    """Check that every sidecar takes what the herd is described by, before that is saved.

    Raises:
        HerdError: one would not.
    """
    for node in nodes_of(description):
        node.sidecar.config()


def _require_patience(settings: list[Herd], again: str) -> None:
    """Check that nobody is given up for lost while a sidecar is started anew.

    Of three voters two are a majority all the time, so they do not split meanwhile.

    Args:
        settings: all that the herd has meanwhile.
        again: what brings the herd up after it was stopped.

    Raises:
        HerdError: somebody may be.
    """
    times = [("--evict-after", one.evict_s) for one in settings]
    if len(settings[-1].voters) == 2:
        times += [("--split-after", one.split_s) for one in settings]
    for option, after_s in times:
        if 0 < after_s < _RESTART_S:
            raise HerdError(
                f"{option} {after_s:g} is less than {_RESTART_S:g} s, so a member might be given "
                "up for lost while its sidecar is started anew: "
                f"run `pgherd local down`, then {again}"
            )


def _programs(description: Herd, asked: Path | None) -> Path:
    """The programs by which the herd goes on: those that are asked for, or its own.

    Raises:
        HerdError: they are not there, or of another major version than the data.
    """
    own, major = description.postgres_bin, _major_of_data(description)
    if major is None:
        return binaries.find(asked or own)
    again = f"install postgresql-{major} again"
    if asked in (None, own):
        remedy = f"{again}, or give the --postgres-bin of PostgreSQL {major}"
        return binaries.find(own, remedy=remedy)
    programs = binaries.find(asked)
    found = binaries.major_version(programs)
    if str(found) != major:
        remedy = "leave --postgres-bin out" if (own / "postgres").exists() else again
        raise HerdError(
            f"{programs} is PostgreSQL {found}, the herd's data are of {major}: {remedy}"
        )
    return programs


def _major_of_data(description: Herd) -> str | None:
    """The major version of the data which the herd's own programs serve; None: there are none."""
    for member in description.members:
        version_file = description.node(member).pgdata / "PG_VERSION"
        if member.origin.postgres_bin is None and version_file.exists():
            return version_file.read_text().strip()
    return None


async def _start_all(nodes: list[Node], timeout_s: float) -> list[NodeState]:
    """Start what does not run, and anew what runs with settings that the herd had before."""

    async def bring_up(node: Node) -> None:
        await node.start(timeout_s)
        await node.wait_up()

    try:
        async with asyncio.timeout(timeout_s):
            await _together(bring_up(node) for node in nodes)
            for node in nodes:  # one after the other, so that the others keep their majority
                if not node.sidecar.has_old_settings():
                    continue
                progress(f"{node.member.name}: its sidecar gets other settings")
                try:
                    await node.stop(server=False)
                    await bring_up(node)
                except BaseException:  # a Ctrl-C, too, leaves nobody stopped who ran before
                    await _run_again(node)
                    raise
    except TimeoutError as error:
        raise _too_slow([await node.state() for node in nodes], timeout_s) from error
    return [await node.state() for node in nodes]


async def _run_again(node: Node) -> None:
    """Have a sidecar run whose restart was broken off, wherever that was; say if it cannot."""
    name = node.member.name
    try:
        if node.sidecar.has_old_settings():  # it runs, may be about to end, or has ended
            await node.stop(server=False)
        if node.sidecar.process() is None:
            progress(f"{name}: starting its sidecar again")
            node.sidecar.start()
    except (HerdError, OSError) as error:
        remedy = f"`pgherd local start {name}` starts it"
        progress(f"{name}: its sidecar does not run ({error}): {remedy}")


def _too_slow(states: list[NodeState], timeout_s: float) -> HerdError:
    waiting = ", ".join(
        f"{state.member.name} is {state.state} ({state.reason or 'no reason given'})"
        for state in states
        if not state.is_up
    )
    return HerdError(f"not every node takes writes after {timeout_s:g} s: {waiting}")


async def start(directory: Path, name: str, timeout_s: float) -> NodeState:
    """Start what does not run of one node; return when it is up.

    While a majority of the sidecars does not run nobody can take writes: then it returns as soon
    as the sidecar answers.
    """
    description = herd.load(directory)
    node = Node(description, description.member(name))
    async with locked(directory):
        node.require_free_ports()
        certificates.provide(description)
        await node.start(timeout_s)
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                state = await node.state()
                waits = state.state in ("secondary", "recovering", "witness", "reader")
                if state.is_up or (waits and not _majority_runs(description)):
                    return state
                node.require_hope(state)
                await asyncio.sleep(_POLL_S)
    except TimeoutError as error:
        raise _too_slow([await node.state()], timeout_s) from error


def _majority_runs(description: Herd) -> bool:
    voters = [Node(description, member) for member in description.voters]
    return 2 * sum(node.sidecar.process() is not None for node in voters) > len(voters)


async def restart(directory: Path, name: str, timeout_s: float) -> NodeState:
    """Stop one node cleanly and start it; see ``start``.

    Raises:
        HerdError: it may be given up for lost meanwhile, or does not stop or start.
    """
    description = herd.load(directory)
    node = Node(description, description.member(name))
    _require_patience([description], "`pgherd local up`")
    async with locked(directory):
        await node.stop()
    return await start(directory, name, timeout_s)


async def kill(directory: Path, name: str, process: str) -> bool:
    """SIGKILL a node's ``postgres``, ``sidecar`` or both (``node``); False when none ran."""
    description = herd.load(directory)
    node = Node(description, description.member(name))
    async with locked(directory):
        return await node.kill(sidecar=process != "postgres", postgres=process != "sidecar")


async def down(directory: Path) -> None:
    """Stop every node cleanly."""
    description = herd.load(directory)
    async with locked(directory):
        await _together(node.stop() for node in nodes_of(description))


async def destroy(directory: Path) -> None:
    """Stop every node and remove the herd's directory."""
    herd.load(directory)  # only a herd's directory is ever removed
    async with locked(directory):
        await _remove(directory)
    remove_if_empty([directory])


async def _remove(directory: Path) -> None:
    if herd.is_herd(directory):
        description = herd.load(directory)
        await _together(node.discard() for node in nodes_of(description))
        if description.sockets != directory:
            shutil.rmtree(description.sockets, ignore_errors=True)
    remove_content(directory)


async def _together(actions: Iterable[Awaitable[object]]) -> None:
    """Run all at once; the first failure cancels the rest and is raised as it is."""
    tasks = [asyncio.ensure_future(action) for action in actions]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
