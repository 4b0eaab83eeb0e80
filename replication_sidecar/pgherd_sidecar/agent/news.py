"""What has changed in a member's log since its caller was told last.

Called by ``LogHost``. A restart forgets it: then all is news.
"""

import structlog

from pgherd_sidecar.core.log import LogMember

_log = structlog.get_logger()


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
        changed, relinked = now != self._proposer, self._relinked
        if changed:
            _log.info("proposer_changed", term=member.term, proposer=member.proposer)
        self._proposer, self._relinked = now, False
        return changed or relinked

    def behind(self) -> bool:
        """The others turn out to hold no longer what follows here."""
        former, self._behind = self._behind, max(self._behind, self._member.behind)
        return self._behind > former

    def barrier(self) -> bool:
        """A round for a read barrier has ended."""
        former, self._barrier = self._barrier, self._member.barrier
        return former != self._barrier

    def commits(self) -> bool:
        """More is committed, or the log is, or is no longer, damaged for good."""
        former = self._commit_position, self._damaged_for_good
        self._commit_position = max(self._commit_position, self._member.commit_position)
        self._damaged_for_good = self._member.damaged_for_good
        return former != (self._commit_position, self._damaged_for_good)
