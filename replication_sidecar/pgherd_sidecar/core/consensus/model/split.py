"""Splitting for good: members without a quorum become a cluster of their own [S1-S7, C21].

They are the *parties* of a plan. First each says that it is willing, which binds nobody. When all
of them have said so, or one of them has gone further, each *consents*: its part in the old cluster
has ended for ever, its log stays as it is, and what it holds is told to the others. All of these
consents together are facts that never change, so each party that knows them can do the last step
by itself, whenever: it takes the new identity, and all agree about the seed and the term.

`SplitShare` is one member's share in it, free of IO. The caller judges who may split off, and when;
it also makes durable what `SplitShare` knows before it says so, and does the last step.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from uuid import UUID, uuid5

from pgherd_sidecar.core.consensus.model.errors import RemoteProtocolError
from pgherd_sidecar.core.consensus.model.quorum import Member, Membership, View


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """Which members split off from which cluster.

    Attributes:
        cluster: identity of the cluster that they are of.
        parties: name and disk of each, sorted.
        ordered: an administrator wants it; otherwise it is what the parties are configured for.
    """

    cluster: str
    parties: tuple[tuple[str, str], ...]
    ordered: bool = field(default=False, compare=False)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parties, sorted."""
        return tuple(name for name, _ in self.parties)

    @property
    def successor(self) -> str:
        """Identity of the cluster that they become: the same whoever computes it, and when [S2]."""
        return str(uuid5(UUID(self.cluster), json.dumps(self.parties)))


@dataclass(frozen=True, slots=True)
class Consent:
    """What a party has at the end of its part in the old cluster.

    Attributes:
        member: the party, as it takes itself for.
        term: the highest that it has seen.
        last_term, last_position: of the end of its log.
    """

    member: Member
    term: int
    last_term: int
    last_position: int

    @property
    def party(self) -> tuple[str, str]:
        """Name and disk."""
        return self.member.name, self.member.disk


