"""One member of the log: the face the caller sees, and the flow of blocks.

``LogMember`` dispatches messages and collects effects. It does no IO, knows no clock, and is
deterministic given its inputs and its random generator. How to use it is written in the package's
docstring; roles and elections are in elections.py.
"""

from enum import Enum
from typing import assert_never

from pgherd_sidecar.core.log.blocks import Block, LogBase
from pgherd_sidecar.core.log.campaign import check_chain
from pgherd_sidecar.core.log.effects import Effects, Fetch
from pgherd_sidecar.core.log.elections import Role
from pgherd_sidecar.core.log.errors import LocalProtocolError, RemoteProtocolError
from pgherd_sidecar.core.log.messages import (
    Ack,
    Append,
    BarrierReply,
    BarrierRequest,
    Change,
    Commit,
    FetchReply,
    FetchRequest,
    Mend,
    Mended,
    Message,
    Newer,
    Reject,
    Submit,
    Trimmed,
    Vote,
    VoteRequest,
)
from pgherd_sidecar.core.log.parting import Parting
from pgherd_sidecar.core.log.quorum import Member
from pgherd_sidecar.core.log.reading import Reading


class Component(Enum):
    """The side of a partition that a member is on."""

    #: it has a quorum, and what is submitted is being ordered
    PRIMARY = "primary"
    #: nothing can be ordered here
    SECONDARY = "secondary"


