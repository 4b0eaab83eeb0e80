"""Writes the answers of the commit path on the connections of the sessions that wait for them."""

from typing import assert_never, cast

import structlog

from pgherd_sidecar.agent.hook.connection import HookConnection
from pgherd_sidecar.agent.hook.figures import CommitFigures
from pgherd_sidecar.agent.hook.text import explain
from pgherd_sidecar.core.certification.certifier import Conflict
from pgherd_sidecar.core.commit.answers import (
    REPEAT,
    Aborted,
    Committed,
    Failed,
    GivenUp,
    PieceOrdered,
    SessionAnswer,
)
from pgherd_sidecar.core.commit.chain import Link, LocalLink

log = structlog.get_logger()


class Answering:
    """Puts answers into the words of the hook's protocol, and counts them.

    Attributes:
        figures: what the verdicts were, for people.
    """

    def __init__(self) -> None:
        self.figures = CommitFigures()

    def write(self, answer: SessionAnswer) -> None:
        """Write one answer; its session is the connection."""
        match answer:
            case Committed():
                after = predecessor_words(answer.predecessor)
                _of(answer).done(b"C %d %d %b" % (answer.gid, answer.prev, after))
                self.figures.committed(answer.waited_s)
            case Aborted():
                writeset = answer.writeset
                self.abort(_of(answer), answer.conflict, writeset.body, writeset.flags)
            case Failed():
                detail, hint = answer.detail, answer.hint
                _of(answer).fail(answer.sqlstate, answer.message, detail, hint)
            case PieceOrdered():
                _of(answer).done(b"OK")
            case GivenUp():
                size = answer.size_bytes
                log.info("pieces.given_up", serial=answer.serial, pieces=answer.pieces, bytes=size)
            case _:
                assert_never(answer)

    def abort(
        self, connection: HookConnection, conflict: Conflict, body: bytes, flags: int = 0
    ) -> None:
        """Tell a session that a writeset with this body and flags has lost."""
        message, detail = explain(conflict, body, flags)
        self.figures.lost(conflict, body, flags)
        connection.fail("40001", message, detail, REPEAT)


def predecessor_words(link: Link | None) -> bytes:
    """Name the link that a transaction has to wait for."""
    if link is None:
        return b"N"
    return b"L %d" % link.xid if isinstance(link, LocalLink) else b"B %d" % link.number


def _of(answer: Committed | Aborted | Failed | PieceOrdered) -> HookConnection:
    return cast("HookConnection", answer.session)
