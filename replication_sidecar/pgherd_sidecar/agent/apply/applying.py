"""The border between the log and the database: whatever fails while an entry is applied stays here.

The ordered log goes on, and with it this member's vote, whatever an entry does to the database of
this member. So every exception of any type that leaves the application of an entry becomes a
``DivergedError`` or an ``EntryFailedError``, with the entry's GID; ``pg.failures`` says which. Only
what is wrong with the log itself, or with this member's standing, passes unchanged.

It keeps nothing.
"""

from dataclasses import dataclass
from types import TracebackType

import structlog

from pgherd_sidecar.agent.base.errors import (
    DivergedError,
    EntryFailedError,
    Failure,
    RebuildNeededError,
    SupersededError,
    UnreadableError,
)
from pgherd_sidecar.agent.membership.identity import IdentityError
from pgherd_sidecar.core.consensus.model.errors import LogError
from pgherd_sidecar.core.replication.entries import EntryFormatError
from pgherd_sidecar.env.storage.segments import StorageError
from pgherd_sidecar.pg.failures import Judgement, Trouble, judge_error

log = structlog.get_logger()

OF_THE_MEMBER = (StorageError, LogError, IdentityError)
"""The log, or the directory of this member, is not what it was: nothing may go on."""


@dataclass(slots=True)
class About:
    """The work that is being applied at the moment, for those who have to tell of a failure.

    Attributes:
        gid: may become more exact.
        prev: likewise.
        work, statement, table, row: see ``Failure``.
    """

    gid: int
    prev: int
    work: str = "rows"
    statement: str = ""
    table: str = ""
    row: str = ""


def applying(gid: int, prev: int, work: str = "rows") -> "_Applying":
    """Have whatever goes wrong inside concern this entry, and the database of this member.

    Args:
        gid: of the entry, or of the last one of several that are written together.
        prev: everything up to here is visible.
        work: what the entry is.

    Raises:
        DivergedError: it can't be applied here.
        EntryFailedError: perhaps it can be the next time.
        RebuildNeededError, StorageError, LogError, IdentityError: as they were raised inside.
    """
    return _Applying(About(gid, prev, work))


class _Applying:
    """The block of ``applying``: each batch has one, and a generator would cost it more."""

    __slots__ = ("_about",)

    def __init__(self, about: About) -> None:
        self._about = about

    def __enter__(self) -> About:
        return self._about

    def __exit__(
        self,
        _: type[BaseException] | None,
        error: BaseException | None,
        __: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception):  # of any type: the log must not end with it
            _concern(self._about, error)


def _concern(about: About, error: Exception) -> None:
    """Have an error tell what it concerns, or raise one that does in its place."""
    if isinstance(error, OF_THE_MEMBER):
        return
    if isinstance(error, DivergedError):
        if error.failure is None:
            cause = judge_error(error.__cause__) if error.__cause__ is not None else None
            error.failure = _failure(about, cause or Judgement(Trouble.REFUSED), str(error))
        return
    if isinstance(error, RebuildNeededError | EntryFailedError):
        return
    found = judge_error(error)
    if found.trouble is Trouble.REFUSED and not found.sqlstate:
        log.error("entry.unforeseen", gid=about.gid, exc_info=error)
    failure = _failure(about, found, found.cause)
    if found.trouble is Trouble.REFUSED:
        raise DivergedError(str(failure), failure) from error
    raise EntryFailedError(failure) from error


def _failure(about: About, found: Judgement, cause: str) -> Failure:
    return Failure(
        gid=about.gid,
        prev=about.prev,
        trouble=found.trouble,
        sqlstate=found.sqlstate,
        cause=cause,
        work=about.work,
        statement=about.statement,
        table=about.table or found.table,
        key=found.constraint,
        row=about.row or found.row,
    )


def undeliverable(error: BaseException, position: int) -> BaseException:
    """Return what the failure to deliver entries means for this member.

    Args:
        position: of the last entry that the replicated state has taken.

    Returns:
        The error itself, if it says so; else one that stops this database only.
    """
    known = (RebuildNeededError, EntryFailedError, SupersededError, *OF_THE_MEMBER)
    if isinstance(error, known) or not isinstance(error, Exception):
        return error
    if isinstance(error, EntryFormatError):
        found: RebuildNeededError = UnreadableError(
            f"this version does not understand entry {position + 1} of the log: {error}"
        )
    else:
        log.error("entry.unforeseen", gid=position, exc_info=error)
        about = About(position, position, "entry")
        failure = _failure(about, Judgement(Trouble.REFUSED), f"{type(error).__name__}: {error}")
        found = DivergedError(str(failure), failure)
    found.__cause__ = error
    return found
