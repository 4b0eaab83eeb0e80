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

from pgherd_sidecar.pg import scram
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
#: Options of CREATE ROLE that ALTER ROLE does not have.
_NOT_ALTERED: Final = {"addroleto", "adminmembers", "rolemembers", "sysid"}
_SHARED: Final = {
    enums.ObjectType.OBJECT_DATABASE,
    enums.ObjectType.OBJECT_PARAMETER_ACL,
    enums.ObjectType.OBJECT_ROLE,
}
_ABOUT_OBJECTS: Final = {
    ast.AlterOwnerStmt: "objectType",
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
            "pgherd.run_everywhere() takes one command about roles (but not their names), role"
            " membership, event triggers or settings and privileges of the database",
            "Other DDL replicates by itself: execute it directly.",
        )
    statement = statements[0]
    command: dict[str, Any] = {
        "act": "run",
        "rels": [],
        "role": captured.role,
        "roles": captured.roles,
        "grants": captured.grants,
        "grantees": captured.grantees,
        "database": captured.database,
    }
    if isinstance(statement.node, ast.DropRoleStmt):
        command |= {"sql": "", "dropped": captured.dropped}
    elif isinstance(statement.node, ast.CreateRoleStmt):
        command |= {"sql": _as_alter_role(statement, captured), "created": statement.node.role}
    else:
        command |= {"sql": _without_password(statement, captured.verifiers)}
    return msgspec.json.encode(command).decode()


def _as_alter_role(statement: Statement, captured: Captured) -> str:
    """CREATE ROLE for members that have the role already, made by hand or because it was named."""
    options = {option.defname for option in statement.node.options or ()}
    if options & _NOT_ALTERED:
        raise DdlNotSupported(
            "CREATE ROLE with members, groups or a SYSID is not supported",
            "Create the role first, then GRANT it with pgherd.run_everywhere().",
        )
    text = _without_password(statement, captured.verifiers)
    _create, role, *_ = (word for word in parser.scan(text) if word.kind != "NO_KEYWORD")
    altered = "ALTER ROLE" + text[role.end + 1 :]
    if statement.node.stmt_type == enums.RoleStmtType.ROLESTMT_USER and "canlogin" not in options:
        altered += "\nLOGIN"
    return altered


def _is_allowed(node: Any) -> bool:
    attribute = _ABOUT_OBJECTS.get(type(node))
    if isinstance(node, ast.RenameStmt) and node.renameType == enums.ObjectType.OBJECT_ROLE:
        return False  # a member may have a role of the new name
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
    tokens = parser.scan(text)
    for word, value in pairwise(tokens):
        if word.name != "PASSWORD" or value.name not in ("SCONST", "USCONST"):
            continue
        # One that has not changed is not reported.
        verifier = verifiers.get(name)
        if verifier is None and scram.is_verifier(text[value.start + 1 : value.end]):
            return text
        if verifier is not None:
            quoted = "'" + verifier.replace("'", "''") + "'"
            return text[: value.start] + quoted + text[value.end + 1 :]
    raise DdlNotSupported(
        "the password cannot be replicated", "Give it as a verifier (SCRAM-SHA-256$...)."
    )
