"""Subscriptions: what is checked before somebody follows a set, is fed otherwise, or ends."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

import psycopg

from pgherd_sidecar.client.errors import HerdError
from pgherd_sidecar.client.routes import SubscriptionRequest
from pgherd_sidecar.subscribing.failover import switchover
from pgherd_sidecar.subscribing.ordering.sets import Statements, named
from pgherd_sidecar.subscribing.state import followed, herd, orders, subscriber
from pgherd_sidecar.subscribing.state.connections import connect
from pgherd_sidecar.subscribing.state.errors import MovedOnError, StoppedError
from pgherd_sidecar.subscribing.state.herd import FENCED, HERD, Subscription, TableSet
from pgherd_sidecar.subscribing.state.holdings import SCHEMA
from pgherd_sidecar.tables.sessions import Session, is_transient, message_of

_ENDS: Final = "it is to end, and its subscriber has not let go yet: repeat `pgherd unsubscribe`"
_LEAVES_S: Final = 60.0
"""A feeder of a herd that is silent has the turn for 20 seconds."""
_AGAIN_S: Final = 0.5


class SubscriberError(HerdError):
    """The subscriber was not reached, or its server says no: that may pass."""


def require_provider(wanted: Subscription, known: Sequence[Subscription]) -> None:
    """Check that a subscription can have its provider, and leave its followers.

    Raises:
        HerdError: it can't.
    """
    name, set_name = wanted.name, wanted.set
    followers = [one.name for one in known if one.provider == name]
    if followers and not wanted.forward:
        raise HerdError(
            f"{', '.join(followers)} are fed from {name}: give them another --provider first"
        )
    if wanted.provider is None:
        return
    provider = next((one for one in known if one.name == wanted.provider), None)
    if provider is None or provider.set != set_name:
        raise HerdError(
            f"there is no subscription {wanted.provider} to set {set_name}: `pgherd subscriptions`"
            f" shows those that there are, and `--provider {HERD}` means the members"
        )
    if not provider.forward:
        raise HerdError(
            f"{provider.name} does not forward: `pgherd subscribe {set_name} --name"
            f" {provider.name} --forward`, and then repeat this"
        )
    providers = {one.name: one.provider for one in known} | {name: wanted.provider}
    if name in [wanted.provider, *orders.above(wanted.provider, providers)]:
        raise HerdError(
            f"{provider.name} is fed from {name}, or is it: give {name} a provider that is not"
        )


def handed_over(name: str, heir: str | None, known: Sequence[Subscription]) -> Statements:
    """The statements that give the followers of a subscription another provider.

    Raises:
        HerdError: there are some, and nobody to take them.
    """
    followers = [one for one in known if one.provider == name]
    if not followers:
        return []
    names = ", ".join(one.name for one in followers)
    if heir is None:
        raise HerdError(
            f"{names} are fed from {name}: give them another provider with `--followers-to NAME`,"
            f" or `--followers-to {HERD}` for the members"
        )
    provider = None if heir == HERD else heir
    if provider == name:
        raise HerdError(f"{name} is to end: name another one")
    for one in followers:
        require_provider(one.fed_by(provider), known)
    return [("hand_over", {"name": name, "provider": provider})]


async def order(session: Session, wanted: SubscriptionRequest) -> Subscription | None:
    """Have a subscription be as it is wanted.

    Returns:
        What it was before; None if there was none.

    Raises:
        HerdError, StoppedError: it can't be so; nothing was changed.
        SubscriberError: the subscriber can't be reached; nothing was changed.
        psycopg.Error: the herd says no.
    """
    if wanted.name == HERD:
        raise HerdError(f"{HERD} means the members: give another name")
    await herd.ask(session, "strong")
    known = await named(session, wanted.set)
    if known is None:
        raise HerdError(f"there is no set {wanted.set}: make it first")
    all_known = await herd.subscriptions(session)
    before = next((one for one in all_known if one.name == wanted.name), None)
    if before is not None and before.set != wanted.set:
        raise HerdError(f"subscription {wanted.name} is to set {before.set}: give another name")
    one = Subscription(
        wanted.name, wanted.set, wanted.dsn, 1, wanted.keep_bytes, wanted.keep_s, None, None,
        known.tables, provider=wanted.provider, forward=wanted.forward,
    )  # fmt: skip
    anew = before is not None and before.generation == wanted.anew_after
    if before is not None and not (anew or wanted.resume) and _is_so(before, one):
        return before
    require_provider(one, all_known)
    if one.provider is None:  # else it may be out of reach
        try:
            there, standing = await subscriber.look(one.dsn, one)
        except psycopg.Error as error:
            raise _unreached(error) from error
        await there.session.close()
        if standing is not None and standing["cluster"] != await herd.cluster(session):
            raise HerdError(subscriber.of_another_herd(one.name))
        if standing is not None and standing["revision"] >= FENCED:
            raise HerdError(subscriber.why_fenced(one.name, standing["revision"]))
        if there.is_herd:
            await _require_herd(session, one, known)
    values = {
        "name": one.name, "set": one.set, "dsn": one.dsn, "anew": anew,
        "keep_bytes": one.keep_bytes, "keep_s": one.keep_s, "provider": one.provider,
        "forward": one.forward,
    }  # fmt: skip
    begin = ("resume" if before else "subscribe", values)
    await herd.execute(session, [("all_able", values), begin, ("order_cascade", values)])
    return before


async def _require_herd(session: Session, wanted: Subscription, known: TableSet) -> None:
    """Check that the subscriber may be a herd.

    Raises:
        HerdError: it can't.
    """
    if wanted.forward:
        raise HerdError("the subscriber is a herd, which can't forward: leave --forward out")
    if known.sequences:
        raise HerdError("the set has sequences, which a herd can't follow: `pgherd set remove`")
    found = await followed.followed(session, wanted.tables)
    if found is not None:
        raise HerdError(followed.why_no_herd(found))


async def end(
    session: Session,
    name: str,
    *,
    herd_only: bool = False,
    heir: str | None = None,
    patience_s: float = _LEAVES_S,
) -> str | None:
    """End a subscription: its subscriber keeps tables and rows, and takes writes again.

    Args:
        herd_only: leave the subscriber as it is.
        heir: who feeds its followers then, see ``handed_over``.
        patience_s: so long the subscriber may take to let go of its tables.

    Returns:
        The provider that has yet to tell the subscriber, which was not reached; None: nobody has.

    Raises:
        HerdError: there is none of this name, or it feeds others.
        StoppedError: its set is on its way to the subscriber, or somebody orders it otherwise.
        SubscriberError: the subscriber can't be reached, or says no. The herd has the subscription
            still, so that this may be repeated.
        psycopg.Error: the herd says no.
    """
    await herd.ask(session, "strong")
    all_known = await herd.subscriptions(session)
    known = next((one for one in all_known if one.name == name), None)
    if known is None:
        raise HerdError(f"there is no subscription {name}: `pgherd subscriptions`")
    cluster = await herd.cluster(session)
    rows: Statements = [
        *handed_over(name, heir, all_known),
        ("all_able", {"name": name}), ("note_end", {"name": name, "silent": herd_only}),
        ("unsubscribe", {"name": name}),
    ]  # fmt: skip
    await herd.keep_ends(session)
    if herd_only:
        await herd.execute(session, rows)
        return None

    async def check() -> None:
        await switchover.require_no_move(session, known)
        for now in await herd.subscriptions(session):
            if now.name == name and now.revision != known.revision:
                raise StoppedError(f"subscription {name} has another order by now: repeat this")

    await check()  # also if the subscriber is not reached: then --herd-only is no way out
    try:
        there = subscriber.Subscriber(await connect(known.dsn), known, cluster)
    except psycopg.OperationalError as error:
        if known.provider is None:
            raise _unreached(error) from error
        await herd.execute(session, rows, check)
        return known.provider
    try:
        await _require_own(there, name)
        if known.provider is None:
            # Its feeders leave, and it can be ended again until the subscriber has let go.
            handing, last = rows[:-2], rows[-2:]
            values = {"name": name, "generation": known.generation, "dsn": known.dsn}
            stop = ("stop", values | {"reason": _ENDS})
            await herd.execute(session, [*handing, stop], check)
            await _leave(there, "the subscription is stopped, and has not ended", patience_s)
            await herd.execute(session, last, check)
        else:
            await herd.execute(session, rows, check)
            so_far = f"it has ended in the herd, and {known.provider} is told of it"
            await _leave(there, so_far, patience_s)
    finally:
        await there.close()
    return None


async def _require_own(there: subscriber.Subscriber, name: str) -> None:
    """Check that a subscriber is ready, and that its subscription is not another herd's.

    Raises:
        SubscriberError: it is not.
    """
    try:
        await there.require_ready()
        is_own = await there.is_own()
    except psycopg.Error as error:
        raise SubscriberError(
            f"the subscriber says: {message_of(error)}; nothing was ended: repeat it later, or"
            " end it in the herd only with --herd-only"
        ) from error
    if not is_own:
        raise SubscriberError(
            f"that database follows a subscription {name} of another herd, which may be the one"
            " that this one was a part of; nothing was ended, and --herd-only ends it here. If"
            f" that herd is gone for good, DROP SCHEMA {SCHEMA} CASCADE there has all that it"
            " follows take writes"
        )


async def _leave(there: subscriber.Subscriber, so_far: str, patience_s: float) -> None:
    """Have a subscriber let go of its tables, again after what may pass.

    Raises:
        SubscriberError: it does not.
    """
    said = "somebody feeds it still"
    try:
        async with asyncio.timeout(patience_s):
            while True:
                try:
                    await there.leave()
                except MovedOnError as error:
                    said = str(error)
                    break
                except psycopg.Error as error:
                    said = message_of(error)
                    if not is_transient(error) or there.session.closed:
                        break
                    await asyncio.sleep(_AGAIN_S)
                else:
                    return
    except TimeoutError:
        pass
    raise SubscriberError(
        f"{so_far}, for its subscriber says: {said}; repeat `pgherd unsubscribe`. If that never"
        f" helps, DROP SCHEMA {SCHEMA} CASCADE there has all that it follows take writes, and"
        " --herd-only ends the subscription"
    )


def with_providers(name: str, known: Iterable[Subscription]) -> list[Subscription]:
    """A subscription with its provider, that one's provider, and so on."""
    every = list(known)
    names = {name, *orders.above(name, {one.name: one.provider for one in every})}
    return [one for one in every if one.name in names]


def _unreached(error: psycopg.Error) -> SubscriberError:
    return SubscriberError(f"the subscriber can't be reached: {message_of(error)}")


def _is_so(before: Subscription, wanted: Subscription) -> bool:
    """Is what somebody orders the same as before?"""
    return all(
        getattr(before, field) == getattr(wanted, field)
        for field in ("dsn", "keep_bytes", "keep_s", "provider", "forward")
    )
