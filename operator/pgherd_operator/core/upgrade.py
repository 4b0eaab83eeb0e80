"""A new release of the operator: herds take it over one after the other, each when it is well.

The ledger says which release a herd has, and by which images. Until a herd has taken over the new
one its pods are made with the images that it has, so that members of two releases do not meet; and
no pod is replaced for the release's sake. It does so when it is its turn (``Turns``), with all
members well and ``maintenance.upgrades`` Automatic. A release that breaks the first herd reaches no
other: it keeps its turn until it is well, or a person puts it to rest.
"""

from dataclasses import replace
from enum import StrEnum

from pgherd_operator.core.actions import AdoptRelease, FinishUpgrade, Reason, Step
from pgherd_operator.core.founding import lost_secrets
from pgherd_operator.core.group import Group
from pgherd_operator.core.observed import Ledger, Observed, Phase
from pgherd_operator.objects.model import Release


class Stage(StrEnum):
    """How far a herd is."""

    DONE = "Done"
    """It has this release, or is only being founded."""
    WAITING = "Waiting"
    """It has another one."""
    UNDER_WAY = "UnderWay"
    """It has taken this one over, and not all of its pods have been replaced."""


def stage(observed: Observed, release: Release) -> Stage:
    """How far a herd is with this release."""
    ledger = observed.ledger
    if ledger is None or ledger.phase is not Phase.FOUNDED or observed.cluster.deleting:
        return Stage.DONE
    if ledger.release != release.id:
        return Stage.WAITING
    return Stage.UNDER_WAY if ledger.upgrading else Stage.DONE


def rests(observed: Observed) -> str:
    """Why no pod of a herd is replaced until a person acts; empty if that is not so."""
    spec, lost = observed.cluster.spec, lost_secrets(observed)
    if spec.hibernated:
        return "it sleeps (hibernated)"
    if spec.maintenance.paused:
        return "it is paused (maintenance.paused)"
    return f"secret {lost} is gone" if lost else ""


def pinned(ledger: Ledger | None, release: Release) -> Release:
    """What pods are made by: the images that the herd has, until it takes over the new ones."""
    if ledger is None or not ledger.release or ledger.release == release.id:
        return release
    return replace(
        release, sidecar_image=ledger.sidecar_image, postgres_image=ledger.postgres_image
    )


def is_ready(observed: Observed, group: Group, *, usable: bool) -> bool:
    """Whether a herd may take over a release, once it is its turn.

    Args:
        usable: its spec is.
    """
    maintenance = observed.cluster.spec.maintenance
    return (
        usable
        and maintenance.upgrades == "Automatic"
        and not rests(observed)
        and group.authority is not None
        and bool(group.members)
        and not any(member.awaited for member in group.members)
        and not group.maintained
    )


def why_waiting(observed: Observed, group: Group, turn: str, *, usable: bool) -> str:
    """Why a herd has not taken over the release, or does not go on to.

    Args:
        turn: whose turn it is; empty if it is this herd's.
        usable: its spec is.
    """
    if not usable:
        return "its spec cannot be used"
    resting = rests(observed)
    if resting:
        return resting
    if observed.cluster.spec.maintenance.upgrades == "Manual":
        return "maintenance.upgrades is Manual"
    if not is_ready(observed, group, usable=usable):
        return group.maintained or "not all members are well"
    return turn


def step(
    observed: Observed, group: Group, release: Release, turn: str, *, usable: bool, outdated: bool
) -> Step | None:
    """Begin to take over a release, or end it.

    Args:
        usable: its spec is.
        outdated: there are pods to replace.
    """
    match stage(observed, release):
        case Stage.WAITING:
            if turn or not is_ready(observed, group, usable=usable):
                return None
            text = f"taking over release {release.version}"
            return Step(Reason.UPGRADING, text, (AdoptRelease(release),))
        case Stage.UNDER_WAY:
            if outdated or any(member.awaited for member in group.members):
                return None
            text = f"release {release.version} is on all members"
            return Step(Reason.UPGRADING, text, (FinishUpgrade(),))
        case Stage.DONE:
            return None


class Turns:
    """Whose turn it is; of one process, which is the leader.

    Args:
        patience_s: for so long nobody begins, after a start: who is under way comes first.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._holders: set[tuple[str, str]] = set()

    def ask(
        self,
        herd: tuple[str, str],
        stage: Stage,
        *,
        ready: bool,
        age_s: float,
        rests: bool = False,
    ) -> str:
        """Take the turn, or give it back; return why it is not this herd's, empty if it is.

        Args:
            age_s: how long ago the process began.
            rests: nobody knows when it goes on.
        """
        if stage is Stage.UNDER_WAY and not rests:
            self._holders.add(herd)
            return ""
        others = self._holders - {herd}
        if stage is Stage.DONE or rests or not ready:
            self._holders.discard(herd)
            return ""
        if others:
            return f"{'/'.join(min(others))} is being upgraded"
        if age_s < self._patience_s:
            return "the operator has just begun"
        self._holders.add(herd)
        return ""

    def leave(self, herd: tuple[str, str]) -> None:
        """A herd is gone, or somebody else's."""
        self._holders.discard(herd)
