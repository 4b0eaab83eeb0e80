"""Steps of a split for good that take a closed log: to consent, to go on as another cluster.

Who carries them out makes each durable before the next one, in this order, and may die after any:
it begins again with what is on disk then. First the identity, of all that changes: a member that
dies in between is of the new cluster and has no quorum there. Never the other way round, or it
would be a second primary component of the old one [S4, C21].

Pure functions.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pgherd_sidecar.core.consensus.model.blocks import MEMBERSHIP, Block, LogIndex
from pgherd_sidecar.core.consensus.model.effects import Control, Persist
from pgherd_sidecar.core.consensus.model.quorum import Member, Membership, View
from pgherd_sidecar.core.consensus.model.split import (
    Consent,
    Founding,
    SplitMessage,
    SplitPlan,
    SplitShare,
    consented,
    founding,
)


@dataclass(frozen=True, slots=True)
class Become:
    """Have the identity of a member say that it is of another cluster."""

    cluster: str


def consent(
    known: SplitMessage | None, plan: SplitPlan, mine: Member, control: Control, index: LogIndex
) -> SplitMessage | None:
    """Return what a member knows once it has consented, to be made durable.

    Args:
        known: what it knew before.
        plan: what it consents to.
        mine: what it is as a member.
        control, index: of its log, which is closed and whole.

    Returns:
        None if the log has come to name other voters since, so that the parties are enough to go
        on as they are: the old cluster would be left without a quorum [S1].
    """
    if index.membership.has_quorum(plan.names):
        return None
    return consented(known, plan, Consent(mine, control.term, index.last_term, index.last))


def remains(name: str, cluster: str, known: SplitMessage | None, *, done: bool) -> bool:
    """Tell whether a member has the last step to do, before its log is opened for a new life.

    Args:
        name: of the member.
        cluster: it is of, by its identity.
        known: what it has consented to; of another cluster if an administrator has split it off
            since, and then void.
        done: it has done the last step of that.
    """
    if known is None or done or cluster not in (known.plan.cluster, known.plan.successor):
        return False
    return SplitShare(name, known).complete


def last_step(
    name: str, cluster: str, known: SplitMessage, control: Control, index: LogIndex
) -> Iterator[Become | Persist]:
    """Return what is left to do for who knows the consents of all parties; may be repeated.

    Args:
        name: of the member.
        cluster: it is of, by its identity.
        known: the consents.
        control, index: of its log, which is closed.

    Raises:
        ValueError: the parties can't be a view.
    """
    if cluster == known.plan.cluster:
        yield Become(known.plan.successor)
    yield from take_part(name, founding(known.consents), control, index)


def take_part(name: str, found: Founding, control: Control, index: LogIndex) -> Iterator[Persist]:
    """Return what makes a member's log one of the new cluster's; may be repeated before it is used.

    Nobody but the seed can be elected in the term of the new view: all have given their vote.

    Raises:
        ValueError: these can't be a view.
    """
    if control.term < found.term:
        yield Persist(1, Control(found.term, found.seed, control.commit_position), None, ())
    names = tuple(sorted(member.name for member in found.members))
    if name == found.seed and index.membership.names != names:
        yield new_view(max(control.term, found.term), found.members, index)


def new_view(term: int, members: tuple[Member, ...], index: LogIndex) -> Persist:
    """Return what appends a view that nobody has agreed to.

    Args:
        term: the one that the log has reached.
        members: of the view.
        index: of the log.

    Raises:
        ValueError: these can't be a view.
    """
    position, former = index.last + 1, index.membership.views[-1]
    since = {member.name: member.since for member in former.members}
    view = View(
        former.generation + 1,
        tuple(
            replace(one, since=since.get(one.name, position))
            for one in sorted(members, key=lambda one: one.name)
        ),
    )
    membership = Membership((view,), (), position)
    block = Block.make(term, position, 1, membership.encode(), MEMBERSHIP)
    return Persist(2, None, None, (block,))
