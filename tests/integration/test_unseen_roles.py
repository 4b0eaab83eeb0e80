"""Roles, memberships, settings and privileges on the database, changed by plain commands.

PostgreSQL tells no event trigger of them. They are the same on all members all the same: a command
that follows takes them along, and the sidecar orders what no command follows.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from patience import in_time, wait_until_async
from psycopg.conninfo import make_conninfo

from .localherd import LocalHerd
from .members import (
    Connection,
    assert_same_roles,
    assert_same_schema,
    failure,
    run,
    superusers,
    unordered,
    until_same,
)
from .test_capture_off import metrics

# All that is shared of the roles whose names end with the test's, and of the database.
_SHARED = """
    SELECT n.key::text, (n.value - 'PASSWORD')::text, md5(n.value ->> 'PASSWORD')
      FROM pgherd.shared_now() n WHERE n.key::text LIKE '%{0}%' OR n.key[1] = 'base'
        OR n.key = '{{setting here,""}}' ORDER BY 1
"""


@pytest.fixture
async def admins(herd: LocalHerd, schema: str) -> AsyncIterator[list[Connection]]:
    """A superuser on each member; afterwards no role of the test is left, by plain commands."""
    async with superusers(herd, schema) as connections:
        yield connections
        await settled(connections)
        for connection in connections:
            await run(connection, "RESET ROLE; RESET search_path")
        own = f"SELECT quote_ident(rolname) FROM pg_roles WHERE rolname LIKE '%{schema}%'"
        for (name,) in await run(connections[0], own):
            await run(connections[0], f"DROP OWNED BY {name} CASCADE")
        for (name,) in await run(connections[0], own):
            await run(connections[0], f"DROP ROLE {name}")
        await until_same(connections, own, [])


async def settled(connections: list[Connection]) -> None:
    """Wait until no member has anything that is not ordered."""
    async with in_time():
        calm = 0
        while calm < 2:  # what was ordered after all had caught up, one has not applied yet
            calm = 0 if await unordered(connections) else calm + 1
            await asyncio.sleep(0.02)


async def shared(connections: list[Connection], schema: str) -> list[tuple[Any, ...]]:
    """What all members have, when nothing is left to order."""
    await settled(connections)
    answers = [await run(one, _SHARED.format(schema)) for one in connections]
    assert answers[1:] == answers[:-1]
    remembered = [
        await run(one, "SELECT key, value - 'PASSWORD' FROM pgherd.shared ORDER BY key")
        for one in connections
    ]
    assert remembered[1:] == remembered[:-1]
    failures = "SELECT key, reason FROM pgherd.shared_failures"
    assert [await run(one, failures) for one in connections] == [[]] * len(connections)
    return answers[0]


_SCRIPT = """
    CREATE ROLE a_{0} LOGIN PASSWORD 'secret' CONNECTION LIMIT 3 VALID UNTIL '2031-01-01';
    CREATE USER b_{0} CREATEROLE CREATEDB;
    CREATE GROUP "C {0}" NOINHERIT;
    GRANT a_{0}, "C {0}", pg_read_all_data TO b_{0} WITH ADMIN OPTION;
    ALTER ROLE a_{0} SET search_path = "$user", 'it''s, odd', public;
    ALTER ROLE a_{0} IN DATABASE app SET work_mem = '5MB';
    ALTER ROLE "C {0}" SET pgherd_test.odd = 'a=b "c" ''d''';
    COMMENT ON ROLE a_{0} IS 'it''s a role';
    COMMENT ON DATABASE app IS 'of {0}';
    ALTER DATABASE app SET pgherd_test.x_{0} = 'on';
    GRANT CREATE, CONNECT ON DATABASE app TO a_{0};
    GRANT TEMPORARY ON DATABASE app TO b_{0} WITH GRANT OPTION;
    GRANT SET, ALTER SYSTEM ON PARAMETER work_mem TO a_{0};
    ALTER DATABASE app CONNECTION LIMIT 500;
