"""A rebuild ends on a whole copy whatever dies at whatever step, and never goes on for ever."""

import asyncio
import contextlib
import errno
import itertools
import json
import shutil
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from uuid import UUID, uuid4

import psycopg
import pytest
from pgherd_sidecar.agent.base.config import (
    MemberAddress,
    NodeConfig,
    PartnerServer,
    PostgresAddress,
    RecoverySettings,
    Tls,
)
from pgherd_sidecar.agent.base.errors import DivergedError, LeftBehindError, UnfitError
from pgherd_sidecar.agent.checkpoint import certstate
from pgherd_sidecar.agent.checkpoint.certstate import CertificationState
from pgherd_sidecar.agent.log.host import LogHost
from pgherd_sidecar.agent.membership.identity import StoredIdentity
from pgherd_sidecar.agent.membership.notes import SPLIT_AT, Note
from pgherd_sidecar.agent.recovery import basebackup, partners
from pgherd_sidecar.agent.recovery.means import LocalMeans
from pgherd_sidecar.agent.recovery.partners import (
    NoPartnerError,
    Offer,
    Partners,
    choose_partner,
    conninfo,
)
from pgherd_sidecar.agent.recovery.progress import Phase, RebuildProgress, load_progress
from pgherd_sidecar.agent.recovery.rebuild import Rebuild
from pgherd_sidecar.agent.service import replica as replica_module
from pgherd_sidecar.agent.service.replica import Replica
from pgherd_sidecar.agent.service.sessions import Sessions
from pgherd_sidecar.agent.session import opening
from pgherd_sidecar.agent.standing.standing import Standing
from pgherd_sidecar.core.consensus import LogBase, Membership
from pgherd_sidecar.env.processes.programs import ProgramError
from pgherd_sidecar.env.storage import durable
from psycopg.conninfo import conninfo_to_dict

CLUSTER = uuid4()
STATE = CertificationState(
    cluster_id=str(CLUSTER),
    position=100,
    last_commit=90,
    term=2,
    membership=Membership.fixed("n1", "n2", "n3").encode().decode(),
    state=b"state",
    needed_position=60,
    needed_term=1,
    needed_membership=Membership.fixed("n1", "n2", "n3").encode().decode(),
)


class Crash(BaseException):
    """The sidecar is killed here."""


def partner(name: str) -> PartnerServer:
    return PartnerServer(member=name, host="127.0.0.1", port=5432)


@dataclass
class World:
    """What outlives the sidecar, and acts on it that may be the last before a crash.

    Attributes:
        database: "old", "lost", or what became of a copy: "raw" (the partner's), then "own".
        crash_at: the act at which the sidecar is killed, -1 for none; ``half``: after its effect.
        failures: errors that the next copies end with.
        dumps: a copy has to be loaded.
        hashes: how the own server hashes keys.
        refusal: why a snapshot will not do.
        kept: the old database is still there.
        leased: from where on the others keep the log, None once a lease has ended.
        drops: so many copies take so long that the others drop the log that they need.
    """

    database: str = "old"
    copies: dict[str, str] = field(default_factory=dict)
    server_runs: bool = True
    offered: list[Offer] = field(default_factory=lambda: [Offer(partner("n1"), 95, 0, 15)])
    checkpoint: CertificationState | None = STATE
    log_base: int = 0
    log_end: int = 120
    log_behind: int = 0
    joins: bool = False
    dumps: bool = False
    hashes: str = "abc"
    refusal: str | None = None
    kept: bool = False
    leased: int | None = None
    drops: int = 0
    dropped: asyncio.Event = field(default_factory=asyncio.Event)
    crash_at: int = -1
    half: bool = False
    failures: list[Exception] = field(default_factory=list)
    acts: list[str] = field(default_factory=list)
    pauses: int = 0

    def act(self, name: str, effect: Callable[[], None] = lambda: None) -> None:
        self.acts.append(name)
        dies = len(self.acts) - 1 == self.crash_at
        if dies and not self.half:
            raise Crash
        effect()
        if dies:
            raise Crash

    async def major(self) -> int:
        return 15

    async def fingerprint(self, partner: PartnerServer) -> str:
        return "abc"

    async def offers(self) -> list[Offer]:
        self.act("offers")
        return self.offered

    async def state(self, partner: PartnerServer, wanted: int) -> CertificationState | None:
        self.act("state")
        return self.checkpoint

    async def hold_log(self, position: int) -> None:
        self.act(f"hold {position}")

    async def keep_log(self, position: int, needed: int) -> None:
        self.leased = position
        try:
            await self.dropped.wait()
            assert needed >= position
            self.dropped.clear()
        finally:
            self.leased = None

    async def lose_log(self) -> None:
        """Take so long that the others drop the log that this copy needs."""
        self.dropped.set()
        await asyncio.Event().wait()

    async def take_long(self) -> None:
        """Take longer than a lease lasts."""
        await asyncio.sleep(0)
        needed = 0 if self.checkpoint is None else self.checkpoint.needed_base.position
        assert self.leased == needed

    def make_room(self, source_of: str | None = None) -> None:
        self.copies = {n: what for n, what in self.copies.items() if n == source_of}

    async def discard(self) -> None:
        self.make_room()

    async def note_sequences(self) -> None:
        self.act("note sequences")

    async def copy(
        self,
        partner: PartnerServer,
        name: str,
        rate_bytes_s: int | None,
        on_progress: Callable[[int, int], None],
    ) -> None:
        def effect() -> None:
            self.copies = {name: "dumped" if self.dumps else "raw"}

        self.copies = {name: "part"}
        if self.failures:
            raise self.failures.pop(0)
        on_progress(5, 10)
        if self.drops:
            self.drops -= 1
            await self.lose_log()
        self.act("copy", effect)

    async def open_snapshot(
        self, name: str, on_progress: Callable[[int, int], None]
    ) -> CertificationState:
        if self.refusal is not None:
            raise UnfitError(self.refusal)
        self.act("open snapshot", lambda: setattr(self, "copies", {name: "dumped"}))
        assert self.checkpoint is not None
        return self.checkpoint

    async def load(self, name: str, on_progress: Callable[[int, int], None]) -> None:
        await self.take_long()
        assert self.copies[name] in ("dumped", "raw")
        if self.failures:
            raise self.failures.pop(0)
        self.act("load", lambda: self.copies.update({name: "raw"}))

    async def make_own(self, name: str, needed_gid: int, fingerprint: str) -> None:
        await self.take_long()
        if fingerprint != self.hashes:
            raise UnfitError("PostgreSQL on this machine hashes keys otherwise")
        assert self.copies[name] in ("raw", "own")
        assert needed_gid == (self.checkpoint.last_commit if self.checkpoint else 0)
        self.act("make own", lambda: self.copies.update({name: "own"}))

    async def install(self, name: str) -> None:
        await self.take_long()

        def effect() -> None:
            self.server_runs = False
            self.database = self.copies.pop(name, self.database)
            self.kept = True

        assert self.copies.get(name, self.database) == "own"
        self.act("install", effect)

    async def begin_log_after(self, base: LogBase) -> None:
        def effect() -> None:
            self.log_base = self.log_end = base.position
            self.log_behind = 0
            self.joins = False

        assert self.database == "own"
        assert self.may_begin_log_after(base)
        self.act("begin log", effect)

    def may_begin_log_after(self, base: LogBase) -> bool:
        return base.position >= self.log_end

    async def start_server(self) -> None:
        await self.take_long()
        assert self.database == "own"
        self.act("start", lambda: setattr(self, "server_runs", True))

    async def release(self) -> None:
        self.act("release")

    async def tidy(self) -> None:
        assert self.server_runs
        self.act("tidy", lambda: setattr(self, "kept", False))

    async def pause(self, seconds: float) -> None:
        self.pauses += 1


