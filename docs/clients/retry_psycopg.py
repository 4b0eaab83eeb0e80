"""How a program with psycopg 3 repeats transactions: see docs/retry.md.

PGHERD_DSN holds the line that `pgherd local status --show-passwords` prints for applications.
"""

import os
import random
import time
from collections.abc import Callable
from typing import Any, TypeVar

import psycopg

Connection = psycopg.Connection[tuple[Any, ...]]
T = TypeVar("T")

# Nothing was committed, whenever one of these arrives.
NOTHING_COMMITTED = {"40001", "40P01", "25006"}
ATTEMPTS = 20
PATIENCE_S = 10.0


def outcome(dsn: str, token: str) -> bool:
    """Whether the transaction of this token is committed; any member may be asked.

    If its own member has died before it sent the transaction to others, nobody ever knows.
    """
    end, attempt = time.monotonic() + PATIENCE_S, 0
    while time.monotonic() < end:
        try:
            with psycopg.connect(dsn, autocommit=True) as connection:
                row = connection.execute(
                    "SELECT pgherd.transaction_status(%s)", (token,)
                ).fetchone()
        except (psycopg.OperationalError, psycopg.errors.ReadOnlySqlTransaction):
            row = None  # no member can be reached for a moment, or its sidecar can't
        if row is not None and row[0] != "unknown":  # still under way
            return bool(row[0].startswith("committed"))
        pause(attempt)
        attempt += 1
    raise RuntimeError(f"nobody knows what became of transaction {token}: look before you repeat")


def pause(attempt: int) -> None:
    """Wait a little, by chance, and longer each time."""
    time.sleep(random.uniform(0, min(1.0, 0.01 * 2 ** min(attempt, 10))))


def run(dsn: str, work: Callable[[Connection], T]) -> T:
    """Run `work` in a transaction that is committed once, and return what it returned.

    `work` may be called several times, so it must do nothing but what a rollback undoes.
    """
    for attempt in range(ATTEMPTS):
        token = None  # until COMMIT may have been sent nothing can have been committed
        try:
            with psycopg.connect(dsn) as connection:
                result = work(connection)
                row = connection.execute("SELECT pgherd.current_token()").fetchone()
                assert row is not None
                token = row[0]
                connection.commit()
            return result
        except psycopg.Error as error:
            lost = isinstance(error, psycopg.OperationalError)
            if error.sqlstate not in NOTHING_COMMITTED:
                if not lost:
                    raise  # a mistake of the program, which would come again
                if token is not None and outcome(dsn, token):
                    return result
        pause(attempt)
    raise RuntimeError(f"{ATTEMPTS} attempts have failed")


def transfer(connection: Connection) -> None:
    """Take one from the first account, and give it to the second."""
    connection.execute("UPDATE account SET balance = balance - 1 WHERE id = 1")
    connection.execute("UPDATE account SET balance = balance + 1 WHERE id = 2")


if __name__ == "__main__":
    for _ in range(int(os.environ.get("PGHERD_TRANSFERS", "1"))):
        run(os.environ["PGHERD_DSN"], transfer)
