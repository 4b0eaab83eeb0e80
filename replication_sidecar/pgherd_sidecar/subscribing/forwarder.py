"""The process beside a subscriber that forwards: it feeds others from there. ``pgherd forward``.

It reaches that subscriber's server and those of its followers, and nothing else: neither the herd
nor what is further up or down. Its orders are in the subscriber's database, where whoever feeds
that one puts them, and there it writes how far the followers are. It keeps nothing, so it may die
at any moment, and several may run for one subscriber.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence

import msgspec
import psycopg
import structlog

from pgherd_sidecar.subscribing.care import Care, end_all
from pgherd_sidecar.subscribing.copying import of_member
from pgherd_sidecar.subscribing.feeding import Feeding
from pgherd_sidecar.subscribing.sources import ForwarderSource
from pgherd_sidecar.subscribing.state import subscriber
from pgherd_sidecar.subscribing.state.connections import connect
from pgherd_sidecar.subscribing.state.errors import MemberError, MovedOnError, StoppedError
from pgherd_sidecar.subscribing.state.forwardlog import rows_of
from pgherd_sidecar.subscribing.state.herd import FENCED, Subscription
from pgherd_sidecar.subscribing.state.orders import HeldOrder, Report, held
from pgherd_sidecar.tables.sessions import Session, in_one_line, is_transient, message_of

_log = structlog.get_logger()
_LOOK_S = 1.0
_TURN_S = 2.0
_AGAIN_S = 2.0
_PATIENCE_S = 30.0
_SELDOM_S = 60.0


class _Desk:
    """The database whose subscriptions forward: its orders, and the reports to it.

    Attributes:
        orders: all that it holds.
    """

    def __init__(self) -> None:
        self.orders: list[HeldOrder] = []
        self._session: Session | None = None

    def open(self, session: Session | None) -> None:
        """There is another session, or none."""
        self._session = session

    async def look(self, session: Session) -> list[str]:
        """Read the orders; return the names of the subscriptions that forward."""
        if not (await rows_of(session, "is_made"))[0]["found"]:
            self.orders = []
            return []
        self.orders = await held(session)
        return [row["subscription"] for row in await rows_of(session, "forwarders")]

    def known(self, name: str) -> list[Subscription]:
        """All subscriptions of the set of one."""
        return [one.ordered for one in self.live if one.subscription == name]

    @property
    def live(self) -> list[HeldOrder]:
        """Those that have not ended."""
        return [one for one in self.orders if not one.is_ended]

    async def forget(self, one: HeldOrder) -> None:
        """Forget an order that has ended; if that can't be done now, its end is told again."""
        if self._session is None:
            return
        values = {"follower": one.ordered.name, "revision": one.ordered.revision}
        with contextlib.suppress(psycopg.Error):
            await rows_of(self._session, "forget_ended", name=one.subscription, **values)

    async def tell(self, name: str, report: Report) -> None:
        """Write how a follower is; if that can't be done now it is written later."""
        if self._session is None:
            return
        values = msgspec.to_builtins(report) | {"name": name, "follower": report.name}
        with contextlib.suppress(psycopg.Error):
            await rows_of(self._session, "report", **values)


class _Follower(Care):
    """One subscription that is fed from here."""

    def __init__(self, dsn: str, name: str, subscription: Subscription, desk: _Desk) -> None:
        super().__init__(subscription)
        self._dsn = dsn
        self._name = name
        self._desk = desk
        self._report = Report(subscription.name, subscription.revision, None)
        self._heard_s = 0.0

    async def run(self) -> None:
        """Care for it until it is cancelled, or stopped for good."""
        self._heard_s = asyncio.get_running_loop().time()
        if self._subscription.stopped is None:
            await self.feed()

    async def fail(self, error: BaseException) -> None:
        """It has met what nobody has thought of, which concerns this subscription alone."""
        await self._stop(
            f"`pgherd forward` at {self._name} has failed ({type(error).__name__}), its log tells"
            " more: `pgherd subscribe SET --anew` copies everything again"
        )

    async def _take_turn(self) -> None:
        with of_member("the provider's server"):
            provider = await connect(self._dsn)
        try:
            source = ForwarderSource(provider, self._name)
            cluster = await source.cluster()
            session = await connect(self._subscription.dsn)
            one = subscriber.Subscriber(session, self._subscription, cluster)
            try:
                await self._serve(source, cluster, one)
            finally:
                await one.close()
        finally:
            await provider.close()

    async def _serve(
        self, source: ForwarderSource, cluster: str, one: subscriber.Subscriber
    ) -> None:
        while not await one.lock():
            await self._say("waiting", await one.needed(), reason="another one feeds it")
            await asyncio.sleep(_TURN_S)
        if one.is_herd:  # it might be the one from which all of this comes
            await one.leave()
            raise StoppedError(
                "the subscriber is a herd, which members feed: repeat `pgherd subscribe` with"
                " --provider herd"
            )
        await one.attach(cluster)
        feeding = Feeding(source, one, self._subscription, self)
        work = asyncio.create_task(feeding.run())
        try:
            while not work.done():
                await asyncio.wait({work}, timeout=_LOOK_S)
                self._complaint = "" if feeding.is_following else self._complaint
                if not work.done():
                    tables = len(one.shown.keys() | one.staged.keys())
                    state = "following" if feeding.is_following else "copying"
                    await self._say(state, feeding.needed, tables=tables)
            await work
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    # ---- up and down -----------------------------------------------------------------------

    def orders(self) -> Sequence[Subscription]:
        """See ``Relay``."""
        return self._desk.known(self._name)

    async def hear(self, reports: Sequence[Report], begins: int) -> None:
        """See ``Relay``."""
        self._report = msgspec.structs.replace(self._report, begins=begins)
        for one in reports:
            await self._desk.tell(self._name, one)

    async def _say(
        self, state: str, needed: int | None, *, tables: int | None = None, reason: str = ""
    ) -> None:
        """It was reached."""
        self._heard_s = asyncio.get_running_loop().time()
        tables = self._report.tables if tables is None else tables
        self._report = msgspec.structs.replace(
            self._report, state=state, needed=needed, tables=tables, reason=reason
        )
        await self._desk.tell(self._name, self._report)

    async def _hear(self, error: str) -> None:
        """Something was in the way."""
        age_s = asyncio.get_running_loop().time() - self._heard_s
        report = msgspec.structs.replace(
            self._report, state="unreachable", reason=error, age_s=age_s
        )
        await self._desk.tell(self._name, report)

    async def _stop(self, reason: str) -> None:
        _log.error("subscription.stopped", subscription=self._subscription.name, reason=reason)
        self._report = msgspec.structs.replace(self._report, state="stopped", reason=reason)
        while True:  # until it is told, or the order is another one
            await self._desk.tell(self._name, self._report)
            await asyncio.sleep(_TURN_S)

    async def _lose(self, why: str) -> str | None:
        return (
            f"{why}: give another --provider, `herd` for the members, whose logs may reach back so"
            " far; or copy anew with `pgherd subscribe SET --anew`"
        )


