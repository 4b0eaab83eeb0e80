"""Log lines of the operator: one JSON object a line on standard output.

What libraries log by the standard library's loggers comes out in the same form: kopf tells there
what becomes of its watches.
"""

import logging

import structlog
from pgherd_sidecar.agent.base.logging import Bridge

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_EACH_EVENT = "kopf.objects"
"""The logger that has a line for each event of each object."""


def configure(level: str = "info") -> None:
    """Send all log lines of at least this level to standard output.

    Args:
        level: one of LEVELS; with another one it is ``info``, and that is said.
    """
    least = LEVELS.get(level.lower(), logging.INFO)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,  # with no values of variables
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(least),
    )
    root = logging.getLogger()
    root.handlers = [Bridge()]
    root.setLevel(least)
    logging.getLogger(_EACH_EVENT).setLevel(max(least, logging.WARNING))
    if level.lower() not in LEVELS:
        structlog.get_logger().warning("log_level.unknown", level=level, known=", ".join(LEVELS))
