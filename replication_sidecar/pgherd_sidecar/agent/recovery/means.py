"""The acts of a rebuild on the world, as one interface: partners, directories, server, log.

``rebuild`` decides what is done in which order and remembers it; here is what it can do. Each act
may be repeated after it was interrupted at any point.
"""

import asyncio
import contextlib
import shutil
from collections.abc import Callable
from functools import partial
from typing import Protocol

import psycopg

from pgherd_sidecar.agent.base.config import NodeConfig, PartnerServer, RecoverySettings
from pgherd_sidecar.agent.checkpoint import sequences
from pgherd_sidecar.agent.checkpoint.certstate import CertificationState
from pgherd_sidecar.agent.log.host import LogHost
from pgherd_sidecar.agent.recovery import basebackup, carried, dump, filling, snapshots
from pgherd_sidecar.agent.recovery.partners import NoPartnerError, Offer, Partners, servers_of
from pgherd_sidecar.agent.server import postmaster as server
from pgherd_sidecar.agent.server import startup
from pgherd_sidecar.core.consensus import LogBase
from pgherd_sidecar.env.finishing import to_its_end
from pgherd_sidecar.env.processes.pacing import Pace


class Means(Protocol):
    """All that a rebuild can do.

    Attributes:
        log_base: this member's log holds what comes after this position;
        log_end: and ends here.
        log_behind: the others' logs begin after this position, which this one has not reached; 0
            if they hold what follows here.
        joins: this member's log has not begun yet; it begins with the copy's position.
    """

    @property
    def log_base(self) -> int: ...
    @property
    def log_end(self) -> int: ...
    @property
    def log_behind(self) -> int: ...

    def may_begin_log_after(self, base: LogBase) -> bool:
        """Whether nothing that counts is lost if the log begins anew there."""

    @property
    def joins(self) -> bool: ...

    async def major(self) -> int:
        """Version of this node's PostgreSQL.

        Raises:
            ProgramError: it can't be asked.
        """

    async def offers(self) -> list[Offer]:
        """Return the partners that can be copied.

        Raises:
            NoPartnerError: this member has left, so none can be.
        """

    async def state(self, partner: PartnerServer, wanted: int) -> CertificationState | None:
        """A partner's checkpoint, see ``Partners.state``."""

    async def fingerprint(self, partner: PartnerServer) -> str:
        """How a partner hashes keys.

        Raises:
            NoPartnerError: it is gone.
        """

    async def hold_log(self, position: int) -> None:
        """Have the others keep their logs after a position, for a while."""

    async def keep_log(self, position: int, needed: int) -> None:
        """The same, until cancelled, or until the log after ``needed`` is lost to this member."""

    def make_room(self, source_of: str | None = None) -> None:
        """Remove all copies; it blocks.

        Args:
            source_of: what the copy of this name is to be loaded from stays.
        """

    async def discard(self) -> None:
        """The same, all of it."""

    async def note_sequences(self) -> None:
        """Write down where the sequences are in the old database, if it still answers."""

    async def copy(
        self,
        partner: PartnerServer,
        name: str,
        rate_bytes_s: int | None,
        on_progress: Callable[[int, int], None],
    ) -> None:
        """Copy or dump a partner's database under this name, and remove all other copies.

        What an earlier rebuild has kept is removed, too, if there is a database beside it.

        Raises:
            ProgramError: it failed.
        """

    async def open_snapshot(
        self, name: str, on_progress: Callable[[int, int], None]
    ) -> CertificationState:
        """Prepare to load the snapshot under this name; remove all copies, as ``copy`` does.

        Raises:
            NoPartnerError: nobody answers who could say whether it will do.
            ProgramError: it can't be fetched.
            UnfitError: it will not do.
        """

    async def load(self, name: str, on_progress: Callable[[int, int], None]) -> None:
        """Make a copy of what was dumped, or of the snapshot, under this name.

        Raises:
            ProgramError, OSError: it failed.
            UnfitError: it would not be the same database.
        """

    async def make_own(self, name: str, needed_gid: int, fingerprint: str) -> None:
        """Reset the identity of the copy of this name, which must not end before a GID.

        Raises:
            ProgramError, OSError: the copy is of no use.
            UnfitError: nor would any other be, since this server hashes keys otherwise.
        """

    async def install(self, name: str) -> None:
        """Stop the server, and put the copy of this name in the place of its directory."""

    async def begin_log_after(self, base: LogBase) -> None:
        """Have this member's log begin anew."""

    async def start_server(self) -> None:
        """Start the server unless it runs.

        Raises:
            ProgramError: it does not start.
        """

    async def release(self) -> None:
        """Give back what the others have kept; without it their leases end some time."""

    async def tidy(self) -> None:
        """Remove the old directory and all copies, if there are any."""

    async def pause(self, seconds: float) -> None:
        """Wait before a retry."""


