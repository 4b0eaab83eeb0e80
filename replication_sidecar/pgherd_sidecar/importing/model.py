"""What is known of the source, as it is kept in the herd."""

from typing import Literal

import msgspec


class Column(msgspec.Struct, frozen=True):
    """A column of a table.

    Attributes:
        type: its name, in full; where it has a modifier, without it.
        oid: of the type, at the source.
        generated: its values are computed, and not replicated.
        as_text: an array of its type can't be unnested into its values.
    """

    name: str
    type: str
    oid: int
    modifier: int
    generated: bool
    as_text: bool


class Table(msgspec.Struct, frozen=True):
    """A table of the source, or a partition.

    Attributes:
        relid: its oid there.
        name: in full, quoted where it must be.
        bytes: what it takes there.
        columns: in their order, also those that are generated.
        identity: what changes of a row tell of it: its key, all columns, or nothing, and then only
            insertions are replicated.
        key: positions of the key's columns among those that are not generated.
    """

    relid: int
    name: str
    schema: str
    relation: str
    bytes: int
    columns: tuple[Column, ...]
    identity: Literal["key", "full", "none"]
    key: tuple[int, ...]

    @property
    def stored(self) -> tuple[Column, ...]:
        """Those whose values come from the source."""
        return tuple(column for column in self.columns if not column.generated)


class Statement(msgspec.Struct, frozen=True):
    """A command of the source's definitions.

    Attributes:
        part: when it is executed: before the rows, with them in place, at cut-over, or when
            applications write already.
        everywhere: by ``pgherd.run_everywhere()``.
    """

    part: Literal["before", "keys", "late", "after"]
    sql: str
    everywhere: bool = False
