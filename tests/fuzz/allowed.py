"""What a herd may say where a plain PostgreSQL says nothing: every such answer, and why.

docs/ddl.md and docs/isolation.md tell users of each. Any other difference is a finding.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Refusal:
    """A statement that a plain server takes, and a herd need not.

    Attributes:
        sqlstate: what it says.
        statement: of which statements, as a regular expression.
        reason: where users are told.
    """

    sqlstate: str
    statement: str
    reason: str


_COMPUTED = r"circle\(point|timezone\(interval|xmlconcat\(|make_interval\("
REFUSALS = (
    Refusal("0A000", "", "docs/ddl.md: what can't be replicated is refused, with a hint"),
    Refusal("42501", r"\blo_\w+\(", "docs/ddl.md: large objects"),
    Refusal(
        "42501", r"^SET plpgsql\.", "a plain server says it, too, to sessions that used PL/pgSQL"
    ),
    *(
        Refusal(code, _COMPUTED, "docs/isolation.md: values that cannot be read again")
        for code in ("22P02", "22007", "22008", "2200N")
    ),
    Refusal("23502", r"\bLEFT JOIN\b", "docs/isolation.md: a NULL that a domain forbids"),
)

REPEATED = {
    "40001": "docs/isolation.md: a conflict with what was committed on another member",
    "40P01": "a deadlock",
    "08007": "docs/guarantees.md: the outcome is not known to the client",
    "25006": "docs/guarantees.md: the member has no majority for a moment, on a busy machine",
    "57P01": "docs/isolation.md: the session was in the way of what another member has committed",
    "57P03": "the server is just starting",
    "57014": "docs/limits.md: a second cancel, of a certified transaction, at the end of COMMIT",
    "55P03": "the client's own lock_timeout",
    "08006": "the connection was lost",
    "25P03": "the client's own idle_in_transaction_session_timeout",
}
"""By SQLSTATE: a transaction met another one, or trouble. It says nothing about SQL."""

_BUSY = re.compile(r"^index .* is being (built|dropped) on all members")
"""docs/ddl.md: a 55006 of ours. One of PostgreSQL's own comes again at each repetition."""

UNKNOWN = {"08006", "08007", "57014"}
"""Of these: the transaction may have been committed, so it is not repeated."""


def is_refusal(sqlstate: str, statement: str) -> bool:
    """Whether a herd may answer so to what a plain server takes."""
    return any(one.sqlstate == sqlstate and re.search(one.statement, statement) for one in REFUSALS)


def is_repeated(sqlstate: str, message: str) -> bool:
    """Whether the transaction is to be repeated."""
    return sqlstate in REPEATED or (sqlstate == "55006" and _BUSY.search(message) is not None)
