"""The commit chain: who is settled, who is next, and who is woken when."""

import pytest
from pgherd_sidecar.core.commit.chain import BatchLink, Chain, LocalLink
from pgherd_sidecar.core.replication.entries import Writeset


def local(gid: int, prev: int) -> LocalLink:
    writeset = Writeset(1, 1, gid, 1, 1000 + gid, 0, b"", b"[]")
    return LocalLink(gid, prev, 1000 + gid, 2000 + gid, writeset, 0.0)


def chain_of(*links: LocalLink | BatchLink, settled: int = 10) -> Chain:
    chain = Chain(settled)
    for link in links:
        chain.append(link)
    return chain


def test_a_link_must_name_the_one_before_it() -> None:
    chain = chain_of(local(11, 10))
    with pytest.raises(AssertionError):
        chain.append(local(13, 10))


def test_settling_removes_everything_up_to_there() -> None:
    chain = chain_of(local(11, 10), local(14, 11), local(15, 14))
    chain.settle_to(14)
    assert chain.settled_gid == 14
    assert [link.gid for link in chain.locals()] == [15]


def test_settled_never_goes_back() -> None:
    chain = chain_of(local(11, 10), local(12, 11))
    chain.settle_to(12)
    chain.settle_to(11)
    assert chain.settled_gid == 12


def test_an_open_batch_stays_although_its_gid_is_settled() -> None:
    batch = BatchLink(1, 11, 10)
    chain = chain_of(batch)
    chain.settle_to(11)
    assert chain.tail is batch
    batch.closed = True
    chain.settle_to(11)
    assert chain.tail is None


def test_a_marker_that_repeats_its_predecessor_s_gid_is_not_the_head() -> None:
    marker = BatchLink(1, 10, 10, closed=True, pinned=True)
    after = local(11, 10)
    chain = chain_of(marker, after)
    assert chain.head is after
    assert chain.tail_gid == 11


def test_waiters_are_woken_once_and_only_when_their_gid_is_settled() -> None:
    woken: list[int] = []
    chain = chain_of(local(11, 10), local(12, 11), local(13, 12))
    for gid in (10, 11, 13):
        chain.when_settled(gid, lambda gid=gid: woken.append(gid))  # type: ignore[misc]
    assert woken == [10]
    chain.settle_to(12)
    assert woken == [10, 11]
    chain.settle_to(13)
    chain.settle_to(13)
    assert woken == [10, 11, 13]


def test_who_waits_no_longer_is_not_woken_and_wants_nothing() -> None:
    chain = chain_of(local(11, 10), local(12, 11))
    woken: list[int] = []
    impatient, patient = woken.clear, lambda: woken.append(12)
    chain.when_settled(11, impatient)
    chain.when_settled(12, patient)
    chain.forget_waiter(impatient)
    assert chain.wanted_gid == 12
    chain.settle_to(12)
    assert woken == [12]


def test_the_lowest_wanted_gid_counts_only_as_far_as_there_are_links() -> None:
    chain = chain_of(local(11, 10))
    assert chain.wanted_gid == 0
    chain.when_settled(20, lambda: None)
    assert chain.wanted_gid == 11
    chain.append(local(20, 11))
    chain.when_settled(11, lambda: None)
    assert chain.wanted_gid == 11
    chain.settle_to(11)
    assert chain.wanted_gid == 20
