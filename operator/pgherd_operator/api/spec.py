"""The spec of a ReplicatedCluster: what the user wants.

Only what the user may decide; everything that follows from it is made in ``objects``. Defaults are
those of the CRD, too, so a resource read from the API server is already complete.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from pgherd_operator.api.base import Line, Name, Quantity, Section, rules, section
from pgherd_operator.api.places import Destination
from pgherd_operator.api.users import Users

OWNED_PARAMETERS = (
    "allow_system_table_mods", "archive_mode", "cluster_name", "config_file", "data_directory",
    "data_sync_retry", "default_transaction_read_only", "event_triggers", "external_pid_file",
    "fsync", "full_page_writes", "hba_file", "ident_file", "ignore_checksum_failure",
    "ignore_invalid_pages", "ignore_system_indexes", "listen_addresses",
    "max_prepared_transactions", "max_replication_slots", "max_wal_senders", "port",
    "session_replication_role", "ssl", "ssl_ca_file", "ssl_cert_file", "ssl_key_file",
    "synchronous_standby_names", "unix_socket_directories", "unix_socket_permissions", "wal_level",
    "zero_damaged_pages",
)  # fmt: skip
"""Parameters of PostgreSQL that are pgherd's: with others a herd would not be safe, or not grow."""
OWNED_PREFIXES = ("include", "pgherd.")
"""So are all that begin like this: another file could set any of them."""

_PARAMETER_RULE = "self.all(name, {})".format(
    " && ".join(
        [
            f"!(name in [{', '.join(repr(name) for name in OWNED_PARAMETERS)}])",
            *(f"!name.startsWith({prefix!r})" for prefix in OWNED_PREFIXES),
        ]
    )
)
_NOT_SMALLER = "quantity(self).compareTo(quantity(oldSelf)) >= 0"
_EMPTY: dict[str, Any] = {}

NodeSelector = Annotated[
    dict[str, str], Field(max_length=16, description="labels that a node has to have")
]
Tolerations = Annotated[tuple[dict[str, Any], ...], Field(max_length=16, description="as in a pod")]


class Images(Section):
    """Where the containers come from."""

    postgres: Annotated[
        Line | None, Field(description="default: the operator's image for postgres.version")
    ] = None
    sidecar: Annotated[Line | None, Field(description="default: the operator's own release")] = None
    pull_policy: Annotated[
        Literal["Always", "IfNotPresent", "Never"], Field(description="as in a pod")
    ] = "IfNotPresent"
    pull_secrets: Annotated[
        tuple[Name, ...],
        Field(max_length=8, description="Secrets for registries that want a password"),
    ] = ()


class Postgres(Section):
    """The servers."""

    version: Annotated[
        Literal["15", "16", "17", "18"],
        Field(
            description="major version; another one is reached by a member that joins by dump",
            json_schema_extra=rules(
                ("self == oldSelf", "a major upgrade is done through new members: see the docs")
            ),
        ),
    ] = "17"
    parameters: Annotated[
        dict[str, Annotated[str, Field(max_length=1024)]],
        Field(
            max_length=200,
            description="postgresql.conf; a change restarts the members one at a time",
            json_schema_extra=rules(
                (_PARAMETER_RULE, "one of these parameters is set by pgherd itself: remove it"),
                (
                    "self.all(name, name.matches('^[a-z_][a-z0-9_.]*$'))",
                    "names of parameters are lower case letters, digits, '_' and '.'",
                ),
            ),
        ),
    ] = _EMPTY
    pg_hba: Annotated[
        tuple[Line, ...],
        Field(
            max_length=200,
            description="lines of pg_hba.conf, between pgherd's and the default ones",
        ),
    ] = ()


class Storage(Section):
    """The volume of each member."""

    size: Annotated[
        Quantity,
        Field(
            description="may grow, if the class allows it; never shrinks",
            json_schema_extra=rules((_NOT_SMALLER, "a volume cannot shrink")),
        ),
    ] = "10Gi"
    witness_size: Annotated[
        Quantity,
        Field(
            description="a witness keeps the log only",
            json_schema_extra=rules((_NOT_SMALLER, "a volume cannot shrink")),
        ),
    ] = "4Gi"
    class_name: Annotated[
        Name | None,
        Field(
            description="of volume claims that are made from now on; default: the cluster's default"
            " class"
        ),
    ] = None
    on_scale_down: Annotated[
        Literal["Delete", "Retain"],
        Field(description="volume of a member that has left the view for good"),
    ] = "Delete"


