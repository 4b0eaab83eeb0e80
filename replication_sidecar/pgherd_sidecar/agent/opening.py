"""Opens a session with the server: connections, a known state, a new incarnation.

Called by ``replica`` for each session; closes again what it opened when the session ends.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import psycopg

from pgherd_sidecar.agent import startup
from pgherd_sidecar.agent.applier import connect_pipeline
from pgherd_sidecar.agent.config import NodeConfig
from pgherd_sidecar.agent.errors import SkippedError
from pgherd_sidecar.agent.identity import Identity, IdentityError
from pgherd_sidecar.agent.loghost import LogHost
from pgherd_sidecar.agent.markers import Markers
from pgherd_sidecar.agent.recovery import certstate, progress
from pgherd_sidecar.agent.session import ReplicaSession
from pgherd_sidecar.agent.standing import Standing
from pgherd_sidecar.agent.verdicts import Verdicts
from pgherd_sidecar.core.state import ReplicatedState


@contextlib.asynccontextmanager
async def session(
    config: NodeConfig,
    host: LogHost,
    identity: Identity,
    markers: Markers,
    verdicts: Verdicts,
    standing: Standing,
    *,
    singly_to: int = 0,
) -> "AsyncIterator[tuple[ReplicaSession, psycopg.AsyncConnection[Any]]]":
    """Connect to the server, prepare it, and read where it stands.

    Raises:
        LeftBehindError: the database and the log don't meet.
        IdentityError: the database is further than the sidecar's directory.
        DivergedError, psycopg.Error, ServerGoneError: as for ``prepare_server``.
    """
    async with contextlib.AsyncExitStack() as stack:

        async def connection(name: str) -> psycopg.AsyncConnection[Any]:
            opened = await startup.connect(config, name)
            stack.push_async_callback(opened.close)
            return opened

        admin = await connection("pgherd")
        watch, house = await connection("pgherd watch"), await connection("pgherd upkeep")
        await startup.refuse_lost_identity(config, admin, identity.incarnation)
        incarnation = await asyncio.to_thread(identity.next_incarnation)
        server = await startup.prepare_server(config, admin, incarnation)
        _check_log(config, host, server.chain_end)
        appliers = []
        for name in ("pgherd apply", "pgherd repair"):
            pipeline = await connect_pipeline(startup.conninfo(config, name, startup.APPLY_ROLE))
            stack.callback(pipeline.close)
            appliers.append(pipeline)
        state = certstate.state_for(
            certstate.read(config.data_dir),
            ReplicatedState(host.extent.first_numbers, config.limits.certification_keys),
            chain_end=server.chain_end,
            log_base=host.extent.base,
        )
        skips, passed = await _skips(admin, state, standing, server.chain_end)
        for gid in skips:
            verdicts.take_back(gid)
        yield (
            ReplicaSession(
                config,
                host,
                incarnation=incarnation,
                server=server,
                state=state,
                admin=admin,
                watch=watch,
                appliers=(appliers[0], appliers[1]),
                markers=markers,
                verdicts=verdicts,
                skips=skips,
                passed=passed,
                singly_to=singly_to,
            ),
            house,
        )


async def _skips(
    connection: psycopg.AsyncConnection[Any],
    state: ReplicatedState,
    standing: Standing,
    chain_end: int,
) -> tuple[frozenset[int], set[int]]:
    """Return what is to be skipped, looking ahead in the log, and what this database has skipped.

    Raises:
        SkippedError: it has applied what was skipped.
    """
    rows = await connection.execute("SELECT gid FROM pgherd.skipped")
    passed = {gid for (gid,) in await rows.fetchall()}
    standing.go_on_from(state)
    await standing.follow()
    assert standing.databases is not None
    for gid in standing.databases.skipped:
        if gid <= chain_end and gid not in passed:
            raise SkippedError(gid)
    return frozenset(standing.databases.skipped), passed


def _check_log(config: NodeConfig, host: LogHost, chain_end: int) -> None:
    """Refuse a database that goes beyond this member's log, unless it is a partner's copy (C18).

    Nothing is applied before it is flushed here, so a part of the log is lost.

    Raises:
        IdentityError: it does.
    """
    copied = progress.load(config.data_dir).phase is not progress.Phase.IDLE
    if chain_end > host.extent.last and not copied:
        raise IdentityError(
            f"the database ends at GID {chain_end}, the log of member {config.name} at "
            f"{host.extent.last}: a part of the log is lost"
        )
