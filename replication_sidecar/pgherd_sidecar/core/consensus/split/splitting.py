"""One member's decisions about a split for good while its log runs, free of IO [S1-S7].

A plan comes from an administrator, by way of any of the parties, or from each of them when they are
configured so and have been without the others for long enough.

* No member splits off that is in the primary component, or whose side would be a quorum by its
  log [S1].
* By itself a member leaves only those with whom it has been in a primary component since it
  started, or after one that was: members that come back from a power failure one by one wait.
* A member that has consented is *sealed*: it says and takes nothing of the old cluster's log, and
  waits for the other parties, or for an administrator who names fewer.

The caller makes ``unsaved`` durable before it sends ``take_messages``, and closes the log once
``ending``: then it does the steps of ``laststep``, and a new life begins with what is on disk.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from pgherd_sidecar.core.consensus.model.quorum import Membership
from pgherd_sidecar.core.consensus.model.split import SplitMessage, SplitPlan, SplitShare, objection

ORDER_S = 30.0
"""An administrator's wish is forgotten after so long: he sees that it came to nothing."""
_ECHO_S = 10.0
"""So is one that is heard of from another member, if it is no longer repeated."""


class Impossible(Exception):
    """These can't split off; the message is one line."""


class Absent(Exception):
    """Not all parties are linked with this member; the message is one line."""


@dataclass(frozen=True, slots=True)
class SplitSurroundings:
    """What a member sees of its cluster at a moment.

    Attributes:
        membership: the newest in its log.
        primary: it is in the primary component.
        linked: names of the members that it is linked with.
        has_left: it is no member any more.
    """

    membership: Membership
    primary: bool
    linked: frozenset[str]
    has_left: bool = False

    @property
    def disks(self) -> dict[str, str]:
        """The voters and their disks."""
        view = self.membership.view
        return {m.name: m.disk for m in view.members if m.disk} if view is not None else {}


