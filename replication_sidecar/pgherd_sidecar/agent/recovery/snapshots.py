"""A snapshot directory as what a member that joins is made from, carried to it by hand.

The job that wrote it has put the certification state of some position before its GID beside the
rows. From there on the log has to be there still, on every member, since any of them may be the
one that feeds the joiner.
"""

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

from pgherd_sidecar.agent.errors import UnfitError
from pgherd_sidecar.agent.recovery import certstate
from pgherd_sidecar.agent.recovery.carried import Carried, prepare
from pgherd_sidecar.agent.recovery.certstate import CertificationState
from pgherd_sidecar.agent.recovery.filling import check_snapshot
from pgherd_sidecar.agent.recovery.partners import NoPartnerError, Partners
from pgherd_sidecar.agent.recovery.programs import ProgramError
from pgherd_sidecar.core.checkpoint import CheckpointError


async def open_snapshot(
    cluster_id: str, snapshot: Path, source: Path, partners: Partners
) -> CertificationState:
    """Check that a member of this cluster can be made from a snapshot, and note what is needed.

    Args:
        cluster_id: the cluster's.
        snapshot: the directory.
        source: directory to make, for the note.
        partners: the other members.

    Returns:
        The certification state to begin from.

    Raises:
        NoPartnerError: nobody answers who knows how far the log goes back.
        UnfitError: it can't be.
        OSError: the disk failed.
    """
    carried, state = await asyncio.to_thread(_read, snapshot)
    if state.cluster_id != cluster_id:
        raise UnfitError(f"{snapshot} is of cluster {state.cluster_id}, this one is {cluster_id}")
    await require_log(snapshot, state, partners)
    try:
        await check_snapshot(snapshot)
    except ProgramError as error:
        raise UnfitError(f"{snapshot} can't be used: {error}") from error
    prepare(source)
    carried.save(source)
    return state


async def require_log(snapshot: Path, state: CertificationState, partners: Partners) -> None:
    """Check that the log after the snapshot's position is there, and have it kept.

    Raises:
        NoPartnerError: nobody answers who knows.
        UnfitError: it is not.
    """
    if not await partners.offers():
        raise NoPartnerError("no other member takes writes")
    needed = state.needed_base.position
    await partners.hold_log(needed)
    base = await partners.log_base()
    if base > needed:
        raise UnfitError(
            f"{snapshot} needs the log from GID {needed + 1} on, the members have it from "
            f"{base + 1} on: use a newer one, and have the log kept for it with "
            "`pgherd snapshot --hold HOURS`"
        )


def _read(snapshot: Path) -> tuple[Carried, CertificationState]:
    try:
        manifest: dict[str, Any] = json.loads((snapshot / "manifest.json").read_bytes())
        if manifest["certification"] is None or "local_tables" not in manifest:
            raise UnfitError(
                f"{snapshot} was written without what a joining member needs: make a new one"
            )
        described = manifest["certification"]
        content = (snapshot / described["file"]).read_bytes()
        state = certstate.unpack(content)
        if (
            hashlib.sha256(content).hexdigest() != described["sha256"]
            or state.position > manifest["gid"]
        ):
            raise UnfitError(f"{snapshot} is damaged: its certification state is another one's")
        server = next(iter(manifest["servers"].values()))
        carried = Carried(
            gid=manifest["gid"],
            encoding=server["encoding"],
            collate=server["collate"],
            ctype=server["ctype"],
            archive=str(snapshot / "schema.dump"),
            roles=str(snapshot / "roles.sql"),
            snapshot=str(snapshot),
            local_tables=manifest["local_tables"],
            known_roles=manifest.get("known_roles"),
            memberships=manifest.get("memberships"),
        )
    except (OSError, ValueError, KeyError, StopIteration, CheckpointError) as error:
        raise UnfitError(f"{snapshot} holds no whole snapshot: {error}") from error
    return carried, state
