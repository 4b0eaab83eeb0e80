"""The jobs on Spark, on real nodes: what differs is named, and nothing else ever is."""

import asyncio
import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pgherd_sidecar.local import herd as herds
from pgherd_spark.checking import report
from pgherd_spark.checking.check import check
from pgherd_spark.checking.findings import Findings
from pgherd_spark.reading.cluster import Cluster, JobError
from pgherd_spark.reading.cluster import cluster as start
from pgherd_spark.reading.comparison import CheckOptions
from pgherd_spark.reading.leases import LeaseError
from pgherd_spark.reading.pace import FULL, GENTLE
from pgherd_spark.snapshots import snapshot as snapshots
from pgherd_spark.storing.layout import require_whole
from pgherd_spark.storing.parts import PartError
from pgherd_spark.storing.stores import DirectoryStore

from .alike import ALIKE
from .ledger import INITIAL, Ledger, create_everywhere
from .localherd import LocalHerd, query
from .sparkherd import NEEDS_SPARK, behind_the_herd_s_back, members_of, run_job

pytestmark = [NEEDS_SPARK, pytest.mark.timeout(600)]

_SMALL_PARTS = 64 << 10


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with start("tests", "local[2,1]") as running:
        yield running


def only_entry(directory: Path) -> Path:
    (entry,) = directory.iterdir()
    return entry


async def checked(
    cluster: Cluster, herd: LocalHerd, max_rows: int = 100, share: int = FULL
) -> Findings:
    asked = CheckOptions(part_bytes=_SMALL_PARTS, max_rows=max_rows, share=share)
    return await check(cluster, members_of(herd), asked, lambda text: None)


@pytest.mark.long
async def test_the_check_is_never_wrong_about_nodes_that_are_equal_while_everything_changes(
    herd: LocalHerd, cluster: Cluster, ledger: Ledger
) -> None:
    name, dsn = ledger.schema, herd.nodes()[0].dsn
    commands = [
        f"CREATE TABLE IF NOT EXISTS {name}.changing (id int PRIMARY KEY, t text)",
        f"INSERT INTO {name}.changing SELECT g, 'x' FROM generate_series(1, 500) g",
        f"CREATE INDEX i ON {name}.changing (t)",
        f"ALTER TABLE {name}.changing ALTER id TYPE bigint",
        f"TRUNCATE {name}.changing",
        f"DROP TABLE {name}.changing",
    ]
    stop = asyncio.Event()

    async def change() -> None:
        while not stop.is_set():
            for command in commands:
                await asyncio.to_thread(query, dsn, command)

    async with ledger.load(clients=2), asyncio.TaskGroup() as group:
        group.create_task(change())
        try:
            found = [await checked(cluster, herd) for _ in range(3)]
        finally:
            stop.set()
    for findings in found:
        assert (findings.definitions, findings.rows) == ((), ())
        assert findings.verdict in ("consistent", "incomplete")
        ledger_rows = {one.name: one for one in findings.tables}[f"{name}.ledger"]
        assert ledger_rows.verdict == "consistent"
        assert len(set(ledger_rows.rows.values())) == 1
    ledger.check()
    assert (await checked(cluster, herd)).verdict == "consistent"


