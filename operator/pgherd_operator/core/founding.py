"""The first steps of a herd, and the guard against taking them twice.

Order, each step written down before the next begins: ledger (identity, founders), credentials,
founders' volumes, *founded*. Pods exist only after that; so while the ledger says Founding no
volume holds anything, and afterwards no volume is ever made from nothing again.
"""

from dataclasses import replace
from uuid import NAMESPACE_URL, uuid5

from pgherd_operator.api import GROUP
from pgherd_operator.api.resource import Cluster
from pgherd_operator.core import imports, taken
from pgherd_operator.core.actions import (
    Action,
    Create,
    CreateLedger,
    Delete,
    GenerateAuthority,
    GeneratePassword,
    Kind,
    MarkFounded,
    NoteFounders,
    Reason,
    RetireVolume,
    Step,
)  # fmt: skip
from pgherd_operator.core.observed import Imported, Ledger, Observed, Phase
from pgherd_operator.objects import names, pod
from pgherd_operator.objects.model import Origin, Release, Retired, Role, Seat, wanted


def found(observed: Observed, release: Release) -> Step | None:
    """The next step of the founding; None when the herd is founded."""
    if observed.ledger is None:
        free = observed.is_free("ConfigMap", names.ledger(observed.cluster.name))
        return _begin(observed, release) if free else taken.step(observed)
    return _provide_secrets(observed) or _provide_volumes(observed)


def fewer_founders(observed: Observed) -> Step | None:
    """Have a herd that has not begun do without a founder that is gone, or is one too many.

    A herd begins when all of its founders have met. It has not begun, and nothing was ever
    committed, while a majority of them has promised nothing to anybody. Then the place of a founder
    is given up, and the others are told before they are started again. A founder that was told of
    more founders waits for them, so it can't begin beside the others.
    """
    cluster, ledger = observed.cluster, observed.ledger
    if ledger is None or not _has_not_begun(observed, ledger):
        return None
    kept = {seat.number for seat in observed.seats()}
    rest = tuple(one for one in ledger.founders if one[0] in kept)
    if 2 * sum(role is Role.DATABASE for _, role in rest) <= len(rest):
        return None
    alive = {number: live for number, live in observed.pods.items() if not live.deleting}
    stops = {n: Delete(Kind.POD, names.member(cluster.name, n), alive[n].uid) for n in alive}
    out = {number for number, _ in ledger.founders} - kept
    if out:
        who = ", ".join(names.member(cluster.name, number) for number in sorted(out))
        if ending := out & observed.pods.keys():
            ends = tuple(stops[number] for number in sorted(ending & stops.keys()))
            return Step(Reason.MEMBER_REMOVED, f"{who} is to stop before the herd begins", ends)
        afresh: tuple[Action, ...] = (*stops.values(), NoteFounders(rest))
        return Step(Reason.FOUNDING, f"the herd begins without {who}", afresh, warning=True)
    for role in Role:
        numbers = [number for number, one in rest if one is role]
        if len(numbers) <= wanted(cluster.spec, role):
            continue
        number = max(numbers, key=lambda n: (n not in observed.reports, n))
        claim, name = names.volume(cluster.name, number), names.member(cluster.name, number)
        marked = RetireVolume(claim, observed.volumes[number].uid, Retired.DOOMED)
        return Step(Reason.MEMBER_REMOVED, f"{name} is not wanted any more", (marked,))
    return None


def _has_not_begun(observed: Observed, ledger: Ledger) -> bool:
    """Whether a majority of the founders has promised nothing, or has no disk for that yet."""
    idle = 0
    for number, _ in ledger.founders:
        volume, report = observed.volumes.get(number), observed.reports.get(number)
        if volume is not None and volume.origin is Origin.FOUNDER:
            idle += volume.pending or (
                report is not None
                and report.cluster_id == ledger.cluster_id
                and not report.departed
                and report.term == 0
            )
    return 2 * idle > len(ledger.founders)


def foreign_volumes(observed: Observed) -> str:
    """Whose volumes are in the way, and what to do about them."""
    herd = observed.cluster.name
    found = ", ".join(
        f"{names.volume(herd, number)} (of herd {volume.cluster_id or 'unknown'})"
        for number, volume in sorted(observed.foreign.items())
    )
    return f"not used and not deleted, as it is of another herd: {found}; remove or rename it"


def born_id(cluster: Cluster) -> str:
    """The id of a herd that this resource founds: whoever founds it, it is the same herd."""
    return str(uuid5(NAMESPACE_URL, f"{GROUP}/{cluster.uid}"))


