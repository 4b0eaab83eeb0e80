"""A command of the source's definitions, as it is kept in the herd."""

from typing import Literal

import msgspec


class SchemaStatement(msgspec.Struct, frozen=True):
    """A command of the source's definitions.

    Attributes:
        part: when it is executed: before the rows, with them in place, at cut-over, or when
            applications write already.
        everywhere: by ``pgherd.run_everywhere()``.
    """

    part: Literal["before", "keys", "late", "after"]
    sql: str
    everywhere: bool = False
