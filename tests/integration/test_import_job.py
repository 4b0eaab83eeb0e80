"""The program that the operator has run in a pod, against a herd on this machine."""

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from patience import wait_until

from .localherd import COMMAND_TIMEOUT_S, LocalHerd, free_port_base, query, settle, standing
from .plainpostgres import PlainPostgres, plain_postgres

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def herd(work_directory: Path) -> Iterator[LocalHerd]:
    with standing(LocalHerd(work_directory / "imported", free_port_base())) as herd:
        yield herd


@pytest.fixture(scope="module")
def server(work_directory: Path, herd: LocalHerd) -> Iterator[PlainPostgres]:
    base = free_port_base(1) + 1
    with plain_postgres(work_directory / "source", base, herd.dsn("n1"), "") as server:
        yield server


class Job:
    """The program, as a container's first process."""

    def __init__(self, herd: LocalHerd, dsn: str, goal: str, directory: Path) -> None:
        self.port = free_port_base(1) + 1
        self.outcome_file = directory / f"{goal}-outcome"
        self.outcome_file.unlink(missing_ok=True)
        dsn_file = directory / "dsn"
        dsn_file.write_text(f"{dsn}\n")
        order = {
            "goal": goal,
            "members": [{"name": node.name, "dsn": node.dsn} for node in herd.nodes()],
            "dsn_file": str(dsn_file), "jobs": 2, "progress_port": self.port,
            "outcome_file": str(self.outcome_file),
        }  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pgherd_sidecar.importing.job", json.dumps(order)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def told(self) -> dict[str, Any]:
        """What it says; nothing while it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=5) as answer:
                found: dict[str, Any] = json.loads(answer.read())
                return found
        except OSError:
            return {}

    def until(self, condition: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Wait for something that it says."""

        def ended() -> object:
            return None if self.process.poll() is None else self.process.communicate()

        return wait_until(self.told, condition, hopeless=ended)

    def follows(self) -> dict[str, Any]:
        """Wait until it follows the source."""
        return self.until(lambda told: told.get("phase") == "Following" and not told["error"])

    def end(self) -> None:
        """As Kubernetes ends it."""
        self.process.send_signal(signal.SIGTERM)
        assert self.ended()[0] == 128 + signal.SIGTERM
        assert not self.outcome_file.exists()

    def ended(self) -> tuple[int, dict[str, Any]]:
        """Wait for its end: exit status, and what it has left."""
        out, _ = self.process.communicate(timeout=COMMAND_TIMEOUT_S)
        assert "Traceback" not in out, out
        found = json.loads(self.outcome_file.read_text()) if self.outcome_file.exists() else {}
        return self.process.returncode, found


def test_it_waits_for_a_source_that_can_be_taken_over_and_leaves_nothing(
    herd: LocalHerd, server: PlainPostgres, tmp_path: Path
) -> None:
    query(server.dsn("postgres"), "CREATE DATABASE shop")
    dsn = server.dsn("shop")
    query(dsn, "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    job = Job(herd, dsn, "follow", tmp_path)
    told = job.until(lambda told: told.get("reasons"))
    assert (told["phase"], told["tables"]) == ("Looking", 0)
    assert any("wal_level of the source is replica" in one for one in told["reasons"])
    query(server.dsn("postgres"), "ALTER SYSTEM SET wal_level = logical")
    server.stop()
    told = job.until(lambda told: "can't be reached" in told.get("error", ""))
    server.start()
    told = job.follows()  # by itself
    assert (told["reasons"], told["tables"], told["tables_done"], told["rows"]) == ([], 1, 1, 1)
    job.end()
    assert Job(herd, dsn, "abort", tmp_path).ended() == (0, {"outcome": "aborted"})
    assert query(server.dsn("shop"), "SELECT slot_name FROM pg_replication_slots") == []
    settle(herd)
    for node in herd.nodes():
        assert query(node.dsn, "SELECT to_regclass('public.t'), to_regnamespace('pgherd_import')") \
            == [(None, None)]  # fmt: skip
    # Once more, when there is nothing to remove: its pod may have died before it could tell.
    assert Job(herd, dsn, "abort", tmp_path).ended() == (0, {"outcome": "aborted"})


def test_it_goes_on_after_a_kill_and_a_cut_over_that_failed_and_cuts_over(
    herd: LocalHerd, server: PlainPostgres, tmp_path: Path
) -> None:
    dsn = server.dsn("shop")
    first = Job(herd, dsn, "follow", tmp_path)
    first.follows()
    first.process.kill()
    first.process.communicate()
    query(dsn, "INSERT INTO t SELECT generate_series(2, 100)")
    query(herd.dsn("n2"), "INSERT INTO t VALUES (1000)")  # of nobody at the source
    code, outcome = Job(herd, dsn, "cut-over", tmp_path).ended()
    assert code == 3
    assert "tables differ: public.t (100 rows at the source, 101 in the herd)" in outcome["error"]
    query(dsn, "INSERT INTO t VALUES (101)")  # it takes writes again
    query(herd.dsn("n2"), "DELETE FROM t WHERE id = 1000")
    second = Job(herd, dsn, "follow", tmp_path)
    second.follows()
    # Another one takes it over, and this one does not come back to it.
    code, outcome = Job(herd, dsn, "cut-over", tmp_path).ended()
    assert (code, outcome["outcome"], outcome["tables"]) == (0, "done", 1)
    assert outcome["without_writes_s"] > 0
    assert second.ended()[0] == 3
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        query(dsn, "INSERT INTO t VALUES (0)")
    settle(herd)
    for node in herd.nodes():
        assert query(node.dsn, "SELECT count(*), max(id) FROM t") == [(101, 101)]
    # What comes too late does no harm.
    late = Job(herd, dsn, "follow", tmp_path)
    told = late.until(lambda told: told.get("reasons"))
    assert any("database is not empty" in one for one in told["reasons"])
    late.end()
