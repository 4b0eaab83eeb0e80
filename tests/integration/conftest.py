"""A herd of real servers for the integration tests, driven through the ``pgherd`` command.

Started as root the servers run as ``PGHERD_TEST_USER`` (default ``postgres``), otherwise as the
caller. Everything lies below ``PGHERD_TEST_DIR``, because pytest's own temporary directories are
closed to other accounts and their names too long for sockets; by default that is in memory where
there is room, for speed: what a killed process has written survives there as well as on a disk.
"""

import itertools
import os
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from places import in_memory
from psycopg import sql
from trouble import require_none
from verdicts import keep

from . import warm
from .herdlogs import LOGS, last_words
from .ledger import Ledger, new_ledger
from .localherd import (
    BROKEN_SIDECAR,
    SLEEPING_SIDECAR,
    LocalHerd,
    free_port_base,
    keep_ports,
    settle,
    standing,
)
from .members import caught_up, connected, superusers
from .nodes import Nodes, nodes_of
from .plainpostgres import PlainPostgres, plain_postgres
from .repeating import REPEATS

_ROOM_BYTES = 8 << 30
_FILES = itertools.count(1)
_REPEATED = "repeated after 40001"
_ORIGINAL = "mortal-as-founded"
_STANDIN = Path(__file__).with_name("standin_sidecar.py")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Fail a test that passed while a sidecar had trouble that it does not name."""
    yield
    require_none(item, LOGS)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """The same for what came since: in fixtures, while a herd was destroyed, in a failed test."""
    yield
    require_none(item, LOGS)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep the logs of the herds that are there when a test has failed; count its repeats."""
    report = yield
    report.user_properties.append((_REPEATED, REPEATS.take()))
    if report.failed:
        for name, words in last_words().items():
            keep(item.nodeid, name, words)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tell how many messages were repeated, and by whom."""
    by_test: Counter[str] = Counter()
    for report in itertools.chain(*terminalreporter.stats.values()):
        by_test[getattr(report, "nodeid", "")] += dict(getattr(report, "user_properties", ())).get(
            _REPEATED, 0
        )
    most = ", ".join(f"{name} {count}" for name, count in by_test.most_common(5) if count)
    terminalreporter.write_line(f"{_REPEATED}: {by_test.total()} messages; most of them: {most}")


@pytest.fixture(scope="session")
def session_directory() -> Iterator[Path]:
    """A short directory that every account can enter; removed at the end."""
    parent = os.environ.get("PGHERD_TEST_DIR") or in_memory(_ROOM_BYTES)
    directory = Path(tempfile.mkdtemp(prefix="pgherd-test-", dir=parent))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def work_directory(session_directory: Path) -> Iterator[Path]:
    """A directory for one file of tests, so that two files may give a thing the same name."""
    directory = session_directory / str(next(_FILES))
    directory.mkdir()
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="session")
def herd(session_directory: Path) -> Iterator[LocalHerd]:
    """A herd of three with real sidecars, for the whole session."""
    with standing(LocalHerd(session_directory / "herd", free_port_base())) as herd:
        yield herd
        warm.drop_used(herd)  # what the last tests have left has to go, too


@pytest.fixture(scope="module")
def subscriber(herd: LocalHerd, work_directory: Path) -> Iterator[PlainPostgres]:
    """A plain server of the module's own, of the herd's version."""
    port = free_port_base() + 90
    with plain_postgres(work_directory / "subscriber", port, herd.dsn("n1")) as server:
        yield server


@pytest.fixture(scope="session")
def original(session_directory: Path) -> LocalHerd:
    """A herd that was founded once and stopped: to copy it is quicker than to found another."""
    herd = LocalHerd(session_directory / "mortal", free_port_base())
    keep_ports(herd.port_base)
    done = herd.up()
    assert done.returncode == 0, done.stderr
    herd.must("down")
    herd.directory.rename(session_directory / _ORIGINAL)
    return herd


@pytest.fixture(scope="module")
def mortal(original: LocalHerd) -> Iterator[LocalHerd]:
    """A herd for the tests of one file only: a failure must not spoil the others'.

    It is a copy of the original, in the place that this had.
    """
    kept = original.directory.with_name(_ORIGINAL)
    if original.directory.exists():  # the end of the file before has failed
        original.must("destroy")
    subprocess.run(["cp", "--archive", kept, original.directory], check=True)
    with standing(original):
        yield original


@pytest.fixture(autouse=True)
def _at_rest(request: pytest.FixtureRequest) -> None:
    """Have each test find the herd at rest: DDL may lose to what was just committed elsewhere."""
    if "herd" in request.fixturenames:
        settle(request.getfixturevalue("herd"), warm.last_gid)


@pytest.fixture(scope="session")
def scripts(session_directory: Path) -> Path:
    """Stand-ins for the sidecar, where the servers' account can read them."""
    directory = session_directory / "scripts"
    directory.mkdir()
    shutil.copy(_STANDIN, directory / "standin.py")
    (directory / "broken.py").write_text(BROKEN_SIDECAR)
    (directory / "sleeping.py").write_text(SLEEPING_SIDECAR)
    for path in (directory, *directory.iterdir()):
        path.chmod(0o755)
    return directory


