"""Housekeeping of one node, paced by the clock: nothing here is in a transaction's way.

A joiner that waits for a checkpoint need not wait for the clock, too: the server tells of it.

* truncates the capture table whose transactions have all ended (C14: never waiting for a lock);
* looks for committed transactions that were never certified (C1) and reports them;
* says where a superuser's settings keep transactions from being captured at all;
* orders what was done to roles on this member, and by ``REASSIGN OWNED``;
* lists tables without a primary key, for people;
* prunes ``pgherd.applied``;
* has the server use a certificate that was replaced;
* has a feeder run while there are subscriptions;
* publishes the oldest base GID that a running transaction may have (C17);
* writes checkpoints of the replicated state, and trims the log behind them, but for what a member
  that copies this node's database still needs of it, up to ``log_hold_bytes``;
* ends a copy for which the server keeps more WAL than that.

A checkpoint is only of use if the server's data are not behind it: the server commits
asynchronously, so its WAL is flushed before the checkpoint is written.
"""

import asyncio
import shutil
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psycopg
import structlog

from pgherd_sidecar.agent.base.config import NodeConfig
from pgherd_sidecar.agent.checkpoint import sequences
from pgherd_sidecar.agent.checkpoint import verdicts as verdicts_file
from pgherd_sidecar.agent.checkpoint.certstate import CertificationState
from pgherd_sidecar.agent.checkpoint.verdicts import Verdicts
from pgherd_sidecar.agent.log.host import LogHost
from pgherd_sidecar.agent.session.unseen import UnseenChanges
from pgherd_sidecar.agent.subscriptions.feeder import Ages, FeederProcess
from pgherd_sidecar.core.commit.chain import Chain
from pgherd_sidecar.core.replication.entries import Publish, encode_entry
from pgherd_sidecar.core.replication.state import ReplicatedState

log = structlog.get_logger()

_PACE_S = 1.0
_LEAST_S = 0.1
"""Not more often, whoever sends notifications: every user of the server can."""
_SAMPLES_MAX = 900
_LOOKS = 3
"""So often within that time roles are looked at: they shall be the same on all within a second."""
_SUBSCRIPTION = "stream:subscription "
"""How the names of holds of the log begin that feeders take."""
_JOINER = "member:"
"""How those begin that joiners take."""
_SETTINGS_S = 3.0
"""So often the server's settings are looked through, which takes it milliseconds."""
_TABLES_S = 10.0
"""So often the tables are looked through."""


