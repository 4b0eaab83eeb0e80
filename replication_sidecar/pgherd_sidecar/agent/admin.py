"""The admin API: HTTP on a Unix socket, for whoever may open the socket (mode 0600).

Translates between HTTP and ``AdminBackend`` and decides nothing. The routes and the shape of their
answers are those that the ``pgherd`` command calls. Every error is a JSON object with one field,
``error``, under a status code that says whose it is. ``GET /metrics`` is the status once more, in
the text form that Prometheus reads.

Started by ``process``; keeps nothing.
"""

import socket
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware

from pgherd_sidecar.agent.adminport import (
    AdminBackend,
    ChangesBackend,
    Refused,
    RolesBackend,
    Unavailable,
    UnknownMarker,
)
from pgherd_sidecar.agent.metrics import to_metrics
from pgherd_sidecar.agent.roster import Contact
from pgherd_sidecar.core.log import Member
from pgherd_sidecar.pg.checksum import ChangedTable, UnknownTable
from pgherd_sidecar.pg.roles import Wanted

_SHUTDOWN_S = 5.0
"""A request that is still under way when the sidecar stops gets so long."""
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=3600)]
_LeaseSeconds = Annotated[float, msgspec.Meta(ge=1, le=3600)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=63, pattern=r"^[^\x00]*$")]
T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def runner(backend: AdminBackend, *guards: Middleware) -> web.AppRunner:
    """Return what answers the API's requests, once it is told where they come from.

    Args:
        backend: answers.
        guards: each may refuse a request before it is looked at.
    """
    application = web.Application(middlewares=[_errors_as_json, *guards])
    application.add_routes(_Routes(backend).table())
    if backend.changes is not None:
        application.add_routes(_ChangesRoutes(backend.changes).table())
    if backend.roles is not None:
        application.add_routes(_RolesRoutes(backend.roles).table())
    return web.AppRunner(application, access_log=None, shutdown_timeout=_SHUTDOWN_S)


class AdminServer:
    """The API of one sidecar, for its own machine.

    Args:
        path: the socket; one left behind by a dead sidecar is replaced.
        backend: answers.
    """

    def __init__(self, path: Path, backend: AdminBackend) -> None:
        self._path = path
        self._runner = runner(backend)

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: the socket can't be made.
        """
        await self._runner.setup()
        await web.SockSite(self._runner, _listen(self._path)).start()

    async def stop(self) -> None:
        """Answer what was asked, unless that takes long, then close the socket."""
        await self._runner.cleanup()
        self._path.unlink(missing_ok=True)


def _listen(path: Path) -> socket.socket:
    """Return a listening socket that was never open to other accounts.

    Its directory is made where there is none: beside a witness there is no server to make it.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.is_socket():
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen()  # nobody could connect before this
    except OSError:
        listener.close()
        raise
    return listener


class _Rebuild(msgspec.Struct):
    partner: str | None = None
    rate_bytes_s: Annotated[int, msgspec.Meta(ge=32 << 10, le=1 << 30)] | None = None


class _Explaining(msgspec.Struct):
    gid: Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)]
    rows: bool = False


class _Skipping(msgspec.Struct):
    gid: Annotated[int, msgspec.Meta(ge=1)]
    act: bool = False


class _Ordering(msgspec.Struct):
    members: Annotated[tuple[_Name, ...], msgspec.Meta(max_length=1023)] = ()


class _Lease(msgspec.Struct):
    lease_s: _LeaseSeconds


class _Reading(msgspec.Struct):
    after: Annotated[int, msgspec.Meta(ge=0)]
    max_bytes: Annotated[int, msgspec.Meta(ge=1, le=64 << 20)] = 4 << 20


class _Holding(_Lease):
    stream: Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
    after: Annotated[int, msgspec.Meta(ge=0)]


class _Releasing(msgspec.Struct):
    hold: str


class _Leaving(msgspec.Struct):
    name: str
    disk_id: str = ""


class _Joining(msgspec.Struct):
    name: str
    disk_id: str
    number: Annotated[int, msgspec.Meta(ge=1, le=1023)]
    host: str
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    witness: bool = False

    @property
    def member(self) -> Member:
        info = Contact(self.number, self.host, self.port).encode()
        return Member(self.name, self.disk_id, witness=self.witness, info=info)


class _Parting(msgspec.Struct):
    names: Annotated[list[str], msgspec.Meta(min_length=1)]
    act: bool = False


class _Links(msgspec.Struct):
    blocked: list[str]
    unsent: list[str] = []


class _Roles(msgspec.Struct):
    roles: Annotated[list[Wanted], msgspec.Meta(max_length=256)]


class _Table(msgspec.Struct):
    table: str


class _Bucket(_Table):
    bucket: int


