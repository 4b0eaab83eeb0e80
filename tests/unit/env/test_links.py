"""Links between members: who is let in, what garbage does, what a peer that does not read costs."""

import asyncio
import json
import socket
from uuid import uuid4

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from link_ends import CLUSTER, End, connection, ended, running
from patience import until
from pgherd_sidecar.core.consensus import Message, RemoteProtocolError
from pgherd_sidecar.core.consensus.model.messages import Newer, Submit
from pgherd_sidecar.env.network.connections import OutgoingConnection, Peer
from pgherd_sidecar.env.network.frames import (
    HELLO_BYTES,
    PROTOCOL_VERSION,
    FrameError,
    FrameReader,
    Hello,
    to_frame,
)
from places import free_port


async def test_messages_arrive_in_order_from_the_member_that_sent_them() -> None:
    ports = {1: free_port(), 2: free_port()}
    one, two = End(1, ports), End(2, ports)
    async with running(one, two):
        await until(lambda: one.links.up and two.links.up)
        sent: list[Message] = [Submit(1, b"x" * size) for size in (1, 500_000, 0, 70_000)]
        one.links.send(("n2", message) for message in sent[:2])
        await until(lambda: len(two.received) == 2)
        one.links.send(("n2", message) for message in sent[2:])
        await until(lambda: len(two.received) == 4)
    assert two.received == [("n1", message) for message in sent]
    assert one.received == []


async def test_what_is_sent_without_a_link_is_lost() -> None:
    ports = {1: free_port(), 2: free_port()}
    one, two = End(1, ports), End(2, ports)
    one.links.send([("n2", Newer(1))])
    async with running(one, two):
        await until(lambda: one.links.up)
        one.links.send([("n2", Newer(2))])
        await until(lambda: two.received)
    assert two.received == [("n1", Newer(2))]


async def test_a_link_is_made_again_when_the_peer_comes_back() -> None:
    ports = {1: free_port(), 2: free_port()}
    one = End(1, ports)
    async with running(one):
        async with running(End(2, ports)):
            await until(lambda: one.links.up)
        await until(lambda: not one.links.up)
        second = End(2, ports)
        async with running(second):
            await until(lambda: one.links.up)
            one.links.send([("n2", Newer(3))])
            await until(lambda: second.received)
    assert one.ups == ["n2", "n2"]


async def test_a_peer_whose_port_is_closed_has_ended_and_one_that_hangs_up_has_not() -> None:
    ports = {1: free_port(), 2: free_port()}
    one = End(1, ports)
    async with running(one):
        two = End(2, ports)
        async with running(two):
            await until(lambda: one.links.up and two.links.up)
            one.ended.clear()  # it did not listen yet, perhaps
            for link in list(two.links.connections):
                link.abort()
            await until(lambda: len(one.ups) == 2)
            assert one.ended == []
        await until(lambda: one.ended)
    assert set(one.ended) == {"n2"}


async def test_an_address_that_is_none_is_a_link_that_is_not_there() -> None:
    failed: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
    ports = {1: free_port(), 2: free_port()}
    one, two = End(1, ports), End(2, ports)
    one.links.set_peers([*one.links.peers.values(), Peer("n3", 3, "no..machine", 1)])
    with structlog.testing.capture_logs() as logs:
        async with running(one, two):
            await until(lambda: "n2" in one.links.up)
            await until(lambda: failed or any(line.get("peer") == "n3" for line in logs))
    assert failed == []


async def test_a_member_of_another_cluster_is_refused_and_both_clusters_named_once() -> None:
    ports, theirs = {1: free_port(), 2: free_port()}, str(uuid4())
    one, stranger = End(1, ports), End(2, ports, theirs)
    with structlog.testing.capture_logs() as logs:
        async with running(one, stranger):
            await until(lambda: one.links.counters.refused > 2)
    assert not one.links.up and not stranger.links.up
    reasons = [line["reason"] for line in logs if line["event"] == "link.refused"]
    assert len(reasons) == len({(theirs in reason, reason) for reason in reasons}) <= 2
    assert all(CLUSTER in reason and theirs in reason for reason in reasons)


