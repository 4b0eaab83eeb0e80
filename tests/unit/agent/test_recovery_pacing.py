"""A copy is slow while the partner's clients are at work, and only then."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from patience import in_time
from pgherd_sidecar.env.processes.detached import identify
from pgherd_sidecar.env.processes.pacing import Pace
from pgherd_sidecar.env.processes.programs import run_program

GREEDY = "exec cat /dev/zero >/dev/null"
RATE_BYTES_S = 1 << 20


class Copy:
    """A program that writes as fast as it can, at a pace.

    Attributes:
        tell: says whether clients are at work.
        pid: of the program.
    """

    tell: Callable[[bool], None]
    pid: int

    def __init__(self, script: str) -> None:
        self.watched = asyncio.Event()
        self.pace = Pace(RATE_BYTES_S, self._watch)
        self.running = asyncio.create_task(
            run_program(Path("/bin/sh"), "-c", script, beside=self._beside)
        )

    async def _beside(self, pid: int) -> None:
        self.pid = pid
        await self.pace.accompany(pid)

    async def _watch(self, tell: Callable[[bool], None]) -> None:
        self.tell = tell
        self.watched.set()
        await asyncio.Event().wait()

    async def until(self, *, stopped: bool) -> None:
        """Wait until the program is seen so."""
        async with in_time():
            while (self._state() == "T") != stopped:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)

    def _state(self) -> str:
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]

    def written(self) -> int:
        """Bytes."""
        return int(Path(f"/proc/{self.pid}/io").read_text().splitlines()[1].split()[1])


@pytest.fixture
async def greedy() -> AsyncIterator[Copy]:
    copy = Copy(GREEDY)
    await copy.watched.wait()
    yield copy
    copy.running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await copy.running


async def test_it_is_stopped_while_clients_are_at_work_and_goes_on_when_they_are_not(
    greedy: Copy,
) -> None:
    await greedy.until(stopped=True)  # nobody has told anything yet: as if they were
    greedy.tell(False)
    await greedy.until(stopped=False)
    freely = greedy.written() + 100 * RATE_BYTES_S
    async with in_time():
        while greedy.written() < freely:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
    greedy.tell(True)
    await greedy.until(stopped=True)


async def test_one_that_is_stopped_is_killed_when_the_copy_is_cancelled(greedy: Copy) -> None:
    await greedy.until(stopped=True)
    greedy.running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await greedy.running
    assert identify(greedy.pid) is None


async def test_a_program_that_ends_ends_its_pace() -> None:
    copy = Copy("exec true")
    async with in_time():
        await copy.running
