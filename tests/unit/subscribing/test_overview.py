"""What is told of a subscriber that does not get on."""

from types import SimpleNamespace
from typing import cast

import pytest
from pgherd_sidecar.subscribing.overview import seen
from pgherd_sidecar.subscribing.state.herd import Subscription
from pgherd_sidecar.subscribing.state.subscriber import Subscriber


@pytest.mark.parametrize(
    ("gid", "age_s", "told"),
    [(10, 90.0, ""), (9, 2.0, ""), (9, 90.0, "nothing was written there for 90 s")],
    ids=["level", "behind", "stands still"],
)
def test_a_subscriber_that_stands_still_has_a_reason(gid: int, age_s: float, told: str) -> None:
    order = Subscription("west", "orders", "", 1, 0, 0, None, None, ("s.t",))
    there = cast("Subscriber", SimpleNamespace(shown={"s.t": None}, staged={}, gid=gid))
    state = seen(order, there, {"age_s": age_s}, visible=10, held=None)
    assert state.state == "following"
    assert told in state.reason and bool(told) == bool(state.reason)
