"""The process that feeds subscriptions from one member: ``python -m ... ORDER``.

The sidecar starts it when there are subscriptions, and it ends when there are none left. It is a
process of its own because taking the log apart would hold the sidecar's event loop up, for which
commits wait. All members run one; an advisory lock at the subscriber says whose turn it is, so
another one goes on within seconds after a death.

Every feeder has its own member keep the log that a subscriber needs, within the limits of the
subscription. What the members agree on (that a subscription is stopped, how far it is) is written
into the herd, seldom.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import msgspec
import structlog

from pgherd_sidecar.client.admin import AdminClient, AdminError
from pgherd_sidecar.client.stream.changelog import ChangeLog
from pgherd_sidecar.client.stream.changes import ChangesError, PositionLostError
from pgherd_sidecar.env.finishing import to_its_end
from pgherd_sidecar.subscribing.care import Care, collect_seldom, end_all, log_to_standard_error
from pgherd_sidecar.subscribing.copying import Provider, of_member
from pgherd_sidecar.subscribing.feeding import Feeding
from pgherd_sidecar.subscribing.sources import MemberSource
from pgherd_sidecar.subscribing.state import followed, herd, subscriber
from pgherd_sidecar.subscribing.state.connections import connect
from pgherd_sidecar.subscribing.state.errors import MemberError, MovedOnError, StoppedError
from pgherd_sidecar.subscribing.state.herd import Subscription
from pgherd_sidecar.subscribing.state.orders import Report
from pgherd_sidecar.tables.sessions import Session, heed_cancellation

_log = structlog.get_logger()
_LOOK_S = 1.0
_TURN_S = 2.0
_KEEP_S = 5.0
_LEASE_S = 3600.0
_CONFIRM_S = 30.0
_CONFIRM_ENTRIES = 100


class FeederOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a feeder is told; the sidecar writes it.

    Attributes:
        member: whose feeder it is.
        cluster: id of the herd.
        admin: socket of the sidecar's admin API.
        conninfo: of the member's server, as superuser.
    """

    member: str
    cluster: str
    admin: str
    conninfo: str


def stream_of(name: str) -> str:
    """The name by which the log is held for a subscription; of at most 63 characters."""
    return f"subscription {name}"


