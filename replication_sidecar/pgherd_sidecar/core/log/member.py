"""One member of the log: roles, elections, and the face the caller sees.

``LogMember`` joins the halves: the safekeeper, which every member always is, and, for a time, a
campaign or a proposer. It dispatches messages, watches the time, and collects effects. It does no
IO, knows no clock, and is deterministic given its inputs and its random generator.

How to use it is written in the package's docstring. What survives a restart is the safekeeper's.
"""

from enum import Enum
from random import Random
from typing import assert_never

from pgherd_sidecar.core.log.blocks import Block, LogIndex
from pgherd_sidecar.core.log.campaign import Campaign, check_chain
from pgherd_sidecar.core.log.effects import Control, Effects, Fetch, Limits, Timing
from pgherd_sidecar.core.log.errors import LocalProtocolError, RemoteProtocolError
from pgherd_sidecar.core.log.messages import (
    Ack,
    Append,
    Commit,
    FetchReply,
    FetchRequest,
    Message,
    Newer,
    Reject,
    Submit,
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


class LogMember:
    """A member of the replicated log.

    Args:
        name: this member's identity, unique for the life of the log.
        membership: who votes.
        control: as saved, or a fresh one for a fresh log.
        log: summary of the blocks on disk.
        timing: see `Timing`.
        rng: for election timeouts only.
        noop: data of the single entry that opens a term.
        now: the caller's clock, in seconds.
        limits: see `Limits`.
    """

    def __init__(  # noqa: PLR0913 - the ports of the core, all by name
        self,
        name: str,
        membership: Membership,
        *,
        control: Control,
        log: LogIndex,
        timing: Timing,
        rng: Random,
        noop: bytes,
        now: float,
        limits: Limits | None = None,
    ) -> None:
        self.name = name
        self.role = Role.FOLLOWER
        self.proposer: str | None = None
        self._membership = membership
        self._peers = [peer for peer in membership.members if peer != name]
        self._keeper = Safekeeper(control, log.copy())
        self._timing = timing
        self._rng = rng
        self._noop = noop
        self._limits = limits or Limits()
        self._queue = Submissions(self._limits.pending)
        self._campaign: Campaign | None = None
        self._leading: Proposer | None = None
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
    def commit_position(self) -> int:
        """Up to here all entries are in the order for good, and flushed here: deliver them."""
        return self._keeper.commit_position

    @property
    def flushed_position(self) -> int:
        """Up to here the log is on this member's disk."""
        return self._keeper.journal.flushed_position

    @property
    def last_position(self) -> int:
        """The last position of the log, flushed or not, committed or not."""
        return self._keeper.index.last

    @property
    def stranded(self) -> frozenset[str]:
        """Peers that need positions this proposer has trimmed: only a copy can help them."""
        return frozenset(self._leading.stranded if self._leading else ())

    @property
    def deadline_s(self) -> float:
        """When `tick` has to be called at the latest."""
        if self.role in (Role.PROPOSER, Role.RECOVERING):
            return min(self._heartbeat_s, self._election_s)
        return self._election_s

    # ---- inputs ----------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Do what the time demands: heartbeats, elections, stepping down."""
        if self.role in (Role.PROPOSER, Role.RECOVERING) and now >= self._heartbeat_s:
            self._heartbeat_s = now + self._timing.heartbeat_s
            self._heartbeat()
        if now < self._election_s:
            return
        if self._leading is None:
            self._become_precandidate(now)
        elif self._leading.hears_quorum(now - self._timing.election_max_s):
            self._await_election(now)
        else:
            self._become_follower(None, now)

    def receive(self, sender: str, message: Message, now: float) -> None:
        """Take a message from a peer.

        Raises:
            RemoteProtocolError: no correct peer sends this; close the link.
        """
        if sender not in self._peers:
            raise RemoteProtocolError(f"{sender} is not a member")
        match message:  # the frequent ones first
            case Append():
                self._handle_append(sender, message, now)
            case Ack():
                self._handle_ack(sender, message, now)
            case Submit():
                self._handle_submit(sender, message)
            case Commit():
                self._handle_commit(sender, message, now)
            case Reject():
                self._handle_reject(sender, message, now)
            case VoteRequest():
                self._handle_vote_request(sender, message, now)
            case Vote():
                self._count_vote(sender, message, now)
            case Newer():
                self._handle_newer(message, now)
            case FetchRequest():
                self._handle_fetch_request(sender, message)
            case FetchReply():
                self._handle_fetch_reply(sender, message, now)
            case _:
                assert_never(message)

    def submit(self, data: bytes, count: int, now: float) -> bool:
        """Ask for `count` entries to be ordered.

        True promises nothing: the entries are lost if a link breaks or the proposer changes. The
        caller keeps each entry until it sees it committed, and submits it again.

        Returns:
            False if no proposer is known or its queue is full.

        Raises:
            LocalProtocolError: larger than `Limits.submission`, or empty.
        """
        if len(data) > self._limits.submission or count < 1:
            raise LocalProtocolError(f"submission of {count} entries, {len(data)} bytes")
        if self.role in (Role.PROPOSER, Role.RECOVERING):
            return self._queue.offer(self.name, data, count)
        if self.proposer is None:
            return False
        self._effects.send.append((self.proposer, Submit(count, data)))
        return True

    def persisted(self, ticket: int, now: float) -> None:
        """Note that the `Persist` with this ticket is durable.

        Raises:
            LocalProtocolError: no such `Persist` is under way.
        """
        keeper = self._keeper
        self._effects.send += keeper.journal.done(ticket)
        keeper.flushed()
        if self._leading is not None:
            self._leading.flushed()
        elif self.role is Role.CANDIDATE and keeper.durable_term == keeper.term:
            self._count_vote(self.name, self._own_vote(), now)
        elif self.role is Role.RECOVERING:
            self._request_blocks()

    def fetched(self, fetch: Fetch, blocks: tuple[Block, ...], now: float) -> None:
        """Take the blocks that a `Fetch` asked for.

        Raises:
            LocalProtocolError: other blocks than those.
        """
        if blocks and blocks[0].first != fetch.first:
            raise LocalProtocolError(f"fetched {blocks[0].first} instead of {fetch.first}")
        if fetch.term != self._keeper.term:
            return
        message: Append | FetchReply | None
        if self._leading is not None:
            message = self._leading.fetched(fetch, blocks)
        else:
            message = FetchReply(fetch.term, fetch.first, blocks)
        if message is not None:
            self._effects.send.append((fetch.peer, message))

    def trim(self, position: int) -> None:
        """Note that the storage has dropped everything up to `position`.

        Raises:
            LocalProtocolError: not all of it is committed.
        """
        if position > self.commit_position:
            raise LocalProtocolError(f"trim to {position} beyond {self.commit_position}")
        self._keeper.index.trim(position)

    def take_effects(self) -> Effects:
        """Return what is to be done after the inputs so far."""
        keeper = self._keeper
        effects, self._effects = self._effects, Effects()
        if self._leading is not None:
            self._leading.flush(effects)
        elif self.role is Role.FOLLOWER and self.proposer is not None:
            self._acknowledge(self.proposer, effects)
        effects.send += keeper.journal.take_messages()
        effects.persist = keeper.journal.take()
        return effects

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

    def _become_precandidate(self, now: float) -> None:
        self._become_follower(None, now)
        self._start_campaign(Role.PRECANDIDATE, self.term + 1)
        request = VoteRequest(self.term + 1, pre=True)
        self._effects.send += [(peer, request) for peer in self._peers]
        self._count_vote(self.name, Vote(self.term + 1, pre=True), now)

    def _become_candidate(self, now: float) -> None:
        self._keeper.enter_term(self.term + 1, self.name)
        self._start_campaign(Role.CANDIDATE, self.term)
        for peer in self._peers:
            self._keeper.journal.hold(peer, VoteRequest(self.term, pre=False))
        self._await_election(now)

    def _start_campaign(self, role: Role, term: int) -> None:
        self.role = role
        pre = role is Role.PRECANDIDATE
        self._campaign = Campaign(self.name, term, pre, self._membership)

    def _become_recovering(self, campaign: Campaign, now: float) -> None:
        campaign.start_recovery(self._keeper)
        self.role = Role.RECOVERING
        self._heartbeat_s = now + self._timing.heartbeat_s
        self._await_election(now)
        self._maybe_become_proposer(campaign, now)
        if self._leading is None:
            self._heartbeat()

    def _maybe_become_proposer(self, campaign: Campaign, now: float) -> None:
        if not campaign.recovered(self._keeper):
            return
        self._campaign = None
        self.role = Role.PROPOSER
        self.proposer = self.name
        self._leading = Proposer(
            self.name, self._keeper, self._membership, self._limits, self._queue, now
        )
        self._leading.append(self._noop, 1)
        self._await_election(now)

    def _await_election(self, now: float) -> None:
        timing = self._timing
        self._patience_s = self._rng.uniform(timing.election_min_s, timing.election_max_s)
        self._election_s = now + self._patience_s

    def _heartbeat(self) -> None:
        if self._leading is not None:
            self._leading.heartbeat(self._effects)
            return
        silence = Commit(self.term, 0)
        self._effects.send += [(peer, silence) for peer in self._peers]
        self._request_blocks()

    def _request_blocks(self) -> None:
        if self._campaign is not None and self._campaign.recovery is not None:
            request = FetchRequest(self.term, self.last_position + 1)
            self._effects.send.append((self._campaign.recovery.donor, request))

    def _acknowledge(self, proposer: str, effects: Effects) -> None:
        keeper = self._keeper
        position = keeper.ack_position
        if (self._ack_due or position > self._acked) and keeper.durable_term == keeper.term:
            self._acked = position
            self._ack_due = False
            effects.send.append((proposer, Ack(keeper.term, position)))

    # ---- elections -------------------------------------------------------------------------

    def _hears_proposer(self, now: float) -> bool:
        if self._leading is not None:
            return True
        return self.proposer is not None and now - self._heard_s < self._timing.election_min_s

    def _own_vote(self) -> Vote:
        index = self._keeper.index
        return Vote(self.term, pre=False, last_position=index.last, history=index.history)

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
        elif self._hears_proposer(now):
            return  # a live proposer is not disturbed [E2]
        elif request.pre:
            self._effects.send.append((sender, Vote(request.term, pre=True)))
        elif request.term > self.term or self._keeper.vote in (None, sender):
            if request.term > self.term:
                self._become_follower(None, now)
            self._keeper.enter_term(request.term, sender)
            self._keeper.journal.hold(sender, self._own_vote())
            self._await_election(now)

    def _handle_newer(self, newer: Newer, now: float) -> None:
        if newer.term > self.term:
            self._adopt(newer.term, now)

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

    # ---- the log ---------------------------------------------------------------------------

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

    def _handle_append(self, sender: str, append: Append, now: float) -> None:
        check_chain(append.blocks, append.prev_position + 1, append.prev_term, append.term)
        if not self._hear(sender, append.term, now):
            return
        keeper = self._keeper
        if keeper.accept(append):
            self._ack_due = not append.blocks or keeper.ack_position == keeper.matched
            keeper.bound_commit(append.commit_bound)
            return
        index = keeper.index
        reject = Reject(self.term, append.prev_position, index.last, index.history)
        self._effects.send.append((sender, reject))

    def _handle_commit(self, sender: str, commit: Commit, now: float) -> None:
        if self._hear(sender, commit.term, now):
            self._keeper.bound_commit(commit.commit_bound)

    def _handle_ack(self, sender: str, ack: Ack, now: float) -> None:
        if ack.term == self.term and self._leading is not None:
            self._leading.acknowledged(sender, ack, now)

    def _handle_reject(self, sender: str, reject: Reject, now: float) -> None:
        if reject.term == self.term and self._leading is not None:
            self._leading.rejected(sender, reject, now)

    def _handle_submit(self, sender: str, submit: Submit) -> None:
        if len(submit.data) > self._limits.submission or submit.count < 1:
            raise RemoteProtocolError(f"{sender} submits {submit.count}, {len(submit.data)} bytes")
        if self.role in (Role.PROPOSER, Role.RECOVERING):
            self._queue.offer(sender, submit.data, submit.count)
