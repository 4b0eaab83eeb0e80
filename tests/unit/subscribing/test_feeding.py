"""What a feeder notes before the GID moves."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import pytest
from pgherd_sidecar.subscribing.feeding import Feeding
from pgherd_sidecar.subscribing.sources import Source
from pgherd_sidecar.subscribing.state.errors import MemberError
from pgherd_sidecar.subscribing.state.herd import Subscription
from pgherd_sidecar.subscribing.state.orders import Relay
from pgherd_sidecar.subscribing.state.subscriber import Subscriber


class There:
    """A subscriber that shows two tables of the order, one of them otherwise, and one of none."""

    gid = 7
    is_herd = False
    session = None

    def __init__(self) -> None:
        self.shown: dict[str, Any] = {"s.follows": None, "s.leaves": None}
        self.old: dict[str, Any] = {"s.altered": None}
        self.staged: dict[str, Any] = {}
        self.placing = self
        self._stand: set[str] = set()

    async def let_stand(self, names: Sequence[str]) -> None:
        self._stand = set(names)

    async def persist(self, work: Callable[[], Awaitable[None]]) -> None:
        await work()

    async def load(self) -> None:
        self.old |= dict.fromkeys(self._stand)
        self.shown = {name: one for name, one in self.shown.items() if name not in self._stand}


class Dying:
    """A source that is gone when a table is to be copied."""

    async def visible(self) -> int:
        return 9

    async def copy(self, _: There, names: Sequence[str]) -> None:
        raise MemberError(f"asked for {', '.join(names)}")


async def test_what_is_followed_no_more_is_copied_anew_if_it_is_wanted_again() -> None:
    there = There()
    order = Subscription("o", "o", "", 1, 1, 1, None, None, ("s.follows", "s.altered", "s.comes"))
    feeding = Feeding(
        cast("Source", Dying()), cast("Subscriber", there), order, cast("Relay", None)
    )
    with pytest.raises(MemberError, match=r"asked for s\.altered, s\.comes"):
        await feeding._copy(set(order.tables))
    assert there.shown.keys() == {"s.follows"}
    assert there._stand == {"s.leaves", "s.altered"}
