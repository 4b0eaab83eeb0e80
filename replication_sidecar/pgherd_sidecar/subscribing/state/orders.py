"""Orders of the herd on their way down a cascade, and reports of followers on their way up.

A subscriber that forwards may be all that a follower can reach. So it holds the orders of all other
subscriptions of its set, as each node of Slony-I holds the configuration ("Slony-I: A replication
system for PostgreSQL", 1), and what is known of those that are fed from it, over any number of hops
(``sl_confirm``, 1.8).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from pgherd_sidecar.subscribing.state.errors import StoppedError
from pgherd_sidecar.subscribing.state.forwardlog import ForwardLog, forwarding_query, rows_of
from pgherd_sidecar.subscribing.state.herd import Subscription
from pgherd_sidecar.tables.sessions import Session


class Report(msgspec.Struct, frozen=True):
    """How a follower is.

    Attributes:
        name: of its subscription.
        revision: of the order by which it is fed.
        needed: it needs the log after this GID, and shows it if it is following.
        state: waiting, copying, following, unreachable or stopped; or ended, which only whoever
            hands the orders down says.
        reason: for that.
        tables: how many it shows or has copied.
        begins: its own log has all changes after this GID; None if it does not forward.
        age_s: how many seconds ago it was reached.
    """

    name: str
    revision: int | None
    needed: int | None
    state: str = "waiting"
    reason: str = ""
    tables: int = 0
    begins: int | None = None
    age_s: float = 0.0


class Relay(Protocol):
    """Where orders come from, and where reports go."""

    def orders(self) -> Sequence[Subscription]:
        """All subscriptions of the set, as the provider knows them."""

    async def hear(self, reports: Sequence[Report], begins: int) -> None:
        """Take reports of all that are fed from a subscriber; its own log begins after a GID."""


def below(name: str, known: Iterable[Subscription]) -> set[str]:
    """Those that are fed from a subscription, over any number of hops."""
    providers = {one.name: one.provider for one in known}
    return {other for other in providers if name in above(other, providers)}


def above(name: str, providers: Mapping[str, str | None]) -> list[str]:
    """The provider of a subscription, that one's provider, and so on."""
    found: list[str] = []
    at = providers.get(name)
    while at is not None and at not in found:
        found.append(at)
        at = providers.get(at)
    return found


def passed_on(name: str, known: Sequence[Subscription]) -> dict[str, Subscription]:
    """The orders for a subscriber, by name: all of its set, and how to reach those below it.

    It is all of the set, always: one that is missing has ended, and hears so. Nothing means that
    the subscription itself is not known.
    """
    mine = next((one for one in known if one.name == name), None)
    if mine is None:
        return {}
    fed = below(name, known)
    return {
        one.name: one if one.name in fed else msgspec.structs.replace(one, dsn="")
        for one in known
        if one.set == mine.set
    }


class HeldOrder(msgspec.Struct, frozen=True):
    """An order that a subscriber holds, and what it knows of the one that it is about."""

    subscription: str
    ordered: Subscription
    report: Report

    @property
    def is_ended(self) -> bool:
        """The herd has it no more, and its subscriber has yet to hear so from here."""
        return self.report.state == "ended"


async def held(session: Session, name: str | None = None) -> list[HeldOrder]:
    """The orders that a database holds, of one of its subscriptions or of all.

    Raises:
        StoppedError: they are damaged.
    """
    try:
        return [
            HeldOrder(
                row.pop("subscription"),
                msgspec.convert(row.pop("ordered"), Subscription),
                msgspec.convert(row, Report),
            )
            for row in await rows_of(session, "orders", name=name)
        ]
    except msgspec.ValidationError as error:
        raise StoppedError(
            "somebody has changed pgherd_subscriber.orders at the subscriber: delete its rows"
        ) from error


class Orders:
    """Orders at a subscriber that forwards, for the one that feeds it.

    Args:
        session: of the feeder.
        subscription: of the subscriber.
        log: that it keeps.
    """

    def __init__(self, session: Session, subscription: Subscription, log: ForwardLog) -> None:
        self._session = session
        self._mine = subscription
        self._log = log
        self._put: dict[str, Subscription] = {}

    async def exchange(self, relay: Relay) -> list[HeldOrder]:
        """Hand orders down and reports up; return what is held then and has not ended.

        Who is fed from the subscriber is what those above it say: it might report on others.
        """
        above_it = [one for one in relay.orders() if one.set == self._mine.set]
        wanted = passed_on(self._mine.name, above_it)
        if wanted and wanted != self._put:
            await self._write(wanted)
            self._put = wanted
        every = await held(self._session, self._mine.name)
        found = [one for one in every if not one.is_ended]
        fed = below(self._mine.name, above_it)
        begins = await self._log.begins()
        if begins is not None:
            reports = [one.report for one in found if one.report.name in fed]
            await relay.hear(reports, begins)
        return found

    async def _write(self, wanted: Mapping[str, Subscription]) -> None:
        async with self._session.transaction():
            for one in await held(self._session, self._mine.name):
                now, revision = wanted.get(one.ordered.name), one.ordered.revision
                if one.is_ended or (now is not None and revision > now.ended):
                    continue
                is_fed_here = one.ordered.provider == self._mine.name
                hears = is_fed_here and (now is None or revision > now.silent)
                await self._execute(
                    "end_order" if hears else "forget_order", follower=one.ordered.name
                )
            for name, ordered in wanted.items():
                text = msgspec.json.encode(ordered).decode()
                await self._execute("order", follower=name, ordered=text)

    async def trim(self, gid: int, found: Sequence[HeldOrder]) -> None:
        """Remove what no other subscription of the set needs, or what is beyond its limits.

        Args:
            gid: that is shown.
            found: what ``exchange`` has returned.
        """
        begins = await self._log.begins()
        if begins is None:
            return
        floors: dict[int, int | None] = {}
        for limit in {one.ordered.keep_bytes for one in found}:
            floors[limit] = await self._log.floor(limit)
        to = kept_after(self._mine, gid, begins, found, floors)
        if to > begins:
            await self._log.trim(to)

    async def _execute(self, name: str, /, **values: Any) -> None:
        values["name"] = self._mine.name
        await self._session.execute(forwarding_query(name), values)


def kept_after(
    mine: Subscription,
    gid: int,
    begins: int,
    found: Collection[HeldOrder],
    floors: Mapping[int, int | None],
) -> int:
    """After which GID a subscriber has to keep its log, for all others of the set.

    Those that are fed from elsewhere count, too: they may be given this provider.

    Args:
        mine: its subscription.
        gid: that it shows.
        begins: what there is of the log.
        found: all of the set.
        floors: for each limit in bytes, the GID after which so much is there; None: all is.
    """
    known = [one.ordered for one in found]
    higher = {mine.name, *above(mine.name, {one.name: one.provider for one in known})}
    fed = below(mine.name, known)
    needed = [gid]
    for one in found:
        order, report = one.ordered, one.report
        if order.name in higher or report.age_s > order.keep_s:
            continue
        after = report.needed if order.name in fed else order.confirmed
        if after is None and order.provider == mine.name and order.stopped is None:
            after = begins  # its copy is about to begin
        if after is not None:
            needed.append(max(after, floors.get(order.keep_bytes) or 0))
    return max(min(needed), begins)
