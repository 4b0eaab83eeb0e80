"""Objects of others under the names of the herd's, for tests of the operator."""

from typing import Any

from operator_world import NAME, NAMESPACE, World
from pgherd_operator.core.observed import Key
from pgherd_operator.objects import names

SHARED = [
    ("Service", f"{NAME}-rw"),
    ("Service", f"{NAME}-peers"),
    ("PodDisruptionBudget", NAME),
    ("NetworkPolicy", NAME),
    ("ServiceAccount", NAME),
    ("ConfigMap", f"{NAME}-herd"),
    *(("Secret", name) for name in names.lasting_secrets(NAME)),
    ("Secret", f"{NAME}-operator-tls"),
]


def of_member(number: int) -> list[Key]:
    """What a member has, but for its pod."""
    name = f"{NAME}-{number}"
    return [
        ("Service", name), ("ConfigMap", name), ("Secret", f"{name}-tls"),
        ("PersistentVolumeClaim", f"{name}-data"),
    ]  # fmt: skip


def stranger(key: Key, **labels: str) -> dict[str, Any]:
    """An object of somebody else."""
    kind, name = key
    uid = f"stranger {kind} {name}"
    metadata = {"name": name, "namespace": NAMESPACE, "uid": uid, "labels": labels}
    content = {"data": {"theirs": "x"}} if kind in ("ConfigMap", "Secret") else {"spec": {}}
    return {"kind": kind, "metadata": metadata} | content


def settle_in(world: World, key: Key) -> None:
    """Somebody takes a name, if it is free."""
    world.objects.setdefault(key, stranger(key))


def are_untouched(world: World) -> bool:
    """Whether all of them are as they were made."""
    return all(world.objects[key] == stranger(key) for key in present(world))


def present(world: World) -> list[Key]:
    """The names that they have."""
    uids = {key: str(item["metadata"]["uid"]) for key, item in world.objects.items()}
    return [key for key, uid in uids.items() if uid.startswith("stranger")]
