"""Commands that a superuser runs on every member: pgherd.run_everywhere().

They are about what belongs to the server and not to the database: roles above all, for which
PostgreSQL fires no event triggers. Only these are let through, one statement at a time, and
passwords travel as the verifiers that the origin's server made of them.

Called by ``ddl``. Keeps nothing.
"""

from itertools import pairwise
from typing import Any, Final

import msgspec
from pglast import ast, enums, parser

from pgherd_sidecar.pg.ddl_refusal import DdlNotSupported
from pgherd_sidecar.pg.ddl_statements import Captured, Statement, parse

_ALLOWED: Final = (
    ast.AlterDatabaseSetStmt,
    ast.AlterEventTrigStmt,
    ast.AlterRoleSetStmt,
    ast.AlterRoleStmt,
    ast.CreateEventTrigStmt,
    ast.CreateRoleStmt,
    ast.DropRoleStmt,
    ast.GrantRoleStmt,
    ast.ReassignOwnedStmt,
)
_SHARED: Final = {
    enums.ObjectType.OBJECT_DATABASE,
    enums.ObjectType.OBJECT_PARAMETER_ACL,
    enums.ObjectType.OBJECT_ROLE,
}
_ABOUT_OBJECTS: Final = {
    ast.CommentStmt: "objtype",
    ast.GrantStmt: "objtype",
    ast.RenameStmt: "renameType",
    ast.SecLabelStmt: "objtype",
}


def resolve_everywhere(captured: Captured) -> str:
    """The command as it travels.

    Raises:
        DdlNotSupported: not one statement of those that may be run.
    """
    statements = parse(captured.sql)
    if len(statements) != 1 or not _is_allowed(statements[0].node):
        raise DdlNotSupported(
            "pgherd.run_everywhere() takes one command about roles, role membership, event triggers"
            " or settings and privileges of the database",
            "Other DDL replicates by itself: execute it directly.",
        )
    sql = _without_password(statements[0], captured.verifiers)
    return msgspec.json.encode(
        {"act": "run", "sql": sql, "rels": [], "role": captured.role}
    ).decode()


def _is_allowed(node: Any) -> bool:
    attribute = _ABOUT_OBJECTS.get(type(node))
    if attribute is not None:
        return getattr(node, attribute) in _SHARED
    if isinstance(node, ast.CreateEventTrigStmt | ast.AlterEventTrigStmt):
        return not str(node.trigname).startswith("pgherd_")
    return isinstance(node, _ALLOWED)


def _without_password(statement: Statement, verifiers: dict[str, str]) -> str:
    """Put the verifier in the place of a password."""
    node: Any = statement.node
    if not isinstance(node, ast.CreateRoleStmt | ast.AlterRoleStmt):
        return statement.text
    if not any(o.defname == "password" and o.arg is not None for o in node.options or ()):
        return statement.text
    role: Any = node.role
    name = role if isinstance(role, str) else role.rolename
    text = statement.text
    # An unchanged verifier is not reported: the password was a verifier already, or the same one.
    verifier = verifiers.get(name)
    tokens = parser.scan(text)
    for word, value in pairwise(tokens):
        if word.name == "PASSWORD" and value.name in ("SCONST", "USCONST") and verifier is not None:
            quoted = "'" + verifier.replace("'", "''") + "'"
            return text[: value.start] + quoted + text[value.end + 1 :]
    raise DdlNotSupported(
        "the password cannot be replicated", "Give it as a verifier (SCRAM-SHA-256$...)."
    )
