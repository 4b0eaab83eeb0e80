"""Run seeds of the simulator from the command line.

``simulate.py --seeds 1000 --from 7`` runs seeds 7 to 1006 on all cores and tells how many simulated
hours that were. ``simulate.py --story 1234`` runs one seed and tells what happened at its end.
``simulate.py --commits`` runs seeds of the commit path of whole nodes (``sim_commits``), and
``simulate.py --herd`` runs these over the real log (``sim_herd``).
``simulate.py --planted`` proves that each planted bug of both worlds is found.
"""
# ruff: noqa: T201 - a command line prints

import argparse
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # where what tests share is, for a command
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from time import process_time
from typing import TypedDict
from unittest import mock

from commit_bugs import COMMIT_BUGS, CommitBug
from planted_bugs import PLANTED_BUGS, PlantedBug
from sim_commits import CommitWorld
from sim_databases import DatabaseWorld
from sim_herd import HerdWorld
from sim_world import World

SEEDS_PER_BUG = 400
COMMITS_S = 6.0
"""So long the clients of a commit world are disturbed."""


class Kind(TypedDict):
    """The kind of the worlds of some seeds."""

    storm: bool
    rot: bool
    splits: bool | None
    databases: bool
    reads: bool | None
    follow: bool | None


@dataclass(frozen=True)
class Outcome:
    """What came of a seed; `failure` is empty if everything held."""

    seed: int
    simulated_s: float
    cpu_s: float
    probes: frozenset[str]
    failure: str


def run(  # noqa: PLR0913 - kinds of worlds, all by name
    seed: int,
    *,
    storm: bool = False,
    segments: bool = False,
    rot: bool = False,
    splits: bool | None = None,
    databases: bool = False,
    reads: bool | None = None,
    follow: bool | None = None,
) -> Outcome:
    """Run a seed."""
    world = (
        DatabaseWorld(seed)
        if databases
        else World(
            seed,
            storm=storm,
            segments=segments,
            rot=rot,
            splits=splits,
            reads=reads,
            follow=follow,
        )
    )
    began_s, failure = process_time(), ""
    try:
        world.run()
    except Exception as error:  # noqa: BLE001 - whatever it breaks, in whatever way
        failure = f"{type(error).__name__}: {error}"
    return Outcome(seed, world.now, process_time() - began_s, frozenset(world.probes), failure)


def run_commits(seed: int, kind: type[CommitWorld] = CommitWorld) -> Outcome:
    """Run a seed of the commit path."""
    world = kind(seed)
    began_s, failure = process_time(), ""
    try:
        world.run(COMMITS_S)
    except Exception as error:  # noqa: BLE001 - whatever it breaks, in whatever way
        failure = f"{type(error).__name__}: {error}"
    return Outcome(seed, world.now, process_time() - began_s, frozenset(world.met), failure)


def seeds_until_found(bug: PlantedBug | CommitBug) -> int | None:
    """Return how many seeds it took to find a bug, None if it was not found."""
    with mock.patch.object(bug.owner, bug.attribute, bug.replacement):
        for tried in range(SEEDS_PER_BUG):
            if isinstance(bug, CommitBug):
                outcome = run_commits(tried)
            else:
                outcome = run(
                    bug.seed + tried,
                    storm=bug.storm,
                    segments=bug.segments,
                    rot=bug.rot,
                    splits=bug.splits,
                    databases=bug.databases,
                    reads=bug.reads,
                    follow=bug.follow,
                )
            if outcome.failure:
                return tried + 1
    return None


