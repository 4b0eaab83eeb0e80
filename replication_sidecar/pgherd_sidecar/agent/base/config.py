"""Configuration of one sidecar: the file behind ``pgherd-sidecar --config FILE``.

The file is JSON, written by whoever owns the deployment (``pgherd local`` on one machine, an
operator elsewhere) and only read by the sidecar: it holds nothing that is learned at run time, so
losing it loses nothing that cannot be written again. Unknown fields are errors, because a
misspelt one would otherwise silently mean its default.
"""

from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal, Self
from uuid import UUID

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from pgherd_sidecar.agent.base.defaults import (
    FINGERPRINT_EVERY,
    SCRUB_INTERVAL_S,
    SCRUB_SHARE,
    SERVICES,
)
from pgherd_sidecar.core.replication.pieces import OPEN_BYTES
from pgherd_sidecar.env.network.tls import can_be_certified, certified_name

Port = Annotated[int, Field(ge=1, le=65535)]
Milliseconds = Annotated[int, Field(gt=0)]
Bytes = Annotated[int, Field(gt=0)]


def _that_can_be_looked_up(host: str) -> str:
    host.encode("idna")  # as whoever connects does; the log tells all members of it
    return host


Host = Annotated[str, AfterValidator(_that_can_be_looked_up)]


class ConfigError(Exception):
    """The configuration file cannot be used; the message is one line and names the file."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class MemberAddress(_Section):
    """One member of the herd, as its peers reach it."""

    name: Annotated[str, Field(min_length=1, max_length=63)]
    number: Annotated[int, Field(ge=1, le=1023, description="stable; interleaves the sequences")]
    host: Annotated[Host, Field(min_length=1, description="address of the peer port")]
    port: Annotated[Port, Field(description="TCP port of the ordered log")]
    witness: Annotated[bool, Field(description="log and vote, no database")] = False


class PostgresAddress(_Section):
    """The PostgreSQL server beside this sidecar; always the same machine, by Unix socket."""

    host: Annotated[str, Field(description="directory of the server's Unix socket")]
    port: Annotated[Port, Field(description="names the socket: .s.PGSQL.<port>")]
    user: Annotated[str, Field(description="a superuser")] = "postgres"
    database: Annotated[str, Field(description="the one replicated database")] = "app"
    tcp_host: Annotated[
        Host, Field(description="address at which other members reach it to copy it; empty: none")
    ] = ""


_NO_SERVER = PostgresAddress(host="", port=1)


class Tls(_Section):
    """How members prove to each other who they are."""

    directory: Annotated[Path, Field(description="of ca.crt, tls.crt and tls.key")]


class TimingSettings(_Section):
    """Times of the ordered log's failure detector."""

    heartbeat_ms: Annotated[Milliseconds, Field(description="silence a proposer allows itself")] = (
        100
    )
    election_timeout_ms: Annotated[
        Milliseconds, Field(description="least silence before an election; drawn from [t, 2t)")
    ] = 1000
    evict_ms: Annotated[
        int, Field(ge=0, description="silence after which a member is evicted; 0: never")
    ] = 0
    partition_split_ms: Annotated[
        Milliseconds,
        Field(
            description="a component without a quorum splits off when it was the same for so long"
        ),
    ] = 60_000
    same_cause_ms: Annotated[
        Milliseconds,
        Field(description="a database that diverges by the same cause in this time does so again"),
    ] = 3_600_000
    rebuild_silent_ms: Annotated[
        Milliseconds,
        Field(description="a rebuild of which nothing is heard for so long counts as failed"),
    ] = 900_000

    @model_validator(mode="after")
    def _heartbeats_fit_into_the_timeout(self) -> Self:
        if self.election_timeout_ms < 3 * self.heartbeat_ms:
            raise ValueError("election_timeout_ms must be at least three heartbeat_ms")
        least_ms = 4 * self.election_timeout_ms
        least = f"at least four election_timeout_ms, {least_ms}"
        if 0 < self.evict_ms < least_ms:
            raise ValueError(f"evict_ms must be 0 or {least}")
        if self.partition_split_ms < least_ms:
            raise ValueError(f"partition_split_ms must be {least}")
        return self


