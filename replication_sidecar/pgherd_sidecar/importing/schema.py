"""The source's definitions: dumped by ``pg_dump``, in statements, in the order of an import.

Rows come before what only checks or follows them. Keys and indexes are made when the rows are
there, and before changes are applied, which need them. Foreign keys and triggers come at cut-over:
the source has fired its triggers already, and keeps its foreign keys.
"""

import asyncio
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pglast
from pglast import ast, enums, parser
from psycopg.conninfo import conninfo_to_dict

from pgherd_sidecar.importing.ends.errors import ImportFailed
from pgherd_sidecar.importing.ends.model import SchemaStatement

_OPTIONS = "-c search_path= -c standard_conforming_strings=on"
"""The herd reads backslashes of literals as they are, whatever the source's database is set to."""
_RESTRICT = re.compile(r"^\\(?:un)?restrict .*$", re.MULTILINE)
_ALWAYS = re.compile(r"\bADD GENERATED ALWAYS AS IDENTITY\b")
_VERSION = re.compile(r"\b(\d+)(?:\.|devel|beta|rc)")
_KEYS = {
    enums.ConstrType.CONSTR_PRIMARY,
    enums.ConstrType.CONSTR_UNIQUE,
    enums.ConstrType.CONSTR_EXCLUSION,
}
_NOT_REPLICATED = (
    ast.CreateEventTrigStmt,
    ast.AlterEventTrigStmt,
)
_SUPERUSER = "postgres"
"""Of the herd."""
_OF_FEEDERS = "pgherd_subscriber"
"""The schema in which a subscriber of a herd keeps what it follows: a herd must not seem to."""
_SKIPPED = (ast.VariableSetStmt, ast.SelectStmt)
"""Settings of the session, which has its own."""


async def version(program: Path) -> int:
    """The major version of ``pg_dump``.

    Raises:
        ImportFailed: it can't be run.
    """
    output = await _run([str(program), "--version"], {})
    found = _VERSION.search(output)
    if found is None:
        raise ImportFailed(f"{program} does not tell its version: {output}")
    return int(found[1])


async def dump(program: Path, dsn: str, ours: str) -> tuple[SchemaStatement, ...]:
    """The definitions of a database, without those whose names begin with ``ours``.

    What feeders of a herd have made there is left out, too.

    Raises:
        ImportFailed: pg_dump says no.
    """
    given = {name: str(value) for name, value in conninfo_to_dict(dsn).items()}
    password = given.pop("password", None)
    given["options"] = f"{given.get('options', '')} {_OPTIONS}"
    words = " ".join(f"{name}='{_quoted(value)}'" for name, value in given.items())
    command = [
        str(program), "--schema-only", "--no-subscriptions", "--no-tablespaces", "--no-password",
        "--encoding=UTF8", f"--exclude-schema={_OF_FEEDERS}", f"--dbname={words}",
    ]  # fmt: skip
    environment = {"PGPASSWORD": password} if password else {}
    text = await _run(command, environment)
    return tuple(statements(text, ours))


def _quoted(value: str) -> str:
    return value.replace("\\", "\\\\").replace("'", "\\'")


async def _run(command: Sequence[str], environment: dict[str, str]) -> str:
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=os.environ | environment,
        )
    except OSError as error:
        raise ImportFailed(f"{command[0]} cannot be run: {error.strerror}") from error
    try:
        output, complaints = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode:
        said = complaints.decode(errors="replace").strip().splitlines()
        name = Path(command[0]).name
        why = said[0].removeprefix(f"{name}: ") if said else "it has failed"
        raise ImportFailed(f"{name}: {why}")
    return output.decode()


def statements(text: str, ours: str = "pgherd_import") -> Iterator[SchemaStatement]:
    """Divide a dump of definitions into its statements, in the order of their parts.

    Raises:
        ImportFailed: PostgreSQL's parser does not understand it.
    """
    text = _RESTRICT.sub("", text)
    try:
        parts = parser.split(text, with_parser=True, only_slices=True)
        found = list(_in_place(one for part in parts for one in _statement(text[part], ours)))
    except parser.ParseError as error:
        raise ImportFailed(f"what pg_dump has written is not understood: {error}") from error
    for part in ("before", "keys", "late", "after"):
        yield from (one for one in found if one.part == part)


def created(text: str) -> str:
    """The schema or the extension that a statement of a dump creates."""
    node: Any = pglast.parse_sql(text)[0].stmt
    return str(node.schemaname if isinstance(node, ast.CreateSchemaStmt) else node.extname)


