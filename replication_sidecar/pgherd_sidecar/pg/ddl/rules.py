"""DDL that is refused for what its words say.

What the catalog shows after a command is judged in PostgreSQL; here is what it does not show:
expressions that are evaluated once and forgotten, names that mean something else on another
member, objects that members need not have in common.

It keeps nothing.
"""

import re
from typing import Any, Final

from pglast import ast, enums

from pgherd_sidecar.pg.ddl.grammar import languages, nodes, refuse_newer_syntax
from pgherd_sidecar.pg.ddl.refusal import DdlNotSupported
from pgherd_sidecar.pg.ddl.statements import Captured

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
#: What PostgreSQL reads as a date or time that depends on when it is read.
_MOVING_DATE: Final = re.compile(
    r"(?<![a-z])(now|today|tomorrow|yesterday)(?![a-z])", re.IGNORECASE
)
#: Settings that PostgreSQL judges by the running transaction, and not at all for another role.
_UNSETTABLE: Final = {
    "role",
    "session_authorization",
    "transaction_deferrable",
    "transaction_isolation",
    "transaction_read_only",
}
_RANGE_OPTIONS: Final = {"as", "minvalue", "maxvalue"}

#: Types whose values have one reading, at any time and under any settings.
_CERTAIN_TYPES: Final = frozenset(
    """
    bit bool bpchar bytea char cidr float4 float8 inet int2 int4 int8 json jsonb macaddr name
    numeric text uuid varbit varchar
    """.split()  # noqa: SIM905 - as below
)

#: Types of which a constant has one reading, unless its words move with the time.
_DATES: Final = frozenset({"date", "interval", "time", "timestamp", "timestamptz", "timetz"})

#: Functions whose result depends on their arguments (and the settings that travel along) only.
_CERTAIN_FUNCTIONS: Final = frozenset(
    """
    abs array_to_string ascii bit_length btrim ceil ceiling char_length chr convert_from
    convert_to date_part date_trunc decode div encode extract floor format initcap
    jsonb_build_object left length lower lpad ltrim make_date make_interval make_time
    make_timestamp md5 mod overlay position power regexp_replace repeat replace reverse right
    round rpad rtrim sha256 split_part sqrt string_to_array strpos substr substring timezone
    to_char to_date to_hex to_json to_jsonb to_number to_timestamp translate trim trunc upper
    """.split()  # noqa: SIM905 - a list of sixty strings is harder to read
)


#: What an expression may be made of, and has the same value everywhere if its functions do. What is
#: not listed has to be thought about first: SQL/JSON functions, subqueries, CURRENT_DATE.
_EXPRESSIONS: Final = (
    ast.A_ArrayExpr,
    ast.A_Const,
    ast.A_Expr,
    ast.A_Indices,
    ast.A_Indirection,
    ast.BitString,
    ast.BoolExpr,
    ast.Boolean,
    ast.BooleanTest,
    ast.CaseExpr,
    ast.CaseWhen,
    ast.CoalesceExpr,
    ast.CollateClause,
    ast.ColumnRef,
    ast.Float,
    ast.FuncCall,
    ast.Integer,
    ast.MinMaxExpr,
    ast.NamedArgExpr,
    ast.NullTest,
    ast.PartitionBoundSpec,
    ast.PartitionRangeDatum,
    ast.RowExpr,
    ast.String,
    ast.TypeCast,
    ast.TypeName,
)


#: Nodes that call a function or an operator, which is looked up by its name.
_CALLS: Final = ast.FuncCall | ast.A_Expr | ast.CaseExpr
_BETWEEN: Final = (
    enums.A_Expr_Kind.AEXPR_BETWEEN,
    enums.A_Expr_Kind.AEXPR_NOT_BETWEEN,
    enums.A_Expr_Kind.AEXPR_BETWEEN_SYM,
    enums.A_Expr_Kind.AEXPR_NOT_BETWEEN_SYM,
)


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


def roles_of(statement: Any, captured: Captured) -> list[str]:
    """The roles that a member needs to execute a statement."""
    named = {
        node.rolename
        for node in nodes(statement)
        if isinstance(node, ast.RoleSpec) and node.rolename is not None
    }
    return sorted(named | {captured.role})


