"""Subscribers of a cascade: what they know of each other, and how much of their logs they keep."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
import pytest
from pgherd_sidecar.subscribing.state.forwardlog import ForwardLog, forwarding_query
from pgherd_sidecar.subscribing.state.herd import Subscription
from pgherd_sidecar.subscribing.state.orders import (
    HeldOrder,
    Orders,
    Report,
    above,
    below,
    kept_after,
    passed_on,
)
from pgherd_sidecar.tables.sessions import Session


def one(
    name: str, provider: str | None = None, *, confirmed: int | None = None, keep_bytes: int = 1000
) -> Subscription:
    return Subscription(
        name, "s", f"dsn of {name}", 1, keep_bytes, 60.0, confirmed, None, ("s.t",),
        provider=provider, forward=True, revision=5,
    )  # fmt: skip


#: a -> b -> c, a -> d, and e beside them.
HERD = [one("a"), one("b", "a"), one("c", "b"), one("d", "a"), one("e", confirmed=40)]


def test_who_is_fed_from_whom() -> None:
    providers = {each.name: each.provider for each in HERD}
    assert above("c", providers) == ["b", "a"]
    assert above("e", providers) == []
    assert below("a", HERD) == {"b", "c", "d"}
    assert below("b", HERD) == {"c"}
    assert above("x", {"x": "y", "y": "x"}) == ["y", "x"]


def test_a_subscriber_is_told_of_all_and_how_to_reach_those_below_it() -> None:
    told = {name: each.dsn for name, each in passed_on("b", HERD).items()}
    assert told == {"a": "", "b": "", "c": "dsn of c", "d": "", "e": ""}


def test_a_subscriber_that_its_provider_does_not_know_is_told_nothing() -> None:
    assert passed_on("x", HERD) == {}


def test_sets_know_nothing_of_each_other() -> None:
    other = msgspec.structs.replace(one("z", "b"), set="other")
    assert "z" not in passed_on("b", [*HERD, other])


def order(ordered: Subscription, needed: int | None, age_s: float = 0.0) -> HeldOrder:
    return HeldOrder("a", ordered, Report(ordered.name, 5, needed, "following", age_s=age_s))


class Database:
    """Holds rows of `pgherd_subscriber.orders`."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._rows = rows
        self.description = True
        self.done: list[str] = []

    async def execute(self, statement: str, *_: object) -> "Database":
        self.done.append(statement)
        return self

    async def fetchall(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self._rows]

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        yield


class Above:
    """Knows all, and remembers what it hears."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.known: Sequence[Subscription] = HERD

    def orders(self) -> Sequence[Subscription]:
        return self.known

    async def hear(self, reports: Sequence[Report], _: int) -> None:
        self.heard += [each.name for each in reports]


async def test_a_subscriber_is_heard_about_those_only_that_are_fed_from_it() -> None:
    rows = [
        {
            "subscription": "b", "name": each.name, "found": True, "begins": 1,
            # Its own role writes these rows: it says that all are fed from it.
            "ordered": msgspec.to_builtins(one(each.name, None if each.name == "b" else "b")),
            "revision": 5, "needed": 1 << 60, "state": "stopped",
        }
        for each in HERD
    ]  # fmt: skip
    session, above_it = cast("Session", Database(rows)), Above()
    await Orders(session, HERD[1], ForwardLog(session, "b")).exchange(above_it)
    assert above_it.heard == ["c"]


@pytest.mark.parametrize(
    ("provider", "state", "done"),
    [("b", "following", "end_order"), ("b", "ended", None), ("c", "following", "forget_order")],
)
async def test_the_end_of_one_that_is_fed_from_here_is_kept_until_it_has_heard_so(
    provider: str, state: str, done: str | None
) -> None:
    row = {
        "subscription": "b", "name": "gone", "found": True, "begins": 1,
        "ordered": msgspec.to_builtins(one("gone", provider)),
        "revision": 5, "needed": 7, "state": state,
    }  # fmt: skip
    database, above_it = Database([row]), Above()
    found = await Orders(
        cast("Session", database), HERD[1], ForwardLog(cast("Session", database), "b")
    ).exchange(above_it)
    ends = {forwarding_query(name): name for name in ("end_order", "forget_order")}
    said = [ends[statement] for statement in database.done if statement in ends]
    assert said == ([] if done is None else [done])
    assert [each.ordered.name for each in found] == ([] if state == "ended" else ["gone"])
    assert above_it.heard == []


@pytest.mark.parametrize(
    ("ended", "silent", "done"),
    [(4, 0, None), (5, 0, "end_order"), (7, 0, "end_order"), (7, 4, "end_order"),
     (5, 5, "forget_order"), (7, 6, "forget_order")],
)  # fmt: skip
async def test_an_order_of_a_name_that_has_another_meaning_now_has_ended(
    ended: int, silent: int, done: str | None
) -> None:
    """Nobody here has seen its end, which may be one of which the follower does not hear."""
    row = {
        "subscription": "a", "name": "b", "found": True, "begins": 1,
        "ordered": msgspec.to_builtins(one("b", "a")), "revision": 5, "needed": 7, "state": "x",
    }  # fmt: skip
    database, above_it = Database([row]), Above()
    later = msgspec.structs.replace(HERD[1], revision=9, ended=ended, silent=silent)
    above_it.known = [HERD[0], later]
    session = cast("Session", database)
    await Orders(session, HERD[0], ForwardLog(session, "a")).exchange(above_it)
    ends = {forwarding_query(name): name for name in ("end_order", "forget_order")}
    said = [ends[statement] for statement in database.done if statement in ends]
    assert said == ([] if done is None else [done])
    assert database.done.count(forwarding_query("order")) == len(above_it.known)


@pytest.mark.parametrize(
    ("found", "after"),
    [
        ([], 100),
        ([order(one("b", "a"), 70)], 70),
        ([order(one("b", "a"), 70), order(one("c", "b"), 60)], 60),
        ([order(one("b", "a"), 70, age_s=61.0)], 100),
        ([order(one("b", "a"), None)], 20),  # it is about to be copied
        ([order(one("b", "a"), 70), order(one("c", "b"), None)], 70),  # likewise, but from b
        ([order(one("e", confirmed=40), 10)], 40),  # fed from elsewhere: it may come here
        ([order(one("b", "a", keep_bytes=10), 30)], 90),
        ([order(one("b", "a"), 10)], 20),  # that is gone already
    ],
)
def test_the_log_is_kept_for_the_slowest_within_its_limits(
    found: list[HeldOrder], after: int
) -> None:
    assert kept_after(one("a"), 100, 20, found, {1000: None, 10: 90}) == after


def test_those_above_are_ahead_and_need_nothing() -> None:
    mine = one("b", "a")
    found = [
        HeldOrder("b", each, Report(each.name, None, None))
        for each in (one("a", confirmed=5), mine)
    ]
    assert kept_after(mine, 100, 1, found, {1000: None}) == 100
