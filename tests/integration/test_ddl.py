"""DDL done on one member is done on all, at the same place in the order."""

import asyncio

import psycopg
import pytest

from .localherd import LocalHerd
from .members import (
    Connection,
    assert_same_schema,
    caught_up,
    dump,
    failure,
    once,
    run,
    same_everywhere,
    spread,
    superusers,
)

pytestmark = pytest.mark.usefixtures("schema_is_everywhere")

#: One line each of the table "replicated" in docs/ddl.md: what is there before, what is done.
REPLICATED = {
    "create_table": ("", "CREATE TABLE t (id int PRIMARY KEY, x text DEFAULT 'a', CHECK (id > 0))"),
    "create_table_serial_identity": (
        "",
        "CREATE TABLE t (id serial PRIMARY KEY, n bigint GENERATED ALWAYS AS IDENTITY)",
    ),
    "create_table_like": (
        "CREATE TABLE p (id serial PRIMARY KEY, x text NOT NULL DEFAULT 'x')",
        "CREATE TABLE t (LIKE p INCLUDING ALL)",
    ),
    "create_table_as": ("", "CREATE TABLE t AS SELECT 1 AS id, 'x'::varchar(5) COLLATE \"C\" AS x"),
    "create_table_as_options": ("", "CREATE TABLE t WITH (fillfactor = 70) AS SELECT 1 AS id"),
    "create_unlogged_table": ("", "CREATE UNLOGGED TABLE t (id serial PRIMARY KEY, x text)"),
    "select_into": ("", "SELECT 1 AS id, now() AS at INTO t"),
    "create_table_inherits": (
        "CREATE TABLE p (id int PRIMARY KEY)",
        "CREATE TABLE t () INHERITS (p)",
    ),
    "partitions": (
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE t PARTITION OF p FOR VALUES FROM (1) TO (10)",
    ),
    "attach_partition": (
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE t (id int PRIMARY KEY)",
        "ALTER TABLE p ATTACH PARTITION t FOR VALUES FROM (1) TO (10)",
    ),
    "detach_partition": (
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE t PARTITION OF p FOR VALUES FROM (1) TO (10)",
        "ALTER TABLE p DETACH PARTITION t",
    ),
    "add_column": (
        "CREATE TABLE t (id int PRIMARY KEY)",
        "ALTER TABLE t ADD x int DEFAULT 5, ADD y text",
    ),
    "key_of_an_empty_table": (
        "CREATE TABLE t (x text)",
        "ALTER TABLE t ADD id serial PRIMARY KEY, ADD y uuid DEFAULT gen_random_uuid() UNIQUE",
    ),
    "drop_column": ("CREATE TABLE t (id int PRIMARY KEY, x int)", "ALTER TABLE t DROP COLUMN x"),
    "column_type": (
        "CREATE TABLE t (id int PRIMARY KEY, x text); INSERT INTO t VALUES (1, ' 5 ')",
        "ALTER TABLE t ALTER x TYPE int USING trim(x)::int",
    ),
    "column_types_under_an_index": (
        "CREATE TABLE t (id int PRIMARY KEY, x text); INSERT INTO t VALUES (1, '5')",
        "ALTER TABLE t ALTER x TYPE int USING x::int, ALTER id TYPE bigint",
    ),
    "rename_column": (
        "CREATE TABLE t (id int PRIMARY KEY, x int)",
        'ALTER TABLE t RENAME x TO "Übung"',
    ),
    "rename_table": ("CREATE TABLE t (id int PRIMARY KEY)", 'ALTER TABLE t RENAME TO "T 2"'),
    "set_schema": (
        "CREATE TABLE t (id int PRIMARY KEY)",
        "ALTER TABLE t SET SCHEMA public; DROP TABLE public.t",
    ),
    "foreign_key": (
        "CREATE TABLE p (id int PRIMARY KEY); CREATE TABLE t (id int PRIMARY KEY, p int)",
        "ALTER TABLE t ADD FOREIGN KEY (p) REFERENCES p ON DELETE CASCADE",
    ),
    "exclusion": (
        "",
        "CREATE TABLE t (id int PRIMARY KEY, r int4range, EXCLUDE USING gist (r WITH &&))",
    ),
    "drop_table_cascade": (
        "CREATE TABLE p (id int PRIMARY KEY);"
        "CREATE TABLE t (id int PRIMARY KEY, p int REFERENCES p)",
        "DROP TABLE p CASCADE",
    ),
    "create_index": (
        "CREATE TABLE t (id int PRIMARY KEY, x text)",
        "CREATE UNIQUE INDEX ON t (lower(x)) WHERE id > 0",
    ),
    "drop_index": ("CREATE TABLE t (id int PRIMARY KEY); CREATE INDEX i ON t (id)", "DROP INDEX i"),
    "rename_index": (
        "CREATE TABLE t (id int PRIMARY KEY)",
        "ALTER INDEX t_pkey RENAME TO key_of_t",
    ),
    "statistics": (
        "CREATE TABLE t (id int PRIMARY KEY, x int)",
        "CREATE STATISTICS s ON id, x FROM t",
    ),
    "sequence": ("", "CREATE SEQUENCE s INCREMENT 3 START 10 MAXVALUE 100000"),
    "drop_sequence": ("CREATE SEQUENCE s", "DROP SEQUENCE s"),
    "view": ("CREATE TABLE t (id int PRIMARY KEY)", "CREATE VIEW v AS SELECT * FROM t"),
    "materialized_view": (
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE MATERIALIZED VIEW v AS SELECT * FROM t",
    ),
    "function": (
        "",
        "CREATE FUNCTION f() RETURNS int LANGUAGE sql BEGIN ATOMIC SELECT 1; SELECT 2; END",
    ),
    "procedure": ("", "CREATE PROCEDURE f() LANGUAGE plpgsql AS $$ BEGIN NULL; END; $$"),
    "aggregate": ("", "CREATE AGGREGATE f (int) (SFUNC = int4pl, STYPE = int)"),
    "operator": ("", "CREATE OPERATOR === (LEFTARG = int, RIGHTARG = int, FUNCTION = int4eq)"),
    "enum": ("", "CREATE TYPE e AS ENUM ('a', 'b')"),
    "enum_value": ("CREATE TYPE e AS ENUM ('a', 'b')", "ALTER TYPE e ADD VALUE 'c' BEFORE 'b'"),
    "composite": ("", "CREATE TYPE c AS (a int, b text)"),
    "range": ("", "CREATE TYPE r AS RANGE (SUBTYPE = float8)"),
    "domain": ("", "CREATE DOMAIN d AS int CHECK (VALUE > 0)"),
    "alter_domain": ("CREATE DOMAIN d AS int", "ALTER DOMAIN d SET DEFAULT 7"),
    "collation": ("", "CREATE COLLATION c (provider = icu, locale = 'und', deterministic = false)"),
    "text_search": ("", "CREATE TEXT SEARCH CONFIGURATION c (COPY = simple)"),
    "trigger": (
        "CREATE TABLE t (id int PRIMARY KEY);"
        "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$",
        "CREATE TRIGGER a BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION f()",
    ),
    "disable_own_trigger": (
        "CREATE TABLE t (id int PRIMARY KEY);"
        "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$;"
        "CREATE TRIGGER a BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION f()",
        "ALTER TABLE t DISABLE TRIGGER a",
    ),
    "rule": (
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE RULE r AS ON DELETE TO t DO INSTEAD NOTHING",
    ),
    "policy": (
        "CREATE TABLE t (id int PRIMARY KEY)",
        "ALTER TABLE t ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON t USING (id > 0)",
    ),
    "comment": ("CREATE TABLE t (id int PRIMARY KEY)", "COMMENT ON TABLE t IS 'it''s; here'"),
    "grant": ("CREATE TABLE t (id int PRIMARY KEY)", "GRANT SELECT ON t TO PUBLIC"),
    "revoke": (
        "CREATE TABLE t (id int PRIMARY KEY); GRANT SELECT ON t TO PUBLIC",
        "REVOKE SELECT ON t FROM PUBLIC",
    ),
    "unqualified_names": ("", "CREATE TABLE t (id int PRIMARY KEY); CREATE VIEW v AS TABLE t"),
    "date_under_settings": (
        "SET DateStyle = 'SQL, DMY'",
        "CREATE TABLE t (id int PRIMARY KEY, d date DEFAULT '01/02/2024')",
    ),
}


