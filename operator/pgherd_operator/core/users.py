"""The users of the spec: whom to ask for them, and what to tell of it.

A sidecar that is asked compares them with the roles that are there and changes only what differs.
So all are asked at every look: a changed Secret, or a role changed by hand, tells nobody.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from pgherd_operator.api.resource import Cluster
from pgherd_operator.api.status import MESSAGE_MAX, ClusterStatus, ConditionType
from pgherd_operator.core import status
from pgherd_operator.core.actions import Event, Reason
from pgherd_operator.core.group import Group
from pgherd_operator.core.observed import Observed
from pgherd_operator.objects import names
from pgherd_operator.objects.model import Role


@dataclass(frozen=True, slots=True)
class Outcome:
    """What has come of asking; no field has a password in it.

    Attributes:
        changed: what was done, in words.
        refused: why it cannot be done as things are; nothing was.
        unanswered: why it could not be done now, or may have been.
    """

    changed: tuple[str, ...] = ()
    refused: str = ""
    unanswered: str = ""


def whom_to_ask(observed: Observed, group: Group) -> tuple[int, ...]:
    """All members with a database that take writes; none if there is nothing to ask.

    What somebody has changed by hand on one member is only seen there.
    """
    cluster = observed.cluster
    if not cluster.spec.users or cluster.spec.hibernated or cluster.deleting:
        return ()
    return tuple(
        member.number for member in group.members if member.healthy and member.role is Role.DATABASE
    )


def shown(
    described: ClusterStatus, cluster: Cluster, outcome: Outcome | None, now: datetime
) -> ClusterStatus:
    """The status with what is to be told of the users.

    Args:
        outcome: None if nobody was asked.
    """
    return status.replaced(described, status.condition(cluster, _verdict(cluster, outcome), now))


def events(cluster: Cluster, outcome: Outcome) -> Iterator[Event]:
    """What was done; what cannot be done, when it is news."""
    if outcome.changed:
        yield Event(Reason.USERS_CHANGED, "; ".join(outcome.changed))
    told = {one.message for one in cluster.status.conditions if one.reason == Reason.USERS_FAILED}
    if outcome.refused and outcome.refused[:MESSAGE_MAX] not in told:
        yield Event(Reason.USERS_FAILED, outcome.refused, "Warning")


def lasting_secrets(cluster: Cluster) -> tuple[str, ...]:
    """All secrets that have no owner, those with generated passwords of users among them."""
    users = (names.user_secret(cluster.name, user.name) for user in cluster.spec.users)
    return (*names.lasting_secrets(cluster.name), *users)


def _verdict(cluster: Cluster, outcome: Outcome | None) -> status.Verdict:
    kind = ConditionType.USERS_READY
    if not cluster.spec.users:
        return kind, "True", Reason.AS_WANTED, "none are asked for"
    if outcome is None:
        return kind, "Unknown", Reason.WAITING, "no member is asked: none takes writes"
    if outcome.refused:
        return kind, "False", Reason.USERS_FAILED, outcome.refused
    if outcome.unanswered:
        return kind, "Unknown", Reason.WAITING, outcome.unanswered
    return kind, "True", Reason.AS_WANTED, f"{len(cluster.spec.users)} as asked for"
