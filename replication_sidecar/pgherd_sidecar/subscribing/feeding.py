"""Feeds one subscription from one source, while no other feeder does.

What is shown at the subscriber moves from one GID to a later one, in the transaction that writes
the rows. Consecutive transactions of the herd are one there (a SYNC of Slony-I, "Slony-I: A
replication system for PostgreSQL", 1.7): what the log holds by now, up to a few megabytes. So the
further behind a subscriber is, the more it gets at once. While its server writes some of them, the
next ones are read and decoded; what is shown moves in order all the same, as all of it is written
by one session. Whatever goes wrong, the feeding begins anew with what the subscriber says.
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import aclosing
from datetime import UTC, datetime

import msgspec
import structlog
from psycopg.pq import TransactionStatus

from pgherd_sidecar.subscribing.applying import Applying, ChangeBatch
from pgherd_sidecar.subscribing.background import Background
from pgherd_sidecar.subscribing.copying import CopyMissedError
from pgherd_sidecar.subscribing.sequences import FollowedSequences
from pgherd_sidecar.subscribing.sources import Places, Source
from pgherd_sidecar.subscribing.state.errors import StoppedError
from pgherd_sidecar.subscribing.state.forwardlog import ForwardLog
from pgherd_sidecar.subscribing.state.herd import Subscription
from pgherd_sidecar.subscribing.state.holdings import ShownTable
from pgherd_sidecar.subscribing.state.orders import Orders, Relay
from pgherd_sidecar.subscribing.state.steps import AlteredError
from pgherd_sidecar.subscribing.state.subscriber import Subscriber
from pgherd_sidecar.tables.model import SourceTable

_log = structlog.get_logger()
_PACE_S = 0.05
_SLOWEST_PACE_S = 0.25
_ADVANCE_S = 1.0
"""So often the GID moves though none of the set's rows have changed."""
_COPIES = 20
_SAMPLES = 10_000
_TEND_S = 1.0
_TRIM_S = 5.0


