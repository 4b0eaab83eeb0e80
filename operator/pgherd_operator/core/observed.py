"""What the reconciler is given: one look at the Kubernetes API and one at every sidecar.

Plain values; nobody here knows how they were read. A sidecar that did not answer is simply not in
``reports``: that it is silent says nothing about whether it lives.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, ClassVar

from pgherd_operator.api.resource import Cluster
from pgherd_operator.objects import names
from pgherd_operator.objects.model import Origin, Retired, Role, Seat

MAINTENANCE = "maintenance"
"""State of a member that is drained for maintenance."""
Key = tuple[str, str]
"""Kind and name of an object."""


class Phase(StrEnum):
    """How far the founding of a herd is."""

    FOUNDING = "Founding"
    """Volumes are being made; no pod has ever existed, so no volume holds anything."""
    FOUNDED = "Founded"
    """For good: a missing volume is a lost one from now on."""


class Imported(StrEnum):
    """How an import online has ended."""

    NO = ""
    DONE = "Done"
    """For good: applications use the herd."""
    ABORTED = "Aborted"
    """Nothing is left of it, and it may begin anew."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """What the operator has to remember of a herd: its identity and how it began.

    Attributes:
        release: id of the operator's release that the herd has; empty where an older one made it.
        sidecar_image, postgres_image: those that the release brought.
        upgrading: not all members have that release yet.
        spec: the last one that could be used, as JSON; empty if none was kept.
        imported: how an import online has ended; empty while it has not.
        import_result: what was said of its end.
    """

    cluster_id: str
    phase: Phase
    founders: tuple[tuple[int, Role], ...] = ()
    release: str = ""
    sidecar_image: str = ""
    postgres_image: str = ""
    upgrading: bool = False
    spec: str = ""
    imported: Imported = Imported.NO
    import_result: str = ""


@dataclass(frozen=True, slots=True)
class ObservedVolume:
    """A member's volume claim.

    Attributes:
        version: changes with each change of the claim.
        capacity: what it has, empty if nobody says.
        growth: what those say who make it larger.
        pending: there is no disk for it yet.
        class_name: its storage class, empty if nobody says.
    """

    number: int
    uid: str
    role: Role
    origin: Origin
    cluster_id: str
    requested: str
    deleting: bool = False
    retired: Retired | None = None
    version: str = ""
    capacity: str = ""
    growth: str = ""
    pending: bool = False
    class_name: str = ""

    @property
    def usable(self) -> bool:
        """It is a member's, and stays so."""
        return not (self.deleting or self.retired)

    def seat(self) -> Seat:
        """The place in the herd that it makes."""
        return Seat(self.number, self.role, self.origin)


