"""One node = a PostgreSQL server and its sidecar, handled together. A witness has no server."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pgherd_sidecar.client.admin import AdminError
from pgherd_sidecar.client.answers import Status
from pgherd_sidecar.client.errors import HerdError, progress
from pgherd_sidecar.local.herd import Herd, HerdNode
from pgherd_sidecar.local.ports import require_free
from pgherd_sidecar.local.postgres import PostgresServer
from pgherd_sidecar.local.sidecar import Sidecar

_POLL_S = 0.05
_STOP_S = 20.0
_PASSED_ON = (
    "component", "flushed_position", "term", "proposer", "incarnation",
    "rebuild_phase", "rebuild_partner", "rebuild_bytes_done", "rebuild_bytes_total",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node as ``status`` shows it. ``state`` is ``stopped`` when its sidecar does not run.

    Attributes:
        answer: all that the sidecar has said, None if it did not answer.
    """

    member: HerdNode
    state: str
    reason: str | None
    gid: int | None
    log_position: int | None
    postgres: bool
    sidecar: bool
    details: dict[str, Any]
    answer: Status | None = None

    @property
    def takes_writes(self) -> bool:
        """It is part of the primary component and caught up."""
        return self.state == "primary"

    @property
    def is_up(self) -> bool:
        """It does what it is there for: takes writes or, a witness, votes; a reader follows."""
        if self.member.reader:
            return self.state == "reader"
        if not self.member.witness:
            return self.takes_writes
        answer = self.answer
        if answer is None or answer.view is None or answer.component != "primary":
            return False
        known = answer.view.member(self.member.name)
        return self.state == "witness" and known is not None and known.voter


class Node:
    """The processes of one member on this machine."""

    def __init__(self, herd: Herd, member: HerdNode) -> None:
        self.member = member
        self._founded = herd.founded
        self.server = PostgresServer(herd, member)
        self.sidecar = Sidecar(herd, member)

    def require_free_ports(self, *, choosable: bool = False) -> None:
        """Check the ports of those of its processes that do not run.

        Args:
            choosable: the user can choose others: the herd is being made.

        Raises:
            HerdError: one is taken.
        """
        if not self.member.witness and self.server.process() is None:
            require_free([self.member.port], choosable=choosable)
        if self.sidecar.process() is None:
            ports = [self.member.peer_port, self.member.health_port]
            require_free(ports, choosable=choosable)

    async def start(self, timeout_s: float, copy_rate_bytes_s: int | None = None) -> None:
        """Start what does not run; the node takes writes later (see ``wait_primary``).

        A server whose data are gone is not made anew, because an empty one would be wrong: the
        sidecar replaces it by a copy of another node's, and so does that of a node which joins.
        While it does so it runs the server by itself: one that is started on the old data would be
        taken for the one on the copy.
        """
        if self.member.witness:
            self._start_sidecar()
            return
        gone = not self.server.exists() and (self._founded or self.sidecar.has_identity())
        if gone or self.sidecar.rebuilds():
            what = "will be" if gone else "is being"
            progress(f"{self.member.name}: its database {what} copied from another")
            self.server.write_overlay()
            self._start_sidecar(copy_rate_bytes_s)
            return
        if self.server.process() is None:
            progress(f"{self.member.name}: starting PostgreSQL on port {self.member.port}")
            await self.server.initialise()
            await self.server.start(timeout_s)
        await self.server.provide_database()
        self._start_sidecar()

    def _start_sidecar(self, copy_rate_bytes_s: int | None = None) -> None:
        if self.sidecar.process() is None:
            progress(f"{self.member.name}: starting its sidecar")
            self.sidecar.start(copy_rate_bytes_s)

    async def wait_up(self) -> None:
        """Wait until the node does what it is there for.

        Raises:
            HerdError: one of its processes ended, or the node cannot get there by waiting.
        """
        while True:
            state = await self.state()
            if state.is_up:
                progress(f"{self.member.name}: {self.member.purpose}")
                return
            self.require_hope(state)
            await asyncio.sleep(_POLL_S)

    def require_hope(self, state: NodeState) -> None:
        """Check that waiting may help.

        Raises:
            HerdError: a process ended, or the node can't go on from its database.
        """
        name = self.member.name
        if not state.sidecar:
            raise HerdError(f"sidecar of {name} does not come up: {self.sidecar.last_words()}")
        rebuilding = state.state == "rebuilding" or self.sidecar.rebuilds()
        if not state.postgres and not rebuilding and self.server.exists():
            raise HerdError(f"PostgreSQL of {name} ended: {self.server.last_words()}")
        if state.state == "departed":
            raise HerdError(
                f"{name} has left the herd: `pgherd local remove {name}` removes its files, "
                "and `pgherd local add` makes a new node"
            )
        if state.state in ("diverged", "stranded"):
            raise HerdError(
                f"{name} is {state.state}: {state.reason}; "
                f"see `pgherd local rebuild {name}` for a way back"
            )

    async def state(self) -> NodeState:
        """Look at both processes and ask the sidecar."""
        sidecar = self.sidecar.process() is not None
        postgres = self.server.process() is not None
        state, reason = "stopped", "its sidecar does not run"
        if sidecar:
            try:
                status = await self.sidecar.admin.status()
            except AdminError as error:
                state, reason = "starting", str(error)
            else:
                said = status.model_dump(mode="json")
                return NodeState(
                    self.member, status.state, status.reason, status.gid, status.log_position,
                    postgres, sidecar, {name: said.get(name) for name in _PASSED_ON}, status,
                )  # fmt: skip
        empty = dict.fromkeys(_PASSED_ON)
        return NodeState(self.member, state, reason, None, None, postgres, sidecar, empty)

    async def stop(self, *, sidecar: bool = True, server: bool = True) -> None:
        """Stop cleanly, the sidecar first: it still needs the server to finish."""
        if sidecar:
            await self.sidecar.stop(_STOP_S)
        if server:
            await self.server.stop(_STOP_S)

    async def kill(self, *, sidecar: bool, postgres: bool) -> bool:
        """SIGKILL one or both; False when nothing of it was running."""
        killed = [await self.sidecar.kill()] if sidecar else []
        if postgres:
            killed.append(await self.server.kill())
        return any(killed)

    async def discard(self) -> None:
        """End both at once, for good: the data are about to be removed."""
        await self.sidecar.kill()
        await self.server.stop(_STOP_S, mode="immediate")
        await self.server.kill()


def require_all_up(missing: Iterable[NodeState]) -> None:
    """Check that no node is missing which should take part in something.

    Args:
        missing: nodes with a database that don't do what they are there for.

    Raises:
        HerdError: there are some; says how to go on without them.
    """
    missing = list(missing)
    if not missing:
        return
    which = ", ".join(f"{one.member.name} is {one.state}" for one in missing)
    gone = [one.member.name for one in missing if one.state == "departed"]
    remedy = f"remove {gone[0]} by `pgherd local remove {gone[0]}`" if gone else "start it"
    raise HerdError(
        f"not every node is up ({which}): {remedy}, or leave it out with --allow-missing"
    )


async def states_of(nodes: Iterable[Node]) -> list[NodeState]:
    """Ask all nodes at once how they are; in the order of `nodes`."""
    return await asyncio.gather(*(node.state() for node in nodes))
