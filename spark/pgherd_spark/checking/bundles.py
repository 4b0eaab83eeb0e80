"""What one task of the check adds up: parts of one member, one after the other, in one session.

A task costs Spark and Python as much as PostgreSQL needs for some megabytes, so that small tables
share one.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import psycopg

from pgherd_spark.reading.catalog import columns_of
from pgherd_spark.reading.checksums import Part, Sum, quick_sum
from pgherd_spark.reading.pace import FULL
from pgherd_spark.reading.sources import Source, TableChangedError, connected

Value = TypeVar("Value")

FAULTS = (
    psycopg.errors.IndexCorrupted, psycopg.errors.DataCorrupted, psycopg.errors.IoError,
)  # fmt: skip
"""What a server says of a file that it can't read any more."""
_TEXT_MAX = 300

_QUERY_BYTES = 1 << 20
"""What PostgreSQL reads in the time that a query of an empty table takes, or so."""

_TASKS_A_CORE = 2
"""At least, where there is enough to read: one that takes longer holds up the end by half."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """A task: parts of one member."""

    source: Source
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Added:
    """What a task has found.

    Attributes:
        member: which it has read.
        sums: of each part a sum, or why there is none, by the names of its table and of the leaf.
        columns: ``catalog.columns_of`` after all was read.
    """

    member: str
    sums: tuple[tuple[str, str, Sum | str], ...]
    columns: Mapping[str, tuple[str, ...]]


def bundled(parts: Sequence[Part], part_bytes: int, cores: int) -> list[Bundle]:
    """Put parts together to tasks of about the same size, none much above ``part_bytes``.

    Args:
        parts: the largest first.
        part_bytes: of a task.
        cores: tasks that Spark does at a time.
    """
    members = list(dict.fromkeys(part.source for part in parts))
    least = -(-_TASKS_A_CORE * cores // max(1, len(members)))
    return [
        Bundle(source, bundle)
        for source in members
        for bundle in _evenly([part for part in parts if part.source == source], part_bytes, least)
    ]


def _evenly(parts: Sequence[Part], part_bytes: int, least: int) -> list[tuple[Part, ...]]:
    """Each part to what has least yet; a part of no bytes costs a query, too."""
    wanted = max(least, -(-sum(part.bytes for part in parts) // part_bytes))
    bundles: list[list[Part]] = [[] for _ in range(min(wanted, len(parts)))]
    queue = [(0, number) for number in range(len(bundles))]
    for part in parts:
        size, number = heapq.heappop(queue)
        bundles[number].append(part)
        heapq.heappush(queue, (size + part.bytes + _QUERY_BYTES, number))
    return [tuple(bundle) for bundle in bundles]


def one_by_one(
    parts: Sequence[Part], run: Callable[[Part], Iterable[Value]], share: int
) -> tuple[list[list[Part]], Callable[[list[Part]], list[Value]]]:
    """Tasks for what can't be done in turns, and what does them: at a gentle pace one a member."""
    groups: dict[object, list[Part]] = {}
    for number, part in enumerate(parts):
        groups.setdefault(number if share >= FULL else part.source.member, []).append(part)
    return list(groups.values()), partial(_run_all, run)


def _run_all(run: Callable[[Part], Iterable[Value]], parts: Iterable[Part]) -> list[Value]:
    return [value for part in parts for value in run(part)]


def add_up(bundle: Bundle) -> Added:
    """A task: the sums of its parts.

    Raises:
        psycopg.Error: the server or the snapshot is gone.
        TornSnapshotError: see ``reading``.
    """
    with connected(bundle.source) as connection:
        sums: list[tuple[str, str, Sum | str]] = []
        for part in bundle.parts:
            table, leaf = part.table.name, f"{part.relation.schema}.{part.relation.name}"
            try:
                sums.append((table, leaf, quick_sum(connection, part)))
            except TableChangedError as error:
                sums.append((table, leaf, str(error)))
            except FAULTS as error:
                sums.append((table, leaf, said(error)))
        return Added(bundle.source.member, tuple(sums), columns_of(connection))


def said(error: psycopg.Error) -> str:
    """An error of the server in a line."""
    return (error.diag.message_primary or str(error))[:_TEXT_MAX]
