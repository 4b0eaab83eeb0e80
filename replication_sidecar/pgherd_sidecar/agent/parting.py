"""Members without a quorum that part for good, while their logs run: who may, when, and the talk.

A plan comes from an administrator, by way of any of the parties, or from each of them when they are
configured so (``partition_policy``) and have been without the others for long enough. What is told
and remembered is ``core.log.parting``'s; what has to be done while the log is closed is
``parted``'s: ``on_due`` asks for that, and the log begins again afterwards.

* Nobody parts that is in the primary component, or whose side would be a quorum by its log [S1].
* By itself a member parts only from those with whom it has been in a primary component since it
  started, or after one that was: members that come back from a power failure one by one wait.
* A member that has consented is *sealed*: it says and takes nothing of the old cluster's log, and
  waits for the other parties, or for an administrator who names fewer.

Called by ``LogHost`` and ``Views``. Survives a restart: see ``parted``.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

import structlog

from pgherd_sidecar.agent.adminport import Refused, Unavailable
from pgherd_sidecar.agent.config import NodeConfig
from pgherd_sidecar.agent.parted import Parted, load
from pgherd_sidecar.agent.peers import Peers
from pgherd_sidecar.core.log import Membership, Parting
from pgherd_sidecar.core.log.parting import Part, Plan, objection

_log = structlog.get_logger()

_PACE_S = 0.25
_ORDER_S = 30.0
"""An administrator's wish is forgotten after so long: he sees that it came to nothing."""
_ECHO_S = 10.0
"""So is one that is heard of from another member, if it is no longer repeated."""


class _Host(Protocol):
    """What is asked of the log."""

    @property
    def membership(self) -> Membership: ...

    @property
    def primary(self) -> bool: ...

    @property
    def peers(self) -> Peers: ...