@pytest.mark.family(every=6)
@pytest.mark.parametrize("case", REPLICATED)
async def test_command_gives_the_same_catalog_on_every_member(
    connections: list[Connection], schema: str, case: str
) -> None:
    before, statement = REPLICATED[case]
    if before:
        await run(connections[1], before)
    empty = await asyncio.to_thread(dump, connections[1], schema)
    await run(connections[1], statement)
    assert (await assert_same_schema(connections, schema) != empty) or case in ("set_schema",)


async def test_table_takes_writes_everywhere_as_soon_as_it_exists(
    connections: list[Connection], schema: str
) -> None:
    await spread(connections, 0, "CREATE TABLE t (id serial PRIMARY KEY, x int)")
    for number, connection in enumerate(connections):
        await run(connection, f"INSERT INTO t (x) VALUES ({number})")
        await caught_up(connections)
    assert await same_everywhere(connections, "SELECT x FROM t ORDER BY x") == [(0,), (1,), (2,)]


async def test_rows_and_commands_of_one_transaction_keep_their_order(
    connections: list[Connection], schema: str
) -> None:
    await run(
        connections[2],
        """
        BEGIN;
        CREATE TABLE t (id int PRIMARY KEY, x text);
        INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c');
        UPDATE t SET x = 'a2' WHERE id = 1;
        DELETE FROM t WHERE id = 3;
        ALTER TABLE t ADD y int DEFAULT 5;
        UPDATE t SET x = x || y, y = id;
        UPDATE t SET y = y + 100 WHERE id = 2;
        ALTER TABLE t DROP COLUMN x;
        ALTER TABLE t RENAME TO u;
        INSERT INTO u VALUES (4, 4);
        COMMIT
        """,
    )
    await assert_same_schema(connections, schema)
    rows = await same_everywhere(connections, "SELECT * FROM u ORDER BY id")
    assert rows == [(1, 1), (2, 102), (4, 4)]