@dataclass(frozen=True, slots=True)
class SplitMessage:
    """What one party tells another: it would consent to the plan, or has; see `SplitShare`.

    Attributes:
        consents: those that the sender knows, sorted by name; none if it would only.
    """

    plan: SplitPlan
    consents: tuple[Consent, ...] = ()

    def encode(self) -> bytes:
        """Return this as JSON."""
        plan = self.plan
        rows = [[c.member.row, c.term, c.last_term, c.last_position] for c in self.consents]
        content = [plan.cluster, plan.parties, plan.ordered, rows]
        return json.dumps(content, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> "SplitMessage":
        """Return what was encoded.

        Raises:
            RemoteProtocolError: nobody can have encoded this.
        """
        try:
            cluster, parties, ordered, rows = json.loads(data)
            UUID(cluster)
            plan = SplitPlan(cluster, tuple(map(name_and_disk, parties)), bool(ordered))
            consents = tuple(
                Consent(Member.of(row), int(term), int(last_term), int(last))
                for row, term, last_term, last in rows
            )
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise RemoteProtocolError(f"not of a split: {error}") from error
        message = cls(plan, consents)
        if message.encode() != data or not {one.party for one in consents} <= {*plan.parties}:
            raise RemoteProtocolError("not of a split as members encode it")
        return message


def name_and_disk(value: object) -> tuple[str, str]:
    """Read a member's name and disk.

    Raises:
        ValueError: it is something else.
    """
    match value:
        case [str(name), str(disk)]:
            return name, disk
    raise ValueError(f"{value!r} is no name and disk")


@dataclass(frozen=True, slots=True)
class Founding:
    """What the parties agree about: whose log they go on with, from which term on, who they are.

    Attributes:
        seed: the member whose log is the most advanced; it alone appends the new view.
        term: of that entry, higher than any that one of them has seen.
        members: all of them.
    """

    seed: str
    term: int
    members: tuple[Member, ...]


class SplitShare:
    """One member's share in a split.

    Attributes:
        plan: what this member has consented to, None if nothing; survives a restart.
        consents: to it, as far as they are known, by name; likewise.
        intent: what this member is willing for, None if nothing.

    Args:
        name: of this member.
        known: what it knew before a restart; None if it has consented to nothing.
    """

    def __init__(self, name: str, known: SplitMessage | None = None) -> None:
        self.plan = known.plan if known is not None else None
        self.consents = {c.member.name: c for c in known.consents} if known is not None else {}
        self.intent: SplitPlan | None = None
        self._name = name
        self._willing: set[str] = set()
        self._begun = False

    def want_plan(self, plan: SplitPlan) -> None:
        """Be willing for this and nothing else."""
        if plan != self.intent:
            self._willing, self._begun = {self._name}, False
        self.intent = plan

    def drop_plan(self) -> None:
        """Be willing for nothing."""
        self.intent = None

    def hear(self, sender: str, said: SplitMessage) -> bool:
        """Take what another party says.

        Returns:
            Whether there is more to be made durable.
        """
        if said.plan == self.intent:
            self._willing.add(sender)
            self._begun |= bool(said.consents)
        if said.plan != self.plan:
            return False
        known = len(self.consents)
        self.consents = {c.member.name: c for c in said.consents} | self.consents
        return len(self.consents) > known

    @property
    def due(self) -> SplitPlan | None:
        """What this member has to consent to now, None if there is nothing [S3]."""
        plan = self.intent
        if plan is None or plan == self.plan:
            return None
        return plan if self._begun or self._willing.issuperset(plan.names) else None

    @property
    def known(self) -> SplitMessage | None:
        """What must survive a restart; None if this member has consented to nothing."""
        if self.plan is None:
            return None
        consents = sorted(self.consents.values(), key=lambda one: one.member.name)
        return SplitMessage(self.plan, tuple(consents))

    @property
    def complete(self) -> bool:
        """Whether all parties are known to have consented: the last step can be done [S4]."""
        return self.plan is not None and len(self.consents) == len(self.plan.parties)

    @property
    def missing(self) -> tuple[str, ...]:
        """Whose consents are not known yet."""
        names = self.plan.names if self.plan is not None else ()
        return tuple(name for name in names if name not in self.consents)

    def next_message(self, *, ordered: bool = True) -> SplitMessage | None:
        """Return what to tell the other parties, None if there is nothing.

        Args:
            ordered: the administrator has told this member. Who has it from another one does not
                pass it on, or it would never be forgotten.
        """
        if self.intent is not None and self.intent != self.plan:
            plan = self.intent
            return SplitMessage(replace(plan, ordered=plan.ordered and ordered))
        return self.known


def objection(plan: SplitPlan, membership: Membership) -> str:
    """Say why a member with this membership in its log must not take part; empty if it may [S1].

    Who could elect somebody by a log of theirs needs no other cluster. A quorum of one view of two
    could not, and might wait for ever for the other one's.
    """
    if membership.has_quorum(plan.names):
        return f"{', '.join(plan.names)} are enough to go on in the cluster as it is"
    voters = membership.view.members if membership.view is not None else ()
    members = [one for one in voters if (one.name, one.disk) in plan.parties]
    if len(members) < len(plan.parties):
        return f"not all of {', '.join(plan.names)} are voters on those disks"
    try:
        View(1, tuple(members))
    except ValueError as error:
        return f"{', '.join(plan.names)}: {error}"
    return ""


def consented(known: SplitMessage | None, plan: SplitPlan, consent: Consent) -> SplitMessage:
    """Return what a member knows that has just consented, to be made durable.

    Args:
        known: what it knew before: of another plan that came to nothing, or of this one.
        plan: what it consents to.
        consent: its own.
    """
    consents = {one.party: one for one in known.consents} if known and known.plan == plan else {}
    consents[consent.party] = consent
    return SplitMessage(plan, tuple(consents[party] for party in sorted(consents)))


def founding(consents: Iterable[Consent]) -> Founding:
    """Return what follows from the consents of all parties, whoever has them [S4]."""
    by_name = sorted(consents, key=lambda one: one.member.name)
    seed = max(by_name, key=lambda one: (one.last_term, one.last_position))
    term = max(one.term for one in by_name) + 1
    return Founding(seed.member.name, term, tuple(one.member for one in by_name))
