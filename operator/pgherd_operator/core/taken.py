"""Names of the herd's objects that others have: what is there is never changed and never deleted.

Ours is what the herd's resource owns, by its uid; and of what is to outlive the resource (volumes,
passwords, the CA) what has its label. The rest of the herd goes on without what is taken.
"""

from pgherd_operator.api.resource import Cluster
from pgherd_operator.core.actions import Reason, Step
from pgherd_operator.core.observed import Key, Observed, Phase
from pgherd_operator.objects import names, network
from pgherd_operator.objects.model import Seat

_SHOWN = 8


def expected(cluster: Cluster, seats: list[Seat]) -> set[Key]:
    """What the herd has when all is well, besides volumes and secrets.

    Args:
        seats: the members that there are volumes for.
    """
    wanted = network.shared(cluster, "")
    found = {("ConfigMap", names.ledger(cluster.name))}
    for seat in seats:
        wanted += network.of_member(cluster, seat)
        found.add(("ConfigMap", names.member(cluster.name, seat.number)))
        if not cluster.spec.hibernated:
            found.add(("Pod", names.member(cluster.name, seat.number)))
    if cluster.spec.tls.mode == "CertManager":
        found |= {("Certificate", name) for name in _certificates(cluster, seats)}
    return found | {(one["kind"], one["metadata"]["name"]) for one in wanted}


def step(observed: Observed) -> Step | None:
    """Tell what is in the way, and what to do about it; None if nothing is."""
    keys = [*observed.taken, *(("Secret", name) for name in _secrets(observed))]
    found = sorted(f"{kind} {name}" for kind, name in keys)
    if found:
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        text = f"not touched, as it is not this herd's: {', '.join(found[:_SHOWN])}{more}; "
        text += "remove or rename it, or give the herd another name"
        return Step(Reason.NAME_TAKEN, text, warning=True)
    if observed.passing:
        kind, name = min(observed.passing)
        return Step(Reason.WAITING, f"{kind} {name} of an earlier herd is being removed")
    return None


def _certificates(cluster: Cluster, seats: list[Seat]) -> list[str]:
    online = cluster.spec.online_import is not None
    return [
        *([names.import_certificate(cluster.name)] if online else []),
        names.operator_certificate(cluster.name),
        names.jobs_certificate(cluster.name),
        *(names.certificate(cluster.name, seat.number) for seat in seats),
    ]


def _secrets(observed: Observed) -> list[str]:
    """Secrets that are in the way. Passwords that somebody has restored are not."""
    cluster, ledger, wanted = observed.cluster, observed.ledger, list[str]()
    if ledger is not None and ledger.phase is Phase.FOUNDING:
        wanted += names.lasting_secrets(cluster.name)
    if cluster.spec.tls.mode != "Provided":
        wanted += _certificates(cluster, observed.seats())
    secrets = observed.secrets
    return [one for one in wanted if one in secrets and not secrets[one].ours]
