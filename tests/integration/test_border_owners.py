"""REASSIGN OWNED, of which PostgreSQL tells no event trigger, comes to all members.

The sidecar notices that owners have changed and orders the change; so does the next command of that
member. A command of another member that was ordered before finds the owners that it needs.
"""

import json
from collections.abc import AsyncIterator
from functools import partial

import psycopg
import pytest
from patience import wait_until_async

from .localherd import LocalHerd
from .members import Connection, caught_up, failure, run, same_everywhere, spread, superusers

_DENIED_OR_LOST = ("42501", "40001", "57P01")
_OWNERS = """
    SELECT o.type, o.identity, pg_get_userbyid(u.owner)::text
      FROM (SELECT 'pg_class'::regclass AS class, c.oid, c.relowner AS owner FROM pg_class c
             WHERE c.relnamespace = '{0}'::regnamespace
               AND c.relkind IN ('r', 'p', 'v', 'm', 'S', 'c')
            UNION ALL SELECT 'pg_type'::regclass, t.oid, t.typowner FROM pg_type t
             WHERE t.typnamespace = '{0}'::regnamespace AND t.typtype IN ('e', 'd', 'r')
            UNION ALL SELECT 'pg_proc'::regclass, p.oid, p.proowner FROM pg_proc p
             JOIN pg_language l ON l.oid = p.prolang AND l.lanname <> 'internal'
             WHERE p.pronamespace = '{0}'::regnamespace
            UNION ALL SELECT 'pg_operator'::regclass, p.oid, p.oprowner FROM pg_operator p
             WHERE p.oprnamespace = '{0}'::regnamespace
            UNION ALL SELECT 'pg_collation'::regclass, k.oid, k.collowner FROM pg_collation k
             WHERE k.collnamespace = '{0}'::regnamespace
            UNION ALL SELECT 'pg_statistic_ext'::regclass, s.oid, s.stxowner
              FROM pg_statistic_ext s WHERE s.stxnamespace = '{0}'::regnamespace
            UNION ALL SELECT 'pg_ts_dict'::regclass, d.oid, d.dictowner FROM pg_ts_dict d
             WHERE d.dictnamespace = '{0}'::regnamespace
            UNION ALL SELECT 'pg_ts_config'::regclass, f.oid, f.cfgowner FROM pg_ts_config f
             WHERE f.cfgnamespace = '{0}'::regnamespace
            UNION ALL SELECT 'pg_conversion'::regclass, n.oid, n.conowner FROM pg_conversion n
             WHERE n.connamespace = '{0}'::regnamespace
            UNION ALL SELECT 'pg_namespace'::regclass, n.oid, n.nspowner FROM pg_namespace n
             WHERE n.nspname = '{0}_more'
            UNION ALL SELECT 'pg_publication'::regclass, b.oid, b.pubowner FROM pg_publication b
             WHERE b.pubname = '{0}'
            UNION ALL SELECT 'pg_extension'::regclass, x.oid, x.extowner FROM pg_extension x
             WHERE x.extname = 'seg') u,
           pg_identify_object(u.class, u.oid, 0) o
     ORDER BY 1, 2
"""
_OBJECTS = """
    CREATE TABLE t (id serial PRIMARY KEY, g int GENERATED ALWAYS AS IDENTITY, a int, b int);
    CREATE TABLE "P" (id int PRIMARY KEY) PARTITION BY RANGE (id);
    CREATE TABLE p1 PARTITION OF "P" FOR VALUES FROM (0) TO (10);
    CREATE VIEW v AS SELECT id FROM t;
    CREATE MATERIALIZED VIEW m AS SELECT id FROM t;
    CREATE SEQUENCE s;
    CREATE TYPE c AS (x int);
    CREATE TYPE e AS ENUM ('a');
    CREATE TYPE r AS RANGE (SUBTYPE = int);
    CREATE DOMAIN d AS int;
    CREATE FUNCTION f(int, text) RETURNS int LANGUAGE sql RETURN 1;
    CREATE PROCEDURE f() LANGUAGE sql BEGIN ATOMIC SELECT 1; END;
    CREATE AGGREGATE every_one(*) (SFUNC = int8inc, STYPE = int8, INITCOND = '0');
    CREATE OPERATOR === (LEFTARG = int, RIGHTARG = int, FUNCTION = int4eq);
    CREATE COLLATION k (provider = icu, locale = 'und');
    CREATE STATISTICS st ON a, b FROM t;
    CREATE TEXT SEARCH DICTIONARY ts (TEMPLATE = simple);
    CREATE TEXT SEARCH CONFIGURATION tc (COPY = simple);
    CREATE CONVERSION cv FOR 'LATIN1' TO 'UTF8' FROM iso8859_1_to_utf8;
    CREATE SCHEMA {0}_more;
    CREATE PUBLICATION {0} FOR TABLE t;
    CREATE EXTENSION seg SCHEMA {0}_more
"""


