"""The membership for people and operators: what it is, and requests to change it, judged.

The log decides; what is refused here is what it would never do, so that whoever asks hears why.
Requests are idempotent, and done when ``GET /status`` says so: the proposer may change meanwhile,
so whoever wants to be sure asks again.

Called through the admin API. Keeps nothing.
"""

from collections.abc import Callable
from typing import Any

from pgherd_sidecar.agent.admin.port import Refused, Unavailable
from pgherd_sidecar.agent.base.config import NodeConfig
from pgherd_sidecar.agent.log.host import LogHost
from pgherd_sidecar.agent.membership import roster
from pgherd_sidecar.core.consensus import Member, View
from pgherd_sidecar.core.replication.databases import Databases
from pgherd_sidecar.core.replication.entries import Condition

PATIENCE_S = 10.0
"""After so long without a primary component the reason says what is missing."""


class Views:
    """The membership of the herd as one member sees it.

    Args:
        config: this member's.
        host: its log.
        databases: returns what is known of the members' databases.
    """

    def __init__(
        self,
        config: NodeConfig,
        host: LogHost,
        databases: Callable[[], Databases | None] = lambda: None,
    ) -> None:
        self._config = config
        self._host = host
        self._databases = databases

    def status(self) -> dict[str, Any]:
        """Return ``view``, ``quorum``, ``peers``, and whether this member has ``departed``."""
        membership, peers = self._host.membership, self._host.peers
        view = membership.view
        if view is None:
            return {"view": None, "quorum": None, "peers": {}, "departed": False}
        heard = peers.members_heard()
        return {
            "view": {
                "id": membership.position,  # of one position there is one membership
                "generation": view.generation,
                "joint": membership.joint,
                "members": [_as_json(one, view) for one in membership.members],
            },
            "quorum": {
                "heard": sum(voter in heard for voter in view.voters),
                "needed": len(view.voters) // 2 + 1,
                "voters": len(view.voters),
            },
            "peers": peers.sight(),
            "departed": peers.has_left,
        }

    def leave(self, name: str, disk: str, *, dead: bool = False) -> None:
        """Have a member leave, or be evicted: to the log that is the same.

        Args:
            name: of the member.
            disk: only if it is on this one; empty for whatever disk it is on.
            dead: what only its database holds is lost already.

        Raises:
            Refused: the herd would lose its last database, or the last that is whole.
            Unavailable: there is no primary component here, or none would be left.
        """
        self._require_primary()
        known = self._find(name, disk)
        if known is not None:
            self._require_spare(name)
            if not dead:
                self._require_whole(known)
            self._host.change_membership(leave=((name, disk or known.disk),))

    def split(self, names: list[str], *, act: bool) -> dict[str, Any]:
        """Have members without a quorum become a cluster of their own, or say what that means.

        Args:
            names: of the members, this one among them.
            act: do it: returns when it is asked for, and ``status`` tells when it is done.

        Raises:
            Refused: these can't split off.
            Unavailable: not all of them are linked with this one.
        """
        plan = self._host.splitter.make_plan(names)
        if act:
            self._host.splitter.order_split(plan)
        others = sorted(set(self._host.membership.names) - set(plan.names))
        return {
            "cluster_id": plan.successor,
            "split_from": plan.cluster,
            "members": list(plan.names),
            "left": others,
            "gid": self._host.extent.last,
        }

    def block(self, names: list[str], unsent: list[str] | None = None) -> None:
        """Have no links with these members until told otherwise, and send nothing to those."""
        self._host.peers.block(names, unsent or ())

    def _find(self, name: str, disk: str) -> Member | None:
        members = self._host.membership.members
        known = next((member for member in members if member.name == name), None)
        return known if known is not None and known.has_disk(disk) else None

    def _require_primary(self) -> None:
        if not self._host.primary:
            raise Unavailable(f"{self._config.name}: {no_majority(self._host)}")

    def _require_whole(self, leaving: Member) -> None:
        known, number = self._databases(), roster.contact(leaving).number
        if known is None or (one := known.of(number)) is None or known.whole_beside(number):
            return
        if one.condition is Condition.WHOLE or one.stopped:
            raise Refused(
                f"only {leaving.name} holds what was committed last: rebuild others first"
            )

    def _require_spare(self, name: str) -> None:
        view = self._host.membership.view
        if view is None or name not in view.voters:
            return
        left = [member for member in view.members if member.name != name]
        databases = [member for member in left if not member.witness]
        if not databases:
            raise Refused(f"{name} is the last member with a database")
        while 2 * sum(member.witness for member in left) >= len(left):  # they become learners
            left.remove(next(member for member in left if member.witness))
        heard = self._host.peers.members_heard()
        silent = [member.name for member in left if member.name not in heard]
        if 2 * len(silent) >= len(left):
            raise Unavailable(
                f"without {name} there would be no majority: of {len(left)} members "
                f"{', '.join(silent)} are not heard of"
            )


def _as_json(member: Member, view: View) -> dict[str, Any]:
    return {
        "name": member.name,
        "number": roster.contact(member).number,
        "disk_id": member.disk,
        "voter": member.name in view.voters,
        "witness": member.witness,
        "reader": member.reader,
        "since": member.since,
    }


def no_majority(host: LogHost) -> str:
    """Say why nothing can be ordered by way of this member, and what is missing if it lasts."""
    if host.extent.joins and host.witness:
        return host.peers.refusal or "it has yet to hear of the members"
    if host.extent.joins:
        return "it has yet to copy the database of a member"
    if host.splitter.sealed:
        return host.splitter.reason
    if host.peers.has_left:
        return host.peers.retired or "it has left the herd"
    if host.abstains:
        missing = ", ".join(sorted(host.peers.founders_missing))
        return f"the herd begins when all founders have met, and {missing} is not linked" + (
            f"; {host.peers.refusal}" if host.peers.refusal else ""
        )
    return "it has no majority" if host.secondary_s < PATIENCE_S else _what_is_missing(host)


def _what_is_missing(host: LogHost) -> str:
    refusal, view = host.peers.refusal, host.membership.view
    assert view is not None
    heard = host.peers.members_heard()
    missing = [name for name in host.membership.names if name not in heard]
    text = (
        f"it has no majority: {', '.join(missing) or 'nobody'} of view {view.generation} not heard "
        f"of, {len(view.voters) // 2 + 1} of {len(view.voters)} votes needed"
    )
    if refusal or not missing:
        return f"{text}; {refusal}".removesuffix("; ")
    return (
        f"{text}; if they never return, `pgherd split` (on Kubernetes `kubectl pgherd split`) goes "
        "on from here as another cluster, and loses what they have committed after GID "
        f"{host.commit_position}"
    )
