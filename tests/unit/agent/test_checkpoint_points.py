"""A node may die at any point of its checkpoints: what is left on disk always fits together.

The points are before and after each statement, each file that is replaced, and each trimming of the
log. The server keeps what it was made to flush and nothing else, as after a loss of power.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest
from pgherd_sidecar.agent.base.errors import LeftBehindError
from pgherd_sidecar.agent.checkpoint import certstate, verdicts
from pgherd_sidecar.agent.checkpoint.verdicts import Verdicts
from pgherd_sidecar.agent.session.upkeep import Upkeep
from pgherd_sidecar.core.commit.chain import Chain
from pgherd_sidecar.core.consensus import LogBase, Membership
from pgherd_sidecar.core.replication.entries import Entry, Incarnation, Noop, Piece
from pgherd_sidecar.core.replication.state import ReplicatedState
from pgherd_sidecar.env.storage import durable
from structlog.testing import capture_logs
from test_recovery_rebuild import config_in

MEMBERS = Membership.fixed("n1", "n2", "n3")
ROUNDS = ((100, 90), (200, 190), (300, 290))
"""Position of the log and last commit of each checkpoint."""


def committed(position: int) -> bool:
    """What the verdicts are."""
    return position % 10 > 0


class Crash(BaseException):
    """The node dies here."""


class Rows:
    def __init__(self, row: tuple[Any, ...]) -> None:
        self._row = row

    async def fetchone(self) -> tuple[Any, ...]:
        return self._row


class Node:
    """A node as its checkpoints see it: also the connection to its server, and its log.

    Attributes:
        dies_at: number of the point at which it dies, from 1; 0 for none.
        chain_end: the last GID that its server has flushed.
        flushes: the server does what it is told.
        wanted: how new a checkpoint some joiner needs.
        block: a block of the log starts at each multiple of this.
        damaged: positions at which the log can't be read.
        lock_table_full: no sequence can be asked; the session goes on all the same.
        base: the log holds what comes after this position.
        shapes_from: columns of tables are known from there on.
        holds: after which position somebody has the log kept.
        wal_kept: so much of its WAL the server keeps for a copy.
        wal_bound: it may keep so much, None before it was told.
    """

    def __init__(
        self, directory: Path, dies_at: int = 0, *, flushes: bool = True, wanted: int | None = None
    ) -> None:
        self.directory = directory
        (directory / "pgdata" / "pg_wal").mkdir(parents=True)
        self.dies_at = dies_at
        self.flushes = flushes
        self.wanted = wanted
        self.points: list[str] = []
        self.chain_end = self.base = self.shapes_from = 0
        self.end = 400
        self.reader = self.extent = self
        self.damaged: set[int] = set()
        self.lock_table_full = self.closed = False
        self.block = 1
        self.holds: dict[str, int] = {}
        self.wal_kept = 0
        self.wal_bound: int | None = None
        self._visible = 0

    def point(self, name: str) -> None:
        self.points.append(name)
        if len(self.points) == self.dies_at:
            raise Crash

    async def execute(self, query: str, parameters: tuple[Any, ...] = ()) -> Rows:
        name = query.partition("pgherd.")[2].partition("(")[0]
        self.point(f"before {name}")
        row: tuple[Any, ...] = (None,)
        if name == "log_holds":
            holds = [{"hold": hold, "after": after} for hold, after in self.holds.items()]
            row = (self.wanted, min(self.holds.values(), default=None), holds)
        elif name == "end_copies":
            (self.wal_bound,) = parameters
            row = (["pgherd copy n4"],) if self.wal_bound < self.wal_kept else (None,)
        elif name == "release_hold":
            self.holds.pop(*parameters)
        elif name == "sequence_positions":
            if self.lock_table_full:
                raise psycopg.errors.OutOfMemory
            row = (None, {"public.s": 7})
        elif name == "forget_shapes":
            (self.shapes_from,) = parameters
        elif name == "flush_wal" and self.flushes:
            self.chain_end = self._visible
        self.point(f"after {name}")
        return Rows(row)

    async def begin_before(self, position: int) -> int | None:
        return None if position in self.damaged else position - 1 - position % self.block

    def base_at(self, position: int) -> LogBase:
        return LogBase(position, 1, MEMBERS)

    needed_base = base_at

    def bytes_after(self, position: int) -> int:
        return (self.end - position) << 20

    def trim(self, position: int) -> None:
        self.point("before trim")
        self.base = position
        self.point("after trim")

    async def live(self) -> None:
        """Make the checkpoints, one after the other, in one session."""
        state, known = ReplicatedState([1, 2, 3]), Verdicts()
        for position, last_commit in ROUNDS:
            for at in range(known.last + 1, position + 1):
                known.note_decision(at, committed=committed(at))
            self._visible = last_commit
            upkeep = self.upkeep(state, known, entries=1)
            state.position = position
            await upkeep._maybe_checkpoint()

    def upkeep(self, state: ReplicatedState, known: Verdicts, *, entries: int) -> Upkeep:
        """Make what makes checkpoints, after so many entries."""
        config, _ = config_in(self.directory)
        limits = config.limits.model_copy(
            update={"checkpoint_entries": entries, "log_hold_bytes": 320 << 20}
        )
        return Upkeep(
            cast(Any, self),
            config.model_copy(update={"limits": limits}),
            cast(Any, self),
            chain=Chain(self._visible),
            state=state,
            verdicts=known,
            leaked=cast(Any, None),
        )

    def assert_fits(self) -> None:
        """It can start from its checkpoint, with all that it has to know."""
        checkpoint = certstate.read(self.directory)
        fresh = ReplicatedState([1, 2, 3])
        state = certstate.state_for(checkpoint, fresh, chain_end=self.chain_end, log_base=self.base)
        assert self.shapes_from <= self.base <= state.position
        if checkpoint is not None:
            assert state is not fresh, "the checkpoint that was written is of no use"
            known = verdicts.load(self.directory)
            assert known.first <= self.base + 1
            assert known.last >= state.position
            expected = "".join("01"[committed(at)] for at in range(self.base + 1, known.last + 1))
            assert known.between(self.base + 1, known.last) == expected


Begin = Callable[..., Node]


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Begin:
    """Makes a node in a directory of its own; files that are replaced are points of the newest."""
    nodes: list[Node] = []
    replace = durable.replace

    def passed(directory: Path, name: str, content: bytes) -> None:
        nodes[-1].point(f"before {name}")
        replace(directory, name, content)
        nodes[-1].point(f"after {name}")

    def made(**how: Any) -> Node:
        directory = tmp_path / str(len(nodes))
        directory.mkdir()
        nodes.append(Node(directory, **how))
        return nodes[-1]

    monkeypatch.setattr(durable, "replace", passed)
    return made


async def test_a_node_may_die_at_any_point_of_its_checkpoints(begin: Begin) -> None:
    whole = begin()
    await whole.live()
    whole.assert_fits()
    assert (whole.base, whole.chain_end) == ROUNDS[-1]
    acts = {"flush_wal", "trim", "forget_shapes", verdicts.FILE, certstate.FILE, "sequences.json"}
    assert {point.partition(" ")[2] for point in whole.points} >= acts
    for dies_at in range(1, len(whole.points) + 1):
        node = begin(dies_at=dies_at)
        with pytest.raises(Crash):
            await node.live()
        node.assert_fits()


async def test_a_joiner_has_no_more_of_the_log_kept_than_its_bound(begin: Begin) -> None:
    node = begin()
    upkeep = node.upkeep(ReplicatedState([1, 2, 3]), Verdicts(), entries=1)
    for joiner, node.end in (("member:4", 1100), ("member:5", 1120)):
        node.holds[joiner] = 70  # a snapshot is old: what was there when they began is kept
        await upkeep._look_at_holds()
    node.end = 1430
    await upkeep._look_at_holds()
    assert node.holds == {"member:5": 70}


async def test_nothing_is_kept_for_a_joiner_that_needs_what_is_gone(begin: Begin) -> None:
    node = begin()
    node.holds, node.base = {"member:4": 70, "member:5": 80, "member:6": 0}, 80
    upkeep = node.upkeep(ReplicatedState([1, 2, 3]), Verdicts(), entries=1)
    await upkeep._look_at_holds()
    assert node.holds == {"member:5": 80, "member:6": 0}


async def test_a_stream_has_as_much_of_the_log_kept_as_it_needs(begin: Begin) -> None:
    node = begin()
    node.holds = {"stream:s": 70}
    await node.live()
    assert node.base == 70


@pytest.mark.parametrize(("free", "kept"), [(300 << 20, False), (311 << 20, True)])
async def test_a_joiner_has_no_more_of_the_log_kept_than_there_is_room_for(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, free: int, kept: bool
) -> None:
    usage = shutil.disk_usage("/")._replace(free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda _directory: usage)
    node = begin()
    node.holds = {"member:4": 90}
    upkeep = node.upkeep(ReplicatedState([1, 2, 3]), Verdicts(), entries=1)
    for node.end in (100, 410):
        await upkeep._look_at_holds()
    assert bool(node.holds) == kept


@pytest.mark.parametrize(("free_mib", "bound_mib"), [(300, 300), (400, 320)])
async def test_the_server_keeps_no_more_wal_for_a_copy_than_its_bound_and_what_is_free(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, free_mib: int, bound_mib: int
) -> None:
    node = begin()
    usage = shutil.disk_usage("/")
    on_disk = {node.directory: 1 << 50, node.directory / "pgdata" / "pg_wal": free_mib << 20}
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=on_disk[path]))
    node.wal_kept = 310 << 20
    with capture_logs() as logs:
        await node.upkeep(ReplicatedState([1, 2, 3]), Verdicts(), entries=1)._maybe_checkpoint()
    assert node.wal_bound == bound_mib << 20
    told = [one["copy"] for one in logs if one["event"] == "copy.ended"]
    assert told == (["pgherd copy n4"] if bound_mib < 310 else [])


async def test_sequences_that_can_not_be_asked_keep_no_log(begin: Begin) -> None:
    node = begin()
    node.lock_table_full = True
    await node.live()
    node.assert_fits()
    assert node.base == ROUNDS[-1][0]


async def test_a_server_that_is_gone_at_the_sequences_ends_the_session(begin: Begin) -> None:
    node = begin()
    node.lock_table_full = node.closed = True
    with pytest.raises(psycopg.errors.OutOfMemory):
        await node.live()


@pytest.mark.parametrize(("wanted", "made"), [(3, True), (4, False), (None, False)])
async def test_a_joiner_gets_a_new_checkpoint_while_a_transaction_in_pieces_is_open(
    begin: Begin, wanted: int | None, made: bool
) -> None:
    node, state = begin(wanted=wanted), ReplicatedState([1, 2, 3])
    upkeep = node.upkeep(state, Verdicts(), entries=1000)
    entries: list[Entry] = [Incarnation(2, 1), Piece(2, 1, 1, 0, 0, b"[]"), Noop()]
    for gid, entry in enumerate(entries, 1):
        state.deliver(gid, entry)
    await upkeep._maybe_checkpoint()
    checkpoint = certstate.read(node.directory)
    found = checkpoint and (checkpoint.position, checkpoint.newest)
    assert found == ((1, 3) if made else None)


@pytest.mark.parametrize(("damaged", "begins"), [(4, 2), (5, None)])
async def test_the_log_that_a_checkpoint_needs_begins_with_a_block(
    begin: Begin, damaged: int, begins: int | None
) -> None:
    node, state = begin(wanted=6), ReplicatedState([1, 2, 3])
    node.block, node.damaged = 3, {damaged}
    upkeep = node.upkeep(state, Verdicts(), entries=1000)
    entries: list[Entry] = [Incarnation(2, 1), *[Noop()] * 3, Piece(2, 1, 1, 0, 0, b"[]"), Noop()]
    for gid, entry in enumerate(entries, 1):
        state.deliver(gid, entry)
    await upkeep._maybe_checkpoint()
    checkpoint = certstate.read(node.directory)
    assert (checkpoint and checkpoint.position) == begins


async def test_without_a_new_checkpoint_the_log_of_the_old_one_is_kept(begin: Begin) -> None:
    """A session begins at a checkpoint that needs pieces before it, and one can't be read now."""
    node, state = begin(), ReplicatedState([1, 2, 3])
    entries: list[Entry] = [Incarnation(2, 1), Piece(2, 1, 1, 0, 0, b"[]"), *[Noop()] * 4]
    upkeep = node.upkeep(state, Verdicts(), entries=1)
    for gid, entry in enumerate(entries, 1):
        state.deliver(gid, entry)
    await upkeep._maybe_checkpoint()
    checkpoint = certstate.read(node.directory)
    assert checkpoint is not None
    assert (checkpoint.position, checkpoint.newest) == (1, 6)
    state = ReplicatedState.restore(checkpoint.state)
    upkeep = node.upkeep(state, Verdicts(), entries=1)
    state.deliver(7, Noop())
    node.damaged = {2}
    await upkeep._maybe_checkpoint()
    assert node.base <= checkpoint.position


async def test_the_sweep_finds_a_checkpoint_of_what_the_server_has_not_flushed(
    begin: Begin,
) -> None:
    node = begin(flushes=False)
    await node.live()
    with pytest.raises(LeftBehindError, match="the database ends at GID 0"):
        node.assert_fits()


async def test_the_sweep_finds_a_log_that_is_trimmed_before_the_checkpoint_is_written(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = Upkeep._checkpoint

    async def trimmed_first(self: Upkeep) -> None:
        node.trim(self._state.position)
        await checkpoint(self)

    monkeypatch.setattr(Upkeep, "_checkpoint", trimmed_first)
    with pytest.raises(LeftBehindError, match="there is no checkpoint"):
        for dies_at in range(1, 10):
            node = begin(dies_at=dies_at)
            with pytest.raises(Crash):
                await node.live()
            node.assert_fits()
