"""Looks for everything that keeps a source from being taken over, before anything is made.

What can be asked of catalogs is asked. What the herd thinks of the definitions it says itself: they
are executed there in a transaction that is rolled back.
"""

import re
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from pgherd_sidecar.importing import roles, schema
from pgherd_sidecar.importing.comparing import few
from pgherd_sidecar.importing.ends import source
from pgherd_sidecar.importing.ends.connections import Destination, SourceAddress
from pgherd_sidecar.importing.ends.errors import ImportFailed, Reason, Unfit
from pgherd_sidecar.importing.ends.model import SchemaStatement
from pgherd_sidecar.importing.ends.queries import query
from pgherd_sidecar.importing.ends.target import Target, remedy_of
from pgherd_sidecar.tables.model import SourceTable
from pgherd_sidecar.tables.sessions import Session, is_transient, message_of

_OLDEST, _NEWEST = 12, 18
_SLOTS = 2
"""One that is kept, and one for a moment when tables are copied anew."""
_HARMLESS = re.compile(
    r"COMMENT ON |GRANT |REVOKE |ALTER DEFAULT PRIVILEGES |ALTER INDEX .* ATTACH "
    r"|ALTER TABLE .* (VALIDATE CONSTRAINT|SET GENERATED ALWAYS)|REFRESH MATERIALIZED VIEW "
)
"""Commands that no herd refuses: each costs a while. Owners are not among them: until a function
and its table have theirs, the function's code runs as the superuser."""
_MAKES_OWNER = re.compile(r"CREATE ROLE |ALTER .* OWNER TO ")
_UNDEFINED = {"42P01", "42704", "42883", "42703", "3F000"}
"""It is missing, maybe because the command that makes it has failed."""


Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """What is taken over.

    Attributes:
        changed: how many rows of a table were changed or deleted, by oid, as the statistics tell.
        notes: what is not taken over, and whoever wants it to know.
    """

    tables: tuple[SourceTable, ...]
    statements: tuple[SchemaStatement, ...]
    definitions: dict[str, str]
    roles: roles.SourceRoles
    changed: dict[int, int]
    notes: tuple[str, ...]


async def look(
    address: SourceAddress, target: Target | None, pg_dump: Path, *, follows: bool = False
) -> ImportPlan:
    """Look at both sides.

    Args:
        address: of the source.
        target: the herd; None: it does not exist yet, and only the source is looked at.
        pg_dump: the program that dumps the source.
        follows: the source may follow a herd, and is to take its tables over before the import.

    Raises:
        Unfit: there are reasons against it.
        ImportFailed: a side can't be reached, or pg_dump fails.
    """
    session = await address.session()
    try:
        [server] = await source.rows(session, "server")
        reasons = [*_server(server), *await _replication(address, server)]
        if server["version"] // 10000 < _OLDEST:
            raise Unfit(reasons)  # its catalog is another one
        found = await source.rows(session, "tables")
        reasons += [*_tables(found), *await _objects(session, server)]
        if not follows:
            reasons += await _guards(session)
        notes: list[str] = []
        if target is not None:
            reasons += await _herd(session, target)
            here, there = await _default_collations(session, target)
            reasons += await _bounds(session, here, there)
            notes += _collation_notes(here, there)
        tables = await source.tables(session)
        before = await source.definitions(session)
        programs = await schema.version(pg_dump)
        if programs < server["version"] // 10000:
            reasons.append(
                Reason(
                    f"the source is PostgreSQL {server['version'] // 10000} and {pg_dump} is"
                    f" {programs}",
                    "install its version of PostgreSQL's programs and name them by --postgres-bin",
                )
            )
            raise Unfit(reasons)
        if server["herd"]:
            raise Unfit(reasons)
        try:
            statements = await schema.dump(pg_dump, address.dsn, "pgherd_import")
        except ImportFailed as error:
            remedy = "give the role the rights it needs, or use a superuser"
            raise Unfit([*reasons, Reason(f"no definitions: {error}", remedy)]) from error
        refreshes = await _refreshes(session, statements)
        # Behind those statements at cut-over, before those that come after it.
        statements = (
            *(one for one in statements if one.part != "after"), *refreshes,
            *(one for one in statements if one.part == "after"),
        )  # fmt: skip
        source.require_same(before, await source.definitions(session))
        present = [] if target is None else await target.read("own_roles")
        wanted = await roles.read(session, server, [row["name"] for row in present])
        if target is not None:
            reasons += await _trial(target, wanted, statements)
        if reasons:
            raise Unfit(reasons)
        changed = {row["relid"]: row["changed"] for row in found}
        notes += [note async for note in _notes(session, wanted)]
        return ImportPlan(tables, statements, before, wanted, changed, tuple(notes))
    except psycopg.Error as error:
        raise ImportFailed(f"the source says: {message_of(error)}") from error
    finally:
        await session.close()


