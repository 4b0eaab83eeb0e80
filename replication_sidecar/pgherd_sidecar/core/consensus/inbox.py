"""The messages of a member's peers, and their way to the parts that they concern.

``Inbox`` is the part of `LogMember` that knows all other parts. It says who is heard at all [V7],
and has the flow of blocks from the follower's side. Free of IO; lost by a restart.
"""

from typing import assert_never

from pgherd_sidecar.core.consensus.block_repair import BlockRepair
from pgherd_sidecar.core.consensus.campaign import check_chain
from pgherd_sidecar.core.consensus.elections import Component, Elections
from pgherd_sidecar.core.consensus.model.effects import Fetch, Limits, PendingEffects
from pgherd_sidecar.core.consensus.model.errors import RemoteProtocolError
from pgherd_sidecar.core.consensus.model.messages import (
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
    PollReply,
    PollRequest,
    Reject,
    Submit,
    Trimmed,
    Vote,
    VoteRequest,
)
from pgherd_sidecar.core.consensus.model.quorum import Membership
from pgherd_sidecar.core.consensus.model.split import SplitMessage
from pgherd_sidecar.core.consensus.reading import ReadBarriers
from pgherd_sidecar.core.consensus.roles import Role
from pgherd_sidecar.core.consensus.safekeeper import Safekeeper


class Inbox:
    """Takes the messages of peers, strangers' only where they can't do harm [V7].

    Attributes:
        restart_position: up to here all members have flushed the log, by the proposer's word [T1].
    """

    def __init__(
        self,
        keeper: Safekeeper,
        elections: Elections,
        repair: BlockRepair,
        barriers: ReadBarriers,
        pending: PendingEffects,
        limits: Limits,
    ) -> None:
        self.restart_position = 0
        self._keeper = keeper
        self._elections = elections
        self._repair = repair
        self._barriers = barriers
        self._pending = pending
        self._limits = limits
        # term and position where the proposer's log and this one differed last
        self._refused = (0, 0)
        # who is a member by name and disk, and by which membership that was judged
        self._familiar: frozenset[str] = frozenset()
        self._judged: Membership | None = None

    def meet(self, peer: str, disk: str) -> None:
        """Note whose disk is at the other end of a link."""
        disks = self._elections.disks
        if disks.get(peer) != disk:
            disks[peer] = disk
            self._judged = None

    def receive(  # noqa: PLR0912 - one branch a kind
        self, sender: str, message: Message, now: float
    ) -> None:
        """Take a message.

        Raises:
            RemoteProtocolError: no correct peer sends this; close the link.
        """
        if self._keeper.index.membership is not self._judged:
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
                self._elections.handle_vote_request(sender, message, now)
            case Vote():
                self._elections.count_vote(sender, message, now)
            case Newer():
                self._elections.handle_newer(message, now)
            case FetchRequest():
                self._elections.handle_fetch_request(sender, message)
            case FetchReply():
                self._elections.handle_fetch_reply(sender, message, now)
            case Trimmed():
                self._handle_trimmed(sender, message, now)
            case Change():
                self._handle_change(message)
            case Mend():
                self._handle_mend(sender, message)
            case Mended():
                self._pending.effects.mend += self._repair.take_blocks(sender, message)
            case BarrierRequest():
                self._handle_barrier_request(sender, message)
            case BarrierReply():
                self._barriers.count_answer(sender, message)
            case SplitMessage() | PollRequest() | PollReply():
                pass  # between the members, not of the log
            case _:
                assert_never(message)

    def _judge(self) -> None:
        """Note who is a member, by name and disk."""
        self._judged = membership = self._keeper.index.membership
        disks = self._elections.disks
        self._familiar = frozenset(
            member.name
            for member in membership.members
            if member.has_disk(disks.get(member.name, ""))
        )

    def _heeds(self, sender: str, message: Message, now: float) -> bool:
        """Tell whether to take a message from a stranger: no member, by this member's log [V7].

        A member that has been away does not know who has joined meanwhile, nor that they have
        elected one of them. A member in the primary component ignores strangers. It can't miss a
        new proposer: any two quorums share a voter, and that voter reports the higher term.
        """
        elections = self._elections
        match message:
            case Change(join, leave):
                itself = sender, elections.disks.get(sender)
                return join is not None and (join.name, join.disk) == itself and not leave
            case Submit():
                # its log has yet to tell who is a member
                return elections.state.role is Role.RECOVERING
            case BarrierRequest() | BarrierReply():
                return False  # a reader that lacks the newest membership asks again when it has it
            case Ack() | Reject():
                return True  # the proposer knows whom it feeds: who has left, too, until it knows
            case Vote():
                asked = sender in self._keeper.index.membership.voters
                return asked and elections.component(now) is Component.SECONDARY
            case _:
                # a proposer that leaves is heard until its term ends
                known = sender == elections.state.proposer
                return known or elections.component(now) is Component.SECONDARY

    def _handle_append(self, sender: str, append: Append, now: float) -> None:
        check_chain(append.blocks, append.prev_position + 1, append.prev_term, append.term)
        follower = self._elections.hear(sender, append.term, now)
        if follower is None:
            return
        keeper = self._keeper
        self.restart_position = append.restart_position
        self._elections.lonely = append.lonely
        if keeper.accept(append):
            keeper.behind = 0
            self._refused = (0, 0)
            follower.ack_due = not append.blocks or keeper.ack_position == keeper.matched
            keeper.bound_commit(append.commit_bound)
            return
        self._refused = (append.term, append.prev_position)
        index = keeper.index
        reject = Reject(keeper.term, append.prev_position, index.last, index.history)
        self._pending.send(sender, reject)

    def _handle_commit(self, sender: str, commit: Commit, now: float) -> None:
        if self._elections.hear(sender, commit.term, now) is not None:
            self._keeper.bound_commit(commit.commit_bound)

    def _handle_ack(self, sender: str, ack: Ack, now: float) -> None:
        leading = self._elections.leading
        if leading is not None and ack.term == self._keeper.term:
            leading.acknowledged(sender, ack, now)

    def _handle_reject(self, sender: str, reject: Reject, now: float) -> None:
        leading = self._elections.leading
        if leading is not None and reject.term == self._keeper.term:
            leading.rejected(sender, reject, now)

    def _handle_trimmed(self, sender: str, trimmed: Trimmed, now: float) -> None:
        if self._elections.hear(sender, trimmed.term, now) is None:
            return
        # Or its log is long enough, but another one at the place where the proposer's begins.
        base = trimmed.base.position
        if base > self._keeper.index.last or self._refused == (trimmed.term, base):
            self._keeper.behind, self._keeper.beginning = base, trimmed.base

    def _handle_change(self, change: Change) -> None:
        if self._elections.leading is not None:
            self._elections.leading.request(change)

    def _handle_submit(self, sender: str, submit: Submit) -> None:
        if len(submit.data) > self._limits.submission or submit.count < 1:
            raise RemoteProtocolError(f"{sender} submits {submit.count}, {len(submit.data)} bytes")
        queue = self._elections.state.queue
        if queue is not None:
            queue.offer(sender, submit.data, submit.count)

    def _handle_mend(self, sender: str, mend: Mend) -> None:
        answer = self._repair.requested(sender, mend)
        if isinstance(answer, Fetch):
            self._pending.effects.fetch.append(answer)
        elif answer is not None:
            self._pending.send(sender, answer)

    def _handle_barrier_request(self, sender: str, request: BarrierRequest) -> None:
        reply = self._barriers.answer(request)
        if reply is not None:
            self._pending.send(sender, reply)
