"""What tests repeat by themselves: a message that was a whole transaction, after 40001.

That asks for it: a command of another member goes first, or has not been seen here. Whoever tests
who loses calls what repeats nothing. The last lines of a run count the repeats: a herd that refuses
messages in vain shows there.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

_PAUSES_S = (0.05, 0.1, 0.2, 0.4, 0.8, *(1.5,) * 10)


@dataclass
class Repeats:
    """How many messages were sent again since somebody asked."""

    count: int = 0

    def take(self) -> int:
        """Return the number, and begin anew."""
        count, self.count = self.count, 0
        return count


REPEATS = Repeats()


def repeats_s(
    connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any],
) -> Iterator[float]:
    """The pauses after which a message may be sent again; none inside of a transaction."""
    if connection.autocommit and not is_in_transaction(connection):
        for pause_s in _PAUSES_S:
            yield pause_s
            REPEATS.count += 1


def is_in_transaction(
    connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any],
) -> bool:
    """Whether a transaction is open, failed or not."""
    return connection.info.transaction_status != TransactionStatus.IDLE
