"""DDL that each member computes for itself gives the same on all, or is refused.

What reads oids, system columns, settings or what is local to a member gets nowhere near partition
routing, generated columns, checks, unique indexes and materialized views; and commands exclude
whoever wrote what they depend on. The cases are in ``border_ddl_cases``; ``test_refused_ddl`` has
those that are refused.
"""

import asyncio
import contextlib

import psycopg
import pytest
from patience import in_time, wait_until_async
from pgherd_sidecar.agent.server.startup import install
from psycopg import conninfo

from .border_ddl_cases import ALLOWED
from .localherd import NATIVE, LocalHerd
from .long_commands import another, interrupted_reindex
from .members import (
    Connection,
    assert_refused,
    assert_same_schema,
    caught_up,
    failure,
    once,
    run,
    same_everywhere,
    spread,
    superusers,
)

pytestmark = pytest.mark.usefixtures("schema_is_everywhere")

_FILLED_AGAIN_S = 2  # a view that was filled in less is filled again instead of losing
_LOST = ("40001", "57P01")  # certification, or the applier that needs the table


@pytest.mark.family(every=8)
@pytest.mark.parametrize("case", ALLOWED)
async def test_what_is_next_to_the_refused_works_everywhere(
    connections: list[Connection], schema: str, case: str
) -> None:
    await run(connections[0], ALLOWED[case])
    await assert_same_schema(connections, schema)
    views = await same_everywhere(
        connections, f"SELECT matviewname FROM pg_matviews WHERE schemaname = '{schema}' ORDER BY 1"
    )
    for (view,) in views:
        assert await same_everywhere(connections, f"SELECT v::text FROM {view} v ORDER BY 1")


async def test_rows_go_to_the_same_partition_on_every_member(
    connections: list[Connection], schema: str
) -> None:
    await spread(
        connections,
        0,
        "CREATE TYPE en AS ENUM ('a', 'b');"
        "CREATE TABLE t (id text, e en, PRIMARY KEY (id, e)) PARTITION BY LIST (e);"
        "CREATE TABLE a PARTITION OF t FOR VALUES IN ('a') PARTITION BY HASH (id);"
        "CREATE TABLE b PARTITION OF t FOR VALUES IN ('b');"
        "CREATE TABLE a0 PARTITION OF a FOR VALUES WITH (MODULUS 2, REMAINDER 0);"
        "CREATE TABLE a1 PARTITION OF a FOR VALUES WITH (MODULUS 2, REMAINDER 1);"
        "INSERT INTO t SELECT i, (ARRAY['a', 'b'])[i % 2 + 1]::en FROM generate_series(1, 40) i",
    )
    await run(connections[1], "TRUNCATE a0")
    await run(connections[1], "ALTER TABLE t DETACH PARTITION b")
    left = await same_everywhere(connections, "SELECT id FROM t ORDER BY id")
    assert 0 < len(left) < 20


async def test_table_that_was_there_before_takes_no_writes(herd: LocalHerd) -> None:
    """A database that is taken over: nobody has judged its tables when they were made."""
    node = herd.nodes()[0]
    tables = {
        "hashed": "CREATE TABLE hashed (id int, e en, PRIMARY KEY (id, e)) PARTITION BY HASH (e);"
        "CREATE TABLE leaf PARTITION OF hashed FOR VALUES WITH (MODULUS 1, REMAINDER 0)",
        "generated": "CREATE TABLE generated (id int PRIMARY KEY,"
        " g int8 GENERATED ALWAYS AS (tableoid::int8) STORED)",
        "settings": "CREATE TABLE settings (id int PRIMARY KEY, f float8);"
        "CREATE UNIQUE INDEX ON settings ((f::text))",
        "typed": "CREATE DOMAIN d AS en CHECK (hashenum(VALUE) <> 5);"
        "CREATE TABLE typed (id int PRIMARY KEY, d d[])",
        "inherited": "CREATE TABLE inherited (LIKE generated INCLUDING ALL);"
        "CREATE TABLE heir () INHERITS (inherited); INSERT INTO heir VALUES (1)",
    }
    async with await psycopg.AsyncConnection.connect(node.dsn, autocommit=True) as admin:
        await run(admin, "CREATE DATABASE taken_over")
        try:
            dsn = conninfo.make_conninfo(node.dsn, dbname="taken_over")
            async with await psycopg.AsyncConnection.connect(
                dsn, autocommit=True, cursor_factory=psycopg.AsyncRawCursor
            ) as there:
                await run(there, "CREATE TYPE en AS ENUM ('a', 'b')")
                for statement in tables.values():
                    await run(there, statement)
                await run(
                    there,
                    "CREATE TABLE good (id int PRIMARY KEY, f float8 CHECK (f > 0));"
                    "CREATE INDEX ON good ((f::text))",
                )
                await run(there, "SET session_replication_role = replica")
                await install(there, native=NATIVE)
                await run(there, "RESET session_replication_role")
                for table in (*tables, "leaf", "heir"):
                    for statement in ("DELETE FROM", "TRUNCATE"):
                        error = await failure(there, f"{statement} {table}")
                        assert error.sqlstate == "0A000", table
                        assert "cannot be replicated: " in str(error)
                        assert "set_local" in (error.diag.message_hint or "")
                # this one would be written, if the database had a sidecar
                with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
                    await run(there, "INSERT INTO good VALUES (1, 1)")
        finally:
            await run(admin, "DROP DATABASE IF EXISTS taken_over WITH (FORCE)")