class Slow(World):
    """A partner writes its checkpoint while a joiner waits for one."""

    async def pause(self, seconds: float) -> None:
        await super().pause(seconds)
        self.checkpoint = STATE


def config_in(directory: Path) -> tuple[NodeConfig, RecoverySettings]:
    recovery = RecoverySettings(
        automatic=True,
        postgres_bin=Path("/usr/bin"),
        data_directory=directory / "pgdata",
        overlay=directory / "overlay",
        server_log=directory / "log",
        partners=(partner("n1"), partner("n2")),
    )
    config = NodeConfig(
        cluster_id=CLUSTER,
        name="n3",
        number=3,
        members=(MemberAddress(name="n3", number=3, host="127.0.0.1", port=1),),
        data_dir=directory,
        postgres=PostgresAddress(host="/run", port=5432),
        hook_dir=directory,
        admin_socket=directory / "admin",
        recovery=recovery,
    )
    return config, recovery


def sidecar(
    directory: Path, world: World, snapshot: Path | None = None, cluster: UUID = CLUSTER
) -> Rebuild:
    """The rebuild as a sidecar has it that has just been started."""
    config, recovery = config_in(directory)
    config = config.model_copy(update={"cluster_id": cluster})
    method = "dump" if world.dumps else "basebackup"
    asked = recovery.model_copy(update={"method": method, "snapshot": snapshot})
    return Rebuild(config, asked, world)


async def finished(rebuild: Rebuild) -> bool:
    """Do all of it, up to the session that catches up."""
    if rebuild.under_way and not await rebuild.run():
        return False
    caught_up = asyncio.Event()
    caught_up.set()
    await rebuild.escort_session(caught_up)
    return True


async def rebuilt(directory: Path, world: World, snapshot: Path | None = None) -> bool:
    """Begin one and do all of it, as a sidecar that has just been started."""
    rebuild = sidecar(directory, world, snapshot)
    rebuild.begin("it can not go on")
    return await finished(rebuild)


def assert_rebuilt(directory: Path, world: World) -> None:
    assert (world.database, world.server_runs) == ("own", True)
    assert (world.copies, world.kept) == ({}, False)
    assert load_progress(directory).phase is Phase.IDLE
    assert certstate.read(directory) == world.checkpoint


async def test_a_rebuild_installs_the_copy_with_the_checkpoint_it_fits_to(tmp_path: Path) -> None:
    world = World()
    rebuild = sidecar(tmp_path, world)
    assert rebuild.begin("it has diverged")
    assert await finished(rebuild)
    assert_rebuilt(tmp_path, world)
    assert "begin log" not in world.acts


