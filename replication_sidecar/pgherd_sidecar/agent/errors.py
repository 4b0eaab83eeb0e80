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
    """This node's data differ from the others', or an ordered change can't be done here."""


class LeftBehindError(RebuildNeededError):
    """This node's database is gone, or ends where no log that is still kept begins."""


class UnfitError(Exception):
    """What this node was to be made from will never do; the message says why, and what would."""
