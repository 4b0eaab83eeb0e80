"""Errors put into the product on purpose, to prove that the simulator would find them.

Each is the kind of slip that a protocol of this family has had somewhere: one method of one class
replaced by a version that forgets one rule. The rule it breaks is named as in docs/protocol.md.
"""

from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import msgspec
from pgherd_sidecar.core.certification.certifier import AbortReason, Conflict
from pgherd_sidecar.core.consensus import reconfiguration
from pgherd_sidecar.core.consensus.campaign import Campaign, Recovery
from pgherd_sidecar.core.consensus.elections import Elections
from pgherd_sidecar.core.consensus.follower import Follower
from pgherd_sidecar.core.consensus.journal import Journal
from pgherd_sidecar.core.consensus.model import identity
from pgherd_sidecar.core.consensus.model.blocks import Block, LogIndex
from pgherd_sidecar.core.consensus.model.effects import Control, Persist
from pgherd_sidecar.core.consensus.model.messages import (
    Append,
    BarrierReply,
    BarrierRequest,
    Message,
    Vote,
    VoteRequest,
)
from pgherd_sidecar.core.consensus.model.quorum import Member, Membership, View
from pgherd_sidecar.core.consensus.model.split import (
    Consent,
    Founding,
    SplitMessage,
    SplitPlan,
    consented,
    founding,
)
from pgherd_sidecar.core.consensus.proposer import Proposer
from pgherd_sidecar.core.consensus.reading import Barrier, ReadBarriers, Rounds
from pgherd_sidecar.core.consensus.safekeeper import Safekeeper
from pgherd_sidecar.core.consensus.split import laststep
from pgherd_sidecar.core.consensus.split.splitting import Splitting
from pgherd_sidecar.core.consensus.submissions import Submissions
from pgherd_sidecar.core.replication.databases import Database, Databases
from pgherd_sidecar.core.replication.entries import Condition, DatabaseState, Skip, Writeset
from pgherd_sidecar.core.replication.state import Decision, DecisionKind, ReplicatedState
from pgherd_sidecar.env.storage.segment import Segment
from pgherd_sidecar.env.storage.segments import SegmentLog


@dataclass(frozen=True)
class PlantedBug:
    """A replacement for `owner.attribute` that breaks `rule`.

    `seed` is where the search begins: shortly before a seed that found it, to save time; `storm`,
    `segments`, `rot`, `splits`, `databases`, `reads` and `follow` say in which kind of world.
    """

    rule: str
    owner: object
    attribute: str
    replacement: object
    seed: int = 0
    storm: bool = True
    segments: bool = False
    rot: bool = False
    splits: bool = False
    databases: bool = False
    reads: bool = False
    follow: bool = False


def _always(*asked: object) -> bool:
    return True


def _never(*asked: object) -> bool:
    return False


def _elects_with_half(membership: Membership, who: Collection[str]) -> bool:
    return all(
        2 * sum(voter in who for voter in view.voters) >= len(view.voters) - 1
        for view in membership.views
    )


