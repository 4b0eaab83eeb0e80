"""Orders markers, and has the snapshot taken when the log delivers one.

An order does not survive it.
"""

import asyncio
import uuid
from collections.abc import Callable

from pgherd_sidecar.agent.admin.port import Unavailable
from pgherd_sidecar.agent.apply.applier import Applier
from pgherd_sidecar.agent.snapshots.markers import Markers
from pgherd_sidecar.core.replication.entries import Marker, encode_entry

_RETRY_S = 1.0


class MarkerOrders:
    """The markers that this session has ordered and not seen yet.

    Args:
        name: of this member.
        submit: sends entries to the ordered log; they may be lost.
    """

    def __init__(
        self, name: str, submit: Callable[[bytes, int], bool], applier: Applier, markers: Markers
    ) -> None:
        self._name = name
        self._submit = submit
        self._applier = applier
        self._markers = markers
        self._orders: dict[str, asyncio.Future[int]] = {}
        self._loop = asyncio.get_running_loop()

    async def order_marker(self, names: tuple[str, ...]) -> tuple[str, int]:
        """See AdminBackend; ``Unavailable`` if the session ends meanwhile."""
        marker = uuid.uuid4()
        ordered = self._orders[marker.hex] = self._loop.create_future()
        try:
            while not ordered.done():
                self._submit(encode_entry(Marker(marker.bytes, names)), 1)
                await asyncio.wait([ordered], timeout=_RETRY_S)
            return marker.hex, ordered.result()
        finally:
            del self._orders[marker.hex]

    def take_marker(self, gid: int, entry: Marker) -> None:
        """A marker was delivered; one that was submitted twice counts where it was first."""
        marker = uuid.UUID(bytes=entry.id).hex
        if not self._markers.delivered_at(marker, gid):
            return
        ordered = self._orders.get(marker)
        if ordered is not None and not ordered.done():
            ordered.set_result(gid)
        if entry.names and self._name not in entry.names:
            return

        async def run() -> None:
            await self._markers.take_snapshot(marker, gid)

        self._markers.expect(marker)
        self._applier.queue(run)

    def fail(self) -> None:
        """The session ends."""
        for ordered in self._orders.values():
            if not ordered.done():
                ordered.set_exception(Unavailable("the server went away meanwhile"))