#: What a materialized view reads, and who writes it elsewhere while it is filled.
VIEWS = {
    "table": ("", "SELECT count(*) FROM t", "INSERT INTO t VALUES (1)"),
    "truncated": ("INSERT INTO t VALUES (1)", "SELECT count(*) FROM t", "TRUNCATE t"),
    "view": (
        "CREATE VIEW x AS SELECT * FROM t; CREATE VIEW y AS SELECT * FROM x",
        "SELECT count(*) FROM y",
        "INSERT INTO t VALUES (1)",
    ),
    "partition": (
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE q PARTITION OF p FOR VALUES FROM (0) TO (9) PARTITION BY RANGE (id);"
        "CREATE TABLE r PARTITION OF q FOR VALUES FROM (0) TO (9)",
        "SELECT count(*) FROM p",
        "INSERT INTO r VALUES (1)",
    ),
    "partition_by_its_table": (
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE r PARTITION OF p FOR VALUES FROM (0) TO (9)",
        "SELECT count(*) FROM r",
        "INSERT INTO p VALUES (1)",
    ),
    "child": (
        "CREATE TABLE c (PRIMARY KEY (id)) INHERITS (t)",
        "SELECT count(*) FROM t",
        "INSERT INTO c VALUES (1)",
    ),
    "policy": (
        "CREATE TABLE s (id int PRIMARY KEY); INSERT INTO t VALUES (1);"
        "CREATE POLICY p ON t USING (id IN (SELECT s.id FROM s));"
        "ALTER TABLE t ENABLE ROW LEVEL SECURITY; ALTER TABLE t FORCE ROW LEVEL SECURITY",
        "SELECT count(*) FROM t",
        "INSERT INTO s VALUES (1)",
    ),
    "another_view": (
        "CREATE MATERIALIZED VIEW w AS SELECT count(*) FROM t; INSERT INTO t VALUES (1)",
        "SELECT * FROM w",
        "REFRESH MATERIALIZED VIEW w",
    ),
}


