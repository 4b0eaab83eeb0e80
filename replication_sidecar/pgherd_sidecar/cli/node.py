"""One node = a PostgreSQL server and its sidecar, handled together."""

import asyncio
from dataclasses import dataclass
from typing import Any

from pgherd_sidecar.cli.admin import AdminError
from pgherd_sidecar.cli.errors import HerdError, progress
from pgherd_sidecar.cli.herd import Herd, Member
from pgherd_sidecar.cli.ports import require_free
from pgherd_sidecar.cli.postgres import PostgresServer
from pgherd_sidecar.cli.sidecar import Sidecar

_POLL_S = 0.05
_STOP_S = 20.0
_PASSED_ON = (
    "flushed_position", "term", "proposer", "incarnation",
    "rebuild_phase", "rebuild_partner", "rebuild_bytes_done", "rebuild_bytes_total",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node as ``status`` shows it. ``state`` is ``stopped`` when its sidecar does not run."""

    member: Member
    state: str
    reason: str | None
    gid: int | None
    log_position: int | None
    postgres: bool
    sidecar: bool
    details: dict[str, Any]

    @property
    def takes_writes(self) -> bool:
        """The node is up: part of the primary component and caught up."""
        return self.state == "primary"


class Node:
    """The processes of one member on this machine."""

    def __init__(self, herd: Herd, member: Member) -> None:
        self.member = member
        self.server = PostgresServer(herd, member)
        self.sidecar = Sidecar(herd, member)

    def require_free_ports(self) -> None:
        """Check the ports of those of its processes that do not run.

        Raises:
            HerdError: one is taken.
        """
        if self.server.process() is None:
            require_free([self.member.port])
        if self.sidecar.process() is None:
            require_free([self.member.peer_port])

    async def start(self, timeout_s: float) -> None:
        """Start what does not run; the node takes writes later (see ``wait_primary``).

        A server whose data are gone is not made anew, because an empty one would be wrong: the
        sidecar replaces it by a copy of another node's. While it does so it runs the server by
        itself: one that is started on the old data would be taken for the one on the copy.
        """
        gone = self.sidecar.has_identity() and not self.server.exists()
        if gone or self.sidecar.rebuilds():
            why = "its database is gone and will be" if gone else "its database is being"
            progress(f"{self.member.name}: {why} copied from another")
            self.server.write_overlay()
            if self.sidecar.process() is None:
                self.sidecar.start()
            return
        if self.server.process() is None:
            progress(f"{self.member.name}: starting PostgreSQL on port {self.member.port}")
            await self.server.initialise()
            await self.server.start(timeout_s)
        await self.server.provide_database()
        if self.sidecar.process() is None:
            progress(f"{self.member.name}: starting its sidecar")
            self.sidecar.start()

    async def wait_primary(self) -> None:
        """Wait until the node takes writes.

        Raises:
            HerdError: one of its processes ended, or the node cannot get there by waiting.
        """
        while True:
            state = await self.state()
            if state.takes_writes:
                progress(f"{self.member.name}: takes writes")
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
                extra = status.model_extra or {}
                return NodeState(
                    self.member, status.state, status.reason, status.gid, status.log_position,
                    postgres, sidecar, {name: extra.get(name) for name in _PASSED_ON},
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
