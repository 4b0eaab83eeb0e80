"""Commands that a superuser runs on every member: pgherd.run_everywhere().

They are about what belongs to the server and not to the database: roles above all, for which
PostgreSQL fires no event triggers. Only these are let through, one statement at a time. What they
did to roles and the like the catalogs tell (``sql/049_unseen.sql``), and that travels instead of
their words; so no password does.

It keeps nothing.
"""

from typing import Any, Final

import msgspec
from pglast import ast, enums

from pgherd_sidecar.pg.ddl.refusal import DdlNotSupported
from pgherd_sidecar.pg.ddl.statements import Captured, parse_statements

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
    ast.AlterOwnerStmt: "objectType",
    ast.CommentStmt: "objtype",
    ast.GrantStmt: "objtype",
    ast.RenameStmt: "renameType",
    ast.SecLabelStmt: "objtype",
}


#: They change what no catalog of roles tells, so that their words travel.
_BY_WORDS: Final = (ast.AlterEventTrigStmt, ast.CreateEventTrigStmt, ast.SecLabelStmt)


def resolve_everywhere(captured: Captured) -> str | None:
    """The command as it travels; None if the catalogs tell what it did.

    Raises:
        DdlNotSupported: not one statement of those that may be run.
    """
    statements = parse_statements(captured.sql)
    if len(statements) != 1 or not _is_allowed(statements[0].node):
        raise DdlNotSupported(
            "pgherd.run_everywhere() takes one command about roles, role membership, event triggers"
            " or settings and privileges of the database",
            "Other DDL replicates by itself: execute it directly.",
        )
    if not isinstance(statements[0].node, _BY_WORDS):
        return None
    command: dict[str, Any] = {"act": "run", "rels": [], "sql": statements[0].text}
    return msgspec.json.encode(command).decode()


def _is_allowed(node: Any) -> bool:
    attribute = _ABOUT_OBJECTS.get(type(node))
    if attribute is not None:
        return getattr(node, attribute) in _SHARED
    if isinstance(node, ast.CreateEventTrigStmt | ast.AlterEventTrigStmt):
        return not str(node.trigname).startswith("pgherd_")
    return isinstance(node, _ALLOWED)