class LogMember(Reading):
    """A member of the replicated log.

    Args:
        name: this member's name, unique in the cluster. Whether it votes is for the log to say.
        control: as saved, or a fresh one for a fresh log.
        log: summary of the blocks on disk.
        timing: see `Timing`.
        rng: for election timeouts only.
        noop: data of the single entry that opens a term.
        now: the caller's clock, in seconds.
        limits: see `Limits`.
        disk: identity of the disk the log is on, empty if the caller doesn't tell disks apart.
    """

    @property
    def commit_position(self) -> int:
        """Up to here all entries are in the order for good, and flushed here: deliver them."""
        return self._keeper.commit_position

    @property
    def flushed_position(self) -> int:
        """Up to here the log is on this member's disk."""
        return self._keeper.journal.flushed_position

    @property
    def stranded(self) -> frozenset[str]:
        """Peers that need positions this proposer has trimmed: only a copy can help them."""
        return frozenset(self._leading.stranded if self._leading else ())

    @property
    def restart_position(self) -> int:
        """Every member has flushed the log up to here: it may be trimmed without a loss [T1]."""
        if self._leading is not None:
            return self._leading.restart_position
        return min(self._restart_position, self.commit_position)

    @property
    def oldest_needed(self) -> int:
        """Where the log of a new member had best begin: it then has all that any other needs."""
        return max(self.restart_position, self._keeper.index.base)

    def heard_of(self, peer: str, now: float) -> tuple[float | None, int | None]:
        """Return for how long a peer has been silent, and up to where it has the log.

        None for what this member can't tell: only a proposer hears all, and knows how far they are.
        """
        if self._leading is not None and peer in self._leading.peers:
            progress = self._leading.peers[peer]
            return now - progress.heard_s, progress.match
        return (now - self._heard_s if peer == self.proposer else None), None

    def stuck_s(self, peer: str, now: float) -> float | None:
        """Return for how long a peer has flushed nothing though there is something, 0 if it does.

        None for what only a proposer can tell.
        """
        if self._leading is None or peer not in self._leading.peers:
            return None
        return self._leading.peers[peer].stuck_s(now)

    def component(self, now: float) -> Component:
        """Tell which side of a partition this member is on.

        A member that has lost its quorum says so after twice `Timing.election_max_s` and a
        heartbeat at the latest [P1].
        """
        keeper, since_s = self._keeper, now - self._timing.election_max_s
        if self._leading is not None:
            alive = self._leading.hears_majority(since_s) and not self._leading.stuck
        else:
            alive = self.proposer is not None and self._heard_s >= since_s and not self.lonely
        fresh = keeper.index.term_at(keeper.commit_position) == keeper.term
        return Component.PRIMARY if alive and fresh else Component.SECONDARY

    @property
    def deadline_s(self) -> float:
        """When `tick` has to be called at the latest."""
        questions_s = min(self._mending.ask_s, self._ask_barrier_s)
        if self.role in (Role.PROPOSER, Role.RECOVERING):
            return min(self._heartbeat_s, self._election_s, questions_s)
        return min(self._election_s, questions_s)

    # ---- inputs ----------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Do what the time demands: heartbeats, elections, stepping down, asking for blocks."""
        if now >= self._mending.ask_s:
            self._ask_for_block(now)
        self._ask_again(now)
        if self.role in (Role.PROPOSER, Role.RECOVERING) and now >= self._heartbeat_s:
            self._heartbeat_s = now + self._timing.heartbeat_s
            if self._leading is not None and self._deposed(self._leading, now):
                self._step_down(self._leading, now)
                return
            self._heartbeat(now)
        if now < self._election_s:
            return
        if self._leading is not None or (self.role is Role.CANDIDATE and not self._promised):
            self._await_election(now)
        elif self._eligible:
            self._become_precandidate(now)
        else:
            self._become_follower(None, now)

    def meet(self, peer: str, disk: str) -> None:
        """Note whose disk is at the other end of a link, before anything is received from it."""
        if self._disks.get(peer) != disk:
            self._disks[peer] = disk
            self._judged = None

    def receive(  # noqa: PLR0912 - one branch a kind
        self, sender: str, message: Message, now: float
    ) -> None:
        """Take a message from a peer.

        Raises:
            RemoteProtocolError: no correct peer sends this; close the link.
        """
        if self.membership is not self._judged:
            self._judge()
        if sender not in self._familiar and not self._heeds(sender, message, now):
            return
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
            case Trimmed():
                self._handle_trimmed(sender, message, now)
            case Change():
                self._handle_change(message)
            case Mend():
                self._handle_mend(sender, message)
            case Mended():
                self._effects.mend += self._mending.take(sender, message, self._keeper.index)
            case BarrierRequest():
                self._handle_barrier_request(sender, message)
            case BarrierReply():
                self._handle_barrier_reply(sender, message)
            case Parting():
                pass  # between the members, not of the log
            case _:
                assert_never(message)

    def _judge(self) -> None:
        """Note who is a member, by name and disk."""
        self._judged = membership = self.membership
        self._familiar = frozenset(
            member.name
            for member in membership.members
            if member.has_disk(self._disks.get(member.name, ""))
        )

    def _heeds(self, sender: str, message: Message, now: float) -> bool:
        """Tell whether to take a message from who is no member, by this member's log [V7].

        A member that has been away does not know who has joined meanwhile, nor that they have
        elected one of them. Who is in the primary component needs nobody that it doesn't know: it
        leaves it when its proposer is superseded, since any two quorums share a voter.
        """
        match message:
            case Change(join, leave):
                itself = sender, self._disks.get(sender)
                return join is not None and (join.name, join.disk) == itself and not leave
            case Submit():
                return self.role is Role.RECOVERING  # its log has yet to tell who is a member
            case BarrierRequest() | BarrierReply():
                return False  # a reader that lacks the newest membership asks again when it has it
            case Ack() | Reject():
                return True  # the proposer knows whom it feeds: who has left, too, until it knows
            case Vote():
                asked = sender in self.membership.voters
                return asked and self.component(now) is Component.SECONDARY
            case _:
                # a proposer that leaves is heard until its term ends
                return sender == self.proposer or self.component(now) is Component.SECONDARY

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

    def change(self, join: Member | None = None, leave: tuple[tuple[str, str], ...] = ()) -> bool:
        """Ask for a member to join, or for others to leave or be evicted, by name and disk [V3].

        True promises nothing, as with `submit`: the caller asks again until `membership` says
        that it has been done. A joining member is fed first and votes when it has caught up.

        Returns:
            False if no proposer is known: then all that were met are asked, and if the proposer
            is one of them it does it. A member that is yet to join knows none.
        """
        change = Change(join, leave)
        if self._leading is not None:
            self._leading.request(change)
        else:
            asked = self._disks if self.proposer is None else (self.proposer,)
            self._effects.send += [(peer, change) for peer in asked]
        return self.proposer is not None

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
        elif self.role is Role.CANDIDATE and self._promised:
            self._count_vote(self.name, self._own_vote(self.term, pre=False), now)
        elif self.role is Role.RECOVERING:
            self._request_blocks()

    def fetched(self, fetch: Fetch, blocks: tuple[Block, ...], now: float) -> None:
        """Take the blocks that a `Fetch` asked for.

        Raises:
            LocalProtocolError: other blocks than those.
        """
        if blocks and blocks[0].first != fetch.first:
            raise LocalProtocolError(f"fetched {blocks[0].first} instead of {fetch.first}")
        if fetch.mends:
            self._give_block(fetch, blocks)
            return
        if fetch.term != self._keeper.term:
            return
        message: Append | FetchReply | None
        if self._leading is not None:
            message = self._leading.fetched(fetch, blocks)
        else:
            message = FetchReply(fetch.term, fetch.first, self._keeper.held(blocks))
        if message is not None:
            self._effects.send.append((fetch.peer, message))

    def base_at(self, position: int) -> LogBase:
        """Return what a log has to know that is to begin after `position` [T4].

        Raises:
            LocalProtocolError: the position is not in this log, or not known to be committed.
        """
        if position > self.commit_position:
            raise LocalProtocolError(f"{position} is beyond {self.commit_position}")
        return self._keeper.index.base_at(position)

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
            self._leading.flush(effects, flush_first=self.flush_first, collect=self.collect)
        elif self.role is Role.FOLLOWER and self.proposer is not None:
            self._acknowledge(self.proposer, effects)
        effects.send += keeper.journal.take_messages()
        effects.send += self._questions()
        effects.persist = keeper.journal.take()
        return effects

    # ---- the log ---------------------------------------------------------------------------

    def _acknowledge(self, proposer: str, effects: Effects) -> None:
        keeper = self._keeper
        position = keeper.ack_position
        if (self._ack_due or position > self._acked) and keeper.durable_term == keeper.term:
            self._acked = position
            self._ack_due = False
            effects.send.append((proposer, Ack(keeper.term, position)))

    def _handle_append(self, sender: str, append: Append, now: float) -> None:
        check_chain(append.blocks, append.prev_position + 1, append.prev_term, append.term)
        if not self._hear(sender, append.term, now):
            return
        keeper = self._keeper
        self._restart_position = append.restart_position
        self.lonely = append.lonely
        if keeper.accept(append):
            self.behind = 0
            self._refused = (0, 0)
            self._ack_due = not append.blocks or keeper.ack_position == keeper.matched
            keeper.bound_commit(append.commit_bound)
            return
        self._refused = (append.term, append.prev_position)
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

    def _handle_trimmed(self, sender: str, trimmed: Trimmed, now: float) -> None:
        if not self._hear(sender, trimmed.term, now):
            return
        # Or its log is long enough, but another one at the place where the proposer's begins.
        base = trimmed.base.position
        if base > self.last_position or self._refused == (trimmed.term, base):
            self.behind, self.beginning = base, trimmed.base

    def _handle_change(self, change: Change) -> None:
        if self._leading is not None:
            self._leading.request(change)

    def _handle_submit(self, sender: str, submit: Submit) -> None:
        if len(submit.data) > self._limits.submission or submit.count < 1:
            raise RemoteProtocolError(f"{sender} submits {submit.count}, {len(submit.data)} bytes")
        if self.role in (Role.PROPOSER, Role.RECOVERING):
            self._queue.offer(sender, submit.data, submit.count)
