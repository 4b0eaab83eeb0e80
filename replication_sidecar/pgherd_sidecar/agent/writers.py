"""The connections that write what is certain to commit, and what each is about.

``VictimWatch`` looks at who stands in their way, once one takes longer than usual. Filled by the
applier, the settler and the runner of DDL. Nothing survives a restart.
"""

import asyncio
import contextlib
from collections.abc import Iterator

_USUAL_S = 0.02


class Writers:
    """Server processes at work for the total order.

    Attributes:
        slow: set while one of them takes longer than usual.
        at_work: backend pid -> GID that it writes; who comes before that GID may be waited for.
    """

    def __init__(self) -> None:
        self.slow = asyncio.Event()
        self.at_work: dict[int, int] = {}
        self._late: set[int] = set()
        self._loop = asyncio.get_running_loop()

    @contextlib.contextmanager
    def writing(self, pid: int, gid: int) -> Iterator[None]:
        """While the block lasts the process ``pid`` writes ``gid``."""
        self.at_work[pid] = gid
        timer = self._loop.call_later(_USUAL_S, self._is_late, pid)
        try:
            yield
        finally:
            timer.cancel()
            self.at_work.pop(pid, None)
            self._late.discard(pid)
            if not self._late:
                self.slow.clear()

    def _is_late(self, pid: int) -> None:
        self._late.add(pid)
        self.slow.set()
