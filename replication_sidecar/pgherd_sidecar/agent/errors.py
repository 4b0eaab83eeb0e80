"""What ends a session."""


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
        gid: of the entry that can't be applied, 0 if that is not known.
    """

    gid = 0


class SkippedError(DivergedError):
    """This node has applied an entry that an administrator has had skipped since."""

    def __init__(self, gid: int) -> None:
        super().__init__(f"it has applied GID {gid}, which was skipped")
        self.gid = gid


class LeftBehindError(RebuildNeededError):
    """This node's database is gone, or ends where no log that is still kept begins."""


class UnfitError(Exception):
    """What this node was to be made from will never do; the message says why, and what would."""
