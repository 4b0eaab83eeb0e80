"""The nodes of a herd as the tests of SQL behaviour see them: connections, and what must be equal.

A commit becomes visible on its node after everything ordered before it, so one commit on each
node is a wait for all that was committed anywhere before: no test here looks twice.
"""

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from patience import wait_until

from . import warm
from .localherd import LocalHerd, home, query_on, rows_of, settle

TIDE = "CREATE TABLE public.tide (id uuid PRIMARY KEY DEFAULT gen_random_uuid())"
Connection = psycopg.Connection[tuple[Any, ...]]
_BAD = ("needs_rebuild", '"diverged"', '"process.crashed"')


class Nodes:
    """Connections to each node: of an ordinary role (``app``) and of the superuser (``admin``).

    All are in autocommit mode and look first into ``schema``, which is this test's own.
    """

    def __init__(self, stack: contextlib.ExitStack, herd: LocalHerd, schema: str) -> None:
        ways = herd.nodes()
        self.schema = schema
        self._stack = stack
        self._options = f"-c search_path={schema},public"
        self._app_dsns = [way.app_dsn for way in ways]
        self._admin_dsns = [way.dsn for way in ways]
        self.app = [self.connect(number) for number in range(len(ways))]
        self.admin = [self.connect(number, admin=True) for number in range(len(ways))]

    def connect(self, number: int, *, admin: bool = False) -> Connection:
        """One more connection, closed at the end of the test."""
        dsn = (self._admin_dsns if admin else self._app_dsns)[number]
        connection = psycopg.connect(
            dsn, autocommit=True, prepare_threshold=None, options=self._options
        )
        return self._stack.enter_context(contextlib.closing(connection))

    def create(self, ddl: str) -> None:
        """Execute DDL as ``app`` on the first node, and wait until all have it."""
        run(self.app[0], ddl)
        self.settle()

    def settle(self) -> None:
        """Wait until each node shows all that was committed before, the first also what waits.

        A node may refuse writes for a moment after an election, which a slow machine may cause.
        """
        for app in (*self.app, self.app[0]):
            wait_until(
                partial(run, app, "INSERT INTO public.tide DEFAULT VALUES"),
                lambda _: True,
                despite=(psycopg.errors.ReadOnlySqlTransaction,),
            )

    def rows(self, table: str) -> list[list[str]]:
        """The rows of a table on each node, as text, sorted, with settings that hide nothing."""
        self.settle()
        return [
            sorted(row[0] for row in run(admin, f"SELECT (t.*)::text FROM {table} AS t"))
            for admin in self.admin
        ]

    def equal_rows(self, *tables: str) -> list[str]:
        """Assert that the tables are the same on all nodes; return the rows of all of them."""
        found: list[str] = []
        for table in tables:
            rows = self.rows(table)
            for other in rows[1:]:
                assert other == rows[0], table
            found += rows[0]
        return found


@contextlib.contextmanager
def nodes_of(herd: LocalHerd) -> Iterator[Nodes]:
    """The nodes of ``herd``, with a schema for one test."""
    schema = warm.take_schema(herd)
    with contextlib.ExitStack() as stack:
        nodes = Nodes(stack, herd, schema)
        if run(nodes.app[0], "SELECT to_regclass('public.tide')") == [(None,)]:
            run(nodes.app[0], TIDE)
            settle(herd)
        nodes.settle()
        yield nodes
        nodes.settle()
    warm.give_back(herd, schema)


def run(connection: Connection, statements: str) -> list[tuple[Any, ...]]:
    """Execute one or more statements as one message; return the rows of the last.

    A message that is a whole transaction is repeated after 40001, as that asks.
    """
    return query_on(connection, statements)


def once(connection: Connection, statements: str) -> list[tuple[Any, ...]]:
    """Do the same, and repeat nothing."""
    return rows_of(connection, statements)


def sql_file(name: str) -> str:
    """A file of ``sql/``."""
    return Path(__file__).with_name("sql").joinpath(f"{name}.sql").read_text()


def sql_cases(name: str) -> dict[str, str]:
    """The cases of a file of ``sql/``, by the names in their headings."""
    cases = (case.partition("\n") for case in sql_file(name).split("-- case: ")[1:])
    return {title: statements for title, _, statements in cases}


def complaints(herd: LocalHerd) -> list[str]:
    """Lines of the sidecars' logs that tell of a member that could not go on."""
    lines = [
        line
        for log in sorted(home(herd).glob("*/sidecar.log"))
        for line in log.read_text(errors="replace").splitlines()
    ]
    return [line for line in lines if any(word in line for word in _BAD)]


@contextlib.contextmanager
def nobody_stops(herd: LocalHerd, nodes: Nodes) -> Iterator[None]:
    """A quick rebuild would hide that members differed."""
    before = complaints(herd)
    yield
    nodes.settle()
    assert complaints(herd) == before