@pytest.mark.parametrize(
    ("name", "number", "why"),
    [("n3", 3, "not a member"), ("n2", 3, "not a member"), ("n1", 1, "the name of this member")],
)
async def test_a_stranger_of_the_same_cluster_is_refused(name: str, number: int, why: str) -> None:
    ports = {1: free_port(), 2: free_port()}
    one = End(1, ports)
    async with running(one), connection(ports[1]) as (reader, writer):
        writer.write(Hello(PROTOCOL_VERSION, CLUSTER, name, number).encode())
        answer = Hello.decode(FrameReader(HELLO_BYTES).feed(await ended(reader))[0])
    assert why in answer.refused


def test_a_hello_may_say_more_than_its_reader_knows() -> None:
    said = json.loads(Hello(PROTOCOL_VERSION, CLUSTER, "n1", 1).encode()[4:])
    assert Hello.decode(json.dumps({**said, "more": 1}).encode()).name == "n1"


def test_a_hello_names_its_fields_as_earlier_releases_do() -> None:
    said = json.loads(Hello(PROTOCOL_VERSION, CLUSTER, "n1", 1, successor="other").encode()[4:])
    assert said["parting"] == "other"


async def test_each_end_knows_the_others_disk_before_anything_is_received() -> None:
    ports = {1: free_port(), 2: free_port()}
    one, two = End(1, ports), End(2, ports)
    async with running(one, two):
        await until(lambda: one.links.linked and two.links.linked)
    assert set(one.met) == {("n2", "disk 2")}
    assert set(two.met) == {("n1", "disk 1")}


async def test_another_disk_under_a_peers_name_ends_the_link_to_the_former_one() -> None:
    ports = {1: free_port(), 2: free_port()}
    one = End(1, ports)
    async with running(one, End(2, ports)):
        await until(lambda: one.links.linked)
        former = one.links.up["n2"]
        async with connection(ports[1]) as (reader, writer):
            writer.write(Hello(PROTOCOL_VERSION, CLUSTER, "n2", 2, "disk 9").encode())
            await until(former.closed.done)
            assert ("n2", "disk 9") in one.met
            assert "another disk" in former.closed.result()
            await reader.readuntil(b"}")


async def test_a_peer_that_is_added_is_dialled_and_one_that_is_dropped_is_not() -> None:
    ports = {1: free_port(), 2: free_port(), 3: free_port()}
    one, two, three = (End(number, ports) for number in ports)
    peers = dict(one.links.peers)
    one.links.set_peers([peers["n2"]])
    async with running(one, two, three):
        await until(lambda: "n2" in one.links.up)
        one.links.set_peers([peers["n3"]])
        await until(lambda: set(one.links.up) == {"n3"})
        ups = one.ups.count("n3")
        one.links.set_peers(peers.values())
        await until(lambda: set(one.links.up) == {"n2", "n3"})
        assert one.ups.count("n3") == ups


async def test_blocked_peers_are_unreachable_both_ways_until_they_are_not_blocked() -> None:
    ports = {1: free_port(), 2: free_port()}
    one, two = End(1, ports), End(2, ports)
    async with running(one, two):
        await until(lambda: one.links.linked and two.links.linked)
        one.links.block(["n2"])
        await until(lambda: "n1" in two.links.refusals)
        assert "blocked" in two.links.refusals["n1"]
        assert not one.links.up and not one.links.linked and not two.links.linked
        one.links.block([])
        await until(lambda: one.links.linked and two.links.linked)
        assert not two.links.refusals


async def test_who_is_sent_nothing_is_still_heard() -> None:
    ports = {1: free_port(), 2: free_port()}
    one, two = End(1, ports), End(2, ports)
    async with running(one, two):
        await until(lambda: one.links.linked and two.links.linked)
        one.links.block([], unsent=["n2"])
        await until(lambda: not one.links.up)
        assert set(two.links.up) == {"n1"}
        one.links.block([])
        await until(lambda: one.links.linked and two.links.linked)