def refuse_unsafe(statement: Any, captured: Captured) -> None:
    """Check a statement.

    Args:
        statement: the parse tree.
        captured: what else is known of the command.

    Raises:
        DdlNotSupported: it would or could differ between members.
    """
    refuse_newer_syntax(statement, captured.version)
    _refuse_kinds(statement)
    for node in nodes(statement):
        _refuse_names(node, captured)
        if captured.dates and _reads_moving_date(node):
            raise DdlNotSupported(
                f"{node.val.sval!r} may be read as a date, and as another one on other members",
                "For the time of each execution write now() or CURRENT_DATE, for a fixed one its"
                " digits; a text that is no date goes into a command without dates.",
            )
        if isinstance(node, ast.AlterTableCmd):
            _refuse_subcommand(node, captured)
        elif isinstance(node, ast.PartitionBoundSpec):
            _refuse_computed(node, captured, "a partition bound")
            for part in nodes(node):
                if isinstance(part, ast.A_Indirection) and _strings(part.indirection):
                    raise DdlNotSupported(
                        "a partition bound may call a function", "Write a constant."
                    )
    if isinstance(statement, ast.AlterTableStmt):
        _refuse_two_defaults(statement)
    elif isinstance(statement, ast.AlterSeqStmt):
        _refuse_range(statement.options, captured)


def _refuse_names(node: Any, captured: Captured) -> None:
    """What has another meaning in another session."""
    if isinstance(node, ast.RangeVar | ast.TypeName):
        if _is_temporary(node, captured.temporary):
            raise DdlNotSupported(
                "the command refers to a temporary table or type of this session",
                "Other members do not have it: use an ordinary one.",
            )
        _refuse_strays(node, captured)
    if isinstance(node, ast.RoleSpec) and (
        node.roletype == enums.RoleSpecType.ROLESPEC_SESSION_USER
    ):
        raise DdlNotSupported(
            "SESSION_USER in DDL is not supported", "Name the role, or use CURRENT_USER."
        )


def _refuse_strays(node: Any, captured: Captured) -> None:
    """The catalog does not tell of them after GRANT, LIKE and types of a function's arguments."""
    found, name = _schema_and_name(node)
    for schema, stray in captured.strays:
        if name == stray and found in (None, schema):
            raise DdlNotSupported(
                f"the command refers to {schema}.{stray}, which exists on this node only",
                "Name another table with its schema, or use session_replication_role = replica.",
            )


def _reads_moving_date(node: Any) -> bool:
    return (
        isinstance(node, ast.A_Const)
        and isinstance(node.val, ast.String)
        and _MOVING_DATE.search(node.val.sval or "") is not None
    )


def _refuse_two_defaults(statement: ast.AlterTableStmt) -> None:
    """The catalog shows the second, but rows got the first."""
    commands = statement.cmds or ()
    added = {
        one.def_.colname for one in commands if one.subtype == enums.AlterTableType.AT_AddColumn
    }
    if any(
        one.subtype == enums.AlterTableType.AT_ColumnDefault and one.name in added
        for one in commands
    ):
        raise DdlNotSupported(
            "a column is added and its default changed in the same command", "Use two commands."
        )


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
    if isinstance(statement, ast.CreateFunctionStmt) and "c" in languages(statement):
        raise DdlNotSupported(
            "functions in C are not supported", "Put them into an extension on every member."
        )
    _refuse_settings(statement)
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


def _refuse_settings(statement: Any) -> None:
    """What a function is to set while it runs."""
    for one in nodes(statement):
        if not isinstance(one, ast.VariableSetStmt):
            continue
        if one.kind == enums.VariableSetKind.VAR_SET_CURRENT:
            raise DdlNotSupported("SET ... FROM CURRENT is not supported", "Write the value.")
        if one.name is not None and one.name.lower() in _UNSETTABLE:
            raise DdlNotSupported(
                f"SET {one.name.lower()} of a function is not supported",
                "Use SECURITY DEFINER, or SET within its body or before it is called.",
            )


def _refuse_subcommand(command: Any, captured: Captured) -> None:
    if command.subtype == enums.AlterTableType.AT_SetIdentity:
        _refuse_range(command.def_, captured)
        return
    if command.subtype != enums.AlterTableType.AT_AlterColumnType:
        return
    if captured.shrinks:
        raise DdlNotSupported(
            f"the smaller type of column {command.name} gives its sequence a smaller range, while"
            " members stand at different numbers",
            "First ALTER COLUMN ... DROP IDENTITY, then change the type, then ADD GENERATED.",
        )
    _refuse_code(command.def_.raw_default, captured)
    if captured.rewrites:
        certain = command.name not in (captured.uncertain or ())
        own = _names(command.def_.typeName) if certain else None
        what = f"the new type of column {command.name}"
        _refuse_computed(command.def_.raw_default, captured, what, own)


