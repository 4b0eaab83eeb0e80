"""``pgherd split`` for a running herd: by the admin API of one of those that split off.

They go on where they are, under a new identity, with their certificates and without a restart of
their servers. The others are not asked. ``promoting`` does the same to nodes of this machine that
need not run, and gives them a directory of their own.
"""

import asyncio
from collections.abc import Collection

from pgherd_sidecar.client.admin import AdminClient, AdminError
from pgherd_sidecar.client.answers import SplitAnswer
from pgherd_sidecar.client.cluster import PRIMARY
from pgherd_sidecar.client.errors import HerdError, progress

_POLL_S = 0.2


async def split_herd(admin: AdminClient, names: Collection[str], *, yes: bool) -> SplitAnswer:
    """Tell what will be lost and, if that is agreed to, have it done; return when writes are taken.

    Args:
        admin: one of them.
        names: of all of them.
        yes: it is agreed to.

    Raises:
        HerdError: they can't split off, or nobody has said yes.
    """
    plan = await _asked(admin, names, act=False)
    progress(
        f"{', '.join(plan.members)} become cluster {plan.cluster_id}, for good, and leave "
        f"{plan.split_from}. They keep what the most advanced of their logs holds, GID {plan.gid} "
        f"at least, and lose what {', '.join(plan.left)} have committed beyond it"
    )
    if not yes:
        raise HerdError("nothing has been done: repeat it with --yes if this is to be")
    await _asked(admin, names, act=True)
    while not await _done(admin, plan):  # noqa: ASYNC110 - another process
        await asyncio.sleep(_POLL_S)
    return plan


async def _asked(admin: AdminClient, names: Collection[str], *, act: bool) -> SplitAnswer:
    try:
        return await admin.split(names, act=act)
    except AdminError as error:
        raise HerdError(f"they can't go on alone: {error.reason}") from error


async def _done(admin: AdminClient, plan: SplitAnswer) -> bool:
    try:
        said = await admin.status()
    except AdminError as error:
        if error.may_pass:  # it begins anew
            return False
        raise HerdError(str(error)) from error
    return said.cluster_id == plan.cluster_id and said.component == PRIMARY
