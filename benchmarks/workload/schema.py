"""Set-up and checks of the demo's tables, done through SQL on one node like any user's.

The DDL replicates by itself, so every function here talks to a single node unless it says
otherwise. Called by the demo. The tables survive restarts; a half-made set-up is made again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psycopg

from benchmarks.commands import psql_file, wait_until
from benchmarks.errors import BenchmarkError

SQL = Path(__file__).parent / "sql"
FUNCTIONS = 2
CATCH_UP_S = 60


@dataclass(frozen=True, slots=True)
class Scale:
    """Sizes of the tables; branches and warehouses are dealt out to the nodes."""

    branches: int = 24
    accounts: int = 1_000
    """Accounts of a branch."""
    warehouses: int = 12
    customers: int = 30
    """Customers of a district, of which a warehouse has ten."""
    items: int = 500

    def variables(self) -> dict[str, int]:
        """Return the sizes under the names that the SQL files use."""
        return {
            "branches": self.branches,
            "accounts": self.accounts,
            "warehouses": self.warehouses,
            "customers": self.customers,
            "items": self.items,
        }

    def finished(self) -> tuple[int, ...]:
        """Return what ``scale.sql`` counts when the set-up is complete."""
        return (
            self.branches,
            self.branches * self.accounts,
            self.warehouses,
            self.warehouses * 10 * self.customers,
            self.warehouses * self.items,
            FUNCTIONS,
        )


@dataclass(frozen=True, slots=True)
class Condition:
    """One consistency condition as one node sees it."""

    name: str
    violations: int


def set_up(dsns: Sequence[str], scale: Scale) -> bool:
    """Create and fill the tables on the first node and wait until all nodes have them.

    Returns:
        False if they were there already.

    Raises:
        BenchmarkError: A statement failed, or a node did not get the tables.
    """
    first = dsns[0]
    fresh = not is_complete(first, scale)
    if fresh:
        variables = scale.variables()
        for name in ("drop", "tpcb_schema", "tpcc_schema", "tpcc_load", "tpcc_functions"):
            psql_file(SQL / f"{name}.sql", first, **variables)
    for number, dsn in enumerate(dsns, 1):
        wait_until(
            partial(is_complete, dsn, scale),
            timeout_s=CATCH_UP_S,
            failure=f"node {number} did not receive the tables",
        )
    return fresh


def is_complete(dsn: str, scale: Scale) -> bool:
    """Tell whether a node has all tables, rows of the fixed ones and functions.

    Raises:
        BenchmarkError: The node cannot be asked.
    """
    try:
        with psycopg.connect(dsn, connect_timeout=10) as connection:
            counts = connection.execute((SQL / "scale.sql").read_bytes()).fetchone()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        return False
    except psycopg.Error as error:
        raise BenchmarkError(f"cannot read the demo's tables: {str(error).strip()}") from error
    return counts == scale.finished()


def vacuum(dsn: str) -> None:
    """Give a node statistics, which the load changed and autovacuum has not seen yet."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")


def check(dsn: str) -> list[Condition]:
    """Return all consistency conditions, in one snapshot of one node.

    Raises:
        BenchmarkError: The node cannot be asked.
    """
    try:
        with psycopg.connect(dsn) as connection:
            rows = connection.execute((SQL / "check.sql").read_bytes()).fetchall()
    except psycopg.Error as error:
        raise BenchmarkError(f"cannot check the demo's tables: {str(error).strip()}") from error
    return [Condition(name=name, violations=int(violations)) for name, violations in rows]
