"""Leaks: transactions that committed here without having been certified (CORRECTNESS C1).

A user's own deferred trigger can close the cursor behind which certify() waits. The audit finds
what such a transaction captured; here its writeset is ordered after the fact. If it commits, the
rows are here already and only the link of the chain is missing: the leak is *adopted*. If it loses,
this node differs from the others and must stop. Called by ``session``; after a restart the audit
finds again what was not adopted, and a writeset that was ordered meanwhile is known by its xid.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import psycopg

from pgherd_sidecar.agent.applier import Work
from pgherd_sidecar.agent.errors import DivergedError
from pgherd_sidecar.agent.hook import HookServer
from pgherd_sidecar.core.entries import FLAG_DDL, Writeset
from pgherd_sidecar.core.merge import decode_body
from pgherd_sidecar.core.state import DecisionKind
from pgherd_sidecar.pg.ddl import DdlNotSupported, resolve_commands


class Leaks:
    """The leaks of one node that are not adopted yet.

    Args:
        connection: an administrative connection.
        member: number of this member.
    """

    def __init__(self, connection: psycopg.AsyncConnection[Any], member: int) -> None:
        self._connection = connection
        self._member = member
        self._ordered: set[int] = set()
        self._before: set[int] = set()

    async def look_back(self) -> None:
        """Find those of earlier sessions, whose writesets may be in the log already."""
        rows = await self._connection.execute(
            "SELECT leaks FROM pgherd.audit(pgherd.audited_until())"
        )
        row = await rows.fetchone()
        assert row is not None
        self._before = {int(xid) for xid in row[0] or []}

    async def order(self, xid: int, hook: HookServer) -> None:
        """Order the writeset of a leak, once.

        Raises:
            DivergedError: it holds DDL that the others could not execute.
        """
        if xid in self._ordered:
            return
        self._ordered.add(xid)
        rows = await self._connection.execute(
            "SELECT keys, body, ddl FROM pgherd.leaked($1)", (str(xid),)
        )
        row = await rows.fetchone()
        assert row is not None
        keys, body, ddl = row[0].encode(), row[1].encode(), row[2]
        if ddl:
            try:
                body = msgspec.json.encode(resolve_commands(decode_body(body)))
            except DdlNotSupported as error:
                raise DivergedError(f"transaction {xid} was not certified: {error}") from error
        hook.adopt(xid, FLAG_DDL if ddl else 0, keys, body)

    def holds(self, writeset: Writeset) -> bool:
        """The writeset is that of a leak: its rows are here already."""
        return writeset.member == self._member and (
            writeset.xid in self._ordered or writeset.xid in self._before
        )

    def adoption(
        self, gid: int, writeset: Writeset, decision: DecisionKind
    ) -> Callable[[Work], Awaitable[None]]:
        """What makes a leak part of the commit chain.

        Raises:
            DivergedError: it lost.
        """
        if decision is not DecisionKind.COMMIT:
            raise DivergedError(
                f"transaction {writeset.xid} committed here without certification, and lost"
            )

        async def adopt(work: Work) -> None:
            await self._connection.execute(
                "SELECT pgherd.adopt($1, $2, $3)", (gid, work.link.prev, str(writeset.xid))
            )
            self._ordered.discard(writeset.xid)
            self._before.discard(writeset.xid)

        return adopt
