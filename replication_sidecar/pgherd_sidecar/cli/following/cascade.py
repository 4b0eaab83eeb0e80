"""Subscribers that feed others: what ``pgherd subscribe`` checks, and ``pgherd forward``."""

import sys
from collections.abc import Sequence
from typing import Any

import click

from pgherd_sidecar.cli.shared import options
from pgherd_sidecar.client.errors import HerdError
from pgherd_sidecar.lazily import lazily

with lazily():
    from pgherd_sidecar.subscribing import care as cares
    from pgherd_sidecar.subscribing import forwarder as forwarders
    from pgherd_sidecar.subscribing.failover import takeover
    from pgherd_sidecar.subscribing.state import errors
    from pgherd_sidecar.subscribing.state import herd as herds
    from pgherd_sidecar.tables import sessions


def provider_of(given: str | None, before: "herds.Subscription | None") -> str | None:
    """The provider that is meant; None are the members.

    Args:
        given: in the command; None: nothing.
        before: the subscription as it is, if there is one.
    """
    if given is not None:
        return None if given == herds.HERD else given
    return before.provider if before is not None else None


def forwards(given: bool | None, before: "herds.Subscription | None") -> bool:
    """Whether it is meant to forward; arguments as of ``provider_of``."""
    if given is not None:
        return given
    return before.forward if before is not None else False


def limits(
    keep_bytes: int | None, keep_hours: float | None, before: "herds.Subscription | None"
) -> tuple[int, float]:
    """The bytes and seconds of the log that are kept for it; arguments as of ``provider_of``."""
    size, seconds = 8 << 30, 72 * 3600.0
    if before is not None:
        size, seconds = before.keep_bytes, before.keep_s
    return (
        size if keep_bytes is None else keep_bytes,
        seconds if keep_hours is None else keep_hours * 3600,
    )


@click.command()
@click.option(
    "--at", "dsn", required=True, metavar="DSN", envvar=options.SUBSCRIBER, show_envvar=True,
    help="Connection string of the subscriber that forwards; `-` reads it from the standard input.",
)  # fmt: skip
def forward(dsn: str) -> None:
    """Feed others from a subscriber with --forward, until a signal ends it.

    It runs on a machine that reaches that subscriber and those that are to be fed from there, and
    needs to reach no member. It keeps nothing, so it may be started again at any time, and several
    may run.
    """
    import psycopg  # noqa: PLC0415 - not for --help

    cares.log_to_standard_error()
    cares.collect_seldom()
    dsn = sys.stdin.readline().strip() if dsn == "-" else dsn
    try:
        options.serve(forwarders.Forwarder(dsn).run())
    except errors.StoppedError as error:
        raise HerdError(str(error)) from error
    except psycopg.Error as error:
        raise HerdError(sessions.message_of(error)) from error


class _Place(click.ParamType[Any]):
    name = "NAME=DSN"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See click."""
        name, is_there, dsn = str(value).partition("=")
        if value == "-":
            return name, ""
        if not is_there or not dsn or "://" in name or " " in name:
            self.fail("give NAME=DSN: a subscription, and how to reach its subscriber", param, ctx)
        return name, dsn


_PLACE = _Place()


@click.command()
@click.option(
    "--at", "places", multiple=True, required=True, type=_PLACE, metavar="NAME=DSN",
    help="A subscription, and the connection string of its subscriber; repeat it for each one that"
    " is to go on. `-` reads them from the standard input, one a line.",
)  # fmt: skip
@click.option("--yes", is_flag=True, help="Do it. Without, it is only said what would be done.")
def failover(places: "Sequence[tuple[str, str]]", yes: bool) -> None:
    """Have the most advanced of a lost herd's subscribers take writes, and level the others.

    It asks the subscribers and not the herd, whose feeders write to none of them afterwards. Those
    that are behind get what is missing from the first one's log, if that one forwards.
    """
    import psycopg  # noqa: PLC0415 - not for --help

    cares.log_to_standard_error()
    if any(name == "-" for name, _ in places):
        lines = [line.strip() for line in sys.stdin if line.strip()]
        places = [_PLACE.convert(line, None, None) for line in lines]

    async def work() -> None:
        found = [await takeover.look(*place) for place in places]
        first = takeover.chosen(found)
        if yes:
            first, others = await takeover.take_over(found)
        else:
            others = [one for one in found if one.name != first.name]
        click.echo(_taken(first, others, yes=yes))

    try:
        options.run(work())
    except errors.StoppedError as error:
        raise HerdError(str(error)) from error
    except TimeoutError as error:
        raise HerdError(
            "a feeder of the herd, or another failover, does not leave: repeat the command"
        ) from error
    except psycopg.Error as error:
        raise HerdError(
            f"{sessions.message_of(error)}: leave out what can't be reached; it needs a copy then"
        ) from error


def _taken(first: "takeover.Survivor", others: "Sequence[takeover.Survivor]", *, yes: bool) -> str:
    """The steps that were taken, or would be."""
    takes = "takes writes" if yes or first.has_taken_over else "would take writes"
    lines = [f"{first.name} {takes}, at GID {first.gid}"]
    for one in others:
        if one.gid == first.gid:
            lines.append(f"{one.name} is level, at GID {one.gid}")
        elif one.fault or not first.feeds(one):
            why = f": {one.fault}" if one.fault else ""
            lines.append(f"{one.name} is left at GID {one.gid} and needs a copy{why}")
        else:
            lines.append(f"{one.name} would be brought from GID {one.gid} to GID {first.gid}")
    lines.append(
        f"what the herd has committed after GID {first.gid} is not there: as long as the log of a"
        f" member can be read, `pgherd changes --after {first.gid}` names it, row by row"
    )
    if not yes:
        lines.append("nothing was done: give --yes if the herd is lost for good")
    return "\n".join(lines)
