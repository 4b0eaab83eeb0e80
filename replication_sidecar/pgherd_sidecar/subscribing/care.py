"""The care of whoever feeds a subscription: it takes its turn, and judges the errors that it meets.

The feeder of a member and the process of a subscriber that forwards are two of a kind.
"""

import asyncio
import gc
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import psycopg
import structlog

from pgherd_sidecar.client.admin import AdminError
from pgherd_sidecar.client.stream.changes import ChangesError, PositionLostError
from pgherd_sidecar.subscribing.state.errors import MemberError, MovedOnError, StoppedError
from pgherd_sidecar.subscribing.state.herd import Subscription
from pgherd_sidecar.tables.rowsql import RowsKeptError, RowsMissingError
from pgherd_sidecar.tables.sessions import heed_cancellation, in_one_line, is_transient, message_of

_log = structlog.get_logger()
_AGAIN_S = 2.0
_COLLECT_AFTER = 100_000
_ERRORS = (MovedOnError, AdminError, ChangesError, OSError)


class Care(ABC):
    """Care for one subscription, until it is cancelled or stopped for good."""

    _yields_s: ClassVar[float] = 0.0
    """So long others may take the turn after an error of the server that provides the rows."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._complaint = ""

    @abstractmethod
    async def _take_turn(self) -> None:
        """Feed it, if nobody else does."""

    @abstractmethod
    async def _stop(self, reason: str) -> None:
        """Say that it can't go on, and why."""

    @abstractmethod
    async def _lose(self, why: str) -> str | None:
        """The log that it needs is not there any more: return why it has to be stopped, if so."""

    @abstractmethod
    async def _hear(self, error: str) -> None:
        """Something was in the way, which may pass."""

    async def feed(self) -> None:
        """Take turns until it has to be stopped."""
        while True:
            reason = await self._try()
            heed_cancellation()
            if reason is not None:
                await self._stop(reason)
                return
            await asyncio.sleep(_AGAIN_S)

    async def _try(self) -> str | None:
        """Take one turn; return why it has to be stopped, None if it has not."""
        try:
            await self._take_turn()
        except StoppedError as error:
            return str(error)
        except RowsMissingError as error:
            return (
                f"{error} at the subscriber, where somebody else has written, or a trigger"
                " keeps them from being changed: `pgherd subscribe SET --to DSN --anew`"
                " copies everything again"
            )
        except RowsKeptError as error:
            return f"{error} at the subscriber: change that there, and repeat `pgherd subscribe`"
        except psycopg.Error as error:
            if not is_transient(error):
                return (
                    f"the subscriber says: {message_of(error)}; mend that, and repeat"
                    " `pgherd subscribe`"
                )
            await self._complain(message_of(error))
        except PositionLostError as error:
            if (reason := await self._lose(str(error))) is not None:
                return reason
            await self._complain(str(error))
        except MemberError as error:
            await self._complain(str(error))
            await asyncio.sleep(self._yields_s)
        except _ERRORS as error:
            await self._complain(in_one_line(error))
        return None

    async def _complain(self, error: str) -> None:
        await self._hear(error)
        if error != self._complaint:
            self._complaint = error
            _log.warning("subscription.waits", subscription=self._subscription.name, error=error)


def collect_seldom() -> None:
    """Have a process of its own look seldom for objects that only refer to each other.

    Rows never do, and each look would walk through all that wait to be written.
    """
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER)


def log_to_standard_error() -> None:
    """Have a process of its own log there, in JSON."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
    )


async def end_all(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel tasks, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
