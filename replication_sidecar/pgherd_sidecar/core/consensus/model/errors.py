"""Errors of the ordered log, by who has to act.

::

    LogError
    +-- LocalProtocolError    the caller or this code broke the contract: stop this member
    +-- RemoteProtocolError   a peer sent what no correct peer sends: close its link
"""


class LogError(Exception):
    """Anything the log refuses to go on with."""


class LocalProtocolError(LogError):
    """This member would break its own promises; it must stop."""


class RemoteProtocolError(LogError):
    """A peer's message is malformed or impossible; its link must be closed."""