def _refuse_code(expression: Any, captured: Captured) -> None:
    """Refuse what an ordinary user wrote: members would run it, even without rows to convert.

    PostgreSQL computes constant parts when it plans, and there nothing keeps such code from leaving
    something behind that is run with the rights of replication, at COMMIT.
    """
    for node in nodes(expression):
        schema, names = _called(node)
        for name in names if schema != ["pg_catalog"] else ():
            if name in (captured.shadows or ()):
                raise DdlNotSupported(
                    f"USING may call {name}, which is not a superuser's",
                    "Add a column of the new type, UPDATE it, then drop the old one and rename.",
                )


def _refuse_computed(
    expression: Any, captured: Captured, what: str, own: list[str] | None = None
) -> None:
    """Refuse what is evaluated once, by each member for itself, and may differ.

    Args:
        expression: the parse tree.
        captured: what else is known of the command.
        what: gets the value.
        own: the name of its type, if PostgreSQL knows only one reading for that.
    """
    for node in nodes(expression):
        if (
            not isinstance(node, _EXPRESSIONS)
            or _reads_moving_date(node)
            or (isinstance(node, _CALLS) and not _is_certain(node, captured))
            or (
                isinstance(node, ast.TypeCast)
                and _names(node.typeName) != own
                and not _has_one_reading(node)
            )
        ):
            raise DdlNotSupported(
                f"{what} is computed in a way that may have another result on another member",
                "Write a constant, or for a column: add one of the new type, UPDATE it, then drop"
                " the old one and rename.",
            )


def _has_one_reading(cast: Any) -> bool:
    """Does this cast give the same everywhere?"""
    *schema, name = _names(cast.typeName)
    return schema in ([], ["pg_catalog"]) and (
        name in _CERTAIN_TYPES or (name in _DATES and isinstance(cast.arg, ast.A_Const))
    )


def _names(name: Any) -> list[str]:
    """A type's name, with its schema if it was given."""
    return [part.sval for part in name.names or ()]


def _is_certain(call: Any, captured: Captured) -> bool:
    """Is this PostgreSQL's own function or operator, and of those that always give the same?"""
    schema, names = _called(call)
    if schema not in ([], ["pg_catalog"]):
        return False
    if not schema and not set(names).isdisjoint(captured.shadows or ()):
        return False
    return not isinstance(call, ast.FuncCall) or names[0] in _CERTAIN_FUNCTIONS


def _called(node: Any) -> tuple[list[str], list[str]]:
    """The schema, if it is given, and the names of what a node of an expression may call."""
    if isinstance(node, ast.CaseExpr) and node.arg is not None:
        return [], ["="]
    if isinstance(node, ast.A_Expr) and node.kind in _BETWEEN:
        return [], [">=", "<=", "<", ">"]
    if isinstance(node, ast.FuncCall | ast.A_Expr):
        *schema, name = _strings(node.funcname if isinstance(node, ast.FuncCall) else node.name)
        return schema, [name]
    if isinstance(node, ast.ColumnRef):
        return [], _strings(node.fields)[1:]  # t.f may mean f(t)
    return [], _strings(node.indirection) if isinstance(node, ast.A_Indirection) else []


def _strings(parts: Any) -> list[str]:
    return [str(part.sval) for part in parts or () if isinstance(part, ast.String)]


def _refuse_range(options: Any, captured: Captured) -> None:
    """A smaller range must fit where each member's sequence stands: not at the same number."""
    for option in options or ():
        if option.defname == "start" and _number(option.arg) in (captured.starts or ()):
            raise DdlNotSupported(
                f"a member begins with {_number(option.arg)} already, and takes it for its own",
                "START WITH a number further on first, then START WITH this one.",
            )
    names = {option.defname for option in options or ()}
    restarted = any(o.defname == "restart" and o.arg is not None for o in options or ())
    if captured.shrinks and names & _RANGE_OPTIONS and not (restarted and "start" in names):
        raise DdlNotSupported(
            "a sequence cannot be given a smaller range where members stand at different numbers",
            "Say START WITH and RESTART WITH in the same command.",
        )


def _number(constant: Any) -> int:
    """The value of an option; PostgreSQL's parser calls large numbers floats."""
    value: Any = constant.ival if isinstance(constant, ast.Integer) else constant.fval
    return int(value)


def _is_temporary(node: Any, temporary: list[str] | None) -> bool:
    schema, name = _schema_and_name(node)
    if schema is None:
        return name in (temporary or ())
    return bool(schema == "pg_temp" or schema.startswith("pg_temp_"))


def _schema_and_name(node: Any) -> tuple[str | None, str | None]:
    """Of a table or a type, as they stand there."""
    if isinstance(node, ast.RangeVar):
        return node.schemaname, node.relname
    names = _names(node)
    if node.pct_type:
        names.pop()  # the column
    schema, name = [None, None, *names][-2:]
    return schema, name
