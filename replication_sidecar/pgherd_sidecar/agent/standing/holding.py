"""Says in words that the herd is held, and what an administrator can choose. Keeps nothing."""

from collections.abc import Iterable
from typing import Any

from pgherd_sidecar.agent.membership.roster import NoContactError, contact
from pgherd_sidecar.core.consensus import Membership
from pgherd_sidecar.core.replication.databases import Databases
from pgherd_sidecar.core.replication.entries import Condition


def names_of(membership: Membership) -> dict[int, str]:
    """Return the names of the members that have a database, by their numbers."""
    found = {}
    for member in membership.members:
        if not member.witness:
            try:
                found[contact(member).number] = member.name
            except NoContactError:
                continue
    return found


def why_held(databases: Databases, membership: Membership) -> str | None:
    """Say why the herd takes no writes and at which GID, and what there is to choose.

    None if it does.
    """
    hold = databases.hold
    if hold is None:
        return None
    names = names_of(membership)
    others = {n: one for n, one in databases.items() if one.condition is not Condition.WHOLE}
    who = _listed(names.get(n, str(n)) for n in others)
    whole = _listed(names.get(n, str(n)) for n in databases.whole)
    what = f"no database is whole: {who} are not"
    if whole:
        what = f"only {whole} holds what was committed last"
    if hold.gid:
        what = f"{what.replace('what was committed last', f'what follows GID {hold.gid - 1}')}"
        what += f", since GID {hold.gid} could not be applied elsewhere ({hold.cause})"
    choices = [
        f"rebuild one of {who} by `pgherd local rebuild`, on Kubernetes by deleting its pod and "
        "volume claim"
    ]
    if hold.gid and databases.stopped_at(hold.gid):
        choices.append(f"`pgherd skip {hold.gid}`")
    choices.append(f"take {who} out of the herd")
    return f"no writes since GID {hold.since}: {what}; choose: {', or '.join(choices)}"


def status(databases: Databases | None, membership: Membership) -> dict[str, Any]:
    """Return what people and metrics are told of the databases, as far as it is known here."""
    if databases is None:
        return {"held": None, "held_since": None, "held_gid": None, "databases": []}
    names, hold = names_of(membership), databases.hold
    return {
        "held": why_held(databases, membership),
        "held_since": None if hold is None else hold.since,
        "held_gid": None if hold is None else hold.gid,
        "databases_whole": len(databases.whole),
        "databases": [
            {
                "name": names.get(number, str(number)),
                "condition": one.condition.name.lower(),
                "since": one.since,
                "gid": one.gid,
                "cause": one.cause,
                "stopped": one.stopped,
            }
            for number, one in databases.items()
        ],
    }


def nothing_to_skip(gid: int, databases: Databases, names: dict[int, str]) -> str:
    """Say why an entry can't be skipped."""
    stopped = [
        f"{names.get(number, number)} at GID {one.gid}"
        for number, one in databases.items()
        if one.stopped
    ]
    where = f"stopped are {_listed(stopped)}" if stopped else "no database has stopped"
    return f"no database has stopped at GID {gid}, which others may hold: {where}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