async def _refreshes(session: Session, found: Sequence[SchemaStatement]) -> list[SchemaStatement]:
    """Materialized views have no contents in a dump of definitions."""
    cursor = await session.execute(
        "SELECT c.oid::regclass::text AS name FROM pg_class c WHERE c.relkind = 'm'"
        " AND c.relispopulated AND c.relnamespace <> 'pg_catalog'::regnamespace ORDER BY c.oid"
    )
    names = [row["name"] for row in await cursor.fetchall()]
    texts = [one.sql for one in found if one.sql.startswith("CREATE MATERIALIZED VIEW ")]

    def place(name: str) -> int:
        head = f"CREATE MATERIALIZED VIEW {name} "
        return next((at for at, text in enumerate(texts) if text.startswith(head)), len(texts))

    return [
        SchemaStatement("late", f"REFRESH MATERIALIZED VIEW {name}")
        for name in sorted(names, key=place)
    ]


def _server(server: dict[str, Any]) -> Iterator[Reason]:
    major = server["version"] // 10000
    if not _OLDEST <= major <= _NEWEST:
        yield Reason(
            f"the source is PostgreSQL {major}", f"it has to be {_OLDEST} to {_NEWEST}: upgrade it"
        )
    if server["herd"]:
        yield Reason("the source is a member of a herd", "see docs/leaving.md, or copy a snapshot")
    if server["standby"]:
        yield Reason("the source is a standby", "name its primary")
    if server["wal_level"] != "logical":
        yield Reason(
            f"wal_level of the source is {server['wal_level']}",
            "ALTER SYSTEM SET wal_level = logical, and restart its server",
        )
    if server["slots"] < _SLOTS:
        yield Reason(
            f"the source has room for {server['slots']} more replication slots, of {_SLOTS} needed",
            "raise max_replication_slots and restart its server, or drop unused slots",
        )
    if server["senders"] < _SLOTS:
        yield Reason(
            f"the source has room for {server['senders']} more walsenders, of {_SLOTS} needed",
            "raise max_wal_senders and restart its server",
        )
    if server["encoding"] == "SQL_ASCII":
        yield Reason(
            "the source's encoding is SQL_ASCII: what its bytes mean is not known",
            "dump it and load it into a database with an encoding first",
        )
    yield from _rights(server)
    if server["large_objects"]:
        yield Reason(
            "the source holds large objects, which a herd does not have",
            "move them into columns of type bytea, and lo_unlink them",
        )
    if server["subscriptions"]:
        yield Reason(
            f"the source subscribes to others ({few(server['subscriptions'])})",
            "DROP SUBSCRIPTION, or import its publisher",
        )
    if server["prepared"]:
        yield Reason(
            f"the source has {server['prepared']} prepared transactions",
            "COMMIT PREPARED or ROLLBACK PREPARED",
        )


def _rights(server: dict[str, Any]) -> Iterator[Reason]:
    role, database = server["role"], server["database"]
    if not server["may_replicate"]:
        yield Reason(f"role {role} may not replicate", f"ALTER ROLE {role} REPLICATION")
    if not server["may_create"]:
        yield Reason(
            f"role {role} may not create a publication",
            f"GRANT CREATE ON DATABASE {database} TO {role}",
        )
    if not server["owns_database"]:
        yield Reason(
            f"role {role} could not stop writes at cut-over",
            f"make it the owner of database {database}, or a superuser",
        )
    if not server["may_signal"]:
        yield Reason(
            f"role {role} could not end sessions at cut-over", f"GRANT pg_signal_backend TO {role}"
        )


