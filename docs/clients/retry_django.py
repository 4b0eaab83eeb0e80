"""How a program with Django repeats transactions: see docs/retry.md.

PGHERD_DSN is as in retry_psycopg.py, and so is what becomes of an unknown outcome.
"""

import os
from collections.abc import Callable
from typing import TypeVar

import django.db
import psycopg
from django.conf import settings
from django.db import connection, transaction
from psycopg.conninfo import conninfo_to_dict
from retry_psycopg import ATTEMPTS, NOTHING_COMMITTED, outcome, pause

T = TypeVar("T")
DSN = os.environ["PGHERD_DSN"]


def database() -> dict[str, object]:
    """DATABASES["default"]: lists of hosts and ports are taken as libpq takes them."""
    parts = conninfo_to_dict(DSN)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.pop("dbname"),
        "USER": parts.pop("user"),
        "PASSWORD": parts.pop("password", ""),
        "HOST": parts.pop("host"),
        "PORT": parts.pop("port"),
        "OPTIONS": parts,  # target_session_attrs and the like
        "CONN_MAX_AGE": 60,
        "CONN_HEALTH_CHECKS": True,
    }


def run(work: Callable[[], T]) -> T:
    """Run `work` in atomic(), committed once; it may be called several times.

    It must be the outermost atomic(): set ATOMIC_REQUESTS to False, and call it in the view.
    """
    for attempt in range(ATTEMPTS):
        token = None
        try:
            with transaction.atomic(durable=True):
                result = work()
                with connection.cursor() as cursor:
                    cursor.execute("SELECT pgherd.current_token()")
                    token = cursor.fetchone()[0]
            return result
        except django.db.Error as error:
            sqlstate = getattr(error.__cause__, "sqlstate", None)
            connection.close()  # another member, perhaps, with the next statement
            if sqlstate not in NOTHING_COMMITTED:
                if not isinstance(error.__cause__, psycopg.OperationalError):
                    raise
                if token is not None and outcome(DSN, token):
                    return result
        pause(attempt)
    raise RuntimeError(f"{ATTEMPTS} attempts have failed")


def transfer() -> None:
    """Take one from the first account, and give it to the second."""
    with connection.cursor() as cursor:
        cursor.execute("UPDATE account SET balance = balance - 1 WHERE id = 1")
        cursor.execute("UPDATE account SET balance = balance + 1 WHERE id = 2")


if __name__ == "__main__":
    settings.configure(DATABASES={"default": database()})
    django.setup()
    for _ in range(int(os.environ.get("PGHERD_TRANSFERS", "1"))):
        run(transfer)
