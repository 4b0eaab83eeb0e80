"""Opens what a session with the server begins with: connections, a known state, a new incarnation.

All that was opened is closed again when the session ends.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import psycopg

from pgherd_sidecar.agent.apply.applier import connect_pipeline
from pgherd_sidecar.agent.base.config import NodeConfig
from pgherd_sidecar.agent.base.errors import LeftBehindError, SkippedError
from pgherd_sidecar.agent.checkpoint import certstate
from pgherd_sidecar.agent.checkpoint.verdicts import Verdicts
from pgherd_sidecar.agent.log.host import LogHost
from pgherd_sidecar.agent.membership.identity import IdentityError, StoredIdentity
from pgherd_sidecar.agent.membership.notes import SPLIT_AT, Note
from pgherd_sidecar.agent.recovery import progress
from pgherd_sidecar.agent.server import deadman, startup
from pgherd_sidecar.agent.standing.standing import Standing
from pgherd_sidecar.core.replication.state import ReplicatedState
from pgherd_sidecar.pg.pipeline import Pipeline

_Connection = psycopg.AsyncConnection[Any]


@dataclass(frozen=True, slots=True)
class Opening:
    """The things that a session begins with.

    Attributes:
        incarnation: of the server, new.
        server: what it says about itself.
        state: the replicated state; where it stands, delivery goes on.
        admin, watch, house: connections for administration, for locks, and for housekeeping.
        apply, repair: connections that may write rows.
        skips: GIDs that an administrator has had skipped.
        passed: those of them whose links are without effect in this database.
        singly_to: up to this GID each writeset is applied by itself.
    """

    incarnation: int
    server: startup.Server
    state: ReplicatedState
    admin: _Connection
    watch: _Connection
    house: _Connection
    apply: Pipeline
    repair: Pipeline
    skips: frozenset[int] = frozenset()
    passed: frozenset[int] = frozenset()
    singly_to: int = 0


@contextlib.asynccontextmanager
async def open_server(
    config: NodeConfig,
    host: LogHost,
    identity: StoredIdentity,
    verdicts: Verdicts,
    standing: Standing,
    *,
    singly_to: int = 0,
) -> AsyncIterator[Opening]:
    """Connect to the server, prepare it, and read where it stands.

    Raises:
        LeftBehindError: the database and the log don't meet.
        UnreadableError: whether they do is told by a checkpoint of another version.
        IdentityError: the database is further than the sidecar's directory.
        DivergedError, psycopg.Error, ServerGoneError: as for ``prepare_server``.
    """
    async with contextlib.AsyncExitStack() as stack:

        async def connection(name: str, *, idle: bool = False) -> _Connection:
            opened = await startup.connect(config, name, idle=idle)
            stack.push_async_callback(opened.close)
            return opened

        async def pipeline(name: str) -> Pipeline:
            opened = await connect_pipeline(startup.conninfo(config, name, startup.APPLY_ROLE))
            stack.callback(opened.close)
            return opened

        admin = await connection("pgherd")
        watch = await connection("pgherd watch")
        house = await connection("pgherd upkeep", idle=True)
        await startup.refuse_lost_identity(config, admin, identity.incarnation)
        incarnation = await asyncio.to_thread(identity.next_incarnation)
        server = await startup.prepare_server(config, admin, watch, incarnation)
        require_log(config, host, server.chain_end)
        await stack.enter_async_context(deadman.armed(config, admin))
        apply, repair = await pipeline("pgherd apply"), await pipeline("pgherd repair")
        state = certstate.state_in(
            config.data_dir,
            ReplicatedState(host.extent.first_numbers, config.limits.certification_keys),
            chain_end=server.chain_end,
            log_base=host.extent.base,
        )
        skips, passed = await _skips(admin, state, standing, server.chain_end)
        for gid in skips:
            verdicts.take_back(gid)
        yield Opening(
            incarnation,
            server,
            state,
            admin,
            watch,
            house,
            apply,
            repair,
            skips,
            passed,
            singly_to,
        )


async def _skips(
    connection: psycopg.AsyncConnection[Any],
    state: ReplicatedState,
    standing: Standing,
    chain_end: int,
) -> tuple[frozenset[int], frozenset[int]]:
    """Return what is to be skipped, looking ahead in the log, and what this database has skipped.

    Raises:
        SkippedError: it has applied what was skipped.
    """
    rows = await connection.execute("SELECT gid FROM pgherd.skipped")
    passed = frozenset([gid for (gid,) in await rows.fetchall()])
    standing.go_on_from(state)
    await standing.follow_log()
    assert standing.databases is not None
    for gid in standing.databases.skipped:
        if gid <= chain_end and gid not in passed:
            raise SkippedError(gid)
    return frozenset(standing.databases.skipped), passed


def require_log(config: NodeConfig, host: LogHost, chain_end: int) -> None:
    """Refuse a database that goes beyond this member's log, unless it is a partner's copy (C18).

    Nothing is applied before it is flushed here, so a part of the log is lost. Refuse a copy that
    goes beyond what was common when this member split off from its cluster meanwhile: the partner
    may be of the other one, and the same positions are others there.

    Raises:
        IdentityError: it goes beyond the log.
        LeftBehindError: the copy goes beyond what was common.
    """
    phase = progress.load_progress(config.data_dir).phase
    if chain_end > host.extent.last and phase is progress.Phase.IDLE:
        raise IdentityError(
            f"the database ends at GID {chain_end}, the log of member {config.name} at "
            f"{host.extent.last}: a part of the log is lost"
        )
    common = Note(config.data_dir, SPLIT_AT)
    if not common.text:
        return
    if phase is progress.Phase.IDLE:
        common.clear()  # the database is no copy, or has caught up since
        return
    checkpoint = certstate.read(config.data_dir)
    covered = max(chain_end, checkpoint.newest if checkpoint is not None else 0)
    if covered > int(common.text):
        raise LeftBehindError(
            f"the copy of a partner goes up to GID {covered}, and this member has split off from "
            f"its cluster at {common.text}"
        )
    common.clear()  # what it goes on to from here is of its own cluster
