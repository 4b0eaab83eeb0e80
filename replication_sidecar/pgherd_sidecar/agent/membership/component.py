"""On which side of a partition a member is, and since when; judged by time, not by each message.

It is lost by a restart: a member that starts is in no primary component yet.
"""

from collections.abc import Callable

import structlog

from pgherd_sidecar.core.consensus import Component, LogMember

_log = structlog.get_logger()


class ComponentWatch:
    """The component of a member, as far as it is known.

    Attributes:
        primary: by the last judgement.

    Args:
        member: who is judged.
        now: the loop's clock, in seconds.
    """

    def __init__(self, member: LogMember, now: Callable[[], float]) -> None:
        self.primary = False
        self._member = member
        self._now = now
        self._since_s = now()

    @property
    def secondary_s(self) -> float:
        """How long the member has been outside the primary component."""
        return 0.0 if self.primary else self._now() - self._since_s

    def judge(self) -> None:
        """Look anew: every tick, and whenever something happens while the member is secondary."""
        primary = self._member.component(self._now()) is Component.PRIMARY
        if primary != self.primary:
            self._change(primary)
            _log.info("component.changed", primary=primary, term=self._member.term)

    def leave(self) -> None:
        """The member takes no part any more."""
        self._change(False)

    def _change(self, primary: bool) -> None:
        self.primary, self._since_s = primary, self._now()
