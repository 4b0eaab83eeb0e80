"""The port that the admin API translates HTTP to: what can be asked of a sidecar, whoever asks.

Implemented by ``service`` and by what these hand out; decides nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pgherd_sidecar.client.routes import (
    DropSetRequest,
    MaintainRequest,
    SetRequest,
    SubscriptionEnd,
    SubscriptionRequest,
)
from pgherd_sidecar.pg.comparison.checksum import TableChecksum
from pgherd_sidecar.pg.comparison.indexes import IndexReport
from pgherd_sidecar.pg.roles import Wanted

StatusValue = (
    str | int | float | bool | None | Mapping[str, "StatusValue"] | Sequence["StatusValue"]
)


class UnknownMarker(LookupError):
    """No such marker is held on this node."""


class Unavailable(Exception):
    """It can't be done now, but perhaps later; the message says why."""


class Refused(Exception):
    """It can't be done as things are, however often it is asked for; the message says why."""


@dataclass(frozen=True, slots=True)
class ExportedSnapshot:
    """A snapshot that other sessions of this node's server may import.

    Attributes:
        gid: everything up to here is visible in it, and nothing after.
        snapshot: what ``SET TRANSACTION SNAPSHOT`` takes.
        visible: ``pg_current_snapshot()`` in it, by which a session knows that it has this one.
    """

    gid: int
    snapshot: str
    visible: str


class AdminBackend(Protocol):
    """The replica, as far as the API asks it.

    All but ``status`` and ``shutdown`` may raise ``Unavailable``; those that name a marker raise
    ``UnknownMarker``, those that name a table ``UnknownTable``.
    """

    async def status(self) -> Mapping[str, StatusValue]:
        """Return at least ``name``, ``cluster_id``, ``state``, ``reason``, and counters."""

    @property
    def views(self) -> "ViewBackend":
        """The backend that knows the membership, and has it changed."""

    @property
    def markers(self) -> "MarkersBackend":
        """The backend that holds snapshots; ``Unavailable`` where there is no database."""

    @property
    def changes(self) -> "ChangesBackend | None":
        """The backend that hands out the log; None where there is no database."""

    @property
    def roles(self) -> "RolesBackend | None":
        """The backend that makes roles; None where there is no database."""

    @property
    def maintenance(self) -> "MaintenanceBackend | None":
        """The backend for maintenance; None where there is no database."""

    @property
    def subscriptions(self) -> "SubscriptionsBackend | None":
        """The backend for sets and subscriptions; None where there is no database."""

    async def shutdown(self) -> None:
        """Begin a clean stop; returns before it is done."""

    async def rebuild(self, partner: str | None, rate_bytes_s: int | None) -> None:
        """Begin to replace this node's database by a copy of a member's; returns before it is done.

        Args:
            partner: whom to copy; by default the member that it burdens least.
            rate_bytes_s: how fast at most; by default as configured.
        """

    async def explain(self, gid: int, *, rows: bool) -> Mapping[str, StatusValue]:
        """Tell what is known of the entry of the log at a position.

        Args:
            gid: the position.
            rows: with the values of rows.

        Raises:
            Refused: it is not in the log, not any more or not yet.
        """

    async def skip(self, gid: int, *, act: bool) -> Mapping[str, StatusValue]:
        """Have an entry count as having no effect that some databases can't apply.

        Args:
            gid: of the entry.
            act: do it, and return when the log says so; else say what it means.

        Returns:
            ``gid``; the names of those that have ``stopped`` at it, and go on behind it; and of
            those that have to be ``rebuilt`` from them.

        Raises:
            Refused: no database has stopped at it.
        """

    async def order_marker(self, names: tuple[str, ...]) -> tuple[str, int]:
        """Put a marker into the log; return its id and GID.

        Args:
            names: of the members that are to hold its snapshot; all if there is none.
        """

    async def check_indexes(self) -> IndexReport:
        """Compare this node's indexes with their tables, as they are now."""


