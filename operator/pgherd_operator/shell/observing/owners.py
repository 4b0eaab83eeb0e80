"""Whose an object is that has the name of one of the herd's.

Lists by the herd's label do not show what a stranger has made under our names. What they lack is
looked at by its name: nothing, while all is well.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pgherd_operator.api import KIND
from pgherd_operator.api.resource import Cluster
from pgherd_operator.core import users
from pgherd_operator.core.observed import Key, Ledger, ObservedVolume, Phase, View
from pgherd_operator.objects import config, names
from pgherd_operator.objects.model import Manifest, Role, wanted
from pgherd_operator.shell.kube.interface import KubernetesApi, NotFoundError

_CERT_MANAGER = "cert-manager.io/certificate-name"


@dataclass(frozen=True, slots=True)
class Whose:
    """Objects by whose they are; see ``Observed``."""

    ours: Mapping[Key, Manifest]
    taken: frozenset[Key]
    passing: frozenset[Key]


def is_owned(item: Mapping[str, Any], cluster: Cluster) -> bool:
    """Whether the herd's resource owns it: this one, not an earlier one of its name."""
    owners = item["metadata"].get("ownerReferences", ())
    return any(owner["uid"] == cluster.uid for owner in owners)


def is_our_secret(item: Mapping[str, Any], cluster: Cluster) -> bool:
    """Whether it is the herd's: by its owner, its label if it is to last, or by cert-manager."""
    metadata = item["metadata"]
    name = metadata["name"]
    if name in users.lasting_secrets(cluster):
        return bool((metadata.get("labels") or {}).get(names.CLUSTER) == cluster.name)
    asked = cluster.spec.tls.mode == "CertManager"
    issued = asked and (metadata.get("annotations") or {}).get(_CERT_MANAGER) == name
    return issued or is_owned(item, cluster)


async def tell_apart(
    api: KubernetesApi, cluster: Cluster, listed: Iterable[Manifest], expected: Collection[Key]
) -> Whose:
    """Tell our objects from those of others that have their names.

    Args:
        listed: all with the herd's label. One of a stranger counts only under an expected name.
        expected: what there should be; what is not listed is looked at by its name.

    Raises:
        ApiError: the picture would have holes.
    """
    found = {(item["kind"], item["metadata"]["name"]): item for item in listed}
    if not cluster.deleting:  # then nothing is made any more
        missing = [key for key in expected if key not in found]
        items = await asyncio.gather(*(_get(api, cluster, *key) for key in missing))
        found |= {key: item for key, item in zip(missing, items, strict=True) if item is not None}
    ours = {key: item for key, item in found.items() if is_owned(item, cluster)}
    others = {key for key in found.keys() - ours.keys() if key in expected}
    passing = frozenset(key for key in others if passes(found[key], cluster))
    return Whose(ours, frozenset(others - passing), passing)


async def claims_of_others(
    api: KubernetesApi,
    cluster: Cluster,
    ledger: Ledger | None,
    volumes: Mapping[int, ObservedVolume],
    known: Collection[int],
    views: Iterable[View],
) -> frozenset[Key]:
    """Volume claims without our label in the places of those members that are to come.

    Args:
        volumes: of this herd.
        known: numbers that no new member gets anyhow.
        views: that members tell of: whoever is in one keeps the number.

    Raises:
        ApiError: the picture would have holes.
    """
    if ledger is None or cluster.deleting:
        return frozenset()
    founding = ledger.phase is Phase.FOUNDING
    rows: list[Iterable[int]] = [[number for number, _ in ledger.founders]]
    if not founding:
        rows = [config.numbers(role) for role in _short(cluster, volumes)]
    inside = {member.number for view in views for member in view.members}
    found = set()
    for numbers in rows:
        for number in numbers:
            key = ("PersistentVolumeClaim", names.volume(cluster.name, number))
            if number in known:
                continue
            if await _get(api, cluster, *key) is not None:
                found.add(key)
            elif not founding and number not in inside:
                break  # here is room for the next one
    return frozenset(found)


def _short(cluster: Cluster, volumes: Mapping[int, ObservedVolume]) -> list[Role]:
    """The roles that have fewer members than are wanted."""
    roles = [volume.role for volume in volumes.values() if volume.usable]
    return [role for role in Role if roles.count(role) < wanted(cluster.spec, role)]


async def _get(api: KubernetesApi, cluster: Cluster, kind: str, name: str) -> Manifest | None:
    try:
        return await api.get(kind, cluster.namespace, name)
    except NotFoundError:
        return None


def passes(item: Mapping[str, Any], cluster: Cluster) -> bool:
    """Whether it goes by itself: it is being deleted, or its owner was a herd of this name."""
    metadata = item["metadata"]
    return "deletionTimestamp" in metadata or any(
        (owner.get("kind"), owner.get("name")) == (KIND, cluster.name)
        and owner["uid"] != cluster.uid
        for owner in metadata.get("ownerReferences", ())
    )
