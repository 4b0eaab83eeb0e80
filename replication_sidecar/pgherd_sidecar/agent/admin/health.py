"""How this member is, for anybody who can reach its health port: plain HTTP, nothing to change.

Balancers, kubelets and Prometheus ask, with no token. Each path is answered to GET, HEAD and
OPTIONS, by 200 or 503; the paths of Patroni are here where they mean the same.

* ``/live``, ``/liveness``: the event loop turns, in whatever state the member is, since starting it
  again would heal none of them;
* ``/ready``, ``/readiness``: the member does its work: takes writes, votes if it is a witness, or
  answers queries if it is a reader;
* ``/``, ``/primary``, ``/leader``, ``/read-write``: it takes writes. Any number of members do;
* ``/readable``, ``/replica``, ``/read-only``: its database can be read, and what it shows is within
  the limits ``lag`` (bytes) and ``age`` (seconds) of the query, each a number or one with a unit.
  Whoever takes writes can be read, too;
* ``/health``: its database is there, in whatever state; a witness votes;
  only here and at ``/live`` a member in maintenance is well;
* ``/metrics``: the status as Prometheus reads it.

This is what puts a member into a service or a balancer and takes it out. The fence is elsewhere, in
the path of each commit: a client that is sent here too late is refused, not deceived.

The cost of a request is bounded: the status is looked at once in a tenth of a second at most,
however many ask; there are at most so many connections, each for at most so long. The oldest is
closed for one more.

Started by ``process``; keeps nothing.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from aiohttp import web

from pgherd_sidecar.agent.admin.metrics import to_metrics
from pgherd_sidecar.agent.admin.port import AdminBackend, StatusValue

_SHUTDOWN_S = 1.0
_KEPT_S = 0.1
_CONNECTIONS = 100
_LIFETIME_S = 10.0
_HEADER_BYTES = 4096
_BYTES: Final = {"": 1, "b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30, "tb": 1 << 40}
_SECONDS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}
_AMOUNT = re.compile(r"\s*(\d{1,15}(?:\.\d{1,6})?)\s*([a-z]*)\s*", re.IGNORECASE)

Status = Mapping[str, StatusValue]


class HealthServer:
    """The health port of one sidecar.

    Args:
        host: address to listen on.
        port: TCP port.
        backend: knows the status.
    """

    def __init__(self, host: str, port: int, backend: AdminBackend) -> None:
        self._address = host, port
        self._backend = backend
        self._looked_s = 0.0
        self._looking: asyncio.Task[Status] | None = None
        self._server: asyncio.Server | None = None
        application = web.Application()
        answers: dict[Callable[[web.Request], Awaitable[web.Response]], tuple[str, ...]] = {
            self._live: ("/live", "/liveness"),
            self._ready: ("/ready", "/readiness"),
            self._primary: ("/", "/primary", "/leader", "/read-write"),
            self._readable: ("/readable", "/replica", "/read-only"),
            self._health: ("/health",),
            self._metrics: ("/metrics",),
        }
        for answer, paths in answers.items():
            for path in paths:
                application.router.add_get(path, answer)
                application.router.add_options(path, answer)
        self._runner = web.AppRunner(
            application,
            access_log=None,
            shutdown_timeout=_SHUTDOWN_S,
            max_line_size=_HEADER_BYTES,
            max_field_size=_HEADER_BYTES,
        )

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: the port is in use.
        """
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connected, *self._address)

    async def stop(self) -> None:
        """Close the port."""
        if self._server is not None:
            self._server.close()
        await self._runner.cleanup()
        if self._looking is not None:
            self._looking.cancel()

    def _connected(self) -> asyncio.BaseProtocol:
        """Serve one more connection, for a while."""
        server = self._runner.server
        assert server is not None
        # The oldest have had most time. A crowd must not keep out a kubelet, which restarts us.
        known = server.connections
        for oldest in known[: max(0, len(known) - _CONNECTIONS + 1)]:
            oldest.force_close()
        handler = server()
        loop = asyncio.get_running_loop()
        loop.call_later(_LIFETIME_S, handler.close)  # after the request that it is at
        loop.call_later(_LIFETIME_S + _SHUTDOWN_S, handler.force_close)
        return handler

    # ---- what is known ---------------------------------------------------------------------------

    async def _status(self) -> Status:
        """The status, which is not asked for again at once: all who wait get the same answer."""
        now = asyncio.get_running_loop().time()
        if self._looking is None or (self._looking.done() and now - self._looked_s > _KEPT_S):
            self._looked_s = now
            self._looking = asyncio.ensure_future(self._look())
        return await asyncio.shield(self._looking)

    async def _look(self) -> Status:
        return await self._backend.status()

    # ---- answers ---------------------------------------------------------------------------------

    async def _live(self, _: web.Request) -> web.Response:
        return web.Response(text="alive\n")

    async def _ready(self, _: web.Request) -> web.Response:
        status = await self._status()
        return _answer(status, status["state"] in ("primary", "reader") or _votes(status))

    async def _primary(self, _: web.Request) -> web.Response:
        status = await self._status()
        return _answer(status, _writes(status))

    async def _health(self, _: web.Request) -> web.Response:
        status = await self._status()
        return _answer(
            status, _serves(status) or _votes(status) or status["state"] == "maintenance"
        )

    async def _readable(self, request: web.Request) -> web.Response:
        try:
            lag_bytes = _limit(request, "lag", _BYTES)
            age_s = _limit(request, "age", _SECONDS)
        except ValueError as error:
            return web.Response(text=f"{error}\n", status=400)
        status = await self._status()
        has_lag, has_age = _number(status.get("lag_bytes")), _number(status.get("age_s"))
        near = (lag_bytes is None and age_s is None) or (
            has_lag is not None
            and has_age is not None
            and (lag_bytes is None or has_lag <= lag_bytes)
            and (age_s is None or has_age <= age_s)
        )
        known = [
            "" if has_lag is None else f" lag={has_lag:.0f}B",
            "" if has_age is None else f" age={has_age:.1f}s",
        ]
        return _answer(status, _serves(status) and near, "".join(known))

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(text=to_metrics(await self._status()))


def _writes(status: Status) -> bool:
    return status["state"] == "primary"


def _votes(status: Status) -> bool:
    """It is a witness, and in the primary component."""
    return (status["state"], status.get("component")) == ("witness", "primary")


def _serves(status: Status) -> bool:
    """A session with the server goes on: what it shows is a prefix of the order."""
    serving = ("primary", "reader", "secondary", "recovering")
    return status["state"] in serving and "lag_bytes" in status


def _answer(status: Status, good: bool, more: str = "") -> web.Response:
    return web.Response(text=f"{status['state']}{more}\n", status=200 if good else 503)


def _number(value: StatusValue) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _limit(request: web.Request, name: str, units: Mapping[str, float]) -> float | None:
    """Return a limit of the query.

    Raises:
        ValueError: it is none.
    """
    text = request.query.get(name)
    if text is None:
        return None
    amount = _AMOUNT.fullmatch(text)
    if amount is None or amount[2].lower() not in units:
        known = ", ".join(unit for unit in units if unit)
        raise ValueError(f"{name} is a number, or one with a unit: {known}")
    return float(amount[1]) * units[amount[2].lower()]