class Splitting:
    """One member's share in splitting its cluster.

    Attributes:
        cluster: identity of the cluster that it is of.
        due: what it has to consent to when the log is closed; None if it has to do the last step.
        ending: the log is to be closed, for one of the two.
        sealed: it has consented, and is no member of the new cluster yet.
        trouble: why it can't consent; it does not try again.
        unsaved: what has become known and is not durable yet; the caller sets it to None.

    Args:
        name: of this member.
        disk: identity of the disk its log is on.
        known: what it has on disk about a split.
        delay_s: it is willing by itself after so long without the others; None for never.
    """

    def __init__(
        self,
        name: str,
        disk: str,
        cluster: str,
        known: SplitMessage | None,
        *,
        delay_s: float | None,
    ) -> None:
        self.cluster = cluster
        self.due: SplitPlan | None = None
        self.ending = False
        self.trouble = ""
        self.unsaved: SplitMessage | None = None
        self._name = name
        self._me = name, disk
        self._share = SplitShare(name, known)
        self.sealed = self._share.plan is not None and self._share.plan.cluster == cluster
        self._delay_s = delay_s
        self._was_primary = False
        self._side: frozenset[str] | None = None
        self._since_s = 0.0
        self._forget_s = 0.0
        self._orders = False
        self._others: dict[str, SplitPlan] = {}
        self._messages: list[tuple[str, SplitMessage]] = []

    @property
    def intent(self) -> SplitPlan | None:
        """What this member is willing for."""
        return self._share.intent

    @property
    def successor(self) -> str:
        """The cluster that this member has consented to become one of; empty if there is none."""
        return self._share.plan.successor if self.sealed and self._share.plan is not None else ""

    @property
    def missing(self) -> tuple[str, ...]:
        """Whose consents a sealed member waits for."""
        return self._share.missing

    def take_messages(self) -> list[tuple[str, SplitMessage]]:
        """Return what is to be sent, by name of the member."""
        messages, self._messages = self._messages, []
        return messages

    def make_plan(self, names: Iterable[str], seen: SplitSurroundings) -> SplitPlan:
        """Return the plan of an administrator.

        Raises:
            Impossible: these can't split off.
            Absent: not all of them are linked with this one.
        """
        wanted, disks = frozenset(names), seen.disks
        strangers = sorted(wanted - disks.keys())
        if strangers:
            raise Impossible(f"{', '.join(strangers)} are no voters by the log of {self._name}")
        plan = SplitPlan(self.cluster, tuple(sorted((n, disks[n]) for n in wanted)), ordered=True)
        refusal = self._objection(plan, seen)
        if refusal:
            raise Impossible(refusal)
        silent = sorted(wanted - {self._name} - seen.linked)
        if silent:
            raise Absent(f"{', '.join(silent)} must be there, and is not linked")
        return plan

    def order_split(self, plan: SplitPlan, seen: SplitSurroundings, now_s: float) -> None:
        """Have the parties of a plan split off, as soon as all are willing."""
        self._want(plan, now_s + ORDER_S, orders=True)
        self._say(seen)
        self._maybe_end(seen)

    def receive(
        self, sender: str, said: SplitMessage, seen: SplitSurroundings, now_s: float
    ) -> None:
        """Take what another member says."""
        if self.ending or self._me not in said.plan.parties or sender not in said.plan.names:
            return
        if self._share.hear(sender, said):
            self.unsaved = self._share.known
        if said.plan == self._share.plan:
            mine = self._share.known
            if mine is not None and len(said.consents) < len(mine.consents):
                self._messages.append((sender, mine))
        else:
            self._others[sender] = said.plan
            if self._follows(said) and not self._objection(said.plan, seen):
                orders = self._orders and said.plan == self.intent
                self._want(said.plan, now_s + _ECHO_S, orders=orders)
                self._share.hear(sender, said)
        self._maybe_end(seen)

    def tick(self, seen: SplitSurroundings, now_s: float) -> None:
        """Do what the time demands; called several times a second."""
        if self.ending:
            return
        self._was_primary |= seen.primary
        side = None if seen.primary else frozenset({self._name}) | seen.linked & seen.disks.keys()
        if side != self._side:
            self._side, self._since_s = side, now_s
        if self.intent is not None and (
            self._objection(self.intent, seen) or now_s >= self._forget_s
        ):
            self._share.drop_plan()
        due = self._delay_s is not None and now_s - self._since_s >= self._delay_s
        if side is not None and due and not self.sealed:
            self._split_by_policy(side, seen, now_s)
        self._say(seen)
        self._maybe_end(seen)

    def _follows(self, said: SplitMessage) -> bool:
        """Tell whether it is for others to say when: an administrator, or who has consented.

        A sealed member follows the former only: those of two plans would change places for ever.
        """
        if said.consents:
            return not self.sealed and (said.plan.ordered or self._delay_s is not None)
        return said.plan.ordered

    def _want(self, plan: SplitPlan, until_s: float, *, orders: bool = False) -> None:
        if plan != self.intent:
            self._forget_s = 0.0
        self._orders = orders
        self._forget_s = max(self._forget_s, until_s)
        self._share.want_plan(plan)

    def _split_by_policy(self, side: frozenset[str], seen: SplitSurroundings, now_s: float) -> None:
        disks = seen.disks
        if not side <= disks.keys():
            return
        plan = SplitPlan(self.cluster, tuple(sorted((name, disks[name]) for name in side)))
        knows = self._was_primary or plan in self._others.values()
        settled = self.intent is not None and self.intent.ordered
        if knows and not settled and not self._objection(plan, seen):
            self._want(plan, now_s + _ECHO_S)

    def _objection(self, plan: SplitPlan, seen: SplitSurroundings) -> str:
        """Say why this member does not take part in that; empty if it may [S1]."""
        if plan.cluster != self.cluster:
            return f"they are to leave cluster {plan.cluster}, this one is {self.cluster}"
        if self._me not in plan.parties:
            return f"{self._name} is none of them: ask one of them"
        if seen.primary:
            return f"{self._name} is in the primary component"
        if seen.has_left and not self.sealed:
            return f"{self._name} has left the herd"
        return self.trouble or objection(plan, seen.membership)

    def _say(self, seen: SplitSurroundings) -> None:
        said = self._share.next_message(ordered=self._orders)
        live = self.sealed or (said is not None and said.plan == self.intent)
        if said is not None and live:
            self._messages += [(n, said) for n in sorted(seen.linked.intersection(said.plan.names))]

    def _maybe_end(self, seen: SplitSurroundings) -> None:
        due = self._share.due
        # what it sees may have changed since it became willing
        self.due = due if due is not None and not self._objection(due, seen) else None
        if not self.ending and (self.due is not None or (self.sealed and self._share.complete)):
            self.ending = True
            self._say(seen)