def _commits_with_one_less(
    membership: Membership, flushed: Mapping[str, int], assume: str | None = None
) -> int:
    positions = sorted(
        1 << 64 if member == assume else flushed.get(member, 0) for member in membership.voters
    )
    return positions[min(len(positions) // 2 + 1, len(positions) - 1)]


def _commits_with_a_half(
    membership: Membership, flushed: Mapping[str, int], assume: str | None = None
) -> int:
    lowest = 1 << 64
    for view in membership.views:
        ends = sorted(1 << 64 if v == assume else flushed.get(v, 0) for v in view.voters)
        lowest = min(lowest, ends[len(ends) // 2])
    return lowest


def _newest_view_commits(
    membership: Membership, flushed: Mapping[str, int], assume: str | None = None
) -> int:
    alone = Membership(membership.views[-1:], (), membership.position)
    return _flushed_by_quorum(alone, flushed, assume)


_flushed_by_quorum = Membership.flushed_by_quorum


def _any_half_elects(view: View, who: Collection[str]) -> bool:
    return 2 * sum(voter in who for voter in view.voters) >= len(view.voters)


def _counts_by_own_membership(campaign: Campaign, voter: str, vote: Vote) -> bool:
    if vote.term == campaign.term and vote.pre == campaign.pre:
        campaign._votes[voter] = vote
    if campaign._name not in campaign._votes:
        return False
    return campaign._votes[campaign._name].membership.has_quorum(campaign._votes)


def _promotes_at_once(
    now: Membership, caught_up: Collection[str], position: int, live: Collection[str]
) -> Membership | None:
    step = _promoted(now, caught_up, position, live)
    return None if step is None else Membership(step.views[-1:], step.learners, position)


_promoted = reconfiguration.promoted


def _promotes_readers(
    now: Membership, caught_up: Collection[str], position: int, live: Collection[str]
) -> Membership | None:
    learners = tuple(replace(learner, reader=False) for learner in now.learners)
    return _promoted(replace(now, learners=learners), caught_up, position, live)


def _finishes_uncommitted(proposer: Proposer, now: float) -> Membership | None:
    position = proposer._keeper.index.last + 1
    if proposer._membership.joint:
        return reconfiguration.finished(proposer._membership, position)
    return _plan(proposer, now)


_plan = Proposer._plan


def _forgets_the_slowest(proposer: Proposer) -> int:
    return proposer._keeper.commit_position


def _term_in_memory_only(keeper: Safekeeper, term: int, vote: str | None) -> None:
    save = keeper.journal.save_control
    keeper.journal.save_control = lambda control: None  # type: ignore[method-assign]
    _enter_term(keeper, term, vote)
    keeper.journal.save_control = save  # type: ignore[method-assign]
    keeper.journal.durable = Control(term, vote, keeper.commit_position)


_enter_term = Safekeeper.enter_term


def _hears_the_past(elections: Elections, sender: str, term: int, now: float) -> Follower | None:
    if term < elections._keeper.term:
        return Follower(sender, now)
    return _hear(elections, sender, term, now)


_hear = Elections.hear


def _commits_unflushed(keeper: Safekeeper, position: int) -> None:
    keeper.commit_position = max(keeper.commit_position, min(position, keeper.index.last))


def _takes_everything(queue: Submissions, origin: str, data: bytes, count: int) -> bool:
    queue._queue.append((origin, data, count))
    queue.size_bytes += len(data)
    return True


def _trims_the_term_too(index: LogIndex, position: int) -> None:
    _trim(index, position)
    if index._starts and index._starts[0] <= index.base < index.last:
        del index._starts[:1]
        del index._terms[:1]


_trim = LogIndex.trim


def _votes_again(elections: Elections, sender: str, request: VoteRequest, now: float) -> None:
    if request.term == elections._keeper.term:
        elections._keeper.vote = None
    _handle_vote_request(elections, sender, request, now)


_handle_vote_request = Elections.handle_vote_request


def _acknowledges_unflushed(keeper: Safekeeper) -> int:
    return keeper.matched


def _forgets_vote(keeper: Safekeeper, term: int, vote: str | None) -> None:
    if term > keeper.term:
        keeper.matched = 0
        keeper._commit_bound = 0
        keeper.journal.drop_held()
    keeper.term, keeper.vote = term, vote
    keeper.journal.save_control(Control(term, None, keeper.commit_position))


def _sends_before_flush(journal: Journal) -> list[tuple[str, Message]]:
    held, journal._held = journal._held, []
    return held


def _counts_below_start(proposer: Proposer, member: str, position: int) -> None:
    if position <= proposer._counted.get(member, 0):
        return
    proposer._counted[member] = position
    proposer._counted_more = True
    proposer._keeper.commit_to(proposer._committed())


def _keeps_other_blocks(keeper: Safekeeper, block: Block) -> bool:
    return block.last <= keeper.index.last


def _ignores_previous(keeper: Safekeeper, append: Append) -> bool:
    if append.prev_position > keeper.index.last:
        return False
    for block in append.blocks:
        if not keeper._holds(block):
            if block.first <= keeper.index.last:
                keeper.truncate(block.first - 1)
            keeper.append(block)
    keeper.matched = max(keeper.matched, append.prev_position, *[b.last for b in append.blocks], 0)
    return True


def _matches_all(keeper: Safekeeper, append: Append) -> bool:
    accepted = _accept(keeper, append)
    if accepted:
        keeper.matched = keeper.index.last
    return accepted


_accept = Safekeeper.accept


def _longest_log_wins(campaign: Campaign, voter: str) -> tuple[int, int, bool]:
    return 0, campaign._votes[voter].last_position, voter == campaign._name


def _own_log_wins(campaign: Campaign, voter: str) -> tuple[int, int, bool]:
    return 0, 0, voter == campaign._name


def _commits_unmatched(keeper: Safekeeper, bound: int) -> None:
    keeper.commit_to(bound)


def _keeps_flushed_position(journal: Journal, position: int) -> None:
    flushed = journal.flushed_position
    _truncate(journal, position)
    journal.flushed_position = flushed


_truncate = Journal.truncate


def _leaves_old_records(segment: Segment, end: int) -> None:
    segment.end = end


def _only_flushes(segment: Segment) -> None:
    segment.file.sync()


def _takes_damage_for_the_end(log: SegmentLog, last: int) -> int:
    log._save_control(last)
    return last


def _complete_when_spoken_to(keeper: Safekeeper) -> None:
    keeper.incomplete = False
    keeper._save()


def _keeps_its_identity(
    name: str, cluster: str, known: SplitMessage, control: Control, index: LogIndex
) -> Iterator[Persist]:
    return laststep.take_part(name, founding(known.consents), control, index)


def _first_party_seeds(consents: Iterable[Consent]) -> Founding:
    right = founding(consents)
    return Founding(right.members[0].name, right.term, right.members)


def _looks_once(
    known: SplitMessage | None, plan: SplitPlan, mine: Member, control: Control, index: LogIndex
) -> SplitMessage:
    return consented(known, plan, Consent(mine, control.term, index.last_term, index.last))


def _remembers_other_consents(
    known: SplitMessage | None, plan: SplitPlan, consent: Consent
) -> SplitMessage:
    return consented(known and replace(known, plan=plan), plan, consent)


def _never_done(name: str, cluster: str, known: SplitMessage | None, *, done: bool) -> bool:
    return _remains(name, cluster, known, done=False)


_remains = laststep.remains


def _goes_on_meanwhile(splitting: Splitting, *args: str, **more: float | None) -> None:
    _begin(splitting, *args, **more)  # type: ignore[arg-type]
    splitting.sealed = False


_begin = Splitting.__init__


def _loads_no_hold() -> object:
    loads = Databases.load.__func__  # type: ignore[attr-defined]

    def load(cls: type[Databases], numbers: "array[int]") -> Databases:
        loaded: Databases = loads(cls, numbers)
        loaded.hold = None
        return loaded

    return classmethod(load)


def _refuses_and_forgets(self: ReplicatedState, gid: int, writeset: Writeset) -> Decision:
    return Decision(DecisionKind.REFUSED, Conflict(AbortReason.HELD, 0, gid))


def _decides_while_held(
    self: ReplicatedState, gid: int, writeset: Writeset, keys: "array[int]"
) -> Decision:
    known = self._known(writeset)
    if known is not None:
        return known
    return self._decided(gid, writeset, self._certifier.certify(gid, keys))


_takes = Databases.take_state


def _takes_late_copies(self: Databases, position: int, entry: DatabaseState) -> None:
    known = self.of(entry.member)
    if known is not None:
        entry = msgspec.structs.replace(entry, after=known.since)
    _takes(self, position, entry)


def _skips_for_the_stopped_only(self: Databases, position: int, entry: Skip) -> bool:
    stopped = self.stopped_at(entry.gid)
    for member in stopped:
        self._of[member] = Database(Condition.WHOLE, position)
    if stopped:
        self.skipped = (*self.skipped, entry.gid)
        self._judge(position)
    return bool(stopped)


def _one_answer_is_enough(rounds: Rounds) -> None:
    end = max(reply.last_position for reply in rounds._replies.values())
    rounds.ended, rounds.running = Barrier(rounds.running, end), 0


def _counts_by_the_readers_membership(rounds: Rounds) -> None:
    voters = next(iter(rounds._replies.values())).membership  # the reader answers first
    if voters.has_majority(rounds._replies):
        _one_answer_is_enough(rounds)


def _joins_the_round_under_way(rounds: Rounds, now: float) -> int:
    return rounds.running or _ask(rounds, now)


_ask = Rounds.ask


def _counts_former_answers(rounds: Rounds, voter: str, reply: BarrierReply) -> None:
    if rounds.running:
        rounds._replies[voter] = reply
        rounds._judge()


def _tells_what_it_knows_committed(barriers: ReadBarriers, number: int) -> BarrierReply:
    reply = _reply(barriers, number)
    return replace(reply, last_position=barriers._keeper.commit_position)


def _tells_what_is_flushed(barriers: ReadBarriers, number: int) -> BarrierReply:
    reply, flushed = _reply(barriers, number), barriers._keeper.journal.flushed_position
    return replace(reply, last_position=flushed)


_reply = ReadBarriers._reply


def _answers_with_a_loss(barriers: ReadBarriers, request: BarrierRequest) -> BarrierReply:
    return barriers._reply(request.number)


PLANTED_BUGS = {
    "elected by half": PlantedBug("Q1", Membership, "has_quorum", _elects_with_half),
    "committed by too few": PlantedBug(
        "K1", Membership, "flushed_by_quorum", _commits_with_one_less
    ),
    "ack before flush": PlantedBug(
        "D1", Safekeeper, "ack_position", property(_acknowledges_unflushed)
    ),
    "vote not persisted": PlantedBug("E3", Safekeeper, "enter_term", _forgets_vote, 3, storm=False),
    "vote sent before flush": PlantedBug(
        "D1", Journal, "take_messages", _sends_before_flush, 100, storm=False
    ),
    "ack below term start counted": PlantedBug("K2", Proposer, "_count", _counts_below_start),
    "diverged tail not truncated": PlantedBug("A2", Safekeeper, "_holds", _keeps_other_blocks),
    "previous block not compared": PlantedBug(
        "A2", Safekeeper, "accept", _ignores_previous, 120, storm=False
    ),
    "diverged tail acknowledged": PlantedBug("A4", Safekeeper, "accept", _matches_all),
    "longest log wins": PlantedBug("R1", Campaign, "_advancement", _longest_log_wins, 16),
    "own log wins": PlantedBug("R1", Campaign, "_advancement", _own_log_wins),
    "commit bound beyond match": PlantedBug("K3", Safekeeper, "bound_commit", _commits_unmatched),
    "truncation leaves flushed position": PlantedBug(
        "D1", Journal, "truncate", _keeps_flushed_position
    ),
    "cache believed after a failed flush": PlantedBug(
        "D4", Segment, "rewrite", _only_flushes, 4, segments=True
    ),
    "truncated records left on disk": PlantedBug(
        "D3", Segment, "cut", _leaves_old_records, 175, segments=True
    ),
    "another half elects": PlantedBug("Q2", View, "has_quorum", _any_half_elects),
    "half is durable": PlantedBug("Q2", Membership, "flushed_by_quorum", _commits_with_a_half),
    "only the new view commits": PlantedBug(
        "V2", Membership, "flushed_by_quorum", _newest_view_commits
    ),
    "new voters without the old ones' consent": PlantedBug(
        "V2", reconfiguration, "promoted", _promotes_at_once
    ),
    "new view before both have agreed": PlantedBug(
        "V2", Proposer, "_plan", _finishes_uncommitted, 7
    ),
    "votes counted by an old view": PlantedBug(
        "V4", Campaign, "count", _counts_by_own_membership, 18
    ),
    "any disk votes": PlantedBug("V6", Member, "has_disk", _always, 13, storm=False),
    "any disk acknowledges": PlantedBug("V6", Proposer, "_strange", _never, 18),
    "trimmed while a member needs it": PlantedBug(
        "T1", Proposer, "_flushed_by_all", _forgets_the_slowest, 10, storm=False
    ),
    "proposes before it has recovered": PlantedBug(
        "R2", Recovery, "recovered", _always, 1, storm=False
    ),
    "term not persisted": PlantedBug("E3", Safekeeper, "enter_term", _term_in_memory_only),
    "an old proposer is obeyed": PlantedBug(
        "E4", Elections, "hear", _hears_the_past, 26, storm=False
    ),
    "commit before the own flush": PlantedBug(
        "K5", Safekeeper, "commit_to", _commits_unflushed, 3, storm=False
    ),
    "the term at the base is trimmed": PlantedBug(
        "T4", LogIndex, "trim", _trims_the_term_too, 6, storm=False
    ),
    "votes twice": PlantedBug("E3", Elections, "handle_vote_request", _votes_again),
    "a loss is taken for a torn tail": PlantedBug(
        "D6", SegmentLog, "_give_up_after", _takes_damage_for_the_end, rot=True
    ),
    "votes with a loss": PlantedBug("D6", Elections, "_withholds", property(_never), 13, rot=True),
    "votes again before it is fed": PlantedBug(
        "D6", Safekeeper, "_complete", _complete_when_spoken_to, 34, rot=True
    ),
    "identity kept": PlantedBug("S4", laststep, "last_step", _keeps_its_identity, splits=True),
    "any party is the seed": PlantedBug(
        "S4", laststep, "founding", _first_party_seeds, 30, splits=True
    ),
    "goes on after it has consented": PlantedBug(
        "S3", Splitting, "__init__", _goes_on_meanwhile, 9, splits=True
    ),
    "no second look at the quorum": PlantedBug(
        "S1", laststep, "consent", _looks_once, 230, storm=False, splits=True
    ),
    "consents to another plan counted": PlantedBug(
        "S4", laststep, "consented", _remembers_other_consents, 120, storm=False, splits=True
    ),
    "the last step done again": PlantedBug(
        "S4", laststep, "remains", _never_done, 80, storm=False, splits=True
    ),
    "any cluster is let in": PlantedBug("S5", identity, "_same_cluster", _always, splits=True),
    "a reader is made a voter": PlantedBug(
        "V8", reconfiguration, "promoted", _promotes_readers, storm=False, follow=True
    ),
    "one answer is a barrier": PlantedBug(
        "F3", Rounds, "_judge", _one_answer_is_enough, reads=True
    ),
    "answers counted by the reader's membership": PlantedBug(
        "F4", Rounds, "_judge", _counts_by_the_readers_membership, 35, reads=True
    ),
    "a reader joins the round under way": PlantedBug(
        "F2", Rounds, "ask", _joins_the_round_under_way, reads=True
    ),
    "answers to former rounds counted": PlantedBug(
        "F2", Rounds, "count_answer", _counts_former_answers, reads=True
    ),
    "only what is known to be committed is told": PlantedBug(
        "F3", ReadBarriers, "_reply", _tells_what_it_knows_committed, reads=True
    ),
    "only what is flushed is told": PlantedBug(
        "F3",
        ReadBarriers,
        "_reply",
        _tells_what_is_flushed,
        1924771035,
        storm=False,
        splits=True,
        reads=True,
    ),
    "a barrier rests on a log with a loss": PlantedBug(
        "F5", ReadBarriers, "answer", _answers_with_a_loss, 10, rot=True, reads=True
    ),
    "one database goes on alone": PlantedBug(
        "W2", Database, "hopeless", property(_never), storm=False, databases=True
    ),
    "the hold is forgotten at a restart": PlantedBug(
        "W1", Databases, "load", _loads_no_hold(), storm=False, databases=True
    ),
    "a refused writeset may come again": PlantedBug(
        "W4", ReplicatedState, "_refused", _refuses_and_forgets, 270, storm=False, databases=True
    ),
    "a late copy is believed": PlantedBug(
        "W1", Databases, "take_state", _takes_late_copies, storm=False, databases=True
    ),
    "the origin goes on with what was skipped": PlantedBug(
        "W2", Databases, "skip", _skips_for_the_stopped_only, storm=False, databases=True
    ),
    "held members commit": PlantedBug(
        "W3", ReplicatedState, "_decide", _decides_while_held, storm=False, databases=True
    ),
    "queue without bound": PlantedBug("A0", Submissions, "offer", _takes_everything),
}
