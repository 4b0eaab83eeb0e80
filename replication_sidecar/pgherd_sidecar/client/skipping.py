"""``pgherd skip``: an acknowledged transaction counts as without effect, since some can't apply it.

Whether that may be is judged by the sidecars; what is lost is told here before anything is done.
Keeps nothing.
"""

from pgherd_sidecar.client.admin import AdminError
from pgherd_sidecar.client.answers import SkipPlan
from pgherd_sidecar.client.cluster import PRIMARY, Listen
from pgherd_sidecar.client.errors import HerdError, progress


async def skip(listen: Listen, gid: int, *, yes: bool) -> SkipPlan:
    """Tell what is lost and, if that is agreed to, have it skipped.

    Args:
        listen: asks the members.
        gid: of the transaction.
        yes: it is agreed to.

    Raises:
        HerdError: no database has stopped at it, nobody can order it, or nobody has said yes.
    """
    voices = await listen()
    voices.sort(key=lambda one: (one.status.component != PRIMARY, one.status.state == "witness"))
    if not voices:
        raise HerdError("no sidecar answers: start the herd with `pgherd local up`")
    admin = voices[0].admin
    try:
        plan = await admin.skip(gid, act=False)
        progress(_meaning(plan))
        if not yes:
            raise HerdError("nothing has been done: repeat it with --yes if this is to be")
        return await admin.skip(gid, act=True)
    except AdminError as error:
        raise HerdError(f"GID {gid} can't be skipped: {error.reason}") from error


def _meaning(plan: SkipPlan) -> str:
    if not plan.stopped:
        return f"GID {plan.gid} is skipped already"
    stopped, rebuilt = ", ".join(plan.stopped), ", ".join(plan.rebuilt)
    return (
        f"the transaction at GID {plan.gid}, which was acknowledged, is lost. {stopped} could not "
        f"apply it, and go on behind it: what was committed later is applied to them, and may fail "
        f"there, too. {rebuilt or 'nobody'} will be rebuilt from them"
    )
