"""Makes a failing case small: fewer steps, then fewer statements, as long as it still fails alike.

Every try plays in a fresh schema. Statements go in halves, then quarters, down to one (ddmin), and
again until nothing can go. Knows no server: the caller says what fails.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from fuzz.case import Case, Step, begins, ends, units

_T = TypeVar("_T")
Fails = Callable[[Case], bool]
"""Whether a smaller case still fails alike; False when there is no time left to try."""


def shrink(case: Case, fails: Fails) -> Case:
    """A case that fails alike, of which no statement can go."""
    apart = case.with_steps(tuple(one for step in case.steps for one in _transactions(step)))
    case = apart if fails(apart) else case
    while True:
        smaller = _fewer_steps(case, fails)
        smaller = _fewer_statements(smaller, fails)
        if smaller == case:
            return case
        case = smaller


def cut_after(case: Case, step: int) -> Case:
    """Without the steps behind the one after which it failed."""
    return case.with_steps(case.steps[:step])


def _fewer_steps(case: Case, fails: Fails) -> Case:
    kept = _minimal(case.steps, lambda steps: fails(case.with_steps(tuple(steps))))
    return case.with_steps(tuple(kept))


def _fewer_statements(case: Case, fails: Fails) -> Case:
    for number in range(len(case.steps)):
        case = _fewer_in(case, number, fails)
    return case


def _fewer_in(case: Case, number: int, fails: Fails) -> Case:
    """Shrink one step."""
    step = case.steps[number]

    def with_statements(kept: Sequence[str]) -> Case:
        smaller = replace(step, statements=tuple(kept))
        return case.with_steps((*case.steps[:number], smaller, *case.steps[number + 1 :]))

    def still(kept: Sequence[str]) -> bool:
        return _is_whole(step.statements, kept) and fails(with_statements(kept))

    return with_statements(_minimal(step.statements, still)) if step.statements else case


def _transactions(step: Step) -> Iterator[Step]:
    """A step for each transaction, unless it begins or ends in the middle of one."""
    begun, ended = _ends_of_blocks(step.statements)
    if begun != ended or not step.statements:
        yield step
        return
    for unit in units(step.statements, inside=False):
        yield replace(step, statements=unit)


def _is_whole(before: Sequence[str], kept: Sequence[str]) -> bool:
    """Whether the block's beginning and end are still there: half of one would stay open."""
    return bool(kept) and _ends_of_blocks(before) == _ends_of_blocks(kept)


def _ends_of_blocks(statements: Sequence[str]) -> tuple[int, int]:
    return sum(map(begins, statements)), sum(map(ends, statements))


def _minimal(items: Sequence[_T], fails: Callable[[Sequence[_T]], bool]) -> Sequence[_T]:
    """ddmin: a part of the items of which no piece can go."""
    size = max(1, len(items) // 2)
    while items:
        gone = False
        begin = 0
        while begin < len(items):
            fewer = [*items[:begin], *items[begin + size :]]
            if fewer and fails(fewer):
                items, gone = fewer, True
            else:
                begin += size
        if size == 1 and not gone:
            break
        size = max(1, size // 2)
    return items
