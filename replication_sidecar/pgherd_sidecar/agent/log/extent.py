"""From where on the log is held, by this member and by the others: who has to be copied anew?"""

from pgherd_sidecar.agent.membership import roster
from pgherd_sidecar.core.consensus import LogBase, LogMember
from pgherd_sidecar.env.storage.segments import SegmentLog


class LogExtent:
    """The beginning of the log of a ``LogHost``.

    Args:
        log: on this member's disk.
        member: the core.
    """

    def __init__(self, log: SegmentLog, member: LogMember) -> None:
        self._log = log
        self._member = member

    @property
    def base(self) -> int:
        """This member's log holds what comes after this position; 0 unless it was trimmed."""
        return self._log.index.base

    @property
    def last(self) -> int:
        """The end of this member's log, flushed or not, committed or not."""
        return self._member.last_position

    @property
    def size_bytes(self) -> int:
        """Return what the log's segments take on this member's disk."""
        return self._log.size_bytes

    def bytes_after(self, position: int) -> int:
        """Return what the log takes after a position, rounded up."""
        return self._log.bytes_after(position)

    @property
    def first_numbers(self) -> tuple[int, ...]:
        """Numbers of the databases that were members before what this log holds."""
        return roster.numbers(self.base_at(self.base).membership)

    @property
    def behind(self) -> int:
        """Where the log of the others begins, if they no longer hold what follows here; else 0."""
        return self._member.behind

    @property
    def beginning(self) -> LogBase:
        """Return that place's facts in the log of the others, if this one is behind."""
        return self._member.beginning

    @property
    def joins(self) -> bool:
        """This member's log names no members yet: it begins where the copy of a partner ends."""
        return not self._member.membership.views

    def may_begin_after(self, base: LogBase) -> bool:
        """Whether nothing that counts is lost if the log begins anew there [T4]."""
        index = self._log.index
        return base.position >= index.last or index.contradicts(base)

    def base_at(self, position: int) -> LogBase:
        """Return what a log has to know that begins after ``position``, which is committed."""
        return self._log.index.base_at(position)

    def needed_base(self, position: int) -> LogBase:
        """Return the same of the place, not after ``position``, from where on a member needs it.

        Not of the beginning: a log that begins there looks like a founder's that was never used.
        """
        return self._member.base_at(max(1, min(position, self._member.oldest_needed)))
