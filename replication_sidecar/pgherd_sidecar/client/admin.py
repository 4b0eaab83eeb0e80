"""Client of a sidecar's admin API: HTTP over the Unix socket in the node's ``run`` or TLS.

``routes`` has what can be asked, ``answers`` what is answered. A client keeps no connection between
calls: the command line makes few.
"""

import asyncio
import http.client
import json
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from pgherd_sidecar.client.answers import (
    ChangedTables,
    IndexSummary,
    MarkerAnswer,
    SkipPlan,
    SnapshotAnswer,
    SplitAnswer,
    Status,
    TableSummary,
)
from pgherd_sidecar.client.exchange import decode, encode, exchange
from pgherd_sidecar.client.maintenance import BegunAnswer, MaintenanceAnswer
from pgherd_sidecar.lazily import lazily

if TYPE_CHECKING:
    import msgspec

with lazily():
    from pgherd_sidecar.client import routes

_ANSWER_S = 5.0
_CHANGES_S = 60.0
_MAINTAIN_S = 35.0
"""The sidecar gives up before."""


class AdminError(Exception):
    """The sidecar did not answer, or answered with an error; the message is one line.

    Attributes:
        code: HTTP status of the answer, None if there was none.
        reason: what the sidecar said, without the request.
    """

    def __init__(self, message: str, code: int | None = None, reason: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason or message

    @property
    def may_pass(self) -> bool:
        """No answer, or not now: the same request may be answered later."""
        return self.code is None or self.code in (503, 504)


class NoSidecarError(AdminError):
    """Nobody listens there: it does not run, has not begun to listen, or is about to end."""


class _Released(BaseModel):
    released: bool


class _Found(BaseModel):
    found: bool


class _Ready(BaseModel):
    gid: int


class _Tables(BaseModel):
    tables: dict[str, TableSummary]


class _Buckets(BaseModel):
    buckets: dict[int, str]


class _Keys(BaseModel):
    keys: dict[str, str]


class _Refusal(BaseModel):
    error: str


Answer = TypeVar("Answer", bound=BaseModel)


class AdminClient:
    """Calls to one node's sidecar."""

    reaching_s: float = 0
    """How much longer an answer may take where programs in between have to start."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._where = str(socket)

    async def status(self) -> Status:
        """How the node is.

        Raises:
            AdminError: it does not answer.
        """
        return await self._call(routes.STATUS, Status)

    async def shutdown(self) -> None:
        """Ask the sidecar to finish and exit; returns when it has agreed."""
        await self._request(routes.SHUTDOWN)

    async def rebuild(self, partner: str | None, rate_bytes_s: int | None) -> None:
        """Have the node's database replaced by a copy; returns when that has begun."""
        body = routes.RebuildRequest(partner, rate_bytes_s)
        await self._request(routes.REBUILD, body, timeout_s=2 * _ANSWER_S + _ANSWER_S)

    async def explain(self, gid: int, *, rows: bool) -> dict[str, Any]:
        """Tell what the entry of the log at a position is; with values of rows if they are wanted.

        Raises:
            AdminError: there is none, or none any more; or no answer.
        """
        body = routes.ExplainRequest(gid, rows)
        content = await self._request(routes.EXPLAIN, body, timeout_s=_CHANGES_S)
        try:
            told: dict[str, Any] = json.loads(content)
        except ValueError as error:
            raise AdminError(f"POST /explain: unexpected answer {content[:200]!r}") from error
        return told

    async def skip(self, gid: int, *, act: bool) -> SkipPlan:
        """Have an entry count as having no effect that some members can't apply.

        Args:
            gid: of the entry.
            act: otherwise it is only told what would be done.
        """
        body = routes.SkipRequest(gid, act)
        return await self._call(routes.SKIP, SkipPlan, body, timeout_s=3 * _ANSWER_S)

    async def leave(self, name: str, disk_id: str) -> None:
        """Have a member leave the view; returns when that is under way, or was done before."""
        await self._request(routes.LEAVE, routes.LeaveRequest(name, disk_id))

    async def evict(self, name: str, disk_id: str) -> None:
        """Have a member that does not answer thrown out of the view; see ``leave``."""
        await self._request(routes.EVICT, routes.LeaveRequest(name, disk_id))

    async def split(self, names: Iterable[str], *, act: bool) -> SplitAnswer:
        """Have members become a cluster of their own; returns when that is asked of them.

        Args:
            names: of the members, this one among them.
            act: otherwise it is only told what would be done.
        """
        body = routes.SplitRequest(sorted(set(names)), act)
        return await self._call(routes.SPLIT, SplitAnswer, body)

    async def block_links(self, names: Iterable[str], unsent: Iterable[str] = ()) -> None:
        """Cut the links to these members, and to no others, until it is told otherwise.

        Args:
            names: of the members.
            unsent: members that hear nothing of this one, but are heard.
        """
        await self._request(routes.LINKS, routes.LinksRequest(sorted(names), sorted(unsent)))

    async def order_marker(self, names: Iterable[str] = ()) -> MarkerAnswer:
        """Put a marker entry into the log, at which these members hold a snapshot; else all."""
        return await self._call(
            routes.ORDER_MARKER, MarkerAnswer, routes.MarkerRequest(tuple(sorted(names)))
        )

    async def wait_marker(self, marker: str, timeout_s: float) -> int:
        """Wait until the node holds its snapshot at the marker; return the GID of which it is."""
        ready = routes.MARKER_READY.of(marker)
        route = routes.Route(ready.method, f"{ready.path}?timeout_s={timeout_s:g}")
        return (await self._call(route, _Ready, timeout_s=timeout_s + _ANSWER_S)).gid

    async def lease_marker(self, marker: str, lease_s: float) -> SnapshotAnswer:
        """Have the node hold its snapshot for ``lease_s`` from now on, and export it."""
        route, body = routes.LEASE_MARKER.of(marker), routes.LeaseRequest(lease_s)
        return await self._call(route, SnapshotAnswer, body)

    async def tables(self, marker: str, timeout_s: float) -> dict[str, TableSummary]:
        """Checksums of all replicated tables in the marker's snapshot."""
        route = routes.MARKER_TABLES.of(marker)
        return (await self._call(route, _Tables, timeout_s=timeout_s)).tables

    async def buckets(self, marker: str, table: str, timeout_s: float) -> dict[int, str]:
        """Checksums of a table's rows by bucket of their key's hash."""
        route, body = routes.MARKER_BUCKETS.of(marker), routes.TableRequest(table)
        return (await self._call(route, _Buckets, body, timeout_s)).buckets

    async def keys(self, marker: str, table: str, bucket: int, timeout_s: float) -> dict[str, str]:
        """Checksum of each row of one bucket, by key."""
        route, body = routes.MARKER_KEYS.of(marker), routes.BucketRequest(table, bucket)
        return (await self._call(route, _Keys, body, timeout_s)).keys

    async def check_indexes(self, timeout_s: float) -> IndexSummary:
        """Have the node compare its indexes with their tables."""
        return await self._call(routes.INDEXES, IndexSummary, timeout_s=timeout_s)

    async def drop_marker(self, marker: str) -> None:
        """Give the marker's snapshot back."""
        await self._request(routes.DROP_MARKER.of(marker))

    async def read_changes(self, after: int, max_bytes: int) -> bytes:
        """A part of the log from ``after + 1`` on: a line of JSON and blocks, see the sidecar."""
        body = routes.ReadRequest(after, max_bytes)
        return await self._request(routes.READ_CHANGES, body, timeout_s=_CHANGES_S)

    async def hold_changes(self, stream: str, after: int, lease_s: float) -> None:
        """Have the node keep its log after a position for ``lease_s`` from now on."""
        body = routes.HoldRequest(lease_s=lease_s, stream=stream, after=after)
        await self._request(routes.HOLD_CHANGES, body)

    async def release_hold(self, hold: str) -> bool:
        """Have the node keep its log no longer for one who holds it; False if nobody has it so."""
        return (
            await self._call(routes.RELEASE_LOG, _Released, routes.ReleaseRequest(hold))
        ).released

    async def changed_tables(self) -> ChangedTables:
        """The columns that tables had."""
        return await self._call(routes.CHANGED_TABLES, ChangedTables)

    async def maintain(self, request: "routes.MaintainRequest") -> BegunAnswer:
        """Have members do maintenance; returns when it is noted in the herd."""
        return await self._call(routes.MAINTAIN, BegunAnswer, request, _MAINTAIN_S)

    async def maintenance(self, schedule: str = "") -> MaintenanceAnswer:
        """The runs of a schedule, or of all, as far as they are remembered; and all schedules."""
        request = routes.MaintenanceRequest(schedule)
        return await self._call(routes.MAINTENANCE, MaintenanceAnswer, request, _MAINTAIN_S)

    async def cancel_maintenance(self, run: str) -> bool:
        """Have a run of maintenance end; False if the node knows none of this name."""
        request = routes.CancelRequest(run)
        return (await self._call(routes.CANCEL_MAINTENANCE, _Found, request, _MAINTAIN_S)).found

    async def drop_schedule(self, schedule: str) -> bool:
        """Have a schedule of maintenance forgotten; False if there is none of this name."""
        request = routes.DropRequest(schedule)
        return (await self._call(routes.DROP_SCHEDULE, _Found, request, _MAINTAIN_S)).found

    async def _call(
        self,
        route: "routes.Route",
        answer: type[Answer],
        request: "msgspec.Struct | None" = None,
        timeout_s: float = _ANSWER_S,
    ) -> Answer:
        content = await self._request(route, request, timeout_s)
        try:
            return answer.model_validate_json(content)
        except ValidationError as error:
            asked = f"{route.method} {route.path}"
            raise AdminError(f"{asked}: unexpected answer {content[:200]!r}") from error

    async def _request(
        self,
        route: "routes.Route",
        request: "msgspec.Struct | None" = None,
        timeout_s: float = _ANSWER_S,
    ) -> bytes:
        method, path = route.method, route.path
        body = None if request is None else routes.body(request)
        timeout_s += self.reaching_s
        try:
            async with asyncio.timeout(timeout_s):
                status, content = decode(await self.exchange(encode(method, path, body)))
        except TimeoutError as error:
            raise AdminError(f"{method} {path}: no answer within {timeout_s:g} s") from error
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise NoSidecarError(
                f"no sidecar listens at {self._where}: start it, or give the socket or address "
                "of one that runs"
            ) from error
        except PermissionError as error:
            raise AdminError(
                f"{self._where} may not be opened by this account: use that of its sidecar"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise AdminError(f"{method} {path}: {error or type(error).__name__}") from error
        if not 200 <= status < 300:
            reason = _reason(content) or str(status)
            raise AdminError(f"{method} {path}: {reason}", status, reason)
        return content

    async def exchange(self, request: bytes) -> bytes:
        """Send a request as HTTP and return the answer likewise.

        Raises:
            OSError: the sidecar cannot be reached.
        """
        return await exchange(await asyncio.open_unix_connection(str(self._socket)), request)


class RemoteAdminClient(AdminClient):
    """Calls to a sidecar elsewhere, by its admin port.

    Args:
        host: where it is.
        port: of its admin API.
        context: with the caller's certificate and the trusted authority.
        certified: the DNS name in the sidecar's certificate, by which it is known.
    """

    def __init__(self, host: str, port: int, context: ssl.SSLContext, certified: str) -> None:
        self._address = host, port
        self._where = f"{host}:{port}"
        self._context = context
        self._certified = certified

    async def exchange(self, request: bytes) -> bytes:
        """See ``AdminClient``."""
        connection = await asyncio.open_connection(
            *self._address, ssl=self._context, server_hostname=self._certified
        )
        return await exchange(connection, request)


def _reason(content: bytes) -> str:
    """The reason in an error answer; as it came if it is not the documented JSON."""
    try:
        return _Refusal.model_validate_json(content).error
    except ValidationError:
        return content.decode(errors="replace").strip()
