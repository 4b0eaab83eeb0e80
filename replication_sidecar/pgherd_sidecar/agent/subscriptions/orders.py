"""Orders about sets and subscriptions: each is carried out by a process, and its answer returned.

It keeps nothing: orders may be repeated.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import structlog

from pgherd_sidecar.agent.admin.port import Refused, Unavailable
from pgherd_sidecar.agent.base.config import NodeConfig
from pgherd_sidecar.agent.server.startup import conninfo
from pgherd_sidecar.client import routes
from pgherd_sidecar.env.processes import programs
from pgherd_sidecar.tables.sessions import SETTINGS

log = structlog.get_logger()

_MODULE = "pgherd_sidecar.subscribing.ordering.process"
_LONGEST_S = 30.0
_AT_ONCE = 2
"""So many processes, of 50 MB each; others wait for their turn."""


class SubscriptionOrders:
    """See ``SubscriptionsBackend``.

    Args:
        require_ready: raises ``Unavailable`` while this member does not take writes.
    """

    def __init__(self, config: NodeConfig, require_ready: Callable[[], object]) -> None:
        self._config = config
        self._require_ready = require_ready
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def order_set(self, request: routes.SetRequest) -> dict[str, Any]:
        """See SubscriptionsBackend."""
        return await self._carry_out("order_set", request)

    async def drop_set(self, request: routes.DropSetRequest) -> dict[str, Any]:
        """See SubscriptionsBackend."""
        return await self._carry_out("drop_set", request)

    async def order(self, request: routes.SubscriptionRequest) -> dict[str, Any]:
        """See SubscriptionsBackend."""
        return await self._carry_out("order_subscription", request)

    async def end(self, request: routes.SubscriptionEnd) -> dict[str, Any]:
        """See SubscriptionsBackend."""
        return await self._carry_out("end_subscription", request)

    async def _carry_out(self, kind: str, request: msgspec.Struct) -> dict[str, Any]:
        self._require_ready()
        work = {
            "conninfo": conninfo(self._config, "pgherd subscriptions", settings=SETTINGS),
            "kind": kind,
            "request": request,
        }
        lines: list[str] = []
        try:
            async with asyncio.timeout(_LONGEST_S), self._turns:
                await programs.run_program(
                    *programs.module(_MODULE),
                    stdin=msgspec.json.encode(work),
                    on_line=lines.append,
                    environment=programs.environment_of_modules(),
                )
            said: dict[str, Any] = msgspec.json.decode(lines[-1], type=dict[str, Any])
        except TimeoutError as error:
            raise Unavailable(f"not within {_LONGEST_S:.0f} s") from error
        except (programs.ProgramError, IndexError, msgspec.DecodeError) as error:
            # Its last words may be those of a library about a connection string.
            log.warning("subscriptions.order_failed", kind=kind, lines=len(lines))
            raise Unavailable("what carries out the order has failed") from error
        if "refused" in said:
            raise Refused(said["refused"])
        if "unavailable" in said:
            raise Unavailable(said["unavailable"])
        answer: dict[str, Any] = said["answer"]
        return answer
