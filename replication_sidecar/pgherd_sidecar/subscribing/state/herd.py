"""Sets and subscriptions, as the herd keeps them: ordinary rows, so all members have the same."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, LiteralString

import msgspec
import psycopg
from psycopg.types.json import Jsonb

from pgherd_sidecar.queries import statements
from pgherd_sidecar.subscribing.state.errors import StoppedError
from pgherd_sidecar.tables.model import SourceTable
from pgherd_sidecar.tables.sessions import Session

_ATTEMPTS = 20
_PARTS = (
    "schema", "set", "set_table", "subscription", "set_sequence", "unable", "cascade", "selection",
    "ended", "move", "refusal",
)  # fmt: skip
FENCED = 1 << 62
"""The revision of no order of a herd: no feeder of it writes there any more."""
TAKEN_OVER = FENCED + 1
"""Likewise; of a subscriber that a failover has had take writes."""
RELEASED = FENCED + 2
"""Likewise; of one that a switchover has had take writes, so nothing is lost."""
TAKES_WRITES = frozenset({TAKEN_OVER, RELEASED})
HERD = "herd"
"""In place of the name of a provider: the members. No subscription has this name."""


class TableSelection(msgspec.Struct, frozen=True):
    """What of a table a set has: a row filter and a column list, as PostgreSQL's publications have.

    Attributes:
        tab: name of the table.
        columns: that subscribers get, in the order of the table; None: all.
        condition: of the rows that they get, in SQL as PostgreSQL writes it; None: all rows.
        reads: the columns that the condition reads.
    """

    tab: str
    columns: tuple[str, ...] | None = None
    condition: str | None = None
    reads: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """It is all of the table."""
        return self.columns is None and self.condition is None

    def has(self, column: str) -> bool:
        """Do subscribers get this column?"""
        return self.columns is None or column in self.columns

    def __str__(self) -> str:
        columns = "" if self.columns is None else f" ({', '.join(self.columns)})"
        return self.tab + columns + ("" if self.condition is None else f" WHERE {self.condition}")


def selection_of(tab: str, known: Iterable[TableSelection]) -> TableSelection:
    """What of a table there is in a set, of which these selections are known."""
    return next((one for one in known if one.tab == tab), TableSelection(tab))


class Subscription(msgspec.Struct, frozen=True):
    """What somebody has ordered.

    Attributes:
        set: name of the set.
        dsn: how members reach the subscriber.
        generation: grows when everything is to be copied anew.
        keep_bytes: of the log that are kept for it.
        keep_s: seconds for which the log is kept since the subscriber was reached last.
        confirmed: the subscriber shows this GID or a later one.
        stopped: why it is not fed.
        tables: of the set.
        sequences: of the set.
        provider: the subscription whose subscriber feeds this one; None: the members do.
        forward: its subscriber keeps what it gets, and may feed others.
        revision: grows with each order. Of two who mean to feed it the later order counts.
        selections: of the tables that the set has not got as a whole.
        ended: earlier subscriptions of this name had orders up to this revision. It is handed down.
        silent: likewise those whose subscribers do not hear that they have ended.
    """

    name: str
    set: str
    dsn: str
    generation: int
    keep_bytes: int
    keep_s: float
    confirmed: int | None
    stopped: str | None
    tables: tuple[str, ...]
    sequences: tuple[str, ...] = ()
    provider: str | None = None
    forward: bool = False
    revision: int = 0
    selections: tuple[TableSelection, ...] = ()
    ended: int = 0
    silent: int = 0

    def selection(self, tab: str) -> TableSelection:
        """What of a table it is to."""
        return selection_of(tab, self.selections)

    def fed_by(self, provider: str | None) -> "Subscription":
        """The same with another provider."""
        return msgspec.structs.replace(self, provider=provider)

    def is_as(self, other: "Subscription") -> bool:
        """Nothing is different for which feeding has to begin anew."""
        return msgspec.structs.replace(self, confirmed=None) == msgspec.structs.replace(
            other, confirmed=None
        )


class TableSet(msgspec.Struct, frozen=True):
    """A set of tables and sequences, and who subscribes to it.

    Attributes:
        selections: of the tables that it has not got as a whole.
    """

    name: str
    tables: tuple[str, ...]
    sequences: tuple[str, ...]
    subscriptions: tuple[str, ...]
    selections: tuple[TableSelection, ...] = ()


class HerdTable(msgspec.Struct, frozen=True):
    """A table of a member.

    Attributes:
        table: its columns and key.
        parts: its rows are in partitions.
        declared: what stands in the parentheses of a CREATE TABLE for it.
        image: becomes another text by DDL that changes rows, and by TRUNCATE.
        types: of all of its columns, with their modifiers.
        selection: what of it this is about.
        read_types: of the columns that a row filter reads, as a cast has them.
    """

    table: SourceTable
    parts: bool
    declared: str
    image: str
    types: tuple[str, ...]
    selection: TableSelection | None = None
    read_types: tuple[str, ...] = ()

    @property
    def chosen(self) -> TableSelection:
        """What of it this is about."""
        return self.selection or TableSelection(self.table.name)


class HerdSequence(msgspec.Struct, frozen=True):
    """A sequence that a column of a table owns.

    Attributes:
        tab: name of the table.
        column: that it gives numbers to.
        type: of its numbers.
        step: as the user means it; members deal the numbers out among them.
        least: the smallest number that it gives.
        greatest: the largest one.
        last: the last number that this member has given out; None if it has given out none.
    """

    name: str
    schema: str
    relation: str
    tab: str
    column: str
    type: str
    step: int
    least: int
    greatest: int
    last: int | None

    def further(self, one: int | None, other: int | None) -> int | None:
        """Of two numbers the one that the sequence comes to later."""
        known = [number for number in (one, other) if number is not None]
        return (max if self.step > 0 else min)(known, default=None)


def herd_query(name: str) -> LiteralString:
    """A statement of ``sql/herd.sql``."""
    return statements("pgherd_sidecar.subscribing", "herd")[name]


async def ask(session: Session, name: str, /, **values: Any) -> list[dict[str, Any]]:
    """What a statement of ``sql/herd.sql`` gives."""
    cursor = await session.execute(herd_query(name), values or None)
    return await cursor.fetchall() if cursor.description else []


async def is_made(session: Session) -> bool:
    """Is there a set in this herd?"""
    return bool((await ask(session, "exists"))[0]["found"])


async def make(session: Session) -> None:
    """Make the tables that hold sets and subscriptions, if they are not there."""
    if await is_made(session):
        return
    async with session.transaction():
        await _make(session, _PARTS)


async def keep_ends(session: Session) -> None:
    """Have a table of ends, which a herd lacks that had sets before there was one."""
    if not (await ask(session, "keeps_ends"))[0]["found"]:
        async with session.transaction():
            await _make(session, ["ended"])


async def _make(session: Session, parts: Iterable[str]) -> None:
    for part in parts:
        await session.execute(herd_query(f"make_{part}"))
    for row in await ask(session, "unprotected"):
        table = f"pgherd_subscriptions.{row['name']}"
        await session.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY".encode())


async def unable(session: Session, name: str, generation: int) -> dict[str, str]:
    """Why members can't feed a subscription, by name of the member."""
    found = await ask(session, "unable", name=name, generation=generation)
    return {row["member"]: row["why"] for row in found}


