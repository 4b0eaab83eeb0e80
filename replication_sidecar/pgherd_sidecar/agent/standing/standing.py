"""The fate of this member's database, as the log says it, while no session runs.

While a session runs, its replicated state knows what the log says of databases. Between sessions,
above all while this member's database can't go on, an ``Onlooker`` does. A database that diverges
says so first. Then it is rebuilt by itself, or waits until an administrator has chosen, if the herd
is held: a rebuild, or to skip the entry.

Nothing survives a restart but what is in the log and in the checkpoint.
"""

import asyncio
import contextlib
import time
from collections.abc import Coroutine
from enum import Enum
from typing import Any

from pgherd_sidecar.agent.admin.port import Unavailable
from pgherd_sidecar.agent.base.config import NodeConfig
from pgherd_sidecar.agent.base.errors import DivergedError, SkippedError
from pgherd_sidecar.agent.checkpoint import certstate
from pgherd_sidecar.agent.log.host import LogHost
from pgherd_sidecar.agent.standing.causes import cause_of
from pgherd_sidecar.agent.standing.onlooker import Onlooker
from pgherd_sidecar.agent.standing.views import no_majority
from pgherd_sidecar.agent.standing.vigil import Vigil
from pgherd_sidecar.core.replication.checkpoint import CheckpointError
from pgherd_sidecar.core.replication.databases import Database, Databases
from pgherd_sidecar.core.replication.entries import (
    STATE_ASKED,
    STATE_PAUSE,
    STATE_STOPPED,
    Condition,
    DatabaseState,
    Skip,
    encode_entry,
)
from pgherd_sidecar.core.replication.state import ReplicatedState

_SAY_AGAIN_S = 1.0
_LOOK_S = 0.1
_OTHERS_S = 10.0
"""So long a database that diverges again by the same cause waits whether others do, too."""
_TELL_S = 10.0
_SKIP_S = 8.0
_SPEAK_S = 5.0


class Way(Enum):
    """How it goes on with a database that could not apply an entry."""

    #: from where it is: the entry was skipped
    ON = "on"
    #: by a rebuild
    REBUILD = "rebuild"
    #: not at all, until an administrator says so
    STOP = "stop"


