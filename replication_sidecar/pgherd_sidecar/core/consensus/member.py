"""One member of the log: the face the caller sees.

``LogMember`` does no IO, knows no clock, and is deterministic given its inputs and its random
generator. How to use it is written in the package's docstring. It consists of a log
(safekeeper.py), a role (elections.py, roles.py), the repair of damaged blocks and read barriers.
None of these knows it. Messages come to them by way of inbox.py.
"""

from random import Random

from pgherd_sidecar.core.consensus.block_repair import BlockRepair
from pgherd_sidecar.core.consensus.elections import Component, Elections
from pgherd_sidecar.core.consensus.follower import Follower
from pgherd_sidecar.core.consensus.inbox import Inbox
from pgherd_sidecar.core.consensus.model.blocks import Block, LogBase, LogIndex
from pgherd_sidecar.core.consensus.model.effects import (
    Control,
    Effects,
    Fetch,
    Limits,
    PendingEffects,
    Timing,
)
from pgherd_sidecar.core.consensus.model.errors import LocalProtocolError
from pgherd_sidecar.core.consensus.model.messages import (
    Append,
    Change,
    FetchReply,
    Mended,
    Message,
    Submit,
)
from pgherd_sidecar.core.consensus.model.quorum import Member, Membership
from pgherd_sidecar.core.consensus.progress import Progress
from pgherd_sidecar.core.consensus.reading import Barrier, ReadBarriers
from pgherd_sidecar.core.consensus.roles import Role
from pgherd_sidecar.core.consensus.safekeeper import Safekeeper


