"""The routes of the admin API and their requests, once for the sidecar and for all who ask it.

``agent.admin`` answers them; ``AdminClient`` and the operator ask them. Answers are in ``admin``.
Values only. The limits in the requests are judged by the sidecar: who asks hears of a wrong value
as status 400.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

_LeaseSeconds = Annotated[float, msgspec.Meta(ge=1, le=3600)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=63, pattern=r"^[^\x00]*$")]


@dataclass(frozen=True, slots=True)
class Route:
    """One thing to ask.

    Attributes:
        method: GET, POST or DELETE.
        path: with ``{id}`` in the place of a marker's.
    """

    method: str
    path: str

    def of(self, marker: str) -> "Route":
        """Return the route of one marker."""
        return Route(self.method, self.path.format(id=marker))


STATUS = Route("GET", "/status")
METRICS = Route("GET", "/metrics")
SHUTDOWN = Route("POST", "/shutdown")
REBUILD = Route("POST", "/rebuild")
EXPLAIN = Route("POST", "/explain")
SKIP = Route("POST", "/skip")
LEAVE = Route("POST", "/view/leave")
EVICT = Route("POST", "/view/evict")
SPLIT = Route("POST", "/view/part")
LINKS = Route("POST", "/links")
ORDER_MARKER = Route("POST", "/marker")
MARKER_READY = Route("GET", "/marker/{id}/ready")
LEASE_MARKER = Route("POST", "/marker/{id}/lease")
MARKER_TABLES = Route("POST", "/marker/{id}/tables")
MARKER_BUCKETS = Route("POST", "/marker/{id}/buckets")
MARKER_KEYS = Route("POST", "/marker/{id}/keys")
DROP_MARKER = Route("DELETE", "/marker/{id}")
INDEXES = Route("POST", "/indexes")
READ_CHANGES = Route("POST", "/changes/read")
HOLD_CHANGES = Route("POST", "/changes/hold")
CHANGED_TABLES = Route("GET", "/changes/tables")
RELEASE_LOG = Route("POST", "/log/release")
ROLES = Route("POST", "/roles")
MAINTAIN = Route("POST", "/maintenance")
MAINTENANCE = Route("POST", "/maintenance/known")
CANCEL_MAINTENANCE = Route("POST", "/maintenance/cancel")
DROP_SCHEDULE = Route("POST", "/maintenance/drop")
ORDER_SET = Route("POST", "/sets/order")
DROP_SET = Route("POST", "/sets/drop")
ORDER_SUBSCRIPTION = Route("POST", "/subscriptions/order")
END_SUBSCRIPTION = Route("POST", "/subscriptions/end")


class RebuildRequest(msgspec.Struct):
    """Of ``REBUILD``: from whom, and at most how fast; None leaves it to the sidecar."""

    partner: str | None = None
    rate_bytes_s: Annotated[int, msgspec.Meta(ge=32 << 10, le=1 << 30)] | None = None


class ExplainRequest(msgspec.Struct):
    """Of ``EXPLAIN``: the entry's GID, and whether values of rows are wanted."""

    gid: Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)]
    rows: bool = False


class SkipRequest(msgspec.Struct):
    """Of ``SKIP``: the entry's GID; without ``act`` it is only told what would be done."""

    gid: Annotated[int, msgspec.Meta(ge=1)]
    act: bool = False


class LeaveRequest(msgspec.Struct):
    """Of ``LEAVE`` and ``EVICT``: the member's name, and its disk where it is known."""

    name: str
    disk_id: str = ""


class SplitRequest(msgspec.Struct):
    """Of ``SPLIT``: who goes on alone; without ``act`` it is only told what would be done."""

    names: Annotated[list[str], msgspec.Meta(min_length=1)]
    act: bool = False


class LinksRequest(msgspec.Struct):
    """Of ``LINKS``: to whom links are cut, and who hears nothing of this member."""

    blocked: list[str]
    unsent: list[str] = []


class MarkerRequest(msgspec.Struct):
    """Of ``ORDER_MARKER``: who takes a snapshot at it; none named means all."""

    members: Annotated[tuple[_Name, ...], msgspec.Meta(max_length=1023)] = ()


class LeaseRequest(msgspec.Struct):
    """Of ``LEASE_MARKER``: how long the snapshot is wanted, in seconds."""

    lease_s: _LeaseSeconds


class TableRequest(msgspec.Struct):
    """Of ``MARKER_BUCKETS``: which table."""

    table: str


class BucketRequest(TableRequest):
    """Of ``MARKER_KEYS``: which bucket of the table."""

    bucket: int


class ReadRequest(msgspec.Struct):
    """Of ``READ_CHANGES``: behind which position, and about how many bytes."""

    after: Annotated[int, msgspec.Meta(ge=0)]
    max_bytes: Annotated[int, msgspec.Meta(ge=1, le=64 << 20)] = 4 << 20


class HoldRequest(LeaseRequest):
    """Of ``HOLD_CHANGES``: who reads, and behind which position the log is kept."""

    stream: Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
    after: Annotated[int, msgspec.Meta(ge=0)]


class ReleaseRequest(msgspec.Struct):
    """Of ``RELEASE_LOG``: which hold ends."""

    hold: str