async def test_c22_create_table_as_ships_the_rows_it_made(
    connections: list[Connection], schema: str
) -> None:
    await run(
        connections[0],
        "CREATE TABLE t AS SELECT i AS id, random() AS r, clock_timestamp() AS at, NULL::int[] AS n"
        " FROM generate_series(1, 2500) i",
    )
    rows = await same_everywhere(connections, "SELECT * FROM t ORDER BY id")
    assert len(rows) == 2500
    await spread(connections, 0, "ALTER TABLE t ADD PRIMARY KEY (id)")
    await run(connections[1], "UPDATE t SET r = 0 WHERE id = 7")
    assert await same_everywhere(connections, "SELECT id FROM t WHERE r = 0") == [(7,)]


async def test_commands_inside_functions_and_blocks(
    connections: list[Connection], schema: str
) -> None:
    await run(
        connections[1],
        """
        CREATE TABLE a (id int PRIMARY KEY);
        DO $$
        DECLARE i int;
        BEGIN
            CREATE TABLE b (id int PRIMARY KEY, x text DEFAULT '"
PL/pgSQL function f() line 1 at SQL statement');
            FOR i IN 1..3 LOOP
                EXECUTE format('CREATE TABLE c%s (id int PRIMARY KEY)', i);
            END LOOP;
        END $$;
        CREATE TABLE d (id int PRIMARY KEY);
        """,
    )
    await assert_same_schema(connections, schema)
    tables = await same_everywhere(
        connections, f"SELECT tablename FROM pg_tables WHERE schemaname = '{schema}' ORDER BY 1"
    )
    assert [name for (name,) in tables] == ["a", "b", "c1", "c2", "c3", "d"]


async def test_what_a_savepoint_took_back_is_not_replicated(
    connections: list[Connection], schema: str
) -> None:
    for statement in (
        "BEGIN",
        "CREATE TABLE a (id int PRIMARY KEY)",
        "SAVEPOINT s",
        "CREATE TABLE b (id int PRIMARY KEY)",
        "INSERT INTO b VALUES (1)",
        "ROLLBACK TO s",
        "CREATE TABLE c (id int PRIMARY KEY)",
        "INSERT INTO c VALUES (1)",
        "COMMIT",
    ):
        await run(connections[0], statement)
    await assert_same_schema(connections, schema)
    tables = await same_everywhere(
        connections, f"SELECT tablename FROM pg_tables WHERE schemaname = '{schema}' ORDER BY 1"
    )
    assert tables == [("a",), ("c",)]