@pytest.fixture
async def admins(herd: LocalHerd, schema: str) -> AsyncIterator[list[Connection]]:
    """A superuser on each member; roles old, new and both, which has the rights of the two."""
    async with superusers(herd, schema) as connections:
        await caught_up(connections)
        for name in ("old", "new", "both"):
            await everywhere(connections[0], f"CREATE ROLE {schema}_{name}")
        await everywhere(connections[0], f"GRANT {schema}_old, {schema}_new TO {schema}_both")
        await spread(connections, 0, f"GRANT ALL ON SCHEMA {schema} TO {schema}_old, {schema}_new")
        yield connections
        for connection in connections:
            await run(connection, "RESET ROLE")


async def everywhere(connection: Connection, command: str) -> None:
    await run(connection, f"SELECT pgherd.run_everywhere($command${command}$command$)")


async def as_role(connection: Connection, role: str, statement: str) -> None:
    await run(connection, f"SET ROLE {role}")
    try:
        await run(connection, statement)
    finally:
        await run(connection, "RESET ROLE")


async def reassign(connection: Connection, schema: str) -> None:
    await as_role(connection, f"{schema}_both", f"REASSIGN OWNED BY {schema}_old TO {schema}_new")


async def owners(connections: list[Connection], schema: str) -> set[str]:
    """Who owns the objects of the schema, when all members agree."""
    found = await same_everywhere(connections, _OWNERS.format(schema))
    return {owner for _, _, owner in found}


async def until_owned_by(connections: list[Connection], schema: str, role: str) -> None:
    for connection in connections:
        await wait_until_async(
            partial(run, connection, _OWNERS.format(schema)),
            lambda seen: {one for *_, one in seen} == {role},
        )


async def test_objects_of_every_kind_are_reassigned_on_all_members(
    admins: list[Connection], schema: str
) -> None:
    await everywhere(admins[0], f"GRANT CREATE ON DATABASE app TO {schema}_old, {schema}_new")
    await as_role(admins[0], f"{schema}_old", _OBJECTS.format(schema))
    assert await owners(admins, schema) == {f"{schema}_old"}
    await reassign(admins[0], schema)
    await until_owned_by(admins, schema, f"{schema}_new")
    await as_role(
        admins[1], f"{schema}_new", "ALTER TABLE t ADD more int; DROP FUNCTION f(int, text)"
    )
    await caught_up(admins)
    denied = await failure(admins[2], f"SET ROLE {schema}_old; ALTER TABLE t ADD again int")
    assert denied.sqlstate == "42501"
    await spread(admins, 2, f"RESET ROLE; SET ROLE {schema}_new; DROP EXTENSION seg; RESET ROLE")


async def test_a_command_of_the_new_owner_at_once(admins: list[Connection], schema: str) -> None:
    await as_role(admins[0], f"{schema}_old", "CREATE TABLE t (id int PRIMARY KEY)")
    await caught_up(admins)
    await run(admins[0], "BEGIN")
    await reassign(admins[0], schema)
    await as_role(
        admins[0],
        f"{schema}_new",
        "INSERT INTO t VALUES (1); ALTER TABLE t ADD more int; INSERT INTO t VALUES (2)",
    )
    await run(admins[0], "COMMIT")
    assert await owners(admins, schema) == {f"{schema}_new"}
    assert await same_everywhere(admins, "SELECT * FROM t ORDER BY id") == [(1, None), (2, None)]


async def test_what_is_temporary_is_reassigned_on_its_member_only(
    admins: list[Connection], schema: str
) -> None:
    made = (
        "BEGIN; CREATE TEMP TABLE here (id int); CREATE TABLE t (id int PRIMARY KEY);"
        "CREATE FUNCTION pg_temp.f() RETURNS int LANGUAGE sql RETURN 1; COMMIT"
    )
    await as_role(admins[0], f"{schema}_old", made)
    await caught_up(admins)
    await reassign(admins[0], schema)
    await until_owned_by(admins, schema, f"{schema}_new")
    await as_role(admins[1], f"{schema}_new", "ALTER TABLE t ADD more int")
    assert await owners(admins, schema) == {f"{schema}_new"}


async def test_a_command_of_the_former_owner_on_another_member(
    herd: LocalHerd, admins: list[Connection], schema: str
) -> None:
    """It is ordered before the sidecar has noticed, or loses, or is refused after."""
    await as_role(admins[0], f"{schema}_old", "CREATE TABLE t (id int PRIMARY KEY)")
    for number in range(3):
        await caught_up(admins)
        await reassign(admins[0], schema)
        async with await psycopg.AsyncConnection.connect(
            herd.nodes()[1].dsn, autocommit=True
        ) as one:
            try:
                await run(one, f"SET search_path = {schema}; SET ROLE {schema}_old")
                await run(one, f"ALTER TABLE t ADD c{number} int")
            except psycopg.Error as error:
                assert error.sqlstate in _DENIED_OR_LOST, error
        await caught_up(admins)
        await as_role(
            admins[2],
            f"{schema}_both",
            f"REASSIGN OWNED BY {schema}_new TO {schema}_old",
        )
        await until_owned_by(admins, schema, f"{schema}_old")
    await same_everywhere(
        admins,
        f"SELECT attname FROM pg_attribute WHERE attrelid = '{schema}.t'::regclass ORDER BY attnum",
    )


