"""Puts a snapshot into a new, empty server, before pgherd takes it over: the seed of a new herd.

Definitions, then rows, then what is built on rows, as ``pg_restore`` does it; the parts are loaded
in parallel. What was read is compared with the manifest, and so is what was loaded (``proof``),
before anybody may use it.
"""

import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from pgherd_sidecar.pg import apply_role, archives
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgherd_spark.reading import statements
from pgherd_spark.restoring.proof import differences
from pgherd_spark.storing.layout import CONTENTS, ROLES, SCHEMA
from pgherd_spark.storing.parts import content
from pgherd_spark.storing.stores import Store

_SQL = statements.load("restore.sql")
_SESSION = statements.load("session.sql")
_ATTEMPTS, _PAUSE_S = 4, 2.0
"""How often a part is read from a store that fails, and how long to wait, longer each time."""
_MEMBERS = 64
"""Each has its share of a sequence's numbers: as many as the operator's ``SLOTS``."""
_THERE = re.compile(r"CREATE ROLE (postgres|app);")
_OWN_PASSWORD = re.compile(r"(ALTER ROLE (?:postgres|app) WITH .*) PASSWORD '[^']*'")
"""Each herd has these roles, with passwords of its own."""


class RestoreError(Exception):
    """The snapshot could not be put into the server; the message says why."""


def restore(  # noqa: PLR0913 - a way for each thing that differs
    store: Store,
    manifest: dict[str, Any],
    *,
    conninfo: str,
    programs: Path,
    jobs: int,
    say: Callable[[str], None],
    loaded: Callable[[int], None] = lambda size: None,
    writes_rows: str | None = apply_role.APPLY_ROLE,
) -> None:
    """Fill an empty database of a server that has the roles.

    Args:
        store: the snapshot.
        manifest: the snapshot's, see ``require_described``.
        conninfo: of the database, as a superuser, by a way on which ``pgherd_apply`` is let in
            without a password: it writes the rows, since code of users runs then. It stays.
        programs: directory of PostgreSQL's programs.
        jobs: parts to load at a time.
        say: told what is going on.
        loaded: told, in a thread, the bytes of each part that has been loaded.
        writes_rows: another role for that, if it is not that one; None: the superuser, of a server
            that will not be a member's.

    Raises:
        RestoreError: it can't be done, or what was loaded is not what the manifest says.
        PartError: a part is missing or damaged.
        OSError: the snapshot can't be read.
    """
    conninfo = make_conninfo(conninfo, options=apply_role.OPTIONS)
    rows_conninfo = conninfo if writes_rows is None else make_conninfo(conninfo, user=writes_rows)
    run_script(programs, conninfo, apply_role.script())
    if writes_rows is not None:
        run_script(programs, conninfo, archives.free_functions())
    _pg_restore(programs, conninfo, store, "pre-data", jobs)
    parts = [(table, part) for table in manifest["tables"] for part in table["parts"]]
    parts.sort(key=lambda task: -int(task[1]["bytes"]))
    say(f"loading {len(parts)} parts of {len(manifest['tables'])} tables")
    try:
        _empty(conninfo, {(*part["relation"],) for _, part in parts})
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(partial(_load, rows_conninfo, store, loaded), parts))
            say("comparing what was loaded with the snapshot")
            wrong = differences(pool.map, rows_conninfo, manifest["tables"])
            if wrong:
                raise RestoreError("; ".join(wrong))
            say("building indexes and constraints")
            _pg_restore(programs, conninfo, store, "post-data", jobs)
            _finish(conninfo, manifest, say)
            list(pool.map(partial(_analyze, conninfo), _shares(conninfo, jobs)))
    except psycopg.Error as error:
        raise RestoreError(str(error)) from error


def make_roles(
    store: Store,
    manifest: dict[str, Any],
    *,
    conninfo: str,
    programs: Path,
    say: Callable[[str], None],
) -> None:
    """Make the roles of a snapshot on a new herd's server.

    Args:
        store: the snapshot.
        manifest: the snapshot's.
        conninfo: of the server, as a superuser.
        programs: directory of PostgreSQL's programs.
        say: told whose limits are gone.

    Raises:
        RestoreError: it can't be done.
        OSError: the snapshot can't be read.
    """
    run_script(programs, conninfo, fitting_roles(store.get(ROLES).decode()))
    let_in(conninfo, limited(manifest), say)


def limited(manifest: dict[str, Any]) -> list[str]:
    """The roles that log in on some nodes of the herd only; on others they are NOLOGIN."""
    logins = {key[1] for key, value in manifest["shared"] if value.get("LOGIN")}
    return sorted(logins & manifest["role_limits"].keys())


def let_in(conninfo: str, roles: Sequence[str], say: Callable[[str], None]) -> None:
    """Have roles log in on a new server, which knows nothing of the former nodes.

    Raises:
        RestoreError: it can't be done.
    """
    if not roles:
        return
    try:
        with psycopg.connect(conninfo, autocommit=True) as connection:
            for role in roles:
                connection.execute(_SQL["let_in"].format(role=sql.Identifier(role)))
    except psycopg.Error as error:
        raise RestoreError(str(error)) from error
    say(f"roles that were limited to some nodes log in again: {', '.join(roles)}")


def fitting_roles(script: str) -> str:
    """What ``pg_dumpall`` wrote of the roles, for a server that has some with other passwords."""
    lines = script.splitlines(keepends=True)
    return "".join(_OWN_PASSWORD.sub(r"\1", line) for line in lines if not _THERE.match(line))


