"""``pgherd split --into``: a component without a quorum goes on for good as its own cluster.

The nodes that are named, running or not, stop, and become the only members of a new cluster: with
a new identity, all that the most advanced of their logs holds, and a herd's directory of their own.
The others are not asked. What they have committed beyond that log is lost to the new cluster, and
the two never merge again, since members of different clusters refuse each other (C21).

What is to be done is written down before it is begun, so the same command ends what died half-way.
"""

import shutil
from collections.abc import Collection
from pathlib import Path
from uuid import uuid4

from pydantic import ValidationError

from pgherd_sidecar.agent.base.config import NodeConfig
from pgherd_sidecar.agent.log import bootstrap
from pgherd_sidecar.agent.log.bootstrap import BootstrapError
from pgherd_sidecar.client.cluster import PRIMARY
from pgherd_sidecar.client.errors import HerdError, progress
from pgherd_sidecar.local import certificates, herd
from pgherd_sidecar.local.directory import require_empty
from pgherd_sidecar.local.herd import Herd, HerdNode
from pgherd_sidecar.local.lock import locked
from pgherd_sidecar.local.node import Node, states_of
from pgherd_sidecar.local.sidecar import Sidecar

_PLAN = "promotion.json"
"""The new herd, in the old one's directory until all of it is done."""


async def promote(directory: Path, into: Path, names: Collection[str], *, yes: bool) -> Herd:
    """Tell what will be lost and, if that is agreed to, do it; the new herd is not started.

    Args:
        directory: of the old herd.
        into: an empty directory on the same file system, for the new one.
        names: of the nodes.
        yes: it is agreed to.

    Returns:
        The new herd.

    Raises:
        HerdError: they can't be promoted, or nobody has said yes.
    """
    async with locked(directory):
        description = herd.load(directory)
        done = _done(description)
        if done is not None:
            (directory / _PLAN).unlink()
            if done.directory == into and {one.name for one in done.members} == set(names):
                return done
        members = tuple(description.member(name) for name in sorted(set(names)))
        _require_apart(description, members)
        fresh = _planned(description, into, members)
        await _require_secondary(description, members)
        if not yes:
            raise HerdError("nothing has been done: repeat it with --yes if this is to be")
        for member in members:
            await Node(description, member).stop()
        _require_able(description, fresh)
        _write_plan(description, fresh)
        _found(description, fresh)
        _move(description, fresh)
        herd.save(fresh)
        certificates.provide(fresh)
        for member in members:
            description = description.without(member)
        herd.save(description)
        (directory / _PLAN).unlink()
        return fresh


def _require_apart(description: Herd, members: tuple[HerdNode, ...]) -> None:
    left = [one.name for one in description.members if one not in members]
    witnesses = sum(member.witness for member in members)
    readers = [member.name for member in members if member.reader]
    if readers:
        raise HerdError(f"{', '.join(readers)} have no vote to go on with: name other nodes")
    if not left:
        raise HerdError("these are all nodes of the herd: start it with `pgherd local up`")
    if 2 * witnesses >= len(members):
        raise HerdError("more than half of them must have a database: name other nodes")


async def _require_secondary(description: Herd, members: tuple[HerdNode, ...]) -> None:
    """Check that none of them has a majority, and tell what is at stake."""
    states = await states_of(Node(description, member) for member in members)
    names = ", ".join(member.name for member in members)
    for state in states:
        if state.answer is not None and state.answer.component == PRIMARY:
            raise HerdError(
                f"{state.member.name} is in the primary component: only nodes that have lost "
                "theirs can be promoted; see `pgherd local remove`"
            )
    known = max((state.log_position or 0 for state in states), default=0)
    left = ", ".join(one.name for one in description.members if one not in members)
    progress(
        f"{names} become a cluster of their own, for good. They keep what the most advanced of "
        f"their logs holds, GID {known} at least, and lose what {left} have committed beyond it"
    )


def _begun(description: Herd) -> Herd | None:
    """Return what an earlier attempt has written down, None if there was none."""
    path = description.directory / _PLAN
    if not path.exists():
        return None
    try:
        return Herd.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise HerdError(f"{path} is damaged: {error.errors()[0]['msg']}") from error


def _done(description: Herd) -> Herd | None:
    """Return what an earlier attempt has done but for removing its plan."""
    plan = _begun(description)
    if plan is None or any(member in description.members for member in plan.members):
        return None
    return plan


def _planned(description: Herd, into: Path, members: tuple[HerdNode, ...]) -> Herd:
    """Return the new herd, the same one as an earlier attempt has written down."""
    plan = _begun(description)
    if plan is not None:
        if (plan.members, plan.directory) != (members, into):
            names = " ".join(member.name for member in plan.members)
            raise HerdError(
                "another promotion was begun: end it with "
                f"`pgherd split {names} --into {plan.directory} --yes` first"
            )
        return plan
    into.mkdir(mode=0o700, parents=True, exist_ok=True)
    require_empty(into)
    if into.stat().st_dev != description.directory.stat().st_dev:
        raise HerdError(f"{into} is on another file system: choose another --into")
    return description.separate(uuid4(), into, members)


def _write_plan(description: Herd, fresh: Herd) -> None:
    plan = description.directory / _PLAN
    if not plan.exists():
        herd.write(plan, fresh)


def _moved(fresh: Herd) -> bool:
    """Say whether an earlier attempt has made them a cluster, and begun to move them."""
    return any(fresh.node(member).root.exists() for member in fresh.members)


def _configs(description: Herd, fresh: Herd) -> list[NodeConfig]:
    return [Sidecar(description, member).config() for member in fresh.members]


def _require_able(description: Herd, fresh: Herd) -> None:
    """Check that the stopped members can be promoted, before that is begun.

    Raises:
        HerdError: one of them can't go on, or they need not be promoted.
    """
    if _moved(fresh):
        return
    try:
        bootstrap.require_minority(_configs(description, fresh), fresh.cluster_id)
    except BootstrapError as error:
        raise HerdError(
            f"they can't go on alone, and are stopped: {error}; "
            "`pgherd local up` starts them as they were"
        ) from error


def _found(description: Herd, fresh: Herd) -> None:
    """Make the stopped members a cluster, unless an earlier attempt got further.

    Raises:
        HerdError: one of them can't go on.
    """
    if _moved(fresh):
        return
    try:
        seed, log = bootstrap.promote(_configs(description, fresh), fresh.cluster_id)
    except BootstrapError as error:
        raise HerdError(f"they can't go on alone: {error}") from error
    progress(f"{seed} has the most advanced log: it ends at GID {log.last_gid}")


def _move(description: Herd, fresh: Herd) -> None:
    for member in fresh.members:
        old, new = description.node(member).root, fresh.node(member).root
        if old.exists():
            old.rename(new)
    # Of one authority: who meets the other herd can say which it is, instead of what TLS says.
    shutil.copytree(description.directory / "tls", fresh.directory / "tls", dirs_exist_ok=True)