@pytest.mark.family(every=8)
@pytest.mark.parametrize("case", VIEWS)
async def test_view_that_others_would_fill_otherwise_loses(
    connections: list[Connection], schema: str, case: str
) -> None:
    before, query, write = VIEWS[case]
    await run(connections[0], f"CREATE TABLE t (id int PRIMARY KEY); {before}")
    await run(connections[0], f"CREATE MATERIALIZED VIEW v AS {query}")
    for statement in ("REFRESH MATERIALIZED VIEW v", f"CREATE MATERIALIZED VIEW n AS {query}"):
        await caught_up(connections)
        await run(connections[0], "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
        await run(connections[1], write)
        await caught_up(connections[1:])
        async with another(connections[0], schema) as watcher:
            await caught_up([watcher, connections[1]])
        with pytest.raises(psycopg.errors.SerializationFailure):
            await run(connections[0], f"{statement}; COMMIT")
        await run(connections[0], "ROLLBACK")
        await run(connections[1], "DELETE FROM t" if "INSERT INTO t" in write else "SELECT 1")
        if write.startswith("INSERT") and "INTO t " not in write:
            await run(connections[1], f"TRUNCATE {write.split()[2]}")
        await caught_up(connections)
        await run(connections[0], statement)
    assert len(await same_everywhere(connections, "SELECT v::text || n::text FROM v, n")) == 1


@pytest.mark.parametrize("held_s", [0, 2.5])
async def test_view_that_waited_with_an_old_snapshot_is_the_same_on_every_member(
    connections: list[Connection], schema: str, held_s: float
) -> None:
    await run(connections[0], "CREATE TABLE t (id int PRIMARY KEY)")
    await spread(connections, 0, "CREATE MATERIALIZED VIEW v AS SELECT count(*) FROM t")
    async with (
        another(connections[0], schema) as reader,
        another(connections[0], schema) as watcher,
    ):
        await run(reader, "BEGIN; TABLE v")
        refresh = asyncio.create_task(once(connections[0], "REFRESH MATERIALIZED VIEW v"))
        waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'v'::regclass"
        await wait_until_async(
            lambda: run(watcher, waits), lambda seen: seen == [(1,)], hopeless=refresh.done
        )
        await run(connections[1], "INSERT INTO t VALUES (1)")
        await caught_up([watcher, connections[1]])
        assert await run(watcher, "SELECT id FROM t") == [(1,)]
        assert await run(watcher, waits) == [(1,)]
        await run(reader, "SELECT pg_sleep($1); COMMIT".replace("$1", str(held_s)))
        if held_s > _FILLED_AGAIN_S:
            with pytest.raises(psycopg.errors.SerializationFailure):
                await refresh
            await run(connections[0], "REFRESH MATERIALIZED VIEW v")
        else:
            with contextlib.suppress(psycopg.errors.SerializationFailure):
                await refresh
    assert len(await same_everywhere(connections, "TABLE v")) == 1
    await run(connections[0], "REFRESH MATERIALIZED VIEW v")
    assert await same_everywhere(connections, "TABLE v") == [(1,)]


async def test_views_refreshed_beside_writers_are_the_same_on_every_member(
    connections: list[Connection], schema: str
) -> None:
    await run(connections[0], "CREATE TABLE t (id int PRIMARY KEY)")
    await spread(connections, 0, "CREATE MATERIALIZED VIEW v AS SELECT count(*), sum(id) FROM t")
    stop = asyncio.Event()

    async def write(connection: Connection, number: int) -> None:
        while not stop.is_set():
            number += 3
            with contextlib.suppress(psycopg.errors.SerializationFailure):
                await run(connection, f"INSERT INTO t VALUES ({number})")
            await asyncio.sleep(0.05)

    writers = [asyncio.create_task(write(connections[number], number)) for number in (1, 2)]
    done = 0
    async with in_time():
        while done < 3:
            with contextlib.suppress(psycopg.errors.SerializationFailure):
                await run(connections[0], "REFRESH MATERIALIZED VIEW v")
                done += 1
    stop.set()
    await asyncio.gather(*writers)
    assert len(await same_everywhere(connections, "TABLE v")) == 1


#: How values of a type get into the table `t`, and what changes the type elsewhere (C16).
TYPES = {
    "attribute_dropped": ("", "c", "ROW(1, 2)", "ALTER TYPE c DROP ATTRIBUTE b"),
    "attribute_added": ("", "c", "ROW(1, 2)", "ALTER TYPE c ADD ATTRIBUTE z int"),
    "attribute_exchanged": (
        "",
        "c",
        "ROW(1, 2)",
        "ALTER TYPE c DROP ATTRIBUTE b, ADD ATTRIBUTE z text",
    ),
    "array": ("", "c[]", "ARRAY[ROW(1, 2)::c]", "ALTER TYPE c ADD ATTRIBUTE z int"),
    "nested": (
        "CREATE TYPE o AS (x int, y c[])",
        "o",
        "ROW(1, ARRAY[ROW(1, 2)::c])",
        "ALTER TYPE c ADD ATTRIBUTE z int",
    ),
    "domain": (
        "CREATE DOMAIN d AS c; CREATE TYPE o AS (d d)",
        "o",
        "ROW(ROW(1, 2))",
        "ALTER TYPE c DROP ATTRIBUTE b",
    ),
    "row_of_table": (
        "CREATE TABLE r (a int PRIMARY KEY, b int)",
        "r",
        "ROW(1, 2)",
        "ALTER TABLE r ADD z int",
    ),
    "row_of_partitioned_table": (
        "CREATE TABLE r (a int, b int) PARTITION BY LIST (a);CREATE TABLE q PARTITION OF r DEFAULT",
        "q",
        "ROW(1, 2)",
        "ALTER TABLE r ADD z int",
    ),
    "row_of_view": (
        "CREATE VIEW w AS SELECT 1 AS a, 2 AS b",
        "w",
        "ROW(1, 2)",
        "CREATE OR REPLACE VIEW w AS SELECT 1 AS a, 2 AS b, 3 AS z",
    ),
    "attribute_gone_with_its_type": (
        "CREATE TYPE i AS (n int); CREATE TYPE o AS (a int, i i)",
        "o",
        "ROW(1, NULL)",
        "DROP TYPE i CASCADE",
    ),
    "label": ("CREATE TYPE en AS ENUM ('a')", "en", "'a'", "ALTER TYPE en RENAME VALUE 'a' TO 'b'"),
    "check_of_domain": ("CREATE DOMAIN d AS int", "d", "5", "ALTER DOMAIN d ADD CHECK (VALUE < 3)"),
}


@pytest.mark.family(every=6)
@pytest.mark.parametrize("case", TYPES)
async def test_change_of_a_type_excludes_who_writes_its_values(
    connections: list[Connection], schema: str, case: str
) -> None:
    before, typ, value, change = TYPES[case]
    await spread(
        connections,
        0,
        f"CREATE TYPE c AS (a int, b int); {before}; CREATE TABLE t (id int PRIMARY KEY, v {typ})",
    )
    await run(connections[0], f"BEGIN; INSERT INTO t VALUES (1, {value})")
    await run(connections[1], change)
    with pytest.raises(psycopg.Error) as refusal:
        await run(connections[0], "COMMIT")
    assert refusal.value.sqlstate in (*_LOST, None)
    await assert_same_schema(connections[1:], schema)
    assert await same_everywhere(connections[1:], "SELECT count(*) FROM t") == [(0,)]


async def test_rows_around_the_change_of_a_type_in_one_transaction(
    connections: list[Connection], schema: str
) -> None:
    await run(
        connections[0],
        """
        CREATE TYPE c AS (a int, b int);
        CREATE TABLE r (a int PRIMARY KEY, b int);
        CREATE TABLE t (id int PRIMARY KEY, v c, w c[], r r);
        INSERT INTO t VALUES (1, ROW(1, 2), '{"(3,4)"}', ROW(5, 6));
        BEGIN;
        INSERT INTO t VALUES (2, ROW(1, 2), '{"(3,4)"}', ROW(5, 6));
        UPDATE t SET v = ROW(7, 8);
        ALTER TYPE c ADD ATTRIBUTE z text;
        INSERT INTO t VALUES (3, ROW(1, 2, 'z'), '{"(3,4,z)"}', ROW(5, 6));
        UPDATE t SET w = array_append(w, ROW(9, 9, 'y')::c) WHERE id < 3;
        UPDATE t SET id = 4 WHERE id = 3;
        ALTER TYPE c DROP ATTRIBUTE b;
        ALTER TABLE r ADD n text;
        UPDATE t SET v = ROW(0, 'x'), r = ROW(1, 2, 'n') WHERE id = 2;
        DELETE FROM t WHERE id = 4;
        ALTER TYPE c DROP ATTRIBUTE a, ADD ATTRIBUTE a text;
        UPDATE t SET v = ROW('p', 'q') WHERE id = 1;
        COMMIT
        """,
    )
    await assert_same_schema(connections, schema)
    rows = await same_everywhere(connections, "SELECT id, v::text, r::text FROM t ORDER BY id")
    assert rows == [(1, "(p,q)", "(5,6,)"), (2, "(x,)", "(1,2,n)")]
    await run(connections[2], "UPDATE t SET v = ROW('r', 's')")
    assert len(await same_everywhere(connections, "SELECT t::text FROM t ORDER BY id")) == 2


@pytest.mark.parametrize("drop", ["DROP DOMAIN s.d CASCADE", "DROP SCHEMA s CASCADE"])
async def test_type_goes_with_the_columns_that_have_it(
    connections: list[Connection], schema: str, drop: str
) -> None:
    drop = drop.replace(" s", f" s_{schema}")
    await run(
        connections[0],
        f"""
        CREATE SCHEMA s_{schema};
        CREATE DOMAIN s_{schema}.d AS int;
        CREATE DOMAIN e AS text;
        CREATE TABLE t (id int PRIMARY KEY, a s_{schema}.d, b s_{schema}.d[], e e, x text);
        INSERT INTO t VALUES (1, 2, '{{3}}', 'e', 'x');
        BEGIN;
        UPDATE t SET x = 'y';
        UPDATE t SET x = 'z';
        {drop};
        INSERT INTO t VALUES (2, 'f', 'w');
        UPDATE t SET e = 'g' WHERE id = 2;
        COMMIT
        """,
    )
    await assert_same_schema(connections, schema)
    await run(connections[1], "UPDATE t SET e = e || x")
    rows = await same_everywhere(connections, "SELECT * FROM t ORDER BY id")
    assert rows == [(1, "ez", "z"), (2, "gw", "w")]
    if "DOMAIN" in drop:
        await run(connections[1], f"DROP SCHEMA s_{schema}")


async def test_what_belongs_to_replication_is_not_dropped(
    connections: list[Connection], schema: str, herd: LocalHerd
) -> None:
    await run(
        connections[0],
        "CREATE DOMAIN d AS int; CREATE TABLE t (id int PRIMARY KEY, a d, b d[])",
    )
    async with superusers(herd, schema) as admins:
        (row_type,) = (await run(admins[0], "SELECT 'pgherd_gen.row_' || 't'::regclass::oid"))[0]
        for statement in (f"DROP TYPE {row_type} CASCADE", "DROP SCHEMA pgherd_gen CASCADE"):
            assert (await failure(admins[0], statement)).sqlstate == "0A000"


async def test_privileges_on_the_database_are_those_of_every_member(
    connections: list[Connection], schema: str, herd: LocalHerd
) -> None:
    role = f"maker_{schema}"
    make = f"SET ROLE {role}; CREATE SCHEMA s_{schema}"
    drop = f"RESET ROLE; DROP SCHEMA s_{schema}"
    grant = f"GRANT CREATE ON DATABASE app TO {role}"
    revoke = f"REVOKE CREATE ON DATABASE app FROM {role}"
    async with superusers(herd, schema) as admins:
        await run(admins[0], f"SELECT pgherd.run_everywhere('CREATE ROLE {role}')")
        await spread(admins, 0, f"GRANT ALL ON SCHEMA {schema} TO {role}")
        await run(connections[0], grant)  # the owner of the database may
        await spread(admins, 0, make)
        await run(admins[0], drop)
        await spread(admins, 0, f"SELECT pgherd.run_everywhere('{grant}')")
        await spread(admins, 1, make)
        await spread(admins, 1, drop)
        await run(admins[2], revoke)  # one that has lost it gets it back, or is the first
        with contextlib.suppress(psycopg.errors.InsufficientPrivilege, psycopg.OperationalError):
            await spread(admins, 0, make)
            await run(admins[0], drop)
        await run(admins[0], "RESET ROLE")
        await spread(admins, 0, f"SELECT pgherd.run_everywhere('{revoke}')")
        known = f"SELECT * FROM pgherd.shared WHERE key = '{{database,{role}}}'"
        assert await same_everywhere(admins, known) == []
        assert (
            await same_everywhere(
                admins, f"SELECT 1 FROM pgherd.database_grants WHERE grantee = '{role}'"
            )
            == []
        )
        await run(admins[0], f"DROP OWNED BY {role}")
        await run(admins[0], f"SELECT pgherd.run_everywhere('DROP ROLE {role}')")
        await assert_same_schema(connections, schema)


async def test_database_has_one_owner_on_every_member(
    connections: list[Connection], schema: str, herd: LocalHerd
) -> None:
    role = f"owner_{schema}"
    made = f"SET ROLE {role}; CREATE TABLE public.{role} (id int PRIMARY KEY); RESET ROLE"
    owner = f"ALTER DATABASE app OWNER TO {role}"
    back = "ALTER DATABASE app OWNER TO app"
    async with superusers(herd, schema) as admins:
        await spread(admins, 0, f"SELECT pgherd.run_everywhere('CREATE ROLE {role}')")
        await run(admins[0], owner)  # what was changed on one member comes along with a command
        await spread(admins, 0, made)
        owners = "SELECT * FROM pgherd.database_grants WHERE privilege = 'OWNER'"
        assert await same_everywhere(admins, owners) == [(role, "OWNER")]
        await run(admins[0], f"DROP TABLE public.{role}")
        await spread(admins, 0, f"SELECT pgherd.run_everywhere('{back}')")
        await spread(admins, 0, f"SELECT pgherd.run_everywhere('{owner}')")
        await spread(admins, 1, made)
        await run(admins[1], f"DROP TABLE public.{role}")
        await spread(admins, 1, f"SELECT pgherd.run_everywhere('{back}')")
        assert await same_everywhere(admins, owners) == [("app", "OWNER")]
        await run(admins[0], f"SELECT pgherd.run_everywhere('DROP ROLE {role}')")
    await run(connections[0], "CREATE TABLE t (id int PRIMARY KEY)")
    await assert_same_schema(connections, schema)


async def test_index_that_reindex_left_is_dropped_where_it_is(
    connections: list[Connection], schema: str
) -> None:
    await spread(
        connections, 0, "CREATE TABLE t (id int PRIMARY KEY, v int); CREATE INDEX i ON t (v)"
    )
    await interrupted_reindex(connections[0], schema, "i")
    error = await failure(connections[0], "DROP INDEX i_ccnew, i")
    assert error.sqlstate == "0A000"
    await run(connections[0], "ALTER INDEX i_ccnew RENAME TO left_over")
    await run(connections[0], "DROP INDEX left_over")
    await assert_same_schema(connections, schema)
    # another member makes one of that name
    await interrupted_reindex(connections[0], schema, "t_pkey")
    await run(connections[1], "CREATE INDEX t_pkey_ccnew ON t (v)")
    await assert_same_schema(connections, schema)
    await run(connections[0], "INSERT INTO t VALUES (1, 1)")
    await run(connections[0], "DROP INDEX t_pkey_ccnew")
    await assert_same_schema(connections, schema)


async def test_an_index_is_named_like_a_copy_of_reindex_by_reindex_only(
    connections: list[Connection], schema: str
) -> None:
    await run(
        connections[0], "CREATE TABLE t (id int PRIMARY KEY, v int); CREATE UNIQUE INDEX i ON t (v)"
    )
    await assert_refused(connections, schema, "CREATE UNIQUE INDEX i_ccnew ON t (v)")
    await run(connections[0], "CREATE UNIQUE INDEX j_ccnew ON t (v)")  # a copy of none
    await assert_refused(connections, schema, "CREATE UNIQUE INDEX j ON t (v)")
    await assert_refused(connections, schema, "ALTER INDEX i RENAME TO j")
    for name in ("i_ccnew", "j"):  # what PostgreSQL leaves of it is an index that is not valid
        await assert_refused(connections, schema, f"CREATE INDEX CONCURRENTLY {name} ON t (v)")
    await caught_up(connections)
    await interrupted_reindex(connections[0], schema, "i")
    await run(connections[0], "REINDEX TABLE t")  # the copy is valid now
    for command in (
        "ALTER INDEX i_ccnew RENAME TO kept",
        "ALTER TABLE t ADD UNIQUE USING INDEX i_ccnew",
    ):
        assert (await failure(connections[0], command)).sqlstate == "0A000"
    await run(connections[0], "COMMENT ON TABLE t IS 'x'")
    await run(connections[0], "DROP INDEX i_ccnew")
    await run(connections[1], "INSERT INTO t VALUES (1, 1)")
    await assert_same_schema(connections, schema)


async def test_a_reindex_that_ends_while_a_command_begins_is_not_in_its_way(
    connections: list[Connection], schema: str, herd: LocalHerd
) -> None:
    """Its index has the number that the copy had, which was not valid when the command began."""
    await run(connections[0], "CREATE TABLE t (id int PRIMARY KEY, v int); CREATE INDEX i ON t (v)")
    check = (
        "SELECT pgherd.check_reindex_copies(jsonb_build_object('i'::regclass::oid, {}),"
        " ARRAY['t'::regclass::oid])"
    )
    async with superusers(herd, schema) as admins:
        await run(admins[0], check.format("false"))
        assert (await failure(admins[0], check.format("true"))).sqlstate == "0A000"


async def test_a_function_of_a_default_changes_beside_writers(
    connections: list[Connection], schema: str
) -> None:
    function = "FUNCTION f() RETURNS int LANGUAGE sql RETURN"
    await spread(
        connections,
        0,
        f"CREATE {function} 1; CREATE TABLE t (id int PRIMARY KEY, v int DEFAULT f())",
    )
    async with another(connections[1], schema) as writer:
        await run(writer, "BEGIN; INSERT INTO t VALUES (1)")
        await run(connections[0], f"CREATE OR REPLACE {function} 2")
        await run(writer, "COMMIT")
    await run(connections[2], "INSERT INTO t VALUES (2)")
    assert await same_everywhere(connections, "TABLE t ORDER BY id") == [(1, 1), (2, 2)]


async def test_what_explain_made_of_what_explain_made_goes_with_it(
    connections: list[Connection], schema: str
) -> None:
    await spread(connections, 0, "CREATE TABLE t (id int PRIMARY KEY)")
    for number in range(3):
        await run(connections[1], f"EXPLAIN ANALYZE CREATE TABLE s{number} AS SELECT 1 AS id")
        view = f"CREATE MATERIALIZED VIEW v{number} AS TABLE s{number}"
        await run(connections[1], f"EXPLAIN ANALYZE {view}")
    await run(connections[0], "ALTER TABLE t ADD v text")
    await assert_same_schema(connections, schema)


async def test_what_explain_made_is_not_dropped_together_with_what_all_have(
    connections: list[Connection], schema: str
) -> None:
    await spread(connections, 0, "CREATE TABLE t (id int PRIMARY KEY)")
    await run(connections[0], "EXPLAIN ANALYZE CREATE TABLE stray AS SELECT 1 AS id")
    assert (await failure(connections[0], "DROP TABLE stray, t")).sqlstate == "0A000"
    await run(connections[0], "DROP TABLE stray")
    await assert_same_schema(connections, schema)


_OF_THE_STRAY = {
    "a column": "ALTER TABLE stray ADD COLUMN more int",
    "an index": "CREATE INDEX ON stray (v)",
    "a view of it": "CREATE VIEW seen AS SELECT count(*) FROM stray",
    "a reference to it": "ALTER TABLE t ADD FOREIGN KEY (id) REFERENCES stray",
    "a table of its rows": "CREATE TABLE holder (id int PRIMARY KEY, row stray)",
    "its comment": "COMMENT ON COLUMN stray.v IS 'v'",
    "it with others": "DROP TABLE stray, t",
    "its rights": "GRANT SELECT ON stray TO app",
    "its columns": "CREATE TABLE copied (LIKE stray)",
    "its types": "CREATE FUNCTION f(v stray.v%TYPE) RETURNS int LANGUAGE sql RETURN 1",
}


async def test_what_a_superuser_made_in_replica_role_is_in_nobodys_way(
    herd: LocalHerd, connections: list[Connection], schema: str
) -> None:
    await run(connections[0], "CREATE TABLE t (id int PRIMARY KEY)")
    async with superusers(herd, schema) as admins:
        await run(admins[0], "SET session_replication_role = replica")
        await run(admins[0], "CREATE TABLE stray (id serial PRIMARY KEY, v int)")
        await run(admins[0], "CREATE INDEX of_the_stray ON stray (v)")
        await run(admins[0], "CREATE INDEX another ON stray (v)")
        await run(admins[0], "CREATE STATISTICS of_it ON id, v FROM stray")
        await run(admins[0], "RESET session_replication_role")
        try:
            await run(connections[0], "ALTER TABLE t ADD COLUMN more int")
            await run(connections[0], "CREATE INDEX CONCURRENTLY ON t (more)")
            for case, statement in _OF_THE_STRAY.items():
                error = await failure(admins[0], statement)
                assert error.sqlstate == "0A000", case
                assert "on this node only" in str(error), case
            await run(connections[1], "CREATE TYPE e AS ENUM ('a'); ALTER TYPE e RENAME TO f")
            await caught_up(connections)  # this may concern any table
            assert await run(admins[0], "SELECT setval('stray_id_seq', 5)") == [(5,)]
            await run(admins[0], "DROP INDEX CONCURRENTLY another")
            await run(admins[0], "SET session_replication_role = replica")
            await run(admins[0], "SELECT pgherd.reconcile()")  # as a new release does
            await run(admins[0], "RESET session_replication_role")
            await run(admins[0], "INSERT INTO stray VALUES (1, 1)")
            await run(connections[0], "INSERT INTO t VALUES (1, 1)")
            assert await same_everywhere(connections, "TABLE t") == [(1, 1)]
            await run(admins[0], "DROP INDEX of_the_stray; DROP STATISTICS of_it")
            await run(admins[0], "DROP TABLE stray")
        finally:
            await run(admins[0], "SET session_replication_role = replica")
            await run(admins[0], "DROP TABLE IF EXISTS stray CASCADE")
        await assert_same_schema(connections, schema)


_CONCERNED = """
SELECT r.name FROM pgherd.capture_rows(pg_current_xact_id()) c,
       jsonb_array_elements_text(c.recs[1]::jsonb -> 'rels') AS r(name)
 WHERE c.tab = '""' AND c.recs <> '{}' ORDER BY 1"""


async def test_a_new_partition_concerns_no_other_one_unless_it_has_something_of_its_own(
    herd: LocalHerd, connections: list[Connection], schema: str
) -> None:
    await run(
        connections[0],
        "CREATE TABLE r (id int, k int, v text, PRIMARY KEY (id, k)) PARTITION BY LIST (k);"
        "CREATE TABLE p1 PARTITION OF r FOR VALUES IN (1)",
    )
    async with superusers(herd, schema) as admins:
        await run(admins[0], "BEGIN; CREATE TABLE p2 PARTITION OF r FOR VALUES IN (2)")
        assert await run(admins[0], _CONCERNED) == [(f"{schema}.p2",), (f"{schema}.r",)]
        await run(admins[0], "COMMIT; BEGIN")
        await run(admins[0], "CREATE TABLE p3 PARTITION OF r (UNIQUE (v)) FOR VALUES IN (3)")
        assert (f"{schema}.p1",) in await run(admins[0], _CONCERNED)
        await run(admins[0], "COMMIT")
        await spread(admins, 0, "INSERT INTO r VALUES (1, 1, 'a'), (2, 2, 'b'), (3, 3, 'c')")
        await spread(admins, 1, "UPDATE r SET k = 2 WHERE id = 1; DELETE FROM p2 WHERE id = 2")
        await run(admins[2], "UPDATE r SET k = 3 WHERE id = 1; INSERT INTO p2 VALUES (4, 2, 'd')")
        rows = await same_everywhere(admins, "SELECT tableoid::regclass::text, * FROM r ORDER BY 2")
        assert rows == [("p3", 1, 3, "a"), ("p3", 3, 3, "c"), ("p2", 4, 2, "d")]
        await assert_same_schema(admins, schema)


async def test_who_writes_a_parent_while_its_child_leaves_writes_on_all_members(
    connections: list[Connection], schema: str
) -> None:
    await run(
        connections[0],
        "CREATE TABLE ih (a int PRIMARY KEY, b text);"
        "CREATE TABLE ih1 (z int, PRIMARY KEY (a)) INHERITS (ih);"
        "INSERT INTO ih1 VALUES (30, 'c', 1), (31, 'c', 1), (32, 'c', 1)",
    )
    async with another(connections[0], schema) as writer, another(connections[0], schema) as seen:
        await run(connections[0], "BEGIN; ALTER TABLE ih1 NO INHERIT ih")
        deletes = asyncio.create_task(run(writer, "DELETE FROM ih WHERE a = 30"))
        waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'ih1'::regclass"
        await wait_until_async(lambda: run(seen, waits), lambda found: found == [(1,)])
        await run(connections[0], "COMMIT")
        async with in_time():
            await deletes
    await run(connections[1], "UPDATE ih1 SET b = 'd' WHERE a = 31; DELETE FROM ih1 WHERE a = 32")
    rows = await same_everywhere(connections, "SELECT a, b FROM ih1 ORDER BY a")
    assert (31, "d") in rows and (32, "c") not in rows
    await assert_same_schema(connections, schema)


@pytest.mark.parametrize(
    "table",
    [
        "CREATE TABLE t (x int PRIMARY KEY CHECK (f(x) > 0))",
        "CREATE DOMAIN d AS int CHECK (f(VALUE) > 0); CREATE TABLE t (x d PRIMARY KEY)",
        "CREATE TABLE t (x int PRIMARY KEY, y int GENERATED ALWAYS AS (1 / f(x)) STORED)",
        "CREATE FUNCTION g(int) RETURNS int IMMUTABLE LANGUAGE sql SET search_path = pg_catalog"
        " RETURN f($1); CREATE TABLE t (x int PRIMARY KEY CHECK (g(x) > 0))",
        "CREATE FUNCTION g(x int) RETURNS int IMMUTABLE LANGUAGE plpgsql SET search_path = {schema}"
        " AS 'BEGIN RETURN f(x); END'; CREATE TABLE t (x int PRIMARY KEY CHECK (g(x) > 0))",
    ],
)
async def test_a_function_that_tables_check_their_rows_by_changes_beside_their_writers(
    connections: list[Connection], schema: str, herd: LocalHerd, table: str
) -> None:
    function = (
        "FUNCTION f(int) RETURNS int IMMUTABLE LANGUAGE sql SET search_path = pg_catalog RETURN"
    )
    async with superusers(herd, schema) as admins, another(connections[1], schema) as writer:
        made = table.format(schema=schema)
        await spread(admins, 0, f"CREATE {function} 1; {made}; GRANT ALL ON t TO PUBLIC")
        await run(writer, "BEGIN; INSERT INTO t VALUES (5)")
        await run(admins[0], f"CREATE OR REPLACE {function} 0")
        assert (await failure(writer, "COMMIT")).sqlstate in _LOST
    assert await same_everywhere(connections, "SELECT count(*) FROM t") == [(0,)]
    await assert_same_schema(connections, schema)


async def test_a_child_that_leaves_becomes_no_partition_in_the_same_transaction(
    connections: list[Connection], schema: str
) -> None:
    """Who waits to write the parent goes on to write the child as one."""
    await run(
        connections[0],
        "CREATE TABLE ih (a int NOT NULL, b text);"
        "CREATE TABLE ih1 (PRIMARY KEY (a)) INHERITS (ih); INSERT INTO ih1 VALUES (30, 'c');"
        "CREATE TABLE p (a int, b text, PRIMARY KEY (a)) PARTITION BY RANGE (a)",
    )
    leaves = "ALTER TABLE ih1 NO INHERIT ih"
    attach = "ALTER TABLE p ATTACH PARTITION ih1 FOR VALUES FROM (0) TO (100)"
    await assert_refused(connections, schema, f"BEGIN; {leaves}; {attach}; COMMIT")
    await run(connections[0], leaves)
    await run(connections[0], attach)
    await run(connections[1], "DELETE FROM p WHERE a = 30")
    assert await same_everywhere(connections, "TABLE ih1") == []


@pytest.mark.parametrize(
    "drop", ["DROP COLLATION {0}_more.ci CASCADE", "DROP SCHEMA {0}_more CASCADE"]
)
async def test_a_table_is_written_after_its_index_went_with_something_else(
    connections: list[Connection], schema: str, drop: str
) -> None:
    await run(
        connections[0],
        f"CREATE SCHEMA {schema}_more; CREATE COLLATION {schema}_more.ci"
        " (provider = icu, locale = 'und-u-ks-level2', deterministic = false);"
        "CREATE TABLE t (id int PRIMARY KEY, name text);"
        f"CREATE UNIQUE INDEX tn ON t (name COLLATE {schema}_more.ci)",
    )
    await run(connections[0], drop.format(schema))
    await run(connections[0], f"DROP SCHEMA IF EXISTS {schema}_more")
    await spread(connections, 0, "INSERT INTO t VALUES (1, 'a')")
    await run(connections[1], "INSERT INTO t VALUES (2, 'A')")
    rows = await same_everywhere(connections, "SELECT * FROM t ORDER BY id")
    assert rows == [(1, "a"), (2, "A")]


async def test_a_new_column_has_the_same_values_everywhere_also_by_the_default_of_its_domain(
    connections: list[Connection], schema: str
) -> None:
    await run(
        connections[0],
        "CREATE DOMAIN stamp AS timestamptz DEFAULT now(); CREATE DOMAIN five AS int DEFAULT 5;"
        "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)",
    )
    await assert_refused(connections, schema, "ALTER TABLE t ADD COLUMN at stamp")
    await run(connections[0], "ALTER TABLE t ADD COLUMN n five")
    assert await same_everywhere(connections, "TABLE t") == [(1, 5)]


async def test_a_new_column_has_the_same_values_everywhere_also_beside_a_rewrite(
    connections: list[Connection], schema: str
) -> None:
    await run(
        connections[0],
        "CREATE DOMAIN stamp AS timestamptz DEFAULT now();"
        "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)",
    )
    uncertain = ("timestamptz NOT NULL DEFAULT now()", "stamp", "int GENERATED ALWAYS AS IDENTITY")
    for column in uncertain:
        rewrites = f"ALTER TABLE t ALTER id TYPE bigint, ADD COLUMN at {column}"
        await assert_refused(connections, schema, rewrites)
    await run(
        connections[0],
        "CREATE DOMAIN email AS text CHECK (VALUE ~ '@');"
        "CREATE DOMAIN five AS int DEFAULT 5 CHECK (VALUE > 0);"
        "ALTER TABLE t ADD mail email, ADD n five;"
        "ALTER TABLE t ADD a int DEFAULT 7, ADD g int GENERATED ALWAYS AS (id * 2) STORED;"
        "ALTER TABLE t ALTER a TYPE bigint, ADD b int DEFAULT 8",
    )
    assert await same_everywhere(connections, "TABLE t") == [(1, None, 5, 7, 2, 8)]


async def test_rows_are_applied_though_nobody_may_call_what_they_call(
    herd: LocalHerd, schema: str
) -> None:
    async with superusers(herd, schema) as admins:
        await run(
            admins[0],
            "CREATE TABLE t (id int PRIMARY KEY, v text CHECK (upper(v) <> ''),"
            " g int GENERATED ALWAYS AS (id + 1) STORED); CREATE INDEX ON t (lower(v))",
        )
        called = "pg_catalog.lower(text), pg_catalog.upper(text), pg_catalog.int4pl(int, int)"
        await run(admins[0], f"REVOKE EXECUTE ON FUNCTION {called} FROM PUBLIC")
        try:
            await run(admins[0], "INSERT INTO t VALUES (1, 'a')")
            assert await same_everywhere(admins, "TABLE t") == [(1, "a", 2)]
        finally:
            await run(admins[0], f"GRANT EXECUTE ON FUNCTION {called} TO PUBLIC")


async def test_a_table_of_any_name_keeps_its_triggers(
    connections: list[Connection], schema: str
) -> None:
    name = '"a FOR EACH ROW b"'
    await run(connections[0], f"CREATE TABLE {name} (id int PRIMARY KEY)")
    await run(
        connections[0],
        "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
    )
    event = f"AFTER INSERT ON {name} FOR EACH STATEMENT EXECUTE FUNCTION f()"
    await run(connections[0], f"CREATE TRIGGER told {event}")
    await run(connections[0], f"INSERT INTO {name} VALUES (1)")
    assert await same_everywhere(connections, f"TABLE {name}") == [(1,)]
    await assert_same_schema(connections, schema)


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE child ADD FOREIGN KEY (r) REFERENCES parent",
        "CREATE TRIGGER told AFTER INSERT ON parent FOR EACH STATEMENT EXECUTE FUNCTION f()",
        "CREATE UNIQUE INDEX ON parent (v)",
    ],
    ids=["a foreign key", "a trigger", "an index"],
)
async def test_a_command_locks_out_no_reader_whom_postgresql_lets_in(
    connections: list[Connection], schema: str, statement: str
) -> None:
    await run(
        connections[0],
        "CREATE TABLE parent (id int PRIMARY KEY, v int);"
        "CREATE TABLE child (id int PRIMARY KEY, r int);"
        "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
    )
    await run(connections[0], f"BEGIN; {statement}")
    locks = "SELECT relation::regclass::text, mode FROM pg_locks WHERE pid = pg_backend_pid()"
    held = await run(
        connections[0], f"{locks} AND relation IN ('parent'::regclass, 'child'::regclass)"
    )
    await run(connections[0], "COMMIT")
    assert held
    assert {mode for _, mode in held}.isdisjoint({"AccessExclusiveLock", "ExclusiveLock"}), held
    await assert_same_schema(connections, schema)


