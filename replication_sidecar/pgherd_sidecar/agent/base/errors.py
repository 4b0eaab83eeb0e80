"""The errors that end a session.

RebuildNeededError       this node can't go on from its own database
    DivergedError        it differs from the others', or an ordered change can't be done here
    LeftBehindError      it is gone, or ends where no log that is still kept begins
    UnreadableError      the next entry, or the checkpoint, means nothing to this version: no copy
                         helps
EntryFailedError         an ordered change could not be done now: the next session tries again
SupersededError          a newer incarnation has to begin
"""

from dataclasses import dataclass

from pgherd_sidecar.pg.failures import Trouble
from pgherd_sidecar.pg.pipeline import ServerGoneError


@dataclass(frozen=True, slots=True)
class Failure:
    """A description of what went wrong as an ordered entry was applied; empty texts are not known.

    Attributes:
        gid: of the entry; the last one of several that were written together.
        prev: everything up to this GID is visible here: the same each time it is tried again.
        sqlstate: what the server answered.
        cause: in words, without values of rows as far as they can be told.
        work: what the entry is: rows, pieces, command, leak, marker, chain.
        statement: the kind of statement: INSERT, ALTER TABLE.
        table: which it was about.
        key: the constraint or index that the server named.
        row: primary key of the row, where it could be told; never for a log line.
    """

    gid: int
    prev: int
    trouble: Trouble
    sqlstate: str = ""
    cause: str = ""
    work: str = ""
    statement: str = ""
    table: str = ""
    key: str = ""
    row: str = ""

    def __str__(self) -> str:
        about = " ".join(filter(None, (self.statement, self.table)))
        words = (f"GID {self.gid}", about, self.sqlstate, self.cause)
        return ": ".join(filter(None, words))


class SupersededError(Exception):
    """A former member with this number has had this incarnation: a newer one has to begin.

    Attributes:
        newest: the newest incarnation under this number.
    """

    def __init__(self, newest: int) -> None:
        super().__init__(f"incarnation {newest} of this number has been in the log before")
        self.newest = newest


class RebuildNeededError(Exception):
    """This node can't go on from its own database: it needs a copy of another member's."""


class DivergedError(RebuildNeededError):
    """This node's data differ from the others', or an ordered change can't be done here.

    Attributes:
        failure: at which entry; None if that is not known.
    """

    def __init__(self, message: str, failure: Failure | None = None) -> None:
        super().__init__(message)
        self.failure = failure

    @property
    def gid(self) -> int:
        """Of the entry that can't be applied, 0 if that is not known."""
        return 0 if self.failure is None else self.failure.gid


class SkippedError(DivergedError):
    """This node has applied an entry that an administrator has had skipped since."""

    def __init__(self, gid: int) -> None:
        message = f"it has applied GID {gid}, which was skipped"
        failure = Failure(gid, gid, Trouble.REFUSED, cause="it was skipped", work="skip")
        super().__init__(message, failure)


class LeftBehindError(RebuildNeededError):
    """This node's database is gone, or ends where no log that is still kept begins."""


class UnreadableError(RebuildNeededError):
    """This version does not understand the next entry, or the checkpoint: no copy changes that."""


class EntryFailedError(ServerGoneError):
    """An ordered change could not be done, and nothing says that it never can be.

    Attributes:
        failure: at which entry, and why.
    """

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure


class UnfitError(Exception):
    """This node can never be made from that source; the message says why, and from which it can."""
