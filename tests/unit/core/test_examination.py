"""Very many keys are judged as if each had been looked for by itself."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pgherd_sidecar.core.certification import examination
from pgherd_sidecar.core.certification.certifier import AbortReason, Certifier, Conflict
from pgherd_sidecar.core.certification.examination import Examination, preview
from writeset_strategies import groups, key, key_groups

GENEROUS, BULKY, FORGETFUL = 1_000_000, 64, 8
"""Index limits: all is kept in one generation; much is in bulks; the horizon rises soon."""


def examined(certifier: Certifier, gid: int, *parts: array[int]) -> Examination:
    found = Examination(certifier, gid)
    for keys in parts:
        for _ in found.take_groups(keys):
            pass
    for _ in found.find_verdict():
        pass
    return found


@st.composite
def indexes(draw: st.DrawFn) -> tuple[Certifier, int]:
    """An index after some writesets, whole or in pieces, and the position that comes next."""
    certifier = Certifier(draw(st.sampled_from([GENEROUS, BULKY, FORGETFUL])))
    others = draw(st.sampled_from([0, 500]))  # with many others the keys of a test are few
    certifier.certify(1, groups((0, [key(1000 + n, 3) for n in range(others)])))
    gid = 1
    for gid in range(2, draw(st.integers(2, 15)) + 1):
        keys = draw(key_groups(gid))
        if draw(st.booleans()):
            certifier.certify(gid, keys)
        elif (found := examined(certifier, gid, keys)).conflict is None:
            certifier.record_many(found.collected, gid)
    return certifier, gid + 1


@given(indexes(), st.data())
def test_the_verdict_is_that_on_each_key_by_itself(
    index: tuple[Certifier, int], data: st.DataObject
) -> None:
    certifier, gid = index
    parts = data.draw(st.lists(key_groups(gid), min_size=1, max_size=4))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(examination, "_SUSPECTS_MAX", data.draw(st.sampled_from([0, 1, 1000])))
        found = examined(certifier, gid, *parts).conflict
    by_itself = [
        conflict
        for part in parts
        for base, keys in pairs(part)
        for one in [keys[at : at + 1] for at in range(max(1, len(keys)))]
        if (conflict := certifier.preview(groups((base, one))))
    ]
    if found is None or found.reason is AbortReason.CONFLICT:
        assert (found is None) == (not by_itself)
        assert found is None or found in by_itself
    else:
        assert found.reason in {conflict.reason for conflict in by_itself}


def pairs(part: array[int]) -> list[tuple[int, list[int]]]:
    numbers, found = list(part), []
    while numbers:
        base, count = numbers[:2]
        found.append((base, numbers[2 : 2 + count]))
        del numbers[: 2 + count]
    return found


@pytest.mark.parametrize("limit", [GENEROUS, BULKY])
def test_a_key_among_many_that_was_taken_before_its_own_base_has_not_lost(limit: int) -> None:
    certifier = Certifier(limit)
    others = [key(n, 3) for n in range(10, 5000)]
    certifier.record_many(examined(certifier, 5, groups((0, [key(1, 3)]))).collected, 5)
    early, late = groups((4, others)), groups((5, [key(1, 3)]))
    assert examined(certifier, 6, early, late).conflict is None
    lost = Conflict(AbortReason.CONFLICT, key(1, 3), 5)
    assert examined(certifier, 6, late, groups((4, [*others, key(1, 3)]))).conflict == lost


@pytest.mark.parametrize("limit", [GENEROUS, BULKY])
def test_a_mode_that_is_compatible_does_not_hide_one_that_is_not(limit: int) -> None:
    certifier = Certifier(limit)
    certifier.record_many(
        examined(
            certifier, 5, groups((0, [key(1, 0), *(key(n, 3) for n in range(2, 40))]))
        ).collected,
        5,
    )
    shared, taken = [key(1, 0), key(1, 2)], [key(1, 3), key(1, 0)]
    assert examined(certifier, 6, groups((0, shared))).conflict is None
    lost = Conflict(AbortReason.CONFLICT, key(1, 3), 5)
    assert examined(certifier, 6, groups((0, taken))).conflict == lost


def test_a_writeset_of_many_keys_can_be_told_early_that_it_has_lost() -> None:
    certifier = Certifier()
    certifier.certify(1, groups((0, [key(5000, 3)])))
    many = groups((0, [key(n, 3) for n in range(10_000)]))
    assert preview(certifier, many) == Conflict(AbortReason.CONFLICT, key(5000, 3), 1)
    assert preview(certifier, groups((1, list(many[2:])))) is None
