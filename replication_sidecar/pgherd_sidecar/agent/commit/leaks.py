"""Leaks: transactions that committed here without having been certified (C1).

A user's own deferred trigger can close the cursor behind which certify() waits. The audit finds
what such a transaction captured; here its writeset is ordered after the fact. If it commits, the
rows are here already and only the link of the chain is missing: the leak is *adopted*. If it loses,
this node differs from the others and must stop. After a restart the audit finds again what was not
adopted, and a writeset that was ordered meanwhile is known by its xid.
"""

from time import monotonic
from typing import Any

import psycopg
import structlog

from pgherd_sidecar.agent.base.errors import DivergedError
from pgherd_sidecar.agent.hook.judging import judge
from pgherd_sidecar.core.commit.keys import parse_keys
from pgherd_sidecar.core.commit.path import CommitPath
from pgherd_sidecar.core.commit.underway import TransactionLimits
from pgherd_sidecar.core.replication.entries import FLAG_DDL
from pgherd_sidecar.core.replication.merge import decode_body

log = structlog.get_logger()


class Leaks:
    """The leaks of one node.

    Args:
        connection: an administrative connection.
        path: the commit path, which is told of them.
        limits: of local transactions.
    """

    def __init__(
        self,
        connection: psycopg.AsyncConnection[Any],
        path: CommitPath,
        limits: TransactionLimits,
    ) -> None:
        self._writeset_max = limits.writeset
        self._connection = connection
        self._path = path
        self._ordered: set[int] = set()

    async def look_back(self) -> None:
        """Find those of earlier sessions, whose writesets may be in the log already."""
        rows = await self._connection.execute(
            "SELECT leaks FROM pgherd.audit(pgherd.audited_until())"
        )
        row = await rows.fetchone()
        assert row is not None
        self._path.leaks.update(int(xid) for xid in row[0] or [])

    async def order_leak(self, xid: int) -> None:
        """Order the writeset of a leak, once.

        Raises:
            DivergedError: it holds DDL that the others could not execute, or is too large.
        """
        if xid in self._ordered:
            return
        log.error("capture.leak", xid=xid)
        self._ordered.add(xid)
        self._path.leaks.add(xid)
        rows = await self._connection.execute(
            "SELECT keys, body, ddl FROM pgherd.leaked($1)", (str(xid),)
        )
        row = await rows.fetchone()
        assert row is not None
        keys, body, ddl = row[0].encode(), row[1].encode(), row[2]
        if len(keys) + len(body) > (most := self._writeset_max):
            raise DivergedError(
                f"transaction {xid} was not certified: it writes more than {most} bytes"
            )
        if ddl:
            found = await judge(decode_body(body))
            if found.refusal:
                raise DivergedError(f"transaction {xid} was not certified: {found.refusal}")
            body = bytes(found.body)
        flags = FLAG_DDL if ddl else 0
        self._path.outbox.request(None, 0, xid, flags, parse_keys(keys), body, monotonic())

    async def adopt_leak(self, gid: int, prev: int, xid: int) -> None:
        """Make a leak whose writeset commits a part of the commit chain."""
        await self._connection.execute("SELECT pgherd.adopt($1, $2, $3)", (gid, prev, str(xid)))
        self._path.leaks.discard(xid)