@pytest.fixture(
    params=itertools.product(range(11), (False, True)),
    ids=lambda point: f"{'after' if point[1] else 'before'}-{point[0]}",
)
def dying(request: pytest.FixtureRequest) -> Callable[..., World]:
    """Makes a world in which the sidecar is killed, before or after any act."""
    crash_at, half = request.param
    return partial(World, crash_at=crash_at, half=half)


async def killed(directory: Path, world: World) -> None:
    """Begin a rebuild whose sidecar is killed when the world says so."""
    with pytest.raises(Crash):
        await rebuilt(directory, world)


async def test_killed_at_any_act_it_goes_on_from_there(
    tmp_path: Path, dying: Callable[..., World]
) -> None:
    world = dying(log_end=50, log_behind=80)
    await killed(tmp_path, world)
    assert await finished(sidecar(tmp_path, world))
    assert_rebuilt(tmp_path, world)
    assert (world.log_base, world.log_end) == (100, 100)


async def test_a_new_member_killed_at_any_act_has_its_log_begin_where_the_copy_is(
    tmp_path: Path, dying: Callable[..., World]
) -> None:
    world = dying("lost", joins=True, log_end=0)
    assert sidecar(tmp_path, world).due_to_join
    await killed(tmp_path, world)
    again = sidecar(tmp_path, world)
    assert not again.due_to_join  # it goes on with what was begun
    assert await finished(again)
    assert_rebuilt(tmp_path, world)
    assert (world.log_base, world.log_end) == (60, 60)


@pytest.mark.parametrize("snapshot", [None, Path("/carried")], ids=["dump", "snapshot"])
async def test_a_new_member_that_loads_rows_goes_on_from_where_it_was_killed(
    tmp_path: Path, dying: Callable[..., World], snapshot: Path | None
) -> None:
    world = dying("lost", joins=True, dumps=True, log_end=0)
    with contextlib.suppress(Crash):  # to open a snapshot takes fewer acts
        await rebuilt(tmp_path, world, snapshot)
    world.crash_at = -1
    assert await finished(sidecar(tmp_path, world, snapshot))
    assert_rebuilt(tmp_path, world)
    assert world.log_base == STATE.needed_base.position
    assert world.acts.count("load") <= 2
    assert ("copy" in world.acts) == (snapshot is None)


async def test_what_can_not_be_loaded_is_dumped_anew(tmp_path: Path) -> None:
    world = World(dumps=True)
    rebuild = sidecar(tmp_path, world)
    rebuild.begin("it has diverged")

    async def fail_once(name: str, on_progress: Callable[[int, int], None]) -> None:
        del world.load
        raise ProgramError("a view depends on what is no more")

    world.load = fail_once  # type: ignore[method-assign]
    assert await finished(rebuild)
    assert world.acts.count("copy") == 2
    assert_rebuilt(tmp_path, world)


async def test_a_snapshot_that_will_not_do_is_refused_at_once_and_for_good(tmp_path: Path) -> None:
    world = World("lost", joins=True, refusal="the log begins at 70")
    rebuild = sidecar(tmp_path, world, Path("/carried"))
    rebuild.begin("it joins the herd")
    assert not await finished(rebuild)
    assert (rebuild.under_way, world.pauses) == (False, 0)
    again = sidecar(tmp_path, world, Path("/carried"))
    assert not again.begin("it joins the herd")
    assert again.given_up == "the log begins at 70"


async def test_a_server_that_hashes_keys_otherwise_is_refused_at_once(tmp_path: Path) -> None:
    world = World(hashes="other")
    rebuild = sidecar(tmp_path, world)
    rebuild.begin("it has diverged")
    assert not await finished(rebuild)
    assert rebuild.given_up is not None and "hashes keys otherwise" in rebuild.given_up
    assert (world.database, world.pauses) == ("old", 0)


async def test_a_snapshot_is_for_joining_only(tmp_path: Path) -> None:
    world = World(refusal="it is old")
    assert await rebuilt(tmp_path, world, Path("/carried"))
    assert_rebuilt(tmp_path, world)


async def test_a_new_member_waits_for_a_checkpoint_though_the_log_is_whole(tmp_path: Path) -> None:
    world = Slow("lost", joins=True, log_end=0, checkpoint=None)
    assert await rebuilt(tmp_path, world)
    assert world.pauses == 1
    assert world.log_base == 60


async def test_a_log_that_ends_beyond_what_others_need_begins_where_the_checkpoint_is(
    tmp_path: Path,
) -> None:
    world = World(log_end=70, log_behind=75)  # T4: what it has acknowledged is not taken back
    assert await rebuilt(tmp_path, world)
    assert (world.log_base, world.log_end) == (100, 100)


async def test_a_log_that_was_fed_after_it_had_begun_does_not_begin_again(tmp_path: Path) -> None:
    world = World("lost", joins=True, log_end=0, crash_at=7, half=True)
    await killed(tmp_path, world)
    assert world.acts[-1] == "begin log"
    world.log_end = 80  # the proposer fed it before the crash
    assert await finished(sidecar(tmp_path, world))
    assert (world.log_base, world.log_end) == (60, 80)


