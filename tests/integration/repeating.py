"""What tests repeat by themselves: a message that was a whole transaction, after 40001.

That asks for it: a command of another member goes first, or has not been seen here. Whoever tests
who loses calls what repeats nothing.
"""

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

_PAUSES_S = (0.05, 0.1, 0.2, 0.4, 0.8, *(1.5,) * 10)


def repeats_s(
    connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any],
) -> Sequence[float]:
    """The pauses after which a message may be sent again; none inside of a transaction."""
    whole = connection.autocommit and not is_in_transaction(connection)
    return _PAUSES_S if whole else ()


def is_in_transaction(
    connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any],
) -> bool:
    """Whether a transaction is open, failed or not."""
    return connection.info.transaction_status != TransactionStatus.IDLE