class _Routes:
    """One method a route."""

    def __init__(self, backend: AdminBackend) -> None:
        self._backend = backend

    def table(self) -> list[web.RouteDef]:
        return [
            web.get("/status", self._status),
            web.get("/metrics", self._metrics),
            web.post("/shutdown", self._shutdown),
            web.post("/rebuild", self._rebuild),
            web.post("/explain", self._explain),
            web.post("/skip", self._skip),
            web.get("/view", self._view),
            web.post("/view/join", self._join),
            web.post("/view/leave", self._leave),
            web.post("/view/evict", self._evict),
            web.post("/view/part", self._part),
            web.post("/links", self._block),
            web.post("/marker", self._order),
            web.get("/marker/{id}/ready", self._ready),
            web.post("/marker/{id}/lease", self._lease),
            web.post("/marker/{id}/tables", self._tables),
            web.post("/marker/{id}/buckets", self._buckets),
            web.post("/marker/{id}/keys", self._keys),
            web.delete("/marker/{id}", self._drop),
            web.post("/indexes", self._check_indexes),
        ]

    async def _status(self, _: web.Request) -> web.Response:
        return web.json_response(dict(await self._backend.status()))

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(text=to_metrics(await self._backend.status()))

    async def _shutdown(self, _: web.Request) -> web.Response:
        await self._backend.shutdown()
        return web.json_response({})

    async def _rebuild(self, request: web.Request) -> web.Response:
        body = _parse(await request.read(), _Rebuild)
        await self._backend.rebuild(body.partner, body.rate_bytes_s)
        return web.json_response({})

    async def _explain(self, request: web.Request) -> web.Response:
        body = _parse(await request.read(), _Explaining)
        return web.json_response(dict(await self._backend.explain(body.gid, rows=body.rows)))

    async def _skip(self, request: web.Request) -> web.Response:
        body = _parse(await request.read(), _Skipping)
        return web.json_response(dict(await self._backend.skip(body.gid, act=body.act)))

    async def _view(self, _: web.Request) -> web.Response:
        return web.json_response(dict(self._backend.views.status()))

    async def _join(self, request: web.Request) -> web.Response:
        self._backend.views.join(_parse(await request.read(), _Joining).member)
        return web.json_response({})

    async def _leave(self, request: web.Request) -> web.Response:
        body = _parse(await request.read(), _Leaving)
        self._backend.views.leave(body.name, body.disk_id)
        return web.json_response({})

    async def _evict(self, request: web.Request) -> web.Response:
        body = _parse(await request.read(), _Leaving)
        self._backend.views.leave(body.name, body.disk_id, dead=True)
        return web.json_response({})

    async def _part(self, request: web.Request) -> web.Response:
        body = _parse(await request.read(), _Parting)
        return web.json_response(dict(self._backend.views.part(body.names, act=body.act)))

    async def _block(self, request: web.Request) -> web.Response:
        body = _parse(await request.read(), _Links)
        self._backend.views.block(body.blocked, body.unsent)
        return web.json_response({})

    async def _order(self, request: web.Request) -> web.Response:
        body = _parse(await request.read(), _Ordering)
        marker, gid = await self._backend.order_marker(body.members)
        return web.json_response({"id": marker, "gid": gid})

    async def _ready(self, request: web.Request) -> web.Response:
        wait = _parse(request.query.get("timeout_s", "60").encode(), _Seconds)
        gid = await self._backend.marker_ready(request.match_info["id"], wait)
        return web.json_response({"gid": gid})

    async def _lease(self, request: web.Request) -> web.Response:
        body = _parse(await request.read(), _Lease)
        found = await self._backend.lease_marker(request.match_info["id"], body.lease_s)
        return web.json_response(asdict(found))

    async def _tables(self, request: web.Request) -> web.Response:
        found = await self._backend.marker_tables(request.match_info["id"])
        return web.json_response({"tables": {name: asdict(one) for name, one in found.items()}})

    async def _buckets(self, request: web.Request) -> web.Response:
        body = _parse(await request.read(), _Table)
        found = await self._backend.marker_buckets(request.match_info["id"], body.table)
        return web.json_response({"buckets": dict(found)})

    async def _keys(self, request: web.Request) -> web.Response:
        body = _parse(await request.read(), _Bucket)
        found = await self._backend.marker_keys(request.match_info["id"], body.table, body.bucket)
        return web.json_response({"keys": dict(found)})

    async def _check_indexes(self, _: web.Request) -> web.Response:
        return web.json_response(asdict(await self._backend.check_indexes()))

    async def _drop(self, request: web.Request) -> web.Response:
        await self._backend.drop_marker(request.match_info["id"])
        return web.json_response({})


class _ChangesRoutes:
    """Likewise, of the change stream."""

    def __init__(self, backend: ChangesBackend) -> None:
        self._backend = backend

    def table(self) -> list[web.RouteDef]:
        return [
            web.post("/changes/read", self._read),
            web.post("/changes/hold", self._hold),
            web.get("/changes/tables", self._tables),
            web.post("/log/release", self._release),
        ]

    async def _read(self, request: web.Request) -> web.Response:
        body = _parse(await request.read(), _Reading)
        found = await self._backend.read(body.after, body.max_bytes)
        return web.Response(body=found, content_type="application/octet-stream")

    async def _hold(self, request: web.Request) -> web.Response:
        body = _parse(await request.read(), _Holding)
        await self._backend.hold(body.stream, body.after, body.lease_s)
        return web.json_response({})

    async def _tables(self, _: web.Request) -> web.Response:
        return web.json_response(dict(await self._backend.tables()))

    async def _release(self, request: web.Request) -> web.Response:
        body = _parse(await request.read(), _Releasing)
        return web.json_response({"released": await self._backend.release(body.hold)})


class _RolesRoutes:
    """Likewise, of roles."""

    def __init__(self, backend: RolesBackend) -> None:
        self._backend = backend

    def table(self) -> list[web.RouteDef]:
        return [web.post("/roles", self._ensure)]

    async def _ensure(self, request: web.Request) -> web.Response:
        body = _parse(await request.read(), _Roles)
        return web.json_response({"changed": list(await self._backend.ensure(body.roles))})


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPException as error:  # no such route, body too large
        return _error(error.status, error.text or error.reason)
    except (UnknownMarker, UnknownTable) as error:
        return _error(404, str(error))
    except TimeoutError as error:
        return _error(504, str(error) or "not within the time given")
    except (Refused, ChangedTable) as error:
        return _error(409, str(error))
    except Unavailable as error:
        return _error(503, str(error))


def _parse(content: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.DecodeError as error:
        raise web.HTTPBadRequest(text=str(error)) from error


def _error(status: int, text: str) -> web.Response:
    return web.json_response({"error": text}, status=status)