class Forwarder:
    """Feeds all followers of the subscriptions of one database.

    Args:
        dsn: of the database.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._desk = _Desk()
        self._caring: dict[tuple[str, str], tuple[Subscription, _Follower, asyncio.Task[None]]] = {}
        self._ending: dict[tuple[str, str, int], asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Work until it is cancelled.

        Raises:
            psycopg.Error: the database says no for a reason that does not pass.
            StoppedError: it holds what nobody of us has written, or this is no connection string.
        """
        try:
            while True:
                try:
                    await self._work()
                except psycopg.errors.UndefinedTable:  # dropped at this moment
                    _log.warning("forward.waits", error="nothing is forwarded there any more")
                except psycopg.Error as error:
                    if not is_transient(error):
                        raise
                    _log.warning("forward.waits", error=message_of(error))
                await asyncio.sleep(_AGAIN_S)
        finally:
            caring = [task for _, _, task in self._caring.values()]
            await end_all([*caring, *self._ending.values()])

    async def _work(self) -> None:
        session = await connect(self._dsn)
        self._desk.open(session)
        try:
            while True:
                await self._adjust(await self._desk.look(session))
                await asyncio.sleep(_LOOK_S)
        finally:
            self._desk.open(None)
            await session.close()

    async def _adjust(self, names: Sequence[str]) -> None:
        wanted = {
            (one.subscription, one.ordered.name): one.ordered
            for one in self._desk.live
            if one.ordered.provider == one.subscription
        }
        for (name, other), (before, care, task) in list(self._caring.items()):
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                _log.error("subscription.failed", subscription=other, exc_info=error)
                again = asyncio.create_task(care.fail(error))
                self._caring[name, other] = before, care, again
                continue
            if wanted.get((name, other)) is None or not wanted[name, other].is_as(before):
                await end_all([task])
                del self._caring[name, other]
        await self._end({
            (one.subscription, one.ordered.name, one.ordered.revision): one
            for one in self._desk.orders
            if one.is_ended and one.subscription in names
        })  # fmt: skip
        for (name, other), one in wanted.items():
            if (name, other) not in self._caring and name in names:
                care = _Follower(self._dsn, name, one, self._desk)
                self._caring[name, other] = one, care, asyncio.create_task(care.run())

    async def _end(self, ended: Mapping[tuple[str, str, int], HeldOrder]) -> None:
        """Tell followers that they have ended, until each has heard it."""
        for key, task in list(self._ending.items()):
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                _log.error("subscription.failed", subscription=key[1], exc_info=error)
            if task.done() or key not in ended:
                await end_all([task])
                del self._ending[key]
        for key, one in ended.items():
            if key not in self._ending:
                self._ending[key] = asyncio.create_task(self._say_farewell(one))

    async def _say_farewell(self, one: HeldOrder) -> None:
        pause_s, complaint = _AGAIN_S, ""
        while (error := await farewell(self._dsn, one)) is not None:
            if error != complaint:
                complaint = error
                _log.warning("subscription.waits", subscription=one.ordered.name, error=error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _SELDOM_S)
        await self._desk.forget(one)


async def farewell(dsn: str, one: HeldOrder) -> str | None:
    """A subscription has ended: have its subscriber take writes; return why that has to wait.

    It may have been out of reach when the last orders came, so it need not know of this one.
    """
    try:
        async with asyncio.timeout(_PATIENCE_S), contextlib.AsyncExitStack() as stack:
            provider = await connect(dsn)
            stack.push_async_callback(provider.close)
            cluster = await ForwarderSource(provider, one.subscription).cluster()
            session = await connect(one.ordered.dsn)
            there = subscriber.Subscriber(session, one.ordered, cluster)
            stack.push_async_callback(there.close)
            await there.claim()
            if await there.revision() != FENCED:  # a fence ends with its subscription
                await there.require_order()
            await there.leave()
            _log.info("subscription.ended", subscription=one.ordered.name)
    except MovedOnError:  # it has left already, or somebody else feeds it
        return None
    except TimeoutError:
        return "it does not answer, or somebody feeds it still"
    except (psycopg.Error, StoppedError, MemberError, OSError) as error:
        return in_one_line(error)
    return None