class MarkersBackend(Protocol):
    """The backend for snapshots at markers; see ``snapshots.markers``."""

    async def ready(self, marker_id: str, timeout_s: float) -> int:
        """Wait until the snapshot at the marker is exported; return the marker's GID.

        Raises:
            TimeoutError: it is not after ``timeout_s``.
        """

    async def lease(self, marker_id: str, lease_s: float) -> ExportedSnapshot:
        """Export the marker's snapshot and hold it for so long, or until the next call."""

    async def tables(self, marker_id: str) -> Mapping[str, TableChecksum]:
        """Return the checksum of each replicated table in the marker's snapshot."""

    async def buckets(self, marker_id: str, table: str) -> Mapping[int, str]:
        """Return the checksums of a table's rows by bucket of their keys' hash."""

    async def keys(self, marker_id: str, table: str, bucket: int) -> Mapping[str, str]:
        """Return the checksum of each row of a bucket by its key."""

    async def drop(self, marker_id: str) -> None:
        """Give the marker's snapshot back; no error if it is gone."""


class ChangesBackend(Protocol):
    """The backend for the change stream; see ``changes.Changes``."""

    async def read(self, after: int, max_bytes: int) -> bytes:
        """Return a part of the log."""

    async def hold(self, stream: str, after: int, lease_s: float) -> None:
        """Keep the log after a position, for a stream of this name."""

    async def release(self, hold: str) -> bool:
        """Give a hold of the log back; False if there is none of this name."""

    async def tables(self) -> Mapping[str, StatusValue]:
        """Return what columns tables had up to a position."""


class MaintenanceBackend(Protocol):
    """The backend of the API for maintenance; see ``maintenance.requests``."""

    async def begin(self, request: MaintainRequest) -> Mapping[str, StatusValue]:
        """Have members do it, or make a schedule of it; return which, and who the members are.

        Raises:
            Refused: it can never be done, or is no work of one server; nothing has begun.
            Unavailable: not now.
        """

    async def known(self, schedule: str) -> Mapping[str, StatusValue]:
        """Return ``runs``, the newest first, of a schedule or of all; and all ``schedules``."""

    async def cancel(self, run: str) -> bool:
        """Have a run end; False if there is none of this name."""

    async def drop(self, schedule: str) -> bool:
        """Forget a schedule; False if there is none of this name."""


class SubscriptionsBackend(Protocol):
    """The backend for sets of tables and those who follow them; see ``subscriptions.orders``.

    All may raise ``Refused``, if it can't be done as things are, and then nothing was; and
    ``Unavailable``.
    """

    async def order_set(self, request: SetRequest) -> Mapping[str, StatusValue]:
        """Have a set be as it is wanted.

        Returns:
            Its ``tables`` and ``sequences``, the tables of the ``chosen`` ones, and who has
            ``subscriptions`` to it.
        """

    async def drop_set(self, request: DropSetRequest) -> Mapping[str, StatusValue]:
        """Drop a set that nobody subscribes to; ``found`` is false if there was none."""

    async def order(self, request: SubscriptionRequest) -> Mapping[str, StatusValue]:
        """Have a subscription be as it is wanted, and say how its subscriber is.

        Returns:
            Whether it is ``ordered``, which it is not while its subscriber is not reached; its
            ``state`` and the ``reason`` for that. If it is ordered: whether it has ``begun`` just
            now, its ``generation``, ``gid``, ``lag_gids``, ``lag_s``, ``tables_done``, ``tables``.
        """

    async def end(self, request: SubscriptionEnd) -> Mapping[str, StatusValue]:
        """End a subscription, if there is one.

        Returns:
            Whether it has ``ended``, and else the ``reason``; and which provider has yet to tell
            its subscriber (``told_by``).
        """


class RolesBackend(Protocol):
    """The backend for roles; see ``roles.Roles``."""

    async def ensure(self, wanted: Sequence[Wanted]) -> Sequence[str]:
        """Have roles be as they are wanted, on every member; say in words what that took.

        Raises:
            Refused: it can't be done as things are; nothing was.
            Unavailable: not now.
        """


class ViewBackend(Protocol):
    """The backend for the membership; see ``views.Views``."""

    def leave(self, name: str, disk: str, *, dead: bool = False) -> None:
        """Have a member leave, or be evicted if it is dead."""

    def split(self, names: list[str], *, act: bool) -> Mapping[str, StatusValue]:
        """Have members become a cluster of their own, or say what that means."""

    def block(self, names: list[str], unsent: list[str]) -> None:
        """Have no links with these members, and send nothing to those."""
