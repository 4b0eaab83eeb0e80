"""How old what a reader sees here may be, in seconds.

A member looks now and then how far the order is known, and remembers when it was known first that
an entry is in it. Its data are as old as the oldest entry that it knows of and does not show.

Outside the primary component the others may go on without it: then its data are at least as old as
its separation. Nobody knows of a partition at once, so there is a moment, as long as the failure
detector takes, in which this is not counted yet.

It is lost by a restart; then nothing is known until the member has caught up.
"""

import asyncio
from collections import deque
from typing import Final

from pgherd_sidecar.agent.base.beat import until_next_s
from pgherd_sidecar.agent.log.host import LogHost
from pgherd_sidecar.agent.session.backend import SessionBackend
from pgherd_sidecar.core.commit.path import CommitPath

_PACE_S: Final = 0.1
_SAMPLES: Final = 600
"""Of more than that, two are made one: of the time of the first, up to the second."""


class Freshness:
    """The knowledge about the age of a member's data.

    Invariant: samples are of positions that were not visible when they were last looked at, in
    order.
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()
        self._caught_up = False

    def take_sample(self, now_s: float, known: int, visible: int, *, caught_up: bool) -> None:
        """Take a sample.

        Args:
            now_s: of a clock that never goes back.
            known: the newest position of the order that this member knows.
            visible: all up to this position is visible to readers.
            caught_up: this member has once been level with the others.
        """
        self._caught_up = self._caught_up or caught_up
        samples = self._samples
        while samples and samples[0][1] <= visible:
            samples.popleft()
        if known > visible and (not samples or samples[-1][1] < known):
            samples.append((now_s, known))
        if len(samples) > _SAMPLES:
            self._samples = deque(
                (samples[n][0], samples[min(n + 1, len(samples) - 1)][1])  # rather too old
                for n in range(0, len(samples), 2)
            )

    def age_s(self, now_s: float, apart_s: float) -> float | None:
        """How old the data may be; None if that is not known.

        Args:
            now_s: of the same clock.
            apart_s: for how long this member has been outside the primary component.
        """
        if not self._caught_up:
            return None
        waits_s = now_s - self._samples[0][0] if self._samples else 0.0
        return max(waits_s, apart_s)


class AgeWatch:
    """Follows how old the data of this member are, while one session lasts.

    Args:
        host: the log, which knows how far the order is known.
        path: the commit path, which knows what readers see.
        backend: whether the session has caught up.
    """

    def __init__(self, host: LogHost, path: CommitPath, backend: SessionBackend) -> None:
        self._host = host
        self._path = path
        self._backend = backend
        self._freshness = Freshness()
        self._loop = asyncio.get_running_loop()

    async def run(self) -> None:
        """Take samples for ever."""
        while True:
            known, visible = self._host.commit_position, self._path.visible_gid
            self._freshness.take_sample(
                self._loop.time(), known, visible, caught_up=self._backend.ready
            )
            await asyncio.sleep(until_next_s(_PACE_S))

    def age_s(self) -> float | None:
        """How old the data may be at present, in seconds; None if that is not known."""
        return self._freshness.age_s(self._loop.time(), self._host.secondary_s)