class Upkeep:
    """The housekeeping tasks.

    Args:
        connection: an administrative connection of its own.
        state: called for the replicated state of the moment.
        verdicts: of what the log holds.
        leaked: what to do with an xid that committed without certification.
        host: the log that is trimmed, and takes PUBLISH entries.
    """

    def __init__(
        self,
        connection: psycopg.AsyncConnection[Any],
        config: NodeConfig,
        host: LogHost,
        *,
        chain: Chain,
        state: ReplicatedState,
        verdicts: Verdicts,
        leaked: Callable[[int], Awaitable[None]],
    ) -> None:
        self._holds: list[dict[str, str | int]] = []
        self._capture_off: list[str] = []
        self._capture_kept: list[str] = []
        self._without_key: list[str] = []
        self._unseen = UnseenChanges(config)
        self._feeder = FeederProcess(config)
        self._ages = Ages()
        self._connection = connection
        self._config = config
        self._host = host
        self._chain = chain
        self._state = state
        self._verdicts = verdicts
        self._leaked = leaked
        self._limits = limits = config.limits
        self._checkpoint_s = limits.checkpoint_ms / 1000
        self._samples: deque[tuple[int, int]] = deque(maxlen=_SAMPLES_MAX)
        self._published = 0
        self._audited = ""
        self._pruned = 0
        self._begun: dict[str, int] = {}  # bytes that a joiner's hold kept when it was first seen
        self._loop = asyncio.get_running_loop()
        self._settings_due = self._tables_due = self._loop.time()
        self._checkpoint_due = self._loop.time() + self._checkpoint_s
        self._checkpointed = self._covered = state.position

    async def run(self) -> None:
        """Keep house for ever.

        Raises:
            psycopg.Error: the server is gone.
        """
        rows = await self._connection.execute("SELECT pgherd.audited_until()")
        row = await rows.fetchone()
        assert row is not None
        self._audited = row[0]
        await self._connection.execute("LISTEN pgherd_checkpoint_wanted")
        try:
            await self._keep_house()
        finally:
            self._feeder.stop()

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(_LEAST_S)
            for look in range(_LOOKS):
                await self._unseen.order_changes(self._connection, at_owners=look == 0)
                if await self._is_called((_PACE_S - _LEAST_S) / _LOOKS):
                    break
            self._ages.note_newest(self._loop.time(), self._chain.settled_gid)
            if await self._publish_base() > int(self._audited.partition(":")[0]):
                await self._follow_transactions()
            await self._see_settings()
            await self._see_tables()
            await self._feeder.begin_if_needed(self._connection)
            await self._maybe_checkpoint()

    async def _follow_transactions(self) -> None:
        """Do what only a transaction that has begun makes due, so that an idle herd is cheap."""
        await self._audit()
        await self._connection.execute(
            "SELECT pgherd.truncate_idle_capture($1::text)", (self._audited,)
        )
        await self._connection.execute("SELECT pgherd.number_shapes()")
        rows = await self._connection.execute(
            "SELECT pgherd.prune($1, $2, $3)",
            (self._pruned, self._chain.settled_gid - self._limits.applied_entries, self._audited),
        )
        row = await rows.fetchone()
        assert row is not None
        (self._pruned,) = row

    def status(self) -> dict[str, Any]:
        """Return what was found at the last look."""
        followed = {
            str(one["hold"]).removeprefix(_SUBSCRIPTION): one
            for one in self._holds
            if str(one["hold"]).startswith(_SUBSCRIPTION)
        }
        visible, now_s = self._chain.settled_gid, self._loop.time()
        return {
            "log_holds": self._holds,
            "subscription_lag_bytes": {name: one["bytes"] for name, one in followed.items()},
            "subscription_lag_entries": {
                name: max(visible - int(one["after"]), 0) for name, one in followed.items()
            },
            "subscription_lag_s": {
                name: round(self._ages.behind_s(now_s, int(one["after"])), 1)
                for name, one in followed.items()
            },
            "capture_off": self._capture_off,
            "capture_off_settings": len(self._capture_off),
            "capture_kept": self._capture_kept,
            "without_key": self._without_key,
            **self._unseen.status(),
        }

    async def _is_called(self, timeout_s: float) -> bool:
        """Wait; whether the server has told of a joiner."""
        async for _ in self._connection.notifies(timeout=timeout_s, stop_after=1):
            return True
        return False

    async def _audit(self) -> None:
        rows = await self._connection.execute(
            "SELECT leaks, audited FROM pgherd.audit($1::text)", (self._audited,)
        )
        row = await rows.fetchone()
        assert row is not None
        leaks, audited = row
        for xid in leaks or []:
            await self._leaked(int(xid))
        if not leaks:  # what is not adopted yet must be found again after a restart
            self._audited = audited

    async def _see_settings(self) -> None:
        """Use a new certificate, and tell of what switches capture off, which refuses no write.

        And of transactions that are open for so long that captured rows stay on disk.

        A role that loads dumps or applies another replication's changes has them on purpose, and
        promises to do the same everywhere; no one could tell its sessions from the others.
        """
        if self._loop.time() < self._settings_due:
            return
        self._settings_due = self._loop.time() + _SETTINGS_S
        rows = await self._connection.execute(
            "SELECT pgherd.capture_off(), pgherd.capture_kept(), pgherd.reload_certificate()"
        )
        row = await rows.fetchone()
        assert row is not None
        found, kept = row[0] or [], row[1] or []
        for one in set(kept) - set(self._capture_kept):
            log.warning("capture.kept", session=one)
        self._capture_kept = kept
        if found == self._capture_off:
            return
        self._capture_off = found
        if found:
            log.warning("capture.off", settings=found, remedy="RESET them, then run verify")
        else:
            log.info("capture.on")

    async def _see_tables(self) -> None:
        if self._loop.time() < self._tables_due:
            return
        self._tables_due = self._loop.time() + _TABLES_S
        rows = await self._connection.execute("SELECT pgherd.tables_without_key()")
        row = await rows.fetchone()
        assert row is not None
        for name in sorted(set(row[0]) - set(self._without_key)):
            log.info("table.without_key", table=name)
        self._without_key = row[0]

    async def _publish_base(self) -> int:
        """Remember (next xid, visible GID) over time; what runs now began after some of it.

        Returns:
            The xid that comes next.
        """
        rows = await self._connection.execute("SELECT next_xid, oldest, gid FROM pgherd.running()")
        row = await rows.fetchone()
        assert row is not None
        next_xid, oldest, gid = int(row[0]), int(row[1]), row[2]
        base = None
        while self._samples and self._samples[0][0] <= oldest:
            base = self._samples.popleft()[1]
        if base is not None and base > self._published:
            self._published = base
            self._host.submit(encode_entry(Publish(self._config.number, base)), 1)
        self._samples.append((next_xid, gid))
        return next_xid

    async def _maybe_checkpoint(self) -> None:
        await self._end_copies()
        wanted, _ = await self._look_at_holds()
        moved = self._state.position - self._covered
        due = (
            moved >= self._limits.checkpoint_entries
            or self._loop.time() >= self._checkpoint_due
            or (wanted is not None and self._covered < wanted <= self._state.position)
            or (wanted is not None and self._checkpointed < wanted <= self._log_begin)
        )
        if moved > 0 and due:
            before = self._covered
            await self._checkpoint()
            if self._covered == before:
                return  # none was written: the one that there is may need more of the log
            _, held = await self._look_at_holds()  # a joiner may have asked in the meantime
            self._host.trim(self._checkpointed if held is None else min(self._checkpointed, held))
            base = self._host.extent.base
            self._verdicts.forget_before(base + 1)
            await self._connection.execute("SELECT pgherd.forget_shapes($1)", (base,))

    async def _end_copies(self) -> None:
        """Have the server keep no more WAL for a copy than its bound and what the disk has left."""
        recovery = self._config.recovery
        wal = None if recovery is None else recovery.data_directory / "pg_wal"
        most = self._bound_bytes(self._config.data_dir if wal is None else wal)
        rows = await self._connection.execute("SELECT pgherd.end_copies($1)", (most,))
        row = await rows.fetchone()
        assert row is not None
        for copy in row[0] or []:
            log.warning("copy.ended", copy=copy, most=most)

    def _bound_bytes(self, directory: Path) -> int:
        """Return how much may be kept on a disk for a joiner."""
        return min(self._limits.log_hold_bytes, shutil.disk_usage(directory).free)

    async def _look_at_holds(self) -> tuple[int | None, int | None]:
        """Return how new a checkpoint a joiner needs, and after which position the log."""
        rows = await self._connection.execute(
            "SELECT wanted, held, holds FROM pgherd.log_holds($1, $2)",
            (self._host.extent.base, self._limits.log_hold_ms / 1000),
        )
        row = await rows.fetchone()
        assert row is not None
        wanted, held, holds = row
        self._holds = [
            one | {"bytes": self._host.extent.bytes_after(one["after"])} for one in holds
        ]
        dropped = await self._drop_holds()
        return wanted, (await self._look_at_holds())[1] if dropped else held

    async def _drop_holds(self) -> bool:
        """Keep no more for a joiner than its bound and what the disk has left; it begins anew."""
        most = self._bound_bytes(self._config.data_dir)
        holds = {str(o["hold"]): o for o in self._holds if str(o["hold"]).startswith(_JOINER)}
        # A joiner with an old snapshot needs much from the beginning: only what is added counts.
        sizes = {name: int(one["bytes"]) for name, one in holds.items()}
        self._begun = {n: min(self._begun.get(n, size), size) for n, size in sizes.items()}
        dropped = False
        for name, one in holds.items():
            size = sizes[name] - self._begun[name]
            useless = 0 < int(one["after"]) < self._host.extent.base
            if size > most:
                log.warning("hold.dropped", hold=name, bytes=size, most=most)
            if size > most or useless:
                await self._connection.execute("SELECT pgherd.release_hold($1)", (name,))
                dropped = True
        return dropped

    @property
    def _log_begin(self) -> int:
        """A log that begins after this holds what the state needs, open transactions too."""
        needed = self._state.log_needed_from
        return self._state.position if needed is None else needed - 1

    async def _checkpoint(self) -> None:
        data, needed_from = self._state.checkpoint(), self._log_begin + 1
        covered, last_commit = self._state.position, self._chain.tail_gid
        begin = await self._host.reader.begin_before(needed_from)
        if begin is None:
            return
        base = self._host.extent.base_at(begin)
        needed = self._host.extent.needed_base(begin)
        checkpoint = CertificationState(
            str(self._config.cluster_id),
            begin,
            last_commit,
            base.term,
            base.membership.encode().decode(),
            data,
            needed.position,
            needed.term,
            needed.membership.encode().decode(),
            covered,
        )
        reached = asyncio.Event()
        self._chain.when_settled(checkpoint.last_commit, reached.set)
        await reached.wait()
        await self._connection.execute("SELECT pgherd.flush_wal()")
        verdicts = self._verdicts.copy()
        directory = self._config.data_dir
        await self._loop.run_in_executor(None, verdicts_file.write, directory, verdicts)
        await self._loop.run_in_executor(None, checkpoint.write, directory)
        try:
            await sequences.note(self._connection, self._config.data_dir)
        except psycopg.Error as error:
            # A rebuild would know less of them. To keep the log for that would fill the disk.
            if self._connection.closed:
                raise
            log.warning("sequences.not_noted", error=str(error))
        self._checkpointed, self._covered = begin, covered
        self._checkpoint_due = self._loop.time() + self._checkpoint_s
        log.info("checkpoint.written", position=begin, bytes=len(data))