@pytest.fixture
def fresh(work_directory: Path, scripts: Path) -> Iterator[LocalHerd]:
    """A herd that does not exist yet; whatever a test leaves of it is destroyed."""
    herd = LocalHerd(
        work_directory / "fresh",
        free_port_base(),
        {"PGHERD_SIDECAR_SCRIPT": str(scripts / "standin.py")},
    )
    yield herd
    if herd.directory.exists():
        herd.run("destroy")
        shutil.rmtree(herd.directory, ignore_errors=True)


@pytest.fixture(scope="session")
def running(session_directory: Path, scripts: Path) -> Iterator[LocalHerd]:
    """A herd of two that is up; each test that uses it leaves it as it was."""
    herd = LocalHerd(
        session_directory / "running",
        free_port_base(),
        {"PGHERD_SIDECAR_SCRIPT": str(scripts / "standin.py")},
    )
    with standing(herd, "--nodes", "2"):
        yield herd


@pytest.fixture
async def connections(herd: LocalHerd) -> AsyncIterator[list[psycopg.AsyncConnection[Any]]]:
    """A connection of the ordinary role ``app`` to each node, in the order of the nodes."""
    async with connected(herd) as connections:
        yield connections


@pytest.fixture
async def schema(
    connections: list[psycopg.AsyncConnection[Any]], herd: LocalHerd
) -> AsyncIterator[str]:
    """A schema of this test alone, first in the search path of all ``connections``."""
    name = warm.take_schema(herd)
    for connection in connections:
        await connection.execute(
            sql.SQL("SET search_path = {}, public").format(sql.Identifier(name))
        )
    yield name
    warm.give_back(herd, name)


@pytest.fixture
async def schema_is_everywhere(
    connections: list[psycopg.AsyncConnection[Any]], schema: str
) -> None:
    """Two members' commands exclude each other: whoever has not seen the last one gets 40001."""
    await caught_up(connections)


@pytest.fixture
async def admins(herd: LocalHerd, schema: str) -> AsyncIterator[list[psycopg.AsyncConnection[Any]]]:
    """A superuser's connection to each node, likewise with ``schema`` in front."""
    async with superusers(herd, schema) as connections:
        yield connections


@pytest.fixture
def nodes(herd: LocalHerd) -> Iterator[Nodes]:
    """Connections of both roles to each node, with a schema of the test's own in front."""
    with nodes_of(herd) as nodes:
        yield nodes


@pytest.fixture
def ledger(herd: LocalHerd) -> Iterator[Ledger]:
    """What clients were told, in a schema of the test's own on the herd of its file."""
    ledger = new_ledger(herd)
    yield ledger
    ledger.drop()
