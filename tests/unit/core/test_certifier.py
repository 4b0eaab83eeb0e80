"""Certification against a slow and obviously correct model, its rules by number, its bounds."""

import gc
import tracemalloc
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pgherd_sidecar.core.certification.certifier import AbortReason, Certifier, Conflict, LockMode
from writeset_strategies import groups, key, key_groups

# PostgreSQL's documentation, "Conflicting Row-Level Locks".
CONFLICTING_MODES = {
    frozenset(pair)
    for pair in [
        (LockMode.KEY_SHARE, LockMode.UPDATE),
        (LockMode.SHARE, LockMode.NO_KEY_UPDATE),
        (LockMode.SHARE, LockMode.UPDATE),
        (LockMode.NO_KEY_UPDATE,),
        (LockMode.NO_KEY_UPDATE, LockMode.UPDATE),
        (LockMode.UPDATE,),
    ]
}


def conflicting(one: int, other: int) -> bool:
    return frozenset((LockMode(one & 3), LockMode(other & 3))) in CONFLICTING_MODES


class NaiveCertifier:
    """Keeps every committed writeset and looks at all of them."""

    def __init__(self) -> None:
        self.committed: list[tuple[int, int]] = []  # GID, key

    def newest_winner(self, keys: "array[int]") -> int:
        """The GID of the newest commit in conflict with the groups, or 0."""
        winner, numbers = 0, list(keys)
        while numbers:
            base, count = numbers[:2]
            for mine in numbers[2 : 2 + count]:
                for gid, theirs in self.committed:
                    if gid > base and mine >> 2 == theirs >> 2 and conflicting(mine, theirs):
                        winner = max(winner, gid)
            del numbers[: 2 + count]
        return winner

    def certify(self, gid: int, keys: "array[int]") -> bool:
        if self.newest_winner(keys):
            return False
        numbers = list(keys)
        while numbers:
            self.committed += [(gid, taken) for taken in numbers[2 : 2 + numbers[1]]]
            del numbers[: 2 + numbers[1]]
        return True


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_verdicts_equal_those_of_the_naive_model(data: st.DataObject) -> None:
    certifier, naive = Certifier(), NaiveCertifier()
    for gid in range(1, data.draw(st.integers(1, 20)) + 1):
        keys = data.draw(key_groups(gid))
        preview = certifier.preview(keys)
        conflict = certifier.certify(gid, keys)
        assert preview == conflict
        assert (conflict is None) == naive.certify(gid, keys)
        if conflict is not None:
            assert conflict.reason is AbortReason.CONFLICT
            assert (conflict.winner, True) in [
                (gid, theirs >> 2 == conflict.key >> 2 and conflicting(theirs, conflict.key))
                for gid, theirs in naive.committed
            ]


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_pruning_never_lets_a_conflict_pass(data: st.DataObject) -> None:
    """With a tiny index a verdict differs from the model's only in favour of ``TOO_OLD``."""
    certifier, naive = Certifier(index_limit=data.draw(st.integers(1, 40))), NaiveCertifier()
    for gid in range(1, 20):
        keys = data.draw(key_groups(gid))
        winner = naive.newest_winner(keys)
        conflict = certifier.certify(gid, keys)
        if conflict is None:
            assert winner == 0
            naive.certify(gid, keys)
        elif conflict.reason is AbortReason.TOO_OLD:
            assert min(bases(keys)) < conflict.winner == certifier.horizon
        else:
            assert winner > 0
        if data.draw(st.booleans()):
            certifier.release(data.draw(st.integers(0, gid)))


def bases(keys: "array[int]") -> list[int]:
    numbers, found = list(keys), []
    while numbers:
        found.append(numbers[0])
        del numbers[: 2 + numbers[1]]
    return found


@pytest.mark.parametrize("first", list(LockMode))
@pytest.mark.parametrize("second", list(LockMode))
def test_c15_modes_conflict_as_postgresql_row_locks_do(first: LockMode, second: LockMode) -> None:
    certifier = Certifier()
    assert certifier.certify(1, groups((0, [key(7, first)]))) is None
    conflict = certifier.certify(2, groups((0, [key(7, second)])))
    if conflicting(first, second):
        assert conflict == Conflict(AbortReason.CONFLICT, key(7, second), 1)
    else:
        assert conflict is None


def test_c15_a_child_insert_passes_updates_of_its_parent_but_not_its_delete() -> None:
    parent = 5
    for parent_mode, passes in [(LockMode.NO_KEY_UPDATE, True), (LockMode.UPDATE, False)]:
        certifier = Certifier()
        certifier.certify(1, groups((0, [key(parent, parent_mode)])))
        child = groups((0, [key(6, LockMode.UPDATE), key(parent, LockMode.KEY_SHARE)]))
        assert (certifier.certify(2, child) is None) == passes


