"""Has all members learn of what PostgreSQL tells no event trigger: roles, and ``REASSIGN OWNED``.

The catalogs say otherwise than what this member remembers (``049_unseen.sql``). The next command
of this member takes that along; where none comes, it is ordered from here, by a session like a
client's. Nothing survives a restart but what the database remembers.
"""

import asyncio
from typing import Any

import psycopg
import structlog

from pgherd_sidecar.agent.base.config import NodeConfig
from pgherd_sidecar.agent.server.startup import conninfo

log = structlog.get_logger()

_LONGEST_S = 10.0


class UnseenChanges:
    """Looks, and orders; an order that fails is repeated at the next look."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self._failure = ""
        self._unseen: list[str] = []
        self._failed: list[str] = []
        self._undone: list[str] = []

    async def order_changes(
        self, connection: psycopg.AsyncConnection[Any], *, at_owners: bool
    ) -> None:
        """Order what was changed here, if anything was.

        Args:
            connection: of the housekeeping.
            at_owners: look for ``REASSIGN OWNED`` as well, which costs more.

        Raises:
            psycopg.Error: the server is gone.
        """
        rows = await connection.execute(
            "SELECT u.unseen, u.failed, u.undone,"
            " $1 AND EXISTS (SELECT FROM pgherd.moved_owners()), n.writable"
            " FROM pgherd.look_for_unseen() u, pgherd.node n",
            (at_owners,),
        )
        row = await rows.fetchone()
        assert row is not None
        unseen, failed, undone, owners, writable = row
        self._unseen = [*unseen, *(["owners"] if owners else [])]
        if failed != self._failed:
            self._failed = failed
            log.warning("unseen.otherwise_here", documents=failed)
        for one in undone:
            if one not in self._undone:
                log.warning("unseen.undone", what=one)
        self._undone = undone
        if not self._unseen or not writable:
            self._failure = ""
            return
        try:
            async with asyncio.timeout(_LONGEST_S):
                await self._order()
        except (psycopg.Error, TimeoutError) as error:
            self._tell(error)
        else:
            log.info("unseen.ordered", changed=self._unseen)
            self._unseen = []

    def status(self) -> dict[str, Any]:
        """Return what was found at the last look."""
        differ = [f"{one}: not ordered yet" for one in self._unseen] + self._failed
        return {
            "roles_differ": differ,
            "roles_differ_count": len(differ),
            "roles_undone": self._undone,
            "roles_undone_count": len(self._undone),
        }

    async def _order(self) -> None:
        async with await psycopg.AsyncConnection[Any].connect(
            conninfo(self._config, "pgherd unseen"), autocommit=True
        ) as connection:
            await connection.execute("SELECT pgherd.order_unseen()")

    def _tell(self, error: Exception) -> None:
        diag = getattr(error, "diag", None)
        message = getattr(diag, "message_primary", None) or type(error).__name__
        if message != self._failure:
            self._failure = message
            log.warning(
                "unseen.not_ordered", error=message, remedy=getattr(diag, "message_hint", None)
            )