@dataclass(frozen=True, slots=True)
class Pod:
    """A member's pod. ``ready`` is used for restraint only, never as a proof of life or death.

    Attributes:
        node: where it is or is to run; empty where that is not decided.
    """

    number: int
    uid: str
    revision: str
    role: Role = Role.DATABASE
    ready: bool = False
    deleting: bool = False
    finished: bool = False
    """Its containers ended for good (the kubelet evicted it, say): it has to be made anew."""
    node: str = ""
    pending: bool = False
    """No container of it has ever run."""
    wish: str = ""
    """Digest of that part of the spec which it was made from."""
    trouble: str = ""
    """Why it does not run, in the words of the scheduler or the kubelet; empty if nobody says."""
    ends_at: datetime | None = None
    """When it is to have ended, if it is being deleted."""

    _LATE: ClassVar = timedelta(minutes=1)
    """So much later it has not ended because its node is gone, whatever clocks differ by."""

    def ends(self, now: datetime) -> bool:
        """Whether it is being deleted, and can be expected to end."""
        return self.deleting and (self.ends_at is None or now < self.ends_at + self._LATE)

    @property
    def unplaced(self) -> bool:
        """The scheduler says that it has no node for it."""
        return self.pending and not self.node and bool(self.trouble)


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret: which keys it has, and the validity of the certificate in it.

    Attributes:
        ours: the herd's, not somebody else's under its name.
        imported: id of the herd whose import online has ended well; empty where nobody says so.
        trusts: the certificates of the authorities that it tells of.
        signer: id of the authority that has signed its certificate.
        authority: id of the one that it is; empty if nobody would accept what that signs.
    """

    name: str
    uid: str
    ours: bool
    keys: frozenset[str]
    issued_at: datetime | None = None
    not_after: datetime | None = None
    imported: str = ""
    trusts: frozenset[str] = frozenset()
    signer: str = ""
    authority: str = ""

    _LATE: ClassVar = 0.8
    """So much of a validity is over only when the renewal, after two thirds, has failed."""
    _SOON: ClassVar = timedelta(days=30)
    """For a human to replace it; nobody needs longer, however long it was valid."""

    def used(self, now: datetime) -> float:
        """How much of the validity is over, of 1; 0 where nobody knows."""
        if self.issued_at is None or self.not_after is None:
            return 0.0
        if self.issued_at >= self.not_after:
            return 1.0
        return (now - self.issued_at) / (self.not_after - self.issued_at)

    def runs_out(self, now: datetime, *, by_hand: bool) -> bool:
        """Whether somebody has to see to it.

        Args:
            by_hand: nobody renews it but a human.
        """
        if self.not_after is None or self.used(now) < self._LATE:
            return False
        return not by_hand or self.not_after - now < self._SOON


@dataclass(frozen=True, slots=True)
class ViewMember:
    """A member of a view. ``disk_id`` tells it from another disk under the same name."""

    name: str
    number: int
    disk_id: str
    voter: bool = True
    witness: bool = False
    reader: bool = False

    @property
    def role(self) -> Role:
        """What it is there for."""
        return Role.WITNESS if self.witness else Role.READER if self.reader else Role.DATABASE


@dataclass(frozen=True, slots=True)
class View:
    """Who belongs to the herd, as its log has it. ``joint``: one view takes over from another."""

    id: int
    members: tuple[ViewMember, ...]
    joint: bool = False

    @property
    def voters(self) -> tuple[ViewMember, ...]:
        """Those whose votes make a quorum."""
        return tuple(member for member in self.members if member.voter)

    @property
    def majority(self) -> int:
        """Votes of a strict majority."""
        return len(self.voters) // 2 + 1

    def find(self, number: int) -> ViewMember | None:
        """The member of that number."""
        return next((member for member in self.members if member.number == number), None)


@dataclass(frozen=True, slots=True)
class Incident:
    """What stopped a member's database, or had it rebuilt; ``outcome`` is empty while it lasts.

    Attributes:
        number: counts those of this member.
        gid: of the entry that stopped it; 0 where it was none.
        statement, table, sqlstate: what it was about, as far as is known.
        cure: rebuild, or none.
    """

    number: int
    at: str
    kind: str
    gid: int = 0
    statement: str = ""
    table: str = ""
    sqlstate: str = ""
    cure: str = ""
    outcome: str = ""

    @property
    def text(self) -> str:
        """In words, without values of rows."""
        entry = f"GID {self.gid}" if self.gid else ""
        where = ", ".join(filter(None, (entry, self.statement, self.table, self.sqlstate)))
        lasting = "it is being rebuilt" if self.cure == "rebuild" else "it waits"
        about = f"{self.kind} at {where}" if where else self.kind
        return f"{self.at}: {about}: {self.outcome or lasting}"


@dataclass(frozen=True, slots=True)
class Report:
    """What a sidecar says of itself and of the view that it knows.

    Attributes:
        primary: it is in a component that has the quorum.
        state: ``primary`` only when it takes writes, that is: has caught up, too.
        disk_id: identity of the disk it runs on.
        departed: it was a member on this disk, and knows that it is none any more.
        capture_off: settings of its server that keep changes from being captured.
        differences: what the scrub has found to differ, as far as this member knows; None if it
            does not say.
        incident: the newest; None if there was none.
        held: why the herd takes no writes until an administrator has chosen; None if it does, or
            as far as this member knows.
        maintained: it is in maintenance, drained or not.
        knows_databases: it says what is known of the members' databases.
    """

    number: int
    cluster_id: str
    disk_id: str
    state: str
    primary: bool
    reason: str | None = None
    term: int = 0
    proposer: str | None = None
    gid: int | None = None
    lag_bytes: int | None = None
    view: View | None = None
    departed: bool = False
    capture_off: tuple[str, ...] = ()
    differences: tuple[str, ...] | None = None
    incident: Incident | None = None
    held: str | None = None
    maintained: bool = False
    knows_databases: bool = False

    @property
    def diverged(self) -> bool:
        """It cannot go on with its copy of the data: that is wrong, or too old."""
        return self.state in ("diverged", "stranded")


@dataclass(frozen=True, slots=True)
class ImportJob:
    """A Job that imports into the herd online; ``importing.job`` of the sidecar is what it runs.

    Attributes:
        revision: what it was made from.
        ended: whether well; None while it runs.
        outcome: what it has said at its end; empty if nobody has heard it.
        told: what it says while it runs; empty while nobody hears it.
        trouble: why its pod does not run.
    """

    uid: str
    revision: str
    ended: bool | None = None
    deleting: bool = False
    outcome: Mapping[str, Any] = field(default_factory=dict)
    told: Mapping[str, Any] = field(default_factory=dict)
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything at one moment.

    Attributes:
        volumes: those of this herd; of all herds while there is no ledger to tell which it is.
        foreign: volumes of other herds under this one's name (restored, say), by number: the number
            is taken, and that is all; nobody else may use or delete them.
        objects: live manifests of what ``objects.network`` and ``objects.config`` make, by kind
            and name; ours only.
        taken: what others have under the herd's names: nobody changes or deletes it.
        passing: likewise, but of an earlier herd of this name, and about to be gone.
        unreadable: kinds that the API server does not let us list, and its words. Nothing of such
            a kind is made or changed; the herd does without.
        import_jobs: of an import online, by their goals.
    """

    cluster: Cluster
    ledger: Ledger | None = None
    volumes: Mapping[int, ObservedVolume] = field(default_factory=dict)
    foreign: Mapping[int, ObservedVolume] = field(default_factory=dict)
    pods: Mapping[int, Pod] = field(default_factory=dict)
    secrets: Mapping[str, Secret] = field(default_factory=dict)
    objects: Mapping[Key, Mapping[str, Any]] = field(default_factory=dict)
    taken: frozenset[Key] = frozenset()
    passing: frozenset[Key] = frozenset()
    unreadable: Mapping[str, str] = field(default_factory=dict)
    import_jobs: Mapping[str, ImportJob] = field(default_factory=dict)
    reports: Mapping[int, Report] = field(default_factory=dict)

    def is_free(self, kind: str, name: str) -> bool:
        """Whether nobody else has this name."""
        return (kind, name) not in self.taken | self.passing

    def seats(self) -> list[Seat]:
        """The places in the herd, by number."""
        return [self.volumes[n].seat() for n in sorted(self.volumes) if self.volumes[n].usable]

    def certified(self) -> list[int]:
        """Numbers of the members that need a certificate: of the places, and of all that run.

        A member on a volume that is being deleted may have the last vote that is needed.
        """
        running = {number for number, pod in self.pods.items() if not pod.deleting}
        return sorted(running | {seat.number for seat in self.seats()})


def numbers_of(herd: str, objects: Iterable[Key]) -> set[int]:
    """Numbers of the members that objects are named after."""
    found = (names.number_of(herd, name) for _, name in objects)
    return {number for number in found if number is not None}


def last_view(observed: Observed) -> View | None:
    """The newest view that a member of this herd tells of, in force or not."""
    ledger = observed.ledger
    views = [
        report.view
        for report in observed.reports.values()
        if report.view is not None and ledger is not None and report.cluster_id == ledger.cluster_id
    ]
    return max(views, key=lambda view: view.id, default=None)