"""
_UNDONE = """
    ALTER ROLE a_{0} RENAME TO z_{0};
    ALTER ROLE z_{0} NOLOGIN PASSWORD NULL CONNECTION LIMIT -1 VALID UNTIL 'infinity';
    REVOKE ADMIN OPTION FOR "C {0}" FROM b_{0};
    REVOKE z_{0} FROM b_{0};
    ALTER ROLE z_{0} RESET ALL;
    ALTER ROLE z_{0} IN DATABASE app RESET work_mem;
    COMMENT ON ROLE z_{0} IS NULL;
    COMMENT ON DATABASE app IS NULL;
    ALTER DATABASE app RESET pgherd_test.x_{0};
    REVOKE CREATE ON DATABASE app FROM z_{0};
    REVOKE GRANT OPTION FOR TEMPORARY ON DATABASE app FROM b_{0};
    REVOKE ALL ON PARAMETER work_mem FROM z_{0};
    ALTER DATABASE app CONNECTION LIMIT -1;
"""


async def test_what_plain_commands_do_is_the_same_on_all_members(
    herd: LocalHerd, schema: str, admins: list[Connection]
) -> None:
    await run(admins[0], _SCRIPT.format(schema))
    made = await shared(admins, schema)
    assert len(made) == 14
    for node in herd.nodes():
        dsn = make_conninfo(node.dsn, user=f"a_{schema}", password="secret")
        async with await psycopg.AsyncConnection.connect(dsn) as one:
            row = await (await one.execute("SHOW search_path")).fetchone()
            assert row == ('"$user", "it\'s, odd", public',)
            assert await (await one.execute("SHOW work_mem")).fetchone() == ("5MB",)
    await run(admins[1], _UNDONE.format(schema))
    left = await shared(admins, schema)
    assert [key for key, *_ in left if f"a_{schema}" in key] == []
    role = next(value for key, value, _ in left if key == f"{{role,z_{schema}}}")
    assert '"LOGIN": false' in role
    assert '"CONNECTION LIMIT": -1' in role
    assert "VALID UNTIL" not in role
    await run(admins[2], f"REVOKE ALL ON DATABASE app FROM z_{schema}, b_{schema};")
    await run(admins[2], f'DROP ROLE z_{schema}, b_{schema}, "C {schema}"')
    assert all(schema not in key for key, *_ in await shared(admins, schema))


async def test_a_role_is_there_for_the_next_command(schema: str, admins: list[Connection]) -> None:
    await run(
        admins[0],
        f"CREATE ROLE shop_{schema} LOGIN; CREATE SCHEMA shop_{schema} AUTHORIZATION shop_{schema};"
        f"CREATE TABLE shop_{schema}.t (id int PRIMARY KEY);"
        f"ALTER TABLE shop_{schema}.t OWNER TO shop_{schema}",
    )
    await assert_same_schema(admins, f"shop_{schema}")
    await run(admins[1], f"CREATE ROLE reader_{schema}")
    await run(admins[1], f"GRANT pg_read_all_data TO reader_{schema}")
    await run(admins[1], f"GRANT USAGE ON SCHEMA shop_{schema} TO reader_{schema}")
    await assert_same_schema(admins, f"shop_{schema}")
    await run(admins[2], f"BEGIN; CREATE ROLE x_{schema}; ALTER ROLE shop_{schema} CREATEDB")
    await run(admins[2], f"GRANT SELECT ON shop_{schema}.t TO x_{schema}; ROLLBACK")
    await shared(admins, schema)
    assert await run(admins[0], f"SELECT 1 FROM pg_roles WHERE rolname = 'x_{schema}'") == []


async def test_a_command_behind_one_that_changes_roles_is_to_be_repeated(
    herd: LocalHerd, schema: str, admins: list[Connection]
) -> None:
    async with superusers(herd, schema) as [other, *_]:
        await run(other, "BEGIN; SELECT FROM pgherd.shared_seen FOR UPDATE")
        await run(admins[0], f"CREATE ROLE x_{schema}")
        lost = await failure(admins[0], f"GRANT USAGE ON SCHEMA {schema} TO x_{schema}")
        assert lost.sqlstate == "40001", lost
        await run(other, "ROLLBACK")
        await run(admins[0], f"GRANT USAGE ON SCHEMA {schema} TO x_{schema}")


async def test_who_may_make_roles_does_so_without_a_superuser(
    herd: LocalHerd, schema: str, admins: list[Connection]
) -> None:
    maker = f"maker_{schema}"
    await run(admins[0], f"CREATE ROLE {maker} LOGIN CREATEROLE PASSWORD 'm'")
    await shared(admins, schema)
    dsn = make_conninfo(herd.nodes()[1].dsn, user=maker, password="m")
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as one:
        await run(one, f"CREATE ROLE made_{schema} LOGIN; CREATE ROLE other_{schema}")
        await run(one, f"GRANT made_{schema} TO other_{schema}; ALTER ROLE {maker} PASSWORD 'n'")
        assert (await failure(one, f"CREATE ROLE s_{schema} SUPERUSER")).sqlstate == "42501"
    await shared(admins, schema)
    dsn = make_conninfo(herd.nodes()[2].dsn, user=maker, password="n")
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as one:
        await run(one, f"REVOKE made_{schema} FROM other_{schema}")
    await shared(admins, schema)
    member = f"SELECT 1 FROM pgherd.grants WHERE member = 'other_{schema}'"
    assert await run(admins[0], member) == []


async def test_different_attributes_of_one_role_on_two_members_both_stand(
    schema: str, admins: list[Connection]
) -> None:
    role = f"both_{schema}"
    await run(admins[0], f"CREATE ROLE {role}")
    await shared(admins, schema)
    for number in range(4):
        await asyncio.gather(
            run(admins[0], f"ALTER ROLE {role} CONNECTION LIMIT {number}"),
            run(admins[1], f"ALTER ROLE {role} PASSWORD 'p{number}'"),
            run(admins[2], f"ALTER ROLE {role} SET work_mem = '{number + 1}MB'"),
        )
        await shared(admins, schema)
        found = await run(
            admins[number % 3],
            f"SELECT rolconnlimit, (SELECT s.setconfig[1] FROM pg_db_role_setting s"
            f" WHERE s.setrole = a.oid) FROM pg_authid a WHERE rolname = '{role}'",
        )
        assert found == [(number, f"work_mem={number + 1}MB")]


@pytest.mark.long
async def test_of_one_attribute_the_later_in_the_order_stands_everywhere(
    schema: str, admins: list[Connection]
) -> None:
    for number in range(4):
        role = f"twice{number}_{schema}"
        await asyncio.gather(
            *(
                run(admin, f"CREATE ROLE {role} CONNECTION LIMIT {place} PASSWORD '{place}'")
                for place, admin in enumerate(admins)
            )
        )
        await shared(admins, schema)
        await asyncio.gather(
            run(admins[0], f"ALTER ROLE {role} LOGIN CREATEDB"),
            run(admins[1], f"ALTER ROLE {role} LOGIN CREATEROLE"),
            run(admins[2], f"GRANT {role} TO app"),
        )
        found = dict(row[:2] for row in await shared(admins, schema))
        assert '"CREATEDB": true' in found[f"{{role,{role}}}"]
        assert '"CREATEROLE": true' in found[f"{{role,{role}}}"]
        await asyncio.gather(
            run(admins[0], f"DROP ROLE {role}"), run(admins[1], f"ALTER ROLE {role} NOLOGIN")
        )
        await shared(admins, schema)


async def test_a_role_with_a_new_name_still_owns_what_it_owned(
    schema: str, admins: list[Connection]
) -> None:
    await run(admins[0], f"CREATE ROLE one_{schema}; CREATE ROLE two_{schema};")
    await run(
        admins[0],
        f"CREATE TABLE t (id int PRIMARY KEY); ALTER TABLE t OWNER TO one_{schema};"
        f"CREATE TABLE u (id int PRIMARY KEY); GRANT SELECT ON u TO one_{schema};"
        f"GRANT one_{schema} TO two_{schema}; ALTER ROLE one_{schema} SET work_mem = '9MB'",
    )
    await shared(admins, schema)
    await run(
        admins[1],
        f"BEGIN; ALTER ROLE one_{schema} RENAME TO tmp_{schema};"
        f"ALTER ROLE two_{schema} RENAME TO one_{schema};"
        f"ALTER ROLE tmp_{schema} RENAME TO two_{schema}; COMMIT",
    )
    await shared(admins, schema)
    dump = await assert_same_schema(admins, schema)
    assert f"OWNER TO two_{schema}" in dump
    assert f"GRANT SELECT ON TABLE {schema}.u TO two_{schema}" in dump
    await run(admins[0], f"ALTER ROLE two_{schema} RENAME TO new_{schema}")
    await shared(admins, schema)
    assert f"OWNER TO new_{schema}" in await assert_same_schema(admins, schema)


async def test_a_limited_role_logs_in_on_its_nodes_only(
    herd: LocalHerd, schema: str, admins: list[Connection]
) -> None:
    role = f"limited_{schema}"

    async def logged_in() -> list[str]:
        found = []
        for node in herd.nodes():
            dsn = make_conninfo(node.dsn, user=role, password="p")
            try:
                async with await psycopg.AsyncConnection.connect(dsn):
                    found.append(node.name)
            except psycopg.OperationalError as error:
                assert "not permitted to log in" in str(error)
        return found

    await run(admins[0], f"CREATE ROLE {role} LOGIN PASSWORD 'p'")
    await run(admins[0], f"SELECT pgherd.limit_role('{role}', '{{n1,n3}}')")
    await shared(admins, schema)
    assert await logged_in() == ["n1", "n3"]
    await run(admins[1], f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}")
    await run(admins[1], f"ALTER ROLE {role} LOGIN CONNECTION LIMIT 5")
    await shared(admins, schema)
    await until_same(
        admins[1:2], f"SELECT rolcanlogin FROM pg_roles WHERE rolname='{role}'", [(False,)]
    )
    assert await logged_in() == ["n1", "n3"]
    await run(admins[2], f"ALTER ROLE {role} RENAME TO limited2_{schema}")
    await run(admins[2], f"SELECT pgherd.limit_role('limited2_{schema}', '{{n2}}')")
    await shared(admins, schema)
    role = f"limited2_{schema}"
    assert await logged_in() == ["n2"]
    await run(admins[0], f"SELECT pgherd.limit_role('{role}', NULL)")
    await shared(admins, schema)
    assert await logged_in() == ["n1", "n2", "n3"]
    async with await psycopg.AsyncConnection.connect(
        make_conninfo(herd.nodes()[0].dsn, user=role, password="p"), autocommit=True
    ) as one:
        error = await failure(one, f"SELECT pgherd.limit_role('{role}', '{{n1}}')")
        assert error.sqlstate == "42501"
    error = await failure(admins[0], "SELECT pgherd.limit_role('nobody at all', '{n1}')")
    assert error.sqlstate == "42704"


async def test_what_switches_capture_off_and_pgherd_s_own_stay_on_their_member(
    schema: str, admins: list[Connection]
) -> None:
    role = f"loader_{schema}"
    await run(admins[0], f"CREATE ROLE {role}")
    before = await shared(admins, schema)
    await run(admins[0], f"ALTER ROLE {role} SET session_replication_role = replica")
    await run(admins[0], "COMMENT ON ROLE postgres IS 'here'; ALTER ROLE pgherd_jobs SET jit = of")
    await run(admins[0], f"ALTER ROLE {role} CREATEDB")
    after = await shared(admins, schema)
    assert [row[0] for row in after] == [row[0] for row in before]
    for query in (
        f"SELECT 1 FROM pg_db_role_setting WHERE setrole = '{role}'::regrole",
        "SELECT 1 FROM pg_db_role_setting WHERE setrole = 'pgherd_jobs'::regrole",
    ):
        assert [len(await run(one, query)) for one in admins] == [1, 0, 0]
    await assert_same_roles(admins)
    await run(admins[0], "COMMENT ON ROLE postgres IS NULL; ALTER ROLE pgherd_jobs RESET jit")
    await run(admins[0], f"ALTER ROLE {role} RESET ALL")


async def test_a_setting_cannot_smuggle_commands(
    herd: LocalHerd, schema: str, admins: list[Connection]
) -> None:
    """Its text goes to the other members, where a superuser executes what brings it about."""
    role = f"smuggler_{schema}"
    await run(admins[0], f"CREATE ROLE {role} LOGIN PASSWORD 'p' CREATEROLE")
    await shared(admins, schema)
    dsn = make_conninfo(herd.nodes()[0].dsn, user=role, password="p")
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as one:
        for name, value in (
            ("search_path", f"a;ALTER/**/ROLE/**/{role}/**/SUPERUSER"),
            ("search_path", f'"a""b;ALTER ROLE {role} SUPERUSER"'),
            ("application_name", f"'; ALTER ROLE {role} SUPERUSER; --"),
        ):
            await one.execute("SELECT set_config(%s, %s, false)", (name, value))
            await run(one, f"ALTER ROLE {role} SET {name} FROM CURRENT")
            await settled(admins)
        await run(admins[0], f"COMMENT ON ROLE {role} IS '''; ALTER ROLE {role} SUPERUSER; --'")
        odd = f'"x"";ALTER ROLE {role} SUPERUSER;-- {schema}"'
        await run(one, f"CREATE ROLE {odd}")
        await run(one, f"ALTER ROLE {odd} SET work_mem = '7MB'")
        await settled(admins)
    for admin in admins:
        assert await run(admin, f"SELECT rolsuper FROM pg_roles WHERE rolname = '{role}'") == [
            (False,)
        ]
        count = f"SELECT count(*) FROM pg_roles WHERE rolname LIKE '%{schema}'"
        assert await run(admin, count) == [(1,)] or await run(admin, count)
    await run(admins[0], f"ALTER ROLE {role} RESET ALL")
    await shared(admins, schema)


async def test_what_differs_is_told(herd: LocalHerd, schema: str, admins: list[Connection]) -> None:
    role = f"kept_{schema}"
    await run(admins[0], f"CREATE ROLE {role}")
    await shared(admins, schema)
    await run(admins[2], f"CREATE DATABASE {role} OWNER {role}")
    try:
        await run(admins[0], f"DROP ROLE {role}")
        await until_same(admins[:2], f"SELECT 1 FROM pg_roles WHERE rolname = '{role}'", [])
        await settled(admins)

        async def differs() -> list[str]:
            members = await asyncio.to_thread(herd.members)
            found: list[str] = next(one for one in members if one["name"] == "n3")["roles_differ"]
            return found

        said = await wait_until_async(differs)
        assert role in said[0]
        assert f"database {role}" in said[0] or "depend on it" in said[0]
        login = "SELECT rolcanlogin FROM pg_roles r JOIN pgherd.set_aside k ON k.id = r.oid"
        assert await run(admins[2], login) == [(False,)]
        assert 'pgherd_roles_differ_count{member="n3"} 1' in await metrics(herd)
    finally:
        await run(admins[2], f"DROP DATABASE {role}")
    await wait_until_async(differs, lambda seen: not seen)
