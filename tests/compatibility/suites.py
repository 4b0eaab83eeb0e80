"""The known suites: how each is fetched, and run against one server.

A suite knows nothing of herds: it gets a connection string, and leaves a report.
"""

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psycopg
from psycopg.conninfo import conninfo_to_dict

from compatibility.sources import FetchError, environment, from_debian, from_index

_HERE = Path(__file__).parent
_TIMEOUT_S = 3 * 3600
_VERSION = re.compile(r'^version = "?([0-9.]+)', re.MULTILINE)
_PSYCOPG_TESTS = "not slow and not timing and not crdb and not mypy"


@dataclass(frozen=True)
class Server:
    """A server that a suite is run against.

    Attributes:
        user: connection string of an ordinary role, the owner of its database.
        admin: connection string of a superuser.
    """

    user: str
    admin: str

    @property
    def url(self) -> str:
        """The ordinary role's way, as SQLAlchemy writes it, without the driver."""
        way = conninfo_to_dict(self.user)
        password = f":{way['password']}" if way.get("password") else ""
        return f"{way['user']}{password}@{way['host']}:{way['port']}/{way['dbname']}"


class Suite(Protocol):
    """A test suite of somebody else.

    Attributes:
        name: of it.
        version: that is run.
    """

    name: str
    version: str

    def fetch(self, work: Path) -> None:
        """Fetch its sources and what it needs into ``work``.

        Raises:
            FetchError: something cannot be had.
        """

    def run(self, server: Server, work: Path, report: Path, only: Sequence[str]) -> None:
        """Run it.

        Args:
            server: which has an empty database.
            work: directory into which it was fetched.
            report: file or directory to write, in the format of JUnit.
            only: tests in the suite's own words; all of them when empty.
        """


@dataclass
class SqlAlchemy:
    """SQLAlchemy's tests that need a database."""

    name: str = "SQLAlchemy"
    version: str = "2.0.44"

    def fetch(self, work: Path) -> None:
        self._sources = from_index("sqlalchemy", self.version, work)
        self._python = environment(
            "sqlalchemy", [f"sqlalchemy=={self.version}", "psycopg[binary]", "pytest<9"], work
        )

    def run(self, server: Server, work: Path, report: Path, only: Sequence[str]) -> None:
        for statement in (
            "CREATE EXTENSION IF NOT EXISTS hstore",
            "CREATE EXTENSION IF NOT EXISTS citext",
        ):
            _execute(server.admin, statement)
        _execute(server.user, "CREATE SCHEMA test_schema")
        _execute(server.user, "CREATE SCHEMA test_schema_2")
        _run(
            [str(self._python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "--backend-only",
             f"--dburi=postgresql+psycopg://{server.url}", "--maxfail=1000000", "--tb=short",
             f"--junitxml={report}", *(only or ["test"])],
            self._sources, work / "sqlalchemy.log",
        )  # fmt: skip


@dataclass
class Django:
    """Django's tests of its database layer."""

    name: str = "Django"
    version: str = "5.2.8"
    labels: tuple[str, ...] = (
        "aggregation", "aggregation_regress", "backends", "basic", "bulk_create", "constraints",
        "custom_pk", "datatypes", "dates", "datetimes", "db_functions", "db_utils", "defer",
        "delete", "delete_regress", "expressions", "expressions_case", "expressions_window",
        "fixtures", "force_insert_update", "foreign_object", "generic_relations", "get_or_create",
        "indexes", "introspection", "inspectdb", "lookup", "many_to_many", "many_to_one",
        "migrate_signals", "migrations", "model_fields", "model_indexes", "model_inheritance",
        "null_fk", "one_to_one", "ordering", "postgres_tests", "queries", "raw_query", "schema",
        "select_for_update", "select_related", "serializers", "transaction_hooks", "transactions",
        "update", "update_only_fields",
    )  # fmt: skip

    def fetch(self, work: Path) -> None:
        self._sources = from_index("django", self.version, work)
        self._python = environment(
            "django",
            [f"django=={self.version}", "psycopg[binary]", "unittest-xml-reporting", "jinja2",
             "tblib", "pyyaml", "sqlparse"],
            work,
        )  # fmt: skip

    def run(self, server: Server, work: Path, report: Path, only: Sequence[str]) -> None:
        report.mkdir(parents=True, exist_ok=True)
        way = conninfo_to_dict(server.admin)
        _run(
            [str(self._python), "runtests.py", "--settings=django_settings", "--parallel=1",
             "--keepdb", "--noinput", "--verbosity=1", *(only or self.labels)],
            self._sources / "tests", work / "django.log",
            PYTHONPATH=f"{_HERE}:{self._sources}",
            COMPATIBILITY_REPORT=str(report),
            **{f"COMPATIBILITY_{key.upper()}": str(way.get(key) or "")
               for key in ("host", "port", "user", "password", "dbname")},
        )  # fmt: skip


@dataclass
class Psycopg:
    """psycopg 3's own tests. Its source distribution has none, so Debian's sources are taken.

    Attributes:
        checkout: directory of a checkout of its repository, to use instead.
    """

    name: str = "psycopg"
    version: str = "3"
    checkout: str = os.environ.get("PSYCOPG_CHECKOUT", "")

    def fetch(self, work: Path) -> None:
        self._sources = Path(self.checkout) if self.checkout else from_debian("psycopg3", work)
        package = self._sources / "psycopg"
        told = [
            _VERSION.search(path.read_text())
            for path in (package / "setup.cfg", package / "pyproject.toml")
            if path.exists()
        ]
        self.version = next((found[1] for found in told if found), "")
        if not self.version:
            raise FetchError(f"{self._sources} does not tell psycopg's version")
        self._python = environment(
            f"psycopg-{self.version}",
            [f"psycopg[binary]=={self.version}", "pytest<9", "anyio", "dnspython"],
            work,
        )  # fmt: skip

    def run(self, server: Server, work: Path, report: Path, only: Sequence[str]) -> None:
        _run(
            [str(self._python), "-m", "pytest", "-q", "--tb=short",
             f"--test-dsn={server.admin}", "-m", _PSYCOPG_TESTS,
             "--ignore=tests/pool", "--ignore=tests/crdb",
             f"--junitxml={report}", *(only or ["tests"])],
            self._sources, work / "psycopg.log",
        )  # fmt: skip


def _execute(dsn: str, statement: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(statement.encode())


def _run(command: Sequence[str], directory: Path, log: Path, **variables: str) -> None:
    """Run a suite, whatever it finds; its words go to a file. Our own modules are none of its."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with log.open("ab") as words:
        subprocess.run(
            command, cwd=directory, stdout=words, stderr=subprocess.STDOUT, check=False,
            timeout=_TIMEOUT_S, env=inherited | variables,
        )  # fmt: skip
