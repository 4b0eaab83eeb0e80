"""What the consistency job found, and its verdict. Values only; ``report`` writes them down."""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

Verdict = Literal["consistent", "different", "incomplete"]
_COMPARED = 2
"""So many members at least, of a herd of several."""
_OF_SERVER = {"role", "membership"}
"""Kinds of definitions."""


@dataclass(frozen=True, slots=True)
class TableFindings:
    """One table that all members have with the same columns.

    Attributes:
        rows: by member.
        buckets: into how many the keys were divided.
        different_rows: as far as they were looked at; ``more`` if not to the end, or not all named.
        reason: why it could not be compared, if so.
        odd: the members that differ from a majority in any bucket, whether its rows were looked at
            or not.
        contested: in some bucket there is no majority.
    """

    name: str
    rows: Mapping[str, int]
    buckets: int
    different_buckets: int
    different_rows: int
    more: bool
    reason: str | None
    odd: tuple[str, ...] = ()
    contested: bool = False

    @property
    def verdict(self) -> Verdict:
        """Not compared is neither equal nor different."""
        if self.reason is not None:
            return "incomplete"
        return "different" if self.different_buckets else "consistent"


@dataclass(frozen=True, slots=True)
class RowDifference:
    """One row that is not the same everywhere.

    Attributes:
        key_columns: of the table's key.
        key: their values as a record literal.
        columns: those that differ among the members that have the row.
        versions: the row on each member, as text; None where it is missing.
        odd: the members that differ from the majority, where there is one.
    """

    table: str
    key_columns: tuple[str, ...]
    key: str
    columns: tuple[str, ...]
    versions: Mapping[str, Mapping[str, str | None] | None]
    odd: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DefinitionDifference:
    """A table, column, index, sequence, role, ... that is not defined the same everywhere."""

    kind: str
    name: str
    versions: Mapping[str, str | None]
    odd: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Findings:
    """The result of a consistency check.

    Attributes:
        members: by name, ``pg_current_snapshot()`` of what was read there.
        servers: by name, what PostgreSQL says it is.
        changing: what was being defined anew during the check, so that it was not compared.
        not_replicated: tables whose rows are each member's own, and were not compared.
        unread_on: by member, materialized views and indexes that it could not read or check, and
            why.
        beyond: what a member's server is not able to compare, and why.
        left_out: members that were not compared, and why.
    """

    gid: int
    started: datetime
    finished: datetime
    members: Mapping[str, str]
    servers: Mapping[str, str]
    tables: tuple[TableFindings, ...]
    rows: tuple[RowDifference, ...]
    definitions: tuple[DefinitionDifference, ...]
    changing: tuple[str, ...]
    not_replicated: tuple[str, ...]
    unread_on: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    beyond: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """``different`` if anything was found; ``consistent`` only if all could be compared.

        All that the servers are able to, on the members that were not left out: at least two.
        """
        verdicts = {table.verdict for table in self.tables}
        if self.definitions or "different" in verdicts:
            return "different"
        alone = bool(self.left_out) and len(self.members) < _COMPARED
        incomplete = self.changing or self.unread or alone or "incomplete" in verdicts
        return "incomplete" if incomplete else "consistent"

    @property
    def odd_members(self) -> tuple[str, ...]:
        """Members that a majority contradicts in anything."""
        tables = {member for table in self.tables for member in table.odd}
        rows = {member for row in self.rows for member in row.odd}
        return tuple(sorted(tables.union(rows, *(one.odd for one in self.definitions))))

    @property
    def odd_databases(self) -> tuple[str, ...]:
        """Members of which a majority contradicts more than roles: those belong to the server."""
        return dataclasses.replace(self, definitions=self._of_database).odd_members

    @property
    def contested(self) -> tuple[str, ...]:
        """Tables and definitions, but for roles, of which nobody knows who has them right.

        What a member could not read goes with its database, if a majority contradicts that.
        """
        tables = [one.name for one in self.tables if one.contested or one.reason is not None]
        definitions = [f"{one.kind} {one.name}" for one in self._of_database if not one.odd]
        odd = self.odd_databases
        unread = told(one for one in self.unread_on.items() if one[0] not in odd)
        return (*tables, *definitions, *self.changing, *unread)

    @property
    def unread(self) -> tuple[str, ...]:
        """Lines about what members could not read or check."""
        return told(self.unread_on.items())

    @property
    def _of_database(self) -> tuple[DefinitionDifference, ...]:
        return tuple(one for one in self.definitions if one.kind not in _OF_SERVER)


def odd_ones(versions: Mapping[str, str | None]) -> tuple[str, ...]:
    """The members whose version is not that of the majority; nobody if there is none."""
    (common, count), *_ = Counter(versions.values()).most_common(1)
    if 2 * count <= len(versions):
        return ()
    return tuple(sorted(member for member, text in versions.items() if text != common))


def told(found: Iterable[tuple[str, Mapping[str, str]]]) -> tuple[str, ...]:
    """Lines about ``unread`` or ``beyond`` of members, which come with their names."""
    return tuple(
        sorted(f"{what} on {name}: {why}" for name, one in found for what, why in one.items())
    )
