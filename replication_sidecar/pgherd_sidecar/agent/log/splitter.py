"""Members without a quorum that split off for good, while their logs run: the talk.

``core.consensus.split.splitting`` decides who may, and when; here it is told what a member sees.
``splitsteps`` does what has to be done while the log is closed: ``on_due`` asks for that, and the
log begins again afterwards.

``splitsteps`` keeps what survives a restart.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

import structlog

from pgherd_sidecar.agent.admin.port import Refused, Unavailable
from pgherd_sidecar.agent.base.beat import until_next_s
from pgherd_sidecar.agent.base.config import NodeConfig
from pgherd_sidecar.agent.log.splitsteps import StoredSplit, load_split
from pgherd_sidecar.agent.membership.peers import Peers
from pgherd_sidecar.core.consensus import Membership, SplitMessage
from pgherd_sidecar.core.consensus.model.split import SplitPlan
from pgherd_sidecar.core.consensus.split.splitting import (
    Absent,
    Impossible,
    SplitSurroundings,
    Splitting,
)

_log = structlog.get_logger()

_PACE_S = 0.2


class _Host(Protocol):
    """The log, as far as it is asked here."""

    @property
    def membership(self) -> Membership: ...

    @property
    def primary(self) -> bool: ...

    @property
    def peers(self) -> Peers: ...


class Splitter:
    """One member's share in splitting its cluster.

    Args:
        config: this member's.
        disk: identity of the disk its log is on.
        host: its log.
        on_due: called on the loop, once, when there is something to be done on the closed log.

    Raises:
        IdentityError: what is on disk about it is damaged.
    """

    def __init__(
        self, config: NodeConfig, disk: str, host: _Host, on_due: Callable[[], None]
    ) -> None:
        self._on_due = on_due
        self._config = config
        self._host = host
        permanent = config.partition_policy == "permanent"
        self._splitting = Splitting(
            config.name,
            disk,
            str(config.cluster_id),
            load_split(config.data_dir).known,
            delay_s=config.timing.partition_split_ms / 1000 if permanent else None,
        )
        self._timer: asyncio.TimerHandle | None = None
        self._told: SplitPlan | None = None
        self._ended = False

    @property
    def due(self) -> SplitPlan | None:
        """The plan that this member has to consent to then; None if it has to do the last step."""
        return self._splitting.due

    @property
    def sealed(self) -> bool:
        """It has consented, and is no member of the new cluster yet."""
        return self._splitting.sealed

    @property
    def successor(self) -> str:
        """The cluster that this member has consented to become one of; empty if there is none."""
        return self._splitting.successor

    @property
    def reason(self) -> str:
        """The reason why a sealed member waits; empty if it is none."""
        if not self.sealed:
            return ""
        return (
            f"it leaves cluster {self._splitting.cluster} for {self.successor}, and waits for the "
            f"consent of {', '.join(self._splitting.missing)}; `pgherd split` can name "
            "fewer"
        )

    def give_up(self, trouble: str) -> None:
        """Consent to nothing, since it can't: say why, unless it is empty."""
        self._splitting.trouble = trouble

    def start(self) -> None:
        """Look now and then, from now on."""
        self._timer = asyncio.get_running_loop().call_later(until_next_s(_PACE_S), self._look)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def make_plan(self, names: Iterable[str]) -> SplitPlan:
        """Return the plan of an administrator.

        Raises:
            Refused: these can't split off.
            Unavailable: not all of them are linked with this one.
        """
        try:
            return self._splitting.make_plan(names, self._seen())
        except Impossible as error:
            raise Refused(str(error)) from error
        except Absent as error:
            raise Unavailable(str(error)) from error

    def order_split(self, plan: SplitPlan) -> None:
        """Have the parties of a plan split off, as soon as all are willing."""
        self._splitting.order_split(plan, self._seen(), asyncio.get_running_loop().time())
        self._carry_out()

    def receive(self, sender: str, said: SplitMessage) -> None:
        """Take what another member says."""
        now_s = asyncio.get_running_loop().time()
        self._splitting.receive(sender, said, self._seen(), now_s)
        self._carry_out()

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(until_next_s(_PACE_S), self._look)
        self._splitting.tick(self._seen(), loop.time())
        self._carry_out()

    def _seen(self) -> SplitSurroundings:
        host, peers = self._host, self._host.peers
        return SplitSurroundings(host.membership, host.primary, peers.linked, peers.has_left)

    def _carry_out(self) -> None:
        splitting = self._splitting
        if splitting.unsaved is not None:
            StoredSplit(splitting.unsaved).save(self._config.data_dir)
            splitting.unsaved = None
        intent = splitting.intent
        if intent is not None and intent != self._told:
            _log.warning("split.offered", plan=intent.successor, members=intent.names)
        self._told = intent
        messages = splitting.take_messages()
        if messages:
            self._host.peers.send(messages)
        if splitting.ending and not self._ended:
            self._ended = True
            self._on_due()