async def test_several_transactions_in_one_message(
    connections: list[Connection], schema: str
) -> None:
    await run(
        connections[0],
        "CREATE TABLE a (id int PRIMARY KEY); COMMIT; BEGIN; CREATE VIEW b AS TABLE a; ROLLBACK;"
        " BEGIN; CREATE VIEW c AS TABLE a; COMMIT; CREATE SEQUENCE d",
    )
    assert "CREATE VIEW" in await assert_same_schema(connections, schema)


async def test_conflicting_commands_of_two_members_leave_all_equal(
    connections: list[Connection], schema: str, herd: LocalHerd
) -> None:
    results = await asyncio.gather(
        *(
            once(connection, f"CREATE TABLE t (id int PRIMARY KEY, from_{number} int)")
            for number, connection in enumerate(connections)
        ),
        return_exceptions=True,
    )
    assert sum(not isinstance(result, BaseException) for result in results) == 1
    async with superusers(herd, schema) as admins:  # the losers' sessions may have been ended
        assert "from_" in await assert_same_schema(admins, schema)


async def test_c16_row_captured_before_a_unique_index_does_not_pass_it(
    connections: list[Connection], schema: str
) -> None:
    await spread(connections, 0, "CREATE TABLE t (id int PRIMARY KEY, x int)")
    await spread(connections, 0, "INSERT INTO t VALUES (1, 7)")
    await run(connections[1], "BEGIN; INSERT INTO t VALUES (2, 7)")
    await run(connections[0], "CREATE UNIQUE INDEX ON t (x)")
    # The applier needs the table and ends the transaction, or certification does.
    with pytest.raises(psycopg.Error) as refusal:
        await run(connections[1], "COMMIT")
    assert refusal.value.sqlstate in ("40001", "57P01", None)


async def test_command_passes_while_others_write_other_tables(
    connections: list[Connection], schema: str
) -> None:
    await spread(connections, 0, "CREATE TABLE busy (id int PRIMARY KEY, x int)")
    await run(connections[1], "INSERT INTO busy VALUES (1, 0)")
    stop = asyncio.Event()

    async def keep_writing() -> None:
        while not stop.is_set():
            await run(connections[1], "UPDATE busy SET x = x + 1")

    writer = asyncio.create_task(keep_writing())
    try:
        for number in range(5):
            await run(connections[0], f"CREATE TABLE t{number} (id serial PRIMARY KEY)")
            await run(connections[0], f"CREATE INDEX ON t{number} (id)")
    finally:
        stop.set()
        await writer
    await assert_same_schema(connections, schema)


_KEPT = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgherd ddl'"
    " AND state = 'idle'"
)


async def test_what_one_command_brings_along_does_not_reach_the_next(
    herd: LocalHerd, connections: list[Connection], schema: str
) -> None:
    """A session that executes the commands of others is kept for the next one."""
    first = connections[0]
    await run(first, "SET TimeZone = 'Asia/Tokyo'; SET DateStyle = 'German'")
    await run(
        first, "CREATE TABLE a (id int PRIMARY KEY, at timestamptz DEFAULT '01.02.2020 09:00')"
    )
    await run(first, "RESET ALL")
    await run(first, f"SET search_path = {schema}")
    await run(
        first, "CREATE TABLE b (id int PRIMARY KEY, at timestamptz DEFAULT '2020-01-02 09:00')"
    )
    await run(first, "INSERT INTO a VALUES (1); INSERT INTO b VALUES (1)")
    await assert_same_schema(connections, schema)
    await same_everywhere(connections, "TABLE a")
    await same_everywhere(connections, "TABLE b")


async def test_a_kept_session_that_is_lost_is_replaced(
    herd: LocalHerd, connections: list[Connection], schema: str
) -> None:
    await spread(connections, 0, "CREATE TABLE a (id int PRIMARY KEY)")
    async with superusers(herd, schema) as admins:
        ended = [row for admin in admins[1:] for row in await run(admin, _KEPT)]
        assert ended == [(True,), (True,)]
    await run(connections[0], "CREATE TABLE b (id int PRIMARY KEY)")
    await assert_same_schema(connections, schema)