async def _replication(address: SourceAddress, server: dict[str, Any]) -> list[Reason]:
    if not server["may_replicate"]:
        return []
    try:
        await (await address.replication()).close()
    except ImportFailed as error:
        return [
            Reason(
                f"no session of replication: {error}",
                "allow it in pg_hba.conf, and name the server itself and no pooler",
            )
        ]
    return []


def _tables(found: Sequence[dict[str, Any]]) -> Iterator[Reason]:
    for row in found:
        name = row["name"]
        if row["identity"] == "none" and row["changed"]:
            yield Reason(
                f"rows of {name} are changed or deleted, and it has no identity to tell them by",
                f"ALTER TABLE {name} ADD PRIMARY KEY (...), or REPLICA IDENTITY FULL",
            )
        if not any(not column["generated"] for column in row["columns"]):
            yield Reason(
                f"table {name} has no columns that are stored", f"add one, or DROP TABLE {name}"
            )
        if row["guarded"]:
            yield Reason(
                f"policies may hide rows of {name}", "use a role with BYPASSRLS, or a superuser"
            )
    unreadable = [row["name"] for row in found if not row["readable"]]
    if unreadable:
        yield Reason(f"tables can't be read: {few(unreadable)}", "GRANT SELECT, or use a superuser")
    others = [row["name"] for row in found if not row["owned"]]
    if others:
        yield Reason(
            f"tables have other owners, and can't be published: {few(others)}",
            "use their owner, GRANT the role of their owner, or use a superuser",
        )


async def _objects(session: Session, server: dict[str, Any]) -> list[Reason]:
    reasons = []
    for row in await source.rows(session, "odd_relations"):
        if row["kind"] == "unlogged":
            remedy = f"ALTER TABLE {row['name']} SET LOGGED, or drop it"
            reasons.append(Reason(f"table {row['name']} is unlogged", remedy))
        else:
            remedy = f"DROP FOREIGN TABLE {row['name']}"
            reasons.append(Reason(f"table {row['name']} is a foreign table", remedy))
    hidden = [row["name"] for row in await source.rows(session, "sequences") if not row["readable"]]
    if hidden:
        reasons.append(
            Reason(f"sequences can't be read: {few(hidden)}", "GRANT SELECT ON SEQUENCE")
        )
    return reasons


async def _guards(session: Session) -> list[Reason]:
    found = await source.rows(session, "guarded")
    follow = [row["name"] for row in found if not row["moved"]]
    moved = [row["name"] for row in found if row["moved"]]
    reasons = []
    if follow:
        reasons.append(
            Reason(
                f"tables of the source follow a herd: {few(follow)}",
                "have the source take them over with `pgherd switchover`, or `pgherd failover` if"
                " that herd is lost; or end the subscription there with `pgherd unsubscribe`",
            )
        )
    if moved:
        reasons.append(
            Reason(
                f"tables of the source refuse writes since a cut-over: {few(moved)}",
                "DROP SCHEMA pgherd_import CASCADE there, if that herd is not in use",
            )
        )
    return reasons


async def _herd(session: Session, target: Target) -> list[Reason]:
    reasons = []
    contents = await target.read("contents")
    if contents:
        reasons.append(
            Reason(
                f"the herd's database is not empty: {contents[0]['name']}",
                "drop what is in it, or make another herd",
            )
        )
    extensions = [row["name"] for row in await source.rows(session, "extensions")]
    collations = [row["name"] for row in await source.rows(session, "collations")]
    for member in target.members:
        has, knows = await _installed(member)
        if missing := [name for name in extensions if name not in has]:
            reasons.append(
                Reason(
                    f"extensions are missing on {member.name}: {few(missing)}",
                    "install their packages there, or DROP EXTENSION at the source",
                )
            )
        if missing := [name for name in collations if name not in knows]:
            reasons.append(
                Reason(
                    f"collations are missing on {member.name}: {few(missing)}",
                    "install the locales there and call pg_import_system_collations()",
                )
            )
    return reasons


async def _default_collations(session: Session, target: Target) -> tuple[Row, Row]:
    """Of the database, at the source and in the herd: what text sorts by that names no other."""
    [here] = await (await session.execute(query("state", "default_collation"))).fetchall()
    [there] = await target.read("default_collation")
    return here, there


