"""Whole herds in virtual time: remembered seeds, and others; ``PGHERD_NEW_SEEDS=1`` draws new ones.

``simulate.py`` runs more of them; ``PGHERD_SIM_SEEDS=5000 pytest tests/simulation`` does, too.
"""

import os

import pytest
from pgherd_sidecar.env.storage.segments import SegmentLog
from seeds import NEW, first_seed
from sim_dials import Dials
from sim_storage import SegmentDisk
from sim_world import World

#: seeds that once found something, and a few that were only thorough
REMEMBERED = [
    0,
    12,
    13,
    44,
    50,
    56,
    113,
    144,
    249,
    1165,
    8000460,
    8000517,
    9005538,
    2516960287,
    3512598318,
]
REMEMBERED_SPLIT = [200263, 60003665, 96002284]
REMEMBERED_ROT = [652801960, 652801188]
#: the view that a split founded was in no majority's flush yet
REMEMBERED_READS = [1924770872]
FRESH = int(os.environ.get("PGHERD_SIM_SEEDS", "60" if NEW else "24"))


def run(
    seed: int,
    dials: Dials | None = None,
    *,
    storm: bool = False,
    rot: bool = False,
    splits: bool | None = None,
    reads: bool | None = None,
    follow: bool | None = None,
) -> World:
    """Run a seed; a failure says how to repeat it."""
    world = World(seed, dials, storm=storm, rot=rot, splits=splits, reads=reads, follow=follow)
    try:
        world.run()
    except Exception as error:
        error.add_note(f"{world.dials} at {world.now:.4f} s")
        how = "--rot --story" if rot else "--story"
        how = "--storm " * storm + how
        how = {True: "--splits ", False: "--no-splits ", None: ""}[splits] + how
        how = {True: "--reads ", False: "--no-reads ", None: ""}[reads] + how
        how = {True: "--follow ", False: "--no-follow ", None: ""}[follow] + how
        error.add_note(f"python tests/simulation/simulate.py {how} {seed}")
        raise
    return world


@pytest.mark.parametrize("seed", REMEMBERED)
def test_remembered_seeds_hold(seed: int) -> None:
    run(seed, splits=False, reads=False)


@pytest.mark.parametrize("seed", REMEMBERED_SPLIT)
def test_remembered_seeds_hold_where_members_split(seed: int) -> None:
    run(seed, splits=True, reads=False)


@pytest.mark.parametrize("seed", REMEMBERED_ROT)
def test_remembered_seeds_hold_where_bits_rot(seed: int) -> None:
    run(seed, rot=True, reads=False)


def test_fresh_seeds_hold() -> None:
    start = first_seed()
    probes: set[str] = set()
    for seed in range(start, start + FRESH):
        probes |= run(seed).probes
    assert probes >= {"fetched", "truncated", "trimmed", "died while writing"}