async def test_temporary_objects_stay_local(connections: list[Connection], schema: str) -> None:
    await run(
        connections[0],
        "CREATE TEMP TABLE scratch (id int PRIMARY KEY, x text); CREATE INDEX ON scratch (x);"
        "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO scratch VALUES (1, 'a');"
        "GRANT SELECT ON scratch TO PUBLIC; ALTER TABLE scratch ADD y int; DROP TABLE scratch",
    )
    await assert_same_schema(connections, schema)


async def test_commands_without_effect_are_nothing(
    connections: list[Connection], schema: str
) -> None:
    await run(connections[0], "CREATE TABLE t (id int PRIMARY KEY)")
    await run(
        connections[0],
        "CREATE TABLE IF NOT EXISTS t (id int); DROP TABLE IF EXISTS nowhere; CREATE SEQUENCE s",
    )
    await assert_same_schema(connections, schema)


async def test_own_commands_are_seen_by_no_event_trigger_of_a_superuser(
    connections: list[Connection], schema: str, herd: LocalHerd
) -> None:
    make = (
        "SET session_replication_role = replica;"
        "CREATE FUNCTION public.tell() RETURNS event_trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE NOTICE 'seen: %', TG_TAG; END $$;"
        "CREATE EVENT TRIGGER watcher ON ddl_command_end EXECUTE FUNCTION public.tell()"
    )
    remove = (
        "SET session_replication_role = replica;"
        "DROP EVENT TRIGGER watcher; DROP FUNCTION public.tell()"
    )
    seen: list[str | None] = []
    connections[0].add_notice_handler(lambda notice: seen.append(notice.message_primary))
    async with superusers(herd, schema) as admins:
        await run(admins[0], make)
        try:
            await run(connections[0], "CREATE TABLE t (id serial PRIMARY KEY, x text)")
            await run(connections[0], "ALTER TABLE t ADD y int")
            await run(connections[0], "SELECT setval('t_id_seq', 9)")
        finally:
            await run(admins[0], remove)
    assert seen == ["seen: CREATE TABLE", "seen: ALTER TABLE"]
    await assert_same_schema(connections, schema)


async def test_nobody_but_a_superuser_can_pass_his_command_off_as_replication_s_own(
    connections: list[Connection],
) -> None:
    error = await failure(connections[0], "SET backtrace_functions = pgherd")
    assert error.sqlstate == "42501"


async def test_a_table_changed_in_each_way_is_captured_as_it_is_then(
    connections: list[Connection], schema: str
) -> None:
    """The functions are made anew where only they differ, the triggers where these do."""
    await run(
        connections[0], "CREATE TABLE p (id int PRIMARY KEY); CREATE TABLE t (id int, x text)"
    )
    rows = "INSERT INTO t (id, x) VALUES ({0}, 'a'); UPDATE t SET x = x || '{0}' WHERE id = {0}"
    for number, change in enumerate(
        (
            "ALTER TABLE t ADD PRIMARY KEY (id)",
            "ALTER TABLE t ADD y int DEFAULT 3",
            "CREATE UNIQUE INDEX u ON t (x)",
            "ALTER TABLE t ADD FOREIGN KEY (y) REFERENCES p INITIALLY DEFERRED NOT VALID",
            "ALTER TABLE t ALTER x TYPE varchar(20)",
            "DROP INDEX u",
            "ALTER TABLE t DROP COLUMN y",
            "ALTER TABLE t DROP CONSTRAINT t_pkey",
            "ALTER TABLE t RENAME TO s; ALTER TABLE s RENAME TO t",
        )
    ):
        await run(connections[0], f"INSERT INTO p VALUES ({number}), ({number + 100})")
        await run(connections[0], change)
        await spread(connections, 0, rows.format(number))
        await spread(connections, 1, rows.format(number + 100))
    found = await same_everywhere(connections, "SELECT id, x FROM t ORDER BY id")
    assert len(found) == 18
    await assert_same_schema(connections, schema)


