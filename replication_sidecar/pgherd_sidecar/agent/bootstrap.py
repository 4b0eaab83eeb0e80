"""Splits one stopped member off as a cluster of its own: an administrator's explicit act (C21).

For when no quorum can return. The member keeps its database and its whole log, all of which counts
as committed from then on, and is the only member of a new view under a new cluster identity. What
the others have committed beyond its log is lost to it; they are another cluster, and the two never
merge again, since members of different clusters refuse each other.

The identity changes first: a member that dies in between is of the new cluster and has no quorum,
and the same act ends it. Never the other way round, or it would be a second primary component of
the old cluster.

Called by the command line, which then changes the configuration and the certificates: the sidecar
does not start with those of the old cluster.
"""

from dataclasses import dataclass
from uuid import UUID, uuid4

from pgherd_sidecar.agent import roster
from pgherd_sidecar.agent.config import NodeConfig
from pgherd_sidecar.agent.identity import Identity, IdentityError
from pgherd_sidecar.agent.logsetup import open_log
from pgherd_sidecar.core.log import (
    MEMBERSHIP,
    Block,
    Control,
    LogIndex,
    Membership,
    Persist,
    View,
)
from pgherd_sidecar.env.segments import SegmentLog, StorageError


class BootstrapError(Exception):
    """This member can't become a cluster of its own; the message is one line."""


@dataclass(frozen=True, slots=True)
class Split:
    """What has become of the member.

    Attributes:
        cluster_id: of the new cluster, to be put into its configuration.
        committed_gid: the others may have committed more than this; to the new cluster it is lost.
        last_gid: the end of the old cluster's log here; all of it counts as committed now.
        left: members that the new cluster does not have.
    """

    cluster_id: UUID
    committed_gid: int
    last_gid: int
    left: tuple[str, ...]


def preview(config: NodeConfig) -> Split:
    """Say what ``force`` would do, under an identity that is not given yet.

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
    return _split(config, act=True)


def _split(config: NodeConfig, *, act: bool) -> Split:
    try:
        return _split_off(config, act=act)
    except (IdentityError, StorageError) as error:
        raise BootstrapError(str(error)) from error


def _split_off(config: NodeConfig, *, act: bool) -> Split:
    if config.witness:
        raise BootstrapError(f"{config.name} is a witness: it has no database to go on with")
    if not (config.data_dir / "identity.json").exists():
        raise BootstrapError(f"{config.data_dir} is no directory of a member")
    identity = Identity(config, splitting=True)
    try:
        log = open_log(config)
        try:
            index, control = log.index, log.control
            if control.incomplete:
                raise BootstrapError(f"{config.name} has lost the end of its log by damage")
            if not index.membership.views:
                raise BootstrapError(f"{config.name} has not joined: it has no log to go on from")
            fresh = identity.cluster_id == str(config.cluster_id)
            new_id = uuid4() if fresh else UUID(identity.cluster_id)
            left = tuple(name for name in index.membership.names if name != config.name)
            if act:
                if fresh:
                    identity.split(str(new_id))
                _stand_alone(config, identity.disk_id, log, index)
            return Split(new_id, control.commit_position, index.last, left)
        finally:
            log.close()
    finally:
        identity.close()


def _stand_alone(config: NodeConfig, disk: str, log: SegmentLog, index: LogIndex) -> None:
    """Append the view that consists of this member, in a term of its own, and commit it."""
    if index.membership.names == (config.name,) and not index.membership.joint:
        return  # done by an earlier attempt
    position, term = index.last + 1, log.control.term + 1
    former = index.membership.views[-1]
    known = next((member for member in former.members if member.name == config.name), None)
    since = known.since if known is not None else position
    me = roster.myself(config, disk, since)
    membership = Membership((View(former.generation + 1, (me,)),), (), position)
    block = Block.make(term, position, 1, membership.encode(), MEMBERSHIP)
    # The commit position only after the block: a log may not end before it.
    log.persist(Persist(1, Control(term, config.name, log.control.commit_position), None, (block,)))
    log.persist(Persist(2, Control(term, config.name, position), None, ()))
