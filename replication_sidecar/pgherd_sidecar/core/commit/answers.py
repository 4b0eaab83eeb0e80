"""What the sessions of the server are answered. Free of IO.

A session is whatever the caller knows it by: the outbox only hands it back. The texts of errors
are what a client reads. How an answer is written on the socket is the hook's business.
"""

from collections.abc import Hashable

import msgspec

from pgherd_sidecar.core.certification.certifier import Conflict
from pgherd_sidecar.core.commit.chain import Link
from pgherd_sidecar.core.replication.entries import Writeset

Session = Hashable

REPEAT = "Repeat the transaction."
OVERTAKEN = "could not serialize access due to a concurrent commit"
HELD = "No member takes writes until an administrator has chosen: see `pgherd status`."


class Committed(msgspec.Struct, frozen=True):
    """The transaction commits at ``gid``, once ``predecessor`` is visible.

    Attributes:
        prev: the GID that its link of the chain names.
        predecessor: the link to wait for, None if all before it is visible.
        waited_s: from the request to this answer.
    """

    session: Session
    gid: int
    prev: int
    predecessor: Link | None
    waited_s: float


class Aborted(msgspec.Struct, frozen=True):
    """The transaction has lost: it may be repeated."""

    session: Session
    conflict: Conflict
    writeset: Writeset


class Failed(msgspec.Struct, frozen=True):
    """The request fails with an error of this SQLSTATE."""

    session: Session
    sqlstate: str
    message: str
    detail: str = ""
    hint: str = REPEAT


class PieceOrdered(msgspec.Struct, frozen=True):
    """A piece of a large transaction is in the order: the next one may come."""

    session: Session


class GivenUp(msgspec.Struct, frozen=True):
    """A large transaction will have no writeset: to be logged, nobody is answered by it."""

    serial: int
    pieces: int
    size_bytes: int


SessionAnswer = Committed | Aborted | Failed | PieceOrdered | GivenUp
