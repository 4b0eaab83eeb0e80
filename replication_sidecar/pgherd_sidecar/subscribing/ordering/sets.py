"""Sets: what patterns and row filters mean, and the statements that make a set so."""

from collections.abc import Iterable, Sequence
from typing import Any

from pgherd_sidecar.client.errors import HerdError
from pgherd_sidecar.client.routes import SetRequest
from pgherd_sidecar.subscribing.failover import switchover
from pgherd_sidecar.subscribing.selecting import publication
from pgherd_sidecar.subscribing.state import herd
from pgherd_sidecar.subscribing.state.herd import TableSelection, TableSet
from pgherd_sidecar.subscribing.state.sets import matching
from pgherd_sidecar.tables.sessions import Session

Statements = list[tuple[str, dict[str, Any]]]
"""Names of statements of ``sql/herd.sql``, and their values."""
_DROP_S = 30.0


async def tables_like(session: Session, patterns: Iterable[str]) -> list[str]:
    """The tables that patterns mean.

    Raises:
        HerdError: one of them means none.
    """
    names = [row["name"] for row in await herd.ask(session, "tables_like")]
    return all_of(matching(patterns, names))


async def owned(
    session: Session,
    patterns: Iterable[str],
    tables: Sequence[str],
    parts: Sequence[TableSelection],
) -> list[str]:
    """Sequences of columns of tables, as far as these columns are in the set.

    Raises:
        HerdError: a pattern means none.
    """
    known = await herd.sequences(session)
    names = [
        name
        for name, one in known.items()
        if one.tab in tables and herd.selection_of(one.tab, parts).has(one.column)
    ]
    return all_of(
        matching(patterns, names),
        "no sequence of a column of the set's tables is meant by {}: ALTER SEQUENCE ... OWNED BY",
    )


async def require_columns(
    session: Session, names: Sequence[str], parts: Sequence[TableSelection]
) -> None:
    """Check that tables go on to have the columns of a set's sequences.

    Raises:
        HerdError: one of them does not.
    """
    known = await herd.sequences(session) if names else {}
    for name in names:
        one = known.get(name)
        if one is not None and not herd.selection_of(one.tab, parts).has(one.column):
            raise HerdError(
                f"sequence {name} of the set needs column {one.column} of {one.tab}: put it into"
                " the list, or `pgherd set remove --sequences`"
            )


def all_of(
    found: dict[str, list[str]],
    none: str = "no table is meant by {}: give --tables 'SCHEMA.TABLE'",
) -> list[str]:
    """Whatever patterns mean, once.

    Raises:
        HerdError: one of them means nothing.
    """
    for pattern, names in found.items():
        if not names:
            raise HerdError(none.format(pattern))
    return sorted({name for names in found.values() for name in names})


def added(name: str, tables: Iterable[str], sequences: Iterable[str]) -> Statements:
    """The statements that give a set tables and sequences."""
    return [
        *(("add_table", {"name": name, "tab": one}) for one in tables),
        *(("add_sequence", {"name": name, "seq": one}) for one in sequences),
    ]


def removed(name: str, tables: Iterable[str], sequences: Iterable[str]) -> Statements:
    """The statements that take tables and sequences out of a set."""
    return [
        *(("remove_table", {"name": name, "tab": one}) for one in tables),
        *(("remove_sequence", {"name": name, "seq": one}) for one in sequences),
    ]


def selected(name: str, parts: Iterable[TableSelection]) -> Statements:
    """The statements that give tables of a set what is to be of them."""
    return [
        (
            "select_all" if one.is_whole else "select",
            {
                "name": name,
                "tab": one.tab,
                "columns": None if one.columns is None else list(one.columns),
                "condition": one.condition,
                "reads": list(one.reads),
            },
        )
        for one in parts
    ]


async def order(session: Session, wanted: SetRequest) -> tuple[TableSet, list[str]]:
    """Have a set be as it is wanted: with these tables and sequences, and no others.

    Returns:
        The set, and the tables that its selections are of.

    Raises:
        HerdError, StoppedError: it can't be so; nothing was changed.
        psycopg.Error: the herd says no.
    """
    await herd.ask(session, "strong")
    known = await named(session, wanted.name)
    parts = _as_known(wanted, known)
    if parts is None:
        parts = await publication.selections(session, wanted.chosen)
    chosen = [one.tab for one in parts]
    meant = await tables_like(session, wanted.tables)
    excluded = {one for names in matching(wanted.exclude, meant).values() for one in names}
    tables = sorted({*meant} - excluded | {*chosen})
    sequences = await owned(session, wanted.sequences, tables, parts)
    before = known or TableSet(wanted.name, (), (), ())
    selections = [herd.selection_of(tab, parts) for tab in tables]
    others = [one for one in selections if one != herd.selection_of(one.tab, before.selections)]
    work = [
        *removed(
            wanted.name,
            (one for one in before.tables if one not in tables),
            (one for one in before.sequences if one not in sequences),
        ),
        *added(
            wanted.name,
            (one for one in tables if one not in before.tables),
            (one for one in sequences if one not in before.sequences),
        ),
        *selected(wanted.name, others),
    ]
    if any(one.tab in before.tables for one in others):
        work.append(("order_anew", {"name": wanted.name}))
    if known is None:
        await herd.make(session)
        await herd.execute(session, [("add_set", {"name": wanted.name}), *work])
    elif work:
        await switchover.require_at_rest(session, wanted.name)
        await herd.execute(session, work)
    partial = tuple(one for one in selections if not one.is_whole)
    followers = before.subscriptions
    return TableSet(wanted.name, tuple(tables), tuple(sequences), followers, partial), chosen


async def drop(session: Session, known: TableSet) -> None:
    """Drop a set; its tables take writes again if they do not because of a move.

    Raises:
        HerdError: somebody subscribes to it.
        psycopg.Error: the herd says no.
    """
    if known.subscriptions:
        raise HerdError(
            f"{', '.join(known.subscriptions)} subscribe to set {known.name}: `pgherd unsubscribe`"
        )
    if await switchover.known(session, known.name) is not None:
        await switchover.Switchover(session, known.name, _DROP_S).unlock()
    await herd.execute(session, [("drop_set", {"name": known.name})])


async def named(session: Session, name: str) -> TableSet | None:
    """The set of a name, if there is one."""
    return next((one for one in await herd.sets(session) if one.name == name), None)


def _as_known(wanted: SetRequest, known: TableSet | None) -> list[TableSelection] | None:
    """The selections, if they were read before and the set has them; None: they are to be read.

    Reading takes locks that a vacuum waits for, so it is not done at each look.
    """
    told = wanted.chosen_tables
    if wanted.chosen and (not told or known is None or not {*told} <= {*known.tables}):
        return None
    if known is None or not wanted.chosen:
        return []
    return [herd.selection_of(tab, known.selections) for tab in told]
