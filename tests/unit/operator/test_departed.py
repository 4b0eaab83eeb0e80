"""Who has left for good, told from who has yet to join: by the views that members know."""

from dataclasses import replace

import pytest
from pgherd_operator.api.resource import parse_resource
from pgherd_operator.core.group import assemble_group, find_authority
from pgherd_operator.core.observed import (
    Ledger,
    Observed,
    ObservedVolume,
    Phase,
    Report,
    View,
    ViewMember,
)
from pgherd_operator.objects.model import Origin, Role

ID = "c"
CLUSTER = parse_resource({"metadata": {"name": "herd", "namespace": "test", "uid": "u"}})


def view(number: int, *disks: str) -> View:
    """A view of the members that have these disks, numbered from 1."""
    members = enumerate(disks, start=1)
    return View(number, tuple(ViewMember(f"herd-{n}", n, disk) for n, disk in members if disk))


def third(known: View | None, *, says_so: bool = False) -> bool:
    """Whether member 3 on disk c has departed, with 1 and 2 in view 5 without it."""
    well = {
        n: Report(n, ID, disk, "primary", True, view=view(5, "a", "b"))
        for n, disk in ((1, "a"), (2, "b"))
    }
    about = Report(3, ID, "c", "secondary", False, view=known, departed=says_so)
    volumes = {
        n: ObservedVolume(n, f"u{n}", Role.DATABASE, Origin.FOUNDER, ID, "1Gi") for n in (1, 2, 3)
    }
    observed = Observed(
        CLUSTER, Ledger(ID, Phase.FOUNDED), volumes=volumes, reports=well | {3: about}
    )
    return {member.number: member for member in assemble_group(observed).members}[3].departed


@pytest.mark.parametrize(
    ("known", "departed"),
    [
        (view(4, "a", "b", "c"), True),  # it was away when the others went on without it
        (view(4, "a", "b", "x"), False),  # that was another disk: this one is new
        (view(4, "a", "b"), False),  # it has a copy and has yet to join
        (view(6, "a", "b", "c"), False),  # it has joined: we heard of it before the others
        (None, False),  # it has no copy yet
    ],
)
def test_a_disk_has_left_if_it_was_in_an_older_view_only(known: View, departed: bool) -> None:
    assert third(known) is departed


def test_who_says_that_it_has_left_has() -> None:
    assert third(view(5, "a", "b"), says_so=True)


@pytest.mark.parametrize("joint", [False, True])
def test_nothing_is_confirmed_while_one_view_takes_over_from_another(joint: bool) -> None:
    known = replace(view(5, "a", "b"), joint=joint)
    reports = [Report(n, ID, d, "primary", True, view=known) for n, d in ((1, "a"), (2, "b"))]
    authority = find_authority(reports)
    assert authority is not None and authority.confirmed is not joint
