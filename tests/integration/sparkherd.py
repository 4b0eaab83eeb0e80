"""What the tests of the jobs need: members as jobs reach them, and one Spark for all tests."""

import importlib.util
import subprocess
import sys

import psycopg
import pytest
from pgherd_sidecar.cli import herd as herds
from pgherd_sidecar.cli.admin import AdminClient
from pgherd_spark.cluster import is_installed
from pgherd_spark.leases import Member

from .localherd import COMMAND_TIMEOUT_S, LocalHerd

NEEDS_SPARK = pytest.mark.skipif(
    not is_installed(),
    reason="NO JAVA OR PYSPARK: the jobs on Spark are NOT tested. Run `scripts/setup spark`",
)
NEEDS_PYARROW = pytest.mark.skipif(
    importlib.util.find_spec("pyarrow") is None,
    reason="NO PYARROW: parts of snapshots are NOT tested. Run `scripts/setup spark`",
)


def members_of(herd: LocalHerd) -> dict[str, Member]:
    """The members of a herd on this machine, as the jobs reach them."""
    description = herds.load(herd.directory.resolve())
    return {
        member.name: Member(
            member.name,
            AdminClient(description.node(member).admin_socket),
            description.dsn(member),
        )
        for member in description.members
    }


def run_job(herd: LocalHerd, job: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``pgherd JOB ... --dir`` with two cores and return how it went."""
    program = [sys.executable, "-m", "pgherd_sidecar.cli.main", job, "--cores", "2", *arguments]
    return subprocess.run(
        [*program, "--dir", str(herd.directory)],
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        check=False,
    )


def behind_the_herd_s_back(herd: LocalHerd, node: str, *statements: str) -> None:
    """What only a superuser can do, and never should."""
    with psycopg.connect(
        herd.member(node)["dsn"], autocommit=True, options="-c session_replication_role=replica"
    ) as connection:
        for statement in statements:
            connection.execute(statement.encode())
