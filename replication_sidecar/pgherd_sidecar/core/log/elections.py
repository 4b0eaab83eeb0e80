"""How a member gets and loses its roles: time, votes, and recovery of the elected.

``Elections`` is the half of `LogMember` that knows roles. It owns the parts, the safekeeper that
every member always is and the campaign or proposer that it is for a time, and moves between them.
The other half, in member.py, is the caller's interface and the flow of blocks.

What survives a restart is the safekeeper's `Control` and blocks; every role begins as follower.
"""

from enum import Enum
from random import Random

from pgherd_sidecar.core.log.blocks import LogBase, LogIndex
from pgherd_sidecar.core.log.campaign import Campaign
from pgherd_sidecar.core.log.effects import Control, Effects, Fetch, Limits, Timing
from pgherd_sidecar.core.log.errors import RemoteProtocolError
from pgherd_sidecar.core.log.mending import Mending
from pgherd_sidecar.core.log.messages import (
    Commit,
    FetchReply,
    FetchRequest,
    Newer,
    Vote,
    VoteRequest,
)
from pgherd_sidecar.core.log.proposer import Proposer
from pgherd_sidecar.core.log.quorum import Membership
from pgherd_sidecar.core.log.safekeeper import Safekeeper
from pgherd_sidecar.core.log.submissions import Submissions


class Role(Enum):
    """What a member is besides a safekeeper."""

    #: follows a proposer, or waits to hear of one
    FOLLOWER = "follower"
    #: asks whether it would be elected
    PRECANDIDATE = "precandidate"
    #: asks for votes
    CANDIDATE = "candidate"
    #: elected; takes over the most advanced log of its voters
    RECOVERING = "recovering"
    #: orders entries
    PROPOSER = "proposer"


