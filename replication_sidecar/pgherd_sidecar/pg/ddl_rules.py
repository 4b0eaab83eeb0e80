"""DDL that is refused for what its words say.

What the catalog shows after a command is judged in PostgreSQL; here is what it does not show:
expressions that are evaluated once and forgotten, names that mean something else on another
member, objects that members need not have in common.

Called by ``ddl``. Keeps nothing.
"""

from collections.abc import Iterator
from typing import Any, Final

from pglast import ast, enums

from pgherd_sidecar.pg.ddl_refusal import DdlNotSupported
from pgherd_sidecar.pg.ddl_statements import Captured

_FOREIGN: Final = (
    ast.AlterFdwStmt,
    ast.AlterForeignServerStmt,
    ast.AlterUserMappingStmt,
    ast.CreateFdwStmt,
    ast.CreateForeignServerStmt,
    ast.CreateForeignTableStmt,
    ast.CreateUserMappingStmt,
    ast.DropUserMappingStmt,
    ast.ImportForeignSchemaStmt,
)
_SUBSCRIPTIONS: Final = (
    ast.AlterSubscriptionStmt,
    ast.CreateSubscriptionStmt,
    ast.DropSubscriptionStmt,
)
_NATIVE_LANGUAGES: Final = {"c", "internal"}
_RANGE_OPTIONS: Final = {"as", "minvalue", "maxvalue"}

#: Functions whose result depends on their arguments (and the settings that travel along) only.
_CERTAIN_FUNCTIONS: Final = frozenset(
    """
    abs array_to_string ascii bit_length btrim ceil ceiling char_length chr convert_from
    convert_to date date_part date_trunc decode div encode extract floor format initcap
    jsonb_build_object left length lower lpad ltrim make_date make_interval make_time
    make_timestamp md5 mod overlay position power regexp_replace repeat replace reverse right
    round rpad rtrim sha256 split_part sqrt string_to_array strpos substr substring timezone
    to_char to_date to_hex to_json to_jsonb to_number to_timestamp translate trim trunc upper
    """.split()  # noqa: SIM905 - a list of sixty strings is harder to read
)


def nodes(root: Any) -> Iterator[Any]:
    """All nodes of a parse tree, the root first."""
    stack = [root]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Node):
            yield node
            stack += [getattr(node, slot) for slot in node]
        elif isinstance(node, tuple | list):
            stack += node


def concerns_temporary(statement: Any, temporary: list[str] | None) -> bool:
    """Is this a command about temporary relations that PostgreSQL did not recognise as one?

    GRANT and REVOKE do not tell their objects to event triggers.

    Args:
        statement: the parse tree.
        temporary: names of the session's temporary relations.
    """
    if not isinstance(statement, ast.GrantStmt) or not statement.objects:
        return False
    relations = [one for one in statement.objects if isinstance(one, ast.RangeVar)]
    return bool(relations) and all(_is_temporary(one, temporary) for one in relations)


def refuse_unsafe(statement: Any, captured: Captured) -> None:
    """Check a statement.

    Args:
        statement: the parse tree.
        captured: what else is known of the command.

    Raises:
        DdlNotSupported: it would or could differ between members.
    """
    _refuse_kinds(statement)
    for node in nodes(statement):
        if isinstance(node, ast.RangeVar) and _is_temporary(node, captured.temporary):
            raise DdlNotSupported(
                f"the command refers to {node.relname}, a temporary table of this session",
                "Other members do not have it: use an ordinary table.",
            )
        if isinstance(node, ast.RoleSpec) and (
            node.roletype == enums.RoleSpecType.ROLESPEC_SESSION_USER
        ):
            raise DdlNotSupported(
                "SESSION_USER in DDL is not supported", "Name the role, or use CURRENT_USER."
            )
        if isinstance(node, ast.AlterTableCmd):
            _refuse_subcommand(node, captured)
    if isinstance(statement, ast.AlterSeqStmt):
        _refuse_range(statement.options)


def _refuse_kinds(statement: Any) -> None:
    hint = "Keep it in another database of the server, which is local."
    kinds = {getattr(statement, name, None) for name in ("objtype", "objectType", "removeType")}
    if isinstance(statement, _FOREIGN) or enums.ObjectType.OBJECT_FOREIGN_TABLE in kinds:
        raise DdlNotSupported("foreign tables and servers are not supported", hint)
    if isinstance(statement, _SUBSCRIPTIONS):
        raise DdlNotSupported("subscriptions are not supported", hint)
    if enums.ObjectType.OBJECT_LARGEOBJECT in kinds:
        raise DdlNotSupported("large objects are not replicated", "Use a bytea column.")
    if isinstance(statement, ast.AlterTableMoveAllStmt):
        raise DdlNotSupported("tablespaces are not supported", "Leave tables where they are.")
    if isinstance(statement, ast.CreateFunctionStmt):
        languages = {one.arg.sval for one in statement.options or () if one.defname == "language"}
        if languages & _NATIVE_LANGUAGES:
            raise DdlNotSupported(
                "functions in C are not supported", "Put them into an extension on every member."
            )
    if isinstance(statement, ast.CreateExtensionStmt) and any(
        option.defname == "cascade" for option in statement.options or ()
    ):
        raise DdlNotSupported(
            "CREATE EXTENSION ... CASCADE is not supported",
            "Create the required extensions first: each is then made in the same version.",
        )
    if isinstance(statement, ast.AlterExtensionStmt) and not statement.options:
        raise DdlNotSupported(
            "ALTER EXTENSION ... UPDATE without a version is not supported", "Say TO 'version'."
        )


def _refuse_subcommand(command: Any, captured: Captured) -> None:
    if command.subtype == enums.AlterTableType.AT_SetIdentity:
        _refuse_range(command.def_)
    if command.subtype != enums.AlterTableType.AT_AlterColumnType or not captured.rewrites:
        return
    for node in nodes(command.def_.raw_default):
        if isinstance(node, ast.SQLValueFunction) or (
            isinstance(node, ast.FuncCall) and not _is_certain(node)
        ):
            raise DdlNotSupported(
                f"the new type of column {command.name} is computed with a function that may have"
                " another result on another member",
                "Add a column of the new type, UPDATE it, then drop the old one and rename.",
            )


def _is_certain(call: ast.FuncCall) -> bool:
    *schema, name = (part.sval for part in call.funcname or ())
    return schema in ([], ["pg_catalog"]) and name in _CERTAIN_FUNCTIONS


def _refuse_range(options: Any) -> None:
    """A new range must fit where each member's sequence stands, which is not the same place."""
    names = {option.defname for option in options or ()}
    restarted = any(o.defname == "restart" and o.arg is not None for o in options or ())
    if names & _RANGE_OPTIONS and not (restarted and "start" in names):
        raise DdlNotSupported(
            "the range of a sequence cannot be changed where members stand at different numbers",
            "Say START WITH and RESTART WITH in the same command.",
        )


def _is_temporary(relation: ast.RangeVar, temporary: list[str] | None) -> bool:
    schema = relation.schemaname
    if schema is None:
        return relation.relname in (temporary or ())
    return bool(schema == "pg_temp" or schema.startswith("pg_temp_"))