_REQUESTS_WITHIN_LIMITS = (
    "!has(self.requests) || !has(self.limits) || self.requests.all(name, !(name in self.limits)"
    " || quantity(self.requests[name]).compareTo(quantity(self.limits[name])) <= 0)"
)


class ContainerResources(Section):
    """Requests and limits of one container, as in a pod."""

    model_config = Section.model_config | {
        "json_schema_extra": rules(
            (_REQUESTS_WITHIN_LIMITS, "a request is larger than the limit of its name")
        )
    }
    requests: Annotated[
        dict[str, Quantity], Field(max_length=8, description="what a node has to have for it")
    ] = _EMPTY
    limits: Annotated[
        dict[str, Quantity], Field(max_length=8, description="what it may take at most")
    ] = _EMPTY


_POSTGRES_REQUESTS = {"memory": "512Mi"}  # no CPU: a herd shall fit a laptop (docs/sizing.md)
_SIDECAR_REQUESTS = {"memory": "256Mi"}
_SIDECAR_LIMITS = {"memory": "768Mi"}  # eight of the largest rows, beside what it has under load


class Resources(Section):
    """CPU and memory of a member."""

    postgres: Annotated[ContainerResources, section("the server", requests=_POSTGRES_REQUESTS)] = (
        ContainerResources(requests=_POSTGRES_REQUESTS)
    )
    sidecar: Annotated[
        ContainerResources,
        section("the replication sidecar", requests=_SIDECAR_REQUESTS, limits=_SIDECAR_LIMITS),
    ] = ContainerResources(requests=_SIDECAR_REQUESTS, limits=_SIDECAR_LIMITS)


class Scheduling(Section):
    """On which nodes members run. They are spread over zones and hosts in any case."""

    spread: Annotated[
        Literal["Preferred", "Required"],
        Field(
            description="Required: no host has two members more than another, even if one "
            "stays pending; with as many hosts as members each has one of its own"
        ),
    ] = "Preferred"
    node_selector: NodeSelector = _EMPTY
    tolerations: Tolerations = ()
    affinity: Annotated[dict[str, Any], Field(description="as in a pod")] = _EMPTY
    priority_class_name: Annotated[
        Name | None, Field(description="a PriorityClass that is there")
    ] = None


class IssuerReference(Section):
    """An issuer of cert-manager."""

    name: Annotated[Name, Field(description="of the issuer")]
    kind: Annotated[
        Literal["Issuer", "ClusterIssuer"],
        Field(description="Issuer: in the same namespace"),
    ] = "Issuer"


_SAME_AUTHORITY = (
    "self.mode == oldSelf.mode && has(self.issuer) == has(oldSelf.issuer)"
    " && (!has(self.issuer) || self.issuer == oldSelf.issuer)"
)


class Tls(Section):
    """Certificates between members and to the clients."""

    model_config = Section.model_config | {
        "json_schema_extra": rules(
            (
                "self.mode != 'CertManager' || has(self.issuer)",
                "mode CertManager needs tls.issuer",
            ),
            (
                "self.mode == 'CertManager' || !has(self.issuer)",
                "tls.issuer is for mode CertManager",
            ),
            (
                _SAME_AUTHORITY,
                "tls.mode and tls.issuer cannot change under running members, who would trust each "
                "other no more: see docs/operator.md, Another authority",
            ),
        )
    }
    mode: Annotated[
        Literal["SelfSigned", "CertManager", "Provided"],
        Field(description="SelfSigned: a CA of the herd's own; Provided: you make the secrets"),
    ] = "SelfSigned"
    issuer: IssuerReference | None = None
    validity_days: Annotated[int, Field(ge=2, le=3650, description="renewed after two thirds")] = 90

    @model_validator(mode="after")
    def _issuer_goes_with_its_mode(self) -> Self:
        if (self.mode == "CertManager") != (self.issuer is not None):
            raise ValueError("tls.issuer goes with mode CertManager")
        return self


class SecretKey(Section):
    """A key of a Secret in the same namespace."""

    name: Annotated[Name, Field(description="of the Secret")]
    key: Annotated[str, Field(min_length=1, max_length=253, description="in the Secret")] = "dsn"


