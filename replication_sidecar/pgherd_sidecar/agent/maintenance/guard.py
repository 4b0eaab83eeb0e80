"""May a member be taken for maintenance now? Pure: a function of what is known at the moment.

A member in maintenance votes on, and still it is counted as if it were down, for it may be that its
machine does not come back from it. So the herd without it, and without all others that are down or
in maintenance, has to keep a quorum, and somebody else has to take writes.
"""

from collections.abc import Set
from dataclasses import dataclass

from pgherd_sidecar.core.consensus import View


@dataclass(frozen=True, slots=True)
class SeenHerd:
    """The herd, as far as a member knows it.

    Attributes:
        view: who votes.
        heard: who is heard of, this member included.
        whole: the voters whose databases can apply all that was acknowledged.
        taken: who is in maintenance.
    """

    view: View
    heard: Set[str]
    whole: Set[str]
    taken: Set[str] = frozenset()

    @property
    def witnesses(self) -> frozenset[str]:
        """Voters without a database."""
        return frozenset(one.name for one in self.view.members if one.witness)

    @property
    def well(self) -> frozenset[str]:
        """The voters that do all that they are there for."""
        voters = frozenset(self.view.voters)
        return (voters & self.heard & (self.whole | self.witnesses)) - self.taken


def why_never(herd: SeenHerd, name: str, *, drain: bool) -> str | None:
    """Why a member can't be taken even when all is well; None if it can.

    Args:
        name: of the member.
        drain: it is taken out of service meanwhile.
    """
    view = herd.view
    return why_not(SeenHerd(view, set(view.voters), set(view.voters)), name, drain=drain)


def why_not(herd: SeenHerd, name: str, *, drain: bool) -> str | None:
    """Why a member can't be taken now; None if it can. Arguments: see ``why_never``."""
    view, well = herd.view, herd.well
    left = well - {name}
    away = ", ".join(one for one in view.voters if one not in left and one != name)
    if not drain and not away:
        return None  # it serves on, and nobody else is missing
    others = f"{away} {'is' if ', ' not in away else 'are'} down or in maintenance" if away else ""
    if not view.has_quorum(left):
        count = f"{len(left)} of {len(view.voters)} votes"
        return f"without {name} there would be no majority: {count}" + (
            f", {others}" if others else ""
        )
    if not left - herd.witnesses:
        return f"without {name} nobody would take writes" + (f": {others}" if others else "")
    return None