class Standing:
    """This member's part in what the log says of databases, while no session runs.

    Args:
        config: this member's.
        host: its log.
    """

    def __init__(self, config: NodeConfig, host: LogHost) -> None:
        self._config = config
        self._host = host
        self._onlooker: Onlooker | None = None

    @property
    def databases(self) -> Databases | None:
        """The databases as they are known; None if nothing is."""
        return None if self._onlooker is None else self._onlooker.databases

    @property
    def own(self) -> Database | None:
        """This member's database; None if it is none of the herd's, or that is not known."""
        known = self.databases
        return None if known is None else known.of(self._config.number)

    @property
    def held(self) -> bool:
        """The herd takes no writes."""
        return self.databases is not None and self.databases.hold is not None

    def skipped(self, gid: int) -> bool:
        """An entry counts as having no effect."""
        return self.databases is not None and gid in self.databases.skipped

    def go_on_from(self, state: ReplicatedState) -> None:
        """A session has ended, or is about to begin, in this state."""
        self._onlooker = Onlooker(self._host, state.databases, state.position)

    async def follow_log(self) -> bool:
        """Take what is committed; False if what the log says now can't be known."""
        if self._onlooker is None:
            self._begin()
        return self._onlooker is not None and await self._onlooker.follow_log()

    def _begin(self) -> None:
        """Begin as a session would."""
        checkpoint = certstate.read(self._config.data_dir)
        if checkpoint is not None and checkpoint.position >= self._host.extent.base:
            try:
                self.go_on_from(ReplicatedState.restore(checkpoint.state))
            except CheckpointError:
                pass
            else:
                return
        if self._host.extent.base == 0 and self._host.membership.view is not None:
            self.go_on_from(ReplicatedState(self._host.extent.first_numbers))

    # ---- what this member says -----------------------------------------------------------------

    async def stopped(self, error: DivergedError, *, willing: bool) -> Way:
        """Say that this database can't go on, and return how it does.

        Args:
            error: what it has stopped with.
            willing: a rebuild would be begun.
        """
        gid, willing = error.gid, willing or self._config.made_anew
        rebuilt = Way.REBUILD if willing else Way.STOP
        if not await self.follow_log() or self.own is None:
            return rebuilt
        # Then the copy is what an administrator has chosen.
        asked = isinstance(error, SkippedError) or self.own.applied_skipped
        if not (asked or self.skipped(gid) or (self.own.stopped and self.own.gid == gid)):
            await self._say(Condition.DIVERGED, gid=gid, cause=cause_of(error))
        if self.own is not None and self.own.hopeless and not asked:
            await self._wait_for_others()
        while await self.follow_log() and self.own is not None:
            if self.skipped(gid) and not asked:
                return Way.ON
            if asked or not self.held:
                if not willing:
                    return Way.STOP
                own = await self._say(Condition.REBUILDING, asked=asked)
                if own is not None and own.condition is Condition.REBUILDING:
                    return Way.REBUILD
            await asyncio.sleep(_LOOK_S)
        return rebuilt

    async def _wait_for_others(self) -> None:
        """See whether others stop at the same entry: then an administrator is to choose."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_OTHERS_S):
                while await self.follow_log() and not self.held:  # noqa: ASYNC110 - the log tells nobody
                    await asyncio.sleep(_LOOK_S)

    async def rebuilding(self, *, asked: bool) -> Way:
        """Say that this database is about to be replaced, if that can be said now.

        One that has stopped is kept as long as no other is whole: an administrator may yet choose
        to skip the entry, and then it goes on.

        Args:
            asked: an administrator has asked for it.
        """
        number, waits_at = self._config.number, 0
        while await self.follow_log() and (known := self.databases) is not None:
            own = known.of(number)
            if waits_at in known.skipped:
                return Way.ON
            if own is None or not own.stopped or known.whole_beside(number):
                break
            waits_at = own.gid
            await asyncio.sleep(_LOOK_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TELL_S):
                own = self.own if await self.follow_log() else None
                if own is not None and (asked or own.condition is not Condition.REBUILDING):
                    await self._say(Condition.REBUILDING, asked=asked)
        return Way.REBUILD

    async def rebuild(self, run: Coroutine[Any, Any, bool]) -> bool:
        """Say again and again that this database is being rebuilt, while it is.

        Args:
            run: the rebuild.

        Returns:
            What it returns.
        """
        speaking = asyncio.ensure_future(self.announce_rebuild(asyncio.Event()))
        try:
            return await run
        finally:
            speaking.cancel()
            await asyncio.wait({speaking})

    async def announce_rebuild(self, until: asyncio.Event) -> None:
        """Say again and again that this database is being rebuilt, if it is.

        A session that catches up does not know yet what the log says now.

        Args:
            until: then it has been.
        """
        silent_s = self._config.timing.rebuild_silent_ms / 1000
        clock = asyncio.get_running_loop().time
        vigil = Vigil(self._config.number, silent_s, self._host.submit, clock)
        while not until.is_set():
            if await self.follow_log() and (known := self.databases) is not None:
                vigil.announce_rebuild(known)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(_SPEAK_S, silent_s / 10)):
                    await until.wait()

    async def failed(self) -> None:
        """Say that this database stays as it is, and return when it need not.

        That is when an administrator has had the entry skipped that it could not apply. A node that
        somebody makes anew has not failed.
        """
        told = False
        while True:
            if await self.follow_log() and (own := self.own) is not None:
                if not (told or self._config.made_anew) and own.condition is not Condition.FAILED:
                    cause = "" if own.cause else "no copy"
                    own = await self._say(Condition.FAILED, cause=cause, stopped=own.stopped)
                told = told or (own is not None and own.condition is Condition.FAILED)
                if told and own is not None and own.condition is Condition.WHOLE:
                    return
            await asyncio.sleep(_LOOK_S)

    async def _say(
        self,
        condition: Condition,
        *,
        gid: int = 0,
        cause: str = "",
        asked: bool = False,
        stopped: bool = False,
    ) -> Database | None:
        """Order that this member's database is so, until the log says something new of it.

        Returns:
            What it says then: perhaps something else, or nothing new if it would not count.
        """
        before = self.own
        assert before is not None
        flags = (STATE_ASKED if asked else 0) | (STATE_STOPPED if stopped else 0)
        flags |= STATE_PAUSE if self._config.on_divergence == "pause" else 0
        at_s, within_s = int(time.time()), self._config.timing.same_cause_ms // 1000
        said = DatabaseState(
            self._config.number, condition, before.since, gid, at_s, within_s, flags, cause
        )
        entry, loop = encode_entry(said), asyncio.get_running_loop()
        again_s = loop.time()
        while self.own is not None and self.own.since == before.since:
            if condition is Condition.REBUILDING and self.held and not asked:
                break  # it would not count
            if loop.time() >= again_s and self._host.submit(entry, 1):
                again_s = loop.time() + _SAY_AGAIN_S
            await asyncio.sleep(_LOOK_S)
            if not await self.follow_log():
                break
        return self.own

    # ---- what an administrator says --------------------------------------------------------------

    async def order_skip(self, gid: int, databases: Databases | None) -> None:
        """Order that an entry counts as having no effect; return when the log says so.

        Args:
            gid: of the entry.
            databases: of the session; None if none runs.

        Raises:
            Unavailable: it can't be ordered now.
        """
        if not self._host.primary:
            raise Unavailable(f"{self._config.name}: {no_majority(self._host)}")
        entry, loop = encode_entry(Skip(gid)), asyncio.get_running_loop()
        began_s = said_s = loop.time() - _SAY_AGAIN_S
        while loop.time() - began_s < _SKIP_S:
            if loop.time() - said_s >= _SAY_AGAIN_S and self._host.submit(entry, 1):
                said_s = loop.time()
            await asyncio.sleep(_LOOK_S)
            if databases is None:
                await self.follow_log()
            known = self.databases if databases is None else databases
            if known is not None and gid in known.skipped:
                return
        raise Unavailable(f"GID {gid} is not known to be skipped yet: ask again")
