"""Makes roles as whoever may ask wants them, on all members at once.

An ordinary transaction on this member's server, which waits for its verdict like others: what is
there is read, and only what differs is executed, by ``pgherd.run_everywhere()``. All of it, or
nothing. Passwords go no further than this process (``pg.scram``), and nothing here tells of them.

It keeps nothing.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
import structlog

from pgherd_sidecar.agent.admin.port import Refused, Unavailable
from pgherd_sidecar.agent.base.config import NodeConfig
from pgherd_sidecar.agent.server.startup import conninfo
from pgherd_sidecar.pg import roles

log = structlog.get_logger()

_LONGEST_S = 30.0
_FOR_LATER = ("08", "25", "40", "53", "55", "57")
"""Classes of errors that pass: connection, read-only, conflict, resources, locks, shut down."""


class Roles:
    """The roles of the server beside one sidecar.

    Args:
        require_ready: raises ``Unavailable`` while this member does not take writes.
    """

    def __init__(self, config: NodeConfig, require_ready: Callable[[], object]) -> None:
        self._config = config
        self._require_ready = require_ready

    async def ensure(self, wanted: Sequence[roles.Wanted]) -> list[str]:
        """See RolesBackend."""
        self._require_ready()
        try:
            async with asyncio.timeout(_LONGEST_S):
                changed = await self._ensure(wanted)
        except roles.RoleRefused as error:
            raise Refused(str(error)) from error
        except TimeoutError as error:
            raise Unavailable(f"not done within {_LONGEST_S:g} s") from error
        except psycopg.Error as error:
            later = error.sqlstate is None or error.sqlstate.startswith(_FOR_LATER)
            # Not its context, which holds the command; nor its cause, of which a log would tell.
            raise (Unavailable if later else Refused)(_said(error)) from None
        if changed:
            log.info("roles.changed", changed=changed)
        return changed

    async def _ensure(self, wanted: Sequence[roles.Wanted]) -> list[str]:
        connection = await psycopg.AsyncConnection[Any].connect(
            conninfo(self._config, "pgherd roles"),
            autocommit=True,
            cursor_factory=psycopg.AsyncRawCursor,
        )
        async with connection, connection.transaction():
            found = await roles.read(connection)
            # Passwords are slow to compare, on purpose.
            changes = await asyncio.to_thread(roles.changes, wanted, found)
            for change in changes:
                command = change.command.as_string(connection)
                await connection.execute("SELECT pgherd.run_everywhere($1)", (command,))
        return [change.text for change in changes]


def _said(error: psycopg.Error) -> str:
    """Return what the server says, in one line."""
    message = error.diag.message_primary or f"PostgreSQL: {type(error).__name__}"
    detail = error.diag.message_detail
    return " ".join(f"{message}: {detail}".split() if detail else message.split())[:1000]
