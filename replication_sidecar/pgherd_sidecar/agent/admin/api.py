"""The admin API: HTTP on a Unix socket, for whoever may open the socket (mode 0600).

Translates between HTTP and ``AdminBackend`` and decides nothing. The routes and their requests are
in ``client.routes``, for those who ask, too. Every error is a JSON object with one field,
``error``, under a status code that says whose it is. ``GET /metrics`` is the status once more, in
the text form that Prometheus reads.

Started by ``process``; keeps nothing.
"""

import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware

from pgherd_sidecar.agent.admin.metrics import to_metrics
from pgherd_sidecar.agent.admin.port import (
    AdminBackend,
    ChangesBackend,
    MaintenanceBackend,
    Refused,
    RolesBackend,
    StatusValue,
    SubscriptionsBackend,
    Unavailable,
    UnknownMarker,
)
from pgherd_sidecar.client import routes
from pgherd_sidecar.pg.comparison.checksum import TableChangedError, UnknownTable
from pgherd_sidecar.pg.roles import Wanted

_SHUTDOWN_S = 5.0
"""A request that is still under way when the sidecar stops gets so long."""
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=3600)]
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
        application.add_routes(_of_changes(backend.changes))
    if backend.roles is not None:
        application.add_routes(_of_roles(backend.roles))
    if backend.maintenance is not None:
        application.add_routes(_of_maintenance(backend.maintenance))
    if backend.subscriptions is not None:
        application.add_routes(_of_subscriptions(backend.subscriptions))
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


class _Roles(msgspec.Struct):
    roles: Annotated[list[Wanted], msgspec.Meta(max_length=256)]


def _route(route: routes.Route, handler: Handler) -> web.RouteDef:
    return web.route(route.method, route.path, handler)


def _post(
    route: routes.Route,
    kind: type[T],
    call: Callable[[T], Awaitable[StatusValue]],
    field: str = "",
) -> web.RouteDef:
    """Return a route that makes a call of each request.

    Args:
        kind: of the request's body.
        call: gets the body.
        field: of the answer, for what the call returns. Without one that is the answer itself, or
            the answer is empty.
    """

    async def handle(request: web.Request) -> web.Response:
        told = await call(_parse(await request.read(), kind))
        if field:
            return web.json_response({field: told})
        return web.json_response(dict(told) if isinstance(told, Mapping) else {})

    return _route(route, handle)


