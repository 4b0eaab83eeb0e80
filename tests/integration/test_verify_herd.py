"""``verify`` on real nodes: clean under load, and it finds a single row that differs."""

import asyncio
import json
import sys
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from pgherd_operator import verifying
from pgherd_operator.verifying import PodClient
from pgherd_sidecar.client.admin import AdminClient, AdminError
from pgherd_sidecar.client.errors import HerdError
from pgherd_sidecar.local.herd import load
from pgherd_sidecar.local.operations.verify import VerifyOptions
from pgherd_spark.checking.contents import differing, inspect
from pgherd_spark.reading import statements
from pgherd_spark.reading.pace import FULL
from pgherd_spark.reading.sources import Source
from psycopg.conninfo import make_conninfo

from .ledger import Ledger
from .localherd import LocalHerd, home, put, query, settle


def write_behind_the_herd_s_back(herd: LocalHerd, node: str, statement: str) -> None:
    """What only a superuser can do."""
    with psycopg.connect(
        herd.member(node)["dsn"], autocommit=True, options="-c session_replication_role=replica"
    ) as connection:
        connection.execute(statement.encode())


@pytest.mark.parametrize(
    ("damage", "repair"),
    [
        (
            "UPDATE {} SET balance = balance + 1 WHERE id = 42",
            "UPDATE {} SET balance = balance - 1 WHERE id = 42",
        ),
        pytest.param(
            "DELETE FROM {} WHERE id = 42",
            "INSERT INTO {} VALUES (42, 1000)",
            marks=pytest.mark.long,
        ),
    ],
    ids=["a changed row", "a missing row"],
)
def test_a_planted_difference_is_named_by_table_and_key(
    herd: LocalHerd, ledger: Ledger, damage: str, repair: str
) -> None:
    table = f"{ledger.schema}.account"
    write_behind_the_herd_s_back(herd, "n2", damage.format(table))
    done = herd.run("verify", "--json")
    assert done.returncode == 1
    (difference,) = json.loads(done.stdout)["differences"]
    assert difference["table"] == table
    assert "42" in difference["key"]
    write_behind_the_herd_s_back(herd, "n2", repair.format(table))
    herd.must("verify")


def test_a_key_that_is_not_valid_names_no_row(herd: LocalHerd, schema: str) -> None:
    """The key of a partitioned table may be there twice until each partition has it."""
    table = f"{schema}.p"
    query(
        herd.app_dsn("n1"),
        f"CREATE TABLE {table} (id int NOT NULL, v text) PARTITION BY RANGE (id);"
        f"CREATE TABLE {table}1 PARTITION OF {table} FOR VALUES FROM (0) TO (10);"
        f"ALTER TABLE ONLY {table} ADD PRIMARY KEY (id);"
        f"INSERT INTO {table} VALUES (1, 'a'), (1, 'b')",
    )
    settle(herd)
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="no primary key"):
        query(herd.dsn("n1"), f"SELECT pgherd.gid_of_row('{table}', '1')")
    with psycopg.connect(herd.dsn("n1")) as connection:
        read_by_spark = connection.execute(statements.load("catalog.sql")["tables"]).fetchall()
    assert [row[3] for row in read_by_spark if row[0] == table] == [None]
    write_behind_the_herd_s_back(herd, "n2", f"UPDATE {table} SET v = 'c' WHERE v = 'b'")
    found = {one["key"] for one in compared(herd)["differences"]}
    write_behind_the_herd_s_back(herd, "n2", f"UPDATE {table} SET v = 'b' WHERE v = 'c'")
    assert found == {"(1,b)", "(1,c)"}


