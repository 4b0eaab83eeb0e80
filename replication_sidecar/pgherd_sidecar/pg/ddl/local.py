"""Which statements concern one server only, so that each member may execute them for itself.

What a statement of these changes is in no dump of the database: tables and indexes are written
anew, statistics are collected, settings of the server are made. Anything else is replicated, and is
executed once, on any member. PostgreSQL itself watches over the rest: what is executed runs in
read-only transactions, in which it refuses whatever a dump would show.

It keeps nothing.
"""

from typing import Any, Final

from pglast import ast, enums

from pgherd_sidecar.pg.ddl.refusal import DdlNotSupported
from pgherd_sidecar.pg.ddl.statements import DdlStatement, parse_statements

_UPKEEP: Final = (ast.VacuumStmt, ast.ClusterStmt, ast.ReindexStmt)
"""They fire no event triggers before PostgreSQL 17, and lock what they write anew."""
_OTHERS: Final = (
    ast.AlterSystemStmt,
    ast.CallStmt,
    ast.CheckPointStmt,
    ast.DoStmt,
    ast.LoadStmt,
    ast.SelectStmt,
    ast.VariableSetStmt,
)
_OURS: Final = frozenset(
    {
        "default_transaction_read_only",
        "role",
        "session_authorization",
        "session_replication_role",
        "statement_timeout",
        "transaction_read_only",
    }
)
"""Settings of the session that executes: without them a statement might do more than it may."""
_HINT: Final = (
    "Maintenance is VACUUM, ANALYZE, REINDEX, CLUSTER, CHECKPOINT, ALTER SYSTEM, SET, and what"
    " SELECT, CALL and DO may do in a read-only transaction."
)


def local_statements(text: str) -> list[str]:
    """Split a text into the statements that a member executes for itself.

    Args:
        text: SQL.

    Raises:
        DdlNotSupported: one of them would be replicated, or is none that can be executed so.
    """
    found = parse_statements(text)
    if not found:
        raise DdlNotSupported("there is no statement in it", _HINT)
    for statement in found:
        _require_local(statement)
    return [statement.text for statement in found]


def is_upkeep(statement: str) -> bool:
    """Whether a statement writes tables or indexes anew, or collects statistics."""
    return all(isinstance(one.node, _UPKEEP) for one in parse_statements(statement))


def runs_code(statement: str) -> bool:
    """Whether it may end its transaction, and begin one that is not read-only: DO and CALL may."""
    return any(
        isinstance(one.node, (ast.DoStmt, ast.CallStmt)) for one in parse_statements(statement)
    )


def vacuum_full(table: str) -> str:
    """The statement that writes a table anew, of a name as SQL writes it."""
    return f"VACUUM (FULL, ANALYZE) {table}"


def reindex(table: str) -> str:
    """The statement that writes all indexes of a table anew, of a name as SQL writes it."""
    return f"REINDEX TABLE {table}"


def _require_local(statement: DdlStatement) -> None:
    node = statement.node
    begins = " ".join(statement.text.split())[:60]
    if isinstance(node, ast.VariableSetStmt):
        _require_harmless(node, begins)
    elif isinstance(node, ast.AlterSystemStmt):
        _require_harmless(node.setstmt, begins)
    elif isinstance(node, ast.TransactionStmt):
        raise DdlNotSupported(
            f"{begins}: each statement of maintenance is a transaction of its own",
            "Leave BEGIN and COMMIT out.",
        )
    elif not isinstance(node, (*_UPKEEP, *_OTHERS)) or getattr(node, "intoClause", None):
        raise DdlNotSupported(
            f"{begins}: it is no maintenance of one server",
            f"Execute it once, on any member: what it does is replicated, or refused. {_HINT}",
        )


def _require_harmless(node: Any, begins: str) -> None:
    every = enums.VariableSetKind.VAR_RESET_ALL
    named = str(node.name or "").lower()
    words = ("transaction", "characteristics")
    if node.kind == every or named in _OURS or any(word in named for word in words):
        raise DdlNotSupported(f"{begins}: this setting is pgherd's own", "Leave it out.")
