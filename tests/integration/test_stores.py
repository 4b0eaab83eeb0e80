"""Where snapshots are kept: files are there whole or not at all, in a directory and in a bucket."""

import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pgherd_spark.storing import stores
from pgherd_spark.storing.layout import MANIFEST, snapshots, unfinished
from pgherd_spark.storing.stores import S3Store, Store, StoreError

from .ledger import create_everywhere
from .localherd import LocalHerd, query
from .s3server import NEEDS_S3, Bucket, bucket
from .sparkherd import NEEDS_SPARK, given_back, run_job

_SEVERAL_PIECES = (40 << 20) + 1


@pytest.fixture(scope="module")
def s3(work_directory: Path) -> Iterator[Bucket]:
    with bucket(work_directory / "s3") as made:
        yield made


@pytest.fixture(params=["directory", pytest.param("s3", marks=NEEDS_S3)])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    if request.param == "directory":
        return stores.at(str(tmp_path / "store"))
    return s3_store(request.getfixturevalue("s3"), monkeypatch)


def s3_store(s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> Store:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return stores.at(f"{s3.url}/{random.getrandbits(40):x}/", s3.endpoint)


def test_a_file_appears_when_it_is_whole_and_not_before(store: Store) -> None:
    content = random.randbytes(_SEVERAL_PIECES)
    with store.create("data/t 1/part") as file:
        file.write(content[:1000])
        assert store.size("data/t 1/part") is None
        file.write(content[1000:])
    assert store.size("data/t 1/part") == _SEVERAL_PIECES
    assert store.get("data/t 1/part") == content
    with pytest.raises(RuntimeError, match="the server dies"), store.create("other") as file:
        file.write(content)
        raise RuntimeError("the server dies")
    assert store.size("other") is None
    with pytest.raises(FileNotFoundError):
        store.get("other")


def test_files_are_replaced_fetched_and_removed_by_name(store: Store, tmp_path: Path) -> None:
    assert store.folders() == []
    store.put("b/f", b"1")
    store.put("a/deep/f", b"2")
    store.put("a/f", b"3")
    store.put("a/f", b"4")
    store.put("file", b"5")
    assert store.folders() == ["a", "b"]
    assert store.below("a").folders() == ["deep"]
    assert store.below("a").fetch("deep/f", tmp_path).read_bytes() == b"2"
    store.below("a").delete("f")
    store.below("a").delete("f")
    assert store.below("a").size("f") is None
    store.below("a").clear(print)
    assert (store.folders(), store.get("file")) == (["b"], b"5")


@NEEDS_S3
def test_clearing_a_folder_ends_uploads_that_a_dead_writer_has_begun(
    s3: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = s3_store(s3, monkeypatch)
    store.put("x/whole", b"1")
    client = s3.client()
    folder = str(store.below("x")).removeprefix(f"{s3.url}/")
    client.create_multipart_upload(Bucket=s3.name, Key=f"{folder}/begun")
    if not client.list_multipart_uploads(Bucket=s3.name, Prefix=folder).get("Uploads"):
        pytest.skip("this server lists uploads by exact name only, and ends them by itself (MinIO)")
    store.below("x").clear(print)
    assert client.list_multipart_uploads(Bucket=s3.name).get("Uploads", []) == []
    assert store.folders() == []


@NEEDS_S3
def test_clearing_a_folder_needs_no_right_to_see_uploads(
    s3: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = S3Store._pages

    def refusing(self: S3Store, operation: str, **arguments: Any) -> Iterator[dict[str, Any]]:
        if operation == "list_multipart_uploads":
            raise StoreError(f"{self}: the server refuses these credentials: AccessDenied")
        yield from pages(self, operation, **arguments)

    monkeypatch.setattr(S3Store, "_pages", refusing)
    store, said = s3_store(s3, monkeypatch), list[str]()
    store.put("x/whole", b"1")
    store.below("x").clear(said.append)
    assert store.folders() == []
    (told,) = said
    assert told.startswith("uploads that were begun may be left: s3://")


@NEEDS_S3
def test_what_a_server_refuses_is_told_in_one_line_that_says_what_to_do(
    s3: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = s3_store(s3, monkeypatch)
    with pytest.raises(StoreError, match="there is no bucket pgherd-none: make it first"):
        stores.at("s3://pgherd-none/x", s3.endpoint).put("f", b"")
    with pytest.raises(StoreError, match="names no bucket"):
        stores.at("s3://")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # and does not listen
        unreachable = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(StoreError, match=f"Could not connect .*{unreachable}"):
            stores.at(s3.url, unreachable).get("f")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    stores._client.cache_clear()
    try:
        with pytest.raises(StoreError, match="the server refuses these credentials"):
            store.put("f", b"")
    finally:
        stores._client.cache_clear()


@pytest.fixture
def small_disk(work_directory: Path) -> Iterator[Path]:
    """A directory with room for less than a part."""
    full = work_directory / "full"
    full.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m,mode=1777", "none", full], check=False
    )
    if mounted.returncode != 0:
        pytest.skip("only root can make a small disk")
    yield full
    subprocess.run(["umount", full], check=True)
    full.rmdir()


@pytest.fixture
def wide(herd: LocalHerd) -> Iterator[None]:
    """A table whose rows take two megabytes, compressed."""
    name = f"s_{random.getrandbits(40):x}"
    create_everywhere(
        herd,
        f"CREATE TABLE {name} (id int PRIMARY KEY, t text); INSERT INTO {name}"
        " SELECT g, sha512(g::text::bytea)::text FROM generate_series(1, 30000) g",
    )
    yield
    query(herd.nodes()[0].dsn, f"DROP TABLE {name}")


@pytest.mark.long
@NEEDS_SPARK
@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("where", ["the snapshot's", pytest.param("a task's", marks=NEEDS_S3)])
def test_a_full_disk_ends_the_job_and_leaves_no_snapshot(
    herd: LocalHerd,
    small_disk: Path,
    where: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A task makes a part that goes to a bucket on its own disk first."""
    store, at = stores.at(str(small_disk)), []
    if where == "a task's":
        s3: Bucket = request.getfixturevalue("s3")
        store, at = s3_store(s3, monkeypatch), ["--s3-endpoint", s3.endpoint]
        monkeypatch.setenv("TMPDIR", str(small_disk))
    done = run_job(herd, "snapshot", "--to", str(store), *at)
    assert done.returncode == 2
    assert "No space left on device" in done.stderr or "disk full" in done.stderr
    assert unfinished(store) == snapshots(store) != []
    given_back(herd, store)


@pytest.mark.long
@NEEDS_S3
@NEEDS_SPARK
@pytest.mark.timeout(600)
def test_a_job_that_is_killed_is_taken_up_and_its_snapshot_in_a_bucket_seeds_a_new_herd(
    herd: LocalHerd,
    fresh: LocalHerd,
    s3: Bucket,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = f"s_{random.getrandbits(40):x}"
    create_everywhere(
        herd,
        f"CREATE TABLE {name} (id int PRIMARY KEY, t text);"
        f"INSERT INTO {name} SELECT g, repeat('x', 500) FROM generate_series(1, 10000) g",
    )
    store = s3_store(s3, monkeypatch)
    at = ["--s3-endpoint", s3.endpoint]
    take = ["--to", str(store), *at, "--part-size", "0.1", "--keep", "1"]
    kill_when(partial(has_a_part, s3), herd, *take)
    (begun,) = unfinished(store)
    seed = ["seed", "--port-base", str(fresh.port_base), *at]
    refused = run_job(fresh, *seed, "--snapshot", str(store.below(begun)))
    assert refused.returncode == 2
    assert "holds no snapshot that is whole" in refused.stderr

    done = run_job(herd, "snapshot", *take)
    assert done.returncode == 0, done.stderr
    assert f"going on with {begun}" in done.stderr
    assert done.stdout.strip() == str(store.below(begun))
    query(herd.app_dsn("n1"), f"DELETE FROM {name}")
    kept = run_job(herd, "snapshot", *take)
    assert f"removed {begun}" in kept.stderr, kept.stderr
    (newest,) = snapshots(store)
    assert store.below(newest).size(MANIFEST) is not None
    query(herd.app_dsn("n1"), f"INSERT INTO {name} VALUES (0, '')")  # after it

    del fresh.environment["PGHERD_SIDECAR_SCRIPT"]
    seeded = run_job(fresh, *seed, "--snapshot", str(store.below(newest)))
    assert seeded.returncode == 0, seeded.stderr
    assert query(fresh.dsn("n3"), f"SELECT count(*) FROM {name}") == [(0,)]
    query(herd.nodes()[0].dsn, f"DROP TABLE {name}")


def has_a_part(s3: Bucket) -> bool:
    return any(key.endswith("part-000001.copy.zst") for key in s3.objects())


def kill_when(condition: "partial[bool]", herd: LocalHerd, *arguments: str) -> None:
    """Run a snapshot job and kill it, with all that it has started, in the middle."""
    program = [sys.executable, "-m", "pgherd_sidecar.cli.main", "snapshot", "--cores", "1"]
    with subprocess.Popen(
        [*program, *arguments, "--dir", str(herd.directory)], start_new_session=True
    ) as job:
        while not condition():
            assert job.poll() is None, "the job has ended by itself"
        os.killpg(job.pid, signal.SIGKILL)
