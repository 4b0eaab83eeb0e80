"""The guards against founding a herd a second time: who may found it, and who must not (C18).

A founder's log begins with the members that its configuration names, on disks that nobody knows
yet. One whose disk has come back empty would do the same again, beside those that hold its data.

* A founder whose log has promised nothing takes no part in elections before it is linked to all of
  the founders, or was fed by a proposer that was elected without it. A founder that still has its
  disk refuses one that has lost its own: so emptied founders found again only if all of them are
  emptied.
* A member tells each other one on which disk it knows it (``Hello.yours``). A founder that hears of
  another disk than its own, and whose log is empty or names nobody else, retires for good: it
  writes that down. One whose log names others believes no stranger.

Neither helps a founder that meets nobody: the only one of a herd that has grown, say.

Functions of configuration, log and hellos, called by ``LogHost`` and ``Peers``. Keeps nothing.
"""

from pgherd_sidecar.agent.base.config import NodeConfig
from pgherd_sidecar.core.consensus import Membership
from pgherd_sidecar.env.network.frames import NO_MEMBER, Hello
from pgherd_sidecar.env.storage.segments import SegmentLog


def pristine(log: SegmentLog) -> bool:
    """Tell whether a log has promised nothing to anybody."""
    return log.index.last == 0 and log.control.term == 0 and not log.control.incomplete


def others(config: NodeConfig) -> frozenset[str]:
    """Return with whom this member founds a herd; empty if it doesn't."""
    names = (one.name for one in config.members if config.founder)
    return frozenset(names) - {config.name}


def known_disk(name: str, membership: Membership) -> str:
    """Return what to tell the member of a name about the disk it is known to be on."""
    if not membership.views:
        return ""
    return next((one.disk for one in membership.members if one.name == name), NO_MEMBER)


def founded_before(
    config: NodeConfig, disk: str, membership: Membership, hello: Hello, *, empty: bool
) -> str:
    """Say why this founder has to retire; empty if nothing is against it.

    Args:
        config: this member's.
        disk: this member's.
        membership: the newest in its log.
        hello: what a member of the same cluster says.
        empty: so is this member's log.
    """
    believes = config.founder and (empty or len(membership.members) == 1)
    if not believes or hello.yours in ("", disk):
        return ""
    if hello.yours == NO_MEMBER and not empty:
        return ""  # who has been removed, and still takes itself for a member, says so, too
    known = "no member" if hello.yours == NO_MEMBER else f"a member on disk {hello.yours}"
    return (
        f"{hello.name} knows {config.name} as {known}, and this is disk {disk}, which was empty: "
        "it takes no part any more; a new member can take its place"
    )
