"""What a snapshot job does with what it finds unfinished where it is to write."""

import json
from pathlib import Path
from typing import cast

import pytest
from pgherd_sidecar.cli.admin import AdminClient, AdminError
from pgherd_spark.cluster import Cluster, JobError
from pgherd_spark.leases import Member
from pgherd_spark.snapshot import Options, snapshot
from pgherd_spark.stores import DirectoryStore


class Admin:
    """A member that holds no marker any more."""

    async def wait_marker(self, marker: str, timeout_s: float) -> None:
        raise AdminError(f"no snapshot for marker {marker}")

    async def drop_marker(self, marker: str) -> None:
        pass


class NoCluster:
    def cancel(self) -> None:
        pass


def names(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


async def test_what_another_herd_has_left_unfinished_stays_and_what_this_one_has_is_removed(
    tmp_path: Path,
) -> None:
    for name, cluster_id in (("gid-000000000001-aa", "another"), ("gid-000000000002-bb", "this")):
        (tmp_path / name).mkdir()
        job = {"format": 1, "cluster_id": cluster_id, "marker": "m"}
        (tmp_path / name / "job.json").write_text(json.dumps(job))
    options = Options(
        to=DirectoryStore(tmp_path), read=("n1",), programs=tmp_path, cluster_id="this"
    )
    no_server = f"host={tmp_path} port=1 user=postgres dbname=app"
    members = {"n1": Member("n1", cast(AdminClient, Admin()), no_server)}
    said: list[str] = []
    with pytest.raises(JobError, match="n1: "):  # the new one begins, and has no server to read
        await snapshot(cast(Cluster, NoCluster()), members, options, said.append)
    assert names(tmp_path) == ["gid-000000000001-aa"]
    assert said[0].startswith("gid-000000000001-aa is an unfinished snapshot of another herd")
