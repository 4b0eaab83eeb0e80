"""How a member gets and loses its roles: time, votes, and recovery of the elected.

``Elections`` is the part of `LogMember` that holds its role. The table in roles.py says which role
may follow which; here is when that happens, and what is sent for it.

The safekeeper's `Control` and blocks survive a restart; every member begins as follower.
"""

from enum import Enum
from random import Random

from pgherd_sidecar.core.consensus.block_repair import BlockRepair
from pgherd_sidecar.core.consensus.campaign import Campaign, Recovery
from pgherd_sidecar.core.consensus.follower import Follower
from pgherd_sidecar.core.consensus.model.effects import Fetch, Limits, PendingEffects, Timing
from pgherd_sidecar.core.consensus.model.errors import LocalProtocolError, RemoteProtocolError
from pgherd_sidecar.core.consensus.model.messages import (
    Commit,
    FetchReply,
    FetchRequest,
    Newer,
    Vote,
    VoteRequest,
)
from pgherd_sidecar.core.consensus.proposer import Proposer
from pgherd_sidecar.core.consensus.roles import Role, RoleEvent, next_role
from pgherd_sidecar.core.consensus.safekeeper import Safekeeper

SOONER = 4
"""A member draws the silence it bears from so small a part of the shortest, once it knows that its
proposer's process has ended. Votes must fit into it several times, or they are often split."""

RoleState = Follower | Campaign | Recovery | Proposer


class Component(Enum):
    """The side of a partition that a member is on."""

    #: it has a quorum, and what is submitted is being ordered
    PRIMARY = "primary"
    #: nothing can be ordered here
    SECONDARY = "secondary"


