"""Log lines of the sidecar: one JSON object a line on stderr.

Event names are stable identifiers, everything else is in fields; no values of rows, no secrets
(fields with a telling name are blanked as the last line of defence). The standard library's
loggers, which our dependencies use, come out in the same form from level warning up.

Called once by ``main``, before anything logs.
"""

import logging
import sys

import msgspec
import structlog
from structlog.typing import EventDict, WrappedLogger

_SECRET = ("password", "secret", "token", "passfile", "conninfo")


def configure(level: str, member: str) -> None:
    """Send all log lines of at least ``level`` to stderr, each naming the member."""

    def name_member(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        event["member"] = member
        return event

    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            name_member,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            blank_secrets,
            _to_line,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    root = logging.getLogger()
    root.handlers = [Bridge(logging.WARNING)]


def blank_secrets(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Blank the values of fields whose names say that they are secret."""
    for key in event:
        if any(word in key.lower() for word in _SECRET):
            event[key] = "***"
    return event


def _to_line(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    return msgspec.json.encode(event, enc_hook=str).decode()


class Bridge(logging.Handler):
    """Passes a record of the standard library's logging on."""

    def emit(self, record: logging.LogRecord) -> None:
        structlog.get_logger().log(
            record.levelno,
            "library_log",
            logger=record.name,
            text=record.getMessage(),
            exc_info=record.exc_info,
        )