def _in_place(found: Iterable[SchemaStatement]) -> Iterator[SchemaStatement]:
    """A view may need a key: then pg_dump writes it behind that, and there it has to stay."""
    keys = False
    for one in found:
        keys = keys or one.part == "keys"
        yield msgspec.structs.replace(one, part="keys") if keys and one.part == "before" else one


def _statement(text: str, ours: str) -> Iterator[SchemaStatement]:
    node = pglast.parse_sql(text)[0].stmt
    if isinstance(node, _SKIPPED) or _is_ours(node, ours) or _is_guard(node):
        return
    if isinstance(node, _NOT_REPLICATED):
        yield SchemaStatement("late", _bare(text), everywhere=True)
    elif _is_ours_already(node):
        return
    elif _is_about_event_trigger(node):
        return  # its owner: a superuser, here the herd's
    elif isinstance(node, ast.AlterTableStmt):
        yield from _alter_table(node, _bare(text))
    else:
        yield SchemaStatement(_part(node), _bare(text))


def _bare(text: str) -> str:
    """Without the comments before it, which hold names."""
    lines = text.strip().splitlines()
    while lines and (not lines[0].strip() or lines[0].startswith("--")):
        lines.pop(0)
    return "\n".join(lines).rstrip().removesuffix(";")


def _is_ours(node: Any, ours: str) -> bool:
    name = getattr(node, "pubname", None)
    if isinstance(node, ast.AlterOwnerStmt | ast.CommentStmt) and isinstance(
        node.object, ast.String
    ):
        name = node.object.sval
    return isinstance(name, str) and name.startswith(ours)


def _is_guard(node: Any) -> bool:
    """A trigger that had a table refuse writes while it followed a herd."""
    function: Any = node.funcname if isinstance(node, ast.CreateTrigStmt) else ()
    return len(function) == 2 and bool(function[0].sval == _OF_FEEDERS)


def _is_ours_already(node: Any) -> bool:
    """A command that gives something to the herd's superuser, who has just made it."""
    owned = isinstance(node, ast.AlterOwnerStmt) and not (
        node.objectType == enums.ObjectType.OBJECT_SCHEMA and _object(node) == "public"
    )
    if isinstance(node, ast.AlterTableStmt):
        command: Any = (node.cmds or (None,))[0]
        return bool(
            command.subtype == enums.AlterTableType.AT_ChangeOwner
            and command.newowner.rolename == _SUPERUSER
        )
    owner: Any = getattr(node, "newowner", None)
    return owned and bool(owner.rolename == _SUPERUSER)


def _object(node: Any) -> str:
    return str(getattr(node.object, "sval", ""))


def _is_about_event_trigger(node: Any) -> bool:
    if isinstance(node, ast.AlterOwnerStmt):
        return bool(node.objectType == enums.ObjectType.OBJECT_EVENT_TRIGGER)
    if isinstance(node, ast.CommentStmt):
        return bool(node.objtype == enums.ObjectType.OBJECT_EVENT_TRIGGER)
    return False


_BEFORE = (
    ast.AlterDefaultPrivilegesStmt, ast.AlterDomainStmt, ast.AlterEnumStmt, ast.AlterFunctionStmt,
    ast.AlterObjectSchemaStmt, ast.AlterOperatorStmt, ast.AlterOpFamilyStmt, ast.AlterOwnerStmt,
    ast.AlterSeqStmt, ast.AlterTSConfigurationStmt, ast.AlterTSDictionaryStmt, ast.AlterTypeStmt,
    ast.CompositeTypeStmt, ast.CreateAmStmt, ast.CreateCastStmt, ast.CreateConversionStmt,
    ast.CreateDomainStmt, ast.CreateEnumStmt, ast.CreateExtensionStmt, ast.CreateFdwStmt,
    ast.CreateForeignServerStmt, ast.CreateForeignTableStmt, ast.CreateFunctionStmt,
    ast.CreateOpClassStmt, ast.CreateOpFamilyStmt, ast.CreatePLangStmt, ast.CreateRangeStmt,
    ast.CreateSchemaStmt, ast.CreateSeqStmt, ast.CreateStmt, ast.CreateTableAsStmt,
    ast.CreateTransformStmt, ast.DefineStmt, ast.GrantStmt, ast.ViewStmt, ast.GrantRoleStmt,
)  # fmt: skip
_COMMENTED_LATER = {
    enums.ObjectType.OBJECT_INDEX, enums.ObjectType.OBJECT_POLICY,
    enums.ObjectType.OBJECT_PUBLICATION, enums.ObjectType.OBJECT_RULE,
    enums.ObjectType.OBJECT_STATISTIC_EXT, enums.ObjectType.OBJECT_TABCONSTRAINT,
    enums.ObjectType.OBJECT_TRIGGER,
}  # fmt: skip


