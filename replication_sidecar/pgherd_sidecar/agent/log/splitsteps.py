"""The steps of a split for good that a member does between two lives of its log [S3, S4, C21].

``Splitter`` decides about them while the log runs; then the log is closed, they are done here, and
it begins again. A consent is on disk before anybody hears of it, in ``data_dir``::

    parting.json   a line of ``core.consensus.model.split``, then: is the last step done?

so a member that dies at any point goes on from there when it starts. A member without that file,
or with one about a cluster that it is no longer of, is a member like any other.

The file survives a restart.
"""

from dataclasses import dataclass
from pathlib import Path

import structlog

from pgherd_sidecar.agent.base.config import NodeConfig
from pgherd_sidecar.agent.log import bootstrap
from pgherd_sidecar.agent.membership import roster
from pgherd_sidecar.agent.membership.identity import IdentityError, StoredIdentity
from pgherd_sidecar.core.consensus import RemoteProtocolError, SplitMessage
from pgherd_sidecar.core.consensus.model.split import SplitPlan
from pgherd_sidecar.core.consensus.split import laststep
from pgherd_sidecar.env.storage import durable

_log = structlog.get_logger()

_FILE = "parting.json"
"""The name is that of herds that run."""
_DONE = b"done"


@dataclass(frozen=True, slots=True)
class StoredSplit:
    """The knowledge about a split that a member has on disk.

    Attributes:
        known: what it has consented to, and the consents that it knows; None if to nothing.
        done: it is a member of the new cluster, and its log has begun there.
    """

    known: SplitMessage | None = None
    done: bool = False

    def save(self, directory: Path) -> None:
        """Remember this in place of what was before.

        Raises:
            OSError: it can't be stored.
        """
        assert self.known is not None
        lines = [self.known.encode(), *([_DONE] if self.done else []), b""]
        durable.replace(directory, _FILE, b"\n".join(lines))


def load_split(directory: Path) -> StoredSplit:
    """Return what a member has on disk.

    Raises:
        IdentityError: it can't be read: what the member has consented to is not known.
    """
    path = directory / _FILE
    try:
        known, *rest = path.read_bytes().splitlines()
        return StoredSplit(SplitMessage.decode(known), done=rest == [_DONE])
    except FileNotFoundError:
        return StoredSplit()
    except (OSError, ValueError, RemoteProtocolError) as error:
        raise IdentityError(f"{path} is damaged: {error}") from error


def resume(config: NodeConfig, identity: StoredIdentity) -> NodeConfig:
    """Do what is left to do, and return the configuration as it counts from now on.

    Args:
        config: as it was read.
        identity: of this member, whose log is closed.

    Raises:
        IdentityError: what is on disk can't be gone on with.
        OSError: it can't be written.
    """
    stored = load_split(config.data_dir)
    known, cluster = stored.known, identity.cluster_id
    if known is not None and laststep.remains(config.name, cluster, known, done=stored.done):
        try:
            with bootstrap.opened_log(config) as log:
                for step in laststep.last_step(config.name, cluster, known, log.control, log.index):
                    if isinstance(step, laststep.Become):
                        identity.split(
                            step.cluster, log.index.last, configured=str(config.cluster_id)
                        )
                    else:
                        log.persist(step)
        except (bootstrap.BootstrapError, ValueError) as error:
            raise IdentityError(
                f"it can't go on in cluster {identity.cluster_id}: {error}"
            ) from error
        StoredSplit(known, done=True).save(config.data_dir)
        _log.warning(
            "split.completed",
            cluster_id=identity.cluster_id,
            split_from=known.plan.cluster,
            members=known.plan.names,
        )
    return identity.applied_to(config)


def consent(config: NodeConfig, disk: str, plan: SplitPlan) -> None:
    """End this member's part in its cluster for good, in favour of a plan.

    Nothing is done if the log has come to name other voters since, so that the parties are enough
    to go on as they are: the old cluster would be left without a quorum [S1].

    Args:
        config: as it counts.
        disk: identity of the disk that the log is on, which is closed.
        plan: names this member.

    Raises:
        BootstrapError: its log has not all that it should have; it goes on as before.
        OSError: it can't be written.
    """
    before = load_split(config.data_dir)
    with bootstrap.opened_log(config) as log:
        bootstrap.require_whole(config, log)
        mine = roster.myself(config, disk)
        known = laststep.consent(before.known, plan, mine, log.control, log.index)
        end = log.index.last
    if known is None:
        _log.warning("split.unneeded", members=plan.names)
        return
    StoredSplit(known).save(config.data_dir)
    _log.warning("split.consented", plan=plan.successor, members=plan.names, position=end)