class Splitter:
    """One member's share in parting from its cluster.

    Attributes:
        on_due: called on the loop, once, when there is something to be done on the closed log.
        due: what this member has to consent to then; None if it has to do the last step.
        sealed: it has consented, and is no member of the new cluster yet.
        trouble: why it can't consent; it does not try again.

    Args:
        config: this member's.
        disk: identity of the disk its log is on.
        host: its log.

    Raises:
        IdentityError: what is on disk about it is damaged.
    """

    def __init__(self, config: NodeConfig, disk: str, host: _Host) -> None:
        self.on_due: Callable[[], None] = lambda: None
        self.due: Plan | None = None
        self.trouble = ""
        self._config = config
        self._disk = disk
        self._host = host
        self._cluster = str(config.cluster_id)
        self._part = Part(config.name, load(config.data_dir).known)
        known = self._part.plan
        self.sealed = known is not None and known.cluster == self._cluster
        self._automatic = config.partition_policy == "permanent"
        self._delay_s = config.timing.partition_split_ms / 1000
        self._was_primary = False
        self._side: frozenset[str] | None = None
        self._since_s = 0.0
        self._forget_s: float | None = None
        self._orders = False
        self._others: dict[str, Plan] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._ended = False

    @property
    def successor(self) -> str:
        """The cluster that this member has consented to become one of; empty if there is none."""
        return self._part.plan.successor if self.sealed and self._part.plan is not None else ""

    @property
    def reason(self) -> str:
        """What a sealed member waits for; empty if it is none."""
        if not self.sealed:
            return ""
        return (
            f"it leaves cluster {self._cluster} for {self.successor}, and waits for the consent of "
            f"{', '.join(self._part.missing)}; `pgherd promote-partition` can name fewer"
        )

    def start(self) -> None:
        """Look now and then, from now on."""
        self._timer = asyncio.get_running_loop().call_later(_PACE_S, self._look)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def plan(self, names: Iterable[str]) -> Plan:
        """Return the plan of an administrator.

        Raises:
            Refused: these can't part.
            Unavailable: not all of them are linked with this one.
        """
        wanted = frozenset(names)
        disks = self._disks()
        strangers = sorted(wanted - disks.keys())
        if strangers:
            raise Refused(f"{', '.join(strangers)} are no voters by the log of {self._config.name}")
        plan = Plan(self._cluster, tuple(sorted((n, disks[n]) for n in wanted)), ordered=True)
        refusal = self._objection(plan)
        if refusal:
            raise Refused(refusal)
        silent = sorted(wanted - {self._config.name} - self._host.peers.linked)
        if silent:
            raise Unavailable(f"{', '.join(silent)} must be there, and is not linked")
        return plan

    def order(self, plan: Plan) -> None:
        """Have the parties of a plan part, as soon as all are willing."""
        self._want(plan, _ORDER_S, orders=True)
        self._say()
        self._maybe_end()

    def receive(self, sender: str, said: Parting) -> None:
        """Take what another member says."""
        if self._ended or self._me not in said.plan.parties or sender not in said.plan.names:
            return
        if self._part.hear(sender, said):
            Parted(self._part.known).save(self._config.data_dir)
        if said.plan == self._part.plan:
            mine = self._part.known
            if mine is not None and len(said.consents) < len(mine.consents):
                self._host.peers.send([(sender, mine)])
        else:
            self._others[sender] = said.plan
            if self._follows(said) and not self._objection(said.plan):
                self._want(said.plan, _ECHO_S, orders=self._orders and said.plan == self._intent)
                self._part.hear(sender, said)
        self._maybe_end()

    def _follows(self, said: Parting) -> bool:
        """Tell whether it is for others to say when: an administrator, or who has consented.

        Who is sealed follows the former only: those of two plans would change places for ever.
        """
        if said.consents:
            return not self.sealed and (said.plan.ordered or self._automatic)
        return said.plan.ordered

    @property
    def _me(self) -> tuple[str, str]:
        return self._config.name, self._disk

    @property
    def _intent(self) -> Plan | None:
        return self._part.intent

    def _want(self, plan: Plan, for_s: float, *, orders: bool = False) -> None:
        now_s = asyncio.get_running_loop().time()
        if plan != self._intent:
            self._forget_s = None
            _log.warning("willing_to_part", plan=plan.successor, members=plan.names)
        self._orders = orders
        self._forget_s = max(self._forget_s or 0.0, now_s + for_s)
        self._part.want(plan)

    def _look(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_PACE_S, self._look)
        if self._ended:
            return
        now_s = asyncio.get_running_loop().time()
        self._was_primary |= self._host.primary
        side = None if self._host.primary else self._present()
        if side != self._side:
            self._side, self._since_s = side, now_s
        intent = self._intent
        if intent is not None and (
            self._objection(intent) or (self._forget_s is not None and now_s >= self._forget_s)
        ):
            self._part.drop()
        due = side is not None and now_s - self._since_s >= self._delay_s
        if side is not None and due and self._automatic and not self.sealed:
            self._part_by_policy(side)
        self._say()
        self._maybe_end()

    def _part_by_policy(self, side: frozenset[str]) -> None:
        disks = self._disks()
        if not side <= disks.keys():
            return
        plan = Plan(self._cluster, tuple(sorted((name, disks[name]) for name in side)))
        knows = self._was_primary or plan in self._others.values()
        settled = self._intent is not None and self._intent.ordered
        if knows and not settled and not self._objection(plan):
            self._want(plan, _ECHO_S)

    def _present(self) -> frozenset[str]:
        """This member, and the voters that it is linked with."""
        return frozenset({self._config.name}) | self._host.peers.linked & self._disks().keys()

    def _disks(self) -> dict[str, str]:
        """The voters and their disks, by this member's log."""
        view = self._host.membership.view
        return {m.name: m.disk for m in view.members if m.disk} if view is not None else {}

    def _objection(self, plan: Plan) -> str:
        """Say why this member does not take part in that; empty if it may [S1]."""
        if plan.cluster != self._cluster:
            return f"they are to leave cluster {plan.cluster}, this one is {self._cluster}"
        if self._me not in plan.parties:
            return f"{self._config.name} is none of them: ask one of them"
        if self._host.primary:
            return f"{self._config.name} is in the primary component"
        if self._host.peers.has_left and not self.sealed:
            return f"{self._config.name} has left the herd"
        return self.trouble or objection(plan, self._host.membership)

    def _say(self) -> None:
        said = self._part.say(ordered=self._orders)
        live = self.sealed or (said is not None and said.plan == self._intent)
        if said is not None and live:
            others = set(said.plan.names) & self._host.peers.linked
            self._host.peers.send([(name, said) for name in sorted(others)])

    def _maybe_end(self) -> None:
        """Have done what is due, if anything is."""
        self.due = self._part.due
        if not self._ended and (self.due is not None or (self.sealed and self._part.complete)):
            self._ended = True
            self._say()
            self.on_due()
