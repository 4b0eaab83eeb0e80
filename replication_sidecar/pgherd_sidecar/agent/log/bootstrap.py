"""Splits stopped members off as a cluster of their own: an administrator's explicit act (C21).

For when no quorum can return (one member, ``force``), or when a component that has none is to go on
for good without the others (several, ``promote``). All that the most advanced of their logs holds
counts as committed from then on, and they are the only members of a new view under a new cluster
identity. They lose what the others have committed beyond it; those are another cluster, and the two
never merge again, since members of different clusters refuse each other.

The identity changes first, of all of them: a member that dies in between is of the new cluster and
has no quorum, and the same act ends it. Never the other way round, or it would be a second primary
component of the old cluster.

Called by the command line, which then changes the configuration and the certificates: the sidecar
does not start with those of the old cluster. How running members do the same is in ``splitter``.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from uuid import UUID, uuid4

from pgherd_sidecar.agent.base.config import NodeConfig
from pgherd_sidecar.agent.log.setup import open_log
from pgherd_sidecar.agent.membership import roster
from pgherd_sidecar.agent.membership.identity import IdentityError, StoredIdentity
from pgherd_sidecar.core.consensus import Control, Member, Membership, Persist
from pgherd_sidecar.core.consensus.model.split import Founding
from pgherd_sidecar.core.consensus.split import laststep
from pgherd_sidecar.env.storage.segments import SegmentLog, StorageDamaged, StorageError

_READ_BYTES = 1 << 20


class BootstrapError(Exception):
    """This member can't become a cluster of its own; the message is one line."""


@dataclass(frozen=True, slots=True)
class Split:
    """The member as it is after the step.

    Attributes:
        cluster_id: of the new cluster, to be put into its configuration.
        last_gid: the end of the old cluster's log here; all of it counts as committed now.
        left: members that the new cluster does not have.
        term: the highest that the member has seen;
        last_term: of the end of its log. Of two logs the one that is greater by ``end`` holds all
            that the old cluster has committed by either.
        membership: by its log.
    """

    cluster_id: UUID
    last_gid: int
    left: tuple[str, ...]
    term: int = 0
    last_term: int = 0
    membership: Membership = field(default_factory=Membership)

    @property
    def end(self) -> tuple[int, int]:
        """How advanced its log is."""
        return self.last_term, self.last_gid


def preview(config: NodeConfig) -> Split:
    """Say what ``force`` would do, under an identity that is not given yet.

    Raises:
        BootstrapError: as ``force``.
    """
    _require_database(config)
    return inspect(config)


def inspect(config: NodeConfig) -> Split:
    """Say what a stopped member has, database or not.

    Raises:
        BootstrapError: as ``force``.
    """
    return _split(config, act=False)


def force(config: NodeConfig) -> Split:
    """Make a stopped member the only one of a new cluster.

    Args:
        config: the member's, of the old cluster.

    Raises:
        BootstrapError: it has no log to go on from, or is a witness; its sidecar runs, or the
            directory is another member's; its log is damaged or can't be written.
        OSError: its identity can't be written.
    """
    _require_database(config)
    return _split(config, act=True)


def _require_database(config: NodeConfig) -> None:
    if config.witness:
        raise BootstrapError(f"{config.name} is a witness: it has no database to go on with")


def require_minority(configs: Sequence[NodeConfig], cluster_id: UUID) -> None:
    """Check that stopped members can be promoted, before anything of theirs is changed.

    A majority needs no promotion. And those that know the old view only must not elect one of them
    by it before they meet the seed, whose log has the new one: that would be truncated.

    Args:
        configs: theirs, of the old cluster.
        cluster_id: of the new one; if one of them is of it already, this has been checked.

    Raises:
        BootstrapError: as ``force``, a witness is fine; or they are enough to go on as they are.
    """
    logs = {config.name: inspect(config) for config in configs}
    if any(log.cluster_id == cluster_id for log in logs.values()):
        return
    seed = _most_advanced(logs)
    for name, log in logs.items():
        voters = {other for other in logs if logs[other].end <= log.end}
        alone = name != seed and log.membership.has_quorum(voters - {seed})
        if alone or log.membership.has_majority(voters):
            raise BootstrapError(
                f"{', '.join(sorted(voters))} are enough to go on in the cluster as it is: "
                "start them, or name fewer"
            )


def promote(configs: Sequence[NodeConfig], cluster_id: UUID) -> tuple[str, Split]:
    """Make stopped members, whose directories are all here, a new cluster; may be repeated.

    Args:
        configs: theirs, of the old cluster; see `require_minority`.
        cluster_id: of the new one, the same if it is repeated.

    Returns:
        Whose log is the most advanced, and what it holds: the others are fed by it.

    Raises:
        BootstrapError: as ``rename`` and ``found``.
        OSError: an identity can't be written.
    """
    logs = {config.name: inspect(config) for config in configs}
    seed = _most_advanced(logs)
    term = max(log.term for log in logs.values()) + 1
    members = tuple(rename(config, cluster_id) for config in configs)
    for config in sorted(configs, key=lambda config: config.name != seed):
        found(config, cluster_id, Founding(seed, term, members))
    return seed, logs[seed]


