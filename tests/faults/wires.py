"""TCP between members as a bad network makes it: late, lost, torn, slow, garbled, silent.

Each direction of each pair of members has a wire of its own: a port at which the one dials the
other (see ``member.py``), forwarded to the other's real one. What the network does is set by
direction at any time. A packet that TCP has to send again shows as a delay of everything behind
it; a silent wire keeps what is sent until it speaks again, perhaps minutes later.

Runs on a thread of its own, so that it goes on while the tests wait for commands.
"""

import asyncio
import random
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from functools import partial
from math import inf
from weakref import WeakSet

_READ_BYTES = 1 << 16
_QUEUED = 64
_PORTION_BYTES = 2048
_RESENT_S = (0.2, 0.4, 0.8)  # TCP's first timeouts on Linux

Direction = tuple[int, int]
"""Numbers of the sender and of the receiver."""


@dataclass(frozen=True, slots=True)
class Weather:
    """What a direction does to what is sent.

    Attributes:
        delay_s, jitter_s: least delay, and how much may be added.
        loss: chance that a piece has to be sent again.
        bytes_s: throughput.
        torn: chance that the connection breaks in the middle of a piece.
        garbled: chance that a bit of a piece is flipped.
        silent: nothing arrives, and nobody is told.
    """

    delay_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0
    bytes_s: float = inf
    torn: float = 0.0
    garbled: float = 0.0
    silent: bool = False

    def __str__(self) -> str:
        bad = {f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default}
        return ", ".join(f"{name} {value}" for name, value in bad.items()) or "fair"


FAIR = Weather()


@dataclass
class _Wire:
    """One direction: its weather, its connections, and who waits for it to speak again."""

    weather: Weather = FAIR
    carries: int = 0
    speaks: asyncio.Event = field(default_factory=asyncio.Event)


class Wires:
    """The wires of a herd on this machine.

    Args:
        port_base: the first of the ports that they listen on.
        peer_ports: by number, where the members really listen.
        seed: of the chances that pieces take.
    """

    def __init__(self, port_base: int, peer_ports: dict[int, int], seed: int) -> None:
        self._port_base = port_base
        self._peer_ports = peer_ports
        self._chance = random.Random(seed)
        self._wires: dict[Direction, _Wire] = {}
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[None]] = set()
        self._ends: WeakSet[asyncio.WriteTransport] = WeakSet()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="wires", daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()

    def close(self) -> None:
        """End all connections and the thread."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def change(self, weather: Weather, directions: Iterable[Direction]) -> None:
        """Change what some directions do; returns when they do it."""
        changed = list(directions)
        asyncio.run_coroutine_threadsafe(self._change(weather, changed), self._loop).result()

    @property
    def linked(self) -> set[Direction]:
        """Who has dialled whom, and is connected."""
        return {direction for direction, wire in self._wires.items() if wire.carries}

    async def _change(self, weather: Weather, directions: list[Direction]) -> None:
        for direction in directions:
            wire = self._wires[direction]
            wire.weather = weather
            (wire.speaks.clear if weather.silent else wire.speaks.set)()

    async def _listen(self) -> None:
        for one in self._peer_ports:
            for other in self._peer_ports:
                if one != other:
                    self._wires[one, other] = wire = _Wire()
                    wire.speaks.set()
                    port = wire_port(self._port_base, one, other)
                    carry = partial(self._carry, (one, other))
                    server = await asyncio.start_server(carry, "127.0.0.1", port)
                    self._servers.append(server)

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        for end in self._ends:
            end.abort()
        await asyncio.sleep(0)  # that is when they are closed

    async def _carry(
        self, direction: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Carry one connection, in both directions, until one of its ends is gone."""
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        one, other = direction
        ends = [writer]
        self._ends.add(writer.transport)
        try:
            await self._wires[direction].speaks.wait()
            far_reader, far_writer = await asyncio.open_connection(
                "127.0.0.1", self._peer_ports[other]
            )
            ends.append(far_writer)
            self._ends.add(far_writer.transport)
            self._wires[direction].carries += 1
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump((one, other), reader, far_writer))
                group.create_task(self._pump((other, one), far_reader, writer))
        except* OSError:
            pass  # both ends see it
        finally:
            self._connections.discard(task)
            self._wires[direction].carries -= len(ends) - 1
            for end in ends:
                end.close()

    async def _pump(
        self, direction: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Carry one direction of a connection.

        Raises:
            ConnectionError: it has ended.
        """
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_QUEUED)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._deliver(self._wires[direction], under_way, writer))
            due_s, piece = 0.0, b"?"
            while piece:
                piece = await reader.read(_READ_BYTES)
                due_s = max(due_s, self._due_s(self._wires[direction].weather))
                await under_way.put((due_s, piece))

    async def _deliver(
        self,
        wire: _Wire,
        under_way: "asyncio.Queue[tuple[float, bytes]]",
        writer: asyncio.StreamWriter,
    ) -> None:
        while True:
            due_s, piece = await under_way.get()
            await asyncio.sleep(due_s - self._loop.time())
            await wire.speaks.wait()
            if self._happens(wire.weather.garbled) and piece:
                bit = self._chance.randrange(8 * len(piece))
                piece = (int.from_bytes(piece) ^ 1 << bit).to_bytes(len(piece))
            if self._happens(wire.weather.torn):
                writer.write(piece[: self._chance.randrange(len(piece) + 1)])
                raise ConnectionError("torn")
            for start in range(0, len(piece), _PORTION_BYTES):
                portion = piece[start : start + _PORTION_BYTES]
                await asyncio.sleep(len(portion) / wire.weather.bytes_s)
                writer.write(portion)
            await writer.drain()
            if not piece:
                raise ConnectionError("ended")

    def _due_s(self, weather: Weather) -> float:
        """When a piece that comes now arrives, if those before it have."""
        again_s = self._chance.choice(_RESENT_S) if self._happens(weather.loss) else 0.0
        late_s = weather.delay_s + self._chance.uniform(0, weather.jitter_s) + again_s
        return self._loop.time() + late_s

    def _happens(self, chance: float) -> bool:
        return chance > 0 and self._chance.random() < chance


def wire_port(port_base: int, one: int, other: int) -> int:
    """The port at which member number ``one`` finds member number ``other``."""
    return port_base + 10 * one + other
