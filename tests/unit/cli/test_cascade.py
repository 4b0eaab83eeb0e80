"""Providers that subscriptions are given, and which of them are refused."""

import pytest
from pgherd_sidecar.cli.following.cascade import forwards, limits, provider_of
from pgherd_sidecar.client.errors import HerdError
from pgherd_sidecar.subscribing.ordering.subscriptions import handed_over, require_provider
from pgherd_sidecar.subscribing.state.herd import Subscription


def one(
    name: str, provider: str | None = None, *, forward: bool = True, of: str = "s"
) -> Subscription:
    return Subscription(name, of, "", 1, 1, 1.0, None, None, (), provider=provider, forward=forward)


KNOWN = [one("a"), one("b", "a"), one("c", "b", forward=False), one("x", of="other")]


def test_what_is_not_said_stays() -> None:
    assert provider_of(None, KNOWN[1]) == "a" and provider_of(None, None) is None
    assert provider_of("herd", KNOWN[1]) is None and provider_of("c", KNOWN[1]) == "c"
    assert forwards(None, KNOWN[0]) and not forwards(None, None)
    assert not forwards(False, KNOWN[0])
    assert limits(None, None, None) == (8 << 30, 72 * 3600)
    assert limits(None, None, KNOWN[0]) == (1, 1.0)
    assert limits(1 << 20, None, KNOWN[0]) == (1 << 20, 1.0)
    assert limits(None, 2, KNOWN[0]) == (1, 7200)


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        (one("d", "nobody"), "there is no subscription nobody to set s"),
        (one("d", "x"), "there is no subscription x to set s"),
        (one("d", "c"), "c does not forward: `pgherd subscribe s --name c --forward`"),
        (one("a", "b"), "b is fed from a"),
        (one("a", "a"), "a is fed from a"),
        (one("a", forward=False), "b are fed from a"),
    ],
)
def test_a_provider_that_can_be_none_is_refused(wanted: Subscription, error: str) -> None:
    with pytest.raises(HerdError, match=error.replace("(", r"\(")):
        require_provider(wanted, KNOWN)


def test_a_provider_may_be_any_that_forwards_and_is_not_below() -> None:
    for wanted in (one("c", "a"), one("d", "b"), one("b"), one("b", "a")):
        require_provider(wanted, KNOWN)


def test_one_that_feeds_others_ends_only_if_somebody_takes_them() -> None:
    assert handed_over("c", None, KNOWN) == []
    with pytest.raises(HerdError, match=r"c are fed from b: .*--followers-to herd"):
        handed_over("b", None, KNOWN)
    with pytest.raises(HerdError, match="b is to end"):
        handed_over("b", "b", KNOWN)
    for heir, provider in (("a", "a"), ("herd", None)):
        assert handed_over("b", heir, KNOWN) == [("hand_over", {"name": "b", "provider": provider})]