async def test_who_is_not_wanted_any_more_is_hung_up_on() -> None:
    ports = {1: free_port(), 2: free_port(), 3: free_port()}
    one, two, three = (End(number, ports) for number in ports)
    async with running(one, two, three):
        await until(lambda: one.links.linked == {"n2", "n3"})
        kept, ended_ = one.links.up["n3"], one.links.up["n2"]
        one.links.hang_up(lambda peer, disk: (peer, disk) == ("n2", "disk 2"))
        await until(ended_.closed.done)
        assert not kept.closed.done()


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\xff\xff\xff",
        b"".join(to_frame([b"not json"])),
        b"".join(to_frame([b"\xff\xfe"])),
        b"".join(to_frame([b'{"version": 1}'])),
        b"\x00\x00\x00\x00",
    ],
)
async def test_garbage_closes_its_connection_only(garbage: bytes) -> None:
    ports = {1: free_port(), 2: free_port()}
    one, two = End(1, ports), End(2, ports)
    async with running(one, two):
        await until(lambda: one.links.up and two.links.up)
        async with connection(ports[1]) as (reader, writer):
            writer.write(garbage)
            assert await ended(reader) == b""
        assert one.links.counters.offended == 1
        two.links.send([("n1", Newer(4))])
        await until(lambda: one.received)
    assert one.links.counters.dialled == two.links.counters.dialled == 1


async def test_garbage_after_a_good_hello_closes_the_connection() -> None:
    ports = {1: free_port(), 2: free_port()}
    one = End(1, ports)
    async with running(one), connection(ports[1]) as (reader, writer):
        writer.write(Hello(PROTOCOL_VERSION, CLUSTER, "n2", 2).encode())
        await reader.readuntil(b"}")
        writer.write(b"".join(to_frame([b"\x01\xff"])))
        await ended(reader)
    assert one.links.counters.offended == 1
    assert one.received == []


async def test_a_message_the_protocol_rejects_closes_the_link_and_it_is_made_anew() -> None:
    ports = {1: free_port(), 2: free_port()}
    one, two = End(1, ports), End(2, ports)
    two.objection = RemoteProtocolError("impossible")
    async with running(one, two):
        await until(lambda: one.links.up)
        one.links.send([("n2", Newer(1)), ("n2", Newer(2))])
        await until(lambda: len(one.ups) == 2)
    assert two.received == [("n1", Newer(1))]
    assert two.links.counters.offended == 1


async def test_a_peer_that_does_not_read_costs_a_bounded_buffer_and_the_link() -> None:
    ports = {1: free_port(), 2: free_port()}
    one = End(1, ports)
    answered, never = asyncio.Event(), asyncio.Event()

    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(Hello(PROTOCOL_VERSION, CLUSTER, "n2", 2).encode())
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        answered.set()
        await never.wait()
        writer.close()

    server = await asyncio.start_server(deaf, "127.0.0.1", ports[2], limit=1)
    async with server, running(one):
        await until(lambda: one.links.up)
        link = one.links.up["n2"]
        largest = 0
        for _ in range(2000):  # 64 MB: more than any socket buffer
            if one.links.counters.overflowed:
                break
            one.links.send([("n2", Submit(1, bytes(1 << 15)))])
            largest = max(largest, link._transport.get_write_buffer_size())
            await asyncio.sleep(0)
        assert one.links.counters.overflowed == 1
        await until(link.closed.done)
        assert (1 << 16) < largest <= (1 << 17)
        never.set()


@given(st.lists(st.binary(max_size=300), max_size=20), st.integers(1, 50))
def test_frames_come_out_as_they_went_in_however_the_stream_is_cut(
    contents: list[bytes], step: int
) -> None:
    stream = b"".join(piece for content in contents for piece in to_frame([content]))
    reader = FrameReader(300)
    found = []
    for offset in range(0, len(stream), step):
        found += reader.feed(stream[offset : offset + step])
    assert found == contents


def test_a_frame_beyond_the_limit_is_refused_before_it_has_arrived() -> None:
    with pytest.raises(FrameError, match="301 bytes"):
        FrameReader(300).feed((301).to_bytes(4, "big"))


class SilentTransport(asyncio.Transport):
    """One whose protocol is never told of its end, as uvloop's when making it is cancelled late."""

    aborted = False

    def abort(self) -> None:
        self.aborted = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


@pytest.mark.parametrize("before_it_is_made", [True, False])
async def test_a_connection_that_is_abandoned_ends_though_its_transport_does_not_say_so(
    before_it_is_made: bool,
) -> None:
    with socket.socket() as sock:
        transport = SilentTransport({"socket": sock, "peername": ("127.0.0.1", 1)})
        links = End(1, {1: free_port(), 2: free_port()}).links
        connection = OutgoingConnection(links, None, links.peers["n2"])
        if before_it_is_made:
            connection.abandon()
            connection.connection_made(transport)
        else:
            connection.connection_made(transport)
            connection.abandon()
            assert connection.closed.done()
        assert transport.aborted and not links.connections
        await links.stop()
