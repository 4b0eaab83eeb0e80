"""Whether this node can go on from its own database, and what becomes of the database if not.

Judges what ended a session. A rebuild that has begun and incidents survive a restart.
"""

import psycopg
import structlog

from pgherd_sidecar.agent.apply.applying import OF_THE_MEMBER
from pgherd_sidecar.agent.apply.attempts import Attempts
from pgherd_sidecar.agent.base.config import NodeConfig
from pgherd_sidecar.agent.base.errors import (
    DivergedError,
    EntryFailedError,
    LeftBehindError,
    RebuildNeededError,
    SupersededError,
    UnreadableError,
)
from pgherd_sidecar.agent.membership.identity import StoredIdentity
from pgherd_sidecar.agent.recovery.rebuild import Rebuild
from pgherd_sidecar.agent.standing.incidents import Incidents
from pgherd_sidecar.env.network.tls import TlsError
from pgherd_sidecar.pg.pipeline import ServerGoneError

log = structlog.get_logger()

_FATAL = (*OF_THE_MEMBER, TlsError)
"""The log or this member's standing is not what it was: the process ends, and says so."""


class Fitness:
    """The knowledge about the own database beside what the log says.

    Args:
        config: this member's.
        identity: this member's.
        rebuild: what replaces the database by a copy, None where that is not configured.

    Attributes:
        rebuild: the same.
        attempts: how often an entry has failed.
        incidents: what has stopped this node.
        reason: why there is no session, in words.
        diverged: a divergence that the log has still to hear of.
        halted: why it has stopped for good, None if it has not.
    """

    def __init__(
        self, config: NodeConfig, identity: StoredIdentity, rebuild: Rebuild | None
    ) -> None:
        self.rebuild = rebuild
        self.attempts = Attempts()
        self.incidents = Incidents(config.data_dir)
        self.reason = "starting"
        self.diverged: DivergedError | None = None
        self.halted: RebuildNeededError | None = None
        self._identity = identity

    def judge(self, error: BaseException | None) -> None:
        """Decide what an ended session means; raises what must end the process."""
        causes = leaves(error)
        for cause in causes:
            if isinstance(cause, RebuildNeededError):
                self.need_rebuild(cause)
                return
        for cause in causes:
            if isinstance(cause, _FATAL) or not isinstance(cause, Exception):
                raise cause
            if isinstance(cause, SupersededError):
                self._identity.skip_incarnations(cause.newest)
            elif isinstance(cause, EntryFailedError):
                diverged = self.attempts.failed(cause.failure)
                if diverged is not None:
                    self.need_rebuild(diverged)
                    return
            elif not isinstance(cause, (psycopg.OperationalError, ServerGoneError)):
                # A defect beside the server must not take this member's vote from the herd.
                log.critical("session.crashed", error=str(cause), exc_info=cause)
                self.attempts.crashed()
        self.reason = f"PostgreSQL: {causes[0]}".strip() if causes else "session ended"
        log.warning("session.ended", reason=self.reason)
        rebuild = self.rebuild
        if rebuild is not None and rebuild.database_is_gone and not rebuild.under_way:
            self.need_rebuild(LeftBehindError("the database is gone"))

    def need_rebuild(self, cause: RebuildNeededError) -> None:
        """Begin a rebuild, or stop for good; what has diverged tells the log first."""
        self.reason = str(cause)
        log.error("node.needs_rebuild", reason=self.reason, kind=type(cause).__name__)
        if isinstance(cause, DivergedError):
            self.incidents.begin(cause, rebuilt=False)
            self.diverged = cause
            return
        joins = self.rebuild is not None and self.rebuild.due_to_join
        begun = self.begin_rebuild(cause)
        if not joins:
            self.incidents.begin(cause, rebuilt=begun)

    def begin_rebuild(self, cause: RebuildNeededError) -> bool:
        """Begin a rebuild, or stop for good and return False."""
        rebuild = None if isinstance(cause, UnreadableError) else self.rebuild
        if rebuild is not None and rebuild.begin(self.reason):
            self.halted = None
            return True
        self.halted = cause
        if self.rebuild is not None and self.rebuild.given_up is not None:
            self.reason = f"{self.reason}; {self.rebuild.given_up}"
        return False

    def request_rebuild(self, partner: str | None, rate_bytes_s: int | None) -> None:
        """Have the database replaced because somebody asks for it, whatever it is in."""
        assert self.rebuild is not None
        self.rebuild.request(partner, rate_bytes_s)
        self.incidents.request()
        self.halted = self.diverged = None

    def restored(self) -> None:
        """Forget whatever stopped this node before."""
        self.attempts.forget()
        self.incidents.end()


def leaves(error: BaseException | None) -> "list[BaseException]":
    """The single errors in a group, in order."""
    if error is None:
        return []
    if isinstance(error, BaseExceptionGroup):
        return [leaf for part in error.exceptions for leaf in leaves(part)]
    return [error]
