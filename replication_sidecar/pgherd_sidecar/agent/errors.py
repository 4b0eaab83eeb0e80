"""What ends a session for good."""


class DivergedError(Exception):
    """This node's data differ from the others', or an ordered change can't be done here."""
