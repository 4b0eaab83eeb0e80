"""A feeder's care for subscriptions, of which it has not reached the subscriber itself."""

from pathlib import Path
from typing import cast

import msgspec
import pytest
from pgherd_sidecar.client.stream.changelog import ChangeLog
from pgherd_sidecar.client.stream.changes import PositionLostError
from pgherd_sidecar.subscribing.copying import Provider
from pgherd_sidecar.subscribing.feeder import Feeder, FeederOrder, _Care
from pgherd_sidecar.subscribing.state.errors import StoppedError
from pgherd_sidecar.subscribing.state.herd import Subscription


@pytest.fixture
def order(tmp_path: Path) -> FeederOrder:
    """Neither the sidecar nor the servers can be reached."""
    nowhere = tmp_path / "absent"
    return FeederOrder("n1", "herd", f"{nowhere}/admin", f"host={nowhere}")


async def test_the_log_is_kept_from_where_another_member_has_fed_it_to(order: FeederOrder) -> None:
    feeder = Feeder(order)
    one = Subscription("s", "orders", f"{order.conninfo} dbname=x", 1, 1, 1, None, None, ("a.t",))
    try:
        await feeder._adjust([one], [one])
        _, care, _ = feeder._caring["s"]
        assert care.needed is None
        later = [msgspec.structs.replace(one, confirmed=7)]
        await feeder._adjust(later, later)
        assert feeder._caring["s"][1] is care
        assert care.needed == 7
    finally:
        await feeder._adjust([], [])


async def test_who_could_not_tell_that_it_is_stopped_takes_care_again(
    order: FeederOrder, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stops(_care: object) -> None:
        raise StoppedError("the reason")

    monkeypatch.setattr(_Care, "_take_turn", stops)
    feeder = Feeder(order)
    one = Subscription("s", "orders", "", 1, 1, 1, 7, None, ("a.t",))
    try:
        await feeder._adjust([one], [one])
        _, first, task = feeder._caring["s"]
        await task
        first.needed = 9
        await feeder._adjust([one], [one])
        _, care, task = feeder._caring["s"]
        assert care is not first
        assert not task.done()
        assert care.needed == 9
    finally:
        await feeder._adjust([], [])


async def test_a_copy_anew_needs_nothing_of_the_log_that_the_one_before_it_has_lost(
    order: FeederOrder,
) -> None:
    feeder = Feeder(order)
    one = Subscription("s", "orders", f"{order.conninfo} dbname=x", 1, 1, 1, 7, "lost", ("a.t",))
    try:
        await feeder._adjust([one], [one])
        assert feeder._caring["s"][1].needed == 7
        resumed = msgspec.structs.replace(one, stopped=None)
        await feeder._adjust([resumed], [resumed])
        assert feeder._caring["s"][1].needed == 7
        anew = msgspec.structs.replace(resumed, generation=2, confirmed=None)
        await feeder._adjust([anew], [anew])
        assert feeder._caring["s"][1].needed is None
    finally:
        await feeder._adjust([], [])


class Trimmed:
    """A member whose log begins at GID 8."""

    def __init__(self) -> None:
        self.held: list[int] = []
        self.admin = self
        self.log_holds = ()

    async def begins(self) -> int:
        return 8

    async def hold(self, _stream: str, after: int, _lease_s: float) -> None:
        if after < 7:
            raise PositionLostError("it is not there any more")
        self.held.append(after)

    async def status(self) -> "Trimmed":
        return self


async def test_all_that_there_is_is_kept_for_one_that_needs_less_than_the_herd_knows(
    order: FeederOrder,
) -> None:
    care = _Care(order, Subscription("s", "orders", "", 1, 1, 1, 5, None, ("a.t",)), 5)
    member = Trimmed()
    care._log, care._member = cast("ChangeLog", member), cast("Provider", member)
    await care._hold()
    assert member.held == [7]
    care._heard(6)
    with pytest.raises(PositionLostError):
        await care._hold()
