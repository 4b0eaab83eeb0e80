"""The script in the image of PostgreSQL: one server on a volume, whatever Kubernetes starts."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

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
