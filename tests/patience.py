"""How tests wait: they look until they see what they want, and count looks instead of seconds.

A machine that others share may stand still for seconds, so a wait ends after a number of looks,
each with a pause after it. A wait that ran out says little about the product: ``verdicts.py`` has
its test repeated once, alone. A wait that can no longer succeed ends early, and its test fails for
good: ``hopeless`` says why.
"""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TypeVar

Seen = TypeVar("Seen")

PATIENCE = float(os.environ.get("PGHERD_TEST_PATIENCE", "1"))
"""What the number of looks is multiplied with, for machines that are slower than two cores."""

_PAUSES_S = 150.0
_FIRST_S, _GROWTH, _LONGEST_S, _BRIEF_S = 0.001, 1.3, 0.2, 0.02


class WaitRanOutError(Exception):
    """A test has not seen what it waited for in the number of looks that it had."""


def wait_until(
    look: Callable[[], Seen],
    wanted: Callable[[Seen], object] = bool,
    *,
    brief: bool = False,
    slow: float = 1.0,
    despite: tuple[type[Exception], ...] = (),
    hopeless: Callable[[], object] | None = None,
    told: Callable[[], object] | None = None,
) -> Seen:
    """Look until what is seen is wanted, and return it.

    Args:
        look: Reads the state.
        wanted: Whether this state is the one that is waited for; by default a true value.
        brief: The state may pass quickly: pauses grow to 20 ms only, else to 200 ms.
        slow: How many times as many looks it takes: for what is slow by its nature.
        despite: Errors of ``look`` after which it is called again.
        hopeless: Returns the reason once the state can no longer come, until then a false value;
            it is asked before each look, whose answer counts.
        told: Returns what a failure tells beside the state that was seen last.

    Raises:
        AssertionError: It is hopeless.
        WaitRanOutError: The looks are used up.
    """
    seen: object = None
    for pause_s in _pauses_s(slow, brief=brief):
        lost = hopeless and hopeless()
        try:
            seen = state = look()
        except despite as error:
            seen = error
        else:
            if wanted(state):
                return state
        _require_hope(lost, seen)
        time.sleep(pause_s)
    raise _ran_out(seen, told)


async def wait_until_async(
    look: Callable[[], Awaitable[Seen]],
    wanted: Callable[[Seen], object] = bool,
    *,
    brief: bool = False,
    slow: float = 1.0,
    despite: tuple[type[Exception], ...] = (),
    hopeless: Callable[[], object] | None = None,
    told: Callable[[], object] | None = None,
) -> Seen:
    """Do the same in an event loop.

    Raises:
        AssertionError: It is hopeless.
        WaitRanOutError: The looks are used up.
    """
    seen: object = None
    for pause_s in _pauses_s(slow, brief=brief):
        lost = hopeless and hopeless()
        try:
            seen = state = await look()
        except despite as error:
            seen = error
        else:
            if wanted(state):
                return state
        _require_hope(lost, seen)
        await asyncio.sleep(pause_s)
    raise _ran_out(seen, told)


async def until(condition: Callable[[], object]) -> None:
    """Have the event loop run until objects that tell nobody are as a condition wants them.

    Raises:
        WaitRanOutError: The looks are used up.
    """

    async def look() -> object:
        return condition()

    await wait_until_async(look, brief=True)


@contextlib.asynccontextmanager
async def in_time() -> AsyncIterator[None]:
    """Bound what is awaited where nothing can be polled: an answer, the end of a task.

    Raises:
        WaitRanOutError: It has not come within 150 seconds, times ``PATIENCE``.
    """
    limit = asyncio.timeout(_PAUSES_S * PATIENCE)
    try:
        async with limit:
            yield
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise WaitRanOutError(f"not within {_PAUSES_S * PATIENCE:g} s") from error


def join(thread: threading.Thread) -> None:
    """Wait for the end of a thread, likewise.

    Raises:
        WaitRanOutError: It has not ended within 150 seconds, times ``PATIENCE``.
    """
    thread.join(_PAUSES_S * PATIENCE)
    if thread.is_alive():
        raise WaitRanOutError(f"{thread.name} goes on after {_PAUSES_S * PATIENCE:g} s")


def _pauses_s(slow: float, *, brief: bool) -> Iterator[float]:
    """The pauses after the looks: together 150 seconds, as long as all factors are 1."""
    pause_s, left_s = _FIRST_S, _PAUSES_S * PATIENCE * slow
    yield 0
    while left_s > 0:
        yield pause_s
        left_s -= pause_s
        pause_s = min(pause_s * _GROWTH, _BRIEF_S if brief else _LONGEST_S)


def _require_hope(lost: object, seen: object) -> None:
    assert not lost, f"what was waited for can no longer come: {lost}; last seen: {seen!r}"


def _ran_out(seen: object, told: Callable[[], object] | None) -> WaitRanOutError:
    more = f"; {told()}" if told else ""
    return WaitRanOutError(f"last seen: {seen!r}{more}")
