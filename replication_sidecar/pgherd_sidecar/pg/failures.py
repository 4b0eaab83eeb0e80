"""What an error means for an entry that was being applied: try it again, wait, or stop.

This is the one place that judges SQLSTATEs and exceptions of the apply path:

    interrupted  somebody else stood in the way, or nobody could connect: the entry is tried again;
                 so is one that waited for a change of the same row of the catalog
    lost         the connection broke in the middle; if that goes on, the entry crashes the server
    disk         the disk is full: the entry waits, since a copy of the database needs room, too
    resources    the server lacked memory, open files or the like: the entry is tried again, with
                 growing pauses
    failed       the server could not do it, and may do it the next time
    refused      the same entry will fail here each time: this database differs from the others'

What is not refused at once becomes so when it fails the same way too often in a row (`patience`);
who counts is ``agent.apply.attempts``. A full disk and a lack of resources never do. The depth of
the stack and all other limits of a program (class 54) are refused at once: nothing changes them.

A function of a user can RAISE any SQLSTATE, in a CHECK constraint say, and on some members only. So
an error that PL/pgSQL raised is never taken for a full disk or an interruption.

Pure functions; called by whatever applies an entry. Keeps nothing.
"""

import errno
import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

import psycopg

from pgherd_sidecar.pg.pipeline import (
    PLPGSQL,
    NoConnectionError,
    RoundFailedError,
    ServerGoneError,
)


class Trouble(Enum):
    """The kinds of the table above."""

    INTERRUPTED = "interrupted"
    LOST = "lost"
    DISK = "disk"
    RESOURCES = "resources"
    FAILED = "failed"
    REFUSED = "refused"


OUT_OF_MEMORY: Final = "53200"
"""Of the machine, or of the memory that servers share, like the table of locks."""

_INTERRUPTED: Final = frozenset(
    {
        "40001",
        "40003",
        "40P01",
        "53300",  # too many connections
        "55006",  # an object is in use
        "55P03",  # a lock is not available
        "57000",
        "57014",  # cancelled
    }
)
_SHORT: Final = frozenset({"53000", OUT_OF_MEMORY, "53400"})
_RACES: Final = ("tuple concurrently updated", "tuple concurrently deleted")
"""PostgreSQL translates none of these, and gives them no SQLSTATE of their own."""
_PATIENCE: Final = {
    Trouble.INTERRUPTED: None,
    Trouble.LOST: 10,
    Trouble.DISK: None,
    Trouble.RESOURCES: None,
    Trouble.FAILED: 3,
    Trouble.REFUSED: 1,
}

DIFFERENT: Final = "PH003"
"""What was written is not what its origin has: see ``sql/035_fingerprint.sql``."""
_QUOTED: Final = re.compile(r'"[^"]*"|".*')


def patience(trouble: Trouble) -> int | None:
    """How often in a row an entry may end so before this database counts as diverged.

    None: as often as it takes.
    """
    return _PATIENCE[trouble]


def trouble_of(sqlstate: str, message: str = "", *, raised: bool = False) -> Trouble:
    """Judge what a server has answered.

    Args:
        sqlstate: empty if it did not answer.
        message: its primary message.
        raised: by a statement RAISE of PL/pgSQL.
    """
    if not sqlstate:
        return Trouble.LOST
    found = Trouble.REFUSED
    if sqlstate == "53100":
        found = Trouble.DISK
    elif sqlstate in _SHORT:
        found = Trouble.RESOURCES
    elif (
        sqlstate in _INTERRUPTED
        or sqlstate[:2] == "08"
        or sqlstate[:3] == "57P"
        or (sqlstate == "XX000" and message in _RACES)
    ):
        found = Trouble.INTERRUPTED
    elif sqlstate[:2] in ("26", "55", "58", "F0"):
        found = Trouble.FAILED  # objects that are not ready, failures of the system
    return Trouble.FAILED if raised and found is not Trouble.REFUSED else found


@dataclass(frozen=True, slots=True)
class Judgement:
    """What an exception means.

    Attributes:
        sqlstate: empty if the server did not say.
        cause: what the server or Python says, without values of rows as far as they can be told.
        table, constraint: what the server names; empty if it does not.
        row: primary key of the first row that is not its origin's; empty where it is not known.
    """

    trouble: Trouble
    sqlstate: str = ""
    cause: str = ""
    table: str = ""
    constraint: str = ""
    row: str = ""


def judge_error(error: BaseException) -> Judgement:  # noqa: PLR0911 - a table of cases
    """Judge an exception of any type."""
    match error:
        case RoundFailedError():
            trouble = trouble_of(error.sqlstate, error.primary, raised=error.raised)
            return Judgement(
                trouble,
                error.sqlstate,
                _without_values(error.sqlstate, error.primary),
                error.table,
                error.constraint,
                error.detail if error.sqlstate == DIFFERENT else "",
            )
        case psycopg.Error() if error.sqlstate:
            diag = error.diag
            message = diag.message_primary or str(error)
            return Judgement(
                trouble_of(error.sqlstate, message, raised=diag.source_file == PLPGSQL),
                error.sqlstate,
                _without_values(error.sqlstate, message),
                ".".join(filter(None, (diag.schema_name, diag.table_name))),
                diag.constraint_name or "",
                diag.message_detail or "" if error.sqlstate == DIFFERENT else "",
            )
        case NoConnectionError():
            return Judgement(Trouble.INTERRUPTED, cause=str(error))
        case ServerGoneError() | psycopg.OperationalError() | psycopg.InterfaceError():
            return Judgement(Trouble.LOST, cause=str(error))
        case MemoryError():
            return Judgement(Trouble.RESOURCES, cause="the sidecar has no memory")
        case OSError():
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            return Judgement(Trouble.DISK if full else Trouble.LOST, cause=str(error))
        case _:
            return Judgement(Trouble.REFUSED, cause=f"{type(error).__name__}: {error}")


def _without_values(sqlstate: str, message: str) -> str:
    """What a message says; those about data (class 22) quote the value that is wrong."""
    first = message.split("\n", 1)[0]
    return _QUOTED.sub('"..."', first) if sqlstate[:2] == "22" else first
