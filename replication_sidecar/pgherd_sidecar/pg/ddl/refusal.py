"""The one way in which a DDL command is turned away.

Raised by the other ``ddl`` modules, answered by the hook with SQLSTATE 0A000. Keeps nothing.
"""


class DdlNotSupported(Exception):
    """The command cannot be replicated; the client must act.

    Attributes:
        hint: what to do instead.
    """

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint
