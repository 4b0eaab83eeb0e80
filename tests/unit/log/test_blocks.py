"""The index of a log: terms, truncation, trimming, and where two logs agree."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pgherd_sidecar.core.consensus import Block, LocalProtocolError, LogBase, LogIndex

#: terms of consecutive blocks of sizes 1 to 3
logs = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3)), max_size=12)


def build(steps: list[tuple[int, int]]) -> tuple[LogIndex, list[int]]:
    """Return an index and, as its naive twin, the term of every position."""
    index, terms, term = LogIndex(), [0], 1
    for step, count in steps:
        term += step
        index.append(Block.make(term, len(terms), count, b""))
        terms += [term] * count
    return index, terms


@given(logs)
def test_the_index_knows_the_term_of_every_position(steps: list[tuple[int, int]]) -> None:
    index, terms = build(steps)
    assert [index.term_at(p) for p in range(len(terms))] == terms
    assert (index.last, index.last_term) == (len(terms) - 1, terms[-1])


@given(logs, st.data())
def test_truncation_forgets_what_is_after_and_nothing_else(
    steps: list[tuple[int, int]], data: st.DataObject
) -> None:
    index, terms = build(steps)
    position = data.draw(st.integers(0, index.last))
    index.truncate(position)
    assert [index.term_at(p) for p in range(position + 1)] == terms[: position + 1]
    assert index.last == position
    with pytest.raises(LocalProtocolError):
        index.term_at(position + 1)


@given(logs, st.data())
def test_trimming_keeps_the_term_at_the_trim_point(
    steps: list[tuple[int, int]], data: st.DataObject
) -> None:
    index, terms = build(steps)
    base = data.draw(st.integers(0, index.last))
    index.trim(base)
    assert [index.term_at(p) for p in range(base, len(terms))] == terms[base:]
    with pytest.raises(LocalProtocolError):
        index.truncate(base - 1)


@given(logs, st.data())
def test_the_common_point_of_two_logs_is_where_they_part(
    steps: list[tuple[int, int]], data: st.DataObject
) -> None:
    ours, _ = build(steps)
    theirs = ours.copy()
    shared = data.draw(st.integers(0, ours.last))
    ours.truncate(shared)
    theirs.truncate(shared)
    # no two proposers write in the same term: what follows has even terms here and odd ones there
    for index, parity in ((ours, 0), (theirs, 1)):
        for step in data.draw(st.lists(st.integers(0, 2), max_size=3)):
            term = (ours.term_at(shared) + 2) // 2 * 2 + parity + 2 * step
            if term >= index.last_term:
                index.append(Block.make(term, index.last + 1, 1, b""))
    assert ours.common_point(theirs.history, theirs.last) == shared
    assert theirs.common_point(ours.history, ours.last) == shared


def test_a_block_that_leaves_a_gap_or_goes_back_in_terms_is_refused() -> None:
    index = LogIndex(((3, 1),), last=5)
    with pytest.raises(LocalProtocolError):
        index.append(Block.make(3, 7, 1, b""))
    with pytest.raises(LocalProtocolError):
        index.append(Block.make(2, 6, 1, b""))


def test_a_checksum_covers_place_and_data() -> None:
    block = Block.make(2, 7, 1, b"data")
    assert block.intact()
    assert not Block(3, 7, 1, b"data", block.crc).intact()
    assert not Block(2, 8, 1, b"data", block.crc).intact()
    assert not Block(2, 7, 2, b"data", block.crc).intact()
    assert not Block(2, 7, 1, b"dat4", block.crc).intact()


@given(logs, st.integers(0, 40), st.integers(0, 30), st.data())
def test_a_log_contradicts_what_is_committed_where_it_holds_another_term(
    steps: list[tuple[int, int]], position: int, term: int, data: st.DataObject
) -> None:
    """[T4]"""
    index, terms = build(steps)
    base = data.draw(st.integers(0, index.last))
    index.trim(base)
    within = base < position <= index.last
    expected = within and terms[position] != term
    assert index.contradicts(LogBase(position, term)) == expected
