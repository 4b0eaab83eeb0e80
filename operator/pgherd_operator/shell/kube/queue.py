"""Which herd is looked at when: one worker a herd, woken by events or by time.

A herd is never reconciled twice at once; wakes that come meanwhile are one wake. A failure, of
whatever kind, delays this herd only, twice as long each time: what is in its objects may be a
tenant's mistake, and the operator is that of all.

However often it is woken, a herd is not looked at all the time: a look costs the API server
some twenty requests.
"""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from pgherd_operator.shell.kube.interface import ApiError

log = structlog.get_logger()

Key = tuple[str, str]
"""Namespace and name of a herd."""
Look = Callable[[str, str], Awaitable[float | None]]
"""Reconciles a herd; returns when to look again, None when it is gone."""

_BACKOFF_S, _DOUBLINGS = 1.0, 6
_LEAST_S, _LEAST_FAILED_S = 0.5, 5.0
"""Between two looks, whoever wakes: after one that was done, and after one that failed."""


class Queue:
    """Herds and their workers.

    Args:
        look: see Look.
        group: where the workers run.
    """

    def __init__(self, look: Look, group: asyncio.TaskGroup) -> None:
        self._look = look
        self._group = group
        self._wakes: dict[Key, asyncio.Event] = {}

    def wake(self, namespace: str, name: str) -> None:
        """Look at a herd now, or once more when that is being done."""
        key = namespace, name
        if key not in self._wakes:
            self._wakes[key] = asyncio.Event()
            self._group.create_task(self._work(key), name=f"herd {namespace}/{name}")
        self._wakes[key].set()

    async def _work(self, key: Key) -> None:
        wake, delay_s, least_s, failures = self._wakes[key], 0.0, 0.0, 0
        while True:
            await asyncio.sleep(min(least_s, delay_s))
            await _wait(wake, max(delay_s - least_s, 0.0))
            wake.clear()
            try:
                again_s = await self._look(*key)
            except Exception as error:  # a supervisor: it is the trouble of this herd only
                failures += 1
                delay_s = _BACKOFF_S * 2 ** min(failures, _DOUBLINGS)
                least_s = _LEAST_FAILED_S
                expected = isinstance(error, ApiError)
                log.warning("reconciliation.failed", namespace=key[0], cluster=key[1],
                            reason=str(error) or type(error).__name__, again_s=delay_s,
                            exc_info=not expected)  # fmt: skip
                continue
            failures = 0
            if again_s is None and not wake.is_set():
                del self._wakes[key]
                return
            delay_s, least_s = max(again_s or 0.0, _LEAST_S), _LEAST_S


async def _wait(wake: asyncio.Event, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await wake.wait()
    except TimeoutError:
        return
