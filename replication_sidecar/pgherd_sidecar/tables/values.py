"""What a row's values are on their way: text, as PostgreSQL writes it."""

from typing import Final


class Unchanged:
    """In place of a value that an UPDATE has not touched, and that was not sent."""

    _only: "Unchanged | None" = None

    def __new__(cls) -> "Unchanged":
        if cls._only is None:
            cls._only = super().__new__(cls)
        return cls._only

    def __len__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = Unchanged()
Value = str | None | Unchanged
"""A column's text, NULL, or not told."""
Row = tuple[Value, ...]