class LimitSettings(_Section):
    """Bounds on what the sidecar keeps, sends and waits for."""

    frame_bytes: Annotated[Bytes, Field(description="largest message between members")] = 64 << 20
    writeset_bytes: Annotated[
        Bytes, Field(description="largest transaction with DDL, which is never sent in pieces")
    ] = 32 << 20
    piece_bytes: Annotated[
        Bytes,
        Field(
            ge=1024, le=8 << 20, description="who writes more is sent in pieces of about this size"
        ),
    ] = 1 << 20
    row_bytes: Annotated[
        Bytes, Field(description="largest row, several times of which each sidecar must hold")
    ] = 64 << 20
    transaction_bytes: Annotated[
        Bytes,
        Field(
            le=OPEN_BYTES // 2,  # the rest is for what others write meanwhile
            description="largest transaction, all of which the log has to hold",
        ),
    ] = 4 << 30
    transaction_keys: Annotated[
        int,
        Field(gt=0, description="most keys of a transaction; each costs each member 16 bytes"),
    ] = 8_000_000
    pending_bytes: Annotated[Bytes, Field(description="submissions not yet ordered")] = 64 << 20
    segment_bytes: Annotated[Bytes, Field(description="size of a log segment on disk")] = 16 << 20
    log_cache_bytes: Annotated[Bytes, Field(description="newest log blocks kept in memory")] = (
        32 << 20
    )
    log_retention_bytes: Annotated[
        Bytes, Field(description="log kept for members that come back")
    ] = 1 << 30
    log_hold_ms: Annotated[
        Milliseconds,
        Field(description="longest time for which joiners, snapshots and streams can hold the log"),
    ] = 31 * 86_400_000
    log_hold_bytes: Annotated[
        Bytes, Field(description="log or WAL kept for who joins, if the disk has as much free")
    ] = 16 << 30
    checkpoint_entries: Annotated[
        int, Field(gt=0, description="entries after which a checkpoint is written")
    ] = 100_000
    checkpoint_ms: Annotated[
        Milliseconds, Field(description="time after which one is written if anything changed")
    ] = 60_000
    applied_entries: Annotated[
        int, Field(gt=0, description="positions that pgherd.applied goes back at least")
    ] = 10_000
    certification_keys: Annotated[
        int,
        Field(gt=0, description="keys in the certification index; same on every member for life"),
    ] = 1_000_000
    verdict_timeout_ms: Annotated[
        Milliseconds, Field(description="longest wait of a COMMIT before 08007")
    ] = 10_000


class ScrubSettings(_Section):
    """How members compare their tables with each other's all the time."""

    interval_s: Annotated[
        float, Field(ge=0, description="in which all rows are compared once; 0: never")
    ] = SCRUB_INTERVAL_S
    share: Annotated[
        float, Field(gt=0, le=100, description="percent of one core that it may take")
    ] = SCRUB_SHARE


class PartnerServer(_Section):
    """The PostgreSQL server of another member, as this node reaches it to copy it."""

    member: str
    host: str
    port: Port


