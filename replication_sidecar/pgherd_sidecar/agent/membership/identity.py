"""The identity of this member: what the sidecar keeps in ``data_dir`` besides the log.

A directory holds::

    identity.json   cluster id, member's name and number, the disk's UUID, the incarnation
    settings        the settings that never change: verdicts and sequences depend on them
    split_at        where its log ended when it split off from its cluster
    lock            locked while a sidecar runs on the directory

A member that has split off from its cluster is of another one than its configuration says, which
goes on as it is: ``configured`` in the file is what the configuration has to say then.

The disk's UUID is made with the directory: an empty disk under an old name is a new identity, and
must not vote as the old one (C18). The incarnation counts the starts of the PostgreSQL server as
its transactions' identities see them (C12); it is on stable storage before anybody learns it. A
member that has begun one and has no log has lost it, and what it has promised: it is refused.

All of it survives a restart but the lock, which the kernel gives back when the process ends.
"""

import fcntl
import json
import os
import secrets
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from uuid import UUID, uuid4

from pgherd_sidecar.agent.base.config import NodeConfig
from pgherd_sidecar.agent.membership.notes import SETTINGS, SPLIT_AT, Note
from pgherd_sidecar.env.storage import durable

_FILE = "identity.json"
_FIRST_BITS = 29
"""Tokens of batches are incarnations moved by 32 bits, in PostgreSQL's signed bigint."""
_LOCK = "lock"
_LOG = "log"
_LOG_CONTROL = Path(_LOG, "control")
"""There from the first start of the log on, and replaced as a whole only."""


class IdentityError(Exception):
    """This sidecar must not run on this ``data_dir``; the message is one line."""


@dataclass(frozen=True, slots=True)
class _Record:
    """Contents of the file."""

    cluster_id: str
    name: str
    number: int
    disk_id: str
    incarnation: int
    split_from: str = ""
    configured: str = ""


class StoredIdentity:
    """The identity in one ``data_dir``, which is locked until ``close``.

    Attributes:
        disk_id: UUID of the directory, made when it was empty.

    Args:
        config: names the directory, and whose it has to be.
        splitting: it may belong to a cluster that was split off from that of the configuration.

    Raises:
        IdentityError: another sidecar runs on it, it belongs to another cluster or member, it has
            lost its log, or a setting differs that never changes.
    """

    def __init__(self, config: NodeConfig, *, splitting: bool = False) -> None:
        self._directory = config.data_dir
        self._splitting = splitting
        self._before_first = secrets.randbits(_FIRST_BITS)
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = _acquire(self._directory / _LOCK)
            try:
                # a process that was killed may not have: then what is read here may not last
                durable.sync_directory(self._directory)
                self._record = self._load(config)
                self._check_settings(config)
            except IdentityError:
                self.close()
                raise
        except OSError as error:
            raise IdentityError(f"cannot use {self._directory}: {error.strerror}") from error
        self.disk_id = self._record.disk_id

    @property
    def cluster_id(self) -> str:
        """The cluster that the directory belongs to."""
        return self._record.cluster_id

    @property
    def split_from(self) -> str | None:
        """The cluster that this one was split off from for good, None if it was founded."""
        return self._record.split_from or None

    def has_split(self, config: NodeConfig) -> bool:
        """Tell whether this member is of a cluster that the configuration does not know of."""
        return self._record.configured == str(config.cluster_id) != self.cluster_id

    @property
    def incarnation(self) -> int:
        """The newest incarnation, 0 before the first."""
        return self._record.incarnation

    def next_incarnation(self) -> int:
        """Begin a new incarnation; it is on stable storage when this returns.

        The first one is drawn: the log that a member reads may hold the beginnings of former owners
        of its number, or its own on a disk that was lost, and it must not take one of them for its
        own.

        Raises:
            OSError: it can't be stored; nothing has begun.
        """
        former = self._record.incarnation or self._before_first
        self._save(replace(self._record, incarnation=former + 1))
        return self._record.incarnation

    def skip_incarnations(self, newest: int) -> None:
        """Have the next incarnation be newer than this one, too.

        Raises:
            OSError: it can't be stored.
        """
        self._save(replace(self._record, incarnation=max(self._record.incarnation, newest)))

    def applied_to(self, config: NodeConfig) -> NodeConfig:
        """Return the configuration as it is meant: of the cluster that the directory belongs to.

        Certificates go on naming the cluster that was configured.
        """
        configured, mine = config.cluster_id, UUID(self.cluster_id)
        if configured == mine:
            return config
        certified = config.certified_cluster or configured
        return config.model_copy(update={"cluster_id": mine, "certified_cluster": certified})

    def split(self, cluster_id: str, log_end: int, configured: str = "") -> None:
        """Be a member of another cluster from now on, split off from the present one.

        Args:
            cluster_id: of the other one.
            log_end: so far this member's log goes, which is the other cluster's, too.
            configured: of the cluster that the configuration goes on naming; by default it has to
                name the other one.

        Raises:
            OSError: it can't be stored; nothing has changed.
        """
        Note(self._directory, SPLIT_AT).write(str(log_end))
        former = self._record.cluster_id
        record = replace(self._record, cluster_id=cluster_id, configured=configured)
        self._save(replace(record, split_from=former))

    def close(self) -> None:
        """Let another sidecar use the directory."""
        os.close(self._lock)

    def _load(self, config: NodeConfig) -> _Record:
        path = self._directory / _FILE
        mine = (str(config.cluster_id), config.name, config.number)
        try:
            record = _Record(**json.loads(path.read_bytes()))
        except FileNotFoundError:
            if (self._directory / _LOG).exists():
                raise IdentityError(f"{self._directory} holds a log but no {_FILE}") from None
            self._save(_Record(*mine, disk_id=str(uuid4()), incarnation=0))
            return self._record
        except (ValueError, TypeError) as error:
            raise IdentityError(f"{path} is damaged: {error}") from error
        split = self._splitting and record.split_from == mine[0]
        if mine[0] not in (record.cluster_id, record.configured) and not split:
            raise IdentityError(
                f"{self._directory} belongs to cluster {record.cluster_id}, "
                f"this sidecar is configured for cluster {mine[0]}"
            )
        if (record.name, record.number) != mine[1:]:
            raise IdentityError(
                f"{self._directory} belongs to member {record.name} (number {record.number}), "
                f"this sidecar is configured as {mine[1]} (number {mine[2]})"
            )
        if record.incarnation > 0 and not (self._directory / _LOG_CONTROL).exists():
            raise IdentityError(
                f"{self._directory} has lost its log: member {record.name} must not vote again"
            )
        return record

    def _check_settings(self, config: NodeConfig) -> None:
        """Refuse settings that are not those with which the directory was made."""
        keys, slots = config.limits.certification_keys, config.sequence_slots
        configured = f"certification_keys={keys} sequence_slots={slots}"
        made_with = Note(self._directory, SETTINGS)
        if not made_with.text:  # the directory is new
            made_with.write(configured)
        elif made_with.text != configured:
            raise IdentityError(
                f"{self._directory} was made with {made_with.text}, "
                f"this sidecar is configured with {configured}: they never change"
            )

    def _save(self, record: _Record) -> None:
        content = json.dumps(asdict(record), indent=2) + "\n"
        durable.replace(self._directory, _FILE, content.encode())
        self._record = record


def _acquire(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise IdentityError(f"another sidecar runs on {path.parent}") from error
    return descriptor