def _part(node: Any) -> Any:
    if isinstance(node, ast.IndexStmt | ast.CreateStatsStmt):
        return "keys"
    if isinstance(node, ast.CommentStmt):
        return "late" if node.objtype in _COMMENTED_LATER else "before"
    if isinstance(node, ast.AlterOwnerStmt):
        later = (enums.ObjectType.OBJECT_PUBLICATION, enums.ObjectType.OBJECT_STATISTIC_EXT)
        return "late" if node.objectType in later else "before"
    return "before" if isinstance(node, _BEFORE) else "late"


_BEFORE_KEYS = {
    enums.AlterTableType.AT_AddColumn, enums.AlterTableType.AT_AddIdentity,
    enums.AlterTableType.AT_AddInherit, enums.AlterTableType.AT_AttachPartition,
    enums.AlterTableType.AT_ChangeOwner, enums.AlterTableType.AT_ColumnDefault,
    enums.AlterTableType.AT_ReplicaIdentity, enums.AlterTableType.AT_SetOptions,
    enums.AlterTableType.AT_SetRelOptions, enums.AlterTableType.AT_SetStatistics,
    enums.AlterTableType.AT_SetStorage, enums.AlterTableType.AT_SetCompression,
    enums.AlterTableType.AT_SetNotNull, enums.AlterTableType.AT_AddOf,
}  # fmt: skip


def _alter_table(node: Any, text: str) -> Iterator[SchemaStatement]:
    kind, command = enums.AlterTableType, node.cmds[0]
    kinds = {one.subtype for one in node.cmds}
    if kind.AT_AddIdentity in kinds and _ALWAYS.search(text):
        # Until cut-over, so that an UPDATE may set the column to what the source has.
        yield SchemaStatement(
            "before", _ALWAYS.sub("ADD GENERATED BY DEFAULT AS IDENTITY", text, 1)
        )
        name = f"ALTER TABLE {_relation(node)} ALTER COLUMN {_name(command.name)}"
        yield SchemaStatement("late", f"{name} SET GENERATED ALWAYS")
    elif kind.AT_AddConstraint in kinds:
        yield from _constraint(node, text)
    elif (
        kind.AT_ClusterOn in kinds
        or node.objtype == enums.ObjectType.OBJECT_INDEX  # a partition's index joins its parent's
        or (kind.AT_ReplicaIdentity in kinds and command.def_.identity_type == "i")
    ):
        yield SchemaStatement("keys", text)
    elif kinds <= _BEFORE_KEYS:
        yield SchemaStatement("before", text)
    else:
        yield SchemaStatement("late", text)


def _constraint(node: Any, text: str) -> Iterator[SchemaStatement]:
    constraint = node.cmds[0].def_
    if constraint.contype in _KEYS:
        yield SchemaStatement("keys", text)
    elif constraint.contype == enums.ConstrType.CONSTR_FOREIGN:
        yield from _foreign_key(node, constraint, text)
    elif constraint.contype == enums.ConstrType.CONSTR_CHECK and constraint.skip_validation:
        yield SchemaStatement("late", text)
    else:
        yield SchemaStatement(
            "before" if constraint.contype != enums.ConstrType.CONSTR_CHECK else "keys", text
        )


def _foreign_key(node: Any, constraint: Any, text: str) -> Iterator[SchemaStatement]:
    """At cut-over it holds for what is written from then on; the rows are looked at afterwards.

    The tables equal the source's, where it held.
    """
    only = not node.relation.inh
    if constraint.skip_validation or not only:  # of a partitioned table it must be valid at once
        yield SchemaStatement("late", text)
        return
    yield SchemaStatement("late", f"{text} NOT VALID")
    yield SchemaStatement(
        "after",
        f"ALTER TABLE ONLY {_relation(node)} VALIDATE CONSTRAINT {_name(constraint.conname)}",
    )


def _relation(node: Any) -> str:
    return f"{_name(node.relation.schemaname)}.{_name(node.relation.relname)}"


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