def _most_advanced(logs: Mapping[str, Split]) -> str:
    return max(logs, key=lambda name: logs[name].end)


def rename(config: NodeConfig, cluster_id: UUID) -> Member:
    """Make a stopped member one of another cluster, in which it has no quorum yet; may be repeated.

    Args:
        config: the member's, of the old cluster.
        cluster_id: of the new one.

    Returns:
        What it is as a member.

    Raises:
        BootstrapError: as ``force``; or it was split off for another cluster before.
        OSError: its identity can't be written.
    """
    with _opened(config) as (identity, log):
        if identity.cluster_id == str(config.cluster_id):
            identity.split(str(cluster_id), log.index.last)
        if identity.cluster_id != str(cluster_id):
            raise BootstrapError(f"{config.name} is of cluster {identity.cluster_id} already")
        return roster.myself(config, identity.disk_id)


def found(config: NodeConfig, cluster_id: UUID, founding: Founding) -> None:
    """Have a renamed member take part in its new cluster; may be repeated. The seed goes first.

    Raises:
        BootstrapError: as ``force``; or these can't be a view.
    """
    with _opened(config) as (identity, log):
        if identity.cluster_id != str(cluster_id):
            raise BootstrapError(f"{config.name} is of cluster {identity.cluster_id} still")
        take_part(log, config.name, founding)


def take_part(log: SegmentLog, name: str, founding: Founding) -> None:
    """Have a member's log be one of the new cluster's; may be repeated before it is used as such.

    Nobody but the seed can be elected in the term of the new view: all have given their vote.

    Raises:
        BootstrapError: these can't be a view.
        StorageError: it can't be written.
    """
    try:
        for step in laststep.take_part(name, founding, log.control, log.index):
            log.persist(step)
    except ValueError as error:
        names = ", ".join(sorted(one.name for one in founding.members))
        raise BootstrapError(f"{names}: {error}") from error


def _split(config: NodeConfig, *, act: bool) -> Split:
    with _opened(config) as (identity, log):
        require_whole(config, log)
        index, control = log.index, log.control
        fresh = identity.cluster_id == str(config.cluster_id)
        new_id = uuid4() if fresh else UUID(identity.cluster_id)
        left = tuple(name for name in index.membership.names if name != config.name)
        if act:
            if fresh:
                identity.split(str(new_id), index.last)
            _stand_alone(config, identity.disk_id, log)
        return Split(new_id, index.last, left, control.term, index.last_term, index.membership)


@contextmanager
def _opened(config: NodeConfig) -> Iterator[tuple[StoredIdentity, SegmentLog]]:
    """Open identity and log of a stopped member.

    Raises:
        BootstrapError: it has nothing to go on from, or something keeps it.
    """
    if not (config.data_dir / "identity.json").exists():
        raise BootstrapError(f"{config.data_dir} is no directory of a member")
    try:
        identity = StoredIdentity(config, splitting=True)
    except IdentityError as error:
        raise BootstrapError(str(error)) from error
    try:
        if identity.has_split(config):  # or it would be a second primary component of that cluster
            raise BootstrapError(
                f"{config.name} has split off from cluster {config.cluster_id} and is of "
                f"{identity.cluster_id}: start it, and use `pgherd split` there"
            )
        with opened_log(config) as log:
            yield identity, log
    finally:
        identity.close()


@contextmanager
def opened_log(config: NodeConfig) -> Iterator[SegmentLog]:
    """Open the log of a stopped member, whose identity the caller holds.

    Raises:
        BootstrapError: it has nothing to go on from, or the log can't be used.
    """
    try:
        log = open_log(config)
        try:
            if log.control.incomplete:
                raise BootstrapError(f"{config.name} has lost the end of its log by damage")
            if not log.index.membership.views:
                raise BootstrapError(f"{config.name} has not joined: it has no log")
            yield log
        finally:
            log.close()
    except StorageError as error:
        raise BootstrapError(str(error)) from error


def require_whole(config: NodeConfig, log: SegmentLog) -> None:
    """Read all of a log: what is damaged there could be had from the old cluster only.

    Raises:
        BootstrapError: a block is damaged.
    """
    position = log.index.base
    try:
        while blocks := log.read(position + 1, _READ_BYTES):
            position = blocks[-1].last
    except StorageDamaged as error:
        raise BootstrapError(
            f"the log of {config.name} is damaged at {error.position}: take another member, "
            "or start this one together with one that can give it the block"
        ) from error


def _stand_alone(config: NodeConfig, disk: str, log: SegmentLog) -> None:
    """Append the view that consists of this member, in a term of its own, and commit it."""
    membership = log.index.membership
    if membership.names == (config.name,) and not membership.joint:
        return  # done by an earlier attempt
    term, committed = log.control.term + 1, log.control.commit_position
    log.persist(Persist(1, Control(term, config.name, committed), None, ()))
    log.persist(laststep.new_view(term, (roster.myself(config, disk),), log.index))
    # The commit position only after the block: a log may not end before it.
    log.persist(Persist(3, Control(term, config.name, log.index.last), None, ()))
