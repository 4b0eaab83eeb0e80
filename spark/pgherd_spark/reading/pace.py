"""How much of a member a job takes: one task at a time, whose session rests after short queries.

The rest is in proportion to how long the query took, so that a member that has much else to do,
and answers slowly, is asked less.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import TypeVar

from pgherd_spark.reading.cluster import Cluster

Piece = TypeVar("Piece")
Task = TypeVar("Task")
Value = TypeVar("Value")

FULL = 100
"""Percent: no rest at all, and as many tasks as there are cores."""
GENTLE = 15
"""Percent, what a check takes unless it is asked for more."""
SLICE_BYTES = 8 << 20
"""Of a table, for one query of a job that rests: some tens of milliseconds."""


def paced(
    pieces: Iterable[Piece],
    share: int,
    *,
    clock: Callable[[], float] = time.monotonic,
    rest: Callable[[float], None] = time.sleep,
) -> Iterator[Piece]:
    """Hand out pieces of work, with a rest after each.

    Args:
        pieces: what is done with one before the next is asked for, and finding it, is the work.
        share: percent of the time in which to work.
        clock: tells seconds.
        rest: waits for so many.
    """
    began = clock()
    for piece in pieces:
        yield piece
        if share < FULL:
            rest((clock() - began) * (FULL / share - 1))
        began = clock()


def in_turn(
    cluster: Cluster,
    tasks: Sequence[Task],
    run: Callable[[Task], Value],
    share: int,
    member: Callable[[Task], str],
) -> list[Value]:
    """Run each task, one at a time of each member unless it is to be as fast as it can.

    Returns:
        The results in the order of the tasks.

    Raises:
        JobError: one failed, as often as it may.
    """
    if share >= FULL:
        return cluster.each(tasks, run)
    queues: dict[str, list[int]] = defaultdict(list)
    for number, task in enumerate(tasks):
        queues[member(task)].append(number)
    found: dict[int, Value] = {}
    for wave in zip_longest(*queues.values()):
        numbers = [number for number in wave if number is not None]
        values = cluster.each(
            [tasks[number] for number in numbers],
            run,
            before=len(found),
            after=len(tasks) - len(found) - len(numbers),
        )
        found |= dict(zip(numbers, values, strict=True))
    return [found[number] for number in range(len(tasks))]