class RecoverySettings(_Section):
    """How a lost or diverged database is replaced by a copy of a partner's (total recovery).

    A base backup needs a partner of the same major version of PostgreSQL; a dump is loaded into a
    server made anew. So is a snapshot, which is looked at only when this member joins.

    The sidecar stops and starts the server beside it for that, as the same account; or somebody
    else runs it and starts it when there is a database: then only a missing one is replaced.
    """

    automatic: Annotated[
        bool, Field(description="begin by itself; otherwise when an administrator asks")
    ] = False
    method: Annotated[
        Literal["basebackup", "dump"], Field(description="copy a partner's files, or its rows")
    ] = "basebackup"
    snapshot: Annotated[
        str | None,
        Field(description="a snapshot to join from: a directory here, or s3://BUCKET/PREFIX"),
    ] = None
    snapshot_endpoint: Annotated[
        str | None, Field(description="URL of its S3 server; else as AWS_ENDPOINT_URL says")
    ] = None
    jobs: Annotated[int, Field(ge=1, le=64, description="tables dumped or loaded at a time")] = 2
    settings: Annotated[
        Path | None,
        Field(description="file of settings that a new server includes"),
    ] = None
    postgres_bin: Annotated[Path, Field(description="directory of PostgreSQL's programs")]
    data_directory: Annotated[Path, Field(description="of the server; a copy is made beside it")]
    runs_server: Annotated[bool, Field(description="stop and start the server")] = True
    overlay: Annotated[
        Path | None,
        Field(description="files of this node's own that replace the partner's in a copy"),
    ] = None
    server_log: Annotated[Path, Field(description="what the server says before its own log is up")]
    partners: tuple[PartnerServer, ...]
    user: Annotated[str, Field(description="superuser on the partners")] = "postgres"
    passfile: Annotated[Path | None, Field(description="libpq's file of passwords")] = None
    rate_bytes_s: Annotated[
        int,
        Field(ge=32 << 10, le=1 << 30, description="of a copy while the partner has clients"),
    ] = 64 << 20
    max_rate_bytes_s: Annotated[
        int | None,
        Field(ge=32 << 10, le=1 << 30, description="of a copy at all times, in place of that"),
    ] = None
    checkpoint: Annotated[
        Literal["fast", "spread"],
        Field(description="of the partner before a copy: a burst of writes, or minutes of waiting"),
    ] = "fast"


