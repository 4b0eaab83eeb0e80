"""How this member is, for anybody who can reach its health port: plain HTTP, nothing to change.

``/ready`` is 200 while the member does its work: takes writes, or votes if it is a witness. It is
what puts a member into a service or a balancer and takes it out. The fence is elsewhere, in the
path of each commit: a client that is sent here too late is refused, not deceived. ``/live`` is 200
while the event loop turns, in whatever state the member is, since starting it again would heal none
of them. ``/metrics`` is the status as Prometheus reads it.

Started by ``process``; keeps nothing.
"""

from aiohttp import web

from pgherd_sidecar.agent.adminport import AdminBackend
from pgherd_sidecar.agent.metrics import to_metrics

_SHUTDOWN_S = 1.0


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
        application = web.Application()
        application.add_routes(
            [
                web.get("/ready", self._ready),
                web.get("/live", self._live),
                web.get("/metrics", self._metrics),
            ]
        )
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=_SHUTDOWN_S)

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: the port is in use.
        """
        await self._runner.setup()
        await web.TCPSite(self._runner, *self._address).start()

    async def stop(self) -> None:
        """Close the port."""
        await self._runner.cleanup()

    async def _ready(self, _: web.Request) -> web.Response:
        status = await self._backend.status()
        state = str(status["state"])
        ready = state == "primary" or (state, status.get("component")) == ("witness", "primary")
        return web.Response(text=state + "\n", status=200 if ready else 503)

    async def _live(self, _: web.Request) -> web.Response:
        return web.Response(text="alive\n")

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(text=to_metrics(await self._backend.status()))
