"""The consistency job: every replicated table and every definition on all members, at one GID.

Four passes, each over less than the one before: checksums of tables, computed by the members
themselves, and of buckets of rows of those that differ (here); the rows of buckets that differ,
and the values of rows that differ (``drill``). A table that DDL changes meanwhile can't be compared
and is said to be so: it counts neither as equal nor as different.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TypedDict

from pgherd_spark.checking.bundles import Bundle, add_up, bundled, one_by_one
from pgherd_spark.checking.contents import differing, inspect
from pgherd_spark.checking.drill import differing_rows, name_rows
from pgherd_spark.checking.findings import (
    DefinitionDifference,
    Findings,
    RowDifference,
    TableFindings,
    odd_ones,
    told,
)
from pgherd_spark.reading.catalog import (
    EVERYTHING,
    Description,
    columns_changed,
    columns_now,
    describe,
)
from pgherd_spark.reading.checksums import NOTHING, Part, Sum, bucket_sums
from pgherd_spark.reading.cluster import Cluster, JobError
from pgherd_spark.reading.comparison import CheckOptions, Comparison, Say
from pgherd_spark.reading.leases import LeaseError, Member, hold_marker
from pgherd_spark.reading.pace import in_turn
from pgherd_spark.reading.sources import Source, TableChangedError

_LOOK_INTO = 256
"""Differing buckets of a table whose rows are looked at: in a table that differs everywhere the
first ones tell as much as all."""
_FROM_SNAPSHOT = {"schema", "table", "type", "sequence", "extension", "role", "membership"}
"""Kinds whose definitions PostgreSQL does not write from its present catalog, see structure.sql."""
_TOTAL, _CHANGED = -1, -2
"""In place of a bucket: the whole table, and the reasons why it can't be read."""


class _Majority(TypedDict):
    odd: tuple[str, ...]
    contested: bool


Sums = dict[str, Sum | str]
"""By member: a sum, or why there is none."""


async def check(
    cluster: Cluster,
    members: Mapping[str, Member],
    options: CheckOptions,
    say: Say,
    left_out: Sequence[str] = (),
) -> Findings:
    """Compare the members.

    Args:
        cluster: does the work.
        members: at least one, by name.
        options: how.
        say: told what is going on.
        left_out: members that are not compared, and why.

    Raises:
        LeaseError: a member can't hold its snapshot.
        JobError: a member could not be read.
    """
    async with hold_marker(
        members, lease_s=options.lease_s, timeout_s=options.timeout_s, on_lost=cluster.cancel
    ) as lease:
        say(f"every member holds a snapshot at GID {lease.gid}")
        try:
            compare = partial(_compare, cluster, lease.sources, options, say)
            return replace(await cluster.in_thread(compare), left_out=tuple(left_out))
        except JobError as error:
            if lease.lost is not None:
                raise LeaseError(lease.lost) from error
            raise


def _compare(
    cluster: Cluster, sources: Sequence[Source], options: CheckOptions, say: Say
) -> Findings:
    started = datetime.now(UTC)
    found = {one.member: one for one in cluster.each(list(sources), describe)}
    comparison = Comparison(cluster, sources, found, options, say)
    tables, rows = _compare_rows(comparison)
    say("materialized views, and indexes against their tables")
    inspected = cluster.each(list(sources), partial(inspect, share=options.share))
    count = Counter(table for table, _ in comparison.leaves)
    divided = {one.name for one in tables if one.reason is None and count[one.name] > 1}
    leaves = {leaf: sums for (table, leaf), sums in comparison.leaves.items() if table in divided}
    contents = differing(inspected, leaves)
    return Findings(
        gid=sources[0].gid,
        started=started,
        finished=datetime.now(UTC),
        members={source.member: source.visible for source in sources},
        servers={name: one.server.build for name, one in found.items()},
        tables=tuple(tables),
        rows=tuple(rows),
        definitions=(*different_definitions(found), *contents),
        changing=tuple(sorted({name for one in found.values() for name in one.changing})),
        not_replicated=tuple(sorted({n for one in found.values() for n in one.not_replicated})),
        unread_on={one.member: one.unread for one in inspected},
        beyond=told((one.member, one.beyond) for one in inspected),
    )


def different_definitions(found: Mapping[str, Description]) -> list[DefinitionDifference]:
    """What is defined in different ways, but for what is being defined anew just now.

    While anything is, definitions that name other objects can't be told from outdated ones.
    """
    changing = {name for one in found.values() for name in one.changing}
    if EVERYTHING in changing:
        return []
    versions: dict[tuple[str, str], dict[str, str | None]] = defaultdict(
        lambda: dict.fromkeys(found)
    )
    for member, description in found.items():
        for one in description.structure:
            versions[one.kind, one.name][member] = one.text
    return [
        DefinitionDifference(kind, name, texts, odd_ones(texts))
        for (kind, name), texts in sorted(versions.items())
        if len(set(texts.values())) > 1
        and f"{kind} {name}" not in changing
        and (not changing or kind in _FROM_SNAPSHOT)
    ]


