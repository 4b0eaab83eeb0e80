"""What a transaction's commands need of a machine, so that other members can be asked beforehand.

Most commands need nothing but what the log has made. A few name what a package brings or a server
was built with: files of extensions, locales, time zones, dictionaries. `needs_of` finds these in
the commands as they travel. ``agent.apply.trying`` looks whether a member has them.

Pure functions; called by the hook once per transaction with DDL. Keeps nothing.
"""

import re
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec
from pglast import ast, enums, parser

from pgherd_sidecar.core.replication.merge import Item
from pgherd_sidecar.pg.ddl.grammar import languages, nodes

Kind = Literal["command", "schema", "setting", "zone", "collation", "search", "update"]


class Need(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that a member needs.

    Attributes:
        kind: what it is: ``command``, to be tried and rolled back; ``schema``, likewise, but only
            because the next ones may need it; ``setting`` that has a value; the names of a time
            ``zone``, of a ``collation`` or of a configuration of text ``search``; an extension's
            ``update`` to a version.
        name: the statement, or a name as it is written in SQL.
        value: of a setting; an extension's version.
        path: the ``search_path`` under which the name is looked for.
        role: whose rights the statement is executed with.
        settings: the session's, for a statement.
        loose: a name that is missing may be one that the transaction has made before, by a command
            that is not tried.
    """

    kind: Kind
    name: str
    value: str = ""
    path: str = ""
    role: str = ""
    settings: dict[str, str] = {}
    loose: bool = False

    @property
    def mark(self) -> int:
        """What tells it from another name: in this process, and whoever wrote them."""
        return hash((self.kind, self.name, self.value, self.path, self.loose))


class Poll(msgspec.Struct, frozen=True):
    """What members are asked.

    Attributes:
        gid: what the transaction has seen of the schema: answered by who has applied as much.
        needs: of the transaction's commands.
    """

    gid: int
    needs: list[Need]


class Ballot(msgspec.Struct, frozen=True):
    """What a member answers.

    Attributes:
        veto: why it can't execute the commands; empty if nothing speaks against it.
        sure: it has looked at everything.
        slow: it took so long that nobody should wait for it again soon.
        need: place of the one that it lacks.
        gid: up to where it has read the log: what it lacks may have been dropped before.
    """

    veto: str = ""
    sure: bool = True
    slow: bool = False
    need: int = 0
    gid: int = 0


@dataclass(slots=True)
class _Before:
    """What the transaction has executed before a command, and no member tries.

    Attributes:
        untried: anything.
        names: what may have made, or renamed, something that a command then names.
    """

    untried: bool = False
    names: bool = False


class _Ordered(msgspec.Struct, frozen=True):
    """What is needed here of a command as ``commands.resolve_commands`` makes it."""

    sql: str = ""
    role: str = ""
    settings: dict[str, str] = {}
    act: str | None = None
    fill: str | None = None


_LOCALES: Final = {"C", "C.UTF-8", "C.utf8", "POSIX"}
#: Settings of a session that name something of its machine, and values that every machine has.
_SETTINGS: Final = {
    "TimeZone": {"UTC", "GMT", "Etc/UTC", "Etc/GMT"},
    "timezone_abbreviations": {"Default"},
    "lc_monetary": _LOCALES,
    "lc_numeric": _LOCALES,
    "lc_time": _LOCALES,
    "default_toast_compression": {"pglz"},
}
_NEVER_MISSING: Final = {"C", "POSIX", "default", "ucs_basic", "unicode"}
#: Functions of which the first argument is a configuration, if there are so many arguments.
_SEARCH_FUNCTIONS: Final = {
    "json_to_tsvector": 3,
    "jsonb_to_tsvector": 3,
    "phraseto_tsquery": 2,
    "plainto_tsquery": 2,
    "to_tsquery": 2,
    "to_tsvector": 2,
    "ts_headline": 4,
    "websearch_to_tsquery": 2,
}
_NAMING_TYPES: Final = {"regconfig", "text", "varchar"}
"""A constant that is cast to another type is no name."""
#: A text without any of these words needs no more than its session's settings. Every user writes
#: such texts, megabytes of them, so each of these takes one walk through the text.
_WORDS: Final = re.compile(
    r"collat|extension|time\s*zone|tsvector|tsquery|ts_headline|text\s+search|compression"
    r"|security\s+label|internal|u&",
    re.IGNORECASE,
)
_ROUTINE: Final = re.compile(r"\b(?:function|procedure|routine)\b", re.IGNORECASE)
_SETS: Final = re.compile(r"\bset\b", re.IGNORECASE)
NEEDS_MAX: Final = 100
"""Nobody is asked of more than so many."""
_MAKES_NAMES: Final = re.compile(r"collation|search|schema|extension", re.IGNORECASE)
TRIED: Final = ("command", "schema")
"""Kinds of needs that are statements: what they find is not remembered."""
_TRIED_KINDS: Final = {
    enums.ObjectType.OBJECT_COLLATION,
    enums.ObjectType.OBJECT_TSCONFIGURATION,
    enums.ObjectType.OBJECT_TSDICTIONARY,
    enums.ObjectType.OBJECT_TSPARSER,
    enums.ObjectType.OBJECT_TSTEMPLATE,
}
_TRIED: Final = (
    ast.AlterTSConfigurationStmt,
    ast.AlterTSDictionaryStmt,
    ast.CreateExtensionStmt,
    ast.SecLabelStmt,
)


def needs_of(items: list[Item]) -> list[Need]:
    """Say what other members need for a transaction; nothing for most.

    Args:
        items: its body, as ``commands.resolve_commands`` returns it.

    Returns:
        The needs in the order of the commands, each name once; of very many only the first
        ``NEEDS_MAX`` and more.
    """
    found: dict[Hashable, Need] = {}
    before = _Before()
    for table, _, records in items:
        for record in records if not table else ():
            command = msgspec.json.decode(record, type=_Ordered)
            needs = [] if command.act or command.fill else _of_command(command, before)
            for need in needs:
                found.setdefault(len(found) if need.kind in TRIED else need.mark, need)
            if len(found) > NEEDS_MAX:
                return list(found.values())
            if not any(need.kind in TRIED for need in needs):
                before.untried = True
                before.names = before.names or _MAKES_NAMES.search(command.sql) is not None
    needed = list(found.values())
    return needed if any(need.kind != "schema" for need in needed) else []


def _of_command(command: _Ordered, before: _Before) -> list[Need]:
    return [*_of_settings(command), *_of_words(command, before)]


def _of_settings(command: _Ordered) -> list[Need]:
    return [
        Need("setting", name, command.settings[name])
        for name, common in _SETTINGS.items()
        if name in command.settings and command.settings[name] not in common
    ]


def _of_words(command: _Ordered, before: _Before) -> list[Need]:
    schema = command.sql.lstrip()[:13].upper() == "CREATE SCHEMA"
    if not schema and not _may_name(command.sql):
        return []
    statement: Any = parser.parse_sql(command.sql)[0].stmt
    if _is_tried(statement):
        return [_trial("command", command, before)]
    if isinstance(statement, ast.CreateSchemaStmt) and not statement.schemaElts:
        return [_trial("schema", command, before)]
    if isinstance(statement, ast.AlterExtensionStmt):
        name, options = str(statement.extname), statement.options or ()
        versions = [str(one.arg.sval) for one in options if one.arg is not None]
        return [Need("update", name, one, loose=before.names) for one in versions]
    path = command.settings.get("search_path", "").replace('"$user"', _written([command.role]))
    found = [_of_node(node, path, loose=before.names) for node in nodes(statement)]
    return [need for need in found if need is not None]


def _may_name(sql: str) -> bool:
    """Whether a statement may name something of a machine."""
    sets = _ROUTINE.search(sql) is not None and _SETS.search(sql) is not None
    return sets or _WORDS.search(sql) is not None


def _trial(kind: Kind, command: _Ordered, before: _Before) -> Need:
    return Need(
        kind, command.sql, role=command.role, settings=command.settings, loose=before.untried
    )


def _is_tried(statement: Any) -> bool:
    """Is it tried as a whole? It makes only what is not a table, and so it locks none."""
    if isinstance(statement, ast.DefineStmt):
        return statement.kind in _TRIED_KINDS
    if isinstance(statement, ast.CreateFunctionStmt):  # one major version has functions of its own
        return "internal" in languages(statement)
    return isinstance(statement, _TRIED)


def _of_node(node: Any, path: str, *, loose: bool) -> Need | None:
    """What one node of a parse tree needs of a machine."""
    if isinstance(node, ast.FuncCall):
        return _of_call(node, path, loose=loose)
    if isinstance(node, ast.VariableSetStmt):
        return _of_set(node)
    if isinstance(node, ast.ColumnDef):
        return _of_compression(node.compression)
    if isinstance(node, ast.AlterTableCmd):
        sets, method = node.subtype == enums.AlterTableType.AT_SetCompression, node.def_
        return _of_compression(method.sval) if sets and isinstance(method, ast.String) else None
    if isinstance(node, ast.CollateClause):
        names = [part.sval for part in node.collname or ()]
        if names[-1] not in _NEVER_MISSING or names[:-1] not in ([], ["pg_catalog"]):
            return Need("collation", _written(names), path=path, loose=loose)
    return None


def _of_set(node: Any) -> Need | None:
    """What a function is to set while it runs."""
    value = _constant(node.args[0]) if len(node.args or ()) == 1 else None
    for name, common in _SETTINGS.items():
        if name.lower() == (node.name or "").lower() and value not in (None, *common):
            return Need("setting", name, str(value))
    return None


def _of_compression(method: str | None) -> Need | None:
    """A server may have been built without it."""
    if method in (None, "default", "pglz"):
        return None
    return Need("setting", "default_toast_compression", str(method))


def _of_call(call: Any, path: str, *, loose: bool) -> Need | None:
    *schema, name = (part.sval for part in call.funcname)
    first, count = _constant((call.args or (None,))[0]), len(call.args or ())
    if first is None or schema not in ([], ["pg_catalog"]):
        return None
    if name == "timezone" and count == 2:
        return None if first in _SETTINGS["TimeZone"] else Need("zone", first)
    if _SEARCH_FUNCTIONS.get(name) == count:
        return Need("search", first, path=path, loose=loose)
    return None


def _constant(node: Any) -> str | None:
    """The text of a constant that is a name, also where it is cast."""
    while isinstance(node, ast.TypeCast):
        names = [part.sval for part in node.typeName.names]  # type: ignore[union-attr]
        if names[-1] not in _NAMING_TYPES:
            return None
        node = node.arg
    if isinstance(node, ast.A_Const) and isinstance(node.val, ast.String):
        text: str | None = node.val.sval
        return text
    return None


def _written(names: list[str]) -> str:
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)
