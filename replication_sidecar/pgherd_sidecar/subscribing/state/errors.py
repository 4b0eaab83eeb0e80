"""What keeps a subscription from being fed. The message is one line that says what to do."""


class StoppedError(Exception):
    """It can't go on as things are: somebody has to do something."""


class MemberError(Exception):
    """The member's own server says no: that may pass, or another member feeds."""


class MovedOnError(Exception):
    """The subscriber is not where this feeder has left it: look again."""
