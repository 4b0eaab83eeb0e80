"""A node made from rows in place of files: of a partner's dump, or of a snapshot, under load."""

import asyncio
import contextlib
import os
import random
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pgherd_sidecar.local import herd as herds
from pgherd_sidecar.local.sidecar import Sidecar
from pgherd_spark.reading import statements
from pgherd_spark.snapshots import snapshot as snapshots
from pgherd_spark.storing import stores
from pgherd_spark.storing.layout import require_described
from pgherd_spark.storing.stores import DirectoryStore, Store

from .installations import OTHERS, usable
from .ledger import new_ledger
from .localherd import LocalHerd, error_of, free_port_base, home, pids_in, query, standing
from .s3server import NEEDS_S3, bucket
from .sparkherd import NEEDS_PYARROW, OneByOne, members_of
from .test_recovery import keeping_little, progress, trimmed_beyond, until
from .test_restart import run

pytestmark = pytest.mark.long

_MOST = 8
_STRUCTURE = statements.load("structure.sql")["structure"].as_string(None)
_CONTENTS = """
CREATE SCHEMA {0};
SET search_path = {0};
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE DOMAIN small AS int CHECK (VALUE < 100000);
CREATE FUNCTION stamped() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN NEW.stamp := 'by trigger'; RETURN NEW; END $$;
CREATE TABLE "Odd ""Name" (m mood, "K" text, n int GENERATED ALWAYS AS IDENTITY, gone int,
                           d small, stamp text, PRIMARY KEY (m, "K"));
ALTER TABLE "Odd ""Name" DROP COLUMN gone;
CREATE TRIGGER mine BEFORE INSERT ON "Odd ""Name" FOR EACH ROW EXECUTE FUNCTION stamped();
INSERT INTO "Odd ""Name" (m, "K") SELECT 'happy', g FROM generate_series(1, 500) g;
CREATE TABLE parted (id int, t text, PRIMARY KEY (id)) PARTITION BY HASH (id);
CREATE TABLE p0 PARTITION OF parted FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE p1 PARTITION OF parted FOR VALUES WITH (MODULUS 2, REMAINDER 1);
INSERT INTO parted SELECT g, g FROM generate_series(1, 500) g;
CREATE TABLE child (id serial PRIMARY KEY, parent int REFERENCES parted, u uuid UNIQUE);
INSERT INTO child (parent, u) SELECT g, gen_random_uuid() FROM generate_series(1, 100) g;
CREATE VIEW seen AS SELECT count(*) AS c FROM parted;
CREATE MATERIALIZED VIEW counted AS SELECT count(*) AS c FROM child;
CREATE SEQUENCE loose INCREMENT BY 2;
CREATE VIEW gid AS SELECT pgherd.last_gid() AS gid;
CREATE TABLE kept (id serial PRIMARY KEY, t text, token text DEFAULT pgherd.current_token());
COMMENT ON TABLE kept IS 'a comment';
GRANT SELECT ON child TO PUBLIC;
SELECT pgherd.set_local('kept');
"""
_LOCAL = "INSERT INTO {0}.kept (t) VALUES ('of one node'); SELECT nextval('{0}.loose')"


NEEDS_TWO_MAJORS = pytest.mark.skipif(
    len(usable()) < 2,
    reason=f"ONE POSTGRESQL: two versions in a herd are NOT tested. Name one in {OTHERS}",
)


@contextlib.contextmanager
def herd_of(directory: Path, nodes: int, **environment: str) -> Iterator[LocalHerd]:
    herd = LocalHerd(directory, free_port_base(_MOST), environment)
    with standing(herd, "--nodes", str(nodes)):
        yield herd


def fill(herd: LocalHerd) -> str:
    """Make a schema with some of all that users make, and return its name."""
    name = f"c_{random.getrandbits(40):x}"
    first = herd.members()[0]
    query(first["app_dsn"], _CONTENTS.format(name))
    query(first["app_dsn"], _LOCAL.format(name))
    query(
        first["dsn"],
        f"SELECT pgherd.run_everywhere('CREATE ROLE {name} LOGIN CONNECTION LIMIT 7');"
        f"GRANT INSERT ON {name}.child TO {name}",
    )
    return name