async def test_the_log_is_held_before_the_checkpoint_is_fetched_and_that_is_a_new_one(
    tmp_path: Path,
) -> None:
    old = replace(STATE, position=90, needed_position=10)
    world = Slow("lost", joins=True, log_end=0, checkpoint=old)
    assert await rebuilt(tmp_path, world)
    assert world.acts[1:4] == ["offers", "hold 0", "state"]
    assert world.log_base == 60  # what follows 10 may have been trimmed before the log was held


async def test_a_new_checkpoint_will_do_though_a_transaction_in_pieces_is_open_for_long(
    tmp_path: Path,
) -> None:
    state = replace(STATE, position=90, covered=100)
    world = World("lost", joins=True, log_end=0, checkpoint=state)
    assert await rebuilt(tmp_path, world)
    assert (world.pauses, world.log_base) == (0, 60)


async def test_without_any_checkpoint_the_whole_log_must_be_here(tmp_path: Path) -> None:
    world = World(checkpoint=None)
    STATE.write(tmp_path)
    assert await rebuilt(tmp_path, world)
    assert certstate.read(tmp_path) is None  # the old one covers more than the copy may hold


@pytest.mark.parametrize("phase", [Phase.LOADING, Phase.SETTLING, Phase.INSTALLING])
async def test_a_copy_whose_checkpoint_is_lost_is_made_anew(tmp_path: Path, phase: Phase) -> None:
    """Without it a new member's log would never begin."""
    world = World("lost", joins=True, dumps=True, log_end=0)
    name, state = "pgdata.copy-1", "own" if phase is Phase.INSTALLING else "raw"
    world.copies = {name: state}
    RebuildProgress(phase, "it joins", copy=name, fingerprint="abc", log_lost=True).save(tmp_path)
    (tmp_path / "checkpoint.copy").write_bytes(b"rotten")
    world.take_long = lambda: asyncio.sleep(0)  # type: ignore[method-assign]
    assert await finished(sidecar(tmp_path, world))
    assert_rebuilt(tmp_path, world)
    assert world.log_base == STATE.needed_base.position


@pytest.mark.parametrize("crash_at", [5, 6])
@pytest.mark.parametrize(("split_at", "copies"), [(99, 2), (100, 1)], ids=["beyond", "common"])
async def test_a_copy_beyond_what_was_common_when_the_member_split_off_is_made_anew(
    tmp_path: Path, crash_at: int, split_at: int, copies: int
) -> None:
    """Else its log would begin after a position of the other cluster's."""
    world = World(crash_at=crash_at, half=True, log_end=50, log_behind=80)
    await killed(tmp_path, world)
    assert load_progress(tmp_path).phase in (Phase.SETTLING, Phase.INSTALLING)
    successor = uuid4()
    Note(tmp_path, SPLIT_AT).write(str(split_at))
    world.log_end, world.log_behind = split_at, 0
    if copies == 2:
        world.checkpoint = replace(STATE, cluster_id=str(successor))
    assert await finished(sidecar(tmp_path, world, cluster=successor))
    assert_rebuilt(tmp_path, world)
    assert world.acts.count("copy") == copies


async def test_a_checkpoint_of_another_cluster_is_not_taken(tmp_path: Path) -> None:
    """Its partner has split off, this moment or just before this member was linked with it."""
    world = Slow(checkpoint=replace(STATE, cluster_id="another"))
    assert await rebuilt(tmp_path, world)
    assert_rebuilt(tmp_path, world)
    assert (world.pauses, world.acts.count("copy")) == (1, 1)


class Log:
    """A log with an end."""

    def __init__(self, last: int) -> None:
        self.extent = self
        self.last = last


@pytest.mark.parametrize(
    ("phase", "chain_end", "covered", "fits"),
    [
        (Phase.STARTING, 950, 950, True),
        (Phase.STARTING, 951, 950, False),
        (Phase.STARTING, 940, 951, False),
        (Phase.COPYING, 951, 950, False),  # and the next one was given up
        (Phase.IDLE, 1000, 1000, True),
    ],
)
def test_an_installed_copy_beyond_what_was_common_at_a_split_is_not_gone_on_with(
    tmp_path: Path, phase: Phase, chain_end: int, covered: int, fits: bool
) -> None:
    """The log of the new cluster may be longer by now, and another one there."""
    config, _ = config_in(tmp_path)
    RebuildProgress(phase).save(tmp_path)
    replace(STATE, position=covered).write(tmp_path)
    Note(tmp_path, SPLIT_AT).write("950")
    log = cast("LogHost", Log(2000))
    with contextlib.nullcontext() if fits else pytest.raises(LeftBehindError, match="split off"):
        opening.require_log(config, log, chain_end)
    if fits:
        RebuildProgress(Phase.STARTING).save(tmp_path)
        opening.require_log(config, log, 2000)  # it has gone on from there


