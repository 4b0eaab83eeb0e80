"""The sequences of a set: the log has none of them, but the rows that have their numbers."""

from pgherd_sidecar.client.stream.changes import LoggedChange
from pgherd_sidecar.subscribing.sources import Source
from pgherd_sidecar.subscribing.state.errors import StoppedError
from pgherd_sidecar.subscribing.state.herd import HerdSequence, Subscription
from pgherd_sidecar.subscribing.state.subscriber import Subscriber


class FollowedSequences:
    """Those of one subscription.

    Args:
        source: of the rows.
        subscriber: attached.
        subscription: what was ordered.
    """

    def __init__(self, source: Source, subscriber: Subscriber, subscription: Subscription) -> None:
        self._source = source
        self._subscriber = subscriber
        self._subscription = subscription
        self._by_table: dict[str, list[HerdSequence]] = {}

    @property
    def known(self) -> list[HerdSequence]:
        """All of them."""
        return [one for found in self._by_table.values() for one in found]

    async def learn(self) -> None:
        """Learn which columns have their numbers.

        Raises:
            StoppedError: one can't be followed.
        """
        if self._subscription.sequences and self._subscriber.is_herd:
            raise StoppedError(
                "the set has sequences, which a herd can't follow: `pgherd set remove`, and repeat"
                " `pgherd subscribe`"
            )
        known = await self._source.sequences() if self._subscription.sequences else {}
        for name in self._subscription.sequences:
            one = known.get(name)
            if one is None or one.tab not in self._subscription.tables:
                raise StoppedError(
                    f"sequence {name} of the set belongs to no column of its tables any more:"
                    " `pgherd set remove`, and repeat `pgherd subscribe`"
                )
            self._by_table.setdefault(one.tab, []).append(one)

    async def align(self) -> None:
        """Bring all of them to the rows that are shown, in the transaction that shows them."""
        for one in self.known:
            await self._subscriber.numbering.align(one, self._subscriber.shown[one.tab].table)

    def count(self, change: LoggedChange, numbers: dict[str, int]) -> None:
        """Note which numbers of sequences a row has.

        Args:
            change: of the row.
            numbers: the furthest of each sequence so far.
        """
        for one in self._by_table.get(change.table or "", ()):
            value = (change.values or {}).get(one.column)
            if isinstance(value, str):
                further = one.further(int(value), numbers.get(one.name))
                assert further is not None
                numbers[one.name] = further

    async def set(self, numbers: dict[str, int]) -> None:
        """Have them go on behind the numbers that ``count`` has noted."""
        for one in self.known:
            await self._subscriber.numbering.set(one, numbers.get(one.name))
