"""Which parts a task has, which tasks are done at the same time, and how long they rest."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
from pgherd_operator.api.jobs import CheckSpec
from pgherd_sidecar.cli import jobs
from pgherd_spark.checking.bundles import Bundle, bundled, one_by_one
from pgherd_spark.reading import checksums
from pgherd_spark.reading.catalog import Table
from pgherd_spark.reading.checksums import Part, parts_of
from pgherd_spark.reading.cluster import Cluster
from pgherd_spark.reading.pace import FULL, GENTLE, SLICE_BYTES, in_turn, paced
from pgherd_spark.reading.sources import Relation, Source

_BLOCK = 8192
_MEMBERS = tuple(Source(name, "", 1, "", "") for name in ("n1", "n2", "n3"))


def parts(*sizes: int, share: int = FULL, part_bytes: int = 256 << 20) -> list[Part]:
    """Of tables of so many bytes on three members, the largest first."""
    found: list[Part] = []
    for source in _MEMBERS:
        for number, size in enumerate(sizes):
            name = f"public.t{number}"
            table = Table(name, ("id",), ("integer",), ("id",), ("id",))
            relation = Relation(
                name, "public", f"t{number}", number, number, size // _BLOCK, _BLOCK
            )
            found += parts_of(source, table, relation, part_bytes, share)
    return sorted(found, key=lambda part: -part.relation.blocks)


class Waves:
    """A cluster that notes what is asked of it at the same time."""

    def __init__(self) -> None:
        self.asked: list[list[Bundle]] = []
        self.places: list[tuple[int, int]] = []

    def each(
        self, tasks: Sequence[Bundle], run: Callable[[Bundle], Any], before: int = 0, after: int = 0
    ) -> list[Any]:
        self.asked.append(list(tasks))
        self.places.append((before, after))
        return [run(task) for task in tasks]


def member(bundle: Bundle) -> str:
    return bundle.source.member


@pytest.mark.parametrize("cores", [1, 2, 64])
@pytest.mark.parametrize("sizes", [(0,), (0,) * 1000, (3 << 30, 5 << 20, 0, 0), (75 << 20,) * 4])
def test_every_part_is_in_one_task_with_others_of_its_member_only(
    sizes: tuple[int, ...], cores: int
) -> None:
    given = parts(*sizes)
    bundles = bundled(given, 256 << 20, cores)
    found = [part for bundle in bundles for part in bundle.parts]
    assert len(found) == len(given)
    assert set(found) == set(given)
    assert all(part.source == bundle.source for bundle in bundles for part in bundle.parts)
    assert all(bundle.parts for bundle in bundles)


def test_small_tables_share_a_task_and_large_ones_are_spread_over_all_cores() -> None:
    assert len(bundled(parts(*(0,) * 1000), 256 << 20, cores=2)) == 2 * len(_MEMBERS)
    assert len(bundled(parts(3 << 30), 256 << 20, cores=2)) == 12 * len(_MEMBERS)
    sizes = [
        sum(part.bytes for part in one.parts)
        for one in bundled(parts(*range(0, 64 << 20, 1 << 20)), 1 << 40, 6)
    ]
    assert max(sizes) - min(sizes) <= 64 << 20
    assert len(sizes) >= 12


def test_at_a_gentle_pace_a_member_has_one_task_at_a_time_and_each_result_comes_once() -> None:
    bundles = bundled(parts(1 << 30, 300 << 20, 0), 256 << 20, cores=8)
    cluster = Waves()
    found = in_turn(cast(Cluster, cluster), bundles, lambda bundle: bundle, 25, member)
    assert found == bundles
    assert len(cluster.asked) > 1
    for wave in cluster.asked:
        members = [bundle.source.member for bundle in wave]
        assert len(members) == len(set(members))
    assert {
        before + len(wave) + after
        for (before, after), wave in zip(cluster.places, cluster.asked, strict=True)
    } == {len(bundles)}
    assert [before for before, _ in cluster.places] == sorted({one for one, _ in cluster.places})
    at_once = Waves()
    in_turn(cast(Cluster, at_once), bundles, lambda bundle: bundle, FULL, member)
    assert at_once.asked == [bundles]


def test_what_needs_all_parts_at_once_has_one_task_a_member_at_a_gentle_pace() -> None:
    given = parts(1 << 30, 0)
    groups, run = one_by_one(given, lambda part: [part], 25)
    assert len(groups) == len(_MEMBERS)
    assert all(len({part.source for part in group}) == 1 for group in groups)
    assert {part for group in groups for part in run(group)} == set(given)
    assert len(one_by_one(given, lambda part: [part], FULL)[0]) == len(given)


@pytest.mark.parametrize(("share", "rests"), [(FULL, []), (50, [2.0, 3.0]), (20, [8.0, 12.0])])
def test_rests_are_in_proportion_to_the_work_before_them(share: int, rests: list[float]) -> None:
    now = [100.0]
    rested: list[float] = []

    def rest(duration_s: float) -> None:
        now[0] += duration_s
        rested.append(duration_s)

    for took_s in paced([2.0, 3.0], share, clock=lambda: now[0], rest=rest):
        now[0] += took_s
    assert rested == pytest.approx(rests)


def test_the_slices_of_a_part_cover_its_blocks_once_and_are_short() -> None:
    for part in parts(100 << 20, share=25, part_bytes=60 << 20)[:2]:
        slices = list(checksums._divided(part, SLICE_BYTES))
        assert (slices[0].first, slices[-1].end) == (part.first, part.end)
        assert [one.end for one in slices[:-1]] == [one.first for one in slices[1:]]
        assert max(one.bytes for one in slices) == SLICE_BYTES


def test_a_check_is_as_gentle_however_it_is_asked_for() -> None:
    (share,) = (one for one in jobs.check.params if one.name == "share")
    assert share.default == CheckSpec.model_fields["share"].default == GENTLE
