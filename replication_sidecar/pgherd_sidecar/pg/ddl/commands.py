"""Replication of DDL: from what PostgreSQL captured to single statements, and their execution.

At the origin the event triggers (``sql/043_command_events.sql``) captured each command with the
text of the client's whole message and the stack of functions it ran in. ``resolve_commands`` turns
that into the exact text of one statement, or refuses; nothing is ordered then. On the other members
``execution`` runs it. Which statement it is, ``ddl_statements`` knows; what cannot give the
same result on every member, ``ddl_rules``, as far as the words tell it: most is judged in
PostgreSQL, by the catalog as the command leaves it (``sql/042_command_rules.sql``).

Resolving is a pure function, called by the hook once per transaction with DDL. Keeps nothing; what
it returns is the body of a writeset and survives in the ordered log.
"""

import re
from typing import Any, Final

import msgspec

from pgherd_sidecar.core.replication.merge import Item
from pgherd_sidecar.pg.ddl.everywhere import resolve_everywhere
from pgherd_sidecar.pg.ddl.refusal import DdlNotSupported
from pgherd_sidecar.pg.ddl.rules import concerns_temporary, refuse_unsafe, roles_of
from pgherd_sidecar.pg.ddl.statements import Captured, DdlStatement, parse_captured, statements_of

__all__ = ["DdlNotSupported", "execution", "kind_of", "resolve_commands"]

_WORD: Final = re.compile(r"[A-Z]+")
_COMMENT: Final = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
_FILLERS: Final = frozenset(
    {"OR", "REPLACE", "UNIQUE", "MATERIALIZED", "UNLOGGED", "FOREIGN", "TEXT", "SEARCH"}
)
_EXECUTE: Final = "SELECT pgherd.execute_command($1::jsonb)"


class Command(msgspec.Struct, frozen=True, omit_defaults=True):
    """One statement to be executed on every member but its origin.

    Attributes:
        sql: the statement.
        role: whose rights it runs with.
        settings: settings of the session that give the text its meaning.
        rels: relations concerned, by the names they have afterwards.
        roles, grants, database: roles, memberships and privileges on the database that a member
            needs for it.
        everything: other relations may be concerned, too.
        leaves_tables: nothing has to be made anew behind it (``sql/042_command_meaning.sql``).
        print: what the catalog says of what it made, in hashes (``sql/047_command_print.sql``).
        gone: names that tables have had before and have no more; None: they are not asked for.
    """

    sql: str
    role: str
    settings: dict[str, str]
    rels: list[str]
    roles: list[str]
    grants: list[tuple[str, str]]
    everything: bool = False
    database: list[tuple[str, str]] = []
    print: dict[str, Any] | None = None
    leaves_tables: bool = False
    gone: list[str] | None = None


def resolve_commands(items: list[Item]) -> list[Item]:
    """Turn the captured commands of a transaction into statements; rows stay as they are.

    Args:
        items: the body as PostgreSQL captured it, in the order of execution.

    Raises:
        DdlNotSupported: a command cannot be told from its text, or cannot be replicated.
    """
    captured = [
        parse_captured(record) for table, _, records in items if not table for record in records
    ]
    statements = iter(statements_of(captured))
    resolved: list[Item] = []
    for table, keys, records in items:
        if table:
            resolved.append((table, keys, records))
            continue
        commands = [
            command
            for record in records
            if (command := _resolve(parse_captured(record), next(statements), record)) is not None
        ]
        if commands:
            resolved.append(("", [0] * len(commands), commands))
    return resolved


def _resolve(captured: Captured, statement: DdlStatement | None, record: str) -> str | None:
    """The command as it travels; None if it concerns its origin alone."""
    if captured.act == "run":
        return resolve_everywhere(captured)
    if captured.fill is not None or captured.act is not None:
        return record
    if captured.local:
        return None
    assert statement is not None  # every other command is a statement
    if captured.standard_strings != "on":
        raise DdlNotSupported(
            "DDL under standard_conforming_strings = off is not supported",
            "SET standard_conforming_strings = on.",
        )
    if concerns_temporary(statement.node, captured.temporary):
        return None
    roles = roles_of(statement.node, captured)
    sql = _portable_text(captured, statement)
    command = Command(
        sql,
        captured.role,
        captured.settings,
        captured.rels,
        roles,
        captured.grants,
        captured.everything,
        captured.database,
        captured.print,
        captured.leaves_tables,
        captured.gone,
    )
    return msgspec.json.encode(command).decode()


def _portable_text(captured: Captured, statement: DdlStatement) -> str:
    """The text that does on another member what the statement did at its origin."""
    if captured.made is not None:
        return captured.made
    refuse_unsafe(statement.node, captured)
    if captured.extension is not None:
        name, schema, version = captured.extension
        place = "" if schema is None else f" SCHEMA {_quote_identifier(schema)}"
        return (
            f"CREATE EXTENSION IF NOT EXISTS {_quote_identifier(name)}"
            f" WITH{place} VERSION {_quote_identifier(version)}"
        )
    return statement.text


def _quote_identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def execution(command: str) -> tuple[str, tuple[str]]:
    """The query that executes a command of an ordered writeset, and its parameters.

    It is for a connection of a superuser, in replica role, with server-side parameters (``$1``),
    inside the transaction that applies the writeset. It fails here only if this member differs:
    the command worked at its origin.

    Args:
        command: as ``resolve_commands`` made it.
    """
    return _EXECUTE, (command,)


def kind_of(command: str) -> str:
    """What kind of command it is, for people: ``ALTER TABLE``; never fails."""
    try:
        said = msgspec.json.decode(command)
        if "fill" in said:
            return "CREATE TABLE AS"
        if said.get("act") is not None:
            return f"pgherd.{said['act']}"
        words = _WORD.findall(_COMMENT.sub(" ", said["sql"][:1000]).lstrip()[:100].upper())
    except (msgspec.DecodeError, KeyError, TypeError):
        return "command"
    kind: list[str] = []
    for word in words:
        kind.append(word)
        if len(kind) > 1 and word not in _FILLERS:
            break
    return " ".join(kind) or "command"
