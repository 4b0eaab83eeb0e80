"""Slows a copy down while the partner's clients are at work, and lets it run freely otherwise.

``pg_basebackup`` has a limit of its own, but that is fixed when it starts. So it is stopped here
(SIGSTOP) whenever it has written more than the rate allows: its partner's sender then waits for it.
What streams the WAL is another process, and goes on. One that is stopped can still be killed.

It keeps nothing.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

from pgherd_sidecar.env.processes.detached import ProcessId, identify

_STEP_S = 0.05
_BURST_S = 0.2
"""What was not used in time is lost."""

Watch = Callable[[Callable[[bool], None]], Awaitable[None]]
"""Tells over and over whether the partner's clients are at work, until it is cancelled."""


class Pace:
    """The pace of one copy. Until it is told otherwise, clients are at work.

    Args:
        rate_bytes_s: how fast the copy may be then.
        watch: who tells.
    """

    def __init__(self, rate_bytes_s: int, watch: Watch) -> None:
        self._rate_bytes_s = rate_bytes_s
        self._watch = watch
        self._at_work = True

    async def accompany(self, pid: int) -> None:
        """Slow a program down until it has ended or this is cancelled."""
        process = identify(pid)
        if process is None:
            return
        watching = asyncio.ensure_future(self._watch(self._told))
        try:
            await self._keep(process)
        finally:
            watching.cancel()
            process.signal(signal.SIGCONT)

    def _told(self, at_work: bool) -> None:
        self._at_work = at_work

    async def _keep(self, process: ProcessId) -> None:
        """Stop it, and let it go on: its balance is what it might have written and has not."""
        loop = asyncio.get_running_loop()
        balance, before, since_s = 0.0, _written(process.pid), loop.time()
        while (written := _written(process.pid)) is not None and before is not None:
            now_s = loop.time()
            earned = self._rate_bytes_s * (now_s - since_s)
            balance = min(balance + earned - (written - before), self._rate_bytes_s * _BURST_S)
            if not self._at_work:
                balance = 0.0
            if not process.signal(signal.SIGSTOP if balance < 0 else signal.SIGCONT):
                return
            before, since_s = written, now_s
            await asyncio.sleep(_STEP_S)


def _written(pid: int) -> int | None:
    """Bytes that a process has handed to the kernel; None if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    except OSError:
        return None
    return int(dict(line.split(": ") for line in lines)["wchar"])