def assert_a_member_like_the_others(herd: LocalHerd, node: str, name: str) -> None:
    """It has their definitions, what is in no row, and numbers and local rows of its own."""
    members = {one["name"]: one for one in herd.members()}
    old, new = members["n1"], members[node]
    definitions = [{row[:3] for row in query(one["dsn"], _STRUCTURE)} for one in (old, new)]
    assert definitions[0] ^ definitions[1] == set()
    for same in (
        "SELECT rolname::text, rolpassword FROM pg_authid WHERE rolcanlogin ORDER BY 1",
        f"SELECT * FROM {name}.counted",
        f"SELECT obj_description('{name}.kept'::regclass)",
        "SELECT name FROM pgherd.local_tables ORDER BY 1",
        "SELECT key, value FROM pgherd.shared ORDER BY 1",
        "SELECT key, value FROM pgherd.shared_now() ORDER BY 1",
    ):
        assert query(old["dsn"], same) == query(new["dsn"], same)
    assert query(new["dsn"], f"SELECT * FROM {name}.kept") == []
    assert len(query(old["dsn"], f"SELECT * FROM {name}.kept")) == 1
    given = set()
    for one in (new, old):  # the numbers differ, though both have come from where n1 was
        query(one["app_dsn"], f"INSERT INTO {name}.kept (t) VALUES ('mine')")
        given |= set(query(one["app_dsn"], f"SELECT nextval('{name}.loose')"))
        given |= set(query(one["app_dsn"], f"INSERT INTO {name}.child DEFAULT VALUES RETURNING id"))
        query(
            one["app_dsn"],
            f"""INSERT INTO {name}."Odd ""Name" (m, "K") VALUES ('sad', 'of {one["name"]}')""",
        )
    assert len(given) == 4
    herd.must("verify")
    stamps = query(new["dsn"], f"""SELECT DISTINCT stamp FROM {name}."Odd ""Name" """)
    assert stamps == [("by trigger",)]


async def kill_in(herd: LocalHerd, node: str, phase: str) -> None:
    """Have a node's sidecar die in a phase."""
    await until(herd, node, phase, lambda: progress(herd, node)["phase"] == phase)
    description = herds.load(home(herd))
    running = Sidecar(description, description.member(node)).process()
    assert running is not None
    running.signal(signal.SIGKILL)


@pytest.mark.long
async def test_a_node_is_made_from_a_dump_under_load_though_it_dies_in_every_phase(
    work_directory: Path,
) -> None:
    with herd_of(work_directory / "dumped", 2) as herd:
        name, ledger = fill(herd), new_ledger(herd)
        add = ("add", "n3", "--method", "dump")
        async with ledger.load(1):
            await ledger.commits(20)
            for phase in ("copying", "loading", "settling"):
                adding = asyncio.create_task(asyncio.to_thread(herd.run, *add))
                await kill_in(herd, "n3", phase)
                assert "sidecar of n3" in error_of(await adding)
                query(herd.app_dsn("n1"), f"CREATE TABLE {name}.{phase} (id int PRIMARY KEY)")
                role = f"SELECT pgherd.run_everywhere('CREATE ROLE {name}_{phase}')"
                query(herd.dsn("n1"), role)
            await run(herd, *add)
            async with ledger.load(1, on=["n3"]):
                await ledger.commits(20, on=["n1", "n2", "n3"])
        ledger.check()
        assert_a_member_like_the_others(herd, "n3", name)
        assert [path.name for path in (home(herd) / "n3").glob("pgdata*")] == ["pgdata"]
        assert pids_in(home(herd) / "n3" / "pgdata.copy") == []
        error = error_of(herd.run("add", "--method", "dump", "--max-rate", "1"))
        assert "only a base backup" in error


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (
            "CREATE TABLE par (id int PRIMARY KEY, a text);"
            " CREATE TABLE kid (own text, PRIMARY KEY (id)) INHERITS (par);"
            " ALTER TABLE par ADD late text",
            "a dump gives table public.kid its columns in the order id, a, late, own",
        ),
        (
            "CREATE EXTENSION tablefunc; CREATE TABLE added (id int PRIMARY KEY);"
            " ALTER EXTENSION tablefunc ADD TABLE added",
            "a dump leaves table public.added out",
        ),
    ],
    ids=["order", "left_out"],
)
def test_a_node_is_not_made_from_a_dump_that_changes_the_columns(
    work_directory: Path, made: str, told: str
) -> None:
    """Records name columns by their place: rows of the new member would be others."""
    with herd_of(work_directory / "columns", 1) as herd:
        query(herd.dsn("n1"), made)
        error = error_of(herd.run("add", "n2", "--method", "dump"))
        assert told in error
        assert "base backup" in error
        assert "primary" in herd.must("status")