class LocalMeans:
    """The real ones: this machine, and the partners' servers."""

    def __init__(self, config: NodeConfig, recovery: RecoverySettings, host: LogHost) -> None:
        self._config = config
        self._recovery = recovery
        self._host = host
        self._target = recovery.data_directory
        partners = Partners(config, recovery, self._servers)
        self._partners = partners
        self.state = partners.state
        self.hold_log = partners.hold_log
        self.fingerprint = partners.fingerprint
        self.keep_log = partial(partners.keep_log, behind=lambda: self.log_behind)
        self.release = partners.release
        self.pause = asyncio.sleep

    def _servers(self) -> list[PartnerServer]:
        """Where the others' servers are: by the log or, where it does not say, as configured.

        One that has left has nothing to ask of them. What they keep for it ends with its lease.
        """
        if self._host.peers.has_left:
            return []
        known = servers_of(self._config, self._host.membership)
        return known or list(self._recovery.partners)

    @property
    def log_base(self) -> int:
        """See Means."""
        return self._host.extent.base

    @property
    def log_end(self) -> int:
        """See Means."""
        return self._host.extent.last

    @property
    def log_behind(self) -> int:
        """See Means."""
        return self._host.extent.behind

    def may_begin_log_after(self, base: LogBase) -> bool:
        """See Means."""
        return self._host.extent.may_begin_after(base)

    @property
    def joins(self) -> bool:
        """See Means."""
        return self._host.extent.joins

    async def offers(self) -> list[Offer]:
        """See Means."""
        if self._host.peers.has_left:
            raise NoPartnerError("it has left the herd")
        return await self._partners.offers()

    async def major(self) -> int:
        """See Means."""
        return await server.major(self._recovery)

    def make_room(self, source_of: str | None = None) -> None:
        """See Means."""
        stays = None
        if source_of is not None:
            stays = carried.directory_of(self._target.with_name(source_of)).name
        basebackup.remove_copies(self._target, but=stays)

    async def discard(self) -> None:
        """See Means; when cancelled another copy may be begun, which must not be removed, too."""
        await to_its_end(asyncio.to_thread(self.make_room))

    async def note_sequences(self) -> None:
        """See Means."""
        with contextlib.suppress(psycopg.Error):
            async with await startup.connect(self._config, "pgherd") as connection:
                await sequences.note_farther(connection, self._config.data_dir)

    async def copy(
        self,
        partner: PartnerServer,
        name: str,
        rate_bytes_s: int | None,
        on_progress: Callable[[int, int], None],
    ) -> None:
        """See Means."""
        config, recovery, target = self._config, self._recovery, self._target.with_name(name)
        limit = rate_bytes_s or recovery.max_rate_bytes_s
        await self._begin_copy()
        if recovery.method == "dump":
            source = carried.directory_of(target)
            await dump.dump(config, recovery, partner, source, on_progress)
            return
        watch = partial(self._partners.watch_clients, partner)
        await basebackup.copy(
            config,
            recovery,
            partner,
            target,
            rate=Pace(recovery.rate_bytes_s, watch) if limit is None else limit,
            on_progress=on_progress,
        )

    async def open_snapshot(
        self, name: str, on_progress: Callable[[int, int], None]
    ) -> CertificationState:
        """See Means."""
        await self._begin_copy()
        source = carried.directory_of(self._target.with_name(name))
        cluster_id = str(self._config.cluster_id)
        return await snapshots.open_snapshot(
            cluster_id, self._recovery, source, self._partners, on_progress
        )

    async def _begin_copy(self) -> None:
        """Make room for a copy beside the database: also what an earlier rebuild has kept goes."""
        await self.discard()
        if server.has_database(self._recovery):  # else what is kept is all that is left of it
            kept = basebackup.replaced(self._target)
            await asyncio.to_thread(shutil.rmtree, kept, ignore_errors=True)

    async def load(self, name: str, on_progress: Callable[[int, int], None]) -> None:
        """See Means."""
        await filling.fill(self._config, self._recovery, self._target.with_name(name), on_progress)

    async def make_own(self, name: str, needed_gid: int, fingerprint: str) -> None:
        """See Means."""
        await basebackup.make_own(
            self._config,
            self._recovery,
            self._target.with_name(name),
            needed_gid=needed_gid,
            fingerprint=fingerprint,
            sequences=sequences.load(self._config.data_dir),
        )

    async def install(self, name: str) -> None:
        """See Means."""
        await asyncio.to_thread(basebackup.make_room, self._target, name)
        await server.stop(self._config, self._recovery)
        await asyncio.to_thread(basebackup.exchange, self._target, name)

    async def begin_log_after(self, base: LogBase) -> None:
        """See Means; not left half done when cancelled, because the member is deaf meanwhile."""
        await to_its_end(self._host.begin_after(base))

    async def start_server(self) -> None:
        """See Means."""
        await server.start(self._config, self._recovery)

    async def tidy(self) -> None:
        """See Means; when cancelled another copy may be begun, which must not be removed, too."""
        if basebackup.copies(self._target):
            await to_its_end(asyncio.to_thread(basebackup.remove_copies, self._target))
        old = basebackup.replaced(self._target)
        await asyncio.to_thread(shutil.rmtree, old, ignore_errors=True)