SHAPES = """
    CREATE SCHEMA shapes AUTHORIZATION app;
    CREATE TABLE shapes.p (k text, id int, v text, PRIMARY KEY (k, id)) PARTITION BY LIST (k);
    CREATE TABLE shapes.p_a PARTITION OF shapes.p FOR VALUES IN ('a');
    CREATE TABLE shapes.p_b PARTITION OF shapes.p FOR VALUES IN ('b');
    INSERT INTO shapes.p SELECT 'a', i, 'v' FROM generate_series(1, 50) i;
    CREATE TABLE shapes.g (id int PRIMARY KEY, v int, d int GENERATED ALWAYS AS (v * 2) STORED);
    INSERT INTO shapes.g (id, v) SELECT i, i FROM generate_series(1, 50) i;
    CREATE INDEX g_v ON shapes.g (v);
    CREATE MATERIALIZED VIEW shapes.m AS SELECT v, d FROM shapes.g;
    CREATE MATERIALIZED VIEW shapes.empty AS SELECT v FROM shapes.g WITH NO DATA;
"""
IN_ANOTHER_LEAF = """
    SET allow_system_table_mods = on;
    BEGIN;
    ALTER TABLE shapes.p_b DISABLE TRIGGER ALL;
    WITH gone AS (DELETE FROM shapes.p_a WHERE id = 7 RETURNING *)
    SELECT * INTO TEMP moved FROM gone;
    UPDATE pg_class SET relispartition = false WHERE oid = 'shapes.p_b'::regclass;
    INSERT INTO shapes.p_b SELECT * FROM moved;
    UPDATE pg_class SET relispartition = true WHERE oid = 'shapes.p_b'::regclass;
    ALTER TABLE shapes.p_b ENABLE TRIGGER ALL;
    COMMIT;
"""
BACK_IN_ITS_LEAF = """
    BEGIN;
    WITH gone AS (DELETE FROM shapes.p_b WHERE id = 7 RETURNING *)
    SELECT * INTO TEMP moved FROM gone;
    INSERT INTO shapes.p SELECT * FROM moved;
    COMMIT;
"""
GENERATED_BY_HAND = """
    SET allow_system_table_mods = on;
    BEGIN;
    UPDATE pg_attribute SET attgenerated = {}
     WHERE attrelid = 'shapes.g'::regclass AND attname = 'd';
    {}
    UPDATE pg_attribute SET attgenerated = 's'
     WHERE attrelid = 'shapes.g'::regclass AND attname = 'd';
    COMMIT;
"""
UNSEEN_BY_THE_INDEX = """
    SET allow_system_table_mods = on;
    UPDATE pg_index SET indisready = {} WHERE indexrelid = 'shapes.g_v'::regclass;
"""


@pytest.fixture
def shapes(herd: LocalHerd) -> Iterator[None]:
    put(herd, herd.dsn("n1"), SHAPES)
    yield
    put(herd, herd.dsn("n1"), "DROP SCHEMA shapes CASCADE")


def compared(herd: LocalHerd) -> dict[str, Any]:
    """What verify says, with its exit status put to the test."""
    settle(herd)
    done = herd.run("verify", "--json")
    assert done.stdout, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (0 if said["identical"] else 1)
    return said


async def inspected(herd: LocalHerd) -> list[tuple[str, str, tuple[str, ...]]]:
    """What the check on Spark finds beside rows, with the rights that it has on Kubernetes."""
    found = load(home(herd))
    clients = {one.name: found.node(one.name) for one in found.databases}
    admins = {name: AdminClient(node.admin_socket) for name, node in clients.items()}
    marker = await admins["n1"].order_marker()
    contents = []
    for name, admin in admins.items():
        await admin.wait_marker(marker.id, 60)
        lease = await admin.lease_marker(marker.id, 60)
        conninfo = make_conninfo(herd.dsn(name), options="-c role=pgherd_jobs")
        source = Source(name, conninfo, lease.gid, lease.snapshot, lease.visible)
        contents.append(await asyncio.to_thread(inspect, source, FULL))
        await admin.drop_marker(marker.id)
    return [(one.kind, one.name, one.odd) for one in differing(contents, {})]


