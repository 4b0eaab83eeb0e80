"""The jobs need no superuser: what their role reads, and what it can't do."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from pgherd_sidecar.local import herd as herds
from pgherd_spark.checking.check import check
from pgherd_spark.checking.contents import inspect
from pgherd_spark.reading import sources
from pgherd_spark.reading.cluster import cluster
from pgherd_spark.reading.comparison import CheckOptions
from pgherd_spark.reading.pace import FULL
from pgherd_spark.snapshots.snapshot import SnapshotOptions, _carried, snapshot
from pgherd_spark.storing.layout import require_whole
from pgherd_spark.storing.stores import DirectoryStore
from psycopg import sql
from psycopg.conninfo import make_conninfo

from .localherd import LocalHerd, query
from .sparkherd import NEEDS_SPARK, behind_the_herd_s_back, members_of

_PASSWORD = "only of this test"
_FORBIDDEN = {
    "write": "INSERT INTO read_by_jobs VALUES (2)",
    "delete": "DELETE FROM read_by_jobs",
    "define": "CREATE TABLE made_by_jobs (id int PRIMARY KEY)",
    "read a file": "SELECT pg_read_file('postgresql.conf')",
    "run a program": "COPY read_by_jobs TO PROGRAM 'cat'",
    "become another": "SET ROLE postgres",
    "write as the applier": "SET ROLE pgherd_apply",
    "leave replication": "SET session_replication_role = replica",
}


@pytest.fixture(scope="module")
def dsns(herd: LocalHerd) -> Iterator[dict[str, str]]:
    """By member: how to reach it as the jobs' role, which has a password for once."""
    found = {}
    query(herd.nodes()[0].dsn, "CREATE TABLE read_by_jobs (id int PRIMARY KEY)")
    query(herd.nodes()[0].dsn, "ALTER TABLE read_by_jobs ENABLE ROW LEVEL SECURITY")
    query(herd.nodes()[0].dsn, "INSERT INTO read_by_jobs VALUES (1)")
    for name, dsn, _ in herd.nodes():
        behind_the_herd_s_back(herd, name, f"ALTER ROLE pgherd_jobs PASSWORD '{_PASSWORD}'")
        found[name] = make_conninfo(dsn, user="pgherd_jobs", password=_PASSWORD)
    yield found
    for name in found:
        behind_the_herd_s_back(herd, name, "ALTER ROLE pgherd_jobs PASSWORD NULL")
    query(herd.nodes()[0].dsn, "DROP TABLE read_by_jobs")


@pytest.mark.parametrize("what", _FORBIDDEN)
def test_the_role_can_write_nothing_and_become_nobody(dsns: dict[str, str], what: str) -> None:
    with psycopg.connect(dsns["n1"], autocommit=True) as connection:
        assert connection.execute("SELECT id FROM read_by_jobs").fetchall() == [(1,)]
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(_FORBIDDEN[what].encode())


def test_what_is_in_the_way_of_the_check_is_said(
    herd: LocalHerd, dsns: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    query(herd.nodes()[0].dsn, "CREATE MATERIALIZED VIEW view_of_jobs AS SELECT 1 AS one")
    monkeypatch.setitem(sources._SQL, "settings", sql.SQL("SET lock_timeout = '100ms'"))
    with psycopg.connect(herd.nodes()[0].dsn) as holder, psycopg.connect(dsns["n1"]) as other:
        holder.execute("SET session_replication_role = replica")
        asked = "SELECT pg_export_snapshot(), pg_current_snapshot()::text"
        row = other.execute(asked).fetchone()
        assert row is not None
        source = sources.Source("n1", dsns["n1"], 0, *row)
        found = inspect(source, FULL)
        assert (found.unread, found.beyond, found.faults) == ({}, {}, {})
        holder.execute("REFRESH MATERIALIZED VIEW view_of_jobs")
        holder.execute("LOCK TABLE read_by_jobs IN ACCESS EXCLUSIVE MODE")
        found = inspect(source, FULL)
        holder.rollback()
    why = "canceling statement due to lock timeout"
    assert found.unread == {
        "materialized view public.view_of_jobs": why, "index public.read_by_jobs_pkey": why,
    }  # fmt: skip
    query(herd.nodes()[0].dsn, "DROP MATERIALIZED VIEW view_of_jobs")


def test_what_a_snapshot_carries_besides_rows_is_read(dsns: dict[str, str]) -> None:
    with psycopg.connect(dsns["n1"]) as other:
        row = other.execute("SELECT pg_export_snapshot(), pg_current_snapshot()::text").fetchone()
        assert row is not None
        assert _carried(sources.Source("n1", dsns["n1"], 0, *row))["uses_ours"] == []


@pytest.mark.long
@NEEDS_SPARK
async def test_check_and_snapshot_need_no_more_than_the_role(
    herd: LocalHerd, dsns: dict[str, str], tmp_path: Path
) -> None:
    members = {
        name: replace(member, conninfo=dsns[name]) for name, member in members_of(herd).items()
    }
    description = herds.load(herd.directory.resolve())
    asked = SnapshotOptions(
        DirectoryStore(tmp_path), ("n1",), description.postgres_bin, str(description.cluster_id)
    )
    with cluster("tests", "local[2,1]") as spark:
        findings = await check(spark, members, CheckOptions(), lambda text: None)
        written = await snapshot(spark, members, asked, lambda text: None)
    assert findings.verdict == "consistent"
    tables = require_whole(written)["tables"]
    assert ("public.read_by_jobs", 1) in {(one["name"], one["rows"]) for one in tables}
    assert "PASSWORD 'SCRAM" in written.get("roles.sql").decode()
