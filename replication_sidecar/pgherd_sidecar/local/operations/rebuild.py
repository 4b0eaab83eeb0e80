"""``pgherd local rebuild``: has a sidecar replace its node's database, and watches until it has.

The sidecar does the work and goes on with it if this command is interrupted; it also refuses what
must not be done: without another member that takes writes there is nothing to copy.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from pgherd_sidecar.client.admin import AdminError
from pgherd_sidecar.client.errors import HerdError, progress
from pgherd_sidecar.local import herd
from pgherd_sidecar.local.herd import HerdNode
from pgherd_sidecar.local.lock import locked
from pgherd_sidecar.local.node import Node, NodeState

_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class RebuildOptions:
    """What the user asked for; None: the sidecar chooses, as configured."""

    partner: str | None
    rate_bytes_s: int | None
    timeout_s: float


async def rebuild(directory: Path, name: str, options: RebuildOptions) -> HerdNode:
    """Rebuild a node; return it when it does again what it is there for.

    Raises:
        HerdError: it is refused, fails, or takes too long.
    """
    description = herd.load(directory)
    node = Node(description, description.member(name))
    if options.partner is not None:
        description.member(options.partner)
    if options.partner == name:
        raise HerdError(f"{name} can't be copied from itself: choose another --from")
    async with locked(directory):
        if node.sidecar.process() is None:
            node.server.write_overlay()
            node.sidecar.start()
    async with goes_on(node, options.timeout_s):
        await _ask(node, options)
        await watch_copy(node)
    return node.member


async def _ask(node: Node, options: RebuildOptions) -> None:
    """Wait until the sidecar answers, and hand the request over."""
    while (await node.state()).details["term"] is None:
        if node.sidecar.process() is None:
            raise HerdError(
                f"sidecar of {node.member.name} does not come up: {node.sidecar.last_words()}"
            )
        await asyncio.sleep(_POLL_S)
    try:
        await node.sidecar.admin.rebuild(options.partner, options.rate_bytes_s)
    except AdminError as error:
        raise HerdError(f"{node.member.name} can't be rebuilt: {error}") from error


@asynccontextmanager
async def goes_on(node: Node, timeout_s: float) -> AsyncIterator[None]:
    """Limit how long the user waits for a node that goes on without him.

    Raises:
        HerdError: the time is over.
    """
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError as error:
        state = await node.state()
        raise HerdError(
            f"{node.member.name} is not up after {timeout_s:g} s, and goes on trying: "
            f"it is {state.state} ({state.reason or 'no reason given'})"
        ) from error


async def watch_copy(node: Node) -> None:
    """Tell how far a copy is until the node does what it is there for.

    Raises:
        HerdError: it can't get there by waiting.
    """
    said = ""
    while True:
        state = await node.state()
        if state.is_up:
            return
        if state.state != "rebuilding":
            node.require_hope(state)
        now = f"{node.member.name}: {_describe(state)}"
        if now != said:
            progress(now)
            said = now
        await asyncio.sleep(_POLL_S)


def _describe(state: NodeState) -> str:
    details = state.details
    phase = details["rebuild_phase"]
    if phase in ("copying", "loading") and details["rebuild_bytes_total"]:
        total = details["rebuild_bytes_total"] / 1e6
        done = details["rebuild_bytes_done"] / 1e6
        return f"{phase} {details['rebuild_partner']}, {done:.0f} of {total:.0f} MB"
    return details["rebuild_phase"] or state.state