def _compare_rows(comparison: Comparison) -> tuple[list[TableFindings], list[RowDifference]]:
    sums = _sums(comparison)
    reasons = {name: _why(why) for (name, bucket), why in sums.items() if bucket == _CHANGED}
    different: dict[str, list[int]] = defaultdict(list)
    for name, bucket in sorted(sums):
        if bucket >= 0 and name not in reasons:
            different[name].append(bucket)
    rows, changed = differing_rows(
        comparison, {name: buckets[:_LOOK_INTO] for name, buckets in different.items()}
    )
    reasons |= changed
    tables: list[TableFindings] = []
    named: list[RowDifference] = []
    for name in sorted(comparison.tables):
        keys = rows.get(name, {})
        chosen = dict(sorted(keys.items())[: comparison.options.max_rows])
        differences = name_rows(comparison, name, chosen)
        if differences is None:
            reasons[name] = "it was changed while its differing rows were read"
        named += differences or []
        totals = sums.get((name, _TOTAL), {})
        tables.append(
            TableFindings(
                name=name,
                rows={member: _rows(totals.get(member)) for member in comparison.members},
                buckets=comparison.buckets[name],
                different_buckets=len(different[name]),
                different_rows=len(keys),
                more=len(different[name]) > _LOOK_INTO or len(keys) > len(chosen),
                reason=reasons.get(name),
                **_majority(comparison.members, [sums[name, one] for one in different[name]]),
            )
        )
    return tables, named


def _sums(comparison: Comparison) -> dict[tuple[str, int], Sums]:
    """Buckets that differ, and for each table its totals and why it can't be compared, if so.

    Only tables whose totals differ are divided into buckets, which takes several times as long.
    """
    sums = _totals(comparison)
    different = {
        name
        for name, kind in sums
        if kind == _TOTAL and (name, _CHANGED) not in sums and _differ(sums[name, kind], comparison)
    }
    if different:
        comparison.say(f"rows differ in {', '.join(sorted(different))}: looking for where")
        in_buckets = partial(_sum_part, buckets=comparison.buckets)
        sums |= _added_up(comparison, comparison.parts(different), in_buckets)
        now = comparison.cluster.each(list(comparison.sources), columns_now)
        for source, columns in zip(comparison.sources, now, strict=True):
            _note_changed(sums, comparison.found[source.member], columns)
    return sums


def _member(bundle: Bundle) -> str:
    return bundle.source.member


def _note_changed(
    sums: dict[tuple[str, int], Sums], found: Description, now: Mapping[str, tuple[str, ...]]
) -> None:
    """Say of which tables what was read may be other columns than those of the marker."""
    for name in columns_changed(found, now):
        reason: Sums = {found.member: "its columns were changed"}
        sums[name, _CHANGED] = _merge(sums.get((name, _CHANGED), {}), reason)


def _added_up(
    comparison: Comparison,
    parts: Sequence[Part],
    task: Callable[[Part], list[tuple[tuple[str, int], Sums]]],
) -> dict[tuple[str, int], Sums]:
    telling = partial(_is_telling, members=comparison.members)
    groups, run = one_by_one(parts, task, comparison.options.share)
    return dict(comparison.cluster.by_key(groups, run, _merge, telling))


def _differ(sums: Sums, comparison: Comparison) -> bool:
    return len({sums.get(member, NOTHING) for member in comparison.members}) > 1


def _totals(comparison: Comparison) -> dict[tuple[str, int], Sums]:
    """Of each table, or why it can't be compared."""
    options = comparison.options
    bundles = bundled(
        comparison.parts(comparison.tables), options.part_bytes, comparison.cluster.cores
    )
    comparison.say(
        f"checksums of {len(comparison.tables)} tables on {len(comparison.sources)} members:"
        f" {len(bundles)} tasks"
    )
    sums: dict[tuple[str, int], Sums] = {}
    for added in in_turn(comparison.cluster, bundles, add_up, options.share, _member):
        for name, leaf, one in added.sums:
            if isinstance(one, Sum):
                of_leaf = comparison.leaves[name, leaf]
                of_leaf[added.member] = of_leaf.get(added.member, NOTHING) + one
            key = name, _TOTAL if isinstance(one, Sum) else _CHANGED
            sums[key] = _merge(sums.get(key, {}), {added.member: one})
        _note_changed(sums, comparison.found[added.member], added.columns)
    return sums


def _sum_part(part: Part, buckets: Mapping[str, int]) -> list[tuple[tuple[str, int], Sums]]:
    name, member = part.table.name, part.source.member
    try:
        found = bucket_sums(part, buckets[name])
    except TableChangedError as error:
        return [((name, _CHANGED), {member: str(error)})]
    sums: list[tuple[tuple[str, int], Sums]] = [
        ((name, bucket), {member: one}) for bucket, one in found
    ]
    return [((name, _TOTAL), {member: sum((one for _, one in found), NOTHING)}), *sums]


def _merge(one: Sums, other: Sums) -> Sums:
    merged = dict(one)
    for member, value in other.items():
        known = merged.get(member)
        if isinstance(known, Sum) and isinstance(value, Sum):
            merged[member] = known + value
        elif known is None:
            merged[member] = value
    return merged


def _is_telling(item: tuple[tuple[str, int], Sums], members: Sequence[str]) -> bool:
    (_, bucket), sums = item
    return bucket < 0 or len({sums.get(member, NOTHING) for member in members}) > 1


def _majority(members: Sequence[str], buckets: Iterable[Sums]) -> _Majority:
    """Whom a majority contradicts. All buckets are asked: rows are looked at in the first only.

    Members that are right everywhere have every bucket in common, so where they are a majority
    no bucket is contested.
    """
    odd: set[str] = set()
    contested = False
    for sums in buckets:
        found = odd_ones({member: repr(sums.get(member, NOTHING)) for member in members})
        odd.update(found)
        contested = contested or not found
    return {"odd": tuple(sorted(odd)), "contested": contested}


def _why(reasons: Sums) -> str:
    return "; ".join(f"{member}: {reason}" for member, reason in sorted(reasons.items()))


def _rows(total: Sum | str | None) -> int:
    return total.rows if isinstance(total, Sum) else 0
