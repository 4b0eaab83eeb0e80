"""How a program with SQLAlchemy 2 repeats transactions: see docs/retry.md.

PGHERD_DSN is as in retry_psycopg.py, and so is what becomes of an unknown outcome.
"""

import os
from collections.abc import Callable
from typing import TypeVar

import psycopg
import sqlalchemy
from retry_psycopg import ATTEMPTS, NOTHING_COMMITTED, outcome, pause
from sqlalchemy import text
from sqlalchemy.orm import Session

T = TypeVar("T")
DSN = os.environ["PGHERD_DSN"]

# libpq chooses the member, from the line itself; the pool keeps and tests the connections.
ENGINE = sqlalchemy.create_engine(
    "postgresql+psycopg://", creator=lambda: psycopg.connect(DSN), pool_pre_ping=True
)


def run(work: Callable[[Session], T]) -> T:
    """Run `work` in a session of its own that is committed once; it may be called several times."""
    for attempt in range(ATTEMPTS):
        token = None
        try:
            with Session(ENGINE) as session:
                result = work(session)
                session.flush()
                token = session.scalar(text("SELECT pgherd.current_token()"))
                session.commit()
            return result
        except sqlalchemy.exc.DBAPIError as error:
            sqlstate = getattr(error.orig, "sqlstate", None)
            if sqlstate == "25006":
                ENGINE.dispose()  # the pool's connections lead to a member that takes no writes
            if sqlstate not in NOTHING_COMMITTED:
                if not isinstance(error.orig, psycopg.OperationalError):
                    raise
                if token is not None and outcome(DSN, token):
                    return result
        pause(attempt)
    raise RuntimeError(f"{ATTEMPTS} attempts have failed")


def transfer(session: Session) -> None:
    """Take one from the first account, and give it to the second."""
    session.execute(text("UPDATE account SET balance = balance - 1 WHERE id = 1"))
    session.execute(text("UPDATE account SET balance = balance + 1 WHERE id = 2"))


if __name__ == "__main__":
    for _ in range(int(os.environ.get("PGHERD_TRANSFERS", "1"))):
        run(transfer)
