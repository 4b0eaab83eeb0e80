"""Drivers of other languages find another member when theirs dies: docs/clients/README.md.

Each runs its example of docs/retry.md. Skipped without what `scripts/setup drivers` makes.
"""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pgherd_sidecar.local.herd import load

from benchmarks.balancers import EXAMPLES

from .localherd import LocalHerd, free_port_base, home, standing
from .test_clients import commit_though_a_member_dies

_DRIVERS = Path(__file__).parents[2] / ".drivers"
_LINE = re.compile(r"postgresql://app(?::[^@]*)?@([^/]*)/app")


@pytest.fixture(scope="module")
def herd(work_directory: Path) -> Iterator[LocalHerd]:
    with standing(LocalHerd(work_directory / "driven", free_port_base())) as herd:
        yield herd


def made(name: str) -> Path:
    """A file that the tests need."""
    path = _DRIVERS / name
    if not path.exists():
        pytest.skip(f"A DRIVER IS NOT TESTED: no {path}; see scripts/setup drivers")
    return path


def hosts(line: str) -> str:
    """The members that a line for applications names."""
    found = _LINE.match(line)
    assert found is not None, line
    return found.group(1)


def of_libpq(password: str) -> Callable[[str], str]:
    return lambda line: line.replace("//app@", f"//app:{password}@")


def of_jdbc(password: str) -> Callable[[str], str]:
    options = "targetServerType=primary&hostRecheckSeconds=1&connectTimeout=2"
    return lambda line: (
        f"jdbc:postgresql://{hosts(line)}/app?{options}&user=app&password={password}"
    )


@pytest.mark.parametrize("program", ["RetryJdbc", "RetrySpring"])
def test_java(herd: LocalHerd, program: str) -> None:
    made(f"{program}.class")
    path = os.pathsep.join((str(_DRIVERS), f"{made('jars')}/*"))
    password = load(home(herd)).app_password
    commit_though_a_member_dies(herd, ["java", "-cp", path, program], of_jdbc(password))


def test_pgx(herd: LocalHerd) -> None:
    password = load(home(herd)).app_password
    commit_though_a_member_dies(herd, [str(made("retry_pgx"))], of_libpq(password))


def test_node_postgres(herd: LocalHerd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_PATH", str(made("node_modules")))
    password = load(home(herd)).app_password
    command = ["node", str(EXAMPLES / "retry_node.js")]
    commit_though_a_member_dies(herd, command, of_libpq(password))