_GOAL_IS_ONLINE = (
    "self.mode == 'Online' || self.goal == 'Follow'",
    "importFrom.goal is for mode Online",
)


class Import(Section):
    """Another database whose content the new herd begins with."""

    model_config = Section.model_config | {"json_schema_extra": rules(_GOAL_IS_ONLINE)}

    dsn: Annotated[SecretKey, Field(description="connection string of the source")]
    mode: Annotated[
        Literal["Offline", "Online"],
        Field(
            description="Offline: a dump is loaded when the herd is made; Online: rows are copied "
            "into the herd that is there, while the source takes writes"
        ),
    ] = "Offline"
    goal: Annotated[
        Literal["Follow", "CutOver", "Abort"],
        Field(
            description="of mode Online. Follow: copy, and follow the source; CutOver: then stop "
            "its writes, compare, and end the import; Abort: remove all that was made; may change"
        ),
    ] = "Follow"
    jobs: Annotated[
        int, Field(ge=1, le=64, description="of mode Online: tables at a time; may change")
    ] = 2

    @model_validator(mode="after")
    def _goal_is_of_its_mode(self) -> Self:
        if self.mode != "Online" and self.goal != "Follow":
            raise ValueError(_GOAL_IS_ONLINE[1])
        return self


_ONE_SOURCE = (
    "!(has(self.importFrom) && has(self.snapshot))",
    "a herd begins with another database or with a snapshot, not with both",
)
_ONLINE_IS_INTO_EMPTY = (
    "!has(self.importFrom) || self.importFrom.mode != 'Online' || !has(self.sql)"
    " || size(self.sql) == 0",
    "importFrom.mode Online fills an empty database: it goes without bootstrap.sql",
)


class Bootstrap(Section):
    """What a new herd begins with, made by its first member before the others join."""

    model_config = Section.model_config | {
        "json_schema_extra": rules(_ONE_SOURCE, _ONLINE_IS_INTO_EMPTY)
    }

    import_from: Annotated[
        Import | None,
        Field(description="a database outside of any herd"),
    ] = None
    snapshot: Annotated[
        Destination | None,
        Field(
            description="a snapshot of a herd: its folder gid-..., or that of several of one "
            "herd, of which the newest whole one is taken"
        ),
    ] = None
    sql: Annotated[
        tuple[Annotated[str, Field(max_length=16384)], ...],
        Field(
            max_length=16,
            description="scripts, run after that in one transaction as app; RESET ROLE makes "
            "what follows the superuser's",
        ),
    ] = ()

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if self.import_from is not None and self.snapshot is not None:
            raise ValueError(_ONE_SOURCE[1])
        if self.online is not None and self.sql:
            raise ValueError(_ONLINE_IS_INTO_EMPTY[1])
        return self

    @property
    def online(self) -> Import | None:
        """The import that goes on while the source takes writes, if there is one."""
        found = self.import_from
        return found if found is not None and found.mode == "Online" else None


class Monitoring(Section):
    """Metrics."""

    pod_monitor: Annotated[bool, Field(description="needs the Prometheus operator's CRDs")] = False


SCRUB_HOURS, SCRUB_SHARE = 168, 2
"""What a sidecar does that is told nothing else."""


class Maintenance(Section):
    """What the operator may do by itself."""

    paused: Annotated[bool, Field(description="observe, report, renew certificates only")] = False
    upgrades: Annotated[
        Literal["Automatic", "Manual"],
        Field(
            description="Automatic: after an upgrade of the operator members are replaced, one "
            "herd after the other; Manual: not until this is Automatic"
        ),
    ] = "Automatic"
    rebuild_diverged: Annotated[
        bool, Field(description="replace a member that says of itself that it has diverged")
    ] = True
    scrub_hours: Annotated[
        int,
        Field(ge=0, le=8784, description="in which all rows are compared once; 0: never"),
    ] = SCRUB_HOURS
    scrub_share: Annotated[
        int, Field(ge=1, le=100, description="percent of one core that this may take")
    ] = SCRUB_SHARE


_OWN_IMAGES = (
    "pgherd's images have PostgreSQL 17: for another version name your own, with its programs in "
    "both, in images.postgres and images.sidecar"
)


def _same(path: str) -> str:
    """That a field of the bootstrap is as it was."""
    mine, old = f"self.bootstrap.{path}", f"oldSelf.bootstrap.{path}"
    return f"has({mine}) == has({old}) && (!has({mine}) || {mine} == {old})"


