"""Defaults that the command line shows, too: it takes them from here to start fast."""

from typing import Final

FINGERPRINT_EVERY: Final = 64
"""Then fingerprints take less than a twentieth of the time of small transactions."""
SCRUB_INTERVAL_S: Final = 7 * 86_400.0
SCRUB_SHARE: Final = 2.0
"""Percent of one core."""
HOOK_SOCKET: Final = ".s.PGSQL.1"
"""The name of the socket on which commits are certified, as dblink makes it of port 1."""

OPERATOR, JOBS = "operator", "jobs"
"""A client with a certificate of such a name may use the admin API from elsewhere."""
SERVICES: Final = frozenset({OPERATOR, JOBS, "import"})
"""No member has one of these names: its certificate may be in other hands."""