async def cluster(session: Session) -> str:
    """The id of this herd."""
    return str((await ask(session, "cluster"))[0]["cluster"])


async def sets(session: Session) -> list[TableSet]:
    """All sets."""
    found = await ask(session, "sets") if await is_made(session) else []
    return [msgspec.convert(row, TableSet) for row in found]


async def subscriptions(session: Session) -> list[Subscription]:
    """All subscriptions."""
    if not await is_made(session):
        return []
    return [msgspec.convert(row, Subscription) for row in await ask(session, "subscriptions")]


async def handed_down(session: Session, known: Sequence[Subscription]) -> list[Subscription]:
    """What is handed down a cascade: subscriptions, and which of their name have ended before.

    One of which some order has ended without a word to its subscriber is among them, as one that
    nobody feeds: one that is missing would be told of its end.

    Args:
        known: was read before, so whatever is missing there has its end noted here.
    """
    if not (await ask(session, "keeps_ends"))[0]["found"]:
        return list(known)
    ends = {(row["set"], row["name"]): row for row in await ask(session, "ends")}
    found = []
    for one in known:
        end = ends.pop((one.set, one.name), {"revision": 0, "silent": 0})
        found.append(msgspec.structs.replace(one, ended=end["revision"], silent=end["silent"]))
    gone = [
        Subscription(
            row["name"], row["set"], "", 0, 0, 0.0, None, None, (),
            revision=row["revision"], ended=row["revision"], silent=row["silent"],
        )
        for row in ends.values()
        if row["silent"]
    ]  # fmt: skip
    return [*gone, *found]  # the later one counts where another set has its name


