"""Names the cause of a divergence: what is the same wherever, and whenever, it is the same.

That is the SQLSTATE, and what was being applied. No values of rows are in it, and no names: another
row or table that can't be applied for the same reason is taken for the same defect. It keeps
nothing.
"""

from pgherd_sidecar.agent.base.errors import DivergedError, SkippedError
from pgherd_sidecar.core.replication.databases import SKIPPED
from pgherd_sidecar.core.replication.entries import CAUSE_BYTES


def cause_of(error: DivergedError) -> str:
    """Return it in a few words; never empty."""
    if isinstance(error, SkippedError):
        return SKIPPED
    failure = error.failure
    if failure is None:
        return "broken chain"
    text = f"{failure.sqlstate or failure.trouble.value} in {failure.work}"
    return text.encode()[:CAUSE_BYTES].decode(errors="ignore")
