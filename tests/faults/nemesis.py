"""Draws faults from a seed, lets them overlap, and remembers what it did.

A *blow* is a set of faults that overlap; afterwards all is whole again. What is drawn follows from
the seed alone. What it meets does not, so whether a story repeats is a matter of luck.
"""

import asyncio
import contextlib
import logging
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from itertools import permutations

import psycopg
from integration.localherd import query
from workloads.recorder import Recorder

from faults import processes
from faults.machines import FaultyHerd
from faults.wires import FAIR, Direction, Weather, Wires

_log = logging.getLogger(__name__)

_HOUR_S = 3300  # less than what certificates are backdated by
_ROOM_BYTES = (0, 64 << 10, 4 << 20)

_SESSIONS = "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = 'app'"
_END = "SELECT pg_terminate_backend(pid) FROM unnest(ARRAY{}::int[]) AS pid"

DISK_FULL = frozenset({"53100"})
"""What clients hear of a full disk."""

Fault = AbstractAsyncContextManager[None]


@dataclass
class Nemesis:
    """The faults of one herd.

    Attributes:
        herd: on its faulty machines, with all nodes up.
        recorder: told which servers have crashed.
        story: what was done, with seconds since the beginning.
    """

    herd: FaultyHerd
    wires: Wires
    chance: random.Random
    recorder: Recorder
    story: list[str] = field(default_factory=list)
    _began_s: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        members = self.herd.members()
        self._numbers = {one["name"]: one["number"] for one in members}
        self._dsns = {one["name"]: f"{one['dsn']}?connect_timeout=2" for one in members}
        self._nodes = list(self._numbers)
        kinds: dict[str, Callable[[], Fault]] = {
            "cut": self.cut,
            "silence": self.silence,
            "swizzle": self.swizzle,
            "weather": self.bad_weather,
            "kill": self.kill,
            "stop": self.stop,
            "backend": self.kill_backend,
            "clock": self.clock,
            "disk": self.disk,
        }
        self.kinds = {name: kinds[name] for name in kinds if name not in self.herd.missing}

    def tell(self, what: str) -> None:
        """Add to the story."""
        _log.info(what)
        self.story.append(f"{time.monotonic() - self._began_s:8.2f} s  {what}")

    @contextlib.asynccontextmanager
    async def blow(self) -> AsyncIterator[None]:
        """A few faults at once, which end with the block, the last one first.

        Who was killed is started when all else is whole again: a start waits for a majority.
        """
        drawn = self.chance.sample(sorted(self.kinds), self.chance.randint(1, 3))
        drawn.sort(key=("kill", "disk", *self.kinds).index)
        async with contextlib.AsyncExitStack() as stack:
            for name in drawn:
                await stack.enter_async_context(self.kinds[name]())
            yield

    # ---- the network -------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def cut(self) -> AsyncIterator[None]:
        """Links are closed and refused: any cut, also one way."""
        links, one_way = self._links(), self.chance.random() < 0.3
        self.tell(f"cut{' one way' * one_way}: {links}")
        async with processes.cut(self.herd, links, one_way=one_way):
            yield
        self.tell("links are whole")

    @contextlib.asynccontextmanager
    async def silence(self) -> AsyncIterator[None]:
        """Nothing arrives and nobody is told; what was sent arrives at the end."""
        async with self._weather(Weather(silent=True), self._directions()):
            yield

    @contextlib.asynccontextmanager
    async def swizzle(self) -> AsyncIterator[None]:
        """Some are cut off one after the other, and come back in another order."""
        some = self.chance.sample(self._nodes, self.chance.randint(1, len(self._nodes)))
        async with contextlib.AsyncExitStack() as stack:
            for node in some:
                around = [d for d in self._every() if self._numbers[node] in d]
                await stack.enter_async_context(self._weather(Weather(silent=True), around))
                await asyncio.sleep(self.chance.uniform(0, 0.5))
            yield

    @contextlib.asynccontextmanager
    async def bad_weather(self) -> AsyncIterator[None]:
        """Messages are late, lost, torn, garbled, or squeezed through a narrow link."""
        chance = self.chance
        weather = chance.choice(
            (
                Weather(delay_s=chance.uniform(0.01, 0.3), jitter_s=chance.uniform(0, 0.3)),
                Weather(delay_s=0.005, loss=chance.uniform(0.01, 0.2)),
                Weather(jitter_s=0.02, torn=0.01),
                Weather(garbled=0.02),
                Weather(bytes_s=chance.uniform(10_000, 200_000)),
            )
        )
        async with self._weather(weather, self._directions()):
            yield

    @contextlib.asynccontextmanager
    async def _weather(self, weather: Weather, where: list[Direction]) -> AsyncIterator[None]:
        links = " ".join(f"{one}>{other}" for one, other in where)
        self.tell(f"wires {links}: {weather}")
        self.wires.change(weather, where)
        try:
            yield
        finally:
            self.wires.change(FAIR, where)
            self.tell(f"wires {links}: {FAIR}")

    def _every(self) -> list[Direction]:
        return list(permutations(self._numbers.values(), 2))

    def _directions(self) -> list[Direction]:
        """Some directions between members."""
        node = self.chance.choice(list(self._numbers.values()))
        return self.chance.choice(
            (
                self._every(),
                [d for d in self._every() if d[0] == node],
                [d for d in self._every() if d[1] == node],
                [d for d in self._every() if node in d],
                [d for d in self._every() if self.chance.random() < 0.4],
            )
        )

    def _links(self) -> dict[str, list[str]]:
        """Two sides, one alone, or single pairs."""
        nodes = self.chance.sample(self._nodes, len(self._nodes))
        size = self.chance.randint(1, len(nodes) - 1)
        if self.chance.random() < 0.5:
            return {n: nodes[size:] if n in nodes[:size] else nodes[:size] for n in nodes}
        return {n: [o for o in self._nodes if o != n and self.chance.random() < 0.3] for n in nodes}

    # ---- processes ---------------------------------------------------------------------------

    def _victim(self) -> tuple[str, str]:
        return self.chance.choice(self._nodes), self.chance.choice(("node", "sidecar", "postgres"))

    @contextlib.asynccontextmanager
    async def kill(self) -> AsyncIterator[None]:
        """SIGKILL, and started anew at the end."""
        node, process = self._victim()
        self.tell(f"kill {process} of {node}")
        async with processes.killed(self.herd, self.recorder, node, process):
            yield
        self.tell(f"{node} was started")

    @contextlib.asynccontextmanager
    async def stop(self) -> AsyncIterator[None]:
        """SIGSTOP, and SIGCONT at the end: it wakes up with old beliefs."""
        node, process = self._victim()
        self.tell(f"stop {process} of {node}")
        async with processes.stopped(self.herd, node, process):
            yield
        self.tell(f"{node} goes on")

    @contextlib.asynccontextmanager
    async def kill_backend(self) -> AsyncIterator[None]:
        """End some sessions, our own among them; or crash the server, which restarts by itself."""
        node, crash = self.chance.choice(self._nodes), self.chance.random() < 0.4
        self.tell(f"{'crash a backend' if crash else 'end sessions'} of {node}")
        with self.recorder.unreliable(node):
            await asyncio.to_thread(self._end_sessions, node, crash, self.chance.getrandbits(32))
            yield

    def _end_sessions(self, node: str, crash: bool, seed: int) -> None:
        chance = random.Random(seed)  # how often it is asked depends on the sessions
        with contextlib.suppress(psycopg.OperationalError):  # it is down already, or ends with them
            pids = [pid for (pid,) in query(self._dsns[node], _SESSIONS)]
            if crash and pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(chance.choice(pids), signal.SIGKILL)
            else:
                ended = [pid for pid in pids if chance.random() < 0.3]
                query(self._dsns[node], _END.format(ended))

    # ---- machines ----------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def clock(self) -> AsyncIterator[None]:
        """A clock jumps, and back at the end; a process that is started begins by it."""
        node, ahead_s = self.chance.choice(self._nodes), self.chance.randint(-_HOUR_S, _HOUR_S)
        self.tell(f"clock of {node} jumps by {ahead_s} s")
        self.herd.set_clock(node, ahead_s)
        yield
        self.herd.set_clock(node, 0)
        self.tell(f"clock of {node} is right")

    @contextlib.asynccontextmanager
    async def disk(self, left_bytes: int | None = None) -> AsyncIterator[None]:
        """A disk is full, or nearly; its server may end, or crash and go on. Then it is started."""
        assert self.herd.small is not None
        left = self.chance.choice(_ROOM_BYTES) if left_bytes is None else left_bytes
        self.tell(f"disk of {self.herd.small} has {left} bytes left")
        await asyncio.to_thread(self.herd.fill_disk, left)
        try:
            with self.recorder.unreliable(self.herd.small):
                yield
        finally:
            self.herd.empty_disk()
            await asyncio.to_thread(self.herd.must, "start", self.herd.small)
            self.tell(f"disk of {self.herd.small} has room")


@contextlib.contextmanager
def told(seed: int, story: list[str], herd: FaultyHerd) -> Iterator[None]:
    """Add the story to whatever goes wrong in the block, and keep what the processes said."""
    try:
        yield
    except BaseException as error:
        kept = herd.keep_logs()
        error.add_note("\n".join(("what was done:", *story, f"SEED={seed}, logs in {kept}")))
        raise
