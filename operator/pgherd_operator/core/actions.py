"""What the reconciler may want done. The shell executes the steps in order; each ends with its
first failure, and keeps none of the others from being taken.

Every action is harmless when repeated: creations meet the name that is taken, deletions name the
object by its uid, and a request to the sidecars names a disk, not just a member.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from pgherd_operator.core.observed import Imported, Ledger
from pgherd_operator.objects.model import Manifest, Release, Retired, Role


@dataclass(frozen=True, slots=True)
class AddFinalizer:
    """Have the deletion of the resource wait for us: the volumes' fate is to be settled first.

    Attributes:
        operator: the release that takes charge; empty where it has no name.
    """

    operator: str = ""


@dataclass(frozen=True, slots=True)
class RemoveFinalizer:
    """Let the resource go, and with it all that it owns."""


@dataclass(frozen=True, slots=True)
class CreateLedger:
    """Remember how the herd begins; of two operators only one succeeds.

    Attributes:
        uid: of a ledger that is there, and ours, and can't be read; empty if there is none.
    """

    ledger: Ledger
    uid: str = ""


@dataclass(frozen=True, slots=True)
class MarkFounded:
    """No volume is made from nothing any more."""


@dataclass(frozen=True, slots=True)
class NoteFounders:
    """Remember that these alone found the herd."""

    founders: tuple[tuple[int, Role], ...]


@dataclass(frozen=True, slots=True)
class AdoptRelease:
    """Remember that the herd takes over this release: from now on its pods are made by it."""

    release: Release


@dataclass(frozen=True, slots=True)
class FinishUpgrade:
    """Remember that all members have the release."""


@dataclass(frozen=True, slots=True)
class RememberSpec:
    """Remember the spec, for the day on which there is one that cannot be used."""

    spec: str


@dataclass(frozen=True, slots=True)
class NoteImport:
    """Remember how an import online has ended, or that it begins anew."""

    imported: Imported
    result: str = ""


@dataclass(frozen=True, slots=True)
class MarkImported:
    """Remember on a secret, which outlives the ledger, that an import online has ended well."""

    secret: str
    uid: str
    cluster_id: str


@dataclass(frozen=True, slots=True)
class GeneratePassword:
    """Create a secret with a random password, unless it exists."""

    secret: str
    user: str


@dataclass(frozen=True, slots=True)
class GenerateAuthority:
    """Create the secret with the herd's own CA, unless it exists."""

    secret: str


@dataclass(frozen=True, slots=True)
class IssueCertificate:
    """Write a certificate signed by the herd's CA into a secret, in place of an older one.

    Attributes:
        authority: its secret.
        signer: id of the authority that was seen there.
        organization: the cluster id. PostgreSQL lets a member in by both names.
        trusted: certificates of the authorities that its owner is to trust.
        uid: of the secret that is there, and ours; empty if there is none.
    """

    secret: str
    authority: str
    signer: str
    common_name: str
    organization: str
    dns_names: tuple[str, ...]
    validity_days: int
    trusted: frozenset[str]
    uid: str = ""


@dataclass(frozen=True, slots=True)
class TrustAuthorities:
    """Write into the secret of a certificate which authorities its owner is to trust."""

    secret: str
    uid: str
    trusted: frozenset[str]


@dataclass(frozen=True, slots=True)
class Apply:
    """Make an object, or change the one that is there, and ours, by a server-side apply.

    Attributes:
        uid: of the one that is there; empty if there is none.
    """

    manifest: Manifest
    uid: str = ""


@dataclass(frozen=True, slots=True)
class Create:
    """Create, unless the name is taken."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Admit:
    """Ask whether this would be made, were its name free; it fails in the words of who refuses."""

    manifest: Manifest


class Kind(StrEnum):
    """What may be deleted."""

    POD = "Pod"
    VOLUME = "PersistentVolumeClaim"
    SECRET = "Secret"
    CONFIG_MAP = "ConfigMap"
    SERVICE = "Service"
    CERTIFICATE = "Certificate"
    JOB = "Job"
    POD_MONITOR = "PodMonitor"


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete exactly this object; another one of that name is left alone.

    Attributes:
        version: only if nobody has changed it since; empty if that does not matter.
    """

    kind: Kind
    name: str
    uid: str
    version: str = ""


@dataclass(frozen=True, slots=True)
class GrowVolume:
    """Ask for a larger volume."""

    name: str
    uid: str
    size: str


@dataclass(frozen=True, slots=True)
class RetireVolume:
    """Mark a volume as one that is used no more, or, with None, as a member's again."""

    name: str
    uid: str
    retired: Retired | None