_SAME_SOURCE = (
    "has(self.bootstrap.importFrom) == has(oldSelf.bootstrap.importFrom)"
    " && (!has(self.bootstrap.importFrom)"
    " || (self.bootstrap.importFrom.dsn == oldSelf.bootstrap.importFrom.dsn"
    " && self.bootstrap.importFrom.mode == oldSelf.bootstrap.importFrom.mode))"
)
_SAME_BEGINNING = (
    "has(self.bootstrap) == has(oldSelf.bootstrap) && (!has(self.bootstrap)"
    f" || ({_same('snapshot')} && {_same('sql')} && {_SAME_SOURCE}))"
)
_SPEC_RULES = rules(
    ("self.witnesses < self.instances", "witnesses must be fewer than instances"),
    (
        _SAME_BEGINNING,
        "bootstrap describes how the herd began: only importFrom.goal and .jobs can be changed",
    ),
    (
        "!has(self.postgres) || !has(self.postgres.version) || self.postgres.version == '17' || "
        "(has(self.images) && has(self.images.postgres) && has(self.images.sidecar))",
        _OWN_IMAGES,
    ),
)


class ClusterSpec(Section):
    """One herd."""

    model_config = Section.model_config | {"json_schema_extra": _SPEC_RULES}

    instances: Annotated[
        int, Field(ge=1, le=31, description="members with a database; every one takes writes")
    ] = 3
    witnesses: Annotated[
        int, Field(ge=0, le=15, description="members that hold log and vote only")
    ] = 0
    readers: Annotated[
        int,
        Field(ge=0, le=30, description="members that follow the others: no vote and no writes"),
    ] = 0
    partition_policy: Annotated[
        Literal["Quorum", "Permanent"],
        Field(description="Permanent: a component without a quorum becomes its own herd"),
    ] = "Quorum"
    on_divergence: Annotated[
        Literal["Rebuild", "Pause"],
        Field(
            description="Pause: when one whole database is left, no writes until you have chosen, "
            "also while others are made anew from it"
        ),
    ] = "Rebuild"
    capture: Annotated[
        Literal["Auto", "SQL"],
        Field(description="SQL: no member captures natively, although the images hold the module"),
    ] = "Auto"
    deletion_policy: Annotated[
        Literal["Retain", "Delete"], Field(description="volumes, when this resource is deleted")
    ] = "Retain"
    hibernated: Annotated[bool, Field(description="no pods; volumes are kept")] = False
    images: Annotated[Images, section("container images")] = Images()
    postgres: Annotated[Postgres, section("the servers")] = Postgres()
    storage: Annotated[Storage, section("volumes")] = Storage()
    resources: Annotated[Resources, section("CPU and memory")] = Resources()
    scheduling: Annotated[Scheduling, section("placement")] = Scheduling()
    tls: Annotated[Tls, section("certificates", mode="SelfSigned")] = Tls()
    bootstrap: Bootstrap | None = None
    users: Users = ()
    monitoring: Annotated[Monitoring, section("metrics")] = Monitoring()
    maintenance: Annotated[Maintenance, section("what the operator may do")] = Maintenance()

    @property
    def online_import(self) -> Import | None:
        """The import that goes on while its source takes writes, if there is one."""
        return self.bootstrap.online if self.bootstrap is not None else None

    @model_validator(mode="after")
    def _witnesses_are_a_minority(self) -> Self:
        if self.witnesses >= self.instances:
            raise ValueError("witnesses must be fewer than instances")
        return self

    @model_validator(mode="after")
    def _there_are_images_of_its_version(self) -> Self:
        own = self.images.postgres is not None and self.images.sidecar is not None
        if self.postgres.version != "17" and not own:
            raise ValueError(_OWN_IMAGES)
        return self

    @model_validator(mode="after")
    def _no_user_is_listed_twice(self) -> Self:
        names = [user.name for user in self.users]
        if len({*names}) < len(names):
            raise ValueError("a user is listed twice")
        return self

    @model_validator(mode="after")
    def _own_parameters_are_not_overridden(self) -> Self:
        taken = sorted(
            name
            for name in self.postgres.parameters
            if name in OWNED_PARAMETERS or name.startswith(OWNED_PREFIXES)
        )
        if taken:
            raise ValueError(f"set by pgherd itself: {', '.join(taken)}")
        return self