def test_c15_a_weaker_mode_does_not_hide_a_stronger_one_before_it() -> None:
    certifier = Certifier()
    certifier.certify(1, groups((0, [key(5, LockMode.UPDATE)])))
    certifier.certify(2, groups((1, [key(5, LockMode.KEY_SHARE)])))
    assert certifier.certify(3, groups((0, [key(5, LockMode.KEY_SHARE)]))) == Conflict(
        AbortReason.CONFLICT, key(5, LockMode.KEY_SHARE), 1
    )


def test_c16_truncate_and_ddl_exclude_every_writeset_of_the_table_and_schema() -> None:
    table, schema, row = 100, 200, 1
    shared = [key(table, LockMode.KEY_SHARE), key(schema, LockMode.KEY_SHARE)]
    for exclusive in (table, schema):
        certifier = Certifier()
        insert = groups((0, [key(row, LockMode.UPDATE), *shared]))
        other_insert = groups((0, [key(row + 1, LockMode.UPDATE), *shared]))
        assert certifier.certify(1, insert) is None
        assert certifier.certify(2, other_insert) is None
        ddl = groups((1, [key(exclusive, LockMode.UPDATE)]))
        assert certifier.certify(3, ddl) == Conflict(
            AbortReason.CONFLICT, key(exclusive, LockMode.UPDATE), 2
        )
        ddl = groups((2, [key(exclusive, LockMode.UPDATE)]))
        assert certifier.certify(4, ddl) is None
        late_insert = groups((2, [key(row + 2, LockMode.UPDATE), *shared]))
        conflict = certifier.certify(5, late_insert)
        assert conflict == Conflict(AbortReason.CONFLICT, key(exclusive, LockMode.KEY_SHARE), 4)


def test_an_aborted_writeset_excludes_nobody() -> None:
    certifier = Certifier()
    certifier.certify(1, groups((0, [key(1, 3)])))
    assert certifier.certify(2, groups((0, [key(2, 3), key(1, 3)]))) is not None
    assert certifier.certify(3, groups((1, [key(2, 3)]))) is None


def test_each_group_is_checked_against_its_own_base() -> None:
    certifier = Certifier()
    certifier.certify(1, groups((0, [key(1, 3)])))
    certifier.certify(2, groups((0, [key(2, 3)])))
    assert certifier.certify(3, groups((1, [key(1, 3)]), (2, [key(2, 3)]))) is None
    assert certifier.certify(4, groups((3, [key(1, 3)]), (1, [key(2, 3)]))) is not None


@pytest.mark.parametrize(
    "numbers",
    [
        pytest.param([0], id="count missing"),
        pytest.param([0, 2, 4], id="fewer keys than counted"),
        pytest.param([0, -1], id="negative count"),
        pytest.param([-1, 1, 4], id="negative base"),
        pytest.param([5, 1, 4], id="base not before the writeset itself"),
    ],
)
def test_malformed_keys_abort_instead_of_stopping_every_member(numbers: list[int]) -> None:
    conflict = Certifier().certify(5, array("q", numbers))
    assert conflict is not None
    assert conflict.reason is AbortReason.MALFORMED


def test_the_index_stays_within_its_limit_and_the_horizon_follows() -> None:
    certifier = Certifier(index_limit=640)
    for gid in range(1, 2_001):
        assert certifier.certify(gid, groups((gid - 1, [key(gid, 3)]))) is None
        assert len(certifier) <= 640
    assert certifier.horizon >= 2_000 - 640
    conflict = certifier.certify(2_001, groups((certifier.horizon - 1, [key(1, 3)])))
    assert conflict == Conflict(AbortReason.TOO_OLD, key(1, 3), certifier.horizon)


def test_published_bases_empty_the_index() -> None:
    certifier = Certifier(index_limit=6_400)
    for gid in range(1, 1_001):
        certifier.certify(gid, groups((gid - 1, [key(gid, 3)])))
    certifier.release(500)
    assert certifier.horizon == 500
    assert len(certifier) == 500


def test_a_million_keys_take_at_most_200_megabytes() -> None:
    scale = 10  # measured at a tenth; generations make the size linear
    gc.collect()
    tracemalloc.start()
    try:
        certifier = Certifier()
        for gid in range(1, 1_000_000 // scale // 10 + 1):
            keys = [key(hash((gid, n)) >> 3, LockMode.UPDATE) for n in range(10)]
            certifier.certify(gid, groups((gid - 1, keys)))
        size_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(certifier) == 1_000_000 // scale
    assert size_bytes * scale <= 200_000_000
