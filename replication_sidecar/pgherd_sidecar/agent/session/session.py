"""A session of the replica: what the ordered log means for the server beside it, while it lasts.

``opening`` connects to the server, ``parts`` puts together what takes requests and what writes, and
``delivery`` feeds both with what the log has committed. Here these run, until the first error,
mostly because the server went away; ``sessions`` begins another one then.

Nothing of a session survives it but what is in the server, in the log, and in the checkpoint.
"""

import asyncio
from typing import Any

import psycopg
import structlog

from pgherd_sidecar.agent.base.config import NodeConfig
from pgherd_sidecar.agent.checkpoint import sequences
from pgherd_sidecar.agent.checkpoint.verdicts import Verdicts
from pgherd_sidecar.agent.commit.announcement import Announcement
from pgherd_sidecar.agent.log.host import LogHost
from pgherd_sidecar.agent.server.fence import Fence
from pgherd_sidecar.agent.session import parts
from pgherd_sidecar.agent.session.delivery import Delivery
from pgherd_sidecar.agent.session.freshness import AgeWatch
from pgherd_sidecar.agent.session.opening import Opening
from pgherd_sidecar.agent.snapshots.markers import Markers
from pgherd_sidecar.agent.snapshots.orders import MarkerOrders
from pgherd_sidecar.agent.snapshots.scrub.scrub import Scrub
from pgherd_sidecar.agent.standing.vigil import Vigil
from pgherd_sidecar.core.replication.entries import Incarnation

log = structlog.get_logger()


class ReplicaSession:
    """One session with the server, from its connections to the first error.

    Attributes:
        state: the replicated state, as far as it was delivered.
        path: the commit path.
        backend: whether this node takes writes.
        marker_orders: markers that are ordered here.
        caught_up: set when the session has caught up and takes writes.
        keeper: does this member's part of maintenance.
    """

    def __init__(
        self,
        config: NodeConfig,
        host: LogHost,
        opening: Opening,
        markers: Markers,
        verdicts: Verdicts,
    ) -> None:
        self._host = host
        self._opening = opening
        self._loop = asyncio.get_running_loop()
        self.caught_up = asyncio.Event()
        self.state = opening.state
        self.path = path = parts.make_path(config, opening)
        self._callers = callers = parts.make_callers(config, host, opening, path)
        self._writing = writing = parts.make_writing(config, host, opening, path, callers)
        self.backend = backend = callers.backend
        self.marker_orders = MarkerOrders(config.name, host.submit, writing.applier, markers)

        mine = Incarnation(config.number, opening.incarnation)
        self._announcement = Announcement(mine, host.submit, self.state)
        self._fence = Fence(opening.admin, backend.out_of_service, backend.held)
        self._age = AgeWatch(host, path, backend)
        silent_s = config.timing.rebuild_silent_ms / 1000
        self._vigil = Vigil(config.number, silent_s, host.submit, self._loop.time)
        self._scrub = Scrub(
            config,
            host,
            applier=writing.applier,
            path=path,
            state=self.state,
            ready=lambda: backend.ready,
        )
        self._house = parts.make_house(config, host, opening, path, writing, verdicts)
        self.keeper = parts.make_keeper(config, host, opening, path, callers, writing, self._age)
        self._delivery = Delivery(
            host,
            opening,
            path=path,
            callers=callers,
            writing=writing,
            announcement=self._announcement,
            marker_orders=self.marker_orders,
            scrub=self._scrub,
            verdicts=verdicts,
        )

    async def run(self) -> None:
        """Run until something fails.

        Raises:
            RebuildNeededError: this node must not go on.
            EntryFailedError: an entry could not be applied now.
            psycopg.Error, ServerGoneError: the server is gone.
        """
        callers, writing = self._callers, self._writing
        await writing.applier.take_tokens()
        await writing.leaks.look_back()
        await callers.hook.start()
        self._host.listen(self._delivery)
        self._host.polls.answer_by(callers.answer_poll)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._delivery.run())
                group.create_task(self._age.run())
                group.create_task(writing.applier.run())
                group.create_task(writing.settler.run())
                group.create_task(writing.watcher.run())
                group.create_task(callers.precedence.run())
                await self._begin()
                group.create_task(self._fence.run())
                group.create_task(self._vigil.affirm_whole(self.state.databases))
                group.create_task(self._house.run())
                group.create_task(self._scrub.run())
                group.create_task(callers.long.run())
                group.create_task(self.keeper.run())
        finally:
            self.backend.ready = False
            self._host.ignore(self._delivery)
            self._host.polls.answer_by(None)
            callers.voting.close()
            callers.showing.close()
            self._delivery.stop()
            self.marker_orders.fail()
            callers.barriers.close()
            await self._scrub.close()
            await callers.hook.stop()
            await writing.large.close()
            writing.ddl.close()

    async def _begin(self) -> None:
        """Catch up, and open this incarnation for writes."""
        self._loop.call_soon(self._delivery.deliver)
        began_at = await self._announcement.begun()
        await self._callers.visibility.visible(min(began_at, self.path.chain.tail_gid))
        await sequences.move_after_crash(self.connection)
        if not self._host.reads_only:
            await self._fence.let_writes_pass()
        self.backend.ready = True
        self.caught_up.set()
        gid, incarnation = self.path.chain.settled_gid, self._opening.incarnation
        if self._host.reads_only:
            log.info("node.reads", gid=gid, incarnation=incarnation)
        else:
            log.info("node.primary", gid=gid, incarnation=incarnation)

    # ---- what others see of it ---------------------------------------------------------------

    @property
    def visible(self) -> int:
        """See changes.ChangeReader."""
        return self.path.visible_gid

    @property
    def connection(self) -> psycopg.AsyncConnection[Any]:
        """See changes.ChangeReader."""
        return self._opening.admin

    @property
    def ready(self) -> bool:
        """It has caught up and takes writes."""
        return self.backend.ready

    def status(self) -> dict[str, Any]:
        """Counters of this session."""
        path, writing, server = self.path, self._writing, self._opening.server
        return {
            "gid": path.chain.settled_gid,
            "capture": "sql" if server.sql_reason else "native",
            "capture_reason": server.sql_reason,
            "delivered": self.state.position,
            "pending": len(path.outbox.pending),
            "large_transactions": len(path.outbox.pieces.open),
            "apply_queue_bytes": path.batches.queued_bytes,
            "lag_bytes": path.batches.queued_bytes,
            "lag_entries": self._host.commit_position - self.state.position,
            "age_s": self._age.age_s(),
            "batches": writing.applier.applied_batches,
            "applied_writesets": writing.applier.applied_writesets,
            "repairs": writing.settler.repairs,
            "victims": writing.watcher.victims,
            "index_keys": self.state.index_size,
            **self._house.status(),
            **self._scrub.status(),
            **self._callers.long.status(),
            **self.keeper.status(),
            **self._callers.hook.status(),
            **{f"decisions_{kind.value}": count for kind, count in self._delivery.counts.items()},
        }
