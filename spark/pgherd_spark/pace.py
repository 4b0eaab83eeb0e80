"""How much of a member a job takes: queries are short, and the session rests after each.

The rest is in proportion to how long the query took, so that a member that has much else to do,
and answers slowly, is asked less.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Piece = TypeVar("Piece")

FULL = 100
"""Percent: no rest at all."""
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