async def test_a_type_is_made_of_postgresqls_own_functions(
    admins: list[Connection], schema: str
) -> None:
    for statement in (
        "CREATE TYPE whole",
        "CREATE FUNCTION whole_in(cstring) RETURNS whole STRICT IMMUTABLE LANGUAGE internal"
        " AS 'int4in'",
        "CREATE FUNCTION whole_out(whole) RETURNS cstring STRICT IMMUTABLE LANGUAGE internal"
        " AS 'int4out'",
        "CREATE TYPE whole (INPUT = whole_in, OUTPUT = whole_out, LIKE = int4)",
        "CREATE CAST (int4 AS whole) WITHOUT FUNCTION",
        "CREATE TABLE t (id int PRIMARY KEY, x whole)",
        "INSERT INTO t VALUES (1, 7::whole), (2, '8')",
        "CREATE TYPE shell",
    ):
        await spread(admins, 0, statement)
    await spread(admins, 1, "UPDATE t SET x = '9' WHERE id = 2")
    found = await same_everywhere(admins, f"SELECT id, x::text FROM {schema}.t ORDER BY id")
    assert found == [(1, "7"), (2, "9")]
    await assert_same_schema(admins, schema)
    await spread(admins, 2, "DROP TYPE shell; DROP TYPE whole CASCADE")
    await assert_same_schema(admins, schema)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE UNLOGGED TABLE t (id int PRIMARY KEY)",
        "CREATE UNLOGGED TABLE t AS SELECT 1 AS id",
        "SELECT 1 AS id INTO UNLOGGED t",
        "CREATE UNLOGGED TABLE p (id int PRIMARY KEY);"
        " CREATE UNLOGGED TABLE t (id int REFERENCES p); INSERT INTO p VALUES (1)",
    ],
)
async def test_an_unlogged_table_becomes_an_ordinary_one(
    connections: list[Connection], schema: str, statement: str
) -> None:
    await spread(connections, 0, statement)
    found = "SELECT relpersistence::text FROM pg_class WHERE oid = 't'::regclass"
    assert await same_everywhere(connections, found) == [("p",)]
    await spread(connections, 1, "DELETE FROM t")
    await assert_same_schema(connections, schema)
    error = await failure(connections[2], "ALTER TABLE t SET UNLOGGED")
    assert error.sqlstate == "0A000"


async def test_what_a_session_has_for_itself_goes_with_what_it_depends_on(
    connections: list[Connection], schema: str
) -> None:
    await spread(connections, 0, "CREATE DOMAIN d AS int; CREATE TABLE t (id int, x d)")
    await run(connections[0], "CREATE TEMP TABLE own (id int, x d)")
    await spread(connections, 0, "DROP DOMAIN d CASCADE")
    assert await run(connections[0], "SELECT * FROM own") == []
    await assert_same_schema(connections, schema)
    error = await failure(connections[0], "DROP TABLE own, t")
    assert error.sqlstate == "0A000"


@pytest.mark.parametrize("tables", ["TABLE pn", "TABLE pn WHERE (b > 3)", "TABLES IN SCHEMA {}"])
async def test_a_publication_comes_before_or_after_who_writes_its_tables(
    connections: list[Connection], admins: list[Connection], schema: str, tables: str
) -> None:
    """Nobody may update rows of one without identity then, so the writer loses."""
    await spread(connections, 0, "CREATE TABLE pn (a int, b int); INSERT INTO pn VALUES (1, 1)")
    await run(connections[0], "BEGIN; UPDATE pn SET b = 5")
    await run(admins[1], f"CREATE PUBLICATION {schema} FOR {tables.format(schema)}")
    try:
        assert (await failure(connections[0], "COMMIT")).sqlstate == "40001"
        assert await same_everywhere(connections, "SELECT b FROM pn") == [(1,)]
    finally:
        await run(admins[1], f"DROP PUBLICATION {schema}")


