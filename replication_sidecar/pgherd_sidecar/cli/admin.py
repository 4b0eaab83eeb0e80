"""Client of a sidecar's admin API: HTTP over the Unix socket in the node's ``run`` or TLS.

Knows the routes and the shape of the answers, not what to do about them. Keeps no connection
between calls: the command line makes few.
"""

import asyncio
import http.client
import json
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from pgherd_sidecar.cli.exchange import decode, encode, exchange
from pgherd_sidecar.cli.view import Peer, View

State = Literal[
    "starting",
    "recovering",
    "primary",
    "secondary",
    "stopped",
    "diverged",
    "stranded",
    "departed",
    "rebuilding",
    "witness",
]
_ANSWER_S = 5.0
_CHANGES_S = 60.0


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


class LogHold(BaseModel):
    """Somebody for whom a member keeps its log after a position, until a time."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    hold: str
    after: int
    until: str


class ScrubDifference(BaseModel):
    """Something that the scrub has found to differ twice.

    Attributes:
        kind: ``rows`` of a table, an ``index``, or the ``tables`` themselves.
        keys: some of them, as JSON, with the members that each concerns.
        members: whom a majority contradicts; all where there is no majority.
        gid: where it was seen last.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    kind: str
    table: str
    index: str
    keys: dict[str, tuple[str, ...]]
    more_keys: int
    members: tuple[str, ...]
    majority: bool
    gid: int
    first_gid: int
    text: str


class ScrubStatus(BaseModel):
    """How far the scrub is, as far as this member knows.

    ``not_answering`` has the numbers of members that have not answered lately.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    interval_s: float
    share: float
    table: str
    began: str | None
    finished: str | None
    not_answering: tuple[int, ...]
    differences: tuple[ScrubDifference, ...]


class Incident(BaseModel):
    """What stopped a node's database, or had it rebuilt, and how that ended; see the sidecar."""

    model_config = ConfigDict(frozen=True, extra="allow")

    number: int
    at: str
    kind: str
    reason: str
    gid: int = 0
    sqlstate: str = ""
    table: str = ""
    statement: str = ""
    cure: str = ""
    outcome: str = ""
    ended_at: str = ""


class DatabaseSeen(BaseModel):
    """What the log says of a member's database."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    condition: str
    since: int = 0
    gid: int = 0
    cause: str = ""


class HotKey(BaseModel):
    """A key that a member's own transactions have lost by, told by its hash.

    Attributes:
        table: its table; or those of the transaction; or why, where it was no key.
        gid: of the one that won last.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    table: str
    key: str
    count: int
    gid: int


class Status(BaseModel):
    """Answer of ``GET /status``. More fields (counters) are kept as they are."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str
    cluster_id: str
    state: State
    reason: str | None = None
    gid: int | None = None
    log_position: int | None = None
    disk_id: str = ""
    component: str | None = None
    role: str | None = None
    term: int | None = None
    proposer: str | None = None
    quorum: Any = None
    view: View | None = None
    peers: dict[str, Peer] = {}
    log_holds: tuple[LogHold, ...] = ()
    capture_off: tuple[str, ...] = ()
    without_key: tuple[str, ...] = ()
    scrub: ScrubStatus | None = None
    incidents: tuple[Incident, ...] = ()
    divergences_total: dict[str, int] = {}
    rebuilds_total: dict[str, int] = {}
    held: str | None = None
    held_since: int | None = None
    held_gid: int | None = None
    databases: tuple[DatabaseSeen, ...] = ()
    log_bytes: int | None = None
    lag_entries: int | None = None
    apply_queue_bytes: int | None = None
    pending: int | None = None
    victims: int | None = None
    own_commits: int | None = None
    own_conflicts: int | None = None
    commit_waits: dict[str, int] = {}
    hot_keys: tuple[HotKey, ...] = ()


class _Released(BaseModel):
    released: bool


class PartingPlan(BaseModel):
    """Members that become a cluster of their own.

    Attributes:
        cluster_id: of theirs; ``split_from`` is that of the one that they leave.
        left: the members that stay behind.
        gid: the end of the log of the one that was asked.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    cluster_id: str
    split_from: str
    members: tuple[str, ...]
    left: tuple[str, ...]
    gid: int


