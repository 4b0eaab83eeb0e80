"""A rebuild that nobody hears of any more counts as failed.

A member that is being rebuilt says so again and again in the log. If it has not for
``timing.rebuild_silent_ms``, because its process has died or can't reach the others, a member whose
database is the only whole one says in its place that it has failed. Then the herd is held
(``databases``), until an administrator has chosen or that rebuild has ended after all.

Members that join are not waited for: what they have never held they can't lose. Nothing survives a
restart: the wait begins anew.
"""

import asyncio
from collections.abc import Callable

import structlog

from pgherd_sidecar.core.replication.databases import Databases
from pgherd_sidecar.core.replication.entries import (
    STATE_STOPPED,
    Condition,
    DatabaseState,
    encode_entry,
)

log = structlog.get_logger()

_WORDS = 5
"""So often a member that is being rebuilt says so in the time after which it counts as failed."""
_STAND_S = 1.0
_PENDING = (Condition.DIVERGED, Condition.REBUILDING)


class Vigil:
    """Watches over the rebuilds of the herd, from one member.

    Args:
        number: of this member.
        silent_s: a rebuild of which nothing is heard for so long has failed.
        submit: sends an entry to the ordered log; it may be lost.
        clock: monotonic, in seconds.
    """

    def __init__(
        self,
        number: int,
        silent_s: float,
        submit: Callable[[bytes, int], bool],
        clock: Callable[[], float],
    ) -> None:
        self._number = number
        self._silent_s = silent_s
        self._submit = submit
        self._clock = clock
        self._spoke_s: float | None = None
        self._heard: dict[tuple[int, int], float] = {}  # member and position -> seen first

    async def affirm_whole(self, databases: Databases) -> None:
        """Say for ever, whenever the log says otherwise, that the own database is whole.

        It has caught up, so it hears whether the rebuilds of others go on, too.
        """
        while True:
            own = databases.of(self._number)
            if own is not None and own.condition is not Condition.WHOLE:
                whole = DatabaseState(self._number, Condition.WHOLE, own.since)
                self._submit(encode_entry(whole), 1)
            else:
                self.listen(databases)
            await asyncio.sleep(_STAND_S)

    def announce_rebuild(self, databases: Databases) -> None:
        """Say that the own database is being rebuilt, if it is and nobody was told lately."""
        own, now = databases.of(self._number), self._clock()
        if own is None or own.condition is not Condition.REBUILDING:
            return
        if self._spoke_s is None or now - self._spoke_s >= self._silent_s / _WORDS:
            self._spoke_s = now
            going_on = DatabaseState(self._number, Condition.REBUILDING, own.since)
            self._submit(encode_entry(going_on), 1)

    def listen(self, databases: Databases) -> None:
        """See whether the rebuilds of others are still heard of, if the own database is alone."""
        now, heard = self._clock(), self._heard
        self._heard = {}
        if databases.whole != (self._number,) or databases.hold is not None:
            return
        for member, one in databases.items():
            if one.condition not in _PENDING or not one.cause:
                continue
            since_s = self._heard[member, one.since] = heard.get((member, one.since), now)
            if now - since_s >= self._silent_s:
                log.warning("rebuild.silent", member=member, gid=one.gid)
                flags = STATE_STOPPED if one.stopped else 0
                failed = DatabaseState(member, Condition.FAILED, one.since, flags=flags)
                self._submit(encode_entry(failed), 1)
