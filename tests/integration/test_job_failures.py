"""Jobs whose processes, members, snapshots or stores go away in the middle.

Each ends clearly: whole, or with status 2 and one line. Nothing half-written is a snapshot, the
herd goes on, and what the members keep for the job ends with its lease.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from patience import wait_until
from pgherd_spark.storing import stores
from pgherd_spark.storing.layout import require_whole, snapshots, unfinished
from pgherd_spark.storing.parts import PartError
from pgherd_spark.storing.stores import Store

from .ledger import create_everywhere
from .localherd import COMMAND_TIMEOUT_S, LocalHerd, command_line, put, query
from .s3server import NEEDS_S3, Bucket, Server, bucket
from .sparkherd import NEEDS_SPARK, given_back, holders, markers, markers_held, run_job

pytestmark = [NEEDS_SPARK, pytest.mark.timeout(600), pytest.mark.long]

_WORKER = "pyspark.daemon"


@pytest.fixture(scope="module")
def table(herd: LocalHerd) -> Iterator[str]:
    """With so many rows that a job is still at work when its first parts are written."""
    name = f"f_{random.getrandbits(40):x}"
    create_everywhere(
        herd,
        f"CREATE TABLE {name} (id int PRIMARY KEY, t text);"
        f"INSERT INTO {name} SELECT g, repeat('x', 500) FROM generate_series(1, 10000) g",
    )
    yield name
    query(herd.nodes()[0].dsn, f"DROP TABLE {name}")


@pytest.fixture
def to(herd: LocalHerd, work_directory: Path, table: str) -> Iterator[Store]:
    """Where the job writes to; what a failed one has the members hold is given back."""
    store = stores.at(str(work_directory / f"jobs-{random.getrandbits(40):x}"))
    yield store
    given_back(herd, store)


def begun(store: Store) -> bool:
    """Say whether the job has written a part."""
    return any(Path(str(store)).rglob("*.copy.zst"))


def disturbed(
    herd: LocalHerd,
    store: Store,
    disturb: Callable[[int], object],
    *arguments: str,
    ready: Callable[[Store], bool] = begun,
) -> subprocess.CompletedProcess[str]:
    """Run a snapshot job of many parts, and do something to it in the middle.

    Args:
        herd: is read.
        store: where to.
        disturb: is given the job's process id.
        arguments: of the job, besides.
        ready: says when.
    """
    program = [sys.executable, "-m", "pgherd_sidecar.cli.main", "snapshot", "--cores", "1"]
    where = ["--to", str(store), "--part-size", "0.1", "--dir", str(herd.directory)]
    with subprocess.Popen(
        [*program, *where, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as job:
        while not ready(store):
            assert job.poll() is None, "the job has ended by itself"
            time.sleep(0.05)
        disturb(job.pid)
        out, complaints = job.communicate(timeout=COMMAND_TIMEOUT_S)
    return subprocess.CompletedProcess(job.args, job.returncode, out, complaints)


def require_failed(herd: LocalHerd, done: subprocess.CompletedProcess[str], store: Store) -> str:
    """Check that the job has said why in one line, and that nobody takes its files for a snapshot.

    Returns what it said last.
    """
    assert done.returncode == 2, done
    line = done.stderr.splitlines()[-1]
    assert line.startswith(("pgherd: ", "Error: ")), done.stderr
    require_unfinished(store)
    goes_on(herd)
    return line


def require_unfinished(store: Store) -> None:
    assert unfinished(store) == snapshots(store) != []
    for name in snapshots(store):
        with pytest.raises(PartError, match="holds no whole snapshot"):
            require_whole(store.below(name))


def goes_on(herd: LocalHerd) -> None:
    """Every node takes writes, and all have them."""
    for node in herd.nodes():
        name = f"f_{random.getrandbits(40):x}"
        put(herd, node.app_dsn, f"CREATE TABLE {name} (id int PRIMARY KEY)")
        put(herd, node.app_dsn, f"DROP TABLE {name}")


def descendants(pid: int) -> list[int]:
    """Process ids of its children and theirs, those first that are nearest."""
    found = [pid]
    for one in found:
        with suppress(FileNotFoundError):
            for task in Path(f"/proc/{one}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found[1:]


def kill(pid: int, *, named: str, nearest: bool = True) -> None:
    """SIGKILL the descendant whose command line has this in it."""
    found = [one for one in descendants(pid) if named in command_line(one)]
    os.kill(found[0 if nearest else -1], signal.SIGKILL)


def test_a_worker_that_is_killed_costs_a_task_and_no_job(herd: LocalHerd, to: Store) -> None:
    done = disturbed(herd, to, partial(kill, named=_WORKER, nearest=False))
    assert done.returncode == 0, done.stderr
    (name,) = snapshots(to)
    require_whole(to.below(name))
    assert markers_held(herd, to) == set()


def test_a_killed_jvm_ends_the_job(herd: LocalHerd, to: Store) -> None:
    done = disturbed(herd, to, partial(kill, named="org.apache.spark.deploy.SparkSubmit"))
    assert "Spark's Java process has ended" in require_failed(herd, done, to)


def test_a_killed_driver_takes_all_that_it_started_along_and_can_be_followed(
    herd: LocalHerd, to: Store
) -> None:
    started: list[int] = []

    def kill_driver(pid: int) -> None:
        started.extend(descendants(pid))
        for one in (pid, *started):
            if "pgherd_sidecar.cli.main" in command_line(one):
                os.kill(one, signal.SIGKILL)

    disturbed(herd, to, kill_driver)
    wait_until(
        lambda: [one for one in started if Path(f"/proc/{one}").exists()], lambda left: not left
    )
    require_unfinished(to)
    goes_on(herd)
    (name,) = unfinished(to)
    written = {path: path.stat().st_mtime_ns for path in Path(str(to)).rglob("*.copy.zst.json")}
    done = run_job(herd, "snapshot", "--to", str(to), "--part-size", "0.1")
    assert done.returncode == 0, done.stderr
    require_whole(to.below(name))
    assert {path: path.stat().st_mtime_ns for path in written} == written != {}
    assert markers_held(herd, to) == set()


@pytest.mark.long
def test_a_member_that_dies_while_it_is_read_ends_the_job(herd: LocalHerd, to: Store) -> None:
    done = disturbed(
        herd, to, lambda pid: herd.must("kill", "n2", "--process", "node"), "--from", "n2"
    )
    herd.must("start", "n2")
    assert "n2" in require_failed(herd, done, to) or "onnection" in done.stderr
    (marker,) = markers(to)
    again = run_job(herd, "snapshot", "--to", str(to))
    assert again.returncode == 0, again.stderr
    assert "can't be finished" in again.stderr
    assert holders(herd, marker) == set()
    (name,) = snapshots(to)
    require_whole(to.below(name))


def test_a_member_that_gives_its_snapshot_up_ends_the_job(herd: LocalHerd, to: Store) -> None:
    def end_snapshot(_: int) -> None:
        query(
            herd.dsn("n1"),
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'pgherd marker'",
        )

    done = disturbed(herd, to, end_snapshot)
    assert "snapshot" in require_failed(herd, done, to)


@pytest.fixture
def s3(
    work_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Bucket, Server, Store]]:
    """A bucket on a server that can die, and a store in it; jobs are let in."""
    with bucket(work_directory / f"s3-{random.getrandbits(40):x}") as made:
        if made.server is None:
            pytest.skip("the server is not ours to kill")
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        stores._client.cache_clear()
        yield made, made.server, stores.at(f"{made.url}/x", made.endpoint)
        stores._client.cache_clear()


def has_a_part(made: Bucket, _: Store) -> bool:
    return any(key.endswith(".zst") for key in made.objects())


@NEEDS_S3
def test_a_store_that_goes_away_ends_the_job_and_has_no_snapshot_when_it_is_back(
    herd: LocalHerd, table: str, s3: tuple[Bucket, Server, Store]
) -> None:
    made, server, store = s3
    done = disturbed(
        herd, store, lambda _: server.kill(), "--s3-endpoint", made.endpoint,
        ready=partial(has_a_part, made),
    )  # fmt: skip
    server.start()
    assert "Could not connect to the endpoint URL" in require_failed(herd, done, store)
    given_back(herd, store)


@pytest.mark.long
@NEEDS_S3
def test_a_store_that_answers_nothing_ends_the_job_before_it_has_begun(
    herd: LocalHerd, s3: tuple[Bucket, Server, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, server, store = s3
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    server.fall_silent()
    done = run_job(herd, "snapshot", "--to", str(store), "--s3-endpoint", made.endpoint)
    server.answer()
    assert done.returncode == 2
    assert f'{store}: Read timeout on endpoint URL: "{made.endpoint}' in done.stderr
    assert made.objects() == []


@NEEDS_S3
@pytest.mark.long
def test_a_store_that_falls_silent_ends_the_job(
    herd: LocalHerd,
    table: str,
    s3: tuple[Bucket, Server, Store],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, server, store = s3
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    done = disturbed(
        herd, store, lambda _: server.fall_silent(), "--s3-endpoint", made.endpoint,
        ready=partial(has_a_part, made),
    )  # fmt: skip
    server.answer()
    assert "Read timeout on endpoint URL" in require_failed(herd, done, store)
    given_back(herd, store)
