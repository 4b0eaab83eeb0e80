"""The checkpoint of a member: its replicated state, and which database and log it fits to.

The state at position ``s`` is a function of the log alone, so any member's will do (C17). It can
be used with a database whose commit chain ends at ``g`` if all that commits up to ``s`` is in that
database: then the member certifies from ``s + 1`` and applies from ``g + 1``. For that the file
says, besides the state, ``last_commit``: the highest GID up to ``s`` that changed the database.

Layout: magic (8 bytes), length and CRC-32 of the description (4 + 4, big-endian), the description
as JSON, the state with a checksum of its own. Written by ``upkeep`` once the server has on stable
storage what it covers; read at the start of each session, and by partners.
"""

import json
import struct
import zlib
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pgherd_sidecar.agent.base.errors import LeftBehindError, UnreadableError
from pgherd_sidecar.core.consensus import LogBase, Membership
from pgherd_sidecar.core.replication.checkpoint import (
    CheckpointError,
    CheckpointVersionError,
)
from pgherd_sidecar.core.replication.state import ReplicatedState
from pgherd_sidecar.env.storage import durable

FILE = "checkpoint"
_HEAD = struct.Struct(">8sII")
_MAGIC = b"pgherdC1"


@dataclass(frozen=True, slots=True)
class CertificationState:
    """A checkpoint.

    Attributes:
        cluster_id: whose log.
        position: what is needed of the log begins after it: the last position whose verdict is
            part of the state, or lower if pieces of open transactions are before that.
        last_commit: the last GID that is part of the state and changed the database.
        term: the log's term that wrote ``position``.
        membership: who votes there, as the log encodes it.
        state: what ``ReplicatedState.restore`` takes.
        needed_position, needed_term, needed_membership: where a log begins that holds all that any
            member needed when this was written; not after ``position``.
        covered: the last position whose verdict is part of the state, if that is after
            ``position``.
    """

    cluster_id: str
    position: int
    last_commit: int
    term: int
    membership: str
    state: bytes
    needed_position: int
    needed_term: int
    needed_membership: str
    covered: int = 0

    @property
    def newest(self) -> int:
        """How new it is: what it needs of the log before that, all members keep for their own."""
        return max(self.position, self.covered)

    @property
    def log_base(self) -> LogBase:
        """Where a log begins that goes on from here and holds nothing before."""
        return LogBase(self.position, self.term, Membership.decode(self.membership.encode()))

    @property
    def needed_base(self) -> LogBase:
        """Where the log of a new member had best begin: it then can feed any other one."""
        membership = Membership.decode(self.needed_membership.encode())
        return LogBase(self.needed_position, self.needed_term, membership)

    @property
    def alone(self) -> "CertificationState":
        """The same for a new member whose log begins after ``position``, and feeds no older one."""
        return replace(
            self,
            needed_position=self.position,
            needed_term=self.term,
            needed_membership=self.membership,
        )

    def pack(self) -> bytes:
        """Return the file's content."""
        fields = asdict(self)
        del fields["state"]
        text = json.dumps(fields).encode()
        return _HEAD.pack(_MAGIC, len(text), zlib.crc32(text)) + text + self.state

    def write(self, directory: Path, name: str = FILE) -> None:
        """Replace the file; either is whole after a crash.

        Raises:
            OSError: it can't be written.
        """
        durable.replace(directory, name, self.pack())


def unpack(data: bytes) -> CertificationState:
    """Read what ``pack`` returned; the state itself is checked when it is restored.

    Raises:
        CheckpointError: damaged or cut off.
        CheckpointVersionError: of another version.
    """
    if len(data) < _HEAD.size:
        raise CheckpointError("cut off")
    magic, size, checksum = _HEAD.unpack_from(data)
    text = data[_HEAD.size : _HEAD.size + size]
    if magic != _MAGIC or len(text) != size or zlib.crc32(text) != checksum:
        raise CheckpointError("not a checkpoint that this member reads")
    try:
        return CertificationState(**json.loads(text), state=data[_HEAD.size + size :])
    except (TypeError, ValueError) as error:  # its checksum is right: another version wrote it
        raise CheckpointVersionError(
            f"not a checkpoint that this version reads: {error}"
        ) from error


def read(directory: Path, name: str = FILE) -> CertificationState | None:
    """The checkpoint in a directory, None if there is none that this version can use."""
    try:
        return unpack((directory / name).read_bytes())
    except (FileNotFoundError, CheckpointError):
        return None


def state_in(
    directory: Path, fresh: ReplicatedState, *, chain_end: int, log_base: int
) -> ReplicatedState:
    """Do as ``state_for`` does with the checkpoint in a directory.

    Raises:
        LeftBehindError: what is needed is neither in the log nor in the checkpoint.
        UnreadableError: it may be, but another version of pgherd wrote the checkpoint. A copy
            would not help: where all members go back to an older version, none can be copied.
    """
    try:
        try:
            checkpoint = unpack((directory / FILE).read_bytes())
        except CheckpointVersionError:
            raise
        except (FileNotFoundError, CheckpointError):
            checkpoint = None
        return state_for(checkpoint, fresh, chain_end=chain_end, log_base=log_base)
    except CheckpointVersionError as error:
        if log_base == 0:
            return fresh
        raise UnreadableError(
            f"{directory / FILE} is of another version of pgherd ({error}): "
            "start this member with the version that wrote it"
        ) from error


def state_for(
    checkpoint: CertificationState | None, fresh: ReplicatedState, *, chain_end: int, log_base: int
) -> ReplicatedState:
    """Return the state from which this node delivers its log.

    Args:
        checkpoint: the newest one, if there is one.
        fresh: the state before the first entry.
        chain_end: everything up to this GID is in the database.
        log_base: this member's log holds what comes after this position.

    Raises:
        LeftBehindError: what is needed is neither in the log nor in the checkpoint.
        CheckpointVersionError: it may be in the checkpoint, which is of another version.
    """
    if checkpoint is not None and _fits(checkpoint, chain_end, log_base):
        try:
            return ReplicatedState.restore(checkpoint.state)
        except CheckpointVersionError:
            raise
        except CheckpointError:
            pass
    if log_base > 0:
        raise LeftBehindError(
            f"the database ends at GID {chain_end}, the log begins at {log_base + 1}, and "
            + (
                "there is no checkpoint"
                if checkpoint is None
                else f"the checkpoint is of {checkpoint.position} with a commit at "
                f"{checkpoint.last_commit}"
            )
        )
    return fresh


def _fits(checkpoint: CertificationState, chain_end: int, log_base: int) -> bool:
    return checkpoint.last_commit <= chain_end and checkpoint.position >= log_base
