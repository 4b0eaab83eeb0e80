"""What ``pg_dump`` and ``pg_dumpall`` have written of a member, sorted for a server made from it.

Contents are what ``pg_restore --list`` prints. Used by total recovery, and by the
snapshot job.
"""

import re
from importlib import resources

_KIND = (
    r"[A-Z]+( (DATA|SET|OWNED BY|CONSTRAINT|ATTACH|ACL|TABLE|VIEW|VIEW DATA|SECURITY|LABEL|TRIGGER"
    r"|CLASS|FAMILY|SEARCH [A-Z]+|TYPE))?"
)
"""Kinds of what lies in a schema; more words would be the schema's name, if that is in capitals."""
_OURS = re.compile(
    rf"^\d+; \d+ \d+ ({_KIND} pgherd(_gen)? |SCHEMA - pgherd(_gen)? "
    r"|[A-Z]+ - SCHEMA pgherd(_gen)? "
    r"|EVENT TRIGGER - pgherd_|TRIGGER (.* [Pp]gherd_\w+ \S+$"
    r"|\S+ \S+ [Pp]gherd_(insert|update|delete|truncate|truncate_restart|refuse) )"
    r"|(COMMENT|EXTENSION) - (EXTENSION )?dblink( |$))"
)
"""What pgherd puts into each database by itself.

A line is kind, schema, name, and owner; a trigger's name is its table's and its own, and all of
them may have spaces. Users may not give a trigger a name like ours.
"""
_DATABASE = re.compile(r"^\d+; \d+ \d+ (DATABASE|DATABASE PROPERTIES|[A-Z ]+) - (DATABASE )?")
_ROWS = re.compile(r"^\d+; \d+ \d+ TABLE DATA ")
_OF_DATABASE = ("DATABASE", "DATABASE PROPERTIES")


def of_users(contents: str) -> str:
    """The lines of an archive's contents without what is ours."""
    return "\n".join([*(line for line in contents.splitlines() if not _OURS.search(line)), ""])


def divided(contents: str) -> tuple[str, str]:
    """The same in two: what makes the database itself, and all that is in it."""
    lines = of_users(contents).splitlines()
    outer = [line for line in lines if _makes_database(line)]
    inner = [line for line in lines if not _makes_database(line)]
    return "\n".join([*outer, ""]), "\n".join([*inner, ""])


def rows_apart(inner: str) -> tuple[str, str]:
    """What is in the database in two: rows of tables, and all but them."""
    lines = inner.splitlines()
    rows = [line for line in lines if _ROWS.match(line)]
    rest = [line for line in lines if not _ROWS.match(line)]
    return "\n".join([*rows, ""]), "\n".join([*rest, ""])


def _makes_database(line: str) -> bool:
    match = _DATABASE.match(line)
    return match is not None and (match[1] in _OF_DATABASE or match[2] is not None)


def without_role(script: str, role: str) -> str:
    """A script that makes roles, for a server that has this one from its beginning."""
    there = {f"CREATE ROLE {role};", 'CREATE ROLE "{}";'.format(role.replace('"', '""'))}
    lines = script.splitlines(keepends=True)
    return "".join(line for line in lines if line.rstrip("\n") not in there)


def free_functions() -> str:
    """Commands that make what the users' definitions may use of ours, until the server has ours."""
    return (resources.files("pgherd_sidecar.pg") / "sql" / "free_functions.sql").read_text()