async def test_a_publication_of_more_tables_leaves_the_writers_of_others_alone(
    connections: list[Connection], admins: list[Connection], schema: str
) -> None:
    """Dumps add the tables of a publication one by one, and pg_restore repeats nothing."""
    await spread(connections, 0, "CREATE TABLE pa (a int PRIMARY KEY); CREATE TABLE pb (a int)")
    await run(admins[1], f"CREATE PUBLICATION {schema}")
    try:
        await run(connections[0], "BEGIN; INSERT INTO pb VALUES (1)")
        await run(admins[1], f"ALTER PUBLICATION {schema} ADD TABLE {schema}.pa")
        await run(connections[0], "COMMIT")
        assert await same_everywhere(connections, "SELECT a FROM pb") == [(1,)]
    finally:
        await run(admins[1], f"DROP PUBLICATION {schema}")


async def test_a_replica_identity_is_dropped_before_or_after_who_writes_its_table(
    connections: list[Connection], admins: list[Connection], schema: str
) -> None:
    """PostgreSQL lets nobody update published rows from then on, so the writer loses."""
    await spread(
        connections,
        0,
        "CREATE TABLE ri (a int PRIMARY KEY, b int NOT NULL, c int);"
        "CREATE UNIQUE INDEX rj ON ri (b); ALTER TABLE ri REPLICA IDENTITY USING INDEX rj;"
        "ALTER INDEX rj RENAME TO ri_b; INSERT INTO ri VALUES (1, 1, 1)",
    )
    await run(admins[1], f"CREATE PUBLICATION {schema} FOR TABLE ri")
    try:
        await caught_up(connections)
        await run(connections[0], "BEGIN; UPDATE ri SET c = 5")
        await run(admins[1], "DROP INDEX ri_b")
        with pytest.raises(psycopg.Error) as lost:
            await run(connections[0], "COMMIT")
        # To certification, or to the applier, which needs the table.
        assert lost.value.sqlstate in ("40001", "57P01", None)
        assert await same_everywhere(connections[1:], "SELECT c FROM ri") == [(1,)]
    finally:
        await run(admins[1], f"DROP PUBLICATION {schema}")


async def test_a_key_that_others_refer_to_becomes_wider(
    connections: list[Connection], schema: str
) -> None:
    """In sessions that have changed such keys before, too."""
    await run(
        connections[0],
        "CREATE TABLE p (id int PRIMARY KEY, v int);"
        "CREATE TABLE k (id int PRIMARY KEY, p int REFERENCES p ON UPDATE CASCADE);"
        "INSERT INTO p VALUES (1, 0), (2, 1), (3, 2); INSERT INTO k VALUES (1, 1), (2, 2), (3, 3)",
    )
    for number, connection in enumerate(connections):
        await caught_up(connections)
        await run(connection, f"UPDATE p SET id = id + 10 WHERE v = {number}")
    await caught_up(connections)
    await run(
        connections[1], "ALTER TABLE p ALTER id TYPE bigint; ALTER TABLE k ALTER p TYPE bigint"
    )
    for number, connection in enumerate(connections):
        await caught_up(connections)
        await run(connection, f"UPDATE p SET id = id + 10000000000 WHERE v = {number}")
    await assert_same_schema(connections, schema)
    far = [(1, 10000000011), (2, 10000000012), (3, 10000000013)]
    assert await same_everywhere(connections, "SELECT id, p FROM k ORDER BY 1") == far


async def test_owner_is_whoever_was_the_current_role(
    connections: list[Connection], schema: str, herd: LocalHerd
) -> None:
    async with superusers(herd, schema) as admins:
        await run(admins[1], "SET ROLE app; CREATE TABLE a (id int PRIMARY KEY)")
        await run(
            admins[1],
            "RESET ROLE; CREATE TABLE b (id int PRIMARY KEY); ALTER TABLE b OWNER TO app;"
            "CREATE TABLE c (id int PRIMARY KEY)",
        )
        owners = await same_everywhere(
            admins,
            f"SELECT tablename, tableowner FROM pg_tables WHERE schemaname = '{schema}' ORDER BY 1",
        )
    assert owners == [("a", "app"), ("b", "app"), ("c", "postgres")]


@pytest.mark.parametrize(
    "command",
    ["ALTER TABLE t ADD CHECK (mine(id))", "ALTER TABLE t ALTER b TYPE bool USING mine(id)"],
)
async def test_a_function_of_an_ordinary_user_is_not_run_by_other_members(
    connections: list[Connection], schema: str, command: str
) -> None:
    await run(
        connections[0],
        """
        CREATE TABLE t (id int PRIMARY KEY, b int);
        INSERT INTO t VALUES (1);
        CREATE FUNCTION mine(i int) RETURNS bool IMMUTABLE LANGUAGE sql RETURN true;
        """,
    )
    assert (await failure(connections[0], command)).sqlstate == "0A000"
    await assert_same_schema(connections, schema)


