"""The connections that write what is certain to commit, and what each is about.

``LockWatcher`` looks at who stands in their way, once one takes longer than usual. Filled by the
applier, the settler and the runner of DDL. Nothing survives a restart.
"""

import asyncio
from types import TracebackType

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

    def writing(self, pid: int, gid: int) -> "_Writing":
        """While the block lasts the process ``pid`` writes ``gid``."""
        return _Writing(self, pid, gid)

    def begin_writing(self, pid: int, gid: int) -> asyncio.TimerHandle:
        """A process begins to write; the timer is to be given to ``end``."""
        self.at_work[pid] = gid
        return self._loop.call_later(_USUAL_S, self._is_late, pid)

    def end_writing(self, pid: int, timer: asyncio.TimerHandle) -> None:
        """A process writes nothing any more."""
        timer.cancel()
        self.at_work.pop(pid, None)
        self._late.discard(pid)
        if not self._late:
            self.slow.clear()

    def _is_late(self, pid: int) -> None:
        self._late.add(pid)
        self.slow.set()


class _Writing:
    """The block of ``Writers.writing``: each batch has one, and a generator would cost it more."""

    __slots__ = ("_gid", "_pid", "_timer", "_writers")

    def __init__(self, writers: Writers, pid: int, gid: int) -> None:
        self._writers, self._pid, self._gid = writers, pid, gid

    def __enter__(self) -> None:
        self._timer = self._writers.begin_writing(self._pid, self._gid)

    def __exit__(
        self,
        _: type[BaseException] | None,
        __: BaseException | None,
        ___: TracebackType | None,
    ) -> None:
        self._writers.end_writing(self._pid, self._timer)
