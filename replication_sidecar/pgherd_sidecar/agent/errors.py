"""What ends a session for good."""


class RebuildNeededError(Exception):
    """This node can't go on from its own database: it needs a copy of another member's."""


class DivergedError(RebuildNeededError):
    """This node's data differ from the others', or an ordered change can't be done here."""


class LeftBehindError(RebuildNeededError):
    """This node's database is gone, or ends where no log that is still kept begins."""