@pytest.mark.long
@pytest.mark.usefixtures("shapes")
def test_views_leaves_generated_columns_and_indexes_are_compared(herd: LocalHerd) -> None:
    def differences() -> list[tuple[str, str, str]]:
        return [(d["table"], d["kind"], d["key"]) for d in compared(herd)["differences"]]

    said = compared(herd)
    assert said["identical"]
    tables = {table["table"]: table["nodes"]["n3"] for table in said["tables"]}
    assert tables["shapes.m"]["rows"] == 50
    assert tables["shapes.empty"]["checksum"] == "not populated"
    assert all(one["available"] and one["checked"] > 3 for one in said["indexes"].values())

    # A row is where the partitioning says on two members, and elsewhere on the third.
    write_behind_the_herd_s_back(herd, "n2", IN_ANOTHER_LEAF)
    assert differences() == [("shapes.p", "row", "(a,7)")]
    assert "in shapes.p_b" in compared(herd)["differences"][0]["versions"]["n2"]
    write_behind_the_herd_s_back(herd, "n2", BACK_IN_ITS_LEAF)
    assert compared(herd)["identical"]

    # A materialized view has another row: it was refreshed between two writes that were undone.
    write_behind_the_herd_s_back(
        herd,
        "n3",
        "UPDATE shapes.g SET v = 100 WHERE id = 5; REFRESH MATERIALIZED VIEW shapes.m;"
        " UPDATE shapes.g SET v = 5 WHERE id = 5",
    )
    assert set(differences()) == {("shapes.m", "row", "(100,200)"), ("shapes.m", "row", "(5,10)")}
    assert asyncio.run(inspected(herd)) == [("materialized view contents", "shapes.m", ("n3",))]
    write_behind_the_herd_s_back(herd, "n3", "REFRESH MATERIALIZED VIEW shapes.m")
    assert asyncio.run(inspected(herd)) == []
    assert compared(herd)["identical"]

    # It is populated on one member only.
    write_behind_the_herd_s_back(herd, "n1", "REFRESH MATERIALIZED VIEW shapes.empty")
    said = compared(herd)
    (found,) = (table for table in said["tables"] if not table["identical"])
    assert found["table"] == "shapes.empty"
    write_behind_the_herd_s_back(herd, "n1", "REFRESH MATERIALIZED VIEW shapes.empty WITH NO DATA")
    assert compared(herd)["identical"]

    # A generated column has another value than its expression says.
    by_hand = GENERATED_BY_HAND.format("''", "UPDATE shapes.g SET d = 1000 WHERE id = 9;")
    write_behind_the_herd_s_back(herd, "n2", by_hand)
    assert differences() == [("shapes.g", "row", "(9)")]
    write_behind_the_herd_s_back(herd, "n2", "UPDATE shapes.g SET v = v WHERE id = 9")
    assert compared(herd)["identical"]

    # An index of one member has not been told of a row that the herd has written meanwhile.
    write_behind_the_herd_s_back(herd, "n3", UNSEEN_BY_THE_INDEX.format("false"))
    put(herd, herd.dsn("n1"), "INSERT INTO shapes.g (id, v) VALUES (1000, 1000)")
    write_behind_the_herd_s_back(herd, "n3", UNSEEN_BY_THE_INDEX.format("true"))
    said = compared(herd)
    assert not said["differences"]
    faults = {name: one["faults"] for name, one in said["indexes"].items()}
    assert faults["n1"] == faults["n2"] == {}
    assert list(faults["n3"]) == ["shapes.g_v"]
    assert "lacks matching index tuple" in faults["n3"]["shapes.g_v"]
    assert "n3: index shapes.g_v differs from its table" in herd.run("verify").stdout
    assert asyncio.run(inspected(herd)) == [("index contents", "shapes.g_v", ("n3",))]
    write_behind_the_herd_s_back(herd, "n3", "REINDEX INDEX shapes.g_v")
    assert compared(herd)["identical"]


@pytest.mark.long
async def test_it_is_clean_at_every_moment_of_a_load(herd: LocalHerd, ledger: Ledger) -> None:
    async with ledger.load(clients=4):
        for _ in range(3):
            await ledger.commits(100)
            await asyncio.to_thread(herd.must, "verify")
    ledger.check()


RELAY = [sys.executable, "-m", "pgherd_sidecar.cli.main", "relay"]
"""In place of a kubectl that executes it in a pod."""


def pods(herd: LocalHerd, *names: str) -> dict[str, PodClient]:
    found = load(home(herd))
    sockets = {one.name: found.node(one).admin_socket for one in found.databases}
    return {name: PodClient([*RELAY, f"--admin={sockets[name]}"], name) for name in names}


@pytest.mark.long
async def test_members_in_pods_are_compared_by_requests_that_are_relayed(
    herd: LocalHerd, ledger: Ledger
) -> None:
    table, asked = f"{ledger.schema}.account", VerifyOptions(False, 100, 60)
    found = await verifying.verify(pods(herd, "n1", "n2", "n3"), asked)
    assert found.identical
    assert table in {one.name for one in found.tables}
    damage = f"UPDATE {table} SET balance = balance {{}} 1 WHERE id = 42"
    write_behind_the_herd_s_back(herd, "n2", damage.format("+"))
    found = await verifying.verify(pods(herd, "n1", "n2", "n3"), asked)
    write_behind_the_herd_s_back(herd, "n2", damage.format("-"))
    (difference,) = found.differences
    assert difference.table == table
    assert set(difference.versions) == {"n1", "n2", "n3"}


async def test_a_member_without_a_pod_is_missed(herd: LocalHerd, ledger: Ledger) -> None:
    with pytest.raises(HerdError, match=r"not every member is up \(n2 does not answer\)"):
        await verifying.verify(pods(herd, "n1", "n3"), VerifyOptions(False, 100, 60))
    found = await verifying.verify(pods(herd, "n1", "n3"), VerifyOptions(True, 100, 60))
    assert found.identical
    assert found.skipped == ("n2",)
    assert f"{ledger.schema}.account" in {one.name for one in found.tables}


async def test_what_a_relay_complains_of_is_told() -> None:
    broken = PodClient(["sh", "-c", "echo 'error: no such pod' >&2; exit 1"], "herd-1")
    with pytest.raises(AdminError, match="no such pod"):
        await broken.status()
    with pytest.raises(HerdError, match="no sidecar answers"):
        await verifying.verify({"herd-1": broken}, VerifyOptions(False, 100, 60))
