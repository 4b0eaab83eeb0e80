"""Which statement was it? Finds the text of each captured command.

PostgreSQL tells an event trigger the text of the client's whole message, the command's tag, and the
stack of functions it runs in. A command at the top level is found by its place: in a transaction
that commits, each statement of the message that fires event triggers has fired them once, in
order. A command inside a function is quoted in the stack, and where the quotation ends the server
has found out (``sql/047_statement_text.sql``). Whatever is not certain is refused.

It knows nothing of what a statement does, and keeps nothing.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final

import msgspec
from pglast import ast, enums, parser

from pgherd_sidecar.pg.ddl.grammar import hint_for, refuse_uncertain_literals
from pgherd_sidecar.pg.ddl.refusal import DdlNotSupported

#: Statements that change shared or session state only: PostgreSQL fires no event trigger for them.
_SILENT: Final = (
    ast.AlterDatabaseRefreshCollStmt,
    ast.AlterDatabaseSetStmt,
    ast.AlterDatabaseStmt,
    ast.AlterEventTrigStmt,
    ast.AlterRoleSetStmt,
    ast.AlterRoleStmt,
    ast.AlterSystemStmt,
    ast.AlterTableSpaceOptionsStmt,
    ast.CallStmt,
    ast.CheckPointStmt,
    ast.ClosePortalStmt,
    ast.ClusterStmt,
    ast.ConstraintsSetStmt,
    ast.CopyStmt,
    ast.CreateEventTrigStmt,
    ast.CreateRoleStmt,
    ast.CreateTableSpaceStmt,
    ast.CreatedbStmt,
    ast.DeallocateStmt,
    ast.DeclareCursorStmt,
    ast.DeleteStmt,
    ast.DiscardStmt,
    ast.DoStmt,
    ast.DropRoleStmt,
    ast.DropTableSpaceStmt,
    ast.DropdbStmt,
    ast.ExecuteStmt,
    ast.ExplainStmt,
    ast.FetchStmt,
    ast.GrantRoleStmt,
    ast.InsertStmt,
    ast.ListenStmt,
    ast.LoadStmt,
    ast.LockStmt,
    ast.MergeStmt,
    ast.NotifyStmt,
    ast.PrepareStmt,
    ast.ReassignOwnedStmt,
    ast.ReindexStmt,
    ast.TransactionStmt,
    ast.TruncateStmt,
    ast.UnlistenStmt,
    ast.UpdateStmt,
    ast.VacuumStmt,
    ast.VariableSetStmt,
    ast.VariableShowStmt,
)
_SHARED_OBJECTS: Final = {
    enums.ObjectType.OBJECT_DATABASE,
    enums.ObjectType.OBJECT_EVENT_TRIGGER,
    enums.ObjectType.OBJECT_PARAMETER_ACL,
    enums.ObjectType.OBJECT_ROLE,
    enums.ObjectType.OBJECT_TABLESPACE,
}
_ENDS: Final = {
    enums.TransactionStmtKind.TRANS_STMT_COMMIT,
    enums.TransactionStmtKind.TRANS_STMT_ROLLBACK,
    enums.TransactionStmtKind.TRANS_STMT_PREPARE,
}


class Captured(msgspec.Struct, frozen=True):
    """A command as the event triggers captured it.

    Attributes:
        tag: PostgreSQL's command tag.
        role, settings, standard_strings: of the session, when it ran.
        query: text of the client's message; None: that of an earlier command of the message.
        message: identifies the client's message within the transaction.
        context: the stack of functions, innermost first.
        quoted: the statement that the stack quotes; None if that is not certain.
        version: of the server, as its ``server_version_num``.
        temporary: names of the session's temporary relations and types.
        strays: schemas and names of tables that this member has alone (``pgherd.strays``).
        local: it concerned temporary objects only, or nothing.
        rewrites, uncertain, shadows, dates, shrinks, starts: see ``what_words_tell`` in
            ``sql/044_command_end.sql``.
        made: for CREATE TABLE AS, the table it made.
        extension: for CREATE EXTENSION, name, schema and version. The schema is None if the
            extension's control file names it.
        rels, everything, leaves_tables, print, gone: see ``ddl.Command``.
        grants: memberships, as pairs of role and member, on which the role's rights rest.
        database: likewise privileges on the database, as pairs of grantee and privilege.
        fill, act, sql: of commands that are no statement, see ``sql/052_requests.sql``.
    """

    tag: str = ""
    role: str = ""
    settings: dict[str, str] = {}
    standard_strings: str = "on"
    query: str | None = None
    message: str = ""
    context: str = ""
    quoted: str | None = None
    version: int = 0
    temporary: list[str] | None = None
    strays: list[tuple[str, str]] = []
    local: bool = False
    rewrites: bool = False
    uncertain: list[str] | None = None
    shadows: list[str] | None = None
    dates: bool = False
    shrinks: bool = False
    starts: list[int] | None = None
    made: str | None = None
    extension: tuple[str, str | None, str] | None = None
    rels: list[str] = []
    everything: bool = False
    leaves_tables: bool = False
    print: dict[str, Any] | None = None
    gone: list[str] | None = None
    grants: list[tuple[str, str]] = []
    database: list[tuple[str, str]] = []
    fill: str | None = None
    act: str | None = None
    sql: str = ""


@dataclass(frozen=True, slots=True)
class DdlStatement:
    """One statement: its exact text and its parse tree."""

    text: str
    node: Any


def parse_captured(record: str) -> Captured:
    """Decode a captured command.

    Raises:
        msgspec.DecodeError: not what the event triggers write.
    """
    return msgspec.json.decode(record, type=Captured)


def statements_of(captured: Sequence[Captured]) -> list[DdlStatement | None]:
    """Find the statement of each command; None for what is no DDL statement.

    Raises:
        DdlNotSupported: it cannot be told.
    """
    found: list[DdlStatement | None] = [None] * len(captured)
    messages: dict[str, list[int]] = defaultdict(list)
    for place, command in enumerate(captured):
        if not command.tag:
            continue
        if _stack(command) and not command.local:
            found[place] = _quoted_statement(command)
        messages[command.message].append(place)
    for places in messages.values():
        query = next(text for place in places if (text := captured[place].query) is not None)
        unquoted = [place for place in places if not _stack(captured[place])]
        if all(captured[place].local for place in unquoted):
            continue
        texts = _statements_at_top(query, [captured[place] for place in unquoted])
        for place, statement in zip(unquoted, texts, strict=True):
            found[place] = statement
    return found


def parse_statements(text: str) -> list[DdlStatement]:
    """Split a text into statements.

    Raises:
        DdlNotSupported: it is not SQL as far as we know.
    """
    try:
        nodes = parser.parse_sql(text)
        slices = parser.split(text, only_slices=True)
    except parser.ParseError as error:
        raise DdlNotSupported(f"this DDL is not understood: {error}", hint_for(text)) from None
    return [DdlStatement(text[part], node.stmt) for part, node in zip(slices, nodes, strict=True)]


def _stack(command: Captured) -> str:
    """The functions that the command ran in, without the event trigger's own."""
    return command.context.partition("\n")[2]