class SkipPlan(BaseModel):
    """What it means that an entry counts as having no effect.

    Attributes:
        stopped: members that could not apply it, and go on behind it.
        rebuilt: members that are made anew from those, unless they have yet to come by it.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    gid: int
    stopped: tuple[str, ...]
    rebuilt: tuple[str, ...]


class Marker(BaseModel):
    """An ordered marker entry: ``gid`` is its position."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str
    gid: int


class ExportedSnapshot(BaseModel):
    """The snapshot at a marker, as sessions of that node's server import it.

    ``visible`` is its ``pg_current_snapshot()``.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    gid: int
    snapshot: str
    visible: str


class TableSummary(BaseModel):
    """What one node holds of one table at the marker."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    rows: int
    checksum: str
    columns: str


class IndexSummary(BaseModel):
    """What one node found when it compared its indexes with their tables.

    ``available`` says whether its server has amcheck.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    available: bool
    checked: int
    faults: dict[str, str]
    skipped: dict[str, str]


class ChangedTable(BaseModel):
    """The live columns of a table from a GID on, as they are in records; and its primary key.

    Values of ``generated`` columns are not in records.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    table: str
    gid: int
    columns: tuple[str, ...]
    types: tuple[str, ...]
    key: tuple[str, ...]
    generated: tuple[str, ...] = ()