def _begin(observed: Observed, release: Release) -> Step:
    cluster = observed.cluster
    known = {volume.cluster_id for volume in observed.volumes.values() if volume.usable}
    known |= {report.cluster_id for report in observed.reports.values()}
    if len(known) > 1:
        return Step(
            Reason.FOREIGN_VOLUMES,
            f"there are members of several herds here ({', '.join(sorted(known))}): "
            "remove those that do not belong to this one",
            warning=True,
        )
    if known:  # the ledger was deleted, or the resource was and has been created again
        adopted = _adopted(observed, known.pop())
        if not observed.pods:  # else nobody knows what they were made by: it waits for its turn
            adopted = _of_release(adopted, release)
        text = f"going on with the volumes of herd {adopted.cluster_id}"
        return Step(Reason.ADOPTED, text, (_write(observed, adopted),), warning=True)
    if any(volume.deleting for volume in observed.volumes.values()):
        text = "the volumes of an earlier herd of this name are being deleted"
        return Step(Reason.WAITING, text)
    if cluster.spec.bootstrap is None or cluster.spec.online_import is not None:
        roles = [Role.DATABASE] * cluster.spec.instances + [Role.WITNESS] * cluster.spec.witnesses
    else:
        roles = [Role.DATABASE]  # what it begins with is made once; the others join with a copy
    new = Ledger(born_id(cluster), Phase.FOUNDING, tuple(enumerate(roles, start=1)))
    begun = _write(observed, _of_release(new, release))
    return Step(Reason.FOUNDING, f"a new herd, {new.cluster_id}", (begun,))


def _write(observed: Observed, ledger: Ledger) -> Action:
    """Make the ledger, or write it over one that can't be read."""
    damaged = observed.objects.get(("ConfigMap", names.ledger(observed.cluster.name)))
    return CreateLedger(ledger, damaged["metadata"]["uid"] if damaged is not None else "")


def _adopted(observed: Observed, cluster_id: str) -> Ledger:
    """The ledger of a herd that is there; what was imported is not imported again."""
    found = Ledger(cluster_id, Phase.FOUNDED)
    if not imports.was_done(observed, cluster_id):
        return found
    text = "the import was done before this resource was made"
    return replace(found, imported=Imported.DONE, import_result=text)


def _of_release(ledger: Ledger, release: Release) -> Ledger:
    return replace(
        ledger,
        release=release.id,
        sidecar_image=release.sidecar_image,
        postgres_image=release.postgres_image,
    )


def lost_secrets(observed: Observed) -> str:
    """Names of a founded herd's passwords and CA that are gone; empty if none is."""
    cluster, ledger = observed.cluster, observed.ledger
    if ledger is None or ledger.phase is not Phase.FOUNDED:
        return ""
    wanted = set(names.lasting_secrets(cluster.name))
    if cluster.spec.tls.mode != "SelfSigned":
        wanted.remove(names.authority(cluster.name))
    return ", ".join(sorted(wanted - observed.secrets.keys()))


def _provide_secrets(observed: Observed) -> Step | None:
    cluster, ledger = observed.cluster, observed.ledger
    assert ledger is not None
    if ledger.phase is Phase.FOUNDED:
        # A new password or CA would not be the one that the members have.
        lost = lost_secrets(observed)
        text = f"secret {lost} is gone: restore it from where it was kept"
        return Step(Reason.CREDENTIALS_MISSING, text, warning=True) if lost else None
    secrets: dict[str, Action] = {
        name: GeneratePassword(name, user)
        for name, user in (
            (names.credentials(cluster.name, "superuser"), "postgres"),
            (names.credentials(cluster.name, "app"), "app"),
        )
    }
    if cluster.spec.tls.mode == "SelfSigned":
        name = names.authority(cluster.name)
        secrets[name] = GenerateAuthority(name)
    known = secrets.keys() & observed.secrets.keys()
    if not all(observed.secrets[name].ours for name in known):
        return taken.step(observed)
    missing = sorted(secrets.keys() - observed.secrets.keys())
    if not missing:
        return None
    text = f"generating {', '.join(missing)}"
    return Step(Reason.FOUNDING, text, tuple(secrets[name] for name in missing))


def _provide_volumes(observed: Observed) -> Step | None:
    cluster, ledger = observed.cluster, observed.ledger
    assert ledger is not None
    if ledger.phase is Phase.FOUNDED:
        return None
    missing = [
        Seat(number, role, Origin.FOUNDER)
        for number, role in ledger.founders
        if number not in observed.volumes
    ]
    if any(seat.number in observed.foreign for seat in missing):
        return Step(Reason.FOREIGN_VOLUMES, foreign_volumes(observed), warning=True)
    claims = [names.volume(cluster.name, seat.number) for seat in missing]
    if not all(observed.is_free(Kind.VOLUME, claim) for claim in claims):
        return taken.step(observed)
    if not missing or observed.pods or observed.reports:
        # The last case cannot be; but if there is a pod, there may be data.
        return Step(Reason.FOUNDING, "all volumes are there", (MarkFounded(),))
    actions = tuple(Create(pod.volume(cluster, ledger.cluster_id, seat)) for seat in missing)
    return Step(Reason.FOUNDING, f"creating {len(missing)} volumes", actions)