@NEEDS_TWO_MAJORS
async def test_a_herd_moves_to_a_newer_major_version_node_by_node(work_directory: Path) -> None:
    older, *_, newer = usable().values()
    directory = work_directory / "majors"
    herd = LocalHerd(directory, free_port_base(_MOST))
    with standing(herd, "--nodes", "1", "--postgres-bin", str(older)):
        name, ledger = fill(herd), new_ledger(herd)
        assert "add --method dump" in error_of(herd.run("add", "--postgres-bin", str(newer)))
        async with ledger.load(1, on=["n1"]):
            await run(herd, "add", "n2", "--postgres-bin", str(newer), "--method", "dump")
            async with ledger.load(1, on=["n2"]):
                await ledger.commits(50, on=["n1", "n2"])
            versions = {query(one["dsn"], "SHOW server_version_num")[0] for one in herd.members()}
            assert len(versions) == 2
        query(herd.app_dsn("n2"), f"INSERT INTO {name}.child DEFAULT VALUES")
        ledger.check()
        herd.must("remove", "n1")
        query(herd.app_dsn("n2"), f"INSERT INTO {name}.child DEFAULT VALUES")


async def snapshot_of(herd: LocalHerd, to: Store, hold_s: float, **more: Any) -> Store:
    """A snapshot of n1's rows, made without Spark."""
    description = herds.load(home(herd))
    options = snapshots.SnapshotOptions(
        to=to,
        read=("n1",),
        programs=description.postgres_bin,
        cluster_id=str(description.cluster_id),
        hold_s=hold_s,
        **more,
    )
    return await snapshots.snapshot(OneByOne(), members_of(herd), options, print)


@NEEDS_PYARROW
async def test_a_node_joins_from_a_snapshot_as_long_as_the_log_behind_it_is_kept(
    work_directory: Path,
) -> None:
    with herd_of(work_directory / "carried", 2, **keeping_little(work_directory)) as herd:
        name, ledger = fill(herd), new_ledger(herd)
        query(herd.dsn("n1"), "CREATE ROLE by_hand; GRANT app TO by_hand")
        query(herd.app_dsn("n1"), f"CREATE TABLE {name}.turned (a int PRIMARY KEY, b int, c int)")
        to = work_directory / "carried.snapshots"

        async def taken(hold_s: float) -> Path:
            made = await snapshot_of(herd, DirectoryStore(to), hold_s)
            for path in (to, *to.rglob("*")):
                shutil.chown(path, os.environ.get("PGHERD_TEST_USER", "postgres"))
            return Path(str(made))

        async with ledger.load(1):
            await ledger.commits(20)
            forgotten = await taken(0)
            for node in ("n1", "n2"):
                await trimmed_beyond(herd, ledger, node, int(forgotten.name.split("-")[1]))
            refused = await asyncio.to_thread(herd.run, "add", "n3", "--snapshot", str(forgotten))
            assert "needs the log from GID" in error_of(refused)
            await run(herd, "remove", "n3")
            held = await taken(3600)
            query(herd.app_dsn("n1"), f"ALTER TABLE {name}.turned DROP b, ADD b int")
            await ledger.commits(500, on=["n1", "n2"])
            adding = asyncio.create_task(
                asyncio.to_thread(herd.run, "add", "n3", "--snapshot", str(held))
            )
            await kill_in(herd, "n3", "loading")
            assert "sidecar of n3" in error_of(await adding)
            await run(herd, "add", "n3")
            async with ledger.load(1, on=["n3"]):
                await ledger.commits(20, on=["n1", "n2", "n3"])
        ledger.check()
        assert_a_member_like_the_others(herd, "n3", name)


