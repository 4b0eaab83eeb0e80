"""What these commands share: the form of names, and work in a session of a member."""

import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from pgherd_sidecar.cli.shared import options
from pgherd_sidecar.client.errors import HerdError, progress
from pgherd_sidecar.lazily import lazily

with lazily():
    from pgherd_sidecar.local import herd
    from pgherd_sidecar.subscribing.state import errors
    from pgherd_sidecar.subscribing.state import herd as herds
    from pgherd_sidecar.tables import sessions

Result = TypeVar("Result")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,39}")


class _Name(click.ParamType[Any]):
    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See click."""
        if not _NAME.fullmatch(str(value)):
            self.fail("at most 40 letters, digits, dots, dashes and underscores", param, ctx)
        return value


NAMED = _Name()
"""The type of the name of a set or a subscription."""


async def set_named(session: "sessions.Session", name: str) -> "herds.TableSet":
    found = {one.name: one for one in await herds.sets(session)}
    if name not in found:
        raise HerdError(f"there is no set {name}: `pgherd set create {name} --tables ...`")
    return found[name]


def in_herd(
    directory: Path,
    work: "Callable[[sessions.Session], Awaitable[Result]]",
    *,
    again_s: float = 0.0,
) -> Result:
    """Do something in a session of a member that takes writes.

    Args:
        directory: the herd's.
        work: what to do.
        again_s: work that may be repeated begins anew for so long, in seconds, where its session
            is lost.

    Raises:
        HerdError: no member does, or the work can't be done.
    """
    import psycopg  # noqa: PLC0415 - not for --help

    description = herd.load(options.read_only(directory))
    limit = time.monotonic() + again_s

    async def run() -> Result:
        said = "no node"
        for member in description.databases:
            try:
                session = await sessions.connect(description.dsn(member), "pgherd subscriptions")
            except psycopg.Error as error:
                said = f"{member.name}: {sessions.message_of(error)}"
                continue
            try:
                cursor = await session.execute("SELECT writable FROM pgherd.node")
                row = await cursor.fetchone()
                if row is not None and row["writable"]:
                    return await work(session)
                said = f"{member.name} takes no writes"
            except psycopg.Error as error:
                if not session.closed or time.monotonic() > limit:
                    raise
                progress(f"{member.name}: {sessions.message_of(error)}; once more")
                return await run()
            finally:
                await session.close()
        raise HerdError(f"no node takes writes ({said}): `pgherd status` tells more")

    try:
        return options.run(run())
    except errors.StoppedError as error:
        raise HerdError(str(error)) from error
    except psycopg.Error as error:
        raise HerdError(sessions.message_of(error)) from error