def _statements_at_top(query: str, captured: Sequence[Captured]) -> list[DdlStatement]:
    """The statements of a message that one of its transactions executed, given its commands."""
    statements = parse_statements(query)
    tags = [command.tag for command in captured]
    undone = any(
        isinstance(one.node, ast.TransactionStmt)
        and one.node.kind == enums.TransactionStmtKind.TRANS_STMT_ROLLBACK_TO
        for one in statements
    )
    readings: list[list[DdlStatement]] = []
    hidden = False  # what the protocol has prepared may be a command, and EXECUTE does not tell it
    for part in _transactions(statements):
        told = [one for one in part if not isinstance(one.node, ast.ExecuteStmt)]
        if len(told) == len(tags) and all(map(_agrees, told, tags)):
            readings.append(told)
        if len(told) < len(part) >= len(tags) and (undone or len(told) < len(tags)):
            hidden = True
    last = readings[-1][0] if readings else statements[-1]
    refuse_uncertain_literals(
        query,
        [(one.text, one.node) for one in statements],
        next(place for place, one in enumerate(statements) if one is last),
        captured[0].standard_strings,
    )
    if (
        hidden
        or not readings
        or any([one.text for one in part] != [one.text for one in readings[0]] for part in readings)
    ):
        raise DdlNotSupported(
            "it cannot be told which statements of the message this transaction executed",
            "Send DDL statements one by one, or without ROLLBACK and EXECUTE among them.",
        )
    return readings[0]


def _transactions(statements: Sequence[DdlStatement]) -> Iterator[list[DdlStatement]]:
    """The DDL statements, and EXECUTE, of each transaction that a message may commit."""
    part: list[DdlStatement] = []
    for statement in statements:
        node = statement.node
        if isinstance(node, ast.TransactionStmt) and node.kind in _ENDS:
            if node.kind == enums.TransactionStmtKind.TRANS_STMT_COMMIT:
                yield part
            part = []
        elif _fires(node) or isinstance(node, ast.ExecuteStmt):
            part.append(statement)
    yield part


def _fires(node: Any) -> bool:
    """Does PostgreSQL fire event triggers for this statement?"""
    if isinstance(node, ast.SelectStmt):
        while node.larg is not None:
            node = node.larg
        return node.intoClause is not None
    if isinstance(node, _SILENT):
        return False
    for attribute in ("objtype", "objectType", "removeType", "renameType"):
        kind = getattr(node, attribute, None)
        if isinstance(kind, enums.ObjectType) and kind in _SHARED_OBJECTS:
            return False
    return True


def _agrees(statement: DdlStatement, tag: str) -> bool:
    """Can this statement have this command tag?

    The words of a tag stand, in this order, among the key words with which a statement begins.
    """
    node = statement.node
    if isinstance(node, ast.SelectStmt) or tag == "SELECT INTO":
        return isinstance(node, ast.SelectStmt) and tag == "SELECT INTO"
    table_as = isinstance(node, ast.CreateTableAsStmt)
    if tag == "CREATE TABLE AS":
        return table_as and node.objtype == enums.ObjectType.OBJECT_TABLE
    if table_as and tag == "CREATE TABLE":
        return False
    text = statement.text
    beginning = takewhile(lambda token: token.kind != "NO_KEYWORD", parser.scan(text))
    words = (text[token.start : token.end + 1].upper() for token in beginning)
    return all(word in words for word in tag.split())


def _quoted_statement(command: Captured) -> DdlStatement:
    """The statement that the innermost entry of the stack quotes."""
    statements = [] if command.quoted is None else parse_statements(command.quoted)
    if (
        len(statements) != 1
        or not _fires(statements[0].node)
        or not _agrees(statements[0], command.tag)
    ):
        raise DdlNotSupported(
            f"{command.tag} inside a function: its text cannot be told",
            "Execute it at the top level, or in PL/pgSQL below at most 32 calls, with one statement"
            " in each EXECUTE, and without a double quote at the end of a line.",
        )
    return statements[0]
