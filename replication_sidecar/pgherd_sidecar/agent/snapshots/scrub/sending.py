"""Sends the scrub's messages through the log, where they may be lost on their way.

Nothing survives it.
"""

import asyncio
import uuid

import structlog

from pgherd_sidecar.agent.log.host import LogHost
from pgherd_sidecar.core.replication.entries import encode_entry
from pgherd_sidecar.core.replication.scrub.messages import Answer, Request, encode_message

log = structlog.get_logger()

_LOOK_S, _LOOKS, _RETRIES = 0.02, 50, 20
"""Between looks whether what was sent has come; how many before it is sent again."""


class ScrubSender:
    """The messages that this member has sent and not seen delivered yet.

    Args:
        host: the log.
    """

    def __init__(self, host: LogHost) -> None:
        self._host = host
        self._undelivered: set[str] = set()

    def note_delivered(self, message: Request | Answer) -> None:
        """Take a message that the log has delivered: any request, or an answer of this member."""
        self._undelivered.discard(_key(message))

    async def send(self, message: Request | Answer) -> None:
        """Send a message until it is delivered, for some time."""
        entry, key = encode_entry(encode_message(message, uuid.uuid4().bytes)), _key(message)
        self._undelivered.add(key)
        for number in range(_RETRIES * _LOOKS):
            if number % _LOOKS == 0:
                self._host.submit(entry, 1)
            await asyncio.sleep(_LOOK_S)
            if key not in self._undelivered:
                return
        self._undelivered.discard(key)
        log.debug("scrub.not_sent", id=message.id)


def _key(message: Request | Answer) -> str:
    return message.id if isinstance(message, Request) else f"answer {message.id}"
