"""Lets a command go first that would lose for ever (``core.replication.intentions``).

A command of DDL asks before it begins. If it excludes every writer, or a command of this member has
lost lately, its keys are ordered as an intention, and it begins once everything ordered before is
visible here. Other transactions that take these keys lose until it has ended.

A session that commits meanwhile waits here for a while: the command may not get there, and then
nobody has lost.

A session dies without a word, so each member looks after the intentions in force: its own are
withdrawn when their transactions have ended, and those of any member when they have taken too long.

Nothing survives a restart but the intentions in the log.
"""

import asyncio
import contextlib
from array import array
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import psycopg
import structlog

from pgherd_sidecar.core.commit.keys import wire_keys
from pgherd_sidecar.core.replication.entries import Intention, encode_entry
from pgherd_sidecar.core.replication.state import ReplicatedState

log = structlog.get_logger()

INTENTION_S = 5.0
"""The longest time for which others' writes may lose to a command that has not ended."""
_ASKING_S = 1.0
"""The longest wait of a command for its intention: it goes on without one then."""
_WAITING_S = 1.0
"""The longest wait of a writeset for others' intentions: it loses against them then."""
_LOST_LATELY_S = 10.0
_LOOK_S = 0.1
_KEYS_MAX = 1024
_EXCLUSIVE = 2


@dataclass(slots=True)
class _Asking:
    """A command that waits for its intention."""

    entry: Intention
    answer: Callable[[], None]
    until_s: float


@dataclass(slots=True)
class _Waiting:
    """A writeset of this member that an intention in force excludes."""

    xid: int
    keys: "array[int]"
    go: Callable[[], None]
    until_s: float


class Precedence:
    """The intentions that one session of the replica orders and looks after.

    Args:
        member: number of this member.
        incarnation: of its server.
        submit: sends entries to the ordered log; they may be lost.
        state: the replicated state.
        visible_before: waits until all that was ordered before a position is visible here.
        connection: an administrative connection.
    """

    def __init__(
        self,
        *,
        member: int,
        incarnation: int,
        submit: Callable[[bytes, int], bool],
        state: ReplicatedState,
        visible_before: Callable[[int], Coroutine[Any, Any, None]],
        connection: psycopg.AsyncConnection[Any],
    ) -> None:
        self._member = member
        self._incarnation = incarnation
        self._submit = submit
        self._state = state
        self._visible_before = visible_before
        self._connection = connection
        self._asking: _Asking | None = None
        self._waiting: list[_Waiting] = []
        self._lost: dict[int, float] = {}  # key -> when a command lost that takes it
        self._since: dict[tuple[int, int], float] = {}  # member and GID -> first seen in force
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def begin_command(self, xid: int, keys: "array[int]", answer: Callable[[], None]) -> None:
        """A command is about to begin; ``answer`` tells it to go on.

        Args:
            xid: of its transaction.
            keys: those that it is known to need, without groups; those of the commands that have
                lost here lately are added.
            answer: called once, within ``_ASKING_S``.
        """
        now = self._loop.time()
        self._lost = {k: s for k, s in self._lost.items() if now - s < _LOST_LATELY_S}
        wanted = array("q", sorted({*keys, *self._lost})[:_KEYS_MAX])
        busy = self._asking is not None or self._state.intention(self._member) is not None
        if busy or not wanted:
            answer()
            return
        entry = Intention(self._member, self._incarnation, xid, wire_keys(wanted).tobytes())
        self._asking = _Asking(entry, answer, now + _ASKING_S)
        self._submit(encode_entry(entry), 1)
        self._changed.set()

    def when_free(self, xid: int, keys: "array[int]", go: Callable[[], None]) -> None:
        """A transaction of this member is to be ordered; ``go`` orders it.

        Args:
            xid: of the transaction.
            keys: groups ``base, n, key1 .. keyn`` of its writeset.
            go: called once: now or, while an intention excludes it, within ``_WAITING_S``. It does
                not wait for a command that runs on this member, because that may wait for its
                locks.
        """
        if self._state.intended(self._member, self._incarnation, xid, keys) is None:
            go()
        else:
            self._waiting.append(_Waiting(xid, keys, go, self._loop.time() + _WAITING_S))
            self._changed.set()

    def lost(self, keys: "array[int]") -> None:
        """A command of this member lost: the next one shall not, if it is the same one again.

        Args:
            keys: groups ``base, n, key1 .. keyn`` of its writeset.
        """
        now, position = self._loop.time(), 0
        while position < len(keys):
            first = position + 2
            position = first + keys[position + 1]
            self._lost |= dict.fromkeys([k for k in keys[first:position] if k & _EXCLUSIVE], now)

    def delivered(self) -> None:
        """An intention was delivered, or a command, which may end one."""
        self._changed.set()

    async def run(self) -> None:
        """Look after the intentions in force.

        Raises:
            psycopg.Error: the server is gone.
        """
        while True:
            in_force = [m for m in self._state.members if self._state.intention(m) is not None]
            if self._asking is None and not in_force and not self._waiting:
                self._since.clear()
                await self._changed.wait()
            self._changed.clear()
            await self._let_go()
            runs = await self._withdraw_own()
            self._withdraw_late()
            self._let_waiting_go(self._member if runs else None)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._changed.wait()

    async def _let_go(self) -> None:
        """Answer the command that waits, when its intention is in force, or it has waited long."""
        asking = self._asking
        if asking is None:
            return
        mine = self._state.intention(self._member)
        if mine is not None and mine.xid == asking.entry.xid:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(asking.until_s):
                    await self._visible_before(mine.gid)
        elif self._loop.time() < asking.until_s:
            return
        self._asking = None
        asking.answer()

    def _let_waiting_go(self, running: int | None) -> None:
        """Order what no intention excludes any more, or has waited long.

        Args:
            running: this member's number, if the transaction of its intention has not ended.
        """
        now, before = self._loop.time(), self._waiting
        self._waiting = []
        for one in before:
            found = self._state.intended(self._member, self._incarnation, one.xid, one.keys)
            if found is None or found[0] == running or now >= one.until_s:
                one.go()
            else:
                self._waiting.append(one)

    async def _withdraw_own(self) -> bool:
        """Withdraw an intention whose transaction has ended without a writeset.

        Returns:
            Whether that transaction has not ended.
        """
        mine = self._state.intention(self._member)
        if mine is None or mine.incarnation != self._incarnation:
            return False
        rows = await self._connection.execute(
            "SELECT pg_xact_status($1::text::xid8) = 'in progress'", (str(mine.xid),)
        )
        row = await rows.fetchone()
        if row is not None and row[0]:
            return True
        self._withdraw(self._member)
        return False

    def _withdraw_late(self) -> None:
        """Withdraw the intentions of all members that have taken too long."""
        now = self._loop.time()
        since: dict[tuple[int, int], float] = {}
        for member in self._state.members:
            intention = self._state.intention(member)
            if intention is not None:
                first = since[member, intention.gid] = self._since.get((member, intention.gid), now)
                if now - first > INTENTION_S:
                    log.info("intention.withdrawn", by=member, gid=intention.gid)
                    self._withdraw(member)
        self._since = since

    def _withdraw(self, member: int) -> None:
        intention = self._state.intention(member)
        if intention is not None:
            entry = Intention(member, intention.incarnation, intention.xid)
            self._submit(encode_entry(entry), 1)