def tell(
    seed: int,
    *,
    storm: bool,
    rot: bool,
    splits: bool | None,
    databases: bool,
    reads: bool | None,
    follow: bool | None,
) -> int:
    """Run one seed and print its story; the result is the exit code."""
    world = (
        DatabaseWorld(seed)
        if databases
        else World(seed, storm=storm, rot=rot, splits=splits, reads=reads, follow=follow)
    )
    try:
        world.run()
        ending = "everything held"
    except Exception as error:  # noqa: BLE001 - it is printed
        ending = f"{type(error).__name__}: {error}"
    for at_s, who, what in world.story:
        match what:
            case (str(receiver), message):
                print(f"{at_s:10.4f}  {who:>7} -> {receiver:<7} {message}")
            case _:
                print(f"{at_s:10.4f}  {who:>7}    {what}")
    print(f"{world.dials}\nseed {seed} at {world.now:.4f} s: {ending}")
    return ending != "everything held"


def simulate(first: int, count: int, jobs: int, one: Callable[[int], Outcome]) -> int:
    """Run many seeds; the result is the exit code."""
    simulated_s, cpu_s, failed = 0.0, 0.0, 0
    probes: Counter[str] = Counter()
    with ProcessPoolExecutor(jobs) as pool:
        for outcome in pool.map(one, range(first, first + count), chunksize=4):
            simulated_s += outcome.simulated_s
            cpu_s += outcome.cpu_s
            probes.update(outcome.probes)
            if outcome.failure:
                failed += 1
                print(f"seed {outcome.seed} at {outcome.simulated_s:.3f} s: {outcome.failure}")
    hours = simulated_s / 3600
    speed = hours / max(cpu_s, 1e-9)
    print(
        f"{count} seeds, {failed} failed; {hours:.1f} simulated hours in {cpu_s:.0f} s of CPU: "
        f"{speed:.3f} cluster-hours per second"
    )
    print(", ".join(f"{name} in {times}" for name, times in sorted(probes.items())))
    return failed > 0


def planted() -> int:
    """Look for each planted bug; the result is the exit code."""
    bugs: dict[str, PlantedBug | CommitBug] = {**PLANTED_BUGS, **COMMIT_BUGS}
    missed = 0
    for name, bug in bugs.items():
        tried = seeds_until_found(bug)
        missed += tried is None
        print(f"{bug.rule}  {name}: {'NOT FOUND' if tried is None else f'{tried} seeds'}")
    print(f"{len(bugs) - missed} of {len(bugs)} found")
    return missed > 0


def main() -> int:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first of them")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--story", type=int, metavar="SEED", help="tell what happens in one seed")
    parser.add_argument("--rot", action="store_true", help="in storms in which bits rot")
    parser.add_argument("--storm", action="store_true", help="in storms")
    parser.add_argument(
        "--splits",
        action=argparse.BooleanOptionalAction,
        help="members split for good in all of them, or in none; by default in one of four",
    )
    parser.add_argument(
        "--databases", action="store_true", help="on top of the logs, some of which diverge"
    )
    parser.add_argument("--planted", action="store_true", help="look for the planted bugs")
    parser.add_argument("--commits", action="store_true", help="the commit path of whole nodes")
    parser.add_argument("--herd", action="store_true", help="the same over the real log")
    parser.add_argument(
        "--reads",
        action=argparse.BooleanOptionalAction,
        help="barriers are asked for in all of them, or in none; by default in three of ten",
    )
    parser.add_argument(
        "--follow",
        action=argparse.BooleanOptionalAction,
        help="readers join in all of them, or in none; by default in one of four",
    )
    options = parser.parse_args()
    kind: Kind = {
        "storm": options.storm,
        "rot": options.rot,
        "splits": options.splits,
        "databases": options.databases,
        "reads": options.reads,
        "follow": options.follow,
    }
    if options.story is not None:
        return tell(options.story, **kind)
    if options.planted:
        return planted()
    one: Callable[[int], Outcome] = partial(run, **kind)
    if options.commits or options.herd:
        one = partial(run_commits, kind=HerdWorld if options.herd else CommitWorld)
    return simulate(options.first, options.seeds, options.jobs, one)


if __name__ == "__main__":
    sys.exit(main())
