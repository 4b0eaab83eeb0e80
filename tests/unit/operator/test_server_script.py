"""The script in the image of PostgreSQL: one server on a volume, whatever Kubernetes starts."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pgherd_operator.shell.observing.reading import pod_trouble

_SCRIPT = Path(__file__).parents[3] / "images" / "pgherd-postgres"
_SERVER = """#!/bin/sh
# In place of postgres: it serves until it is killed.
echo started >&2
exec sleep infinity
"""


@pytest.fixture
def member(tmp_path: Path) -> dict[str, str]:
    """The environment of a container whose volume holds a database."""
    database = tmp_path / "volume" / "pgdata"
    database.mkdir(parents=True)
    (database / "PG_VERSION").write_text("17\n")
    programs = tmp_path / "bin"
    programs.mkdir()
    server = programs / "postgres"
    server.write_text(_SERVER)
    server.chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    return {"PATH": path, "PGDATA": str(database), "PGHERD_RUN": str(tmp_path / "run")}


@contextmanager
def container(environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Run the script as the first process of a container, until the end of the block at most."""
    command = [str(_SCRIPT), "run"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str]) -> str:
    """The next line that a container writes."""
    assert process.stderr is not None
    return process.stderr.readline().strip()


def test_a_server_waits_for_the_one_of_a_pod_that_was_deleted_by_force(
    member: dict[str, str],
) -> None:
    with container(member) as former:
        assert said(former) == "started"
        with container(member) as replacement:
            assert "waits until another server has ended" in said(replacement)
            former.kill()
            assert said(replacement) == "started"


_PYTHON = """#!/bin/sh
# In place of our own program, which would fill the server.
echo "$PGHOST $*" >>"$PGHERD_ETC/seeded"
"""
_DONE = "#!/bin/sh\nexit 0\n"
_INITDB = """#!/bin/sh
mkdir -p "$PGDATA.new" && echo 17 >"$PGDATA.new/PG_VERSION"
"""


@pytest.fixture
def founder(member: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """The environment of a container whose volume is empty and shall be filled from a snapshot."""
    database = Path(member["PGDATA"])
    (database / "PG_VERSION").unlink()
    database.rmdir()
    etc = tmp_path / "etc"
    for name, text in {
        "config/origin": "snapshot", "superuser/password": "s", "app/password": "a",
    }.items():  # fmt: skip
        file = etc / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    for name, text in {
        "python": _PYTHON, "initdb": _INITDB, "pg_ctl": _DONE, "psql": _DONE,
    }.items():  # fmt: skip
        program = tmp_path / "bin" / name
        program.write_text(text)
        program.chmod(0o755)
    return member | {"PGHERD_ETC": str(etc), "PGHERD_SHARE": str(tmp_path)}


def seed(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run what comes before the server."""
    command = [str(_SCRIPT), "seed", *arguments]
    return subprocess.run(command, env=environment, check=False, capture_output=True, text=True)


def test_a_founder_s_volume_is_filled_from_a_snapshot_once(founder: dict[str, str]) -> None:
    database, etc = Path(founder["PGDATA"]), Path(founder["PGHERD_ETC"])
    for _ in range(2):
        assert seed(founder, "s3://bucket/a b", "https://s3").returncode == 0
        assert (database / "PG_VERSION").read_text() == "17\n"
        told = f"{database}.new -m pgherd_spark.restoring.seeding s3://bucket/a b https://s3\n"
        assert (etc / "seeded").read_text() == told


def test_nothing_of_a_database_that_appears_is_in_memory_only(
    founder: dict[str, str], tmp_path: Path
) -> None:
    program = tmp_path / "bin" / "sync"
    program.write_text('#!/bin/sh\necho "$*" >>"$PGHERD_ETC/synced"\n')
    program.chmod(0o755)
    assert seed(founder, "s3://bucket/a").returncode == 0
    synced = (Path(founder["PGHERD_ETC"]) / "synced").read_text()
    assert synced == f"{founder['PGDATA']}.new/postgresql.conf\n"


def test_a_source_that_is_not_reached_is_told_of_without_parts_of_its_password(
    founder: dict[str, str], tmp_path: Path
) -> None:
    """The operator copies the end of the log into the status: a / in a password is enough."""
    etc = Path(founder["PGHERD_ETC"])
    (etc / "config" / "origin").write_text("import")
    (etc / "import").mkdir()
    (etc / "import" / "dsn").write_text("postgresql://mover:s3cr/et@source/shop")
    dump = tmp_path / "bin" / "pg_dump"
    text = 'pg_dump: error: invalid integer value "s3cr" for connection option "port"'
    dump.write_text(f"#!/bin/sh\necho '{text}' >&2; exit 1\n")
    dump.chmod(0o755)
    with container(founder) as server:
        _, log = server.communicate()
    assert 'invalid integer value "..." for connection option "port"' in log
    assert "s3cr" not in log
    assert "no database was made" in log


def test_a_secret_that_is_not_there_is_named(founder: dict[str, str]) -> None:
    config = Path(founder["PGHERD_ETC"]) / "config"
    (config / "origin").write_text("import")
    (config / "source").write_text("old uri\n")
    with container(founder) as server:
        _, log = server.communicate()
    words = "pgherd-postgres: there is no secret old, or it has no key uri"
    assert words in log
    ended = {"terminated": {"exitCode": 1, "reason": "Error", "message": log}}
    status = {"containerStatuses": [{"name": "postgres", "state": ended}]}
    assert pod_trouble(status) == f"container postgres: Error: {words}"


@pytest.mark.parametrize("origin", ["copy", "initdb", "import"])
def test_no_other_s_volume_is(founder: dict[str, str], origin: str) -> None:
    (Path(founder["PGHERD_ETC"]) / "config" / "origin").write_text(origin)
    assert seed(founder, "/snapshots").returncode == 0
    assert not Path(founder["PGDATA"]).exists()


def test_a_snapshot_that_cannot_be_used_leaves_no_database(founder: dict[str, str]) -> None:
    python = next(Path(one) / "python" for one in founder["PATH"].split(":"))
    python.write_text("#!/bin/sh\necho 'the snapshot is damaged' >&2; exit 1\n")
    done = seed(founder, "/snapshots")
    assert done.returncode == 1
    assert "the snapshot is damaged" in done.stderr and "no database was made" in done.stderr
    assert not Path(founder["PGDATA"]).exists()
    with container(founder) as server:  # which is not to be made anew from nothing
        assert "there should be a database by now" in said(server)


def test_a_volume_that_had_a_database_is_not_filled_again(founder: dict[str, str]) -> None:
    (Path(founder["PGDATA"]).parent / "initialised").touch()
    assert seed(founder, "/snapshots").returncode == 0
    assert not Path(founder["PGDATA"]).exists()
