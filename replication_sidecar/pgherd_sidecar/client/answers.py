"""The answers of a sidecar over its admin API, as values."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from pgherd_sidecar.client.answerbase import AnswerBase
from pgherd_sidecar.client.maintenance import UnderWayAnswer
from pgherd_sidecar.client.view import PeerAnswer, ViewAnswer

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
    "reader",
    "maintenance",
]


class LogHold(AnswerBase):
    """Somebody for whom a member keeps its log after a position, until a time.

    ``bytes`` is what the log takes there after the position, about.
    """

    hold: str
    after: int
    until: str
    bytes: int = 0


class ScrubDifference(AnswerBase):
    """Something that the scrub has found to differ twice.

    Attributes:
        kind: ``rows`` of a table, an ``index``, or the ``tables`` themselves.
        keys: some of them, as JSON, with the members that each concerns.
        members: whom a majority contradicts; all where there is no majority.
        gid: where it was seen last.
    """

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


class ScrubStatus(AnswerBase):
    """How far the scrub is, as far as this member knows.

    ``not_answering`` has the numbers of members that have not answered lately.
    """

    interval_s: float
    share: float
    table: str
    began: str | None
    finished: str | None
    not_answering: tuple[int, ...]
    differences: tuple[ScrubDifference, ...]


class IncidentAnswer(BaseModel):
    """A stop or a rebuild of a node's database: its cause, and how it ended; see the sidecar."""

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


class DatabaseSeen(AnswerBase):
    """The log's word about a member's database."""

    name: str
    condition: str
    since: int = 0
    gid: int = 0
    cause: str = ""


class HotKeyAnswer(AnswerBase):
    """A key that a member's own transactions have lost by, told by its hash.

    Attributes:
        table: its table; or those of the transaction; or why, where it was no key.
        gid: of the one that won last.
    """

    table: str
    key: str
    count: int
    gid: int


class LongCommandAnswer(AnswerBase):
    """An index that is being built or dropped on all members, as one of them sees it.

    Attributes:
        origin: the member whose client wants it.
        done: the members that have reported it; the origin does not report.
        here: this member has it, or has it no more if it is dropped.
        phase: what this member does for it at the moment, in PostgreSQL's words.
        failed: why it can't be built.
        kind: `build` or `drop`.
    """

    index: str
    table: str
    origin: str
    done: tuple[str, ...] = ()
    here: bool = False
    phase: str = ""
    failed: str = ""
    kind: str = "build"


class Status(BaseModel):
    """AnswerBase of ``GET /status``. More fields (counters) are kept as they are."""

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
    view: ViewAnswer | None = None
    peers: dict[str, PeerAnswer] = {}
    log_holds: tuple[LogHold, ...] = ()
    capture: str = ""
    capture_reason: str = ""
    capture_off: tuple[str, ...] = ()
    capture_kept: tuple[str, ...] = ()
    roles_differ: tuple[str, ...] = ()
    roles_undone: tuple[str, ...] = ()
    without_key: tuple[str, ...] = ()
    maintenance: UnderWayAnswer | None = None
    maintenance_waits: str = ""
    long_commands: tuple[LongCommandAnswer, ...] = ()
    scrub: ScrubStatus | None = None
    incidents: tuple[IncidentAnswer, ...] = ()
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
    hot_keys: tuple[HotKeyAnswer, ...] = ()


class SplitAnswer(AnswerBase):
    """Members that become a cluster of their own.

    Attributes:
        cluster_id: of theirs; ``split_from`` is that of the one that they leave.
        left: the members that stay behind.
        gid: the end of the log of the one that was asked.
    """

    cluster_id: str
    split_from: str
    members: tuple[str, ...]
    left: tuple[str, ...]
    gid: int


class SkipPlan(AnswerBase):
    """The consequences if an entry counts as having no effect.

    Attributes:
        stopped: members that could not apply it, and go on behind it.
        rebuilt: members that are made anew from those, unless they have yet to come by it.
    """

    gid: int
    stopped: tuple[str, ...]
    rebuilt: tuple[str, ...]


class MarkerAnswer(AnswerBase):
    """An ordered marker entry: ``gid`` is its position."""

    id: str
    gid: int


class SnapshotAnswer(AnswerBase):
    """The snapshot at a marker, as sessions of that node's server import it.

    ``visible`` is its ``pg_current_snapshot()``.
    """

    gid: int
    snapshot: str
    visible: str


class TableSummary(AnswerBase):
    """The rows that one node holds of one table at the marker."""

    rows: int
    checksum: str
    columns: str


class IndexSummary(AnswerBase):
    """The findings of one node that compared its indexes with their tables.

    ``available`` says whether its server has amcheck.
    """

    available: bool
    checked: int
    faults: dict[str, str]
    skipped: dict[str, str]


class TableColumns(AnswerBase):
    """The live columns of a table from a GID on, as they are in records; and its primary key.

    Values of ``generated`` columns are not in records.
    """

    table: str
    gid: int
    columns: tuple[str, ...]
    types: tuple[str, ...]
    key: tuple[str, ...]
    generated: tuple[str, ...] = ()


class ChangedTables(AnswerBase):
    """The columns that tables had up to the position ``visible``, in the order of their GIDs."""

    visible: int
    tables: list[TableColumns]