async def test_extension_has_the_same_version_everywhere(
    connections: list[Connection], schema: str, herd: LocalHerd
) -> None:
    async with superusers(herd, schema) as admins:
        await run(admins[2], "CREATE EXTENSION fuzzystrmatch")
        try:
            versions = await same_everywhere(
                admins,
                "SELECT e.extversion, e.extnamespace::regnamespace::text"
                " FROM pg_extension e WHERE e.extname = 'fuzzystrmatch'",
            )
            assert [namespace for _, namespace in versions] == [schema]
        finally:
            await run(admins[2], "DROP EXTENSION fuzzystrmatch")


async def test_run_everywhere_creates_roles_without_sending_passwords(
    connections: list[Connection], schema: str, herd: LocalHerd
) -> None:
    role = f"role_{schema}"
    async with superusers(herd, schema) as admins:
        await run(
            admins[1], f"SELECT pgherd.run_everywhere('CREATE ROLE {role} LOGIN PASSWORD ''pw''')"
        )
        try:
            rows = await same_everywhere(
                admins, f"SELECT rolcanlogin, rolpassword FROM pg_authid WHERE rolname = '{role}'"
            )
            assert rows[0][0] is True
            assert rows[0][1].startswith("SCRAM-SHA-256$")
        finally:
            await run(admins[1], f"SELECT pgherd.run_everywhere('DROP ROLE {role}')")


async def test_local_table_keeps_its_rows_to_itself(
    connections: list[Connection], schema: str
) -> None:
    await spread(connections, 0, "CREATE TABLE t (id serial, x text); SELECT pgherd.set_local('t')")
    for number, connection in enumerate(connections):
        await run(connection, f"INSERT INTO t (x) VALUES ('{number}')")
    rows = [await run(connection, "SELECT id, x FROM t") for connection in connections]
    assert rows == [[(1, "0")], [(1, "1")], [(1, "2")]]
    await run(connections[0], "ALTER TABLE t RENAME TO u; ALTER TABLE u ADD y int")
    await assert_same_schema(connections, schema)
    await run(connections[2], "DELETE FROM u")
    await run(connections[2], "SELECT pgherd.set_replicated('u')")
    await spread(connections, 2, "ALTER TABLE u ADD PRIMARY KEY (id)")
    await run(connections[1], "INSERT INTO u (x) VALUES ('now everywhere')")
    assert await same_everywhere(connections, "SELECT x FROM u") == [("now everywhere",)]


async def test_a_partition_that_was_attached_with_its_keys_is_the_same_once_it_is_detached(
    admins: list[Connection], schema: str
) -> None:
    """So a dump makes partitions, and the member that was made from it detaches some."""
    await run(
        admins[0],
        "CREATE TABLE p (id int PRIMARY KEY, r int REFERENCES p) PARTITION BY RANGE (id);"
        "CREATE TABLE made PARTITION OF p FOR VALUES FROM (0) TO (9);"
        "CREATE TABLE attached (id int NOT NULL, r int);"
        "ALTER TABLE ONLY attached ADD CONSTRAINT pkey PRIMARY KEY (id);"
        "ALTER TABLE attached ADD CONSTRAINT p_r_fkey FOREIGN KEY (r) REFERENCES p;"
        "ALTER TABLE p ATTACH PARTITION attached FOR VALUES FROM (9) TO (19)",
    )
    for table in ("made", "attached"):
        await run(admins[0], f"ALTER TABLE p DETACH PARTITION {table}")
    lines = (
        "SELECT l.facts FROM pgherd.relation_lines(ARRAY['{}'::regclass::oid], 'none') l"
        " WHERE l.aspect = 'constraints' ORDER BY 1"
    )
    made = await run(admins[0], lines.format("made"))
    assert len(made) == 2
    assert await run(admins[0], lines.format("attached")) == made
    await assert_same_schema(admins, schema)