@pytest.mark.long
async def test_one_changed_value_of_one_row_of_one_node_is_named_in_every_type(
    herd: LocalHerd, cluster: Cluster, ledger: Ledger, tmp_path: Path
) -> None:
    table = f"{ledger.schema}.types"
    columns = ", ".join(f"{column} {kind}" for column, (kind, _, _) in ALIKE.items())
    values = ", ".join(f"{value}::{kind}" for kind, value, _ in ALIKE.values())
    create_everywhere(
        herd,
        f'CREATE TABLE {table} ("The key" int PRIMARY KEY, {columns});'
        f"INSERT INTO {table} SELECT g, {values} FROM generate_series(0, 999) g",
    )
    behind_the_herd_s_back(
        herd,
        "n2",
        *(
            f'UPDATE {table} SET {column} = {other}::{kind} WHERE "The key" = {number}'
            for number, (column, (kind, _, other)) in enumerate(ALIKE.items(), 100)
        ),
        f'DELETE FROM {table} WHERE "The key" = 99',
        f'INSERT INTO {table} ("The key") VALUES (1000)',
    )
    progress: list[tuple[int, int]] = []
    cluster.on_progress = lambda done, tasks: progress.append((done, tasks))
    findings = await checked(cluster, herd)
    assert progress[0] == (1, 3)  # the catalogs of three members
    assert progress[-1][0] == progress[-1][1]
    assert findings.verdict == "different"
    assert {row.table for row in findings.rows} == {table}
    assert {row.odd for row in findings.rows} == {("n2",)}
    named = {row.key: row for row in findings.rows}
    assert {key: row.columns for key, row in named.items()} == {
        **{f"({n})": (column,) for n, column in enumerate(ALIKE, 100)},
        "(99)": (),
        "(1000)": (),
    }
    missing = named["(99)"].versions
    assert (missing["n2"], missing["n1"] is None, missing["n3"] is None) == (None, False, False)
    assert named["(1000)"].versions["n1"] is None
    assert findings.odd_members == ("n2",)
    report.write(cluster, findings, tmp_path / "report")
    written = json.loads((tmp_path / "report" / "report.json").read_text())
    assert (written["verdict"], written["gid"]) == ("different", findings.gid)
    rows = cluster.session.read.parquet(str(tmp_path / "report" / "rows.parquet")).collect()
    assert {(row.key, row.member) for row in rows if row.odd} == {(key, "n2") for key in named}
    assert "c_money = $2.00" in (tmp_path / "report" / "report.html").read_text()

    gentle = await checked(cluster, herd, share=GENTLE)
    assert {row.key: row.columns for row in gentle.rows} == {
        key: row.columns for key, row in named.items()
    }

    few = await checked(cluster, herd, max_rows=3)
    (result,) = (one for one in few.tables if one.name == table)
    assert (len(few.rows), result.different_rows, result.more) == (3, len(ALIKE) + 2, True)


@pytest.mark.long
async def test_values_that_two_rows_have_exchanged_are_named(
    herd: LocalHerd, cluster: Cluster, ledger: Ledger
) -> None:
    table = f"{ledger.schema}.exchanged"
    create_everywhere(
        herd,
        f"CREATE TABLE {table} (id int PRIMARY KEY, a int, b numeric, c uuid);"
        f"INSERT INTO {table} SELECT g, g, g, md5(g::text)::uuid FROM generate_series(1, 9) g",
    )
    exchange = (
        "UPDATE {0} t SET {1} = o.{1} FROM {0} o"
        " WHERE t.id IN ({2}, {3}) AND o.id IN ({2}, {3}) AND o.id <> t.id"
    )
    behind_the_herd_s_back(
        herd, "n3", *(exchange.format(table, *one) for one in (("a", 1, 2), ("b", 3, 4)))
    )
    findings = await checked(cluster, herd)
    assert {(row.key, row.columns, row.odd) for row in findings.rows} == {
        *((f"({key})", ("a",), ("n3",)) for key in (1, 2)),
        *((f"({key})", ("b",), ("n3",)) for key in (3, 4)),
    }


@pytest.mark.long
async def test_what_is_defined_on_one_node_only_is_named(
    herd: LocalHerd, cluster: Cluster, ledger: Ledger
) -> None:
    name = ledger.schema
    create_everywhere(
        herd,
        f"CREATE TABLE {name}.d (id int PRIMARY KEY, a int, b int);"
        f"CREATE INDEX dropped ON {name}.d (a); CREATE SEQUENCE {name}.s",
    )
    behind_the_herd_s_back(
        herd,
        "n3",
        f"CREATE TABLE {name}.extra (id int PRIMARY KEY)",
        f"DROP INDEX {name}.dropped",
        f"CREATE INDEX extra_index ON {name}.d (b)",
        f"ALTER TABLE {name}.d ALTER a SET DEFAULT 7",
        f"ALTER SEQUENCE {name}.s MAXVALUE 1000000",
        _connections_of_app(7),
    )
    try:
        findings = await checked(cluster, herd)
    finally:
        behind_the_herd_s_back(herd, "n3", _connections_of_app(-1))
    found = {(one.kind, one.name): one for one in findings.definitions}
    assert found.keys() == {
        ("column", f"{name}.d.a"),
        ("column", f"{name}.extra.id"),
        ("constraint", f"{name}.extra.extra_pkey"),
        ("index", f"{name}.dropped"),
        ("index", f"{name}.extra_index"),
        ("index", f"{name}.extra_pkey"),
        ("role", "app"),
        ("sequence", f"{name}.s"),
        ("table", f"{name}.extra"),
    }
    assert {one.odd for one in found.values()} == {("n3",)}
    assert found["index", f"{name}.dropped"].versions["n3"] is None
    assert findings.verdict == "different"


