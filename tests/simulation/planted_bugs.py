"""Errors put into the product on purpose, to prove that the simulator would find them.

Each is the kind of slip that a protocol of this family has had somewhere: one method of one class
replaced by a version that forgets one rule. The rule it breaks is named as in docs/protocol.md.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pgherd_sidecar.core.log.blocks import Block
from pgherd_sidecar.core.log.campaign import Campaign
from pgherd_sidecar.core.log.effects import Control
from pgherd_sidecar.core.log.journal import Journal
from pgherd_sidecar.core.log.messages import Append, Message
from pgherd_sidecar.core.log.proposer import Proposer
from pgherd_sidecar.core.log.quorum import Membership
from pgherd_sidecar.core.log.safekeeper import Safekeeper
from pgherd_sidecar.env.segment import Segment


@dataclass(frozen=True)
class PlantedBug:
    """A replacement for `owner.attribute` that breaks `rule`.

    `seed` is where the search begins: shortly before a seed that found it, to save time.
    """

    rule: str
    owner: type
    attribute: str
    replacement: object
    seed: int = 0


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


def _acknowledges_unflushed(keeper: Safekeeper) -> int:
    return keeper.matched


def _forgets_vote(keeper: Safekeeper, term: int, vote: str | None) -> None:
    if term > keeper.term:
        keeper.matched = 0
        keeper._commit_bound = 0
        keeper.journal.drop_held()
    keeper.term, keeper.vote = term, vote
    keeper.journal.save(Control(term, None, keeper.commit_position))


def _sends_before_flush(journal: Journal) -> list[tuple[str, Message]]:
    held, journal._held = journal._held, []
    return held


def _counts_below_start(proposer: Proposer, member: str, position: int) -> None:
    if position <= proposer._counted[member]:
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


PLANTED_BUGS = {
    "elected by half": PlantedBug("Q1", Membership, "has_quorum", _elects_with_half),
    "committed by too few": PlantedBug(
        "C1", Membership, "flushed_by_quorum", _commits_with_one_less
    ),
    "ack before flush": PlantedBug(
        "D1", Safekeeper, "ack_position", property(_acknowledges_unflushed)
    ),
    "vote not persisted": PlantedBug("E3", Safekeeper, "enter_term", _forgets_vote, 12),
    "vote sent before flush": PlantedBug("D1", Journal, "take_messages", _sends_before_flush, 18),
    "ack below term start counted": PlantedBug("C2", Proposer, "_count", _counts_below_start),
    "diverged tail not truncated": PlantedBug("A2", Safekeeper, "_holds", _keeps_other_blocks),
    "previous block not compared": PlantedBug("A2", Safekeeper, "accept", _ignores_previous, 6),
    "diverged tail acknowledged": PlantedBug("A4", Safekeeper, "accept", _matches_all, 7),
    "longest log wins": PlantedBug("R1", Campaign, "_advancement", _longest_log_wins, 86),
    "own log wins": PlantedBug("R1", Campaign, "_advancement", _own_log_wins),
    "commit bound beyond match": PlantedBug(
        "C3", Safekeeper, "bound_commit", _commits_unmatched, 11
    ),
    "truncation leaves flushed position": PlantedBug(
        "D1", Journal, "truncate", _keeps_flushed_position
    ),
    "truncated records left on disk": PlantedBug("D3", Segment, "cut", _leaves_old_records, 12),
}
