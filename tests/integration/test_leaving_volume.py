"""What the Job of `kubectl pgherd export plain` runs, on the database of a herd on this machine."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from .installations import program
from .localherd import LocalHerd, free_port_base, home, put, query, settle, standing
from .plainpostgres import PlainPostgres

pytestmark = pytest.mark.long

_SCRIPT = Path(__file__).parents[2] / "images" / "pgherd-postgres"
_ETC = "/etc/pgherd"


@pytest.fixture(scope="module")
def herd(work_directory: Path) -> Iterator[LocalHerd]:
    with standing(LocalHerd(work_directory / "left", free_port_base()), "--nodes", "2") as herd:
        yield herd


def test_a_volume_that_is_left_holds_a_plain_server(herd: LocalHerd, work_directory: Path) -> None:
    put(herd, herd.dsn("n1"), "CREATE TABLE t (id bigserial PRIMARY KEY, v text)")
    for name in ("n1", "n2"):
        query(herd.dsn(name), "INSERT INTO t (v) SELECT 'x' FROM generate_series(1, 100)")
    settle(herd)
    ((standings,),) = query(herd.dsn("n1"), "SELECT pgherd.sequence_standings()")
    ((highest,),) = query(herd.dsn("n1"), "SELECT max(id) FROM t")
    ((version,),) = query(herd.dsn("n1"), "SHOW server_version_num")
    major = int(version) // 10000
    herd.must("down")
    volume = work_directory / "volume"
    shutil.copytree(home(herd) / "n2" / "pgdata", volume / "pgdata", symlinks=True)
    _as_in_a_pod(volume, free_port_base(1) + 1)
    user = os.environ.get("PGHERD_TEST_USER", "postgres") if os.geteuid() == 0 else None
    if user is not None:
        subprocess.run(["chown", "-R", user, volume], check=True)
    for _ in range(2):  # a pod may die when all is done
        done = subprocess.run(
            [_SCRIPT, "plain", json.dumps([standings])],
            env={
                "PATH": f"{Path(program('initdb', major)).parent}:/usr/bin:/bin",
                "PGDATA": str(volume / "pgdata"), "LC_ALL": "C.UTF-8",
            },
            user=user, cwd="/", capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert not (volume / "initialised").exists()
    conf = (volume / "pgdata" / "postgresql.conf").read_text()
    assert (conf.count("# A plain server."), _ETC in conf) == (1, False)
    hba = volume / "pgdata" / "pg_hba.conf"
    hba.write_text("host all all 127.0.0.1/32 trust\n")  # passwords are for its owner
    port = int(conf.rpartition("port = ")[2].split()[0])
    server = PlainPostgres(volume / "pgdata", port, major)
    server.start()
    try:
        assert query(server.dsn(), "SELECT to_regnamespace('pgherd')") == [(None,)]
        assert query(server.dsn(), "SELECT count(*) FROM t") == [(200,)]
        first, second = (
            query(server.dsn(), "INSERT INTO t (v) VALUES ('y') RETURNING id")[0][0]
            for _ in range(2)
        )
        assert first > highest
        assert second == first + 1
    finally:
        server.stop()


def _as_in_a_pod(volume: Path, port: int) -> None:
    """What the operator writes is outside of the directory, and not here."""
    file = volume / "pgdata" / "postgresql.conf"
    text = file.read_text()
    assert "include 'pgherd.conf'" in text
    text = text.replace("include 'pgherd.conf'", f"include '{_ETC}/config/pgherd.conf'")
    file.write_text(f"{text}port = {port}\n")
    (volume / "pgdata" / "pgherd.conf").unlink()
    (volume / "initialised").touch()
