"""``python -m tests.e2e.benchmark``: how long a herd's users wait, on a kind cluster.

Times of a herd of three, each with its goal: from ``kubectl apply`` to three members that take
writes; from the deletion of a pod to its return among them; the longest gap between two
acknowledged commits that clients of the other members see meanwhile. Prints a table. Needs what the
tests here need, and makes the same cluster (see ``conftest``).
"""

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from .cluster import HERD, Kubectl, until, until_ready
from .installation import InstallationError, found_herd, installed, provide_clients
from .podlogs import PodLogs
from .preparation import PreparationError

GOALS_S = {"apply to three writable": 60.0, "pod deleted to back": 30.0, "gap on others": 2.0}


@dataclass(frozen=True, slots=True)
class Times:
    """Of one herd, in seconds."""

    founded_s: float
    back_s: float
    gap_s: float


def measure(kubectl: Kubectl) -> Times:
    """Make a herd, delete a pod under its clients, and remove everything."""
    founded_s = found_herd(kubectl)
    herd = provide_clients(kubectl)
    *others, victim = herd.members()
    with herd.writing(*others) as written:
        kubectl("delete", "pod", victim, "--wait=false")
        until(lambda: not kubectl.ready(victim), f"{victim} leaves")
        back_s = until_ready(kubectl, victim)
    remove(kubectl)
    return Times(founded_s, back_s, max(one.gap_s for one in written))


def remove(kubectl: Kubectl) -> None:
    """Delete the herd with its volumes, and its clients."""
    kubectl("delete", "pod", "client", "--grace-period=0", "--force")
    kubectl("delete", "replicatedcluster", HERD)
    left = ("get", "pods,persistentvolumeclaims", "--output=name")
    until(lambda: not kubectl(*left), "nothing is left")


def main() -> None:
    """Measure a few herds, one after the other, and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="herds (default 3)")
    arguments = parser.parse_args()
    try:
        with installed() as kubectl, tempfile.TemporaryDirectory() as directory:
            with PodLogs(kubectl, Path(directory)).followed() as logs:
                times = [measure(kubectl) for _ in range(arguments.runs)]
            trouble = logs.pop()
    except (InstallationError, PreparationError) as error:
        sys.exit(str(error))
    if trouble:
        sys.exit(f"a sidecar's log tells of trouble: {trouble[0]}")
    columns = zip(*((one.founded_s, one.back_s, one.gap_s) for one in times), strict=True)
    lines = ["| what | goal | median | worst |", "| --- | ---: | ---: | ---: |"]
    for (what, goal_s), column in zip(GOALS_S.items(), columns, strict=True):
        lines.append(f"| {what} | < {goal_s:g} s | {median(column):.1f} s | {max(column):.1f} s |")
    sys.stdout.write("\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
