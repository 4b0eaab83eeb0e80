"""What a move of a set looks at before its tables take no writes."""

from typing import cast

import pytest
from pgherd_sidecar.subscribing.failover.switchover import Switchover
from pgherd_sidecar.subscribing.state import herd
from pgherd_sidecar.subscribing.state.errors import StoppedError
from pgherd_sidecar.subscribing.state.herd import Subscription
from pgherd_sidecar.tables.sessions import Session


async def test_a_set_does_not_move_by_a_subscription_that_has_ended_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = Subscription("west", "orders", "", 1, 1, 1.0, 7, None, ("a.t",))
    known = [target]

    async def subscriptions(_session: object) -> list[Subscription]:
        return known

    monkeypatch.setattr(herd, "subscriptions", subscriptions)
    move = Switchover(cast("Session", None), "orders", 1.0)
    await move._require_unchanged(target)
    known.clear()
    with pytest.raises(StoppedError, match="there is no subscription west any more"):
        await move._require_unchanged(target)