async def sequences(session: Session) -> dict[str, HerdSequence]:
    """All sequences that can be in sets, by name."""
    found = (msgspec.convert(row, HerdSequence) for row in await ask(session, "sequences"))
    return {one.name: one for one in found}


async def describe(
    session: Session, names: Iterable[str], selections: Iterable[TableSelection] = ()
) -> dict[str, HerdTable]:
    """The tables that there are of these names, with the columns that are selected of them.

    Raises:
        StoppedError: a selection does not fit to its table any more.
    """
    known = {one.tab: one for one in selections}
    columns = {name: one.columns for name, one in known.items() if one.columns is not None}
    types = await read_types(session, known.values()) if known else {}
    found = {}
    for row in await ask(session, "describe", names=list(names), columns=Jsonb(columns)):
        table = msgspec.convert(row, SourceTable)
        selection = known.get(table.name)
        one = HerdTable(
            table, row["parts"], row["declared"], row["image"], tuple(row["types"]), selection,
            types.get(table.name, ()),
        )  # fmt: skip
        if selection is not None:
            _require_fit(one, selection, row["key_columns"])
        found[table.name] = one
    return found


async def read_types(
    session: Session, selections: Iterable[TableSelection]
) -> dict[str, tuple[str, ...]]:
    """Of the columns that row filters read, as a cast has them; without those of users' types."""
    reads = {one.tab: one.reads for one in selections}
    found = await ask(session, "read_types", reads=Jsonb(reads))
    return {row["tab"]: tuple(row["types"]) for row in found}


def _require_fit(found: HerdTable, selection: TableSelection, key_columns: int) -> None:
    """Check that a table has the columns that are selected, and its key among them.

    Raises:
        StoppedError: it has not.
    """
    table, columns = found.table, selection.columns
    is_there = columns is None or {one.name for one in table.columns} == set(columns)
    has_key = columns is None or len(table.key) == key_columns > 0
    if is_there and has_key and len(found.read_types) == len(selection.reads):
        return
    raise StoppedError(
        f"{table.name} has other columns or another key than its column list and its row filter"
        " need: `pgherd set alter` gives it others; then repeat `pgherd subscribe`"
    )


async def execute(
    session: Session,
    work: Sequence[tuple[str, dict[str, Any]]],
    check: Callable[[], Awaitable[None]] | None = None,
) -> int:
    """Execute statements of ``sql/herd.sql`` in one transaction, again after a lost conflict.

    Args:
        work: names of statements, and their values.
        check: is done first in that transaction, each time; what it raises ends the work.

    Returns:
        The number of rows that the last one concerned.

    Raises:
        StoppedError: it loses all the time.
        psycopg.Error: the herd says no.
    """
    for _ in range(_ATTEMPTS):
        count = 0
        try:
            async with session.transaction():
                await session.execute(herd_query("not_logged"))
                if check is not None:
                    await check()
                for name, values in work:
                    count = (await session.execute(herd_query(name), values)).rowcount
        except (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected):
            continue
        return count
    raise StoppedError("other transactions of the herd were always first: repeat the command")
