"""Notes what has changed in a member's log since its listeners were told last.

A restart forgets it: then all is news.
"""

import structlog

from pgherd_sidecar.core.consensus import LogMember

_log = structlog.get_logger()


class LogListener:
    """Hears what happens to the log, on the loop and synchronously. Here each event means nothing.

    It must not raise: the log has nobody else to tell of it.
    """

    def entries_committed(self) -> None:
        """``commit_position`` has advanced, or what is committed can be read again."""

    def proposer_changed(self) -> None:
        """Term or proposer have changed, or the link to the proposer was made anew.

        What was submitted may be lost: submit it again.
        """

    def barrier_reached(self) -> None:
        """``barrier`` is another one."""

    def left_behind(self) -> None:
        """The others turn out to hold no longer what follows here."""


class News:
    """Each method says whether there is news of one kind, and takes it as told then.

    Args:
        member: whose log; what it has committed so far is no news.
    """

    def __init__(self, member: LogMember) -> None:
        self._member = member
        self._commit_position = member.commit_position
        self._damaged_for_good = False
        self._behind = 0
        self._proposer: tuple[int, str | None] = (0, None)
        self._relinked = False
        self._barrier = member.barrier

    def link_up(self, peer: str) -> None:
        """Note that the link to a peer was made anew: what was sent on the former may be lost."""
        self._relinked |= peer == self._member.proposer

    def proposer(self) -> bool:
        """Term or proposer have changed, or the link to the proposer was made anew."""
        member = self._member
        now = (member.term, member.proposer)
        if now == self._proposer and not self._relinked:
            return False
        if now != self._proposer:
            _log.info("proposer.changed", term=member.term, proposer=member.proposer)
        self._proposer, self._relinked = now, False
        return True

    def behind(self) -> bool:
        """The others turn out to hold no longer what follows here."""
        if self._member.behind <= self._behind:
            return False
        self._behind = self._member.behind
        return True

    def barrier(self) -> bool:
        """A round for a read barrier has ended."""
        barrier = self._member.barrier
        if barrier is self._barrier:
            return False
        former, self._barrier = self._barrier, barrier
        return former != barrier

    def commits(self) -> bool:
        """More is committed, or the log is, or is no longer, damaged for good."""
        former = self._commit_position, self._damaged_for_good
        self._commit_position = max(self._commit_position, self._member.commit_position)
        self._damaged_for_good = self._member.damaged_for_good
        return former != (self._commit_position, self._damaged_for_good)
