"""Names the cause of a divergence: what is the same wherever, and whenever, it is the same.

That is the SQLSTATE, and what was being applied. No values of rows are in it, and no names: another
row or table that can't be applied for the same reason is taken for the same defect. Called by
``replica``; keeps nothing.
"""

import psycopg

from pgherd_sidecar.agent.errors import DivergedError, SkippedError
from pgherd_sidecar.core.databases import SKIPPED
from pgherd_sidecar.core.entries import CAUSE_BYTES
from pgherd_sidecar.pg.pipeline import RoundFailedError


def cause_of(error: DivergedError) -> str:
    """Return it in a few words; never empty."""
    if isinstance(error, SkippedError):
        return SKIPPED
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, RoundFailedError):
            return _fitting(f"{found.sqlstate} in rows")
        if isinstance(found, psycopg.Error) and found.sqlstate:
            return _fitting(f"{found.sqlstate} in a command")
        found = found.__cause__
    return "other tables" if error.gid else "broken chain"


def _fitting(text: str) -> str:
    return text.encode()[:CAUSE_BYTES].decode(errors="ignore")