class LogMember:
    """A member of the replicated log.

    Attributes:
        flush_first: as proposer, flush a block before it is sent. Its own flush is then in the
            commit bound that travels with the block, which saves each peer a message [K4]; worth
            it while a flush here takes less time than a message. May change at any time.
        collect: as proposer, make no block for now: what is submitted collects for the next one.

    Args:
        name: this member's name, unique in the cluster. Whether it votes is for the log to say.
        control: as saved, or a fresh one for a fresh log.
        log: summary of the blocks on disk.
        timing: see `Timing`.
        rng: for election timeouts, and for the number of the first barrier.
        noop: data of the single entry that opens a term.
        now: the caller's clock, in seconds.
        limits: see `Limits`.
        disk: identity of the disk the log is on, empty if the caller doesn't tell disks apart.
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
        self.flush_first = False
        self.collect = False
        self._timing = timing
        self._limits = limits = limits or Limits()
        self._pending = PendingEffects()
        self._keeper = keeper = Safekeeper(control, log.copy())
        self._repair = BlockRepair(name, keeper, timing.election_min_s, limits.fetch)
        self._barriers = ReadBarriers(name, disk, keeper, timing.heartbeat_s, rng)
        self._elections = Elections(
            name,
            disk,
            keeper=keeper,
            repair=self._repair,
            pending=self._pending,
            timing=timing,
            limits=limits,
            rng=rng,
            noop=noop,
            now=now,
        )
        self._inbox = Inbox(
            keeper, self._elections, self._repair, self._barriers, self._pending, limits
        )

    @property
    def role(self) -> Role:
        """The role of this member besides that of a safekeeper."""
        return self._elections.state.role

    @property
    def proposer(self) -> str | None:
        """The term's proposer, once heard of."""
        return self._elections.state.proposer

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
        """The members that vote and that are fed, by the newest entry of this member's log [V1]."""
        return self._keeper.index.membership

    @property
    def memberships(self) -> tuple[Membership, ...]:
        """Those that this member's log holds and the newest before them, oldest first."""
        return self._keeper.index.memberships

    @property
    def behind(self) -> int:
        """The proposer's log begins after this position and this member lacks what was before.

        0 if not so. It needs a copy, and is no candidate until it has one [T3].
        """
        return self._keeper.behind

    @property
    def beginning(self) -> LogBase:
        """The beginning of the proposer's log, when this member is behind."""
        return self._keeper.beginning

    @property
    def lonely(self) -> bool:
        """The proposer has told this follower that it does not hear a majority."""
        return self._elections.lonely

    @property
    def incomplete(self) -> bool:
        """Damage has ended this log: the member gives no votes until it was fed [D6]."""
        return self._keeper.incomplete

    @property
    def abstains(self) -> bool:
        """Neither stands for election nor gives votes, until the caller says so or it was fed [G7].

        For a member that can't tell whether it has lost its log: see `incomplete`.
        """
        return self._keeper.abstains

    @abstains.setter
    def abstains(self, abstains: bool) -> None:
        self._keeper.abstains = abstains

    @property
    def damaged_at(self) -> int:
        """The block that starts here is damaged and has to be mended first; 0 if none is known."""
        return self._repair.position

    @property
    def damaged_for_good(self) -> bool:
        """That block was trimmed, and nobody who can be asked has it [D5]."""
        return self._repair.in_vain

    @property
    def barrier(self) -> Barrier:
        """The newest barrier that has ended; compare its number with that of `ask_barrier`."""
        return self._barriers.newest

    @property
    def commit_position(self) -> int:
        """Up to here all entries are in the order for good, and flushed here: deliver them."""
        return self._keeper.commit_position

    @property
    def flushed_position(self) -> int:
        """Up to here the log is on this member's disk."""
        return self._keeper.journal.flushed_position

    @property
    def submissions_wait(self) -> bool:
        """As proposer: there is something for the next block."""
        return bool(self._elections.state.queue)

    @property
    def stranded(self) -> frozenset[str]:
        """Peers that need positions this proposer has trimmed: only a copy can help them."""
        leading = self._elections.leading
        return frozenset(leading.stranded if leading is not None else ())

    @property
    def restart_position(self) -> int:
        """Every member has flushed the log up to here: it may be trimmed without a loss [T1]."""
        if self._elections.leading is not None:
            return self._elections.leading.restart_position
        return min(self._inbox.restart_position, self.commit_position)

    @property
    def oldest_needed(self) -> int:
        """The best beginning for the log of a new member: it then has all that any other needs."""
        return max(self.restart_position, self._keeper.index.base)

    def heard_of(self, peer: str, now: float) -> tuple[float | None, int | None]:
        """Return for how long a peer has been silent, and up to where it has the log.

        None for what this member can't tell: only a proposer hears all, and knows how far they are.
        """
        state = self._elections.state
        if isinstance(state, Follower):
            return (now - state.heard_s if peer == state.proposer else None), None
        progress = self._progress(peer)
        return (None, None) if progress is None else (now - progress.heard_s, progress.match)

    def stuck_s(self, peer: str, now: float) -> float | None:
        """Return for how long a peer has flushed nothing though there is something, 0 if it does.

        None for what only a proposer can tell.
        """
        progress = self._progress(peer)
        return None if progress is None else progress.stuck_s(now)

    def _progress(self, peer: str) -> Progress | None:
        leading = self._elections.leading
        return None if leading is None else leading.peers.get(peer)

    def component(self, now: float) -> Component:
        """Tell which side of a partition this member is on.

        A member that has lost its quorum says so after twice `Timing.election_max_s` and a
        heartbeat at the latest [P1].
        """
        return self._elections.component(now)

    @property
    def deadline_s(self) -> float:
        """When `tick` has to be called at the latest."""
        return min(self._elections.deadline_s, self._repair.ask_s, self._barriers.ask_s)

    # ---- inputs ----------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Do what the time demands: heartbeats, elections, stepping down, asking for blocks."""
        self._ask_for_block(now)
        self._pending.effects.send += self._barriers.repeated(now)
        self._elections.tick(now)

    def meet(self, peer: str, disk: str) -> None:
        """Note whose disk is at the other end of a link, before anything is received from it."""
        self._inbox.meet(peer, disk)

    def ended(self, peer: str, now: float) -> None:
        """Note that a peer's process has ended, as far as the caller can tell [E8].

        It may be wrong: safety depends on no such thing. The followers of a proposer that has ended
        elect another one at once, instead of waiting for heartbeats.
        """
        self._elections.ended(peer, now)

    def receive(self, sender: str, message: Message, now: float) -> None:
        """Take a message from a peer.

        Raises:
            RemoteProtocolError: no correct peer sends this; close the link.
        """
        self._inbox.receive(sender, message, now)

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
        state = self._elections.state
        if state.queue is not None:
            return state.queue.offer(self.name, data, count)
        if state.proposer is None:
            return False
        self._pending.send(state.proposer, Submit(count, data))
        return True

    def change_membership(
        self, join: Member | None = None, leave: tuple[tuple[str, str], ...] = ()
    ) -> bool:
        """Ask for a member to join, or for others to leave or be evicted, by name and disk [V3].

        True promises nothing, as with `submit`: the caller asks again until `membership` says
        that it has been done. A joining member is fed first and votes when it has caught up.

        Returns:
            False if no proposer is known: then all that were met are asked, and if the proposer
            is one of them it does it. A member that is yet to join knows none.
        """
        change, proposer = Change(join, leave), self.proposer
        if self._elections.leading is not None:
            self._elections.leading.request(change)
        else:
            for peer in self._elections.disks if proposer is None else (proposer,):
                self._pending.send(peer, change)
        return proposer is not None

    def persisted(self, ticket: int, now: float) -> None:
        """Note that the `Persist` with this ticket is durable.

        Raises:
            LocalProtocolError: no such `Persist` is under way.
        """
        keeper = self._keeper
        self._pending.effects.send += keeper.journal.done(ticket)
        keeper.flushed()
        self._elections.flushed(now)

    def fetched(self, fetch: Fetch, blocks: tuple[Block, ...], now: float) -> None:
        """Take the blocks that a `Fetch` asked for.

        Raises:
            LocalProtocolError: other blocks than those.
        """
        if blocks and blocks[0].first != fetch.first:
            raise LocalProtocolError(f"fetched {blocks[0].first} instead of {fetch.first}")
        reply: Append | FetchReply | Mended | None
        leading = self._elections.leading
        if fetch.mends:
            reply = self._repair.fetched(fetch, blocks)
        elif fetch.term != self._keeper.term:
            return
        elif leading is not None:
            reply = leading.fetched(fetch, blocks)
        else:
            reply = FetchReply(fetch.term, fetch.first, self._keeper.held(blocks))
        if reply is not None:
            self._pending.send(fetch.peer, reply)

    def ask_barrier(self, now: float) -> int:
        """Ask for a barrier; all who do so before the next `take_effects` share one round [F2].

        Returns:
            The number of the round. When `barrier` has reached it, and `commit_position` has
            reached the barrier's position, all is here that was acknowledged before this call. If
            term or proposer change before that, ask again.
        """
        return self._barriers.ask(now)

    def drop_barriers(self) -> None:
        """Note that nobody waits for a barrier any more: no more questions are sent."""
        self._barriers.drop()

    def damaged(self, position: int, now: float) -> None:
        """Note that the block that starts at `position` can't be read: the others are asked [D5].

        Nothing else changes for them: what this member says of its log is true all the same.
        """
        self._repair.note_missing(position, now)
        self._ask_for_block(now)

    def mended(self) -> None:
        """Note that the blocks of `Effects.mend` have been written, if they still belonged here."""
        self._repair.note_whole()
        if self._elections.leading is not None:
            self._elections.leading.fetch_again()

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
        keeper, state = self._keeper, self._elections.state
        effects = self._pending.take_effects()
        if isinstance(state, Follower):
            if state.proposer is not None and (ack := state.acknowledgement(keeper)) is not None:
                effects.send.append((state.proposer, ack))
        elif self._elections.leading is not None:
            self._elections.leading.flush(
                effects, flush_first=self.flush_first, collect=self.collect
            )
        effects.send += keeper.journal.take_messages()
        effects.send += self._barriers.questions()
        effects.persist = keeper.journal.take_persist()
        return effects

    def _ask_for_block(self, now: float) -> None:
        question = self._repair.next_questions(now)
        if question is not None:
            self._pending.send(*question)