def _connections_of_app(limit: int) -> str:
    """Alter a role as if all members had done so: else it would come to them all."""
    return (
        f"ALTER ROLE app CONNECTION LIMIT {limit}; UPDATE pgherd.shared"
        f""" SET value = value || '{{"CONNECTION LIMIT": {limit}}}' WHERE key = '{{role,app}}'"""
    )


def held_snapshots(herd: LocalHerd) -> dict[str, int]:
    """How many each member holds: other tests' jobs that were killed have leases for a while."""
    held = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgherd marker'"
    return {node.name: query(node.dsn, held)[0][0] for node in herd.nodes()}


@pytest.mark.long
def test_the_command_repairs_the_node_that_a_majority_contradicts(
    herd: LocalHerd, work_directory: Path
) -> None:
    name = f"s_{random.getrandbits(40):x}"
    create_everywhere(
        herd, f"CREATE TABLE {name} AS SELECT 1 AS a; ALTER TABLE {name} ADD PRIMARY KEY (a)"
    )
    behind_the_herd_s_back(herd, "n2", f"UPDATE {name} SET a = 2", f"CREATE INDEX ON {name} (a)")
    report_directory = work_directory / "report"
    before = held_snapshots(herd)
    try:
        done = run_job(herd, "check", "--repair", "--report", str(report_directory))
        assert done.returncode == 0, done.stderr
        differs = f"public.{name} (2) differs: missing on n1, n3; against the majority: n2"
        assert differs in done.stderr
        assert f"index public.{name}_a_idx differs" in done.stderr
        assert done.stdout.splitlines()[-1].startswith("consistent at GID ")
        assert json.loads((report_directory / "report.json").read_text())["verdict"] == "consistent"
        herd.must("verify")
    finally:  # others use the herd
        query(herd.nodes()[0].dsn, f"DROP TABLE {name}")
    left = held_snapshots(herd)
    assert {name: left[name] <= before[name] for name in before} == dict.fromkeys(before, True)


