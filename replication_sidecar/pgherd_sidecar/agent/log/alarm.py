"""One timer of the event loop whose deadline moves all the time."""

import asyncio
from collections.abc import Callable


class Alarm:
    """Calls back at a deadline or before it; whoever is called too early sets it again.

    Most messages move the deadline away, and moving the timer each time would cost more.

    Args:
        loop: whose timer.
        ring: what is called.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0  # uvloop's handle of a time gone by knows none

    def set(self, deadline_s: float) -> None:
        """Ring by this time of the loop's clock at the latest."""
        if self._timer is not None and self._timer_s > deadline_s:
            self.cancel()
        if self._timer is None:
            self._timer_s = deadline_s
            self._timer = self._loop.call_at(deadline_s, self._due)

    def cancel(self) -> None:
        """Do not ring."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _due(self) -> None:
        self._timer = None
        self._ring()
