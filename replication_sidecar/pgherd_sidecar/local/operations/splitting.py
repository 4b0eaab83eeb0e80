"""``pgherd split --stopped``: one stopped node of a herd goes on as a cluster of its own.

For when no quorum can ever return. What the node's log holds is all that the new cluster knows; it
has a new identity, so the two never merge again. The other nodes' directories are put aside, not
removed: they are of the old cluster, and hold what the new one may have lost.
"""

from pathlib import Path

from pgherd_sidecar.agent.log import bootstrap
from pgherd_sidecar.agent.log.bootstrap import BootstrapError, Split
from pgherd_sidecar.client.errors import HerdError, progress
from pgherd_sidecar.local import certificates, herd
from pgherd_sidecar.local.herd import Herd, HerdNode
from pgherd_sidecar.local.lock import locked
from pgherd_sidecar.local.sidecar import Sidecar


async def split_off(directory: Path, name: str, *, yes: bool) -> None:
    """Tell what will be lost and, if that is agreed to, do it.

    Raises:
        HerdError: a sidecar runs, the node has nothing to go on from, or nobody has said yes.
    """
    async with locked(directory):
        description = herd.load(directory)
        member = description.member(name)
        _require_stopped(description)
        if member.reader:
            description, member = description.promoted(member)
        split = _preview(description, member)
        progress(
            f"{name} becomes a cluster of its own, for good. It keeps all up to GID "
            f"{split.last_gid}, and loses what is beyond on {', '.join(split.left) or 'nobody'}"
        )
        for other in description.databases:
            _compare(description, other, split)
        if not yes:
            raise HerdError("nothing has been done: repeat it with --yes if this is to be")
        done = bootstrap.force(Sidecar(description, member).config())
        fresh = description.model_copy(
            update={"cluster_id": done.cluster_id, "members": (member,), "founded": True}
        )
        for other in description.members:
            _put_aside(description, other, keep=member)
        herd.save(fresh)
        certificates.provide(fresh)


def _require_stopped(description: Herd) -> None:
    running = [
        member.name
        for member in description.members
        if Sidecar(description, member).process() is not None
    ]
    if running:
        raise HerdError(
            f"{', '.join(running)} run: stop the herd with `pgherd local down`, "
            "and make sure that no member runs elsewhere"
        )


def _preview(description: Herd, member: HerdNode) -> Split:
    try:
        return bootstrap.preview(Sidecar(description, member).config())
    except BootstrapError as error:
        raise HerdError(f"{member.name} can't go on alone: {error}") from error


def _compare(description: Herd, other: HerdNode, split: Split) -> None:
    """Tell of a node that would lose less."""
    try:
        ends = _preview(description, other).last_gid
    except HerdError as error:
        progress(error.message)
        return
    if ends > split.last_gid:
        progress(f"{other.name} would keep more: its log ends at GID {ends}")


def _put_aside(description: Herd, other: HerdNode, keep: HerdNode) -> None:
    root = description.node(other).root
    if other != keep and root.exists():
        aside = root.with_name(f"{other.name}.of-{description.cluster_id.hex[:8]}")
        root.rename(aside)
        progress(f"{other.name}: its files are in {aside}")
