"""Virtual time, and processes in it: generators that wait for a time or for something to be so."""

from collections.abc import Callable, Generator
from heapq import heappop, heappush
from itertools import count

Step = float | Callable[[], bool]
Steps = Generator[Step, None, None]


class Terminated(Exception):
    """The session was ended."""


class Cancelled(Exception):
    """What the session does was cancelled."""


class DeadlockDetected(Exception):
    """The session waited for itself, and the server has ended its transaction."""


class Clock:
    """Virtual time: what happens when, and the processes that live in it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.processes: list[Process] = []
        self._queue: list[tuple[float, int, Callable[..., object], tuple[object, ...]]] = []
        self._numbers = count()

    def at(self, time_s: float, call: Callable[..., object], *given: object) -> None:
        """Call something at a time."""
        heappush(self._queue, (time_s, next(self._numbers), call, given))

    def after(self, delay_s: float, call: Callable[..., object], *given: object) -> None:
        """Call something later."""
        self.at(self.now + delay_s, call, *given)

    def advance(self) -> None:
        """Let the next thing happen, and have those go on who have waited for it."""
        self.now, _, call, given = heappop(self._queue)
        call(*given)
        if self.processes:
            for process in list(self.processes):
                process.look()
            self.processes = [process for process in self.processes if process.alive]

    def run_until(self, time_s: float) -> None:
        """Let everything happen up to a time."""
        while self._queue and self._queue[0][0] <= time_s:
            self.advance()
        self.now = time_s


class Process:
    """Something that goes on for itself: it waits for a time, or until something is so."""

    def __init__(self, clock: Clock, steps: Steps) -> None:
        self.alive = True
        self._clock = clock
        self._steps = steps
        self._until: Callable[[], bool] | None = None
        self._waits = 0
        clock.processes.append(self)
        self.resume()

    def look(self) -> None:
        """Go on if what is waited for is so."""
        if self.alive and self._until is not None and self._until():
            self._until = None
            self.resume()

    def resume(self, error: Exception | None = None) -> None:
        """Go on, with an error if one is given."""
        if not self.alive:
            return
        self._until = None
        self._waits += 1
        try:
            step = next(self._steps) if error is None else self._steps.throw(error)
        except (StopIteration, Terminated):
            self.alive = False
            return
        if callable(step):
            self._until = step
        else:
            self._clock.after(step, self._wake, self._waits)

    def _wake(self, number: int) -> None:
        if number == self._waits:  # else it was interrupted in that wait
            self.resume()

    def stop(self) -> None:
        """End it without a word."""
        self.alive = False
        self._steps.close()