@pytest.mark.long
async def test_a_snapshot_taken_under_load_seeds_a_new_herd_with_exactly_the_rows_of_its_gid(
    herd: LocalHerd, fresh: LocalHerd, cluster: Cluster, ledger: Ledger, work_directory: Path
) -> None:
    name = ledger.schema
    query(
        herd.app_dsn("n1"),
        f'CREATE TABLE {name}."Odd name" (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,'
        f" t text UNIQUE, twice int GENERATED ALWAYS AS (id * 2) STORED, f float8);"
        f'INSERT INTO {name}."Odd name" (t, f) SELECT g::text, g / 3.0'
        f" FROM generate_series(1, 3000) g;"
        f"CREATE TABLE {name}.parted (id int, t text, PRIMARY KEY (id)) PARTITION BY RANGE (id);"
        f"CREATE TABLE {name}.low PARTITION OF {name}.parted FOR VALUES FROM (0) TO (500);"
        f"CREATE TABLE {name}.high PARTITION OF {name}.parted DEFAULT;"
        f"INSERT INTO {name}.parted SELECT g, NULL FROM generate_series(1, 1000) g;"
        f"CREATE VIEW {name}.gid AS SELECT pgherd.last_gid() AS gid;"
        f"CREATE VIEW {name}.view AS SELECT count(*) FROM {name}.parted;"
        f'CREATE MATERIALIZED VIEW {name}.sums AS SELECT count(*) FROM {name}."Odd name"',
    )
    herd.must("verify")
    to = work_directory / "snapshots"
    to.mkdir(exist_ok=True)
    options = snapshots.SnapshotOptions(
        to=DirectoryStore(to),
        read=("n1", "n2"),
        programs=herds.load(herd.directory.resolve()).postgres_bin,
        cluster_id="of this test",
        part_bytes=_SMALL_PARTS,
        share=50,
    )
    async with ledger.load(clients=2):
        await ledger.commits(100)
        await snapshots.snapshot(cluster, members_of(herd), options, print)
        await ledger.commits(20)
    ledger.check()
    directory = only_entry(to)
    manifest = json.loads((directory / "manifest.json").read_text())
    tables = {table["name"]: table for table in manifest["tables"]}
    assert {part["member"] for table in tables.values() for part in table["parts"]} == {"n1", "n2"}
    assert len(tables[f'{name}."Odd name"']["parts"]) > 1
    for path in (to, *to.rglob("*")):
        shutil.chown(path, os.environ.get("PGHERD_TEST_USER", "postgres"))

    del fresh.environment["PGHERD_SIDECAR_SCRIPT"]
    seed = ["seed", "--snapshot", str(directory), "--port-base", str(fresh.port_base)]
    done = run_job(fresh, *seed)
    assert done.returncode == 0, done.stderr
    numbers = []
    for member in fresh.members():
        balance = f"SELECT sum(balance) FROM {name}.account"
        assert query(member["dsn"], balance) == [(INITIAL * ledger.accounts,)]
        transfers = query(member["dsn"], f"SELECT count(*) FROM {name}.ledger")
        assert transfers == [(tables[f"{name}.ledger"]["rows"],)]
        assert query(member["dsn"], f"SELECT * FROM {name}.view") == [(1000,)]
        assert query(member["app_dsn"], f"SELECT gid IS NOT NULL FROM {name}.gid") == [(True,)]
        assert query(member["dsn"], f"SELECT * FROM {name}.sums") == [(3000,)]
        added = f'INSERT INTO {name}."Odd name" (t) VALUES (gen_random_uuid()) RETURNING id'
        numbers += query(fresh.app_dsn(member["name"]), added)
    fresh.must("verify")
    ids = query(herd.app_dsn("n1"), f'SELECT max(id) FROM {name}."Odd name"')
    assert min(numbers) > ids[0]
    assert len(set(numbers)) == len(numbers)


async def test_a_snapshot_that_was_interrupted_is_finished_and_one_that_is_damaged_is_refused(
    herd: LocalHerd, cluster: Cluster, ledger: Ledger, tmp_path: Path
) -> None:
    members = members_of(herd)
    options = snapshots.SnapshotOptions(
        to=DirectoryStore(tmp_path),
        read=("n1",),
        programs=herds.load(herd.directory.resolve()).postgres_bin,
        cluster_id="of this test",
    )

    def stop_before_the_end(text: str) -> None:
        if text.startswith("reading all parts back"):
            raise RuntimeError("the driver dies")

    with pytest.raises(RuntimeError, match="the driver dies"):
        await snapshots.snapshot(cluster, members, options, stop_before_the_end)
    begun = only_entry(tmp_path)
    with pytest.raises(PartError, match="holds no whole snapshot"):
        require_whole(DirectoryStore(begun))
    written = {path: path.stat().st_mtime_ns for path in begun.rglob("*.zst")}
    query(herd.app_dsn("n1"), f"UPDATE {ledger.schema}.account SET balance = balance + 1")

    finished = await snapshots.snapshot(cluster, members, options, print)
    assert finished == DirectoryStore(begun)
    manifest = require_whole(finished)
    assert {path: path.stat().st_mtime_ns for path in begun.rglob("*.zst")} == written
    assert f"gid-{manifest['gid']:012}" in begun.name
    account = next(t for t in manifest["tables"] if t["name"] == f"{ledger.schema}.account")
    part = begun / account["parts"][0]["path"]
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    with pytest.raises(PartError, match="is not what was written"):
        require_whole(finished)


@pytest.mark.long
async def test_a_member_that_loses_its_snapshot_ends_the_job(
    herd: LocalHerd, cluster: Cluster, ledger: Ledger
) -> None:
    def lose_it(text: str) -> None:
        if text.startswith("checksums of"):
            query(
                herd.dsn("n2"),
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'pgherd marker'",
            )

    with pytest.raises((JobError, LeaseError), match="snapshot"):
        await check(cluster, members_of(herd), CheckOptions(), lose_it)
    assert (await checked(cluster, herd)).verdict == "consistent"
