"""How long a proposer collects submissions for its next block.

While a block travels, who makes another at once makes many small ones, and each costs every member
the same. A peer that is far away must not slow the order down, hence a bound.
"""

from collections.abc import Callable

from pgherd_sidecar.core.consensus import LogMember, Role

_COLLECT_S = 5e-3


class Collector:
    """Decides whether the next block waits.

    Attributes:
        due_s: when it goes at the latest, on the loop's clock.

    Args:
        member: who may be the proposer.
        now: the loop's clock, in seconds.
    """

    def __init__(self, member: LogMember, now: Callable[[], float]) -> None:
        self._member = member
        self._now = now
        self._newest = 0
        self.due_s = 0.0

    def collects(self) -> bool:
        """Look whether the next block may wait: the last one is under way, and not for long."""
        last, now = self._member.last_position, self._now()
        if last != self._newest:
            self._newest, self.due_s = last, now + _COLLECT_S
        under_way = self._member.role is Role.PROPOSER and last > self._member.commit_position
        return under_way and self.due_s > now
