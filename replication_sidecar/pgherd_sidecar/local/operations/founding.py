"""Makes a herd of a plain server that runs: one that has followed a herd, or any other.

The steps are those of other commands. Each says by itself whether it was done, so a command that
was killed may be repeated::

    look        nothing is made
    herd        herd.json names the server
    take over   the server says so itself: subscribing/failover
    import      the herd says how far it is: importing
    switched    herd.json, from the cut-over on
    done        herd.json, when nothing is left of the import
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pgherd_sidecar.client.errors import HerdError
from pgherd_sidecar.importing import cutover, preflight
from pgherd_sidecar.importing.ends import source
from pgherd_sidecar.importing.ends.connections import SourceAddress, without_password
from pgherd_sidecar.importing.ends.errors import Unfit
from pgherd_sidecar.importing.engine import Engine, Ways
from pgherd_sidecar.local import binaries, herd
from pgherd_sidecar.local.herd import Herd, TakenServer
from pgherd_sidecar.local.lock import locked
from pgherd_sidecar.local.operations import lifecycle
from pgherd_sidecar.local.operations.lifecycle import UpOptions
from pgherd_sidecar.subscribing.failover import follower
from pgherd_sidecar.subscribing.state.errors import StoppedError


@dataclass(frozen=True, slots=True)
class FoundOptions:
    """What the user asked for.

    Attributes:
        dsn: connection string of the plain server.
        takes_over: if it follows a herd that is lost, it takes over first.
        up: how the herd is made.
    """

    dsn: str
    takes_over: bool
    up: UpOptions


@dataclass(frozen=True, slots=True)
class Founded:
    """What became of it.

    Attributes:
        description: of the herd.
        done: the cut-over, if this run has done it.
        before: an earlier run has left nothing to do.
    """

    description: Herd
    done: cutover.Done | None
    before: bool = False


class FoundRun:
    """One run of `pgherd found`.

    Args:
        directory: of the herd.
        options: what the user asked for.
        ways_of: what an import into a herd works with.
        say: a line about a step.
    """

    def __init__(
        self,
        directory: Path,
        options: FoundOptions,
        ways_of: Callable[[Herd], Ways],
        say: Callable[[str], None],
    ) -> None:
        self._directory = directory
        self._options = options
        self._ways_of = ways_of
        self._say = say
        self._is_lost = False  # this run has seen that no herd feeds the source

    async def look(self) -> TakenServer:
        """Look for what is in the way, at the server and in the directory; nothing is made.

        Raises:
            HerdError: the directory holds another herd, or the server follows one.
            Unfit: the server can't be taken over as it is.
            ImportFailed: it can't be reached.
        """
        asked = self._options
        if herd.is_herd(self._directory):
            server = self._known(herd.load(self._directory))
            if server.state == "begun":
                await self._require_same(server)
            return server
        address = SourceAddress(asked.dsn)
        programs = binaries.find(asked.up.postgres_bin)
        await preflight.look(address, None, programs / "pg_dump", follows=True)
        try:
            found = await follower.followed(asked.dsn)
            if found:
                await self._require_lost(found[0].name)
        except StoppedError as error:
            raise HerdError(str(error)) from error
        system, database = await source.identity(address)
        return TakenServer(dsn=without_password(asked.dsn), system=system, database=database)

    async def run(self) -> Founded:
        """Do it, or go on where an earlier run has died.

        Raises:
            HerdError: it can't be done; or as ``look``.
            ImportFailed: a side says no; it can be repeated.
        """
        server = await self.look()
        if server.state == "done":
            return Founded(herd.load(self._directory), None, before=True)
        self._say("starting the herd")
        await lifecycle.up(self._directory, replace(self._options.up, taken=server))
        description = herd.load(self._directory)
        ways, done = self._ways_of(description), None
        try:
            if server.state == "begun":
                done = await self._take(ways)
                self._say("the herd takes writes; foreign keys look at the rows")
                description = await self._note("switched")
            if await ways.target.is_under_way():
                await cutover.finish(ways)
        finally:
            await ways.target.close()
        return Founded(await self._note("done"), done)

    def _known(self, description: Herd) -> TakenServer:
        if description.taken is None:
            raise HerdError(
                f"{self._directory} holds a herd that was not made by `pgherd found`: choose an"
                " empty or new --dir, or take the source over into that herd with `pgherd import`"
            )
        return description.taken

    async def _require_same(self, server: TakenServer) -> None:
        """Check that the herd in the directory was made for this source."""
        is_now = await source.identity(SourceAddress(self._options.dsn))
        if is_now != (server.system, server.database):
            raise HerdError(
                f"{self._directory} holds a herd that takes another server over ({server.dsn}):"
                " choose an empty or new --dir, or give --from of that one"
            )

    async def _require_lost(self, subscription: str) -> None:
        """Check that the source is to take over, and that the herd which it follows is gone."""
        if not self._options.takes_over:
            raise HerdError(
                f"the source follows a herd, by subscription {subscription}: `pgherd switchover SET"
                f" --to {subscription}` there moves the set to it first; if that herd is lost, give"
                " --take-over"
            )
        if not self._is_lost:
            self._say("looking whether a herd still feeds the source")
            await follower.require_lost(self._options.dsn)
            self._is_lost = True

    async def _take(self, ways: Ways) -> cutover.Done | None:
        """Have the herd take writes in place of the source."""
        engine = Engine(ways)
        try:
            under_way = await ways.target.is_under_way()
            if not under_way:
                await self._require_empty(ways)
                await self._have_taken_over(engine)
            if not under_way or (await ways.target.standing()).phase not in cutover.FROM:
                await engine.run(follow=False)
        except Unfit as error:
            left = f"only the empty herd in {self._directory} was made, and is used again"
            raise Unfit(error.reasons, left) from error
        return await cutover.CutOver(ways).run()

    async def _require_empty(self, ways: Ways) -> None:
        for row in await ways.target.read("contents"):
            raise HerdError(
                f"the herd in {self._directory} has {row['name']}, and no import is under way:"
                " nothing is left to do if `pgherd import cut-over` has ended it; else choose"
                " another --dir"
            )

    async def _have_taken_over(self, engine: Engine) -> None:
        """If the source follows a herd that is lost, have it take writes."""
        dsn = self._options.dsn
        try:
            found = await follower.followed(dsn)
            if not found:
                return
            await self._require_lost(found[0].name)
            await engine.check(follows=True)  # what the herd refuses is told before that
            for one in await follower.take_over(dsn, found):
                self._say(
                    f"the source takes writes for {one.name}, at GID {one.gid}; what the lost herd"
                    f" has committed after it `pgherd changes --after {one.gid}` names there"
                )
        except StoppedError as error:
            raise HerdError(str(error)) from error

    async def _note(self, state: Literal["switched", "done"]) -> Herd:
        """Write down how far it is."""
        async with locked(self._directory):
            description = herd.load(self._directory)
            server = self._known(description).model_copy(update={"state": state})
            description = description.model_copy(update={"taken": server})
            herd.save(description)
        return description
