"""A snapshot as what a member that joins is made from: carried to it by hand, or in a bucket.

The job that wrote it has put the certification state of some position before its GID beside the
rows. From there on the log has to be there still, on every member, since any of them may be the
one that feeds the joiner.
"""

import asyncio
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pgherd_sidecar.agent.base.config import RecoverySettings
from pgherd_sidecar.agent.base.errors import UnfitError
from pgherd_sidecar.agent.checkpoint import certstate
from pgherd_sidecar.agent.checkpoint.certstate import CertificationState
from pgherd_sidecar.agent.recovery.carried import Carried, prepare_directory
from pgherd_sidecar.agent.recovery.filling import check_snapshot, fetch_head, fetch_parts
from pgherd_sidecar.agent.recovery.partners import NoPartnerError, Partners
from pgherd_sidecar.core.replication.checkpoint import CheckpointError
from pgherd_sidecar.core.replication.state import ReplicatedState
from pgherd_sidecar.env.processes.programs import ProgramError

_REMOTE = "s3://"
_FETCHED = "snapshot"


async def open_snapshot(
    cluster_id: str,
    recovery: RecoverySettings,
    source: Path,
    partners: Partners,
    on_progress: Callable[[int, int], None],
) -> CertificationState:
    """Check that a member of this cluster can be made from a snapshot, and note what is needed.

    Args:
        cluster_id: the cluster's.
        recovery: says where the snapshot is.
        source: directory to make, for the note and what is fetched.
        partners: the other members; they keep the log meanwhile.
        on_progress: called in a thread with the bytes fetched and in total.

    Returns:
        The certification state to begin from.

    Raises:
        NoPartnerError: nobody answers who knows how far the log goes back.
        ProgramError: the snapshot can't be fetched.
        UnfitError: it can't be.
        OSError: the disk failed.
    """
    location, endpoint = str(recovery.snapshot), recovery.snapshot_endpoint
    remote = location.startswith(_REMOTE)
    directory = source / _FETCHED if remote else Path(location)
    prepare_directory(source)
    if remote:
        await fetch_head(location, endpoint, directory)
    carried, state = await asyncio.to_thread(_read, directory, location)
    if state.cluster_id != cluster_id:
        raise UnfitError(f"{location} is of cluster {state.cluster_id}, this one is {cluster_id}")
    state = await require_log(location, state, partners)
    keeping = asyncio.create_task(partners.keep_log(state.needed_base.position, state.position))
    try:
        if remote:
            jobs = recovery.jobs
            await fetch_parts(location, endpoint, directory, jobs=jobs, on_progress=on_progress)
        await _require_whole(directory, location)
    finally:
        keeping.cancel()
    replace(carried, columns=await partners.columns()).save(source)
    return state


async def _require_whole(directory: Path, location: str) -> None:
    try:
        await check_snapshot(directory)
    except ProgramError as error:
        raise UnfitError(f"{location} can't be used: {error}") from error


async def require_log(
    location: str, state: CertificationState, partners: Partners
) -> CertificationState:
    """Check that the log after the snapshot's position is there, and have it kept.

    What the state would rather have of the log before that may be gone: members trim up to a
    checkpoint's own position, as soon as the others have what comes before it.

    Returns:
        The state to begin from.

    Raises:
        NoPartnerError: nobody answers who knows.
        UnfitError: it is not.
    """
    if not await partners.offers():
        raise NoPartnerError("no other member takes writes")
    needed = state.needed_base.position
    await partners.hold_log(needed)
    base = await partners.log_base()
    if base > state.position:
        raise UnfitError(
            f"{location} needs the log from GID {state.position + 1} on, the members have it from "
            f"{base + 1} on: use a newer one, and have the log kept for it with "
            "`pgherd snapshot --to S --hold HOURS`"
        )
    return state.alone if base > needed else state


def _read(snapshot: Path, location: str) -> tuple[Carried, CertificationState]:
    try:
        manifest: dict[str, Any] = json.loads((snapshot / "manifest.json").read_bytes())
        described = manifest["certification"]
        content = (snapshot / described["file"]).read_bytes()
        state = certstate.unpack(content)
        if (
            hashlib.sha256(content).hexdigest() != described["sha256"]
            or state.position > manifest["gid"]
        ):
            raise UnfitError(f"{location} is damaged: its certification state is another one's")
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
            shared=manifest["shared"],
            role_limits=manifest["role_limits"],
            skipped=list(ReplicatedState.restore(state.state).databases.skipped),
        )
    except (OSError, ValueError, KeyError, StopIteration, CheckpointError) as error:
        raise UnfitError(f"{location} holds no whole snapshot: {error}") from error
    return carried, state