async def test_inheritance_children_follow_the_mark_of_their_table(
    connections: list[Connection], schema: str
) -> None:
    await spread(
        connections,
        0,
        "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (PRIMARY KEY (id)) INHERITS (a);"
        "SELECT pgherd.set_local('a'); CREATE TABLE c (PRIMARY KEY (id)) INHERITS (b)",
    )
    for number, connection in enumerate(connections):
        await run(connection, f"INSERT INTO a VALUES ({number}); INSERT INTO b VALUES ({number})")
        await run(connection, f"INSERT INTO c VALUES ({number})")
        assert await run(connection, "SELECT id FROM a") == [(number,)] * 3
    await spread(connections, 0, "DELETE FROM a; SELECT pgherd.set_replicated('a')")
    await run(connections[1], "INSERT INTO c VALUES (7)")
    assert await same_everywhere(connections, "SELECT id FROM a") == [(7,)]


async def test_temporary_objects_of_a_member_give_way_to_commands(
    connections: list[Connection], schema: str
) -> None:
    await spread(
        connections,
        0,
        "CREATE TYPE e AS ENUM ('a'); CREATE TABLE t (id int PRIMARY KEY, v int, w e)",
    )
    await run(connections[1], "CREATE TEMP VIEW tv AS SELECT v FROM t")
    await run(connections[1], "CREATE TEMP TABLE tt (a e); CREATE TEMP TABLE own (id int)")
    await run(
        connections[1],
        "CREATE STATISTICS pg_temp.ts ON id, v FROM t;"
        "CREATE FUNCTION pg_temp.tf(e) RETURNS e LANGUAGE sql RETURN $1;"
        "CREATE AGGREGATE pg_temp.ta(*) (SFUNC = pg_temp.tf, STYPE = e)",
    )
    await run(connections[2], "BEGIN; CREATE TEMP VIEW tv AS SELECT w FROM t; SELECT * FROM tv")
    await run(connections[0], "ALTER TABLE t DROP COLUMN v; ALTER TABLE t DROP COLUMN w")
    await run(connections[0], "DROP TYPE e")
    await caught_up(connections[:2])
    assert (await failure(connections[1], "SELECT * FROM tv")).sqlstate == "42P01"
    await run(connections[1], "SELECT * FROM own")
    with contextlib.suppress(psycopg.Error):  # its session was in the way
        await run(connections[2], "ROLLBACK")


async def test_a_setval_of_null_does_nothing_on_any_member(
    connections: list[Connection], schema: str
) -> None:
    await run(
        connections[0], "CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v int)"
    )
    await spread(
        connections, 0, "INSERT INTO t (v) VALUES (1); SELECT pgherd.setval('t_id_seq', NULL)"
    )
    await run(connections[1], "INSERT INTO t (v) VALUES (2)")
    assert await same_everywhere(connections, "SELECT v FROM t ORDER BY v") == [(1,), (2,)]
