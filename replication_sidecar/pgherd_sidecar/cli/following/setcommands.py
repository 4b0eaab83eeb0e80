"""``pgherd set``: which tables and sequences a set has."""

import json
from collections.abc import Sequence
from pathlib import Path

import click

from pgherd_sidecar.cli.following.working import NAMED, in_herd, set_named
from pgherd_sidecar.cli.shared import options
from pgherd_sidecar.client.errors import HerdError
from pgherd_sidecar.lazily import lazily

with lazily():
    from pgherd_sidecar.cli.shared import render
    from pgherd_sidecar.subscribing.failover import switchover as moves
    from pgherd_sidecar.subscribing.ordering import sets as ordered
    from pgherd_sidecar.subscribing.selecting import publication
    from pgherd_sidecar.subscribing.state import herd as herds
    from pgherd_sidecar.subscribing.state import sets
    from pgherd_sidecar.tables import sessions

_TABLES_HELP = (
    "Patterns, separated by commas: 'sales.*,public.customer'. A name without a schema is of the"
    " schema public."
)
_tables = click.option("--tables", default="", help=_TABLES_HELP)
_chosen = click.option(
    "--table", "chosen", multiple=True, metavar="TABLE",
    help="A table with a row filter, a column list or both, as FOR TABLE of CREATE PUBLICATION has"
    " it: \"sales.item (id, region) WHERE (region = 'EU')\". Repeat it for each such table.",
)  # fmt: skip
_sequences = click.option(
    "--sequences", default="",
    help="Patterns likewise. A sequence must belong to a column of a table of the set.",
)  # fmt: skip


@click.group("set")
def set_() -> None:
    """Sets of tables, which plain servers can subscribe to."""


@set_.command("create")
@click.argument("name", type=NAMED)
@_tables
@_chosen
@_sequences
@options.herd_directory
def create(name: str, tables: str, chosen: Sequence[str], sequences: str, directory: Path) -> None:
    """Make a set of the tables and sequences that there are now."""
    if not tables and not chosen:
        raise click.UsageError("give --tables, --table or both")

    async def work(session: "sessions.Session") -> "tuple[list[str], list[str]]":
        await herds.make(session)
        if any(one.name == name for one in await herds.sets(session)):
            raise HerdError(f"there is a set {name}: `pgherd set add {name} --tables ...`")
        parts = await publication.selections(session, chosen)
        named = await ordered.tables_like(session, _patterns(tables))
        found = sorted({*named, *(one.tab for one in parts)})
        owned = await ordered.owned(session, _patterns(sequences), found, parts)
        rows = [*ordered.added(name, found, owned), *ordered.selected(name, parts)]
        await herds.execute(session, [("add_set", {"name": name}), *rows])
        return found, owned

    found, owned = in_herd(directory, work)
    click.echo(f"set {name} has {_count(found, owned)}: {', '.join([*found, *owned])}")


@set_.command("add")
@click.argument("name", type=NAMED)
@_tables
@_chosen
@_sequences
@options.herd_directory
def add(name: str, tables: str, chosen: Sequence[str], sequences: str, directory: Path) -> None:
    """Add tables and sequences: subscribers show them together with the others."""
    _require_some(tables or ",".join(chosen), sequences)

    async def work(session: "sessions.Session") -> "tuple[list[str], list[str]]":
        known = await _changing(session, name)
        await herds.make(session)
        parts = await publication.selections(session, chosen)
        for one in parts:
            if one.tab in known.tables and one != herds.selection_of(one.tab, known.selections):
                raise HerdError(
                    f"set {name} has {herds.selection_of(one.tab, known.selections)}:"
                    f" `pgherd set alter {name} --table ...` changes that"
                )
        named = {*await ordered.tables_like(session, _patterns(tables))}
        named |= {one.tab for one in parts}
        found = sorted(named - set(known.tables))
        every = [*known.selections, *parts]
        owned = await ordered.owned(session, _patterns(sequences), [*known.tables, *found], every)
        owned = [one for one in owned if one not in known.sequences]
        rows = [*ordered.added(name, found, owned), *ordered.selected(name, parts)]
        await herds.execute(session, rows)
        return found, owned

    found, owned = in_herd(directory, work)
    names = ", ".join([*found, *owned]) or "it had all of them"
    click.echo(f"set {name} has {_count(found, owned)} more: {names}")


@set_.command("alter")
@click.argument("name", type=NAMED)
@_chosen
@options.herd_directory
def alter(name: str, chosen: Sequence[str], directory: Path) -> None:
    """Give tables another row filter or column list, or none: subscribers copy these tables anew.

    They show what they have until then.
    """
    if not chosen:
        raise click.UsageError("give --table")

    async def work(session: "sessions.Session") -> "list[str]":
        known = await _changing(session, name)
        await herds.make(session)
        parts = await publication.selections(session, chosen)
        for one in parts:
            if one.tab not in known.tables:
                raise HerdError(f"set {name} has no table {one.tab}: `pgherd set add {name}`")
        others = [one for one in parts if one != herds.selection_of(one.tab, known.selections)]
        await ordered.require_columns(session, known.sequences, others)
        if others:
            rows = [*ordered.selected(name, others), ("order_anew", {"name": name})]
            await herds.execute(session, rows)
        return [str(one) for one in others]

    found = in_herd(directory, work)
    names = ", ".join(found) or "it had all of them so"
    click.echo(f"set {name} has {_count(found, [])} otherwise: {names}")


