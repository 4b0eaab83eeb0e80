"""What a plain server follows, as it says itself: it may become a herd when it follows nothing.

A subscription is taken over by the failover of one subscriber: ``takeover`` has its steps.
"""

import asyncio
from collections.abc import Sequence

import msgspec
import psycopg

from pgherd_sidecar.subscribing.failover import takeover
from pgherd_sidecar.subscribing.failover.takeover import Survivor
from pgherd_sidecar.subscribing.state.connections import ask_subscriber, connect
from pgherd_sidecar.subscribing.state.errors import StoppedError
from pgherd_sidecar.subscribing.state.herd import FENCED, TAKEN_OVER
from pgherd_sidecar.tables.sessions import message_of

_LOOKS, _LOOK_S = 12, 0.5
"""Feeders of a herd that lives look every two seconds whether nobody feeds."""


class Followed(msgspec.Struct, frozen=True):
    """A subscription that a server has not taken over.

    Attributes:
        name: of the subscription.
        gid: that it shows; None before the first copy is whole.
        revision: of the order by which it is fed.
        has_tables: some tables are copied, or shown.
        fed: somebody feeds it at this moment.
    """

    name: str
    gid: int | None
    revision: int
    has_tables: bool
    fed: bool


async def followed(dsn: str) -> list[Followed]:
    """What a server follows. A fence without tables keeps a lost herd away, and does not count.

    Args:
        dsn: connection string of the server.

    Raises:
        StoppedError: it can't be reached, or what it says is damaged.
    """
    try:
        session = await connect(dsn)
        try:
            (found,) = await ask_subscriber(session, "look")
            rows = await ask_subscriber(session, "followed") if found["ready"] else []
        finally:
            await session.close()
        every = msgspec.convert(rows, list[Followed])
    except psycopg.Error as error:
        raise StoppedError(f"what the source follows is not known: {message_of(error)}") from error
    except msgspec.ValidationError as error:
        raise StoppedError(
            "pgherd_subscriber of the source holds what no feeder has written: DROP SCHEMA"
            " pgherd_subscriber CASCADE there, if no herd feeds it"
        ) from error
    return [one for one in every if one.revision < FENCED or _is_fenced(one)]


def _is_fenced(one: Followed) -> bool:
    """Does it stand still, and take no writes, because another server has taken over?"""
    return one.revision < TAKEN_OVER and one.has_tables


async def require_lost(dsn: str) -> None:
    """Check for some seconds that no feeder of a herd reaches a server.

    Raises:
        StoppedError: one does, or a subscription can't be taken over.
    """
    for number in range(_LOOKS):
        if number:
            await asyncio.sleep(_LOOK_S)
        for one in await followed(dsn):
            if one.gid is None:
                raise StoppedError(
                    f"the first copy of subscription {one.name} is not whole at the source: end it"
                    " with `pgherd unsubscribe`, or DROP SCHEMA pgherd_subscriber CASCADE there if"
                    " its herd is lost"
                )
            if one.fed and one.revision < FENCED:
                raise StoppedError(
                    f"a herd that lives feeds subscription {one.name} of the source: `pgherd"
                    f" switchover SET --to {one.name}` there moves the set to it and loses nothing;"
                    " if that herd is to be given up, `pgherd failover` shuts it out"
                )


async def take_over(dsn: str, found: Sequence[Followed]) -> list[Survivor]:
    """Have a server take writes to all that it follows; it may be repeated.

    Args:
        dsn: connection string of the server.
        found: as of ``followed``.

    Returns:
        What it has taken over, each at its GID.

    Raises:
        StoppedError: it can't be done, or not for all of them.
    """
    taken = []
    for one in found:
        try:
            first, _ = await takeover.take_over([await takeover.look(one.name, dsn)])
        except psycopg.Error as error:
            raise StoppedError(
                f"subscription {one.name} is not taken over: {message_of(error)}"
            ) from error
        except TimeoutError as error:
            raise StoppedError(
                "a feeder of the herd, or another failover, does not leave: repeat the command"
            ) from error
        taken.append(first)
    return taken
