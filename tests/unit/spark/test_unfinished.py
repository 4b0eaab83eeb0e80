"""What a snapshot job does with what it finds unfinished where it is to write."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import cast

import pytest
from pgherd_sidecar.client.admin import AdminClient, AdminError
from pgherd_sidecar.client.answers import SnapshotAnswer
from pgherd_spark.reading.cluster import Cluster, JobError
from pgherd_spark.reading.leases import Member
from pgherd_spark.reading.owners import InUseError
from pgherd_spark.snapshots import snapshot as job
from pgherd_spark.snapshots.snapshot import ChangedError, SnapshotOptions, snapshot
from pgherd_spark.storing.stores import DirectoryStore

GONE = AdminError("no snapshot for marker m", 404)
SLOW = AdminError("no answer within 5 s")
LEFT = "gid-000000000002-bb"


class Admin:
    """A member that answers a lease so; with a snapshot if that is no error."""

    def __init__(self, error: AdminError | None) -> None:
        self._error = error
        self.dropped = False

    async def lease_marker(self, marker: str, lease_s: float) -> SnapshotAnswer:
        if self._error is not None:
            raise self._error
        return SnapshotAnswer(gid=2, snapshot="00000003-1", visible="10:12:11")

    async def drop_marker(self, marker: str) -> None:
        self.dropped = True


class NoCluster:
    def cancel(self) -> None:
        pass


async def run(
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    admin: Admin,
    other: Admin | None = None,
    *,
    in_use: bool = False,
    finished: bool = False,
    hold_s: float = 0,
) -> list[str]:
    """Make a snapshot beside two unfinished ones, as far as without a server; what is said.

    Args:
        directory: where to.
        monkeypatch: undoes what is changed for it.
        admin: of the member that is read;
        other: and of one more, which holds the marker if that is not said otherwise.
        in_use: whether another job works with the marker;
        finished: and whether it has just written the manifest, when it works with it no more.
        hold_s: for how long the log is wanted; the run that left it has had it held for an hour.
    """
    for name, cluster_id in (("gid-000000000001-aa", "another"), (LEFT, "this")):
        (directory / name).mkdir()
        content = {"format": 1, "cluster_id": cluster_id, "marker": "m", "hold_s": 3600}
        (directory / name / "job.json").write_text(json.dumps(content))

    @asynccontextmanager
    async def owning(members: dict[str, Member], marker: str) -> AsyncIterator[None]:
        if in_use:
            raise InUseError("another job is at work with it")
        if finished:
            (directory / LEFT / "manifest.json").touch()
        yield

    monkeypatch.setattr(job, "owning", owning)
    options = SnapshotOptions(
        to=DirectoryStore(directory), read=("n1",), programs=directory, cluster_id="this",
        hold_s=hold_s,
    )  # fmt: skip
    no_server = f"host={directory} port=1 user=postgres dbname=app"
    admins = {"n1": admin, "n2": other or Admin(None)}
    members = {
        name: Member(name, cast(AdminClient, one), no_server) for name, one in admins.items()
    }
    said: list[str] = []
    with suppress(JobError):  # the new one begins, and has no server to read
        await snapshot(cast(Cluster, NoCluster()), members, options, said.append)
    return said


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


async def test_what_another_herd_has_left_unfinished_stays_and_what_this_one_has_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, holder = Admin(GONE), Admin(None)
    said = await run(tmp_path, monkeypatch, lost, holder)
    assert names(tmp_path) == ["gid-000000000001-aa"]
    assert said[0].startswith("gid-000000000001-aa is an unfinished snapshot of another herd")
    assert holder.dropped


async def test_the_marker_of_a_snapshot_that_ddl_has_made_useless_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def changed(*arguments: object) -> None:
        raise ChangedError("columns changed since the marker")

    monkeypatch.setattr(job, "_write", changed)
    holders = Admin(None), Admin(None)
    said = await run(tmp_path, monkeypatch, *holders)
    assert said[-1].startswith(f"removing {LEFT}, which can't be finished: columns changed")
    assert [one.dropped for one in holders] == [True, True]


async def test_what_can_t_be_removed_is_told_and_in_nobody_s_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: DirectoryStore, say: object) -> None:
        raise PermissionError("it is guarded")

    monkeypatch.setattr(DirectoryStore, "clear", refused)
    holder = Admin(None)
    said = await run(tmp_path, monkeypatch, Admin(GONE), holder)
    assert said[-1] == f"{LEFT} could not be removed: it is guarded"
    assert holder.dropped


@pytest.mark.parametrize(("error", "in_use"), [(GONE, True), (SLOW, True), (SLOW, False)])
async def test_what_another_job_may_be_writing_stays_and_its_marker_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: AdminError, in_use: bool
) -> None:
    admin, other = Admin(error), Admin(None)
    said = await run(tmp_path, monkeypatch, admin, other, in_use=in_use)
    assert names(tmp_path) == ["gid-000000000001-aa", LEFT]
    assert said[1].startswith(f"{LEFT} is unfinished and stays as it is: ")
    assert not admin.dropped and not other.dropped


@pytest.mark.parametrize("error", [GONE, None])
async def test_what_another_job_has_finished_meanwhile_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: AdminError | None
) -> None:
    admin = Admin(error)
    said = await run(tmp_path, monkeypatch, admin, finished=True)
    assert (tmp_path / LEFT / "manifest.json").exists()
    assert not admin.dropped
    assert not [line for line in said if LEFT in line]


@pytest.mark.parametrize(("hold_s", "gone_on"), [(0, True), (3600, True), (7200, False)])
async def test_what_a_dead_job_has_left_is_gone_on_with_while_its_marker_and_the_log_are_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hold_s: float, gone_on: bool
) -> None:
    written: list[object] = []

    async def write(*arguments: object) -> None:
        written.append(arguments[3])

    monkeypatch.setattr(job, "_write", write)
    said = await run(tmp_path, monkeypatch, Admin(None), hold_s=hold_s)
    if gone_on:
        assert said[1:] == [f"going on with {LEFT}, which an earlier run has begun"]
        assert written == [DirectoryStore(tmp_path / LEFT)]
    else:
        assert said[1].startswith(
            f"removing {LEFT}, which can't be finished: the log was to be kept"
        )
        assert names(tmp_path) == ["gid-000000000001-aa"]
