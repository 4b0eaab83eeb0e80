"""The driver's side of a marker: ordered once, held by every member as long as the job lives.

A job that dies stops renewing, and the members give their snapshots up by themselves. A job whose
leases end ends, too: what it would read then is not what the others read.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from pgherd_sidecar.client.admin import AdminClient, AdminError
from pgherd_sidecar.pg import trusted
from psycopg.conninfo import make_conninfo

from pgherd_spark.reading.sources import Source

_UNKNOWN = 404
_RENEWALS = 3
"""In the time of one lease."""


class LeaseError(Exception):
    """The members' snapshots can't be had, or not any longer; the message says which and why."""


class MarkerGoneError(LeaseError):
    """A member holds the marker no more, and never will."""


@dataclass(frozen=True, slots=True)
class Member:
    """How a job reaches a member: its sidecar, and its server as a superuser."""

    name: str
    admin: AdminClient
    conninfo: str

    @property
    def trusted_conninfo(self) -> str:
        """The same, without settings of the database's owner."""
        return make_conninfo(self.conninfo, options=trusted.options())


@dataclass(slots=True)
class Lease:
    """A marker that is held.

    Attributes:
        marker: its id.
        gid: its position in the total order.
        sources: each member's snapshot, in the order of the members.
        lost: why it is not held any more, if so.
    """

    marker: str
    gid: int
    sources: tuple[Source, ...]
    lost: str | None = None


@asynccontextmanager
async def hold_marker(
    members: Mapping[str, Member],
    *,
    lease_s: float,
    timeout_s: float,
    on_lost: Callable[[], None],
    marker: str | None = None,
    keep: bool = False,
) -> AsyncIterator[Lease]:
    """Order a marker and hold it on all of these members while the block lasts.

    Args:
        members: by name; the first one orders.
        lease_s: how long the members hold it after the job's last sign of life.
        timeout_s: how long they may take to get there.
        on_lost: called once when a member does not hold it any more; ``lost`` says why.
        marker: one that an earlier run left behind, in place of a new one. It is never given back
            because a member does not answer.
        keep: let the leases end by themselves if the block fails, so that it can be begun again.

    Raises:
        LeaseError: a member can't; ``MarkerGoneError`` if it could once.
    """
    give_back = marker is None
    wait_s = None if marker is not None else timeout_s
    if marker is None:
        marker = await _order(members)
    try:
        lease = await _begin(members, marker, lease_s, wait_s)
        renewing = asyncio.ensure_future(_renew(members, lease, lease_s, on_lost))
        give_back = not keep
        try:
            yield lease
            give_back = True
        finally:
            renewing.cancel()
    finally:
        if give_back:
            await drop_marker(members, marker)


async def drop_marker(members: Mapping[str, Member], marker: str) -> None:
    """Have all members give up at once what they hold of a marker, as far as they answer."""
    for member in members.values():
        with suppress(AdminError):  # it gives it up by itself in time
            await member.admin.drop_marker(marker)


async def _order(members: Mapping[str, Member]) -> str:
    member = next(iter(members.values()))
    try:
        return (await member.admin.order_marker(members)).id
    except AdminError as error:
        raise LeaseError(f"{member.name}: {error}") from error


async def _begin(
    members: Mapping[str, Member], marker: str, lease_s: float, wait_s: float | None
) -> Lease:
    """Lease a marker from all; one that has been there is not waited for."""

    async def begin(member: Member) -> Source:
        try:
            if wait_s is not None:
                await member.admin.wait_marker(marker, wait_s)
            # Those that come later may take longer than a lease lasts.
            found = await member.admin.lease_marker(marker, (wait_s or 0) + lease_s)
        except AdminError as error:
            kind = MarkerGoneError if error.code == _UNKNOWN else LeaseError
            raise kind(f"{member.name}: {error}") from error
        return Source(
            member.name, member.trusted_conninfo, found.gid, found.snapshot, found.visible
        )

    sources = tuple(await asyncio.gather(*map(begin, members.values())))
    gids = {source.member: source.gid for source in sources}
    if len(set(gids.values())) != 1:
        raise LeaseError(f"the members hold marker {marker} at different positions: {gids}")
    return Lease(marker, sources[0].gid, sources)


async def _renew(
    members: Mapping[str, Member], lease: Lease, lease_s: float, on_lost: Callable[[], None]
) -> None:
    """Renew until cancelled; a member that fails to answer for a whole lease is lost."""
    loop = asyncio.get_running_loop()
    known = {source.member: source.snapshot for source in lease.sources}
    renewed_s = dict.fromkeys(members, loop.time())
    while lease.lost is None:
        await asyncio.sleep(lease_s / _RENEWALS)
        for member in members.values():
            try:
                found = await member.admin.lease_marker(lease.marker, lease_s)
            except AdminError as error:
                if loop.time() - renewed_s[member.name] >= lease_s:
                    lease.lost = f"{member.name}: {error}"
            else:
                renewed_s[member.name] = loop.time()
                if found.snapshot != known[member.name]:
                    lease.lost = f"{member.name} holds another snapshot"
    on_lost()
