"""``pgherd subscribe``, ``subscriptions`` and ``unsubscribe``: who follows a set."""

import json
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from pgherd_sidecar.cli.following import cascade
from pgherd_sidecar.cli.following.working import NAMED, in_herd, set_named
from pgherd_sidecar.cli.shared import options
from pgherd_sidecar.client.errors import HerdError, progress
from pgherd_sidecar.lazily import lazily

with lazily():
    from pgherd_sidecar.cli.shared import render
    from pgherd_sidecar.client import routes
    from pgherd_sidecar.local import herd
    from pgherd_sidecar.local.operations import growing
    from pgherd_sidecar.subscribing import overview
    from pgherd_sidecar.subscribing.ordering import subscriptions as ordered
    from pgherd_sidecar.subscribing.state import herd as herds
    from pgherd_sidecar.tables import sessions

_LOOK_S = 0.5
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE_MIN = 1 << 20
"""Members know what their logs hold up to a step of 64 kB."""
_SIZE = re.compile(r"(\d+)\s*([kmgt]?)(i?b)?", re.IGNORECASE)


class _Size(click.ParamType[Any]):
    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See click."""
        found = _SIZE.fullmatch(str(value))
        if found is None:
            self.fail("a size is a number with k, M, G or T behind it", param, ctx)
        size = int(found[1]) * _UNITS[found[2].lower()]
        if size < _SIZE_MIN:
            self.fail("it is less than 1M", param, ctx)
        return size


@click.command()
@click.argument("set_name", metavar="SET", type=NAMED)
@click.option(
    "--to", "dsn", metavar="DSN", envvar=options.SUBSCRIBER, show_envvar=True,
    help="Connection string of the subscriber, as those reach it who feed it. `-` reads it from the"
    " standard input: do so if it has a password, which the list of processes would show."
    " [default: as it is]",
)  # fmt: skip
@click.option("--name", type=NAMED, help="Of the subscription. [default: that of the set]")
@click.option("--anew", is_flag=True, help="Copy everything anew; what is shown stays until then.")
@click.option(
    "--keep-bytes", type=_Size(),
    help="So much of its log each member keeps for the subscriber. [default: as it is; at first"
    " 8G]",
)  # fmt: skip
@click.option(
    "--keep-hours", type=options.Number(min=0, min_open=True, max=744),
    help="For so long members keep it since they reached the subscriber last. [default: as it is;"
    " at first 72]",
)  # fmt: skip
@click.option(
    "--provider", type=NAMED, metavar="NAME",
    help="A subscription to this set with --forward, whose subscriber feeds this one; `herd` are"
    " the members. [default: as it is; at first the members]",
)  # fmt: skip
@click.option(
    "--forward/--no-forward", default=None,
    help="The subscriber keeps what it gets, and may be the provider of others: run"
    " `pgherd forward` beside it. [default: as it is; at first not]",
)  # fmt: skip
@click.option("--wait", is_flag=True, help="Until the first copy is shown.")
@options.herd_directory
def subscribe(  # noqa: PLR0913, PLR0917 - one for each option
    set_name: str,
    dsn: str | None,
    name: str | None,
    anew: bool,
    keep_bytes: int | None,
    keep_hours: float | None,
    provider: str | None,
    forward: bool | None,
    wait: bool,
    directory: Path,
) -> None:
    """Have a plain PostgreSQL or a herd follow a set of tables; or go on where that was stopped.

    The members feed it from now on, or its provider, whatever becomes of this command. One that is
    fed already may be given another provider: nothing is copied for that.
    """
    name = name or set_name
    to = sys.stdin.readline().strip() if dsn == "-" else dsn

    async def work(session: "sessions.Session") -> bool:
        await set_named(session, set_name)
        await herds.ask(session, "strong")
        all_known = await herds.subscriptions(session)
        before = next((one for one in all_known if one.name == name), None)
        where = to or (before.dsn if before is not None else None)
        if not where:
            raise HerdError(f"there is no subscription {name} yet: give --to DSN")
        wanted = routes.SubscriptionRequest(
            name, set_name, where, *cascade.limits(keep_bytes, keep_hours, before),
            cascade.provider_of(provider, before), cascade.forwards(forward, before),
            resume=True, anew_after=before.generation if before and anew else None,
        )  # fmt: skip
        await ordered.order(session, wanted)
        return before is not None

    before = in_herd(directory, work)
    click.echo(
        f"subscription {name} {'goes on' if before else 'has begun'}; `pgherd subscriptions` shows"
        " how far it is"
    )
    if wait:
        in_herd(directory, lambda session: _until_followed(session, name))


@click.command()
@options.herd_directory
@options.as_json
def subscriptions(directory: Path, as_json: bool) -> None:
    """Show all subscriptions, and how far behind the herd each of them is."""
    description = herd.load(options.owned(directory))

    async def work(session: "sessions.Session") -> "list[overview.SubscriptionState]":
        wanted = await herds.subscriptions(session)
        (row,) = await herds.ask(session, "visible")
        held: dict[str, int] = {}
        for voice in await growing.voices(description):
            for one in voice.status.log_holds:
                kind, _, name = one.hold.partition("subscription ")
                if kind == "stream:":
                    held[name] = max(held.get(name, 0), one.bytes)
        return await overview.states(wanted, row["gid"], held)

    found = in_herd(directory, work)
    if as_json:
        click.echo(json.dumps([asdict(one) for one in found], indent=2))
        return
    rows = [
        (
            one.name, one.set, one.provider or herds.HERD, one.state, _text(one.gid),
            _text(one.lag_gids), _text(one.lag_bytes), _text(one.lag_s),
            f"{one.tables[0]}/{one.tables[1]}",
        )
        for one in found
    ]  # fmt: skip
    head = ("NAME", "SET", "PROVIDER", "STATE", "GID", "LAG", "BYTES", "SECONDS", "TABLES")
    click.echo(render.aligned(head, rows))
    for one in found:
        if one.reason:
            click.echo(f"{one.name}: {one.reason}")


@click.command()
@click.argument("name", type=NAMED)
@options.herd_directory
@click.option(
    "--herd-only", is_flag=True, help="The subscriber is gone: leave what is there as it is."
)
@click.option(
    "--followers-to",
    "heir",
    type=NAMED,
    metavar="NAME",
    help="What is fed from it gets this provider: another subscription, or `herd`.",
)
def unsubscribe(name: str, directory: Path, herd_only: bool, heir: str | None) -> None:
    """End a subscription: the subscriber keeps its tables and rows, and takes writes again.

    One that feeds others is ended only if these are handed over to another provider.
    """

    async def work(session: "sessions.Session") -> str:
        teller = await ordered.end(session, name, herd_only=herd_only, heir=heir)
        return f"; {teller} gives it its tables back when it hears of it" if teller else ""

    more = in_herd(directory, work)
    click.echo(f"subscription {name} has ended{more}")


async def _until_followed(session: "sessions.Session", name: str) -> None:
    import asyncio  # noqa: PLC0415 - not for --help

    while True:
        known = await herds.subscriptions(session)
        one = next((one for one in known if one.name == name), None)
        if one is None or one.stopped:
            raise HerdError(f"subscription {name}: {one.stopped if one else 'it has ended'}")
        asked = ordered.with_providers(name, known)
        state = next(one for one in await overview.states(asked, 0, {}) if one.name == name)
        if state.state == "following":
            progress(f"the subscriber shows GID {state.gid}")
            return
        await asyncio.sleep(_LOOK_S)


def _text(value: object) -> str:
    return "-" if value is None else str(value)
