"""A sidecar that dies at the n-th point of a kind: all of the real one, run in its place.

A point is where something leaves the process, before it or after it: a statement or a round of
statements to PostgreSQL, an answer to a session that commits, messages to a peer, a write, a flush
or a rename on disk. They count while a file named ``armed`` is there; each that is passed is
written down.

Copied to where the servers' account can read it, so it imports nothing of the tests.
"""

import functools
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pgherd_sidecar.agent import main
from pgherd_sidecar.agent.hook.connection import HookConnection
from pgherd_sidecar.env.network.connections import OutgoingConnection
from pgherd_sidecar.pg.pipeline import Pipeline
from psycopg import AsyncCursor

DIES_AT_VARIABLE = "PGHERD_TEST_DIES_AT"
DIRECTORY_VARIABLE = "PGHERD_TEST_POINTS"
ARMED = "armed"
POINTS = "points"


class Life:
    """Counts the points, and ends with one of them.

    Args:
        dies_at: how often, and the kind: ``3 after flush``; empty for never.
        directory: where it is armed, and the points are written down.
    """

    def __init__(self, dies_at: str, directory: Path) -> None:
        self._dies_at = dies_at
        self._passed: Counter[str] = Counter()
        self._armed = directory / ARMED
        self._record = (directory / POINTS).open("w", buffering=1)

    def point(self, name: str) -> None:
        """Pass a point, or die at it."""
        if not self._armed.exists():
            return
        self._passed[name] += 1
        self._record.write(f"{name}\n")
        if f"{self._passed[name]} {name}" == self._dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, name: str, act: Callable[..., Any]) -> Callable[..., Any]:
        """Have points before and after a call."""

        @functools.wraps(act)
        def passed(*arguments: Any, **named: Any) -> Any:
            self.point(f"before {name}")
            result = act(*arguments, **named)
            self.point(f"after {name}")
            return result

        return passed

    def around_execute(self, act: Callable[..., Any]) -> Callable[..., Any]:
        """The same for statements, which are awaited."""

        @functools.wraps(act)
        async def passed(cursor: Any, query: Any, *arguments: Any, **named: Any) -> Any:
            self.point("before statement")
            result = await act(cursor, query, *arguments, **named)
            self.point("after statement")
            return result

        return passed

    def around_round(self, act: Callable[..., Any]) -> Callable[..., Any]:
        """The same for rounds, which end later."""

        @functools.wraps(act)
        def passed(*arguments: Any, **named: Any) -> Any:
            self.point("before round")
            future = act(*arguments, **named)
            future.add_done_callback(lambda _: self.point("after round"))
            return future

        return passed

    def begin(self) -> None:
        """Put the points where they are."""
        AsyncCursor.execute = self.around_execute(AsyncCursor.execute)  # type: ignore[method-assign]
        Pipeline.run = self.around_round(Pipeline.run)  # type: ignore[method-assign]
        for owner, method, name in (
            (os, "pwrite", "write"),
            (os, "fdatasync", "flush"),
            (os, "fsync", "flush"),
            (os, "replace", "rename"),
            (OutgoingConnection, "send", "messages"),
            (HookConnection, "_write", "answer"),
        ):
            setattr(owner, method, self.around(name, getattr(owner, method)))


if __name__ == "__main__":
    Life(os.environ[DIES_AT_VARIABLE], Path(os.environ[DIRECTORY_VARIABLE])).begin()
    main.main()