_Statement = Annotated[str, msgspec.Meta(min_length=1, max_length=32768)]
"""A text of twice as much can be so deeply nested that the sidecar does not survive reading it."""
_Identifier = Annotated[str, msgspec.Meta(min_length=1, max_length=253, pattern=r"^[^\x00]*$")]


class MaintainRequest(msgspec.Struct):
    """Of ``MAINTAIN``: work that members do on their own servers, now or again and again.

    Attributes:
        sql: statements of one server only.
        vacuum_full: tables to write anew.
        reindex: tables whose indexes are to be written anew.
        members: who does it; none named means all that vote and have a database.
        one_by_one: none begins before the one before it is in service again.
        drain: a member is taken out of service meanwhile.
        grace_s: so long sessions of clients have to end by themselves, in seconds.
        deadline_s: so long the statements may take on one member, in seconds.
        every: five fields as of cron; empty: once, now.
        time_zone: of these.
        schedule: its name; with ``every`` empty, the one that asks for this run.
        run: a name for the run, so that it does not begin twice.
        act: do it; else it is only said whether it can be done.
    """

    sql: Annotated[list[_Statement], msgspec.Meta(max_length=64)] = []
    vacuum_full: Annotated[list[_Identifier], msgspec.Meta(max_length=64)] = []
    reindex: Annotated[list[_Identifier], msgspec.Meta(max_length=64)] = []
    members: Annotated[list[_Name], msgspec.Meta(max_length=1023)] = []
    one_by_one: bool = False
    drain: bool = False
    grace_s: Annotated[float, msgspec.Meta(ge=0, le=86400)] = 30.0
    deadline_s: Annotated[float, msgspec.Meta(ge=1, le=604800)] = 21600.0
    every: Annotated[str, msgspec.Meta(max_length=100)] = ""
    time_zone: Annotated[str, msgspec.Meta(max_length=64)] = "UTC"
    schedule: Annotated[str, msgspec.Meta(max_length=63)] = ""
    run: Annotated[str, msgspec.Meta(max_length=100)] = ""
    act: bool = True


class MaintenanceRequest(msgspec.Struct):
    """Of ``MAINTENANCE``: whose runs are wanted; none named means all."""

    schedule: str = ""


class CancelRequest(msgspec.Struct):
    """Of ``CANCEL_MAINTENANCE``: which run ends."""

    run: str


class DropRequest(msgspec.Struct):
    """Of ``DROP_SCHEDULE``: which schedule is forgotten."""

    schedule: str


_Followed = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,39}$")]
_Pattern = Annotated[str, msgspec.Meta(min_length=1, max_length=512, pattern=r"^[^\x00]*$")]
_Selection = Annotated[str, msgspec.Meta(min_length=1, max_length=8192, pattern=r"^[^\x00]*$")]


class SetRequest(msgspec.Struct):
    """Of ``ORDER_SET``: a set with exactly these tables and sequences.

    Attributes:
        tables: patterns, as ``sales.*``.
        exclude: patterns of tables that are not in it though others mean them.
        chosen: tables with a row filter or a column list, as FOR TABLE of CREATE PUBLICATION.
        sequences: patterns of sequences that columns of these tables own.
        chosen_tables: the tables of ``chosen``, where they were read before and the set is as they
            say: they are not read again.
    """

    name: _Followed
    tables: Annotated[list[_Pattern], msgspec.Meta(max_length=256)] = []
    chosen: Annotated[list[_Selection], msgspec.Meta(max_length=256)] = []
    sequences: Annotated[list[_Pattern], msgspec.Meta(max_length=256)] = []
    exclude: Annotated[list[_Pattern], msgspec.Meta(max_length=256)] = []
    chosen_tables: Annotated[list[_Pattern], msgspec.Meta(max_length=1024)] = []


class DropSetRequest(msgspec.Struct):
    """Of ``DROP_SET``: which set is dropped."""

    name: _Followed


class SubscriptionRequest(msgspec.Struct):
    """Of ``ORDER_SUBSCRIPTION``: who follows a set, and how.

    Attributes:
        dsn: how members reach the subscriber, with its password.
        keep_bytes: so much of the log is kept for it.
        keep_s: for so many seconds it is kept since the subscriber was reached last.
        provider: the subscription whose subscriber feeds it; None: the members do.
        forward: it may feed others.
        resume: go on if it was stopped; else it is left stopped as long as nothing has changed.
        anew_after: everything is copied anew if its generation is this one; None: it is not.
    """

    name: _Followed
    set: _Followed
    dsn: Annotated[str, msgspec.Meta(min_length=1, max_length=4096, pattern=r"^[^\x00]*$")]
    keep_bytes: Annotated[int, msgspec.Meta(ge=1 << 20, le=(1 << 63) - 1)] = 8 << 30
    keep_s: Annotated[float, msgspec.Meta(gt=0, le=744 * 3600)] = 72 * 3600.0
    provider: _Followed | None = None
    forward: bool = False
    resume: bool = False
    anew_after: int | None = None


class SubscriptionEnd(msgspec.Struct):
    """Of ``END_SUBSCRIPTION``: which one ends; with ``herd_only`` its subscriber stays as it is."""

    name: _Followed
    herd_only: bool = False


def body(request: msgspec.Struct) -> dict[str, Any]:
    """Return a request as what becomes JSON."""
    found: dict[str, Any] = msgspec.to_builtins(request)
    return found