@pytest.mark.long
@NEEDS_PYARROW
@NEEDS_S3
async def test_a_node_joins_from_a_snapshot_in_a_bucket_though_a_part_is_not_there_at_first(
    work_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        bucket(work_directory / "joined.s3") as made,
        herd_of(work_directory / "joined", 2) as herd,
    ):
        for variable, value in made.environment.items():
            monkeypatch.setenv(variable, value)
        name, ledger = fill(herd), new_ledger(herd)
        place = ("--snapshot", f"{made.url}/herds", "--s3-endpoint", made.endpoint)
        assert "holds no snapshot that is whole" in error_of(herd.run("add", "n3", *place))
        assert {one["name"] for one in herd.members()} == {"n1", "n2"}
        to = stores.at(f"{made.url}/herds", made.endpoint)
        async with ledger.load(1):
            await ledger.commits(20)
            taken = await snapshot_of(herd, to, 3600, part_bytes=8192)
            await ledger.commits(20)
            part = require_described(taken)["tables"][-1]["parts"][-1]["path"]
            content = taken.get(part)
            taken.delete(part)
            adding = asyncio.create_task(asyncio.to_thread(herd.run, "add", "n3", *place))
            await until(herd, "n3", "failed", lambda: progress(herd, "n3").get("failures", 0) > 0)
            assert progress(herd, "n3")["partner"] == str(taken)
            taken.put(part, content)
            done = await adding
            assert done.returncode == 0, done.stderr
            async with ledger.load(1, on=["n3"]):
                await ledger.commits(20, on=["n1", "n2", "n3"])
        ledger.check()
        assert_a_member_like_the_others(herd, "n3", name)
        assert [path.name for path in (home(herd) / "n3").glob("pgdata*")] == ["pgdata"]


_CLIMBING = """
CREATE SCHEMA climbing;
CREATE FUNCTION climbing.climb() RETURNS bool LANGUAGE plpgsql AS $$
BEGIN
    RESET ROLE;
    ALTER ROLE app SUPERUSER;
    RETURN true;
EXCEPTION WHEN OTHERS THEN
    RETURN true;
END $$;
CREATE FUNCTION climbing.safe(text) RETURNS bool LANGUAGE plpgsql IMMUTABLE
    SET search_path = pg_catalog AS
    $$ BEGIN RETURN climbing.climb(); END $$;
CREATE DOMAIN climbing.rope AS text CHECK (climbing.safe(VALUE));
CREATE TABLE climbing.wall (id int PRIMARY KEY, r climbing.rope, t text CHECK (climbing.safe(t)));
GRANT ALL ON SCHEMA climbing TO app;
GRANT ALL ON climbing.wall TO app;
"""


async def test_code_of_users_gets_nowhere_when_a_node_is_made_from_a_dump(
    work_directory: Path,
) -> None:
    """As `docs/security.md` says, it may be in constraints after ``ALTER ROLE ... NOSUPERUSER``."""
    is_superuser = "SELECT rolsuper FROM pg_roles WHERE rolname = 'app'"
    with herd_of(work_directory / "climbing", 1) as herd:
        first = herd.dsn("n1")
        query(first, "SELECT pgherd.run_everywhere('CREATE ROLE climber SUPERUSER LOGIN')")
        query(first, f"SET ROLE climber; {_CLIMBING}")
        query(first, "SELECT pgherd.run_everywhere('ALTER ROLE climber NOSUPERUSER')")
        query(herd.app_dsn("n1"), "INSERT INTO climbing.wall VALUES (1, 'a', 'b')")
        assert query(first, is_superuser) == [(False,)]
        query(first, "CREATE ROLE by_hand; GRANT climber TO by_hand")
        await run(herd, "add", "n2", "--method", "dump")
        second = herd.dsn("n2")
        # What every member has, not what this one had: such code keeps roles from being ordered.
        same = "SELECT key, value FROM pgherd.shared ORDER BY 1"
        assert query(first, same) == query(second, same)
        assert query(second, "SELECT FROM pg_roles WHERE rolname = 'by_hand'") == []
        assert "role by_hand: not ordered yet" in herd.must("status")
        assert query(second, "SELECT * FROM climbing.wall") == [(1, "a", "b")]
        assert query(second, is_superuser) == [(False,)]
