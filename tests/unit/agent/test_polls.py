"""Questions between members over real links."""

import asyncio
import gc
from pathlib import Path

from log_trio import trio
from patience import until


async def _echo(data: bytes) -> bytes:
    return b"<" + data + b">"


async def test_all_that_are_asked_answer(tmp_path: Path) -> None:
    async with trio(tmp_path) as herd:
        await herd.proposer()
        hosts = {name: node.host for name, node in herd.nodes.items()}
        await until(lambda: len(hosts["n1"].peers.linked) == 2)
        hosts["n2"].polls.answer_by(_echo)
        said = await hosts["n1"].polls.ask(["n1", "n2", "n3", "n9"], b"x", 10)
        assert said == {"n2": b"<x>", "n3": b""}  # n3 has nobody who could answer
        said = await hosts["n3"].polls.ask(["n2"], b"y", 10)
        assert said == {"n2": b"<y>"}


async def test_nobody_waits_for_who_is_slow_or_gone(tmp_path: Path) -> None:
    async def never(_: bytes) -> bytes:
        await asyncio.sleep(1000)
        return b"late"

    async with trio(tmp_path) as herd:
        await herd.proposer()
        asking = herd.nodes["n1"].host
        await until(lambda: len(asking.peers.linked) == 2)
        herd.nodes["n2"].host.polls.answer_by(never)
        herd.nodes["n3"].host.polls.answer_by(_echo)
        assert await asking.polls.ask(["n2", "n3"], b"x", 0.3) == {"n3": b"<x>"}
        asked = asyncio.create_task(asking.polls.ask(["n2", "n3"], b"x", 1000))
        await asyncio.sleep(0.1)
        await herd.stop("n2")
        assert await asked == {"n3": b"<x>"}


async def test_one_answer_may_be_enough(tmp_path: Path) -> None:
    release = asyncio.Event()

    async def held(_: bytes) -> bytes:
        await release.wait()
        return b"late"

    async with trio(tmp_path) as herd:
        await herd.proposer()
        asking = herd.nodes["n1"].host
        await until(lambda: len(asking.peers.linked) == 2)
        herd.nodes["n2"].host.polls.answer_by(held)
        herd.nodes["n3"].host.polls.answer_by(_echo)
        said = await asking.polls.ask(["n2", "n3"], b"x", 1000, enough=lambda s: s == b"<x>")
        assert said == {"n3": b"<x>"}
        release.set()


async def test_whoever_was_to_answer_has_ended(tmp_path: Path) -> None:
    async with trio(tmp_path) as herd:
        await herd.proposer()
        asking, other = herd.nodes["n1"].host, herd.nodes["n2"].host
        await until(lambda: len(asking.peers.linked) == 2)

        async def never(_: bytes) -> bytes:
            await asyncio.sleep(1000)
            return b"late"

        other.polls.answer_by(never)
        asked = asyncio.create_task(asking.polls.ask(["n2"], b"x", 1000))
        await asyncio.sleep(0.1)
        other.polls.answer_by(None)
        assert await asked == {"n2": b""}


async def test_a_question_that_makes_no_sense_is_answered_with_nothing(tmp_path: Path) -> None:
    failed: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))

    async def puzzled(data: bytes) -> bytes:
        return b"%d" % int(data)

    async with trio(tmp_path) as herd:
        await herd.proposer()
        asking, other = herd.nodes["n1"].host, herd.nodes["n2"].host
        await until(lambda: len(asking.peers.linked) == 2)
        other.polls.answer_by(puzzled)
        assert await asking.polls.ask(["n2"], b"x", 1000) == {"n2": b""}
        assert await asking.polls.ask(["n2"], b"7", 1000) == {"n2": b"7"}
        gc.collect()  # then the loop is told of an exception that nobody has taken
        assert failed == []


async def test_an_answer_to_a_former_process_is_none(tmp_path: Path) -> None:
    release, asked = asyncio.Event(), asyncio.Event()

    async def slow(data: bytes) -> bytes:
        if data == b"before":
            asked.set()
            await release.wait()
        return data

    async with trio(tmp_path) as herd:
        await herd.proposer()
        asking, other = herd.nodes["n1"], herd.nodes["n2"].host
        await until(lambda: len(asking.host.peers.linked) == 2)
        other.polls.answer_by(slow)
        former = asyncio.create_task(asking.host.polls.ask(["n2"], b"before", 1000))
        await asked.wait()
        await herd.stop("n1")
        assert await former == {}
        await herd.start("n1")
        await until(lambda: "n2" in asking.host.peers.linked)
        release.set()
        assert await asking.host.polls.ask(["n2"], b"now", 10) == {"n2": b"now"}
