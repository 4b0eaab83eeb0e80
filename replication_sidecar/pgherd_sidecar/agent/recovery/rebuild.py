"""A rebuild: replaces this node's database by a copy of a partner's, step by step (total recovery).

Each phase of ``progress`` is done by one function below, is on disk before it begins, and may be
begun again; so the death of this process or of the partner costs at most one phase. Meanwhile the
member's part in the ordered log goes on: it votes and flushes, only its clients are refused.

A failure is retried with growing pauses, and after ``_FAILURES_MAX`` of them the rebuild is given
up. A node that needs ``_BEGUN_MAX`` rebuilds within ``_WINDOW_S`` has a cause that no copy repairs
and is given up too. Waiting for a partner is no failure.

A copy that is of no use any more is removed before anything is written: it may have filled the
disk, which the member's log is on, too.

Called by ``sessions`` between two sessions with the server.
"""

import asyncio
import contextlib
import shutil
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from secrets import token_hex

import structlog

from pgherd_sidecar.agent.admin.port import StatusValue
from pgherd_sidecar.agent.base.config import NodeConfig, PartnerServer, RecoverySettings
from pgherd_sidecar.agent.base.errors import UnfitError
from pgherd_sidecar.agent.checkpoint import certstate
from pgherd_sidecar.agent.checkpoint.certstate import CertificationState
from pgherd_sidecar.agent.membership.notes import SPLIT_AT, Note
from pgherd_sidecar.agent.recovery.means import Means
from pgherd_sidecar.agent.recovery.partners import NoPartnerError, Offer, choose_partner
from pgherd_sidecar.agent.recovery.progress import Phase, RebuildProgress, load_progress
from pgherd_sidecar.agent.server import postmaster as server
from pgherd_sidecar.core.consensus import LogBase
from pgherd_sidecar.env.processes.programs import ProgramError
from pgherd_sidecar.env.storage import durable

log = structlog.get_logger()

_STAGED = "checkpoint.copy"
_ASKED = "an administrator asked for it"
_FAILURES_MAX = 10
_BEGUN_MAX = 3
_WINDOW_S = 3600.0
_PAUSE_MAX_S = 30.0
_LOOKS, _LOOK_S = 20, 0.1
_ROOM_BYTES = 1 << 30
"""Enough for the log to begin with."""
_BEFORE_INSTALLED = (Phase.COPYING, Phase.LOADING, Phase.SETTLING)


