"""Hypothesis strategies for the log: blocks, histories and every kind of message."""

from hypothesis import strategies as st
from pgherd_sidecar.core.consensus import (
    ENTRIES,
    MEMBERSHIP,
    Block,
    LogBase,
    Member,
    Membership,
    Message,
    SplitMessage,
    View,
)
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
    Newer,
    PollReply,
    PollRequest,
    Reject,
    Submit,
    Trimmed,
    Vote,
    VoteRequest,
)
from pgherd_sidecar.core.consensus.model.split import Consent, SplitPlan

numbers = st.integers(0, 2**64 - 1)
counts = st.integers(1, 2**31 - 1)
kinds = st.sampled_from([ENTRIES, MEMBERSHIP])
blocks = st.builds(Block.make, numbers, numbers, counts, st.binary(max_size=50), kinds)
names = st.text(max_size=5)
members = st.builds(Member, names, names, numbers, st.just(False), names)
views = st.builds(
    View, numbers, st.lists(members, min_size=1, max_size=4, unique_by=lambda m: m.name).map(tuple)
)
memberships = st.builds(
    Membership,
    st.lists(views, max_size=2).map(tuple),
    st.lists(members, max_size=2).map(tuple),
    numbers,
)
chains = st.lists(blocks, max_size=3).map(tuple)


@st.composite
def histories(draw: st.DrawFn) -> tuple[tuple[int, int], ...]:
    """Term histories: both columns strictly increasing."""
    size = draw(st.integers(0, 4))
    column = st.lists(st.integers(1, 2**64 - 1), min_size=size, max_size=size, unique=True)
    return tuple(zip(sorted(draw(column)), sorted(draw(column)), strict=True))


consents = st.builds(Consent, members, numbers, numbers, numbers)


@st.composite
def split_messages(draw: st.DrawFn) -> SplitMessage:
    """With parties that have consented and others."""
    known = draw(st.lists(consents, max_size=3, unique_by=lambda one: one.party))
    parties = {one.party for one in known} | draw(st.sets(st.tuples(names, names), max_size=2))
    plan = SplitPlan(str(draw(st.uuids())), tuple(sorted(parties)), draw(st.booleans()))
    return SplitMessage(plan, tuple(known))


messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(VoteRequest, numbers, st.booleans()),
    st.builds(Vote, numbers, st.booleans(), numbers, histories(), memberships, names),
    st.builds(Newer, numbers),
    st.builds(FetchRequest, numbers, numbers),
    st.builds(FetchReply, numbers, numbers, chains),
    st.builds(Append, numbers, numbers, numbers, numbers, numbers, chains),
    st.builds(Ack, numbers, numbers),
    st.builds(Reject, numbers, numbers, numbers, histories()),
    st.builds(Commit, numbers, numbers),
    st.builds(PollRequest, numbers, st.binary(max_size=50)),
    st.builds(PollReply, numbers, st.binary(max_size=50)),
    st.builds(Submit, counts, st.binary(max_size=50)),
    st.builds(Mend, numbers, numbers),
    st.builds(Mended, numbers, chains),
    st.builds(BarrierRequest, numbers),
    st.builds(BarrierReply, numbers, numbers, numbers, memberships, names),
    split_messages(),
    st.builds(Trimmed, numbers, st.builds(LogBase, numbers, numbers, memberships)),
    st.builds(
        Change, st.none() | members, st.lists(st.tuples(names, names), max_size=3).map(tuple)
    ),
)
