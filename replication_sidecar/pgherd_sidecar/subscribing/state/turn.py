"""Whose turn it is to feed a subscriber that is a herd.

At one server an advisory lock says so. At a herd it holds at one member only, and feeders may have
reached several. So the turn is a number in a row of the herd, and whoever takes it makes it
greater. Each transaction that feeds writes that row as it is. Two of which one was fed by an
earlier turn conflict then, and certification has the later one fail: of two writers of a row the
first in the total order wins ("Postgres-R(SI)", section 4). So nothing of an earlier turn commits
after a later one was taken. That needs no clock.

A clock only says when the turn may be taken from somebody: when he has been silent, or at once
where his advisory lock was at this very member and is free.
"""

import asyncio
import contextlib
import secrets
import time
from typing import Any

import psycopg

from pgherd_sidecar.subscribing.state.connections import ask_subscriber, connect, subscriber_query
from pgherd_sidecar.subscribing.state.errors import MovedOnError
from pgherd_sidecar.tables.sessions import Session, heed_cancellation

_ME = secrets.token_hex(8)
"""This process."""
_BEAT_S = 4.0
_SILENT_S = 20.0
_LAST_WORD_S = 5.0


class Turn:
    """The turn of one subscription at a herd, for one who feeds or wants to.

    Args:
        session: at a member of the herd; it feeds.
        name: of the subscription.
        dsn: how the herd is reached.

    Attributes:
        holder: what the row says of us.
    """

    def __init__(self, session: Session, name: str, dsn: str) -> None:
        self._session = session
        self._name = name
        self._dsn = dsn
        self._turn: int | None = None
        self._seen: tuple[Any, float] = None, 0.0
        self._beating: asyncio.Task[None] | None = None
        self.holder = f"{_ME} {secrets.token_hex(4)}"

    async def make(self) -> None:
        """Make the tables, within the caller's transaction."""
        for part in ("make_turn", "make_beat"):
            await self._execute(part)

    async def take(self) -> bool:
        """Take it, for one who has the advisory lock at this member; False: somebody else feeds.

        Raises:
            psycopg.Error: somebody was quicker, or the herd says no.
        """
        (here,) = await self._rows("place")
        found = await self._rows("turn")
        if found and not self._may_take(found[0], here["place"]):
            return False
        turn = found[0]["turn"] if found else 0
        values = {"holder": self.holder, "place": here["place"], "turn": turn}
        taken = await self._rows("take_turn" if found else "first_turn", **values)
        if not taken:
            return False
        self._turn = taken[0]["turn"]
        if self._beating is None:  # it tells the turn that we have
            self._beating = asyncio.create_task(self._beat())
        return True

    def _may_take(self, found: dict[str, Any], place: str) -> bool:
        """Has he left, or is he silent?"""
        if not found["holder"] or found["place"] == place or found["holder"].startswith(_ME):
            return True
        now = time.monotonic()
        if self._seen[0] != found:
            self._seen = found, now
        return now - self._seen[1] >= _SILENT_S

    async def hold(self) -> None:
        """Have the caller's transaction commit only if the turn is still ours.

        Raises:
            MovedOnError: somebody has taken it.
        """
        if await self._execute("hold_turn", turn=self._turn) != 1:
            raise MovedOnError("somebody else feeds it")

    async def release(self) -> None:
        """Give it up, if that is still possible."""
        if self._beating is None:
            return
        self._beating.cancel()
        await asyncio.gather(self._beating, return_exceptions=True)
        self._beating = None
        with contextlib.suppress(psycopg.Error, TimeoutError):
            async with asyncio.timeout(_LAST_WORD_S):
                if not self._session.closed:
                    await self._session.execute("ROLLBACK")
                    await self._execute("leave_turn", turn=self._turn)

    async def _beat(self) -> None:
        """Show others that we are alive, however long a transaction takes."""
        while True:
            with contextlib.suppress(psycopg.Error):
                session = await connect(self._dsn, beside=self._session)
                try:
                    while True:
                        await asyncio.sleep(_BEAT_S)
                        values = {"name": self._name, "turn": self._turn}
                        await session.execute(subscriber_query("beat"), values)
                finally:
                    await session.close()
            heed_cancellation()
            await asyncio.sleep(_BEAT_S)

    async def _execute(self, name: str, /, **values: Any) -> int:
        values["name"] = self._name
        return (await self._session.execute(subscriber_query(name), values)).rowcount

    async def _rows(self, name: str, /, **values: Any) -> list[dict[str, Any]]:
        return await ask_subscriber(self._session, name, **values | {"name": self._name})