def _empty(conninfo: str, relations: set[tuple[str, ...]]) -> None:
    """Remove the rows that extensions have brought into tables that are to be loaded."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        for one in connection.execute(_SQL["of_extensions"]).fetchall():
            if one in relations:
                connection.execute(_SQL["empty"].format(relation=sql.Identifier(*one)))


def _load(
    conninfo: str,
    store: Store,
    loaded: Callable[[int], None],
    task: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    """Load a part, as a whole or not at all; again if its store breaks off."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            _copy(conninfo, store, *task)
            break
        except OSError:
            if attempt == _ATTEMPTS:
                raise
        time.sleep(_PAUSE_S * attempt)
    loaded(task[1]["bytes"])


def _copy(conninfo: str, store: Store, table: dict[str, Any], part: dict[str, Any]) -> None:
    form = table["form"]
    stored = sql.SQL(", ").join(map(sql.Identifier, table["stored"]))
    statement = _SQL["copy"].format(
        relation=sql.Identifier(*part["relation"]),
        columns=sql.SQL("({})").format(stored) if table["stored"] else sql.SQL(""),
        form=sql.SQL(form),
    )
    try:
        with psycopg.connect(conninfo, autocommit=True) as connection:
            if form == "text":  # under the settings under which it was written
                connection.execute(_SESSION["settings"])
                connection.execute(_SQL["own_path"])
            with connection.cursor() as cursor, cursor.copy(statement) as copy:
                for chunk in content(store, part["path"], part["sha256"]):
                    copy.write(chunk)
    except psycopg.Error as error:
        raise RestoreError(f"{part['path']}: {error}") from error


def _finish(conninfo: str, manifest: dict[str, Any], say: Callable[[str], None]) -> None:
    """Sequences and materialized views.

    A view that had contents may have none any more: its query fails with the rows as they are.
    """
    with psycopg.connect(conninfo, autocommit=True) as connection:
        for one in manifest["sequences"]:
            name = sql.Identifier(*one["name"])
            numbers = {"step": sql.Literal(one["step"]), "start": sql.Literal(one["start"])}
            connection.execute(_SQL["sequence"].format(name=name, **numbers))
            last = _last_number(connection, name, one, say)
            connection.execute(
                _SQL["position"].format(
                    name=sql.Literal(name.as_string(None)),
                    value=sql.Literal(one["start"] if last is None else last),
                    called=sql.Literal(last is not None),
                )
            )
        for schema, view in connection.execute(_SQL["materialized_views"]).fetchall():
            if [schema, view] not in manifest["populated"]:
                continue
            name = sql.Identifier(schema, view)
            try:
                connection.execute(_SQL["refresh"].format(view=name))
            except psycopg.DatabaseError as error:
                if connection.closed:
                    raise
                words = error.diag.message_primary
                say(f"materialized view {name.as_string(None)} stays without contents: {words}")


def _last_number(
    connection: psycopg.Connection[Any],
    name: sql.Identifier,
    one: dict[str, Any],
    say: Callable[[str], None],
) -> int | None:
    """The last number that a sequence gave out: a column may hold one of a member that has left.

    A number so near the sequence's end that some member would have none left was given by hand.
    """
    text = name.as_string(None)
    asked = {"name": text, "members": _MEMBERS}
    known = one["last_value"]
    direction, further = ("max", max) if one["step"] > 0 else ("min", min)
    last = [known]
    for schema, table, column, *bounds in connection.execute(_SQL["columns_of_sequence"], asked):
        query = _SQL["furthest"].format(
            further=sql.Identifier(direction),
            column=sql.Identifier(column),
            table=sql.Identifier(schema, table),
            **dict(zip(("low", "high", "first", "last"), map(sql.Literal, bounds), strict=True)),
        )
        ((furthest, fitting),) = connection.execute(query).fetchall()
        last.append(fitting)
        if furthest not in (None, fitting) and (known is None or further(known, furthest) != known):
            say(
                f"sequence {text} goes on without regard to {furthest} in column {column} of"
                f" {schema}.{table}: behind it not every member would have a number left"
            )
    return further((number for number in last if number is not None), default=None)


def _shares(conninfo: str, number: int) -> list[sql.Composed]:
    """The tables that the planner wants statistics of, in lists of about the same size."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        names = [sql.Identifier(*row) for row in connection.execute(_SQL["to_analyze"])]
    shares = [names[first::number] for first in range(number)]
    return [sql.SQL(", ").join(share) for share in shares if share]


def _analyze(conninfo: str, tables: sql.Composed) -> None:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(_SQL["analyze"].format(tables=tables))


def _pg_restore(programs: Path, conninfo: str, store: Store, section: str, jobs: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        schema, contents = (store.fetch(name, Path(directory)) for name in (SCHEMA, CONTENTS))
        _run(
            [
                str(programs / "pg_restore"), "--exit-on-error", f"--section={section}",
                f"--jobs={jobs}", f"--use-list={contents}", f"--dbname={conninfo}", str(schema),
            ]
        )  # fmt: skip


def run_script(programs: Path, conninfo: str, script: str) -> None:
    """Have psql execute a script, up to the first error.

    Raises:
        RestoreError: there is one.
    """
    _run([*_client(programs, conninfo), "--file=-"], script)


def _client(programs: Path, conninfo: str) -> list[str]:
    options = ["--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--no-password"]
    return [str(programs / "psql"), *options, f"--dbname={conninfo}"]


def _run(command: Sequence[str], script: str = "") -> None:
    done = subprocess.run(command, input=script, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RestoreError(f"{Path(command[0]).name}: {done.stderr.strip()}")