@dataclass(frozen=True, slots=True)
class SettleVolume:
    """Mark a founder's volume as a member's: nothing is founded on it should it come back empty."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class AskLeave:
    """Ask the primary component, through the member ``via``, to let a living member go."""

    via: int
    name: str
    disk_id: str


@dataclass(frozen=True, slots=True)
class AskEvict:
    """Ask it to give up on a member; it refuses if that member is heard of."""

    via: int
    name: str
    disk_id: str


Action = (
    AddFinalizer | RemoveFinalizer | CreateLedger | MarkFounded | NoteFounders | AdoptRelease
    | FinishUpgrade | RememberSpec | NoteImport | MarkImported | GeneratePassword
    | GenerateAuthority | IssueCertificate | TrustAuthorities | Apply | Create | Admit | Delete
    | GrowVolume | RetireVolume | SettleVolume | AskLeave | AskEvict
)  # fmt: skip


class Reason(StrEnum):
    """Reasons of Events and conditions: stable, listed in docs/operator.md."""

    FOUNDING = "Founding"
    OTHER_OPERATOR = "OtherOperator"
    ADOPTED = "VolumesAdopted"
    CREDENTIALS_MISSING = "CredentialsMissing"
    FOREIGN_VOLUMES = "ForeignVolumes"
    NAME_TAKEN = "NameTaken"
    INVALID_SPEC = "InvalidSpec"
    OBJECTS_APPLIED = "ObjectsApplied"
    OBJECT_ALTERED = "ObjectAltered"
    MEMBER_STARTING = "MemberStarting"
    MEMBER_LOST = "MemberVolumeLost"
    MEMBER_DIVERGED = "MemberDiverged"
    MEMBER_INCIDENT = "MemberIncident"
    MEMBER_JOINING = "MemberJoining"
    MEMBER_LEAVING = "MemberLeaving"
    MEMBER_REMOVED = "MemberRemoved"
    MEMBER_RESTARTING = "MemberRestarting"
    UPGRADING = "Upgrading"
    UPGRADE_WAITS = "UpgradeWaits"
    VOLUME_GROWING = "VolumeGrowing"
    VOLUME_REFUSED = "VolumeGrowthRefused"
    VOLUME_CLASS = "VolumeOfAnotherClass"
    USERS_CHANGED = "UsersChanged"
    USERS_FAILED = "UsersFailed"
    IMPORTING = "Importing"
    IMPORT_REFUSED = "ImportRefused"
    IMPORT_STOPPED = "ImportStopped"
    IMPORT_FOLLOWS = "ImportFollows"
    IMPORT_ABORTED = "ImportAborted"
    CUT_OVER_FAILED = "CutOverFailed"
    IMPORTED = "Imported"
    CERTIFICATE_ISSUED = "CertificateIssued"
    CERTIFICATE_EXPIRING = "CertificateExpiring"
    CERTIFICATE_MISSING = "CertificateMissing"
    AUTHORITY_REPLACED = "AuthorityReplaced"
    CAPTURE_OFF = "CaptureOff"
    ACTION_FAILED = "ActionFailed"
    KIND_UNREADABLE = "KindUnreadable"
    MEMBERS_DIFFER = "MembersDiffer"
    WRITES_HELD = "WritesHeld"
    NO_PRIMARY = "NoPrimaryComponent"
    RECOVERY_BLOCKED = "RecoveryBlocked"
    HIBERNATED = "Hibernated"
    PAUSED = "Paused"
    DELETING = "Deleting"
    WAITING = "Waiting"
    AS_WANTED = "AsWanted"
    WRITABLE = "EveryMemberTakesWrites"


@dataclass(frozen=True, slots=True)
class Event:
    """Something a human may want to know."""

    reason: StrEnum
    message: str
    kind: Literal["Normal", "Warning"] = "Normal"


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do, or to wait for.

    Attributes:
        text: for the status; what it is and why.
        actions: none when it is something to wait for.
        quiet: nobody needs to hear of it.
        instead: what is done in its place if a sidecar refuses it.
    """

    reason: Reason
    text: str
    actions: tuple[Action, ...] = ()
    warning: bool = False
    quiet: bool = False
    instead: "Step | None" = None

    @property
    def awaits_human(self) -> bool:
        """Nobody else can take it: what is in the way is not ours."""
        return self.reason in (Reason.FOREIGN_VOLUMES, Reason.NAME_TAKEN)

    def event(self) -> Event | None:
        """What to tell: acts, and what somebody has to see to; not waiting."""
        if self.quiet or (not self.actions and not self.warning):
            return None
        return Event(self.reason, self.text, "Warning" if self.warning else "Normal")