async def test_a_rolled_back_one_changes_nothing(admins: list[Connection], schema: str) -> None:
    await as_role(admins[0], f"{schema}_old", "CREATE TABLE t (id int PRIMARY KEY)")
    await run(admins[0], "BEGIN")
    await reassign(admins[0], schema)
    await as_role(admins[0], f"{schema}_new", "ALTER TABLE t ADD more int")
    await spread(admins, 0, "ROLLBACK")
    await as_role(admins[1], f"{schema}_old", "ALTER TABLE t ADD other int")
    assert await owners(admins, schema) == {f"{schema}_old"}


async def test_what_a_command_before_has_dropped_stops_nobody(
    admins: list[Connection], schema: str
) -> None:
    """An order of owners may come behind a command of another member that drops an object."""
    await run(admins[0], "CREATE TABLE t (id int PRIMARY KEY)")
    gone = [
        ("schema", ["gone"], []),
        ("table", [schema, "gone"], []),
        ("function", [schema, "gone"], ["integer"]),
        ("type", ["gone.gone"], []),
        ("table", [schema, "t"], []),  # this one is there
    ]
    moved = [
        {"type": kind, "names": names, "args": args, "owner": f"{schema}_new"}
        for kind, names, args in gone
    ]
    await run(admins[0], f"BEGIN; SELECT pgherd.take_owners('{json.dumps(moved)}')")
    owner = "SELECT relowner::regrole::text FROM pg_class WHERE oid = 't'::regclass"
    assert await run(admins[0], owner) == [(f"{schema}_new",)]
    await run(admins[0], "ROLLBACK")


async def test_a_role_that_was_just_made_owns_what_all_have(
    admins: list[Connection], schema: str
) -> None:
    here = f'"{schema} Here"'
    await as_role(admins[0], f"{schema}_old", "CREATE TABLE t (id int PRIMARY KEY)")
    await caught_up(admins)
    await run(admins[0], f"CREATE ROLE {here}")
    await run(admins[0], f"REASSIGN OWNED BY {schema}_old TO {here}")
    await until_owned_by(admins, schema, f"{schema} Here")
    await run(admins[0], f"REASSIGN OWNED BY {here} TO {schema}_new; DROP OWNED BY {here}")
    await run(admins[0], f"DROP ROLE {here}")
    await until_owned_by(admins, schema, f"{schema}_new")


@pytest.mark.parametrize(
    "text",
    [
        "BEGIN; {reassign}; {as_new}; CREATE TABLE log (temp int); COMMIT",
        "BEGIN; {reassign}; {as_new}; ALTER TABLE t ADD temp int; COMMIT",
        "BEGIN; {reassign}; {as_new}; SELECT setval('s', 5); COMMIT",
        "{reassign}; {as_new}; BEGIN; ALTER TABLE t ADD temp int; COMMIT",
        "BEGIN; {reassign}; {as_new}; ALTER TABLE t RENAME TO temp; COMMIT",
    ],
    ids=["a new table", "the same table", "setval", "the next transaction", "another name"],
)
async def test_it_is_ordered_beside_commands_that_need_no_turn(
    admins: list[Connection], schema: str, text: str
) -> None:
    """A command may look as if it were about temporary objects; setval concerns no owner."""
    made = "CREATE TABLE t (id int PRIMARY KEY); CREATE SEQUENCE s"
    await as_role(admins[0], f"{schema}_old", made)
    await caught_up(admins)
    texts = {
        "reassign": f"REASSIGN OWNED BY {schema}_old TO {schema}_new",
        "as_new": f"SET ROLE {schema}_new",
    }
    for part in text.format(**texts).split("; "):
        await run(admins[0], part)
    await run(admins[0], "RESET ROLE")
    await until_owned_by(admins, schema, f"{schema}_new")
    await same_everywhere(
        admins,
        "SELECT relname, relnatts FROM pg_class WHERE relowner = "
        f"'{schema}_new'::regrole ORDER BY 1",
    )


async def test_a_temporary_table_orders_nothing_that_was_there_before(
    admins: list[Connection], schema: str
) -> None:
    """Else its transaction would be one of a command: in no pieces, and before all of others."""
    await as_role(admins[0], f"{schema}_old", "CREATE TABLE t (id int PRIMARY KEY)")
    await caught_up(admins)
    await run(admins[0], "BEGIN")
    await reassign(admins[0], schema)
    await run(admins[0], "CREATE TEMPORARY TABLE stage (i int); CREATE INDEX ON stage (i)")
    commands = "SELECT count(*) FROM pgherd.capture_rows(pg_current_xact_id()) WHERE tab = '\"\"'"
    assert await run(admins[0], commands) == [(0,)]
    await run(admins[0], "DROP TABLE stage; COMMIT")
    await until_owned_by(admins, schema, f"{schema}_new")
