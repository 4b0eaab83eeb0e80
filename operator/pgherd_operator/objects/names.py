"""Names, labels and ports of a herd's objects.

Names follow from the herd's name and a member's number alone, so a second object for the same
purpose cannot come to be: the API server refuses it.
"""

from typing import Final

from pgherd_operator.api import GROUP

CLUSTER: Final = f"{GROUP}/cluster"
MEMBER: Final = f"{GROUP}/member"
ROLE: Final = f"{GROUP}/role"
REVISION: Final = f"{GROUP}/revision"
"""Annotation of a pod: what it was made from. Another one than wanted means it is out of date."""
WISH: Final = f"{GROUP}/wish"
"""Annotation of a pod: digest of the part of the spec that it was made from."""
APPLIED: Final = f"{GROUP}/applied"
"""Annotation of other objects: hash of what was applied last."""
ADMITTED: Final = f"{GROUP}/admitted"
"""Annotation of such an object: digest of what a web hook has made of what was applied."""
CLUSTER_ID: Final = f"{GROUP}/cluster-id"
ORIGIN: Final = f"{GROUP}/origin"
"""Annotation of a volume: what a member may do while it is empty, see ``model.Origin``."""
RETIRED: Final = f"{GROUP}/retired"
"""Label of a volume that is used no more, see ``model.Retired``."""
IMPORTED: Final = f"{GROUP}/imported"
"""Annotation of the superuser's password: id of the herd, if its import online has ended well."""
JOB: Final = f"{GROUP}/job"
"""Label of what does a job: the uid of its resource."""
JOB_OF: Final = f"{GROUP}/job-of"
"""Label of the pods of a job: its herd. They have not got the label of the herd's own pods."""
SCHEDULE: Final = f"{GROUP}/schedule"
"""Label of the Snapshots that a schedule has made."""
IMPORT: Final = f"{GROUP}/import"
"""Label of the Jobs that import into a herd online, and of their pods: the herd's name."""
FINALIZER: Final = f"{GROUP}/volumes"
FOLLOWING: Final = f"{GROUP}/following"
"""Finalizer of a ReplicationSet or a Subscription: the herd has yet to hear of its end."""
FIELD_MANAGER: Final = "pgherd-operator"

POSTGRES_PORT: Final = 5432
PEER_PORT: Final = 7801
ADMIN_PORT: Final = 7802
HEALTH_PORT: Final = 7803
PROGRESS_PORT: Final = 7804
"""Of the driver of a job."""


def member(cluster: str, number: int) -> str:
    """A member: its pod, its configuration, its service, and its name in the herd."""
    return f"{cluster}-{number}"


def number_of(cluster: str, name: str) -> int | None:
    """The number in a member's name; None when it is no member's name."""
    prefix, _, digits = name.rpartition("-")
    return int(digits) if prefix == cluster and digits.isdecimal() else None


def volume(cluster: str, number: int) -> str:
    """A member's volume claim."""
    return f"{member(cluster, number)}-data"


def certificate(cluster: str, number: int) -> str:
    """The secret with a member's certificate."""
    return f"{member(cluster, number)}-tls"


def ledger(cluster: str) -> str:
    """The config map that remembers how the herd began."""
    return f"{cluster}-herd"


def authority(cluster: str) -> str:
    """The secret with the herd's own CA."""
    return f"{cluster}-ca"


def operator_certificate(cluster: str) -> str:
    """The secret with the certificate by which the sidecars know the operator."""
    return f"{cluster}-operator-tls"


def jobs_certificate(cluster: str) -> str:
    """The secret with the certificate by which the members know the herd's jobs."""
    return f"{cluster}-jobs-tls"


def import_certificate(cluster: str) -> str:
    """The secret with the certificate by which members know an import that is under way."""
    return f"{cluster}-import-tls"


def import_name(cluster_id: str) -> str:
    """What that certificate calls an import."""
    return f"import.{cluster_id}.pgherd"


def import_job(cluster: str, goal: str) -> str:
    """The Job that imports into a herd: ``follow``, ``cut-over`` or ``abort``."""
    return f"{cluster}-import-{goal}"


def credentials(cluster: str, role: str) -> str:
    """The secret with the password of ``superuser`` or ``app``."""
    return f"{cluster}-{role}"


def user_secret(cluster: str, user: str) -> str:
    """The secret with the generated password of a user of the spec, whose name has no ``-``."""
    return f"{cluster}-user-{user.replace('_', '-')}"


def lasting_secrets(cluster: str) -> tuple[str, ...]:
    """The secrets that have no owner, since a herd made anew on its volumes needs them."""
    return (credentials(cluster, "superuser"), credentials(cluster, "app"), authority(cluster))


def peers(cluster: str) -> str:
    """The headless service that gives members their stable addresses."""
    return f"{cluster}-peers"


def address(cluster: str, namespace: str, number: int) -> str:
    """A member's stable host name."""
    return f"{member(cluster, number)}.{peers(cluster)}.{namespace}.svc"


def labels(cluster: str) -> dict[str, str]:
    """Labels of everything that belongs to a herd."""
    return {
        "app.kubernetes.io/name": "pgherd",
        "app.kubernetes.io/instance": cluster,
        "app.kubernetes.io/managed-by": FIELD_MANAGER,
        CLUSTER: cluster,
    }


def member_labels(cluster: str, number: int, role: str) -> dict[str, str]:
    """Labels of what belongs to one member; ``role`` is ``database`` or ``witness``."""
    return labels(cluster) | {MEMBER: str(number), ROLE: role}