class NodeConfig(_Section):
    """All that one sidecar is told.

    ``members`` are this one and, of a founder, all that found the herd with it, the same on each of
    them; of a member that joins later, those that it asks first. The log says who is a member.

    Invariants: ``name`` and ``number`` are one of ``members``; names, numbers and peer addresses of
    the members are unique. Without ``tls`` all addresses are of the loopback interface; with it
    the names can stand in a certificate. A witness has no server, any other member has one. A
    reader is no founder.
    """

    cluster_id: UUID
    certified_cluster: Annotated[
        UUID | None,
        Field(description="cluster that certificates name: what this one has split off from, say"),
    ] = None
    name: str
    number: int
    members: Annotated[tuple[MemberAddress, ...], Field(min_length=1)]
    founder: Annotated[bool, Field(description="a fresh log begins with ``members``")] = True
    witness: Annotated[bool, Field(description="log and vote, no database")] = False
    reader: Annotated[bool, Field(description="log and database, no vote and no writes")] = False
    sequence_slots: Annotated[
        int,
        Field(
            ge=1,
            le=1023,
            description="largest number of who takes writes; same on every member for life",
        ),
    ] = 8
    data_dir: Annotated[Path, Field(description="ordered log, checkpoints, identity")]
    postgres: PostgresAddress = _NO_SERVER
    hook_dir: Annotated[
        Path, Field(description="directory of the socket certify() connects to")
    ] = Path()
    admin_socket: Annotated[Path, Field(description="Unix socket of the admin API")]
    listen_host: Annotated[
        str | None, Field(min_length=1, description="address to listen on; default: the own host")
    ] = None
    admin_port: Annotated[
        Port | None, Field(description="admin API for the operator of the herd; needs tls")
    ] = None
    health_port: Annotated[Port | None, Field(description="probes and metrics, for anybody")] = None
    health_host: Annotated[
        str | None,
        Field(min_length=1, description="address of the health port; default: listen_host"),
    ] = None
    tls: Tls | None = None
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    timing: TimingSettings = TimingSettings()
    limits: LimitSettings = LimitSettings()
    recovery: RecoverySettings | None = None
    scrub: ScrubSettings = ScrubSettings()
    fingerprint_every: Annotated[
        int,
        Field(ge=1, description="one of so many transactions ships hashes of its rows; 1: all do"),
    ] = FINGERPRINT_EVERY
    capture: Annotated[
        Literal["auto", "sql"],
        Field(description="who captures: the native module where it is installed, or SQL always"),
    ] = "auto"
    partition_policy: Annotated[
        Literal["primary", "permanent"],
        Field(description="without a majority: wait for it, or become a cluster of its own"),
    ] = "primary"

    on_divergence: Annotated[
        Literal["rebuild", "pause"],
        Field(
            description="when one whole database is left: take writes while others are rebuilt, "
            "or none until an administrator has chosen; the same on every member"
        ),
    ] = "rebuild"

    replaced: Annotated[
        bool | None,
        Field(
            description="whoever deploys makes a diverged node anew, without being asked; default:"
            " where there is an admin_port, since that is for an operator"
        ),
    ] = None

    @property
    def made_anew(self) -> bool:
        """Somebody else makes a diverged node anew: the one who deploys."""
        return self.admin_port is not None if self.replaced is None else self.replaced

    @model_validator(mode="after")
    def _members_are_consistent(self) -> Self:
        me = (self.name, self.number)
        if me not in {(member.name, member.number) for member in self.members}:
            raise ValueError(f"members do not contain {self.name} with number {self.number}")
        for what, values in (
            ("names", [member.name for member in self.members]),
            ("numbers", [member.number for member in self.members]),
            ("addresses", [(member.host, member.port) for member in self.members]),
        ):
            if len(set(values)) != len(values):
                raise ValueError(f"{what} of the members are not unique")
        for name in SERVICES & {member.name for member in self.members}:
            raise ValueError(f"no member can be called {name}: its certificate is another's")
        return self

    @model_validator(mode="after")
    def _server_is_as_the_role_needs_it(self) -> Self:
        if not self.witness:
            if self.postgres == _NO_SERVER:
                raise ValueError("postgres is missing")
            if self.hook_dir == Path():
                raise ValueError("hook_dir is missing")
            if self.number > self.sequence_slots and not self.reader:
                raise ValueError(
                    f"number {self.number} is above sequence_slots {self.sequence_slots}: sequences"
                    " are interleaved by so many, which stays for the life of the cluster"
                )
        elif self.postgres != _NO_SERVER or self.recovery is not None:
            raise ValueError("a witness has no postgres and no recovery")
        if self.reader and (self.witness or self.founder):
            raise ValueError(f"{self.name} is a reader: it is no witness, and joins a herd")
        if self.founder and self.address.witness != self.witness:
            raise ValueError(f"members say something else about {self.name} being a witness")
        return self

    @model_validator(mode="after")
    def _links_are_safe(self) -> Self:
        for member in self.members:
            if self.tls is None and not is_loopback(member.host):
                raise ValueError(f"tls is missing: {member.name} is reached by {member.host}")
            if self.tls is not None and not can_be_certified(member.name):
                raise ValueError(f"{member.name} can't be part of a DNS name in a certificate")
        if self.tls is None and not is_loopback(self.listens_on):
            raise ValueError(f"tls is missing: this member listens on {self.listens_on}")
        if self.tls is None and self.admin_port is not None:
            raise ValueError("admin_port needs tls: its callers are known by their certificates")
        return self

    def certified(self, name: str) -> str:
        """Return the DNS name in the certificate of who is called so."""
        return certified_name(name, str(self.certified_cluster or self.cluster_id))

    @property
    def address(self) -> MemberAddress:
        """This member's own entry in ``members``: where its peers reach it."""
        return next(member for member in self.members if member.name == self.name)

    @property
    def listens_on(self) -> str:
        """The address that this member's ports listen on."""
        return self.listen_host or self.address.host

    @property
    def health_listens_on(self) -> str:
        """The address that the health port listens on."""
        return self.health_host or self.listens_on


def is_loopback(host: str) -> bool:
    """Whether what goes to this address stays on this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def load_config(path: Path) -> NodeConfig:
    """Read and check a configuration file.

    Raises:
        ConfigError: the file cannot be read or is not a valid configuration.
    """
    try:
        return NodeConfig.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "file"
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        raise ConfigError(f"{path}: {where}: {first['msg']}{more}") from error
