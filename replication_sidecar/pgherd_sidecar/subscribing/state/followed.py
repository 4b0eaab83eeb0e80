"""What a herd follows itself: another herd might feed it, and must not be fed by it then.

An ordinary role owns the schema ``pgherd_subscriber``, and superusers read it here. A view there
would run its functions as superuser, and so might an operator of a type of its own. COPY reads
plain tables only, refuses all else by itself, and evaluates nothing.
"""

from collections.abc import Iterable

import psycopg

from pgherd_sidecar.subscribing.state.errors import StoppedError
from pgherd_sidecar.subscribing.state.herd import TAKES_WRITES, ask, herd_query
from pgherd_sidecar.tables.sessions import Session

_ODD = (
    psycopg.errors.WrongObjectType,
    psycopg.errors.UndefinedColumn,
    psycopg.errors.InvalidColumnReference,  # a generated one
)
_OPEN = {str(revision) for revision in TAKES_WRITES}


async def is_turn_of(session: Session, name: str, holder: str) -> bool:
    """Is this the herd at which somebody has the turn to feed a subscription of this name?

    Raises:
        StoppedError: no feeder has made what says so.
    """
    if not (await ask(session, "has_turns"))[0]["found"]:
        return False
    return (name, holder) in await _read(session, "turns")


async def followed(session: Session, tables: Iterable[str]) -> str | None:
    """One of these tables that follows another herd here, and takes no writes; None: none does.

    Raises:
        StoppedError: no feeder has made what says so.
    """
    if not (await ask(session, "follows"))[0]["found"]:
        return None
    wanted = set(tables)
    found = {row for row in await _read(session, "followed_tables") if row[0] in wanted}
    revisions = dict(await _read(session, "followed_by")) if found else {}
    # One that has ended meanwhile has no revision.
    by = {name for name, revision in revisions.items() if revision not in _OPEN}
    return min((tab for tab, name in found if name in by), default=None)


def why_no_herd(tab: str) -> str:
    """Why a table that follows another herd is not for a third one."""
    return (
        f"table {tab} follows another herd here, which might follow this one: have that herd feed"
        " the subscriber, or subscribe a plain server"
    )


async def _read(session: Session, name: str) -> set[tuple[str, str]]:
    """Read two columns of a table that an ordinary role owns."""
    try:
        async with session.cursor().copy(herd_query(name)) as copy:
            return {(row[0], row[1]) async for row in copy.rows()}
    except psycopg.errors.UndefinedTable:  # it has ended meanwhile
        return set()
    except _ODD as error:
        raise StoppedError(
            "the schema pgherd_subscriber of this herd holds what no feeder has made"
            f" ({error.diag.message_primary}): drop it there, and repeat `pgherd subscribe`"
        ) from error
