"""The source's roles as commands for all members of the herd, and settings of its database.

Roles that the herd has already stay as they are. Passwords come as verifiers, where the source's
role may read them.
"""

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from pgherd_sidecar.importing.ends import source
from pgherd_sidecar.tables.sessions import Session

_LISTS = {
    "local_preload_libraries", "search_path", "session_preload_libraries",
    "shared_preload_libraries", "temp_tablespaces", "unix_socket_directories",
}  # fmt: skip
"""Settings whose text is a list of names, as `pgherd.setting_words` takes it apart."""
_NAME = re.compile(r'"((?:[^"]|"")*)"|([^,\s"]+)')
_NOT_TAKEN = {"default_transaction_read_only", "session_replication_role", "role"}
_FLAGS = {
    "superuser": "SUPERUSER", "inherit": "INHERIT", "createrole": "CREATEROLE",
    "createdb": "CREATEDB", "login": "LOGIN", "replication": "REPLICATION",
    "bypassrls": "BYPASSRLS",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SourceRoles:
    """What is to be done about roles.

    Attributes:
        commands: for ``pgherd.run_everywhere()``, in this order.
        made: names of the roles that they make.
        kept: of those that the herd has already.
        without_password: of those that may log in, and whose password could not be read.
    """

    commands: tuple[str, ...]
    made: tuple[str, ...]
    kept: tuple[str, ...]
    without_password: tuple[str, ...]


async def read(session: Session, server: dict[str, Any], present: Sequence[str]) -> SourceRoles:
    """Read them from the source.

    Args:
        session: at the source.
        server: what the query ``server`` says.
        present: roles of the herd.
    """
    found = await source.rows(session, "role_list")
    passwords: dict[str, str] = {}
    if server["reads_passwords"]:
        with contextlib.suppress(psycopg.errors.InsufficientPrivilege):
            passwords = {
                row["name"]: row["password"] for row in await source.rows(session, "passwords")
            }
    made = [row for row in found if row["name"] not in present]
    names = {row["name"] for row in made}
    commands = [
        *(_create(row, passwords.get(row["name"])) for row in made),
        *_memberships(await source.rows(session, "memberships"), names, set(present)),
        *_settings(await source.rows(session, "role_settings"), names),
    ]
    return SourceRoles(
        tuple(commands),
        tuple(sorted(names)),
        tuple(row["name"] for row in found if row["name"] in present),
        tuple(row["name"] for row in made if row["login"] and row["name"] not in passwords),
    )


def _text(composed: sql.Composable) -> str:
    return composed.as_string(None)


def _create(row: dict[str, Any], password: str | None) -> str:
    words = [word if row[name] else f"NO{word}" for name, word in _FLAGS.items()]
    words.append(f"CONNECTION LIMIT {row['connections']}")
    parts = [
        sql.SQL("CREATE ROLE {} ").format(sql.Identifier(row["name"])),
        sql.SQL(" ".join(words)),
    ]
    if password:
        parts.append(sql.SQL(" PASSWORD {}").format(sql.Literal(password)))
    if row["until"]:
        parts.append(sql.SQL(" VALID UNTIL {}").format(sql.Literal(row["until"])))
    return _text(sql.Composed(parts))


def _memberships(
    rows: Sequence[dict[str, Any]], names: set[str], present: set[str]
) -> Iterator[str]:
    for row in rows:
        pair = {row["role"], row["member"]}
        if pair & names and pair <= names | present:
            grant = sql.SQL("GRANT {} TO {}").format(
                sql.Identifier(row["role"]), sql.Identifier(row["member"])
            )
            options = ["ADMIN OPTION"] if row["admin"] else []
            # A herd before PostgreSQL 16 has neither, refuses the command, and so the import.
            if row["inherits_instead"] is not None:
                options.append(f"INHERIT {str(row['inherits_instead']).upper()}")
            if row["may_set"] is False:
                options.append("SET FALSE")
            yield _text(grant) + (f" WITH {', '.join(options)}" if options else "")


def _settings(rows: Sequence[dict[str, Any]], names: set[str]) -> Iterator[str]:
    for row in rows:
        name, _, value = row["setting"].partition("=")
        if name.lower() in _NOT_TAKEN or (row["role"] is not None and row["role"] not in names):
            continue
        here = sql.SQL("DATABASE {}").format(sql.Identifier("app"))
        if row["role"] is None:
            whom = here
        else:
            whom = sql.SQL("ROLE {}").format(sql.Identifier(row["role"]))
            if row["here"]:
                whom = sql.SQL("{} IN {}").format(whom, here)
        # Any role writes the text of its own settings, and the herd's superuser executes this.
        words = _words(name, value)
        yield _text(sql.SQL("ALTER {} SET {} TO {}").format(whom, sql.Identifier(name), words))


def _words(name: str, value: str) -> sql.Composed:
    names = [value]
    if name in _LISTS:
        names = [quoted.replace('""', '"') or bare for quoted, bare in _NAME.findall(value)]
    return sql.SQL(", ").join(map(sql.Literal, names or [""]))