@set_.command("remove")
@click.argument("name", type=NAMED)
@_tables
@_sequences
@options.herd_directory
def remove(name: str, tables: str, sequences: str, directory: Path) -> None:
    """Remove tables with their sequences: subscribers keep what they have, and get no more."""
    _require_some(tables, sequences)

    async def work(session: "sessions.Session") -> "tuple[list[str], list[str]]":
        known = await _changing(session, name)
        await herds.make(session)
        found = ordered.all_of(sets.matching(_patterns(tables), known.tables))
        named = ordered.all_of(sets.matching(_patterns(sequences), known.sequences))
        there = await herds.sequences(session)
        owned = [
            one for one in known.sequences
            if one in named or one not in there or there[one].tab in found
        ]  # fmt: skip
        await herds.execute(session, ordered.removed(name, found, owned))
        return found, owned

    found, owned = in_herd(directory, work)
    click.echo(f"set {name} has {_count(found, owned)} less: {', '.join([*found, *owned])}")


@set_.command("merge")
@click.argument("name", type=NAMED)
@click.argument("other", type=NAMED)
@options.herd_directory
def merge(name: str, other: str, directory: Path) -> None:
    """Take the tables of another set, which is dropped: it must have no subscribers.

    Subscribers of the first set copy the tables that are new to them.
    """

    async def work(session: "sessions.Session") -> "tuple[list[str], list[str]]":
        known, given = await _changing(session, name), await _changing(session, other)
        if name == other:
            raise HerdError(f"that is set {name} twice: name another one")
        if given.subscriptions:
            raise HerdError(
                f"{', '.join(given.subscriptions)} subscribe to set {other}: `pgherd unsubscribe`,"
                f" and subscribe to {name} afterwards"
            )
        await herds.make(session)
        for one in set(given.tables) & set(known.tables):
            mine, its = (herds.selection_of(one, which.selections) for which in (known, given))
            if mine != its:
                raise HerdError(
                    f"set {name} has {mine}, and set {other} has {its}:"
                    f" `pgherd set alter` gives both the same"
                )
        found = [one for one in given.tables if one not in known.tables]
        owned = [one for one in given.sequences if one not in known.sequences]
        parts = [one for one in given.selections if one.tab in found]
        await ordered.require_columns(session, [*known.sequences, *given.sequences], parts)
        rows = [*ordered.added(name, found, owned), *ordered.selected(name, parts)]
        rows.append(("drop_set", {"name": other}))
        await herds.execute(session, rows)
        return found, owned

    found, owned = in_herd(directory, work)
    click.echo(f"set {name} has {_count(found, owned)} more, and set {other} is dropped")


@set_.command("list")
@options.herd_directory
@options.as_json
def list_(directory: Path, as_json: bool) -> None:
    """Show all sets, their tables and who subscribes."""
    found = in_herd(directory, herds.sets)
    if as_json:
        told = [
            {
                "name": one.name,
                "tables": one.tables,
                "selections": [
                    {"table": part.tab, "columns": part.columns, "where": part.condition}
                    for part in one.selections
                ],
                "sequences": one.sequences,
                "subscriptions": one.subscriptions,
            }
            for one in found
        ]
        click.echo(json.dumps(told, indent=2))
        return
    rows = [
        (
            one.name,
            ", ".join(str(herds.selection_of(tab, one.selections)) for tab in one.tables),
            ", ".join(one.sequences),
            ", ".join(one.subscriptions),
        )
        for one in found
    ]
    click.echo(render.aligned(("NAME", "TABLES", "SEQUENCES", "SUBSCRIPTIONS"), rows))


@set_.command("drop")
@click.argument("name", type=NAMED)
@options.herd_directory
def drop(name: str, directory: Path) -> None:
    """Drop a set that nobody subscribes to."""

    async def work(session: "sessions.Session") -> None:
        await ordered.drop(session, await set_named(session, name))

    in_herd(directory, work)
    click.echo(f"set {name} is dropped")


async def _changing(session: "sessions.Session", name: str) -> "herds.TableSet":
    """A set that is to be changed, and does not move to a subscriber."""
    known = await set_named(session, name)
    await moves.require_at_rest(session, name)
    return known


def _patterns(given: str) -> list[str]:
    return given.split(",") if given else []


def _require_some(tables: str, sequences: str) -> None:
    if not tables and not sequences:
        raise click.UsageError("give --tables, --sequences or both")


def _count(tables: Sequence[str], sequences: Sequence[str]) -> str:
    some = [("table", len(tables)), ("sequence", len(sequences))]
    told = [f"{count} {what}{'' if count == 1 else 's'}" for what, count in some if count]
    return " and ".join(told) or "nothing"