class Elections:
    """Roles of a member, and what moves it from one to the next.

    Invariants:
        `_campaign` is set in the roles from PRECANDIDATE to RECOVERING, `_leading` as PROPOSER.
        `proposer` is the term's proposer, once heard of.

    Attributes:
        behind: the proposer's log begins after this position and this member lacks what was
            before; 0 if not so. It needs a copy, and is no candidate until it has one [T3].
        beginning: of the proposer's log, when this member is behind.
        lonely: the proposer has told this follower that it does not hear a majority.
        flush_first: as proposer, flush a block before it is sent. Its own flush is then in the
            commit bound that travels with the block, which saves each peer a message [C4]; worth
            it while a flush here takes less time than a message. May change at any time.
        collect: as proposer, make no block for now: what is submitted collects for the next one.
    """

    def __init__(  # noqa: PLR0913 - the ports of the core, all by name
        self,
        name: str,
        *,
        control: Control,
        log: LogIndex,
        timing: Timing,
        rng: Random,
        noop: bytes,
        now: float,
        limits: Limits | None = None,
        disk: str = "",
    ) -> None:
        self.name = name
        self.role = Role.FOLLOWER
        self.proposer: str | None = None
        self.flush_first = False
        self.collect = False
        self.behind = 0
        self.beginning = LogBase()
        self.lonely = False
        # term and position where the proposer's log and this one differed last
        self._refused = (0, 0)
        self._disk = disk
        self._keeper = Safekeeper(control, log.copy())
        self._timing = timing
        self._rng = rng
        self._noop = noop
        self._limits = limits or Limits()
        self._queue = Submissions(self._limits.pending)
        self._disks: dict[str, str] = {}
        self._familiar: frozenset[str] = frozenset()
        self._judged: Membership | None = None
        self._restart_position = 0
        self._campaign: Campaign | None = None
        self._leading: Proposer | None = None
        self._mending = Mending(timing.election_min_s)
        self._effects = Effects()
        self._heard_s = now
        self._election_s = now
        self._heartbeat_s = now
        self._acked = 0
        self._ack_due = False
        self._await_election(now)

    @property
    def term(self) -> int:
        """The highest term this member has seen."""
        return self._keeper.term

    @property
    def last_position(self) -> int:
        """The last position of the log, flushed or not, committed or not."""
        return self._keeper.index.last

    @property
    def membership(self) -> Membership:
        """Who votes and who is fed, by the newest entry of this member's log [V1]."""
        return self._keeper.index.membership

    @property
    def abstains(self) -> bool:
        """Neither stands for election nor gives votes, until the caller says so or it was fed [G7].

        For who can't tell whether it has lost its log: see `incomplete`.
        """
        return self._keeper.abstains

    @abstains.setter
    def abstains(self, abstains: bool) -> None:
        self._keeper.abstains = abstains

    @property
    def memberships(self) -> tuple[Membership, ...]:
        """Those that this member's log holds and the newest before them, oldest first."""
        return self._keeper.index.memberships

    @property
    def _voters(self) -> list[str]:
        """The other voters."""
        return [voter for voter in self.membership.voters if voter != self.name]

    @property
    def _eligible(self) -> bool:
        membership = self.membership
        votes = self.name in membership.voters and membership.knows(self.name, self._disk)
        return votes and not self.behind and not self._withholds

    @property
    def _promised(self) -> bool:
        """Term and vote are on disk: before, a candidate asks nobody, and need not try again."""
        return self._keeper.durable_term == self._keeper.term

    @property
    def _withholds(self) -> bool:
        """What this member could say of its log would be untrue [D6, G7], or lead nowhere [D5]."""
        barred = self._mending.bars(self._keeper.commit_position)
        return self._keeper.incomplete or self._keeper.abstains or barred

    # ---- roles -----------------------------------------------------------------------------

    def _become_follower(self, proposer: str | None, now: float) -> None:
        self.role = Role.FOLLOWER
        self.proposer = proposer
        self._campaign = None
        self._leading = None
        self._queue.clear()
        self._acked = 0
        self._ack_due = False
        self._await_election(now)

    def _deposed(self, leading: Proposer, now: float) -> bool:
        """Tell whether nobody can follow this proposer any more, or it has left the view."""
        since_s = now - self._timing.election_max_s
        if not leading.hears_quorum(since_s) or leading.in_vain(since_s) or leading.stuck:
            return True
        if self._withholds and self._mending.since_s < since_s:
            return True
        membership = self.membership
        gone = self.name not in membership.voters
        return gone and membership.position <= self._keeper.commit_position

    def _step_down(self, leading: Proposer, now: float) -> None:
        useless = leading.stuck or leading.in_vain(now - self._timing.election_max_s)
        self._become_follower(None, now)
        if useless:  # whoever it feeds is to try before it tries again
            self._election_s = now + 3 * self._timing.election_max_s

    def _become_precandidate(self, now: float) -> None:
        self._become_follower(None, now)
        self._start_campaign(Role.PRECANDIDATE, self.term + 1)
        request = VoteRequest(self.term + 1, pre=True)
        self._effects.send += [(peer, request) for peer in self._voters]
        self._count_vote(self.name, self._own_vote(self.term + 1, pre=True), now)

    def _become_candidate(self, now: float) -> None:
        self._keeper.enter_term(self.term + 1, self.name)
        self._start_campaign(Role.CANDIDATE, self.term)
        for peer in self._voters:
            self._keeper.journal.hold(peer, VoteRequest(self.term, pre=False))
        self._await_election(now)

    def _start_campaign(self, role: Role, term: int) -> None:
        self.role = role
        pre = role is Role.PRECANDIDATE
        self._campaign = Campaign(self.name, term, pre)

    def _become_recovering(self, campaign: Campaign, now: float) -> None:
        if not campaign.start_recovery(self._keeper):
            self._become_follower(None, now)
            return
        self.role = Role.RECOVERING
        self._heartbeat_s = now + self._timing.heartbeat_s
        self._await_election(now)
        self._maybe_become_proposer(campaign, now)
        if self._leading is None:
            self._heartbeat(now)

    def _maybe_become_proposer(self, campaign: Campaign, now: float) -> None:
        if not campaign.recovered(self._keeper):
            return
        self._campaign = None
        self.role = Role.PROPOSER
        self.proposer = self.name
        self._leading = Proposer(
            self.name, self._keeper, self._limits, self._queue, self._timing, now
        )
        self._leading.disks = self._disks
        self._queue.keep(self.membership.names)
        self._leading.append(self._noop, 1)
        self._await_election(now)

    def _await_election(self, now: float) -> None:
        timing = self._timing
        self._patience_s = self._rng.uniform(timing.election_min_s, timing.election_max_s)
        self._election_s = now + self._patience_s

    def _heartbeat(self, now: float) -> None:
        if self._leading is not None:
            self._leading.heartbeat(self._effects, now)
            return
        silence = Commit(self.term, 0)
        self._effects.send += [(peer, silence) for peer in self._voters]
        self._request_blocks()

    def _request_blocks(self) -> None:
        if self._campaign is not None and self._campaign.recovery is not None:
            request = FetchRequest(self.term, self.last_position + 1)
            self._effects.send.append((self._campaign.recovery.donor, request))

    # ---- elections -------------------------------------------------------------------------

    def _hears_proposer(self, now: float) -> bool:
        if self._leading is not None:
            return True
        return self.proposer is not None and now - self._heard_s < self._timing.election_min_s

    def _own_vote(self, term: int, *, pre: bool) -> Vote:
        index = self._keeper.index
        return Vote(term, pre, index.last, index.history, index.membership, self._disk)

    def _adopt(self, term: int, now: float) -> None:
        self._keeper.enter_term(term, None)
        self._become_follower(None, now)

    def _count_vote(self, voter: str, vote: Vote, now: float) -> None:
        campaign = self._campaign
        if campaign is None or campaign.recovery is not None or not campaign.count(voter, vote):
            return
        if campaign.pre:
            self._become_candidate(now)
        else:
            self._become_recovering(campaign, now)

    def _handle_vote_request(self, sender: str, request: VoteRequest, now: float) -> None:
        if request.term < self.term + request.pre:
            self._effects.send.append((sender, Newer(self.term)))
        elif self._hears_proposer(now) or self._withholds:
            return  # a live proposer is not disturbed [E2]
        elif request.pre:
            self._effects.send.append((sender, self._own_vote(request.term, pre=True)))
        elif request.term > self.term or self._keeper.vote in (None, sender):
            if request.term > self.term:
                self._become_follower(None, now)
            self._keeper.enter_term(request.term, sender)
            self._keeper.journal.hold(sender, self._own_vote(self.term, pre=False))
            self._await_election(now)

    def _handle_newer(self, newer: Newer, now: float) -> None:
        if newer.term > self.term:
            self._adopt(newer.term, now)

    def _hear(self, sender: str, term: int, now: float) -> bool:
        """Note a sign of life of a term's proposer; False if its term is over."""
        if term < self.term:
            self._effects.send.append((sender, Newer(self.term)))
            return False
        if term > self.term:
            self._adopt(term, now)
        if self.proposer != sender:
            if self.proposer is not None or self.role is Role.RECOVERING:
                raise RemoteProtocolError(f"{sender} proposes in term {term}, which is taken")
            self._become_follower(sender, now)
        self._heard_s = now
        self._election_s = now + self._patience_s
        return True

    # ---- recovery of an elected proposer -----------------------------------------------------

    def _handle_fetch_request(self, sender: str, request: FetchRequest) -> None:
        keeper = self._keeper
        if request.term != self.term or keeper.vote != sender or request.first > keeper.index.last:
            return
        if request.first <= keeper.index.base:
            nothing = FetchReply(request.term, request.first, ())
            self._effects.send.append((sender, nothing))
            return
        fetch = Fetch(sender, request.term, request.first, self._limits.fetch)
        self._effects.fetch.append(fetch)

    def _handle_fetch_reply(self, sender: str, reply: FetchReply, now: float) -> None:
        campaign = self._campaign
        if campaign is None or campaign.recovery is None or reply.term != self.term:
            return
        if sender != campaign.recovery.donor:
            return
        if campaign.take(reply, self._keeper):
            self._await_election(now)
            self._maybe_become_proposer(campaign, now)
        else:
            self._become_follower(None, now)