class Elections:
    """A member's role, and what moves it from one to the next.

    Attributes:
        state: the role, with what belongs to it.
        leading: the same as a proposer, None in other roles: it is asked for with each message.
        disks: of the peers, as far as they are known.
        lonely: the proposer has told this follower that it does not hear a majority.

    Args:
        name: of this member.
        disk: identity of the disk the log is on, empty if the caller doesn't tell.
        keeper: of the log.
        repair: of a damaged block, which may forbid a role.
        pending: where to put messages.
        noop: data of the entry that opens a term.
        now: the caller's clock, in seconds.
    """

    def __init__(  # noqa: PLR0913 - what the member has, all by name
        self,
        name: str,
        disk: str,
        *,
        keeper: Safekeeper,
        repair: BlockRepair,
        pending: PendingEffects,
        timing: Timing,
        limits: Limits,
        rng: Random,
        noop: bytes,
        now: float,
    ) -> None:
        self.state: RoleState = Follower(None, now)
        self.leading: Proposer | None = None
        self.disks: dict[str, str] = {}
        self.lonely = False
        self._name = name
        self._disk = disk
        self._keeper = keeper
        self._repair = repair
        self._pending = pending
        self._timing = timing
        self._limits = limits
        self._rng = rng
        self._noop = noop
        self._heartbeat_s = now
        self._await_election(now)

    @property
    def deadline_s(self) -> float:
        """When `tick` has to be called at the latest."""
        if self.state.queue is not None:
            return min(self._heartbeat_s, self._election_s)
        return self._election_s

    def component(self, now: float) -> Component:
        """Tell which side of a partition this member is on [P1]."""
        keeper, since_s = self._keeper, now - self._timing.election_max_s
        state = self.state
        if isinstance(state, Follower):
            alive = state.proposer is not None and state.heard_s >= since_s and not self.lonely
        else:
            leading = self.leading
            alive = leading is not None and leading.hears_majority(since_s) and not leading.stuck
        fresh = keeper.index.term_at(keeper.commit_position) == keeper.term
        return Component.PRIMARY if alive and fresh else Component.SECONDARY

    def tick(self, now: float) -> None:
        """Do what the time demands: heartbeats, elections, stepping down."""
        leading = self.leading
        if self.state.queue is not None and now >= self._heartbeat_s:
            self._heartbeat_s = now + self._timing.heartbeat_s
            if leading is not None and self._deposed(leading, now):
                self._step_down(leading, now)
                return
            self._heartbeat(now)
        if now < self._election_s:
            return
        if leading is not None or (self.state.role is Role.CANDIDATE and not self._promised):
            self._await_election(now)
        elif self._eligible:
            self._become_precandidate(now)
        else:
            self._become_follower(RoleEvent.BARRED_TIMEOUT, None, now)

    @property
    def _voters(self) -> list[str]:
        """The other voters."""
        return [voter for voter in self._keeper.index.membership.voters if voter != self._name]

    @property
    def _eligible(self) -> bool:
        membership = self._keeper.index.membership
        votes = self._name in membership.voters and membership.knows(self._name, self._disk)
        return votes and not self._keeper.behind and not self._withholds

    @property
    def _promised(self) -> bool:
        """Term and vote are on disk: before, a candidate asks nobody, and need not try again."""
        return self._keeper.durable_term == self._keeper.term

    @property
    def _withholds(self) -> bool:
        """This member's word about its log would be untrue [D6, G7], or lead nowhere [D5]."""
        return self._keeper.incomplete or self._keeper.abstains or self._repair.bars_votes

    # ---- roles -----------------------------------------------------------------------------

    def _become(self, event: RoleEvent, state: RoleState) -> None:
        """Change the role, as the table allows.

        Raises:
            LocalProtocolError: it does not.
        """
        if next_role(self.state.role, event) is not state.role:
            raise LocalProtocolError(f"{event.name} makes no {state.role.value}")
        self.state = state
        self.leading = state if isinstance(state, Proposer) else None

    def _become_follower(self, event: RoleEvent, proposer: str | None, now: float) -> Follower:
        follower = Follower(proposer, now)
        self._become(event, follower)
        self._await_election(now)
        return follower

    def _deposed(self, leading: Proposer, now: float) -> bool:
        """Tell whether nobody can follow this proposer any more, or it has left the view."""
        since_s = now - self._timing.election_max_s
        if not leading.hears_quorum(since_s) or leading.in_vain(since_s) or leading.stuck:
            return True
        if self._withholds and self._repair.since_s < since_s:
            return True
        membership = self._keeper.index.membership
        gone = self._name not in membership.voters
        return gone and membership.position <= self._keeper.commit_position

    def _step_down(self, leading: Proposer, now: float) -> None:
        useless = leading.stuck or leading.in_vain(now - self._timing.election_max_s)
        self._become_follower(RoleEvent.DEPOSED, None, now)
        if useless:  # whoever it feeds is to try before it tries again
            self._election_s = now + 3 * self._timing.election_max_s

    def _become_precandidate(self, now: float) -> None:
        term = self._keeper.term + 1
        self._become(RoleEvent.TIMEOUT, Campaign(self._name, term, pre=True))
        self._await_election(now)
        request = VoteRequest(term, pre=True)
        for peer in self._voters:
            self._pending.send(peer, request)
        self.count_vote(self._name, self._own_vote(term, pre=True), now)

    def _become_candidate(self, now: float) -> None:
        keeper = self._keeper
        keeper.enter_term(keeper.term + 1, self._name)
        self._become(RoleEvent.PREVOTED, Campaign(self._name, keeper.term, pre=False))
        for peer in self._voters:
            keeper.journal.hold_message(peer, VoteRequest(keeper.term, pre=False))
        self._await_election(now)

    def _become_recovering(self, campaign: Campaign, now: float) -> None:
        recovery = campaign.recovery(self._keeper, self._limits.pending)
        if recovery is None:
            self._become_follower(RoleEvent.WITHDRAWN, None, now)
            return
        self._become(RoleEvent.ELECTED, recovery)
        self._heartbeat_s = now + self._timing.heartbeat_s
        self._await_election(now)
        self._maybe_become_proposer(recovery, now)
        if self.leading is None:
            self._heartbeat(now)

    def _maybe_become_proposer(self, recovery: Recovery, now: float) -> None:
        keeper, queue = self._keeper, recovery.queue
        if not recovery.recovered(keeper):
            return
        leading = Proposer(self._name, keeper, self._limits, queue, self.disks, self._timing, now)
        self._become(RoleEvent.RECOVERED, leading)
        queue.keep(keeper.index.membership.names)
        leading.append(self._noop, 1)
        self._await_election(now)

    def _await_election(self, now: float) -> None:
        timing = self._timing
        self._patience_s = self._rng.uniform(timing.election_min_s, timing.election_max_s)
        self._election_s = now + self._patience_s

    def _heartbeat(self, now: float) -> None:
        if self.leading is not None:
            self.leading.heartbeat(self._pending.effects, now)
            return
        silence = Commit(self._keeper.term, 0)
        for peer in self._voters:
            self._pending.send(peer, silence)
        self._request_blocks()

    def _request_blocks(self) -> None:
        if isinstance(self.state, Recovery):
            request = FetchRequest(self._keeper.term, self._keeper.index.last + 1)
            self._pending.send(self.state.donor, request)

    # ---- elections -------------------------------------------------------------------------

    def ended(self, peer: str, now: float) -> None:
        """Wait for no more heartbeats; those who were told at the same time wait unequally [E8]."""
        state = self.state
        if isinstance(state, Follower) and state.proposer == peer and not state.ended:
            state.ended = True
            soon_s = self._timing.election_min_s / SOONER
            self._election_s = min(self._election_s, now + self._rng.uniform(0, soon_s))

    def flushed(self, now: float) -> None:
        """Go on with what had to wait for a flush."""
        if self.leading is not None:
            self.leading.flushed()
        elif self.state.role is Role.CANDIDATE and self._promised:
            self.count_vote(self._name, self._own_vote(self._keeper.term, pre=False), now)
        elif self.state.role is Role.RECOVERING:
            self._request_blocks()

    def _hears_proposer(self, now: float) -> bool:
        if isinstance(self.state, Follower):
            return self.state.hears_proposer(now, self._timing.election_min_s)
        return self.leading is not None

    def _own_vote(self, term: int, *, pre: bool) -> Vote:
        index = self._keeper.index
        return Vote(term, pre, index.last, index.history, index.membership, self._disk)

    def _adopt(self, term: int, now: float) -> None:
        self._keeper.enter_term(term, None)
        self._become_follower(RoleEvent.HIGHER_TERM, None, now)

    def count_vote(self, voter: str, vote: Vote, now: float) -> None:
        """Count a vote or pre-vote, and go on with a quorum of them [E3]."""
        campaign = self.state
        if not isinstance(campaign, Campaign) or not campaign.count(voter, vote):
            return
        if campaign.pre:
            self._become_candidate(now)
        else:
            self._become_recovering(campaign, now)

    def handle_vote_request(self, sender: str, request: VoteRequest, now: float) -> None:
        """Give a vote or pre-vote, or none [E2, E3]."""
        keeper = self._keeper
        if request.term < keeper.term + request.pre:
            self._pending.send(sender, Newer(keeper.term))
        elif self._hears_proposer(now) or self._withholds:
            return  # a live proposer is not disturbed [E2]
        elif request.pre:
            self._pending.send(sender, self._own_vote(request.term, pre=True))
        elif request.term > keeper.term or keeper.vote in (None, sender):
            if request.term > keeper.term:
                self._become_follower(RoleEvent.HIGHER_TERM, None, now)
            keeper.enter_term(request.term, sender)
            keeper.journal.hold_message(sender, self._own_vote(keeper.term, pre=False))
            self._await_election(now)

    def handle_newer(self, newer: Newer, now: float) -> None:
        """Enter a higher term [E4]."""
        if newer.term > self._keeper.term:
            self._adopt(newer.term, now)

    def hear(self, sender: str, term: int, now: float) -> Follower | None:
        """Note a sign of life of a term's proposer; None if its term is over.

        Raises:
            RemoteProtocolError: the term has another proposer.
        """
        if term < self._keeper.term:
            self._pending.send(sender, Newer(self._keeper.term))
            return None
        if term > self._keeper.term:
            self._adopt(term, now)
        follower = self.state
        if not isinstance(follower, Follower) or follower.proposer != sender:
            if follower.proposer is not None or follower.role is Role.RECOVERING:
                raise RemoteProtocolError(f"{sender} proposes in term {term}, which is taken")
            follower = self._become_follower(RoleEvent.PROPOSER_HEARD, sender, now)
        follower.heard_s = now
        follower.ended = False
        self._election_s = now + self._patience_s
        return follower

    # ---- recovery of an elected proposer -----------------------------------------------------

    def handle_fetch_request(self, sender: str, request: FetchRequest) -> None:
        """Give blocks to the candidate that this member voted for [R2]."""
        keeper = self._keeper
        ours = request.term == keeper.term and keeper.vote == sender
        if not ours or request.first > keeper.index.last:
            return
        if request.first <= keeper.index.base:
            self._pending.send(sender, FetchReply(request.term, request.first, ()))
            return
        fetch = Fetch(sender, request.term, request.first, self._limits.fetch)
        self._pending.effects.fetch.append(fetch)

    def handle_fetch_reply(self, sender: str, reply: FetchReply, now: float) -> None:
        """Take blocks of the donor's log [R2].

        Raises:
            RemoteProtocolError: they are not.
        """
        recovery = self.state
        if not isinstance(recovery, Recovery) or reply.term != self._keeper.term:
            return
        if sender != recovery.donor:
            return
        if recovery.append_fetched(reply, self._keeper):
            self._await_election(now)
            self._maybe_become_proposer(recovery, now)
        else:
            self._become_follower(RoleEvent.WITHDRAWN, None, now)