class _Care(Care):
    """What a feeder does about one subscription: takes its turn, and keeps the log.

    Attributes:
        needed: the log is kept after this position; None if not at all.
        known: all subscriptions, as this member knows them, and what else is handed down.
    """

    _yields_s: ClassVar[float] = 6.0  # others look every two seconds, so one of them takes the turn

    def __init__(self, order: FeederOrder, subscription: Subscription, needed: int | None) -> None:
        super().__init__(subscription)
        self._order = order
        self.known: Sequence[Subscription] = ()
        admin = AdminClient(Path(order.admin))
        self._member = Provider(order.member, admin, order.conninfo)
        self._log = ChangeLog([admin])
        self.needed = needed
        self._reached_s = time.monotonic()
        self._is_heard = False
        self._unable = ""  # why this member can't feed it
        self._silent = False  # because it does not reach the subscriber
        self._told: str | None = None  # what the herd knows of that; None: perhaps a former feeder
        # By name of the subscription: how far the herd knows it to be, and since when.
        self._confirmed = {subscription.name: (subscription.confirmed or 0, 0.0)}

    async def run(self) -> None:
        """Care for it until it is cancelled, or stopped for good."""
        if self._subscription.stopped is not None or self._subscription.provider is not None:
            await self._keep()
        tasks = [asyncio.create_task(self._keep()), asyncio.create_task(self.feed())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await end_all(tasks)

    def follow(self, confirmed: int | None) -> None:
        """The herd has heard from others how far the subscriber is: keep the log after that GID.

        So it may be given another provider, or be fed by this member, and miss nothing.
        """
        if confirmed is not None and confirmed != self.needed:
            self.needed = confirmed
            self._reached_s = time.monotonic()
            self._unable = ""

    async def give_back(self) -> None:
        """Have the log kept no longer: the subscription has ended."""
        with contextlib.suppress(AdminError):
            await self._member.admin.release_hold(f"stream:{stream_of(self._subscription.name)}")

    async def fail(self, error: BaseException) -> None:
        """It has met what nobody has thought of, which concerns this subscription alone."""
        await self._stop(
            f"the feeder of {self._order.member} has failed ({type(error).__name__}), its log tells"
            " more: `pgherd subscribe SET --to DSN --anew` copies everything again"
        )

    async def _take_turn(self) -> None:
        """Feed, if no other member does and this one may."""
        session = await connect(self._subscription.dsn)
        one = subscriber.Subscriber(session, self._subscription, self._order.cluster)
        try:
            while self._unable or not await self._may_feed() or not await one.lock():
                self._heard(await one.needed())
                await asyncio.sleep(_TURN_S)
            if not await self._is_wanted():
                raise MovedOnError("the subscription has changed")
            if one.holder is not None:
                await self._require_other(one, one.holder)
            await one.attach(self._order.cluster)
            async with contextlib.AsyncExitStack() as stack:
                here = None
                if self._subscription.selections:
                    here = await stack.enter_async_context(self._member.session())
                source = MemberSource(self._member, self._log, self._subscription, here)
                feeding = Feeding(source, one, self._subscription, self)
                self._heard(feeding.needed)
                await self._hold()
                await self._feed(feeding)
        finally:
            await one.close()

    async def _require_other(self, one: subscriber.Subscriber, holder: str) -> None:
        """Check that a herd which subscribes is another one, which this one does not follow.

        Raises:
            StoppedError: it would follow itself.
        """
        async with self._member.session() as session:
            with of_member():
                await herd.ask(session, "strong")
                is_own = await followed.is_turn_of(session, self._subscription.name, holder)
                found = await followed.followed(session, self._subscription.tables)
        if is_own:
            reason = "the subscriber is this very herd: give --to of another one"
            await self._stop(reason)  # before others miss what was made there
            await to_its_end(one.leave())
            raise StoppedError(reason)
        if found is not None:
            raise StoppedError(followed.why_no_herd(found))

    async def _feed(self, feeding: Feeding) -> None:
        """Feed, and look now and then whether this member is still one to feed from."""
        work = asyncio.create_task(feeding.run())
        try:
            while not work.done():
                await asyncio.wait({work}, timeout=_LOOK_S)
                self._heard(feeding.needed)
                self._complaint = "" if feeding.is_following else self._complaint
                if not work.done() and not await self._may_feed():
                    raise MovedOnError(f"{self._order.member} takes no part in the herd")
                await self._confirm(self._subscription, feeding.needed)
            await work
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    async def _may_feed(self) -> bool:
        """A member without the majority gets nothing new."""
        return (await self._member.admin.status()).state == "primary"

    async def _is_wanted(self) -> bool:
        """Is it as it was, by what anybody has acknowledged?"""
        async with self._member.session() as session:
            with of_member():
                await herd.ask(session, "strong")
                found = await herd.subscriptions(session)
                self.known = await herd.handed_down(session, found)
        return any(one.is_as(self._subscription) for one in found)

    def _heard(self, needed: int | None) -> None:
        """The subscriber has said what it needs."""
        self._reached_s = time.monotonic()
        self._is_heard = True
        moved = needed is not None and needed != self.needed
        if moved:
            self.needed = needed
        if moved or self._silent:
            self._unable, self._silent = "", False

    # ---- those that are fed from the subscriber ------------------------------------------------

    def orders(self) -> Sequence[Subscription]:
        """See ``Relay``."""
        return self.known

    async def hear(self, reports: Sequence[Report], begins: int) -> None:
        """See ``Relay``: the herd learns how far they are, and that they are stopped."""
        known = {one.name: one for one in self.known}
        for report in reports:
            one = known.get(report.name)
            if one is None or report.revision != one.revision:
                continue
            await self._confirm(one, report.needed)
            if report.state == "stopped" and one.stopped is None:
                _log.error("subscription.stopped", subscription=one.name, reason=report.reason)
                await self._tell(one, "stop", reason=report.reason, dsn=one.dsn)

    # ---- what the herd keeps for it ----------------------------------------------------------

    async def _keep(self) -> None:
        """Have this member keep the log, within limits."""
        while True:
            try:
                await self._hold()
            except PositionLostError as error:
                await self._lose(str(error))
            except (AdminError, ChangesError) as error:
                _log.debug("subscription.not_kept", error=str(error))
            feeds = self._subscription.stopped is None and self._subscription.provider is None
            if feeds and self._told != self._unable:
                with contextlib.suppress(MemberError, StoppedError, AdminError):
                    await self._tell_ability()
            heed_cancellation()
            await asyncio.sleep(_KEEP_S)

    async def _hold(self) -> None:
        if self.needed is None or self._unable:
            return
        silent_s = time.monotonic() - self._reached_s
        if silent_s > self._subscription.keep_s:
            self._silent = True
            await self._step_back(f"it was not reached for {silent_s:.0f} s")
            return
        name = stream_of(self._subscription.name)
        try:
            await self._log.hold(name, self.needed, _LEASE_S)
        except PositionLostError:
            if self._is_heard or self._subscription.stopped is not None:
                raise
            # What the herd knows may be older than what the subscriber needs.
            await self._log.hold(name, await self._log.begins() - 1, _LEASE_S)
        for one in (await self._member.admin.status()).log_holds:
            if one.hold == f"stream:{name}" and one.bytes > self._subscription.keep_bytes:
                await self._step_back(f"it is {one.bytes} bytes of the log behind")

    async def _step_back(self, why: str) -> None:
        """This member keeps the log no longer; another one may."""
        self._unable = f"{why}, which is more than the limit"
        await self.give_back()

    async def _hear(self, error: str) -> None:
        """Its log tells."""

    async def _lose(self, why: str) -> str | None:
        """This member has not got the log; another one may."""
        if self._is_heard:
            self._unable = why
        return None

    async def _tell_ability(self) -> None:
        """Tell all members whether this one can feed; stop the subscription if none can.

        Two that say so at once may not see each other: so one that can't looks again and again.
        """
        one, me = self._subscription, self._order.member
        unable = self._unable
        self._told = None  # one that can't feed looks at the others each time
        async with self._member.session() as session:
            with of_member():
                said = await herd.unable(session, one.name, one.generation)
                if unable and me not in said:
                    values = {"generation": one.generation, "why": unable}
                    await herd.execute(
                        session, [("become_unable", {"name": one.name, "member": me} | values)]
                    )
                    _log.warning("subscription.left_to_others", subscription=one.name, why=unable)
                elif not unable and me in said:
                    await herd.execute(session, [("become_able", {"name": one.name, "member": me})])
                if not unable:
                    self._told = unable
                    return
                said = await herd.unable(session, one.name, one.generation)
        view = (await self._member.admin.status()).view
        if view is None:
            return
        able = [who.name for who in view.members if not who.witness and not who.reader]
        if said.keys() >= set(able):
            reasons = "; ".join(f"{name}: {said[name]}" for name in able)
            await self._stop(
                f"no member has the log that it needs ({reasons}): `pgherd subscribe SET --to DSN"
                " --anew` copies everything again"
            )

    async def _confirm(self, one: Subscription, gid: int | None) -> None:
        """Tell all members now and then how far a subscriber is."""
        now = time.monotonic()
        confirmed, at_s = self._confirmed.get(one.name, (one.confirmed or 0, 0.0))
        if gid is None:
            return
        is_first = one.confirmed is None and not confirmed
        is_soon = gid - confirmed < _CONFIRM_ENTRIES or now - at_s < _CONFIRM_S
        if is_soon and not is_first:
            return
        self._confirmed[one.name] = gid, now
        await self._tell(one, "confirm", gid=gid)

    async def _stop(self, reason: str) -> None:
        _log.error("subscription.stopped", subscription=self._subscription.name, reason=reason)
        await self._tell(self._subscription, "stop", reason=reason, dsn=self._subscription.dsn)

    async def _tell(self, one: Subscription, name: str, /, **values: object) -> None:
        """Write into the herd; without a majority that is not possible, and not needed."""
        with contextlib.suppress(MemberError, StoppedError):
            async with self._member.session() as session:
                with of_member():
                    values = {"name": one.name, "generation": one.generation} | values
                    await herd.execute(session, [(name, values)])


class Feeder:
    """Cares for all subscriptions."""

    def __init__(self, order: FeederOrder) -> None:
        self._order = order
        self._caring: dict[str, tuple[Subscription, _Care, asyncio.Task[None]]] = {}

    async def run(self) -> None:
        """Work until there are no subscriptions any more.

        Raises:
            MemberError: the member's server is gone.
        """
        admin = AdminClient(Path(self._order.admin))
        member = Provider(self._order.member, admin, self._order.conninfo)
        try:
            async with member.session() as session:
                while wanted := await _subscriptions(session):
                    with of_member():
                        known = await herd.handed_down(session, wanted)
                    await self._adjust(wanted, known)
                    await asyncio.sleep(_LOOK_S)
                await self._adjust([], [])
        finally:
            await end_all([task for _, _, task in self._caring.values()])

    async def _adjust(self, wanted: list[Subscription], known: list[Subscription]) -> None:
        by_name = {one.name: one for one in wanted}
        needed: dict[str, int | None] = {one.name: one.confirmed for one in wanted}
        for name, (before, care, task) in list(self._caring.items()):
            now = by_name.get(name)
            if task.done() and (error := task.exception()) is not None:
                _log.error("subscription.failed", subscription=name, exc_info=error)
                await care.fail(error)
            # One that has ended, and is not stopped, could not tell the herd that it has to be.
            if now is None or not now.is_as(before) or task.done():
                await end_all([task])
                del self._caring[name]
                if now is None:
                    await care.give_back()
                elif now.generation == before.generation:  # else it copies everything anew
                    needed[name] = care.needed
        for one in wanted:
            if one.name in self._caring:
                care = self._caring[one.name][1]
                care.known = known
                # This member may not have reached the subscriber before that ended.
                if one.provider is not None or care.needed is None:
                    care.follow(one.confirmed)
            else:
                care = _Care(self._order, one, needed[one.name])
                self._caring[one.name] = one, care, asyncio.create_task(care.run())


async def _subscriptions(session: Session) -> list[Subscription]:
    with of_member():
        return await herd.subscriptions(session)


def main() -> None:
    """Do what the first argument orders, in JSON."""
    log_to_standard_error()
    collect_seldom()
    order = msgspec.json.decode(sys.argv[1].encode(), type=FeederOrder)
    try:
        asyncio.run(Feeder(order).run())
    except MemberError as error:
        _log.warning("feeder.left", error=str(error))
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
