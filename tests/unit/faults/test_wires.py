"""The wires of the fault tests do to a connection what they say."""

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator

import pytest
from faults.wires import FAIR, Weather, Wires, wire_port
from patience import in_time

_THERE, _BACK = (1, 2), (2, 1)

Ends = tuple[Wires, asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
def port_base() -> int:
    for base in random.sample(range(16000, 19000, 50), 60):
        with contextlib.suppress(OSError):
            for one, other in (_THERE, _BACK):
                socket.create_server(("127.0.0.1", wire_port(base, one, other))).close()
            return base
    raise AssertionError("no free ports on this machine")


@contextlib.asynccontextmanager
async def echoed(port_base: int) -> AsyncIterator[Ends]:
    """A connection of member 1 by the wires to member 2, which sends back what it gets."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while piece := await reader.read(1 << 16):
                writer.write(piece)
        writer.close()
        ended.set()

    ended = asyncio.Event()
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    wires = Wires(port_base, {1: port, 2: port}, seed=1)
    async with await asyncio.start_server(echo, sock=listening), in_time():
        reader, writer = await asyncio.open_connection("127.0.0.1", wire_port(port_base, 1, 2))
        writer.write(b"?")
        assert await reader.readexactly(1) == b"?"
        yield wires, reader, writer
        writer.close()
        wires.close()
        await ended.wait()


async def test_a_fair_wire_changes_nothing(port_base: int) -> None:
    sent = random.randbytes(1 << 20)
    async with echoed(port_base) as (wires, reader, writer):
        writer.write(sent)
        assert await reader.readexactly(len(sent)) == sent
        assert wires.linked == {_THERE}


@pytest.mark.parametrize("silent", [_THERE, _BACK], ids=["there", "back"])
async def test_a_silent_wire_keeps_what_is_sent_until_it_speaks(
    port_base: int, silent: tuple[int, int]
) -> None:
    async with echoed(port_base) as (wires, reader, writer):
        wires.change(Weather(silent=True), [silent])
        writer.write(b"late")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await reader.read(1)
        wires.change(FAIR, [silent])
        assert await reader.readexactly(4) == b"late"


async def test_late_and_lost_pieces_arrive_in_order(port_base: int) -> None:
    async with echoed(port_base) as (wires, reader, writer):
        wires.change(Weather(delay_s=0.01, jitter_s=0.02, loss=0.1), [_THERE, _BACK])
        for number in range(50):
            writer.write(bytes([number]))
            await asyncio.sleep(0.002)
        assert await reader.readexactly(50) == bytes(range(50))


async def test_a_garbled_piece_differs_in_one_bit(port_base: int) -> None:
    async with echoed(port_base) as (wires, reader, writer):
        wires.change(Weather(garbled=1.0), [_THERE])
        writer.write(bytes(100))
        arrived = await reader.readexactly(100)
        assert int.from_bytes(arrived).bit_count() == 1


async def test_a_torn_connection_ends_on_both_sides(port_base: int) -> None:
    async with echoed(port_base) as (wires, reader, writer):
        wires.change(Weather(torn=1.0), [_THERE])
        writer.write(bytes(100))
        assert len(await reader.read(-1)) <= 100
        wires.change(FAIR, [_THERE])
        while wires.linked:  # noqa: ASYNC110 - the wires tell nobody
            await asyncio.sleep(0.01)
