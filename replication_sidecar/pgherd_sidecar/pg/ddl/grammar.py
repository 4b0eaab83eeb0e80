"""Where a server may read a text otherwise than we do: it has another grammar, or other settings.

pglast has the grammar of PostgreSQL 18, and it takes a backslash in a plain literal for what it is.
An older server takes some of the words of 18 for names of users. A message is read as a whole, so
a setting that an early statement of it changes does not say how a late one was read.

It keeps nothing.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pglast import ast, enums, parser

from pgherd_sidecar.pg.ddl.refusal import DdlNotSupported

_LITERALS_SETTING: Final = "standard_conforming_strings"

#: Syntax by the version of PostgreSQL, in its own numbers, that has it first. An older one reads
#: the same words as the call of a function, or the name of a column.
_SYNTAX: Final[dict[type[Any], int]] = {
    ast.JsonObjectConstructor: 160000,
    ast.JsonArrayConstructor: 160000,
    ast.JsonArrayQueryConstructor: 160000,
    ast.JsonObjectAgg: 160000,
    ast.JsonArrayAgg: 160000,
    ast.JsonIsPredicate: 160000,
    ast.JsonFuncExpr: 170000,
    ast.JsonParseExpr: 170000,
    ast.JsonScalarExpr: 170000,
    ast.JsonSerializeExpr: 170000,
    ast.JsonTable: 170000,
    ast.MergeSupportFunc: 170000,
}
_SYSTEM_USER: Final = ["pg_catalog", "system_user"]
_SYSTEM_USER_SINCE: Final = 160000

#: Words that became more than names with PostgreSQL 16 or 17.
_NEW_WORDS: Final = frozenset(
    """
    json json_array json_arrayagg json_exists json_object json_objectagg json_query json_scalar
    json_serialize json_table json_value merge_action system_user
    """.split()  # noqa: SIM905 - a list of strings is harder to read
)

#: Statements that cannot change a setting: they run no function of a user's.
_QUIET: Final = (
    ast.AlterTableStmt,
    ast.CommentStmt,
    ast.CompositeTypeStmt,
    ast.CreateDomainStmt,
    ast.CreateEnumStmt,
    ast.CreateFunctionStmt,
    ast.CreatePolicyStmt,
    ast.CreateSchemaStmt,
    ast.CreateSeqStmt,
    ast.CreateStatsStmt,
    ast.CreateStmt,
    ast.CreateTrigStmt,
    ast.DefineStmt,
    ast.DropStmt,
    ast.GrantStmt,
    ast.IndexStmt,
    ast.RenameStmt,
    ast.RuleStmt,
    ast.TransactionStmt,
    ast.VariableShowStmt,
    ast.ViewStmt,
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


def languages(function: ast.CreateFunctionStmt) -> set[str]:
    """Return the language of a function: one, none for a body in standard SQL."""
    return {one.arg.sval for one in function.options or () if one.defname == "language"}


def refuse_newer_syntax(statement: Any, version: int) -> None:
    """Refuse what the server cannot have read as we do.

    Args:
        statement: the parse tree.
        version: the server's, as its ``server_version_num``.

    Raises:
        DdlNotSupported: a name of a user's is syntax in a later version.
    """
    for node in nodes(statement):
        since = _SYNTAX.get(type(node), 0)
        if (
            isinstance(node, ast.FuncCall)
            and node.funcformat == enums.CoercionForm.COERCE_SQL_SYNTAX
            and [part.sval for part in node.funcname or ()] == _SYSTEM_USER
        ):
            since = _SYSTEM_USER_SINCE
        if version < since:
            raise DdlNotSupported(
                f"a name in this DDL is a key word since PostgreSQL {since // 10000}",
                _quote_hint(_NEW_WORDS),
            )


def hint_for(text: str) -> str:
    """What to do about a text that the server understands, and we do not."""
    words = set(re.findall(r"\w+", text.lower()))
    if words & _NEW_WORDS:
        return _quote_hint(words & _NEW_WORDS)
    return "Write it in the syntax of PostgreSQL's manual."


def _quote_hint(words: set[str] | frozenset[str]) -> str:
    return (
        f"Write these in double quotes where they are names: {', '.join(sorted(words))}."
        " Later versions of PostgreSQL read them as key words."
    )


def refuse_uncertain_literals(
    message: str, statements: Sequence[tuple[str, Any]], first: int, strings: str
) -> None:
    """Refuse a message of which the literals may have been read in another way than its DDL says.

    PostgreSQL reads a message as a whole, under the setting with which it begins; an event trigger
    sees the setting only later, when a statement before it may have changed it.

    Args:
        message: the text of the client's message.
        statements: the text and the parse tree of each of its statements.
        first: the place among them of the first command that was captured.
        strings: the setting that this command ran under.

    Raises:
        DdlNotSupported: a plain literal holds a backslash, and it may have changed.
    """
    if len(statements) == 1 or not _has_plain_backslash(message):
        return
    # Where nothing before the first command can have changed it, or is itself read in two ways,
    # the setting of that command is the message's.
    if (
        strings == "on"
        and all(_is_quiet(node) for _, node in statements[: first + 1])
        and not any(_has_plain_backslash(text) for text, _ in statements[:first])
    ):
        return
    raise DdlNotSupported(
        "a literal with a backslash, in one message with a statement that may have"
        f" changed {_LITERALS_SETTING}",
        "Send the DDL in a message of its own, or write the literal as E'...'.",
    )


def _has_plain_backslash(text: str) -> bool:
    """It has a backslash in a literal that the setting gives its meaning."""
    if "\\" not in text:
        return False
    literals = (text[t.start : t.end + 1] for t in parser.scan(text) if t.name == "SCONST")
    return any(literal[0] == "'" and "\\" in literal for literal in literals)


def _is_quiet(statement: Any) -> bool:
    """It leaves the setting as it was."""
    if isinstance(statement, ast.VariableSetStmt):
        return statement.name is not None and statement.name.lower() != _LITERALS_SETTING
    return isinstance(statement, _QUIET)