class ChangedTables(BaseModel):
    """What columns tables had up to the position ``visible``, in the order of their GIDs."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    visible: int
    tables: list[ChangedTable]


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

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._where = str(socket)

    async def status(self) -> Status:
        """How the node is.

        Raises:
            AdminError: it does not answer.
        """
        return await self._call("GET", "/status", Status)

    async def shutdown(self) -> None:
        """Ask the sidecar to finish and exit; returns when it has agreed."""
        await self._request("POST", "/shutdown")

    async def rebuild(self, partner: str | None, rate_bytes_s: int | None) -> None:
        """Have the node's database replaced by a copy; returns when that has begun."""
        body = {"partner": partner, "rate_bytes_s": rate_bytes_s}
        await self._request("POST", "/rebuild", body, timeout_s=2 * _ANSWER_S + _ANSWER_S)

    async def explain(self, gid: int, *, rows: bool) -> dict[str, Any]:
        """What the entry of the log at a position is; with the values of rows if they are wanted.

        Raises:
            AdminError: there is none, or none any more; or no answer.
        """
        body = {"gid": gid, "rows": rows}
        content = await self._request("POST", "/explain", body, timeout_s=_CHANGES_S)
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
        body = {"gid": gid, "act": act}
        return await self._call("POST", "/skip", SkipPlan, body, timeout_s=3 * _ANSWER_S)

    async def leave(self, name: str, disk_id: str) -> None:
        """Have a member leave the view; returns when that is under way, or was done before."""
        await self._request("POST", "/view/leave", {"name": name, "disk_id": disk_id})

    async def evict(self, name: str, disk_id: str) -> None:
        """Have a member that does not answer thrown out of the view; see ``leave``."""
        await self._request("POST", "/view/evict", {"name": name, "disk_id": disk_id})

    async def part(self, names: Iterable[str], *, act: bool) -> PartingPlan:
        """Have members become a cluster of their own; returns when that is asked of them.

        Args:
            names: of the members, this one among them.
            act: otherwise it is only told what would be done.
        """
        body = {"names": sorted(set(names)), "act": act}
        return await self._call("POST", "/view/part", PartingPlan, body)

    async def block_links(self, names: Iterable[str], unsent: Iterable[str] = ()) -> None:
        """Cut the links to these members, and to no others, until it is told otherwise.

        Args:
            names: of the members.
            unsent: members that hear nothing of this one, but are heard.
        """
        body = {"blocked": sorted(names), "unsent": sorted(unsent)}
        await self._request("POST", "/links", body)

    async def order_marker(self, names: Iterable[str] = ()) -> Marker:
        """Put a marker entry into the log, at which these members hold a snapshot; else all."""
        return await self._call("POST", "/marker", Marker, {"members": sorted(names)})

    async def wait_marker(self, marker: str, timeout_s: float) -> None:
        """Wait until the node holds its snapshot at exactly the marker's GID."""
        path = f"/marker/{marker}/ready?timeout_s={timeout_s:g}"
        await self._request("GET", path, timeout_s=timeout_s + _ANSWER_S)

    async def lease_marker(self, marker: str, lease_s: float) -> ExportedSnapshot:
        """Have the node hold its snapshot for ``lease_s`` from now on, and export it."""
        path, body = f"/marker/{marker}/lease", {"lease_s": lease_s}
        return await self._call("POST", path, ExportedSnapshot, body)

    async def tables(self, marker: str, timeout_s: float) -> dict[str, TableSummary]:
        """Checksums of all replicated tables in the marker's snapshot."""
        path = f"/marker/{marker}/tables"
        return (await self._call("POST", path, _Tables, timeout_s=timeout_s)).tables

    async def buckets(self, marker: str, table: str, timeout_s: float) -> dict[int, str]:
        """Checksums of a table's rows by bucket of their key's hash."""
        path, body = f"/marker/{marker}/buckets", {"table": table}
        return (await self._call("POST", path, _Buckets, body, timeout_s)).buckets

    async def keys(self, marker: str, table: str, bucket: int, timeout_s: float) -> dict[str, str]:
        """Checksum of each row of one bucket, by key."""
        path, body = f"/marker/{marker}/keys", {"table": table, "bucket": bucket}
        return (await self._call("POST", path, _Keys, body, timeout_s)).keys

    async def check_indexes(self, timeout_s: float) -> IndexSummary:
        """Have the node compare its indexes with their tables."""
        return await self._call("POST", "/indexes", IndexSummary, timeout_s=timeout_s)

    async def drop_marker(self, marker: str) -> None:
        """Give the marker's snapshot back."""
        await self._request("DELETE", f"/marker/{marker}")

    async def read_changes(self, after: int, max_bytes: int) -> bytes:
        """A part of the log from ``after + 1`` on: a line of JSON and blocks, see the sidecar."""
        body = {"after": after, "max_bytes": max_bytes}
        return await self._request("POST", "/changes/read", body, timeout_s=_CHANGES_S)

    async def hold_changes(self, stream: str, after: int, lease_s: float) -> None:
        """Have the node keep its log after a position for ``lease_s`` from now on."""
        body = {"stream": stream, "after": after, "lease_s": lease_s}
        await self._request("POST", "/changes/hold", body)

    async def release_hold(self, hold: str) -> bool:
        """Have the node keep its log no longer for one who holds it; False if nobody has it so."""
        return (await self._call("POST", "/log/release", _Released, {"hold": hold})).released

    async def changed_tables(self) -> ChangedTables:
        """The columns that tables had."""
        return await self._call("GET", "/changes/tables", ChangedTables)

    async def _call(
        self,
        method: str,
        path: str,
        answer: type[Answer],
        body: dict[str, Any] | None = None,
        timeout_s: float = _ANSWER_S,
    ) -> Answer:
        content = await self._request(method, path, body, timeout_s)
        try:
            return answer.model_validate_json(content)
        except ValidationError as error:
            raise AdminError(f"{method} {path}: unexpected answer {content[:200]!r}") from error

    async def _request(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        timeout_s: float = _ANSWER_S,
    ) -> bytes:
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
