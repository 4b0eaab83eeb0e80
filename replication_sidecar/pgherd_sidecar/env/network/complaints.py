"""Log lines that anybody can cause by connecting, now and then only: he must not fill our disk.

A restart forgets what was said.
"""

import asyncio

import structlog

_log = structlog.get_logger()

_COMPLAINTS_MAX = 64
_COMPLAIN_AGAIN_S = 600.0


class Complaints:
    """What was complained of lately is not logged again, nor are more than so many kinds of it."""

    def __init__(self) -> None:
        self._said_s: dict[tuple[str, ...], float] = {}

    def warn(self, event: str, **fields: str) -> None:
        """Log an event with its fields, unless that was done a short while ago."""
        now_s = asyncio.get_running_loop().time()
        for known, said_s in list(self._said_s.items()):
            if now_s - said_s > _COMPLAIN_AGAIN_S:
                del self._said_s[known]
        complaint = (event, *fields.values())
        if complaint not in self._said_s and len(self._said_s) < _COMPLAINTS_MAX:
            self._said_s[complaint] = now_s
            _log.warning(event, **fields)
