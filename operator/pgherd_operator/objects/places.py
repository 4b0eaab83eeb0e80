"""Where pods find the volume or the bucket that a job writes to, or a new herd begins with."""

from collections.abc import Sequence

from pgherd_operator.api.places import Destination, Volume
from pgherd_operator.objects.model import Manifest

STORE = "/var/lib/pgherd-jobs"
"""Where the volume is mounted."""


def directory(volume: Volume) -> str:
    """The directory, as a container sees it."""
    return f"{STORE}/{volume.path}".rstrip("/")


def location(place: Destination) -> tuple[str, str | None]:
    """What ``pgherd_spark.storing.stores.at`` is told: the location, and an S3 server's URL."""
    if place.volume_claim is not None:
        return directory(place.volume_claim), None
    assert place.s3 is not None
    return f"s3://{place.s3.bucket}/{place.s3.prefix}", place.s3.endpoint


def environment(place: Destination | None) -> Manifest:
    """The part of a container that has the credentials for the bucket."""
    s3 = None if place is None else place.s3
    if s3 is None or s3.credentials is None:
        return {}
    return {"envFrom": [{"secretRef": {"name": s3.credentials}}]}


def volumes(claim: Volume | None) -> Sequence[Manifest]:
    """The volumes of a pod that can see the directory."""
    if claim is None:
        return []
    return [{"name": "store", "persistentVolumeClaim": {"claimName": claim.name}}]


def mounts(claim: Volume | None) -> Sequence[Manifest]:
    """And where a container finds it."""
    return [] if claim is None else [{"name": "store", "mountPath": STORE}]
