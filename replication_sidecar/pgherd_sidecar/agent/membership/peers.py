"""The other members: links to those that the log names, who is let in, what is asked of them.

Follows the log's memberships (``roster``): dials who is a member, lets in members and whoever may
become one, hangs up on who has left, and asks for this member's own place in the membership until
it is there. A member whose log has not begun (a joiner without a copy) is linked to nobody.

A restart does not change that this member has retired, or left.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace

import structlog

from pgherd_sidecar.agent.base.beat import until_next_s
from pgherd_sidecar.agent.base.config import NodeConfig
from pgherd_sidecar.agent.membership import founding, roster
from pgherd_sidecar.agent.membership.notes import DEPARTED, RETIRED, Note
from pgherd_sidecar.core.consensus import (
    Component,
    Identity,
    LogMember,
    Member,
    Membership,
    Message,
    objection,
)
from pgherd_sidecar.core.consensus.model.identity import has_left
from pgherd_sidecar.core.consensus.model.messages import Change
from pgherd_sidecar.env.network.connections import Bounds
from pgherd_sidecar.env.network.frames import PROTOCOL_VERSION, Hello
from pgherd_sidecar.env.network.links import Links
from pgherd_sidecar.env.network.tls import Credentials

_log = structlog.get_logger()

_ASK_S = 0.5
"""A member that is not in the membership as it should be asks so often, and whoever comes up."""
_FAREWELL_S = 3.0
"""A member that has left can still hear of it for so long."""


class Peers:
    """The links of one member, as its log wants them.

    Args:
        config: this member's.
        disk: identity of the disk its log is on.
        member: whose memberships are followed.
        receive: see ``Links``.
        on_up: see ``Links``.
        ask: asks for this member's entry in the membership.
        on_retired: called when this member turns out to have founded a second time.
        successor: the cluster that this member has consented to become one of.

    Raises:
        TlsError: this member's certificate can't be used.
        OSError: a file of this member can't be read.
        NoContactError: the log names members that this version can't reach.
    """

    def __init__(  # noqa: PLR0913 - ports and settings, all by name
        self,
        config: NodeConfig,
        disk: str,
        member: LogMember,
        *,
        receive: Callable[[str, Message], None],
        on_up: Callable[[str], None],
        on_ended: Callable[[str], None],
        ask: Callable[[Member], None],
        on_retired: Callable[[], None],
        successor: str = "",
    ) -> None:
        self._config = config
        self._successor = successor
        self._disk = disk
        self._member = member
        self._wish = ask
        self._on_up = on_up
        self._on_retired = on_retired
        self._retired = Note(config.data_dir, RETIRED)
        self._left = Note(config.data_dir, DEPARTED)
        self._founders = founding.others(config)
        self._silent_s = 2 * config.timing.election_timeout_ms / 1000
        self._membership: Membership | None = None
        self._reads_only = config.reader
        self._departed: frozenset[tuple[str, str]] = frozenset()
        self._asking: asyncio.TimerHandle | None = None
        self._farewell: asyncio.TimerHandle | None = None
        self._links = Links(
            me=self._hello(),
            host=config.listens_on,
            port=config.address.port,
            peers=(),
            bounds=Bounds(frame=config.limits.frame_bytes, buffer=config.limits.pending_bytes),
            objection=self._objection,
            has_left=self._has_left,
            known_disk=lambda name: founding.known_disk(name, member.membership),
            met=self._met,
            receive=receive,
            on_up=self._up,
            on_ended=on_ended,
            credentials=_credentials(config),
        )

    def send(self, messages: Iterable[tuple[str, Message]]) -> None:
        """Send messages to peers; those to a peer without a link are lost."""
        self._links.send(messages)

    async def start(self) -> None:
        """Link.

        Raises:
            OSError: the peer port can't be listened on.
        """
        self.note_membership()
        await self._links.start()

    async def stop(self) -> None:
        """Close all links."""
        for timer in (self._asking, self._farewell):
            if timer is not None:
                timer.cancel()
        await self._links.stop()

    @property
    def begun(self) -> bool:
        """Whether the log says who the members are; a witness may learn it from them."""
        return bool(self._member.membership.views) or self._config.witness

    @property
    def retired(self) -> str:
        """Why this member takes no part any more, for good; empty if it does."""
        return self._retired.text

    @property
    def has_left(self) -> bool:
        """Whether this member was one and is none any more.

        Its own log says so, or, if it was away when it was evicted, a peer that refuses it.
        """
        if self.retired or self._left.text:
            return True
        now = asyncio.get_running_loop().time()
        return bool(self._links.left_by) and self._member.component(now) is Component.SECONDARY

    @property
    def founders_missing(self) -> frozenset[str]:
        """With whom this member founds a herd, as far as they are not linked at present."""
        return self._founders - self.linked

    @property
    def refusal(self) -> str:
        """Why peers do not let this member in; empty if they do."""
        return "; ".join(sorted(set(self._links.refusals.values())))

    def note_membership(self) -> None:
        """Do what a new membership demands, if there is one."""
        membership = self._member.membership
        if membership is self._membership:
            return
        self._membership = membership
        self._reads_only = roster.reads_only(self._config, membership)
        self._departed = roster.departed(self._member.memberships)
        self._note_departure(membership)
        self._links.me = self._hello()
        if not self.begun:
            return
        _log.info(
            "membership.changed",
            position=membership.position,
            view=membership.view.generation if membership.view else 0,
            voters=membership.voters,
            learners=[learner.name for learner in membership.learners],
        )
        self._links.set_peers(roster.peers(self._config, membership, self._departed))
        loop = asyncio.get_running_loop()
        if self._asking is None:
            self._asking = loop.call_later(0, self._ask)
        if self._departed and self._farewell is None:
            self._farewell = loop.call_later(_FAREWELL_S, self._hang_up)

    def fit(self, peer: str, change: Change) -> bool:
        """Tell whether a change that a peer asks for may be ordered, for all that is known here."""
        if change.join is None:
            return True
        membership, slots = self._member.membership, self._config.sequence_slots
        refusal = roster.unfit(change.join, membership, slots)
        if refusal:
            _log.warning("join.refused", peer=peer, reason=refusal)
        return not refusal

    @property
    def reads_only(self) -> bool:
        """Whether this member is a reader, by its log or as it will ask to be."""
        return self._reads_only

    @property
    def linked(self) -> frozenset[str]:
        """Peers that are connected in both directions."""
        return self._links.linked

    def block(self, names: Iterable[str], unsent: Iterable[str] = ()) -> None:
        """See ``Links``."""
        self._links.block(names, unsent)

    def members_heard(self) -> frozenset[str]:
        """Return the members that are there at present, as far as this one can tell, itself too."""
        now, names = asyncio.get_running_loop().time(), set[str]()
        for name in self.linked:
            silent_s, _ = self._member.heard_of(name, now)
            if silent_s is None or silent_s < self._silent_s:
                names.add(name)
        return frozenset({self._config.name, *names})

    def sight(self) -> dict[str, dict[str, str | int | float | bool | None]]:
        """Return what is known of each other member: role, lag, silence."""
        member, now = self._member, asyncio.get_running_loop().time()
        found: dict[str, dict[str, str | int | float | bool | None]] = {}
        for other in member.membership.members:
            if other.name == self._config.name:
                continue
            silent_s, match = member.heard_of(other.name, now)
            stuck_s = member.stuck_s(other.name, now)
            votes = other.name in member.membership.voters
            role = "proposer" if other.name == member.proposer else "follower"
            found[other.name] = {
                "role": role if votes else "reader" if other.reader else "learner",
                "linked": other.name in self.linked,
                "lag_entries": None if match is None else member.last_position - match,
                "last_seen_s": None if silent_s is None else round(silent_s, 3),
                "lagging_s": None if stuck_s is None else self._lags(stuck_s),
            }
        return found

    def _lags(self, stuck_s: float) -> float:
        """For how long a member has lagged: not worth a word before it would be called silent."""
        return round(stuck_s, 3) if stuck_s >= self._silent_s else 0.0

    def status(self) -> dict[str, int | float | None]:
        """Return what people and metrics want to know of the links."""
        counters = self._links.counters
        return {
            "links_up": len(self._links.up),
            "links_dialled": counters.dialled,
            "links_unproven": counters.unproven,
            "links_refused": counters.refused,
            "links_crowded": counters.crowded,
            "links_offended": counters.offended,
            "links_overflowed": counters.overflowed,
            "certificate_expires_s": self._links.certificate_expires_s,
        }

    def _up(self, peer: str) -> None:
        self._on_up(peer)
        if self._asking is not None:
            self._asking.cancel()
            self._asking = asyncio.get_running_loop().call_later(0, self._ask)

    def _ask(self) -> None:
        self._asking = None
        wish = roster.wish(self._config, self._disk, self._member.membership)
        if wish is not None and not self.has_left:
            self._wish(wish)
            self._asking = asyncio.get_running_loop().call_later(until_next_s(_ASK_S), self._ask)

    def _hang_up(self) -> None:
        self._farewell = None
        self._links.hang_up(lambda peer, disk: (peer, disk) in self._departed)

    def _hello(self) -> Hello:
        config = self._config
        return Hello(
            PROTOCOL_VERSION,
            str(config.cluster_id),
            config.name,
            config.number,
            self._disk,
            config.limits.certification_keys,
            config.sequence_slots,
            self._member.membership.position,
            roster.names(self._member.membership, config.name, self._disk),
            successor=self._successor,
        )

    def _note_departure(self, membership: Membership) -> None:
        """Remember having left, until the log has this member again: the log is trimmed one day."""
        me = (self._config.name, self._disk)
        if me in self._departed:
            self._left.write(f"by the membership at {membership.position}")
        elif self._left.text and membership.knows(*me):
            self._left.clear()

    def _met(self, peer: str, disk: str) -> None:
        member = self._member
        member.meet(peer, disk)
        member.abstains = member.abstains and bool(self.founders_missing)

    def _retire_if_founded_before(self, hello: Hello) -> None:
        member = self._member
        reason = founding.founded_before(
            self._config, self._disk, member.membership, hello, empty=member.last_position == 0
        )
        if reason and not self.retired and hello.cluster_id == self._links.me.cluster_id:
            _log.error("member.retired", reason=reason)
            self._on_retired()
            self._retired.write(reason)

    def _objection(self, hello: Hello) -> str:
        """Say why the sender of a hello is no peer; empty if it is one."""
        refusal = roster.reserved(hello.name)
        if refusal:
            return refusal
        self._retire_if_founded_before(hello)
        if self.retired:
            return self.retired
        membership = self._member.membership
        if not self.begun:
            return f"{self._config.name} has yet to copy the database of a member"
        other = self._as_known(hello)
        refusal = objection(self._links.me.identity, other, membership, self._departed)
        if refusal or hello.known > membership.position:
            return refusal
        return roster.taken(hello.name, hello.number, membership)

    def _has_left(self, hello: Hello) -> bool:
        if hello.cluster_id != self._links.me.cluster_id:
            return False  # what it is a member of is not known here
        return has_left(self._as_known(hello), self._member.membership, self._departed)

    def _as_known(self, hello: Hello) -> Identity:
        """Return who sends a hello; that it takes itself for a member counts only if it can't be.

        An entry that is not committed may yet turn out not to be.
        """
        final = self._member.membership.position <= self._member.commit_position
        return replace(hello.identity, member=hello.member and final)


def _credentials(config: NodeConfig) -> Credentials | None:
    if config.tls is None:
        return None
    return Credentials(config.tls.directory, config.certified(config.name))