def test_fresh_seeds_hold_where_members_split() -> None:
    """By an administrator's act, by policy, or both. [C21, S1-S7]"""
    start = first_seed()
    probes: set[str] = set()
    for seed in range(start, start + FRESH // 3):
        probes |= run(seed, splits=True).probes
    assert "split" in probes


def test_fresh_seeds_hold_where_bits_rot() -> None:
    """A minority of the members has damaged logs at any time. [D5, D6]"""
    start = first_seed()
    probes: set[str] = set()
    for seed in range(start, start + FRESH // 2):
        probes |= run(seed, rot=True).probes
    assert probes >= {"damage read", "mended", "incomplete"}


@pytest.mark.parametrize("seed", REMEMBERED_READS)
def test_remembered_seeds_hold_where_barriers_are_asked_for(seed: int) -> None:
    run(seed, splits=True, reads=True)


@pytest.mark.parametrize("kind", ["any", "storm", "rot", "split"])
def test_fresh_seeds_hold_where_barriers_are_asked_for(kind: str) -> None:
    """Each covers all that was acknowledged before it was asked for. [F1-F5]"""
    start = first_seed()
    probes: set[str] = set()
    for seed in range(start, start + FRESH // 3):
        splits = {"any": None, "split": True}.get(kind, False)
        world = run(seed, storm=kind == "storm", rot=kind == "rot", splits=splits, reads=True)
        probes |= world.probes
    assert probes >= {"read", "read again"}


@pytest.mark.parametrize("storm", [False, True])
def test_fresh_seeds_hold_where_readers_follow(storm: bool) -> None:
    """They are fed, catch up in the end, and vote only once they were promoted. [V8]"""
    start = first_seed()
    probes: set[str] = set()
    for seed in range(start, start + FRESH // 3):
        probes |= run(seed, storm=storm, follow=True).probes
    assert "reader promoted" in probes


def test_two_of_three_with_damage_in_different_places_mend_each_other() -> None:
    """[D5] Nobody else has lost anything, and the third is down."""
    for seed in range(5):
        world = World(seed, Dials(members=3, segments=True))
        nodes = list(world.nodes.values())
        for node in nodes:
            node.start()
        world._run_until(5)
        for _ in range(60):
            world._submit()
            world._run_until(world.now + 0.3)
        damaged = nodes[:2]
        for node, where in zip(damaged, (0, 2), strict=True):
            assert isinstance(node.disk, SegmentDisk)
            assert isinstance(node.log, SegmentLog)
            node.rotten, segment = True, node.log._segments[where]
            node.disk.directory.rot(world.rng, segment.name, segment.end, segment._start)
            assert not node.readable()
        nodes[2].crash()
        committed = world.checker.committed_position
        goal = world.now + 60
        while not all(node.readable() for node in damaged):
            assert world.now < goal
            world._run_until(world.now + 0.5)
        while world.checker.committed_position == committed:
            assert world.now < goal
            damaged[0].submit(b"fresh", 1)
            world._run_until(world.now + 0.5)


def test_a_hundred_members_agree() -> None:
    run(7, Dials(members=97, spares=3, duration_s=5.0, crash_every_s=0.5, restart_s=1.0))


def test_a_majority_of_which_one_began_too_late_to_feed_the_rest_goes_on() -> None:
    """Whoever is elected first: n3 is away while n4 joins, then n1 is lost for good. [E6]"""
    proposed: set[str | None] = set()
    for seed in range(8):
        world = World(seed, Dials(members=3, spares=1, join_late=True))
        veterans, late = [world.nodes[name] for name in ("n1", "n2", "n3")], world.nodes["n4"]
        for node in veterans:
            node.start()
        world._run_until(5)
        veterans[2].crash()
        for _ in range(20):
            world._submit()
            world._run_until(world.now + 0.1)
        late.start()
        while (view := world.checker.memberships[-1]).joint or "n4" not in view.voters:
            veterans[0].change(join=late.identity)
            world._run_until(world.now + 0.5)
        veterans[0].crash()
        world._run_until(world.now + world.rng.uniform(0, 5))
        veterans[2].start()
        world._run_until(world.now + 5)
        proposed |= {node.member.proposer for node in world.nodes.values() if node.member}
        committed = world.checker.committed_position
        world._run_until(world.now + 60)
        late.submit(b"fresh", 1)
        world._run_until(world.now + 10)
        assert world.checker.committed_position > committed, seed
        assert veterans[2].member is not None and not veterans[2].member.behind
    assert {"n2", "n4"} <= proposed


def test_the_same_seed_gives_the_same_history() -> None:
    dials = Dials(wire=True, duration_s=20.0, crash_every_s=2.0, leave_every_s=3.0, spares=1)
    assert run(5, dials).trace.digest() == run(5, dials).trace.digest()
    assert run(5, dials).trace.digest() != run(6, dials).trace.digest()


@pytest.mark.parametrize("kept", [("n1", "n2"), ("n3", "n4")])
def test_who_is_a_quorum_of_one_view_of_two_parts_from_those_who_are_gone(
    kept: tuple[str, str],
) -> None:
    """The others die while n4 becomes a voter: whoever is left can't elect anybody. [S1]"""
    tried = 0
    for seed in range(12):
        world = World(seed, Dials(members=3, spares=1, delay_s=0.01, split_after_s=5.0))
        nodes = list(world.nodes.values())
        for node in nodes:
            node.start()
        left = [world.nodes[name] for name in kept]
        while not all(node.member and node.member.membership.joint for node in left):
            nodes[0].change(join=nodes[3].identity)
            world._run_until(world.now + 0.002)
            assert world.now < 60
        for node in nodes:
            if node not in left:
                node.crash()
        world._run_until(world.now + 1)
        if not all(node.member and node.member.membership.joint for node in left):
            continue  # one of them knows that the change was made
        tried += 1
        world._run_until(world.now + 60)
        (cluster,) = {node.splitter.cluster for node in left}
        assert cluster != world.cluster
        left[0].submit(b"fresh", 1)
        world._run_until(world.now + 10)
        chain = world.splits.checkers[cluster].chain
        assert any(block.data.startswith(b"fresh") for block in chain.values())
        for node in nodes:
            node.start()
        world._run_until(world.now + 60)
        assert cluster not in {node.splitter.cluster for node in nodes if node not in left}
    assert tried > 0