async def test_what_was_common_at_a_split_counts_for_no_later_copy(tmp_path: Path) -> None:
    Note(tmp_path, SPLIT_AT).write("1")
    world = World()
    assert await rebuilt(tmp_path, world)
    assert_rebuilt(tmp_path, world)
    assert not Note(tmp_path, SPLIT_AT).text


async def test_a_checkpoint_that_is_too_old_for_the_log_is_waited_for(tmp_path: Path) -> None:
    world = Slow(checkpoint=None, log_base=70)
    assert await rebuilt(tmp_path, world)
    assert world.pauses == 1
    assert (world.acts.count("offers"), world.acts.count("copy")) == (1, 1)
    assert_rebuilt(tmp_path, world)


async def test_a_failed_copy_is_made_again_from_whoever_is_fit_then(tmp_path: Path) -> None:
    world = World(failures=[ProgramError("the partner died"), OSError("no space")])
    assert await rebuilt(tmp_path, world)
    assert world.acts.count("offers") == 3
    assert_rebuilt(tmp_path, world)


@dataclass
class Two(World):
    """Two partners, of which the one that is chosen first is of no use."""

    useless: str = "state"
    copied: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.offered = [Offer(partner(name), 95, 0, 15) for name in ("n1", "n2")]

    async def state(self, partner: PartnerServer, wanted: int) -> CertificationState | None:
        state = await super().state(partner, wanted)
        return None if (self.useless, partner.member) == ("state", "n1") else state

    async def pause(self, seconds: float) -> None:
        await super().pause(seconds)
        await asyncio.sleep(0)  # one who waits for ever is to be noticed

    async def fingerprint(self, partner: PartnerServer) -> str:
        if (self.useless, partner.member) == ("fingerprint", "n1"):
            raise NoPartnerError("n1: no answer")
        return await super().fingerprint(partner)

    async def copy(
        self,
        partner: PartnerServer,
        name: str,
        rate_bytes_s: int | None,
        on_progress: Callable[[int, int], None],
    ) -> None:
        self.copied.append(partner.member)
        if (self.useless, partner.member) == ("copy", "n1"):
            raise ProgramError("n1 lets nobody copy it")
        await super().copy(partner, name, rate_bytes_s, on_progress)


@pytest.mark.parametrize("useless", ["state", "fingerprint", "copy"])
async def test_a_partner_that_was_of_no_use_is_not_asked_again_before_the_others(
    tmp_path: Path, useless: str
) -> None:
    """Its sidecar may hang: its server says that it takes writes, and no checkpoint comes."""
    world = Two(joins=True, log_end=0, useless=useless)
    rebuild = sidecar(tmp_path, world)
    rebuild.begin("it joins")
    async with asyncio.timeout(2):
        assert await finished(rebuild)
    assert_rebuilt(tmp_path, world)
    assert world.copied[-1] == "n2"
    assert world.acts.count("offers") == 2


async def test_a_partner_that_was_named_is_asked_again(tmp_path: Path) -> None:
    class Late(Two):
        async def pause(self, seconds: float) -> None:
            await super().pause(seconds)
            if self.pauses > 30:
                self.useless = ""

    world = Late(joins=True, log_end=0)
    rebuild = sidecar(tmp_path, world)
    rebuild.request("n1", None)
    assert await finished(rebuild)
    assert world.copied == ["n1"]


async def test_it_waits_for_a_partner_as_long_as_it_takes(tmp_path: Path) -> None:
    class Alone(World):
        async def pause(self, seconds: float) -> None:
            await super().pause(seconds)
            if self.pauses == 50:
                self.offered = [Offer(partner("n2"), 1, 0, 15)]

    world = Alone(offered=[])
    assert await rebuilt(tmp_path, world)
    assert world.pauses == 50


async def test_what_always_fails_is_given_up_and_says_why(tmp_path: Path) -> None:
    world = World(failures=[ProgramError("disk full") for _ in range(99)])
    rebuild = sidecar(tmp_path, world)
    rebuild.begin("it has diverged")
    assert not await finished(rebuild)
    assert not rebuild.under_way
    assert rebuild.given_up is not None and "disk full" in rebuild.given_up
    assert world.database == "old"
    assert len(world.failures) > 50
    again = sidecar(tmp_path, world)
    assert not again.under_way  # nor does a restart begin it again,
    assert not again.begin("it has diverged")  # also when the cause is met again
    assert again.given_up is not None and "10 failures" in again.given_up


async def test_a_copy_is_begun_anew_as_soon_as_no_member_has_its_log(tmp_path: Path) -> None:
    world = World(drops=1, joins=True, log_end=0)
    rebuild = sidecar(tmp_path, world)
    rebuild.begin("it joins")
    assert await finished(rebuild)
    assert world.acts.count("copy") == 1
    assert world.acts.count("offers") == 2
    assert rebuild.status()["rebuild_failures"] == 0  # it is over
    assert_rebuilt(tmp_path, world)


async def test_a_member_with_a_whole_log_of_its_own_does_without_the_others(tmp_path: Path) -> None:
    class Copied(World):
        async def take_long(self) -> None:
            await asyncio.sleep(0.05)

    world = Copied()
    world.dropped.set()
    assert await rebuilt(tmp_path, world)
    assert world.acts.count("offers") == 1


