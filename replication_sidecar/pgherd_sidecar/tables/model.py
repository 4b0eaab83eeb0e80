"""A table whose rows go from one database into another, as the one that has them describes it."""

from functools import cached_property
from typing import Literal

import msgspec


class SourceColumn(msgspec.Struct, frozen=True):
    """A column of a table.

    Attributes:
        type: its name, in full; where it has a modifier, without it.
        oid: of the type, at the source.
        generated: its values are computed, and not replicated.
        as_text: unnesting an array of its type does not give its values: that goes on into inner
            arrays, and makes columns of a composite type's attributes.
    """

    name: str
    type: str
    oid: int
    modifier: int
    generated: bool
    as_text: bool


class KeyEquality(msgspec.Struct, frozen=True):
    """How the index of a key finds equal values of a column.

    Attributes:
        operator: with its schema.
        base: what the domain is made of, if the column's type is one: of enums, arrays and ranges
            their operators are known, and of such domains not. None if it is no domain.
    """

    operator: str = "pg_catalog.="
    base: str | None = None


class SourceTable(msgspec.Struct, frozen=True, dict=True):
    """A table of the source, or a partition.

    Attributes:
        relid: its oid there.
        name: in full, quoted where it must be.
        bytes: what it takes there.
        columns: in their order, also those that are generated.
        identity: what changes of a row tell of it: its key, all columns, or nothing, and then only
            insertions are replicated.
        key: positions of the key's columns among those that are not generated.
        equality: of each of these; empty: PostgreSQL's `=`.
    """

    relid: int
    name: str
    schema: str
    relation: str
    bytes: int
    columns: tuple[SourceColumn, ...]
    identity: Literal["key", "full", "none"]
    key: tuple[int, ...]
    equality: tuple[KeyEquality, ...] = ()

    @cached_property
    def stored(self) -> tuple[SourceColumn, ...]:
        """Those whose values come from the source."""
        return tuple(column for column in self.columns if not column.generated)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of these."""
        return tuple(column.name for column in self.stored)

    @cached_property
    def key_names(self) -> tuple[str, ...]:
        """The names of the key's columns; all of them where there is no key."""
        return tuple(self.names[position] for position in self.key) or self.names

    @cached_property
    def key_columns(self) -> tuple[tuple[SourceColumn, KeyEquality], ...]:
        """The key's columns, and how they are equal."""
        equality = self.equality or (KeyEquality(),) * len(self.key)
        columns = (self.stored[position] for position in self.key)
        return tuple(zip(columns, equality, strict=True))
