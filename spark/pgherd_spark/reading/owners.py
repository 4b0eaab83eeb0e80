"""Whose a marker is: told by a lock on each member, which ends with the job that took it.

A marker that is still held says nothing of its job, which may have died a moment ago. A session
of the job does: its member's server notices within a minute that nobody is at its other end.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import psycopg

from pgherd_spark.reading import statements
from pgherd_spark.reading.leases import LeaseError, Member

_SQL = statements.load("snapshot.sql")
_CONNECT_S = 20


class InUseError(LeaseError):
    """Another job works with the marker."""


@asynccontextmanager
async def owning(members: Mapping[str, Member], marker: str) -> AsyncIterator[None]:
    """Be the one job that works with this marker, while the block lasts.

    Args:
        members: by name; jobs that have one of them in common exclude each other.
        marker: its id.

    Raises:
        InUseError: another job does.
        LeaseError: a member's server is not there.
    """
    async with AsyncExitStack() as stack:
        for member in members.values():
            try:
                connection = await psycopg.AsyncConnection.connect(
                    member.trusted_conninfo,
                    autocommit=True,
                    connect_timeout=_CONNECT_S,
                    application_name="pgherd job",
                )
                stack.push_async_callback(connection.close)
                await connection.execute(_SQL["noticed_if_gone"])
                cursor = await connection.execute(_SQL["own"], (marker,))
                row = await cursor.fetchone()
            except psycopg.Error as error:
                raise LeaseError(f"{member.name}: {error}") from error
            if row != (True,):
                raise InUseError(f"another job is at work with it, says {member.name}")
        yield