async def _bounds(session: Session, here: Row, there: Row) -> list[Reason]:
    if here["sorts"] == there["sorts"]:
        return []
    return [
        Reason(
            f"partitions of {row['name']} are bounded by text in the order of {here['name']}, and"
            f" the herd's is {there['name']}",
            "name a collation in its PARTITION BY: (... COLLATE ...)",
        )
        for row in await source.rows(session, "bounded_by_text")
    ]


def _collation_notes(here: Row, there: Row) -> Iterator[str]:
    if here["name"] != there["name"]:
        yield (
            f"text that names no collation goes by {here['name']} at the source and"
            f" {there['name']} in the herd: ORDER BY, comparisons, upper() and constraints that use"
            " them may say otherwise"
        )


async def _installed(member: Destination) -> tuple[set[str], set[str]]:
    try:
        session = await member.session()
        try:
            extensions = await (await session.execute(query("state", "extensions"))).fetchall()
            collations = await (await session.execute(query("state", "collations"))).fetchall()
        finally:
            await session.close()
    except psycopg.Error as error:
        raise ImportFailed(
            f"{member.name} does not answer ({message_of(error)}): start it with `pgherd local up`"
        ) from error
    return {row["name"] for row in extensions}, {row["name"] for row in collations}


async def _trial(
    target: Target, wanted: roles.SourceRoles, statements: Sequence[SchemaStatement]
) -> list[Reason]:
    """Execute it all, and take it back."""
    while True:
        session = await target.another_session()
        try:
            return await _tried(session, wanted, statements)
        except psycopg.Error as error:
            await target.recover(session, error)
        finally:
            await session.close()


async def _tried(
    session: Session, wanted: roles.SourceRoles, statements: Sequence[SchemaStatement]
) -> list[Reason]:
    reasons: list[Reason] = []
    broken: list[str] = []
    commands = [
        *(SchemaStatement("before", one, everywhere=True) for one in wanted.commands),
        *(one for one in statements if not _HARMLESS.match(one.sql)),
    ]
    async with session.transaction(force_rollback=True):
        for one in commands:
            try:
                async with session.transaction():
                    await execute(session, one)
            except psycopg.Error as error:
                said = error.diag.message_primary or str(error)
                if remedy := remedy_of(error):
                    what = f"the herd has no room for all definitions in one transaction: {said}"
                    return [*reasons, Reason(what, remedy)]
                if is_transient(error) or session.broken:
                    raise
                name = _subject(one.sql)
                follows = error.sqlstate in _UNDEFINED and any(word in said for word in broken)
                if name:
                    broken.append(name)
                if not follows:
                    reasons.append(
                        Reason(
                            f"the herd refuses {_head(one.sql)}: {said}",
                            error.diag.message_hint or "change it at the source",
                        )
                    )
                if _MAKES_OWNER.match(one.sql) and (one.everywhere or not follows):
                    break  # the rest of the trial would run that owner's code as the superuser
    return reasons


def _head(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:57]}..."


def _subject(text: str) -> str:
    """The last part of the name of what a command is about, more or less."""
    words = text.split("(", 1)[0].split()
    names = [word for word in words if not word.isupper()]
    return names[0].rpartition(".")[2].strip('"') if names else ""


async def execute(session: Session, statement: SchemaStatement) -> None:
    """Execute one command of the source's definitions in the herd."""
    if statement.everywhere:
        await session.execute(
            sql.SQL("SELECT pgherd.run_everywhere({})").format(sql.Literal(statement.sql))
        )
    else:
        await session.execute(statement.sql.encode())


async def _notes(session: Session, wanted: roles.SourceRoles) -> AsyncIterator[str]:
    if wanted.kept:
        yield f"roles stay as they are in the herd: {', '.join(wanted.kept)}"
    if wanted.without_password:
        yield (
            "roles come without a password, because it could not be read or there is none: "
            + ", ".join(wanted.without_password)
        )
    for row in await source.rows(session, "extension_tables"):
        yield f"rows of {row['name']}, a table of extension {row['extension']}, are not taken over"