class _Routes:
    """One method a route."""

    def __init__(self, backend: AdminBackend) -> None:
        self._backend = backend

    def table(self) -> list[web.RouteDef]:
        return [
            _route(routes.STATUS, self._status),
            _route(routes.METRICS, self._metrics),
            _route(routes.SHUTDOWN, self._shutdown),
            _route(routes.REBUILD, self._rebuild),
            _route(routes.EXPLAIN, self._explain),
            _route(routes.SKIP, self._skip),
            _route(routes.LEAVE, self._leave),
            _route(routes.EVICT, self._evict),
            _route(routes.SPLIT, self._split),
            _route(routes.LINKS, self._block),
            _route(routes.ORDER_MARKER, self._order),
            _route(routes.MARKER_READY, self._ready),
            _route(routes.LEASE_MARKER, self._lease),
            _route(routes.MARKER_TABLES, self._tables),
            _route(routes.MARKER_BUCKETS, self._buckets),
            _route(routes.MARKER_KEYS, self._keys),
            _route(routes.DROP_MARKER, self._drop),
            _route(routes.INDEXES, self._check_indexes),
        ]

    async def _status(self, _: web.Request) -> web.Response:
        return web.json_response(dict(await self._backend.status()))

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(text=to_metrics(await self._backend.status()))

    async def _shutdown(self, _: web.Request) -> web.Response:
        await self._backend.shutdown()
        return web.json_response({})

    async def _rebuild(self, request: web.Request) -> web.Response:
        body = _parse(await request.read(), routes.RebuildRequest)
        await self._backend.rebuild(body.partner, body.rate_bytes_s)
        return web.json_response({})

    async def _explain(self, request: web.Request) -> web.Response:
        body = _parse(await request.read(), routes.ExplainRequest)
        return web.json_response(dict(await self._backend.explain(body.gid, rows=body.rows)))

    async def _skip(self, request: web.Request) -> web.Response:
        body = _parse(await request.read(), routes.SkipRequest)
        return web.json_response(dict(await self._backend.skip(body.gid, act=body.act)))

    async def _leave(self, request: web.Request) -> web.Response:
        body = _parse(await request.read(), routes.LeaveRequest)
        self._backend.views.leave(body.name, body.disk_id)
        return web.json_response({})

    async def _evict(self, request: web.Request) -> web.Response:
        body = _parse(await request.read(), routes.LeaveRequest)
        self._backend.views.leave(body.name, body.disk_id, dead=True)
        return web.json_response({})

    async def _split(self, request: web.Request) -> web.Response:
        body = _parse(await request.read(), routes.SplitRequest)
        return web.json_response(dict(self._backend.views.split(body.names, act=body.act)))

    async def _block(self, request: web.Request) -> web.Response:
        body = _parse(await request.read(), routes.LinksRequest)
        self._backend.views.block(body.blocked, body.unsent)
        return web.json_response({})

    async def _order(self, request: web.Request) -> web.Response:
        body = _parse(await request.read(), routes.MarkerRequest)
        marker, gid = await self._backend.order_marker(body.members)
        return web.json_response({"id": marker, "gid": gid})

    async def _ready(self, request: web.Request) -> web.Response:
        wait = _parse(request.query.get("timeout_s", "60").encode(), _Seconds)
        gid = await self._backend.markers.ready(request.match_info["id"], wait)
        return web.json_response({"gid": gid})

    async def _lease(self, request: web.Request) -> web.Response:
        body = _parse(await request.read(), routes.LeaseRequest)
        found = await self._backend.markers.lease(request.match_info["id"], body.lease_s)
        return web.json_response(asdict(found))

    async def _tables(self, request: web.Request) -> web.Response:
        found = await self._backend.markers.tables(request.match_info["id"])
        return web.json_response({"tables": {name: asdict(one) for name, one in found.items()}})

    async def _buckets(self, request: web.Request) -> web.Response:
        body = _parse(await request.read(), routes.TableRequest)
        found = await self._backend.markers.buckets(request.match_info["id"], body.table)
        return web.json_response({"buckets": dict(found)})

    async def _keys(self, request: web.Request) -> web.Response:
        body = _parse(await request.read(), routes.BucketRequest)
        found = await self._backend.markers.keys(request.match_info["id"], body.table, body.bucket)
        return web.json_response({"keys": dict(found)})

    async def _check_indexes(self, _: web.Request) -> web.Response:
        return web.json_response(asdict(await self._backend.check_indexes()))

    async def _drop(self, request: web.Request) -> web.Response:
        await self._backend.markers.drop(request.match_info["id"])
        return web.json_response({})


def _of_changes(backend: ChangesBackend) -> list[web.RouteDef]:
    async def read(request: web.Request) -> web.Response:
        body = _parse(await request.read(), routes.ReadRequest)
        found = await backend.read(body.after, body.max_bytes)
        return web.Response(body=found, content_type="application/octet-stream")

    async def tables(_: web.Request) -> web.Response:
        return web.json_response(dict(await backend.tables()))

    return [
        _route(routes.READ_CHANGES, read),
        _post(
            routes.HOLD_CHANGES,
            routes.HoldRequest,
            lambda body: backend.hold(body.stream, body.after, body.lease_s),
        ),
        _route(routes.CHANGED_TABLES, tables),
        _post(
            routes.RELEASE_LOG,
            routes.ReleaseRequest,
            lambda body: backend.release(body.hold),
            "released",
        ),
    ]


def _of_roles(backend: RolesBackend) -> list[web.RouteDef]:
    return [_post(routes.ROLES, _Roles, lambda body: backend.ensure(body.roles), "changed")]


def _of_maintenance(backend: MaintenanceBackend) -> list[web.RouteDef]:
    return [
        _post(routes.MAINTAIN, routes.MaintainRequest, backend.begin),
        _post(
            routes.MAINTENANCE, routes.MaintenanceRequest, lambda body: backend.known(body.schedule)
        ),
        _post(
            routes.CANCEL_MAINTENANCE,
            routes.CancelRequest,
            lambda body: backend.cancel(body.run),
            "found",
        ),
        _post(
            routes.DROP_SCHEDULE,
            routes.DropRequest,
            lambda body: backend.drop(body.schedule),
            "found",
        ),
    ]


def _of_subscriptions(backend: SubscriptionsBackend) -> list[web.RouteDef]:
    return [
        _post(routes.ORDER_SET, routes.SetRequest, backend.order_set),
        _post(routes.DROP_SET, routes.DropSetRequest, backend.drop_set),
        _post(routes.ORDER_SUBSCRIPTION, routes.SubscriptionRequest, backend.order),
        _post(routes.END_SUBSCRIPTION, routes.SubscriptionEnd, backend.end),
    ]


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
    except (Refused, TableChangedError) as error:
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