class Feeding:
    """One subscription.

    Args:
        source: of the rows.
        subscriber: attached; nobody else feeds it.
        subscription: what was ordered.
        relay: what is above the subscriber.

    Attributes:
        is_following: the first copy is whole.
    """

    def __init__(
        self, source: Source, subscriber: Subscriber, subscription: Subscription, relay: Relay
    ) -> None:
        self._source = source
        self._subscriber = subscriber
        self._subscription = subscription
        self._relay = relay
        self._kept = ForwardLog(subscriber.session, subscription.name)
        self._orders = Orders(subscriber.session, subscription, self._kept)
        self._sequences = FollowedSequences(source, subscriber, subscription)
        kept = self._kept if subscription.forward else None
        self._applying = Applying(source, subscriber, self._sequences, kept)
        self._background = Background()
        self._tended_s = self._trimmed_s = 0.0
        self._seen: deque[tuple[float, int]] = deque(maxlen=_SAMPLES)
        self._advanced_s = 0.0
        self._position = 0
        self._copied_from: int | None = None
        self.is_following = False

    @property
    def needed(self) -> int | None:
        """The log is needed after this position; None if nothing was copied yet."""
        known = [one.gid for one in self._subscriber.staged.values()]
        if self._copied_from is not None:
            known.append(self._copied_from)
        if self._subscriber.shown and self._subscriber.gid is not None:
            known.append(self._subscriber.gid)
        return min(known, default=None)

    async def run(self) -> None:
        """Feed it until something fails, or it is cancelled.

        Raises:
            StoppedError: it can't go on as things are.
            MovedOnError, MemberError, AdminError, ChangesError, psycopg.Error: begin again.
        """
        wanted = set(self._subscription.tables)
        subscriber = self._subscriber
        await subscriber.placing.require_free(wanted)
        await subscriber.placing.require_plain(wanted)
        for name in set(subscriber.staged) - wanted:
            await subscriber.unstage(name)
        if subscriber.is_herd:  # a place may have been made for a table that the set has no more
            kept = wanted | set(subscriber.shown) | set(subscriber.old)
            await subscriber.persist(lambda: subscriber.placing.drop_guards(but=kept))
        await self._prepare_log()
        await self._sequences.learn()
        if wanted - set(subscriber.shown) or not subscriber.shown:
            await self._copy(wanted)
        else:
            async with subscriber.transaction():
                await subscriber.placing.leave_tables(
                    (set(subscriber.shown) | set(subscriber.old)) - wanted
                )
                await self._sequences.align()
            await subscriber.load()
        if any(one.drops for one in subscriber.shown.values()):
            await subscriber.persist(subscriber.placing.drop_surplus)
            await subscriber.load()
        _log.info("subscription.followed", subscription=self._subscription.name, gid=subscriber.gid)
        self._position = subscriber.gid or 0
        self.is_following = True
        if self._subscription.forward:
            await self._kept.note_sequences(self._sequences.known)
        pace_s = _PACE_S
        try:
            while True:
                await self._tend()
                rows, behind = await self._follow()
                if not behind:
                    await self._background.settle()
                    await asyncio.sleep(pace_s)
                pace_s = _PACE_S if rows else min(pace_s * 1.5, _SLOWEST_PACE_S)
        finally:
            await self._background.end()

    # ---- for those that are fed from this subscriber -----------------------------------------

    async def _prepare_log(self) -> None:
        """Have a log for others if one was ordered, and none if not."""
        subscriber = self._subscriber
        async with subscriber.transaction():
            if not self._subscription.forward:
                await self._kept.end()
                return
            await self._kept.make()
            has_rows = subscriber.shown and subscriber.gid is not None
            if has_rows and await self._kept.begins() is None:
                await self._kept.begin(subscriber.gid or 0)
        # Before anything is copied: followers whose order is older would miss a part of the log.
        await self._orders.exchange(self._relay)

    async def _tend(self) -> None:
        """Now and then: is this still the one to feed it, and what of those below?"""
        now = time.monotonic()
        if now - self._tended_s < _TEND_S:
            return
        self._tended_s = now
        await self._background.settle()
        await self._subscriber.require_order()
        if not self._subscription.forward:
            return
        found = await self._orders.exchange(self._relay)
        if now - self._trimmed_s >= _TRIM_S:
            self._trimmed_s = now
            await self._orders.trim(self._subscriber.gid or 0, found)

    # ---- copies ----------------------------------------------------------------------------

    async def _copy(self, wanted: set[str]) -> None:
        """Copy what is missing, and show all of the set at one GID."""
        subscriber = self._subscriber
        await self._let_stand(wanted)
        for _ in range(_COPIES):
            missing = wanted - set(subscriber.shown) - set(subscriber.staged)
            try:
                if missing:
                    self._copied_from = await self._source.visible()
                    await self._source.copy(subscriber, sorted(missing))
                    await subscriber.load()
                await self._show(wanted)
            except CopyMissedError:
                await subscriber.load()
            except AlteredError as error:
                await self._roll_back()
                for name in list(subscriber.staged):  # copied before it: that is not the set's GID
                    await subscriber.unstage(name)
                if subscriber.shown and error.gid > (subscriber.gid or 0):
                    await self._follow_over(error)
            else:
                self._copied_from = None
                return
        raise StoppedError(
            "DDL has come between copies all the time: repeat `pgherd subscribe` when it has ended"
        )

    async def _let_stand(self, wanted: set[str]) -> None:
        """Have tables that are followed no more be copied anew if a later order wants them again.

        The GID may move without their changes before the copies are shown.
        """
        subscriber = self._subscriber
        names = (set(subscriber.shown) - wanted) | set(subscriber.old)
        if names:
            await subscriber.persist(lambda: subscriber.placing.let_stand(names))
            await subscriber.load()

    async def _follow_over(self, error: AlteredError) -> None:
        """Bring what is shown over DDL that may have concerned copies only.

        Raises:
            StoppedError: what is shown can't follow it.
        """
        places = self._following()
        first = await self._follow_before(error, places)
        try:
            await self._follow_until(first.gid, places)
        except AlteredError as found:
            await self._roll_back()
            if not await self._extend(found):
                raise _stopped(found) from found

    async def _roll_back(self) -> None:
        session = self._subscriber.session
        if session.info.transaction_status != TransactionStatus.IDLE:
            await session.execute("ROLLBACK")

    async def _show(self, wanted: set[str]) -> None:
        """Bring copies to one GID and into their places, in one transaction.

        Tables that are shown already go to that GID with them.
        """
        subscriber = self._subscriber
        if subscriber.is_herd:
            await self._level()
        places = self._following() | subscriber.staged
        target = max((one.gid for one in places.values()), default=0)
        if not places:
            target = await self._source.visible()  # the set is empty
        plain = await self._plain(subscriber.staged)
        goes_on = bool(subscriber.shown)
        in_herd, copied = subscriber.is_herd, list(subscriber.staged)
        async with subscriber.transaction():
            numbers = await self._bring(places, target, keeps=goes_on)
            if self._subscription.forward and not goes_on:
                await self._kept.begin(target)
            for name, one in subscriber.staged.items():
                await subscriber.placing.show(one, plain[name], target, rows_only=in_herd)
            await subscriber.placing.leave_tables(
                (set(subscriber.shown) | set(subscriber.old)) - wanted
            )
            await subscriber.advance(target, datetime.now(UTC))
            await subscriber.load()
            await self._sequences.align()
            await self._sequences.set(numbers)  # also of rows that have gone meanwhile
        if in_herd:
            await subscriber.persist(lambda: subscriber.placing.drop_copies(copied))

    async def _bring(
        self, places: Mapping[str, ShownTable], gid: int, *, keeps: bool
    ) -> dict[str, int]:
        """Write what tables lack until a GID, within the caller's transaction.

        Returns:
            The furthest number of each sequence that the rows have.
        """
        batch = self._applying.batch(places, keeps=keeps)
        batch.open = True
        begin = min((one.gid for one in places.values()), default=gid)
        async with aclosing(self._source.between(begin, gid, places)) as portions:
            async for changes in portions:
                await self._applying.take(changes, batch)
        await self._applying.write(batch)
        return batch.numbers

    async def _level(self) -> None:
        """Prepare at a herd that copies are shown by one transaction of rows, or one of DDL.

        Its transactions with DDL are limited in size. So all are brought to one GID before, and
        either every table gets a new place or every place takes rows.
        """
        subscriber, placing = self._subscriber, self._subscriber.placing
        following = self._following()
        target = max((one.gid for one in (following | subscriber.staged).values()), default=0)
        behind = {name: one for name, one in subscriber.staged.items() if one.gid < target}
        if behind:
            async with subscriber.transaction():
                await self._bring(behind, target, keeps=False)
                await subscriber.level_staged(target)
        if following:
            await self._follow_until(target, following)
        await subscriber.load()
        found = await self._source.describe(subscriber.staged)
        waiting = [
            found[name]
            for name, one in subscriber.staged.items()
            if name in found and not one.is_in_place
        ]
        kept = {one.table.name for one in waiting if await placing.has_place(one.table)}
        if kept:
            places = [
                one for one in waiting
                if one.table.name in kept or one.table.name not in subscriber.old
            ]  # fmt: skip
            await subscriber.persist(lambda: placing.make_room(places))

    async def _plain(self, names: Iterable[str]) -> dict[str, SourceTable]:
        """Where tables belong."""
        names = list(names)
        found = await self._source.describe(names)
        for name in names:
            if name not in found or found[name].chosen != self._subscriber.wanted(name):
                await self._subscriber.unstage(name)
                raise CopyMissedError(f"table {name} was dropped or is another part meanwhile")
        return {name: one.table for name, one in found.items()}

    # ---- following -------------------------------------------------------------------------

    def _following(self) -> dict[str, ShownTable]:
        """The tables that are shown, all of them at the GID that is shown."""
        gid = self._subscriber.gid or 0
        return {
            name: msgspec.structs.replace(one, gid=gid)
            for name, one in self._subscriber.shown.items()
        }

    async def _follow(self) -> tuple[int, bool]:
        """Apply what the log holds by now; return how many changes, and whether there is more.

        The last of them may still be under way in the background.
        """
        places = self._following()
        batch = self._applying.batch(places, keeps=True, background=self._background)
        through, visible = self._position, self._position
        try:
            async with aclosing(self._source.portions(self._position, places)) as portions:
                async for portion in portions:
                    await self._applying.take(portion.changes, batch)
                    through, visible = portion.through, portion.visible
        except AlteredError as error:
            await self._background.settle()
            first = await self._follow_before(error, places)
            if not await self._extend(first):
                raise _stopped(first) from error
            return 1, True
        self._position = through
        if self._source.seen_s is not None:
            self._seen.append((self._source.seen_s, visible))
        await self._commit(batch)
        return batch.rows, visible > through

    async def _follow_before(self, error: AlteredError, places: Places) -> AlteredError:
        """Apply what comes before the first transaction that can't be applied; return its error.

        Row filters look at many changes in advance: so a later transaction may be met first.
        """
        while True:
            try:
                await self._follow_until(error.gid - 1, places)
            except AlteredError as earlier:
                error = earlier
            else:
                return error

    async def _follow_until(self, gid: int, places: Places) -> None:
        """Apply what comes up to a GID, in place of what was begun."""
        await self._roll_back()
        begin = self._subscriber.gid or 0
        if gid <= begin:
            return
        batch = self._applying.batch(places, keeps=True)
        async with aclosing(self._source.between(begin, gid, places)) as portions:
            async for changes in portions:
                await self._applying.take(changes, batch)
        self._position, self._advanced_s = gid, 0.0
        await self._commit(batch)

    async def _extend(self, error: AlteredError) -> bool:
        """Give a table the column that it has got; False: that is not all, or not known."""
        name, change = error.extended, error.change
        if name is None or change is None:
            return False
        known = self._subscriber.shown[name].table
        found = await self._source.extension(error.gid, name, known)
        if found is None:
            return False
        async with self._subscriber.transaction():
            await self._subscriber.placing.extend(found)
            if self._subscription.forward:
                await self._kept.write([change], found)
            await self._subscriber.advance(error.gid, None)
        await self._subscriber.load()
        self._position = error.gid
        return True

    async def _commit(self, batch: ChangeBatch) -> None:
        """Commit the rows with the GID; without rows, now and then."""
        if self._position == self._subscriber.gid:
            return
        idle_s = time.monotonic() - self._advanced_s
        if not batch.rows and batch.pending.is_empty and idle_s < _ADVANCE_S:
            return
        await self._applying.commit(batch, self._position, self._as_of())
        self._advanced_s = time.monotonic()

    def _as_of(self) -> datetime | None:
        """When the herd had nothing newer than what was read; None if that is not known."""
        latest = None
        while self._seen and self._seen[0][1] <= self._position:
            latest = self._seen.popleft()[0]
        return None if latest is None else datetime.fromtimestamp(latest, UTC)


def _stopped(error: AlteredError) -> StoppedError:
    return StoppedError(
        f"GID {error.gid} alters a table of the set ({error}): the subscriber shows what was"
        " before. `pgherd subscribe SET --to DSN --anew` copies the tables as they are now"
    )
