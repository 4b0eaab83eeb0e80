"""A sidecar dies at points of its start and of commits, with real servers. [H15]

Points are statements, answers, messages and operations of the disk (``faults.mortal``). A life
that nothing ends shows which there are; then the sidecar dies at some of each kind, those of
``PGHERD_POINTS_SEED``. Each transaction inserts a row and counts in another, so one that is lost or
applied twice shows.
"""

import contextlib
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest
from faults import mortal
from patience import wait_until

from .localherd import LocalHerd, free_port_base, put, query, standing

pytestmark = [pytest.mark.long, pytest.mark.timeout(0)]

_OF_EACH_KIND = int(os.environ.get("PGHERD_POINTS", "2"))
_SEED = int(os.environ.get("PGHERD_POINTS_SEED", random.getrandbits(32)))
_TABLES = """
CREATE TABLE swept (id int PRIMARY KEY);
CREATE TABLE swept_count (id int PRIMARY KEY, n int);
INSERT INTO swept_count VALUES (1, 0)"""
_NEEDED = {
    "start": {"before statement", "after statement", "after flush", "after rename"},
    "commits": {"before answer", "after answer", "before round", "after round", "after flush"},
}
"""Kinds of points that a sweep can't do without."""


@dataclass
class Mortal:
    """A herd whose second sidecar dies when it is told to."""

    herd: LocalHerd
    directory: Path
    attempts: int = 0
    acknowledged: list[int] = field(default_factory=list)
    tokens: dict[int, str] = field(default_factory=dict)

    def begin(self, dies_at: str) -> None:
        """Start the sidecar anew; it may die before it is up."""
        self.herd.must("kill", "n2", "--process", "sidecar")
        self.herd.environment |= {mortal.DIES_AT_VARIABLE: dies_at}
        self.herd.run("start", "n2")

    @contextlib.contextmanager
    def armed(self) -> Iterator[None]:
        """Have points count for as long as the block lasts."""
        (self.directory / mortal.ARMED).touch()
        yield
        (self.directory / mortal.ARMED).unlink()

    def passed(self) -> Counter[str]:
        """The points that the last sidecar has passed, by kind."""
        return Counter((self.directory / mortal.POINTS).read_text().splitlines())

    def commit(self, node: str, *statements: str) -> None:
        """A transaction with one row, one count, and more."""
        self.attempts += 1
        number = self.attempts
        with (
            contextlib.suppress(psycopg.Error),
            psycopg.connect(self.herd.app_dsn(node)) as connection,
        ):
            cursor = connection.execute("SELECT pgherd.current_token()")
            (self.tokens[number],) = cursor.fetchone() or ("",)
            connection.execute("INSERT INTO swept VALUES (%s)", (number,))
            connection.execute("UPDATE swept_count SET n = n + 1")
            for statement in statements:
                connection.execute(statement.encode())
            connection.commit()
            self.acknowledged.append(number)

    def judge(self) -> None:
        """Nothing is lost, nothing is there twice, and nobody is told a lie."""
        self.herd.must("verify")
        rows = {number for (number,) in query(self.herd.app_dsn("n2"), "SELECT id FROM swept")}
        assert set(self.acknowledged) <= rows
        assert query(self.herd.app_dsn("n2"), "SELECT n FROM swept_count") == [(len(rows),)]
        for number, token in self.tokens.items():
            told = f"SELECT pgherd.transaction_status('{token}')"
            ((status,),) = query(self.herd.app_dsn("n1"), told)
            assert status.startswith("committed ") == (number in rows) or status == "unknown"
        assert query(self.herd.dsn("n2"), "SELECT FROM pg_prepared_xacts") == []
        self.tokens.clear()


@pytest.fixture(scope="module")
def swept(work_directory: Path) -> Iterator[Mortal]:
    directory = work_directory / "points"
    directory.mkdir()
    directory.chmod(0o777)
    script = directory / "mortal.py"
    shutil.copy(mortal.__file__, script)
    script.chmod(0o644)
    with standing(LocalHerd(work_directory / "swept", free_port_base())) as herd:
        put(herd, herd.app_dsn("n1"), _TABLES)
        herd.environment |= {
            "PGHERD_SIDECAR_SCRIPT": str(script),
            mortal.DIRECTORY_VARIABLE: str(directory),
        }
        yield Mortal(herd, directory)


def test_a_sidecar_may_die_at_any_point_of_its_start(swept: Mortal) -> None:
    def live(dies_at: str) -> None:
        with swept.armed():
            swept.begin(dies_at)

    sweep(swept, live, "start")


def test_a_sidecar_may_die_at_any_point_of_commits(swept: Mortal) -> None:
    """One of its own, one of another member, and one with DDL; points between them count, too."""

    def live(dies_at: str) -> None:
        swept.begin(dies_at)
        with swept.armed():
            swept.commit("n2")
            swept.commit("n1")
            swept.commit("n2", f"CREATE TABLE swept_{swept.attempts} (id int PRIMARY KEY)")

    sweep(swept, live, "commits")


def sweep(swept: Mortal, live: Callable[[str], None], needed: str) -> None:
    """Live once to the end, then die at some points of each kind; judge after each life."""

    def lived() -> Counter[str]:
        live("")
        return swept.passed()

    # A commit that loses against the one before it takes points away.
    points = wait_until(lived, lambda seen: seen.keys() >= _NEEDED[needed])
    chance = random.Random(_SEED)
    deaths = 0
    for kind, count in sorted(points.items()):
        for number in chance.sample(range(1, count + 1), min(count, _OF_EACH_KIND)):
            with noted(f"PGHERD_POINTS_SEED={_SEED}: died at {number} {kind}"):
                live(f"{number} {kind}")
                deaths += swept.passed()[kind] >= number
                swept.begin("")
                swept.commit("n2")
                swept.judge()
    assert deaths >= len(points)  # what others do takes points away, or brings some


@contextlib.contextmanager
def noted(where: str) -> Iterator[None]:
    """Say with a failure where it was."""
    try:
        yield
    except Exception as error:
        error.add_note(where)
        raise
