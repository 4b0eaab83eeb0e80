"""Readers on one node are told a GID when all up to their barrier is delivered there [F2, F6]."""

import asyncio

from pgherd_sidecar.agent.session.barriers import Barriers
from pgherd_sidecar.core.consensus import Barrier


class Log:
    """A log whose rounds end when the test says so."""

    def __init__(self) -> None:
        self.barrier = Barrier(0, 0)
        self.term = 1
        self.proposer: str | None = "n1"
        self.asked = 0
        self.dropped = 0

    def ask_barrier(self) -> int:
        self.asked += 1
        return self.barrier.number + 1

    def drop_barriers(self) -> None:
        self.dropped += 1


class Node:
    """Readers, the log they ask, and what is delivered."""

    def __init__(self) -> None:
        self.log = Log()
        self.delivered = 10
        self.answers: list[str] = []
        self.barriers = Barriers(
            self.log, delivered=lambda: self.delivered, newest=lambda: self.delivered - 1
        )

    def begin(self, who: str, wait_s: float = 1000.0) -> None:
        self.barriers.take_reader(who, wait_s, self.answer(who))

    def go_on(self, who: str) -> None:
        self.barriers.go_on(who, 1000.0, self.answer(who))

    def answer(self, who: str) -> "Answer":
        return Answer(self, who)

    def end_round(self, position: int) -> None:
        self.log.barrier = Barrier(self.log.barrier.number + 1, position)
        self.barriers.serve_readers()


class Answer:
    """Notes whom it reaches."""

    def __init__(self, node: Node, who: str) -> None:
        self.node = node
        self.who = who

    def __call__(self, tag: bytes) -> None:
        self.node.answers.append(f"{self.who} {tag.decode()}")


async def test_a_reader_waits_for_his_round_and_for_the_delivery_up_to_it() -> None:
    node = Node()
    node.begin("a")
    node.barriers.serve_readers()
    assert node.answers == []
    node.end_round(12)
    assert node.answers == []
    node.delivered = 12
    node.barriers.serve_readers()
    assert node.answers == ["a GID 11"]
    assert node.log.dropped == 1


async def test_a_round_that_was_under_way_serves_nobody_who_came_later() -> None:
    node = Node()
    node.begin("a")
    node.log.ask_barrier = lambda: node.log.barrier.number + 2  # type: ignore[method-assign]
    node.begin("b")
    node.end_round(5)
    assert node.answers == ["a GID 9"]
    node.end_round(5)
    assert node.answers == ["a GID 9", "b GID 9"]


async def test_who_is_told_to_wait_goes_on_with_the_round_that_he_has() -> None:
    node = Node()
    node.begin("a", 0.01)
    await asyncio.sleep(0.05)
    assert node.answers == ["a WAIT"]
    node.end_round(10)
    assert node.answers == ["a WAIT"]
    node.go_on("a")
    assert node.answers == ["a WAIT", "a GID 9"]
    assert node.log.asked == 1


async def test_who_waits_long_asks_anew_and_the_lower_of_his_barriers_is_enough() -> None:
    """[F6] The end of the log that the first one covers was dropped."""
    node = Node()
    node.begin("a", 0.01)
    node.end_round(99)
    await asyncio.sleep(0.05)
    node.go_on("a")
    assert node.log.asked == 2
    node.end_round(10)
    assert node.answers == ["a WAIT", "a GID 9"]


async def test_a_later_and_higher_barrier_does_not_hold_up_who_has_a_lower_one() -> None:
    node = Node()
    node.begin("a")
    node.end_round(11)
    node.log.term = 2
    node.barriers.reign_changed()
    assert node.log.asked == 2
    node.end_round(50)
    node.delivered = 11
    node.barriers.serve_readers()
    assert node.answers == ["a GID 10"]


async def test_another_proposer_means_nothing_to_who_has_no_barrier_yet() -> None:
    node = Node()
    node.begin("a")
    node.log.proposer = None
    node.barriers.reign_changed()
    assert node.log.asked == 1


async def test_who_begins_anew_is_not_served_with_what_he_asked_before() -> None:
    """His statement was cancelled, and he knows of a newer commit now."""
    node = Node()
    node.begin("a")
    node.end_round(12)
    node.begin("a")
    node.delivered = 12
    node.barriers.serve_readers()
    assert node.answers == []
    node.end_round(12)
    assert node.answers == ["a GID 11"]


async def test_nobody_is_left_behind_by_a_session_that_ends() -> None:
    node = Node()
    node.begin("a")
    node.begin("b")
    node.barriers.close()
    node.barriers.drop_reader("a")
    assert node.log.dropped == 1
    node.end_round(1)
    assert node.answers == []