async def test_what_was_copied_is_dropped_when_no_member_has_its_log(tmp_path: Path) -> None:
    class Slow(World):
        async def make_own(self, name: str, needed_gid: int, fingerprint: str) -> None:
            if self.acts.count("copy") == 1:
                await self.lose_log()
            await super().make_own(name, needed_gid, fingerprint)

    world = Slow(joins=True, log_end=0)
    assert await rebuilt(tmp_path, world)
    assert world.acts.count("copy") == 2
    assert_rebuilt(tmp_path, world)


async def test_a_copy_that_always_loses_its_log_is_given_up_and_says_why(tmp_path: Path) -> None:
    world = World(drops=99, joins=True, log_end=0)
    rebuild = sidecar(tmp_path, world)
    rebuild.begin("it joins")
    assert not await finished(rebuild)
    assert rebuild.given_up is not None and "limits.log_hold_bytes" in rebuild.given_up


async def test_copies_that_can_never_be_used_are_given_up(tmp_path: Path) -> None:
    class Useless(World):
        async def make_own(self, name: str, needed_gid: int, fingerprint: str) -> None:
            raise ProgramError("the copy stands at GID 7")

    world = Useless()
    assert not await rebuilt(tmp_path, world)
    assert world.database == "old"


async def test_a_node_that_is_rebuilt_again_and_again_is_given_up(tmp_path: Path) -> None:
    world = World()
    for _ in range(3):
        rebuild = sidecar(tmp_path, world)
        assert rebuild.begin("it has diverged")
        assert await finished(rebuild)
    assert not rebuild.begin("it has diverged")
    assert rebuild.given_up is not None and "3 times" in rebuild.given_up
    file = tmp_path / "rebuild.json"
    fields = json.loads(file.read_text())
    fields["begun"] = [when - 4000 for when in fields["begun"]]  # more than an hour ago
    file.write_text(json.dumps(fields))
    assert sidecar(tmp_path, world).begin("it has diverged")


