"""Which tables a subscriber holds of a subscription, as it says itself."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from psycopg.types.json import Jsonb

from pgherd_sidecar.subscribing.state.connections import subscriber_query
from pgherd_sidecar.subscribing.state.errors import StoppedError
from pgherd_sidecar.subscribing.state.herd import Subscription, TableSelection
from pgherd_sidecar.tables.model import SourceColumn, SourceTable
from pgherd_sidecar.tables.sessions import Session

SCHEMA = "pgherd_subscriber"


class ShownTable(msgspec.Struct, frozen=True):
    """A table at the subscriber.

    Attributes:
        table: columns and key as in the herd, and where its rows are here.
        gid: of the copy; once it is shown, since when it is.
        generation: of the copy; 0: it has not followed all the time since, so no order wants it.
        parts: in the herd its rows are in partitions.
        of: what of the herd's table it is; None: all.
        read_types: of the columns that the row filter reads, as a cast has them.
        drops: columns that it has not lost yet, though the rows that are shown do without them.
    """

    table: SourceTable
    gid: int
    generation: int
    parts: bool = False
    of: TableSelection | None = None
    read_types: tuple[str, ...] = ()
    drops: tuple[str, ...] = ()

    @property
    def selection(self) -> TableSelection:
        """What of the herd's table it is."""
        return self.of or TableSelection(self.table.name)

    @property
    def is_in_place(self) -> bool:
        """It is where it is to be shown, even if it is not yet."""
        return self.table.schema != SCHEMA

    @property
    def is_partial(self) -> bool:
        """The log has updates of rows that are not here, and does not say so.

        A filter that reads the key only is evaluated for updates, too.
        """
        key = {self.table.stored[position].name for position in self.table.key}
        return self.selection.condition is not None and not key.issuperset(self.selection.reads)


class Holdings:
    """The tables of one subscription at its subscriber.

    Args:
        session: at the subscriber.
        subscription: what was ordered.

    Attributes:
        shown: tables that follow, by name.
        staged: tables that were copied and wait to be shown.
        old: tables that are shown and belong to an earlier generation, or are another part of the
            herd's table than is wanted now: they stand still.
    """

    def __init__(self, session: Session, subscription: Subscription) -> None:
        self._session = session
        self._subscription = subscription
        self.shown: dict[str, ShownTable] = {}
        self.staged: dict[str, ShownTable] = {}
        self.old: dict[str, ShownTable] = {}

    async def load(self) -> None:
        """Learn of them.

        Raises:
            StoppedError: what the subscriber says is damaged.
        """
        cursor = await self._session.execute(
            subscriber_query("tables"), {"name": self._subscription.name}
        )
        self.shown, self.staged, self.old = {}, {}, {}
        for row in await cursor.fetchall():
            one = _shown(row)
            if row["staged"]:
                self.staged[row["tab"]] = one
            elif self.is_wanted(one):
                self.shown[row["tab"]] = one
            else:
                self.old[row["tab"]] = one

    def wanted(self, name: str) -> TableSelection:
        """What of a table is wanted."""
        return self._subscription.selection(name)

    def is_wanted(self, one: ShownTable) -> bool:
        """Was it copied by this order, or by one that means the same?"""
        is_same = one.selection == self.wanted(one.table.name)
        return is_same and one.generation == self._subscription.generation


def definition(
    table: SourceTable,
    of: TableSelection | None,
    types: tuple[str, ...],
    drops: tuple[str, ...] = (),
) -> Jsonb:
    """What ``pgherd_subscriber.tables`` says of a table."""
    told = msgspec.to_builtins(table)
    if drops:
        told |= {"drops": list(drops)}
    if of is not None:
        told |= {"of": msgspec.to_builtins(of), "read_types": list(types)}
    return Jsonb(told)


def _shown(row: Mapping[str, Any]) -> ShownTable:
    """What a row of ``pgherd_subscriber.tables`` says; only feeders should have written it."""
    try:
        one = msgspec.convert(
            {"table": row["definition"]}
            | {
                name: row["definition"][name]
                for name in ("of", "read_types", "drops")
                if name in row["definition"]
            }
            | {name: row[name] for name in ("gid", "generation", "parts")},
            ShownTable,
        )
    except msgspec.ValidationError as error:
        raise damaged("tables") from error
    table = one.table
    fits = all(0 <= position < len(table.stored) for position in table.key)
    fits = fits and len(table.equality) in {0, len(table.key)}
    if not fits or (table.identity == "key") != bool(table.key) or table.name != row["tab"]:
        raise damaged("tables")
    return one


def damaged(table: str) -> StoppedError:
    """The reason to give for what no feeder has written."""
    return StoppedError(
        f"somebody has changed pgherd_subscriber.{table} at the subscriber: drop the schema"
        " pgherd_subscriber there, and `pgherd subscribe SET --to DSN --anew`"
    )


def has_columns(here: Mapping[str, Mapping[str, Any]], columns: Iterable[SourceColumn]) -> bool:
    """Are these columns there? Others may be, too."""
    return all(
        (found := here.get(column.name)) is not None
        and (found["type"], found["modifier"]) == (column.type, column.modifier)
        and (found["computed"] is not None) == column.generated
        for column in columns
    )
