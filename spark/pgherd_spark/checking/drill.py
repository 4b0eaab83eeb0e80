"""Which rows differ, in buckets that do, and in which columns: the consistency job's closer look.

Only what differs comes to the driver. Members may keep a row at different places, so it is known
by the text of its key; once it is found to differ, each member reads it again by its place.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial

from pgherd_spark.checking.bundles import one_by_one
from pgherd_spark.checking.findings import RowDifference, odd_ones
from pgherd_spark.reading.catalog import Table
from pgherd_spark.reading.checksums import Found, Part, rows_in, values_at
from pgherd_spark.reading.comparison import Comparison
from pgherd_spark.reading.sources import Relation, Source, TableChangedError

Places = dict[str, tuple[Found, ...]]
"""By member: where the row of one key is."""
HOW_MANY = "(rows)"
"""In place of a column, for rows of a table without a key: so many are equal."""
Values = dict[str, str | None]
"""Of one row, by column, as text."""


def differing_rows(
    comparison: Comparison, wanted: Mapping[str, Sequence[int]]
) -> tuple[dict[str, dict[str, Places]], dict[str, str]]:
    """Find the rows that differ.

    Args:
        comparison: of the members.
        wanted: the buckets to look into, by table.

    Returns:
        By table the places of differing rows by their keys; and tables that can't be read any
        more, with the reason.

    Raises:
        JobError: a member could not be read.
    """
    parts = comparison.parts(wanted)
    if parts:
        count = sum(map(len, wanted.values()))
        comparison.say(f"rows of {count} differing buckets: {len(parts)} tasks")
    in_buckets = partial(_rows_of_part, buckets=comparison.buckets, wanted=wanted)
    groups, run = one_by_one(parts, in_buckets, comparison.options.share)
    found = comparison.cluster.by_key(
        groups,
        run,
        _join,
        partial(_is_different, members=comparison.members),
    )
    rows: dict[str, dict[str, Places]] = defaultdict(dict)
    changed: dict[str, str] = {}
    for (name, key), places in found:
        if key is None:
            changed[name] = "it was changed while its differing rows were looked for"
        else:
            rows[name][key] = places
    return rows, changed


def _rows_of_part(
    part: Part, buckets: Mapping[str, int], wanted: Mapping[str, Sequence[int]]
) -> list[tuple[tuple[str, str | None], Places]]:
    name, member = part.table.name, part.source.member
    try:
        rows = rows_in(part, buckets[name], wanted[name])
    except TableChangedError:
        return [((name, None), {})]
    return [((name, key), {member: (row,)}) for key, row in rows]


def _join(one: Places, other: Places) -> Places:
    return {member: one.get(member, ()) + other.get(member, ()) for member in one.keys() | other}


def _is_different(item: tuple[tuple[str, str | None], Places], members: Sequence[str]) -> bool:
    (_, key), places = item
    sums = {tuple(sorted(row.sum.hex() for row in places.get(member, ()))) for member in members}
    return key is None or len(sums) > 1


def name_rows(
    comparison: Comparison, table: str, rows: Mapping[str, Places]
) -> list[RowDifference] | None:
    """Read differing rows on all members, and tell which of their columns differ.

    Args:
        comparison: of the members.
        table: its name.
        rows: where they are, by their keys.

    Returns:
        None if the table can't be read any more.

    Raises:
        JobError: a member could not be read.
    """
    wanted: dict[tuple[str, Relation], list[str]] = defaultdict(list)
    for places in rows.values():
        for member, found in places.items():
            for row in found:
                wanted[member, row.relation].append(row.ctid)
    sources = {source.member: source for source in comparison.sources}
    tasks = [(sources[member], relation, ctids) for (member, relation), ctids in wanted.items()]
    versions: dict[str, dict[str, Values | None]] = {key: dict.fromkeys(sources) for key in rows}
    for member, read in comparison.cluster.each(tasks, partial(_values, comparison.tables[table])):
        if read is None:
            return None
        for key, values in read:
            versions[key][member] = values
    if not comparison.tables[table].key:
        _count_equal_rows(rows, versions)
    return [_difference(comparison.tables[table], key, one) for key, one in versions.items()]


def _values(
    table: Table, task: tuple[Source, Relation, list[str]]
) -> tuple[str, list[tuple[str, Values]] | None]:
    source, relation, ctids = task
    try:
        return source.member, values_at(source, table, relation, ctids)
    except TableChangedError:
        return source.member, None


def _count_equal_rows(
    rows: Mapping[str, Places], versions: Mapping[str, dict[str, Values | None]]
) -> None:
    """Without a key all that can differ is how many rows of one kind there are."""
    for key, found in versions.items():
        for member, row in found.items():
            if row is not None:
                found[member] = {**row, HOW_MANY: str(len(rows[key][member]))}


def _difference(table: Table, key: str, versions: Mapping[str, Values | None]) -> RowDifference:
    there = [row for row in versions.values() if row is not None]
    compared = table.columns if table.key else (HOW_MANY,)
    columns = tuple(column for column in compared if len({row[column] for row in there}) > 1)
    texts = {member: None if row is None else repr(row) for member, row in versions.items()}
    return RowDifference(
        table.name, table.key or (HOW_MANY,), key, columns, versions, odd_ones(texts)
    )