class FullDisk:
    """Nothing can be written while a part of a copy is there."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self._world, self._write = world, durable.replace
        monkeypatch.setattr(durable, "replace", self.replace)

    def replace(self, directory: Path, name: str, content: bytes, mode: int = 0o666) -> None:
        if "part" in self._world.copies.values():
            raise OSError(errno.ENOSPC, "No space left on device")
        self._write(directory, name, content, mode)


@pytest.mark.parametrize("dumps", [False, True], ids=["files", "dump"])
async def test_a_copy_that_has_filled_the_disk_goes_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dumps: bool
) -> None:
    world = World(dumps=dumps, failures=[ProgramError("No space left on device")])
    FullDisk(world, monkeypatch)
    assert await rebuilt(tmp_path, world)
    assert_rebuilt(tmp_path, world)


async def test_a_copy_that_has_filled_the_disk_goes_when_it_could_not_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(dumps=True)
    FullDisk(world, monkeypatch)

    async def fail_once(name: str, on_progress: Callable[[int, int], None]) -> None:
        del world.load
        world.copies[name] = "part"
        raise ProgramError("No space left on device")

    world.load = fail_once  # type: ignore[method-assign]
    assert await rebuilt(tmp_path, world)
    assert_rebuilt(tmp_path, world)


async def test_a_copy_that_had_filled_the_disk_when_the_sidecar_died_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    FullDisk(world, monkeypatch)
    assert sidecar(tmp_path, world).begin("it has diverged")
    world.copies = {"pgdata.copy-1": "part"}
    assert await finished(sidecar(tmp_path, world))
    assert_rebuilt(tmp_path, world)


async def test_what_was_given_up_takes_no_room(tmp_path: Path) -> None:
    world = World(failures=[ProgramError("disk full") for _ in range(99)])
    assert not await rebuilt(tmp_path, world)
    assert world.copies == {}


async def test_what_was_refused_takes_no_room(tmp_path: Path) -> None:
    world = World(hashes="other")
    assert not await rebuilt(tmp_path, world)
    assert world.copies == {}


def copies_in(directory: Path) -> set[str]:
    return {path.name for path in directory.glob("pgdata.*")}


@pytest.mark.parametrize(
    ("phase", "given_up", "left"),
    [
        (Phase.COPYING, False, set()),
        (Phase.LOADING, False, {"pgdata.copy-1.source"}),
        (Phase.SETTLING, False, {"pgdata.copy-0", "pgdata.copy-1", "pgdata.copy-1.source"}),
        (Phase.SETTLING, True, set()),
    ],
)
async def test_an_unfinished_copy_goes_before_the_log_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: Phase, given_up: bool, left: set[str]
) -> None:
    """The log makes a file of zeros at once, for which there may be no room beside the copy."""
    config, _ = config_in(tmp_path)
    for name in ("pgdata.copy-0", "pgdata.copy-1", "pgdata.copy-1.source"):
        (tmp_path / name).mkdir()
    RebuildProgress(phase, "why", copy="pgdata.copy-1", given_up=given_up).save(tmp_path)
    identity = StoredIdentity(config)
    host = LogHost(config, disk="d", on_failure=lambda error: None, on_split=lambda: None)
    there = copies_in(tmp_path)
    for free, after in ((1 << 30, there), ((1 << 30) - 1, left)):
        used = SimpleNamespace(free=free)
        monkeypatch.setattr(shutil, "disk_usage", lambda _, used=used: used)
        Replica(config, host, identity)
        assert copies_in(tmp_path) == after
    identity.close()


@pytest.mark.parametrize("database", [True, False])
async def test_what_an_earlier_rebuild_has_kept_makes_room_if_there_is_a_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database: bool
) -> None:
    async def copied(*_: object, **__: object) -> None:
        assert kept.exists() != database

    monkeypatch.setattr(basebackup, "copy", copied)
    config, recovery = config_in(tmp_path)
    recovery.data_directory.mkdir()
    if database:
        (recovery.data_directory / "PG_VERSION").touch()
    kept = basebackup.replaced(recovery.data_directory)
    kept.mkdir()
    host = LogHost(config, disk="d", on_failure=lambda error: None, on_split=lambda: None)
    await LocalMeans(config, recovery, host).copy(partner("n1"), "c", None, lambda *_: None)
    assert kept.exists() != database


async def test_an_administrator_may_begin_one_that_was_given_up(tmp_path: Path) -> None:
    world = World(failures=[ProgramError("disk full") for _ in range(10)])
    rebuild = sidecar(tmp_path, world)
    rebuild.begin("it has diverged")
    assert not await finished(rebuild)
    rebuild.request("n1", None)
    assert await finished(rebuild)
    assert_rebuilt(tmp_path, world)


@dataclass
class Running:
    """A replica on a world, and whether it has stopped for good."""

    replica: Replica
    stopped: asyncio.Event = field(default_factory=asyncio.Event)


@pytest.fixture
async def running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[[World], Running]]:
    """Run a replica whose rebuilds do their work on a world; its log says nothing about that."""
    config, _ = config_in(tmp_path)
    identity = StoredIdentity(config)
    tasks: list[asyncio.Task[None]] = []

    async def unknown(_: Standing) -> bool:
        return False

    def run(world: World) -> Running:
        monkeypatch.setattr(replica_module, "LocalMeans", lambda *_: world)
        host = LogHost(config, disk="d", on_failure=lambda error: None, on_split=lambda: None)
        made = Running(Replica(config, host, identity))

        async def fence(_: Sessions, reason: str) -> None:
            if reason.startswith("it has stopped for good"):
                made.stopped.set()

        monkeypatch.setattr(Sessions, "_fence", fence)
        monkeypatch.setattr(Standing, "follow_log", unknown)
        tasks.append(asyncio.create_task(made.replica.run()))
        return made

    yield run
    for task in tasks:
        task.cancel()
        await asyncio.wait({task})
    identity.close()


async def test_a_node_whose_rebuild_was_given_up_stops_for_good(
    tmp_path: Path, running: Callable[[World], Running]
) -> None:
    world = World(failures=[ProgramError("disk full") for _ in range(99)])
    assert sidecar(tmp_path, world).begin("it has diverged")
    node = running(world)
    await node.stopped.wait()
    assert len(world.failures) == 89
    assert load_progress(tmp_path).given_up


async def test_a_node_that_has_stopped_goes_on_when_a_rebuild_is_begun_after_all(
    tmp_path: Path, running: Callable[[World], Running]
) -> None:
    replica = running(World()).replica
    replica._fitness.halted = DivergedError("it has diverged")
    replica._fitness.need_rebuild(LeftBehindError("left behind"))
    assert load_progress(tmp_path).phase is Phase.COPYING
    assert replica._fitness.halted is None


async def test_a_request_that_meets_the_end_of_a_copy_begins_from_the_start(
    tmp_path: Path, running: Callable[[World], Running]
) -> None:
    copying, copied, installed = asyncio.Event(), asyncio.Event(), asyncio.Event()

    class Meeting(World):
        async def offers(self) -> list[Offer]:
            if copying.is_set():
                copied.set()
            return await super().offers()

        async def copy(
            self,
            partner: PartnerServer,
            name: str,
            rate_bytes_s: int | None,
            on_progress: Callable[[int, int], None],
        ) -> None:
            copying.set()
            await copied.wait()
            await super().copy(partner, name, rate_bytes_s, on_progress)

        async def start_server(self) -> None:
            await super().start_server()
            installed.set()

    world = Meeting()
    assert sidecar(tmp_path, world).begin("it has diverged")
    replica = running(world).replica
    await copying.wait()
    await replica.rebuild("n1", None)
    await installed.wait()
    assert world.database == "own"
    assert load_progress(tmp_path).reason == "an administrator asked for it"


async def test_a_request_is_refused_if_nobody_can_be_copied(tmp_path: Path) -> None:
    rebuild = sidecar(tmp_path, World(offered=[]))
    with pytest.raises(NoPartnerError):
        await rebuild.require_partner(None)
    assert not rebuild.under_way


async def test_status_tells_the_phase_the_partner_and_the_bytes(tmp_path: Path) -> None:
    world = World()
    rebuild = sidecar(tmp_path, world)
    rebuild.begin("it has diverged")
    assert rebuild.status()["rebuild_phase"] == "copying"
    await rebuild.run()
    status = rebuild.status()
    assert status["rebuild_phase"] == "starting"
    assert status["rebuild_partner"] == "n1"
    assert (status["rebuild_bytes_done"], status["rebuild_bytes_total"]) == (5, 10)
    assert "it has diverged" in rebuild.reason


async def test_only_a_missing_database_is_replaced_under_a_server_of_somebody_else_s(
    tmp_path: Path,
) -> None:
    config, recovery = config_in(tmp_path)
    theirs = recovery.model_copy(update={"runs_server": False})
    recovery.data_directory.mkdir()
    version = recovery.data_directory / "PG_VERSION"
    version.touch()
    assert not Rebuild(config, theirs, World()).begin("it has diverged")
    version.unlink()
    world = World(joins=True)
    rebuild = Rebuild(config, theirs, world)
    assert rebuild.begin("it joins the herd")
    assert await finished(rebuild)


def test_a_partner_elsewhere_is_asked_to_prove_who_it_is_and_shown_who_we_are(
    tmp_path: Path,
) -> None:
    config, recovery = config_in(tmp_path)
    config = config.model_copy(update={"tls": Tls(directory=Path("/etc/tls"))})
    elsewhere = PartnerServer(member="n1", host="n1.example", port=5432)
    options = conninfo_to_dict(conninfo(config, recovery, elsewhere))
    assert options["sslmode"] == "verify-full"
    assert options["sslrootcert"] == "/etc/tls/ca.crt"
    assert (options["sslcert"], options["sslkey"]) == ("/etc/tls/tls.crt", "/etc/tls/tls.key")
    assert "sslmode" not in conninfo_to_dict(conninfo(config, recovery, partner("n1")))


async def test_the_log_is_held_until_the_last_partner_has_trimmed_what_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[int] = []
    bases = [[], [5, 30], [10, 30], [11], [11, 30]]

    class Trimming(Partners):
        async def hold_log(self, position: int) -> None:
            held.append(position)

        async def _log_bases(self) -> list[int]:
            return bases.pop(0)

    monkeypatch.setattr(partners, "LEASE_S", 0.0)
    servers = [partner("n1"), partner("n2")]
    await Trimming(*config_in(tmp_path), lambda: servers).keep_log(7, 10)
    assert (held, bases) == ([7] * 5, [])


async def test_the_log_is_lost_when_who_feeds_this_member_has_trimmed_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partners, "LEASE_S", 0.0)
    behind = iter([0, 10, 11])
    await Partners(*config_in(tmp_path), list).keep_log(7, 10, lambda: next(behind))
    assert next(behind, None) is None


@dataclass
class Left:
    """A log whose member may have left."""

    has_left: bool = False
    behind: int = 0
    membership: Membership = field(default_factory=Membership)

    @property
    def peers(self) -> "Left":
        return self

    extent = peers


async def test_a_member_that_has_left_neither_renews_its_lease_nor_copies_anybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    renewed = asyncio.Event()

    async def refuse(text: str, **_: object) -> None:
        asked.append(text)
        if len(asked) == 4:
            renewed.set()
        raise psycopg.OperationalError

    monkeypatch.setattr(psycopg.AsyncConnection, "connect", refuse)
    monkeypatch.setattr(partners, "LEASE_S", 0.0)
    host = Left()
    means = LocalMeans(*config_in(tmp_path), cast(LogHost, host))
    keeping = asyncio.create_task(means.keep_log(7, 10))
    await renewed.wait()
    host.has_left = True
    for _ in range(10):  # what was begun ends
        await asyncio.sleep(0)
    asked.clear()
    for _ in range(10):
        await asyncio.sleep(0)
    assert (asked, keeping.done()) == ([], False)
    with pytest.raises(NoPartnerError, match="it has left the herd"):
        await means.offers()
    host.has_left = False  # the entry that took it out did not count
    renewed.clear()
    await renewed.wait()
    keeping.cancel()


def test_the_partner_with_the_fewest_copies_is_chosen_then_the_furthest() -> None:
    busy, behind, best = (
        Offer(partner("n1"), 100, 1), Offer(partner("n2"), 90, 0), Offer(partner("n4"), 95, 0),
    )  # fmt: skip
    assert choose_partner([busy, behind, best], None) is best
    assert choose_partner([busy, behind, best], "n1") is busy
    with pytest.raises(NoPartnerError, match="n9"):
        choose_partner([busy], "n9")


def test_files_are_copied_from_a_server_of_the_same_major_version_only() -> None:
    old, new = Offer(partner("n1"), 100, 0, 15), Offer(partner("n2"), 90, 0, 17)
    assert choose_partner([old, new], None, 17) is new
    assert choose_partner([old, new], None) is old
    with pytest.raises(NoPartnerError, match="no other member with PostgreSQL 16"):
        choose_partner([old, new], None, 16)


def test_a_damaged_progress_file_means_that_nothing_was_going_on(tmp_path: Path) -> None:
    (tmp_path / "rebuild.json").write_text('{"phase": "copying", "beg')
    assert load_progress(tmp_path).phase is Phase.IDLE