class Rebuild:
    """The rebuilds of one node.

    Invariant: while a phase is under way, ``rebuild.json`` names it or the one before it.

    Args:
        config: this node's.
        recovery: its part for this.
        means: what does the work.
    """

    def __init__(self, config: NodeConfig, recovery: RecoverySettings, means: Means) -> None:
        self._config = config
        self._recovery = recovery
        self._means = means
        self._progress = load_progress(config.data_dir)
        self._trouble: str | None = None
        self._passed_over: set[str] = set()  #: partners that were of no use lately
        self._wanted = 0  #: a checkpoint made before this position is too old to begin a log with
        self._bytes: tuple[int, int] | None = None
        self._steps: dict[Phase, Callable[[], Awaitable[None]]] = {
            Phase.LOADING: self._load,
            Phase.SETTLING: self._settle,
            Phase.INSTALLING: self._install,
            Phase.STARTING: self._start,
        }

    @property
    def under_way(self) -> bool:
        """A rebuild has been begun and the node has not caught up since."""
        return self._progress.phase is not Phase.IDLE and not self._progress.given_up

    @property
    def asked(self) -> bool:
        """An administrator has asked for the one that is under way."""
        return self.under_way and self._progress.reason == _ASKED

    @property
    def begins(self) -> bool:
        """The database that is to be replaced is still there as it was, if it was."""
        return self._progress.phase is Phase.COPYING

    def drop(self) -> None:
        """The old database can go on after all."""
        self._save(RebuildProgress(begun=self._progress.begun))

    def make_room(self) -> None:
        """Remove what no phase goes on from, if the disk has no room without that.

        It blocks, and comes before the log is opened. Where there is room it is not worth the time.
        """
        progress = self._progress
        if shutil.disk_usage(self._config.data_dir).free >= _ROOM_BYTES:
            return
        if progress.phase is Phase.COPYING or progress.given_up:
            self._means.make_room()
        elif progress.phase is Phase.LOADING:
            self._means.make_room(source_of=progress.copy)

    @property
    def willing(self) -> bool:
        """``begin`` would begin one."""
        return self._recovery.automatic and self.possible and not self._in_vain()

    @property
    def possible(self) -> bool:
        """No server of somebody else's is in the way."""
        return self._recovery.runs_server or self.database_is_gone

    @property
    def due_to_join(self) -> bool:
        """This member has no log yet: a copy comes first, and none has been begun."""
        return self._means.joins and not self.under_way

    @property
    def chooses(self) -> bool:
        """It is still open to which log position the copy will belong."""
        return self._progress.phase not in (Phase.IDLE, Phase.STARTING)

    @property
    def reason(self) -> str:
        """Why the node is rebuilt, and what is in the way."""
        if self._trouble is None:
            return f"it is being rebuilt: {self._progress.reason}"
        return f"it is being rebuilt: {self._progress.reason}; {self._trouble}"

    @property
    def cause(self) -> str:
        """Why the node needs to be rebuilt."""
        return self._progress.reason

    @property
    def given_up(self) -> str | None:
        """Why no rebuild is tried any more, None if that is not so."""
        if not self._progress.given_up:
            return None
        if self._progress.refusal:
            return self._progress.refusal
        if self._failed_too_often:
            trouble = "" if self._trouble is None else f": {self._trouble}"
            return f"rebuilding it was given up after {_FAILURES_MAX} failures{trouble}"
        return f"it was rebuilt {_BEGUN_MAX} times within {_WINDOW_S / 60:.0f} minutes, in vain"

    @property
    def database_is_gone(self) -> bool:
        """There is nothing that a server could be started on."""
        return not server.has_database(self._recovery)

    def status(self) -> dict[str, StatusValue]:
        """Return what people want to see of it."""
        progress = self._progress
        done, total = self._bytes or (None, None)
        return {
            "rebuild_phase": progress.phase.value,
            "rebuild_partner": progress.partner,
            "rebuild_bytes_done": done,
            "rebuild_bytes_total": total,
            "rebuild_failures": progress.failures,
        }

    # ---- to begin and to end -----------------------------------------------------------------

    async def require_partner(self, wanted: str | None) -> None:
        """Check that a rebuild can be done at present.

        Raises:
            NoPartnerError: there is nobody to copy, or not the one that is named.
        """
        choose_partner(await self._means.offers(), wanted)

    def request(self, wanted: str | None, rate_bytes_s: int | None) -> None:
        """Begin because an administrator says so; the old database counts for nothing any more.

        Neither this nor ``begin`` may be called while ``run`` or ``escort`` are at work: their
        next step would be counted for the new rebuild.
        """
        self._save(
            RebuildProgress(
                Phase.COPYING,
                _ASKED,
                wanted=wanted,
                rate_bytes_s=rate_bytes_s,
                begun=self._progress.begun,
            )
        )

    def begin(self, reason: str) -> bool:
        """Begin because the node can't go on; False if that is no use or not wanted.

        After ``_FAILURES_MAX`` failures, or one that no retry mends, it is no use until an
        administrator asks for it, also after a restart; after ``_BEGUN_MAX`` rebuilds it is none
        until the window is over.
        """
        begun, given_up = self._recently(), self._in_vain()
        if given_up or not (self._recovery.automatic and self.possible):
            self._save(replace(self._progress, given_up=given_up, begun=begun))
            return False
        self._save(RebuildProgress(Phase.COPYING, reason, begun=(*begun, time.time())))
        return True

    def _recently(self) -> tuple[float, ...]:
        """When rebuilds were begun within the window."""
        now = time.time()
        return tuple(when for when in self._progress.begun if 0 <= now - when < _WINDOW_S)

    def _in_vain(self) -> bool:
        """Another one is no use."""
        hopeless = self._failed_too_often or self._progress.refusal != ""
        return hopeless or len(self._recently()) >= _BEGUN_MAX

    async def run(self) -> bool:
        """Do what is left until the server runs on the copy; False when it is given up."""
        if self._progress.phase is Phase.COPYING:
            await self._means.discard()
            await self._means.note_sequences()
        while True:
            phase, began_s = self._progress.phase, time.monotonic()
            try:
                if phase is Phase.COPYING:
                    await self._copy()
                else:
                    async with self._log_kept(self._copied_state(phase)):
                        await self._steps[phase]()
            except NoPartnerError as error:
                await self._pause(str(error))
            except UnfitError as error:
                await self._means.discard()
                self._save(replace(self._progress, refusal=str(error), given_up=True))
                log.error("rebuild.refused", reason=str(error))
                return False
            except (ProgramError, OSError) as error:
                if self._progress.phase is Phase.COPYING:
                    await self._means.discard()
                self._fail(str(error))
                if self._progress.given_up:
                    return False
                await self._pause(str(error))
            else:
                self._trouble = None
                took_s = round(time.monotonic() - began_s, 2)
                log.info("rebuild.phase_done", phase=phase.value, took_s=took_s)
                if phase is Phase.STARTING:
                    return True

    async def escort_session(self, caught_up: asyncio.Event) -> None:
        """Accompany a session: on a fresh copy the rebuild ends when it has caught up.

        The node takes writes from then on. The remains of the rebuild are removed after that, which
        may take long; if it was interrupted, beside a later session.
        """
        if self.under_way:
            await self._end_with(caught_up)
            await self._means.release()
        if self._progress.phase is Phase.IDLE:
            await self._means.tidy()

    async def _end_with(self, caught_up: asyncio.Event) -> None:
        began_s = time.monotonic()
        async with self._log_kept(self._copied_state(Phase.STARTING)):
            await caught_up.wait()
        log.info("rebuild.caught_up", took_s=round(time.monotonic() - began_s, 2))
        self._save(RebuildProgress(begun=self._progress.begun))
        self._bytes = None
        log.info("rebuild.finished")

    # ---- phases ------------------------------------------------------------------------------

    async def _copy(self) -> None:
        """Choose a partner, fetch its checkpoint, and copy its database; or open a snapshot."""
        progress, means, recovery = self._progress, self._means, self._recovery
        logical = recovery.method == "dump"
        from_snapshot = means.joins and recovery.snapshot is not None
        major = 0 if logical or from_snapshot else await means.major()
        offer = choose_partner(self._unfailing(await means.offers()), progress.wanted, major)
        partner = offer.server
        self._passed_over.add(partner.member)  # if anything fails from here on
        name = f"{recovery.data_directory.name}.copy-{token_hex(4)}"
        fingerprint = await means.fingerprint(partner)
        whom = str(recovery.snapshot) if from_snapshot else partner.member
        self._save(replace(progress, partner=whom, copy=name, fingerprint=fingerprint))
        if from_snapshot:
            log.info("rebuild.opening", snapshot=whom)
            opened = await means.open_snapshot(name, self._on_progress)
            await asyncio.to_thread(opened.write, self._config.data_dir, _STAGED)
            self._advance(Phase.LOADING, log_lost=True)
            Note(self._config.data_dir, SPLIT_AT).clear()  # it was about an earlier copy
            return
        await means.hold_log(0)  # else the others may trim what follows the checkpoint meanwhile
        if means.joins or means.log_behind > 0:
            self._wanted = self._wanted or max(offer.gid, 1)
        state = await self._fetch_state(partner)
        self._wanted = 0
        log.info("rebuild.copying", partner=whom, reason=progress.reason)
        async with self._log_kept(state):
            await means.copy(partner, name, progress.rate_bytes_s, self._on_progress)
        self._passed_over.clear()
        then = Phase.LOADING if logical else Phase.SETTLING
        self._advance(then, log_lost=means.joins or means.log_behind > 0)
        Note(self._config.data_dir, SPLIT_AT).clear()  # it was about an earlier copy

    def _unfailing(self, offers: list[Offer]) -> list[Offer]:
        """Pass over who was of no use lately, until all were, unless he is the one that is named.

        The sidecar of such a partner may hang: its server goes on saying that it takes writes.
        """
        left = [one for one in offers if one.server.member not in self._passed_over]
        if left and self._progress.wanted is None:
            return left
        self._passed_over.clear()
        return offers

    async def _load(self) -> None:
        """Fill a fresh server with what was dumped or is in the snapshot."""
        assert self._progress.copy is not None
        self._bytes = None
        async with self._anew_if_it_fails():
            await self._means.load(self._progress.copy, self._on_progress)
        self._advance(Phase.SETTLING)

    async def _fetch_state(self, partner: PartnerServer) -> CertificationState | None:
        """Put the partner's checkpoint aside; None if all of the log is here and it has none.

        Raises:
            NoPartnerError: it is of no use yet.
        """
        needed = max(self._means.log_base, self._means.log_behind)
        state = await self._new_enough(partner, needed, max(needed, self._wanted))
        if state is None:
            await asyncio.to_thread(durable.remove, self._config.data_dir / _STAGED)
        else:
            await asyncio.to_thread(state.write, self._config.data_dir, _STAGED)
        return state

    async def _new_enough(
        self, partner: PartnerServer, needed: int, wanted: int
    ) -> CertificationState | None:
        """Ask for a checkpoint that will do: its partner makes one at once.

        One from before the partner split off, or after it did so this moment, will not.
        """
        for _ in range(_LOOKS):
            state = await self._means.state(partner, wanted)
            if state is None or state.cluster_id == str(self._config.cluster_id):
                new = state is not None and state.position >= needed and state.newest >= wanted
                if new or wanted == 0:
                    return state
            await self._means.pause(_LOOK_S)
        raise NoPartnerError(f"{partner.member} has no checkpoint at {wanted} or later yet")

    async def _settle(self) -> None:
        """Make the copy this member's own; one that can't be is dropped."""
        assert self._progress.copy is not None
        state = self._staged_state()
        needed_gid = state.last_commit if state is not None else 0
        fingerprint = self._progress.fingerprint
        async with self._anew_if_it_fails():
            await self._means.make_own(self._progress.copy, needed_gid, fingerprint)
        self._advance(Phase.INSTALLING)

    async def _install(self) -> None:
        """Exchange the directories, and put the checkpoint of the copy into place."""
        assert self._progress.copy is not None
        means, directory = self._means, self._config.data_dir
        state = self._staged_state()
        if state is not None and state.position < means.log_behind:
            self._save(replace(self._progress, phase=Phase.COPYING))
            raise ProgramError("the copy is too old already: the others' logs begin after it")
        await means.install(self._progress.copy)
        if state is None:
            await asyncio.to_thread(durable.remove, directory / certstate.FILE)
        else:
            await asyncio.to_thread(state.write, directory)
            base = self._new_base(state)
            if base is not None:
                await means.begin_log_after(base)
        self._advance(Phase.STARTING)

    def _new_base(self, state: CertificationState) -> LogBase | None:
        """Return where this member's log begins anew; None if it goes on as it is."""
        means, needed = self._means, state.needed_base
        if not self._needs_others_log:
            return None
        begun = means.log_base == needed.position and not means.joins
        if begun and means.log_behind <= means.log_end:
            return None  # by this phase, before it was interrupted
        if needed.position >= means.log_behind and means.may_begin_log_after(needed):
            return needed
        beyond = state.position != means.log_end and means.may_begin_log_after(state.log_base)
        return state.log_base if beyond else None

    async def _start(self) -> None:
        """Start the server on the copy; the next session catches up."""
        (self._config.data_dir / _STAGED).unlink(missing_ok=True)
        await self._means.start_server()

    # ---- help --------------------------------------------------------------------------------

    def _staged_state(self) -> CertificationState | None:
        """Return the checkpoint that was fetched with the copy, if there was one.

        Raises:
            ProgramError: it can't be read any more, so the copy is of no use. Without it a log that
                does not hold what follows the copy would never begin. Or it is of another cluster:
                then it is of use only as far as both have the same log.
        """
        config = self._config
        state, trouble = certstate.read(config.data_dir, _STAGED), ""
        if state is None and (self._needs_others_log or self._means.log_base > 0):
            trouble = "the checkpoint that belongs to the copy is lost"
        elif state is not None and state.cluster_id != str(config.cluster_id):
            common = int(Note(config.data_dir, SPLIT_AT).text or 0)
            if state.newest > common:
                trouble = f"the copy is of cluster {state.cluster_id}"
        if trouble:
            self._save(replace(self._progress, phase=Phase.COPYING))
            raise ProgramError(trouble)
        return state

    def _copied_state(self, phase: Phase) -> CertificationState | None:
        """Return the checkpoint that belongs to the copy, once there is one."""
        file = certstate.FILE if phase is Phase.STARTING else _STAGED
        return certstate.read(self._config.data_dir, file)

    @contextlib.asynccontextmanager
    async def _log_kept(self, state: CertificationState | None) -> AsyncIterator[None]:
        """Have the others keep what follows the state in the log.

        Raises:
            ProgramError: they no longer do, so the copy is of no use. Once it is installed, the
                session with the server finds that out.
        """
        try:
            async with asyncio.timeout(None) as scope:
                keeping = asyncio.create_task(self._keep_log(state, scope))
                try:
                    yield
                finally:
                    keeping.cancel()
        except TimeoutError:
            if state is None or not scope.expired():
                raise
            self._save(replace(self._progress, phase=Phase.COPYING))
            raise ProgramError(
                f"no other member has the log from GID {state.position + 1} on any more: the copy "
                "took longer than they keep it. Copy when less is written, or raise "
                "limits.log_hold_bytes of every member"
            ) from None

    async def _keep_log(self, state: CertificationState | None, scope: asyncio.Timeout) -> None:
        """Keep it; end the scope when it is lost."""
        if state is None:
            await self._means.keep_log(0, sys.maxsize)  # it holds all that follows the copy itself
            return
        await self._means.keep_log(state.needed_base.position, state.position)
        if self._progress.phase in _BEFORE_INSTALLED and self._needs_others_log:
            scope.reschedule(0)

    @property
    def _needs_others_log(self) -> bool:
        """This member's own log does not hold what follows the copy."""
        return self._progress.log_lost or self._means.joins or self._means.log_behind > 0

    @contextlib.asynccontextmanager
    async def _anew_if_it_fails(self) -> AsyncIterator[None]:
        """Begin with another copy if the server can't be made of this one."""
        try:
            yield
        except (ProgramError, OSError):
            await self._means.discard()  # without it this phase fails again, and ends here
            self._save(replace(self._progress, phase=Phase.COPYING))
            raise

    def _on_progress(self, done: int, total: int) -> None:
        self._bytes = (done, total)

    def _advance(self, phase: Phase, *, log_lost: bool | None = None) -> None:
        lost = self._progress.log_lost if log_lost is None else log_lost
        self._save(replace(self._progress, phase=phase, log_lost=lost))
        log.info("rebuild.phase", phase=phase.value)

    @property
    def _failed_too_often(self) -> bool:
        return self._progress.failures >= _FAILURES_MAX

    def _fail(self, error: str) -> None:
        failures = self._progress.failures + 1
        given_up = failures >= _FAILURES_MAX
        self._save(replace(self._progress, failures=failures, given_up=given_up))
        log.error("rebuild.failed", error=error, failures=failures, given_up=given_up)
        self._trouble = error

    async def _pause(self, trouble: str) -> None:
        if trouble != self._trouble:
            log.warning("rebuild.waiting", reason=trouble)
        self._trouble = trouble
        await self._means.pause(min(2.0**self._progress.failures, _PAUSE_MAX_S))

    def _save(self, progress: RebuildProgress) -> None:
        progress.save(self._config.data_dir)
        self._progress = progress
