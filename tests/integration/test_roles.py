"""Roles that the operator asks a sidecar for: on all members, at once, and nothing done twice."""

from typing import Any

import aiohttp
import psycopg
import pytest
from pgherd_sidecar.local.herd import load
from psycopg import sql
from psycopg.conninfo import make_conninfo

from .localherd import LocalHerd, home
from .members import (
    Connection,
    caught_up,
    failure,
    run,
    same_everywhere,
    spread,
    superusers,
    until_same,
)


async def ask(herd: LocalHerd, member: str, *roles: dict[str, Any]) -> tuple[int, Any]:
    """Have a member's sidecar make roles; return HTTP's status and what it says."""
    connector = aiohttp.UnixConnector(str(load(home(herd)).node(member).admin_socket))
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.post("http://sidecar/roles", json={"roles": roles}) as response,
    ):
        code, answer = response.status, await response.json()
    return code, answer.get("changed", answer.get("error"))


async def changed(herd: LocalHerd, member: str, *roles: dict[str, Any]) -> list[str]:
    """Likewise, again while another's last command has not been seen there."""
    while True:
        code, said = await ask(herd, member, *roles)
        if code == 503 and "could not serialize" in said:
            continue
        assert code == 200, said
        found: list[str] = said
        return found


async def logged_in(herd: LocalHerd, name: str, password: str) -> list[str]:
    """On which members the role is let in with the password."""
    found = []
    for node in herd.nodes():
        try:
            async with await psycopg.AsyncConnection.connect(
                make_conninfo(node.dsn, user=name, password=password)
            ):
                found.append(node.name)
        except psycopg.OperationalError as error:
            assert "authentication failed" in str(error) or "not permitted" in str(error)
    return found


ALL = ["n1", "n2", "n3"]


@pytest.mark.parametrize("form", ['reader "{}"', "reader_{}"])
async def test_a_role_is_made_changed_and_dropped_on_every_member(
    herd: LocalHerd, schema: str, form: str
) -> None:
    name = form.format(schema)
    wanted: dict[str, Any] = {
        "name": name,
        "password": "it's secret",
        "member_of": ["pg_read_all_data"],
    }
    async with superusers(herd, schema) as admins:
        assert await changed(herd, "n1", wanted) == [
            f"{name}: created",
            f"{name}: member of pg_read_all_data",
        ]
        await caught_up(admins)
        assert await logged_in(herd, name, "it's secret") == ALL
        attributes = (
            "SELECT a.rolpassword, a.rolconnlimit, a.rolcanlogin, a.rolsuper, a.rolinherit,"
            " array(SELECT g.role FROM pgherd.grants g WHERE g.member = a.rolname ORDER BY 1),"
            " array(SELECT k.key[2] FROM pgherd.shared k"
            "        WHERE k.key[1] = 'member' AND k.key[3] = a.rolname)"
            f" FROM pg_authid a WHERE a.rolname = '{name}'"
        )
        before = await same_everywhere(admins, attributes)
        assert before[0][1:6] == (-1, True, False, True, ["pg_read_all_data"])

        gid = await same_everywhere(admins, "SELECT pgherd.last_gid()")
        for member in ALL:
            assert await changed(herd, member, wanted) == []
        assert await same_everywhere(admins, attributes) == before
        assert await same_everywhere(admins, "SELECT pgherd.last_gid()") == gid  # not even a commit

        wanted |= {"password": "another", "member_of": ["app"], "connection_limit": 5}
        assert await changed(herd, "n2", wanted) == [
            f"{name}: password changed",
            f"{name}: member of app",
            f"{name}: not member of pg_read_all_data",
        ]
        after = await same_everywhere(admins, attributes)
        assert after[0][1:] == (5, True, False, True, ["app"], ["app"])
        assert await logged_in(herd, name, "it's secret") == []
        assert await logged_in(herd, name, "another") == ALL

        assert await changed(herd, "n3", wanted | {"login": False}) == [f"{name}: changed"]
        await caught_up(admins)
        assert await logged_in(herd, name, "another") == []

        assert await changed(herd, "n1", {"name": name, "absent": True}) == [f"{name}: dropped"]
        assert await same_everywhere(admins, attributes) == []
        assert await changed(herd, "n2", {"name": name, "absent": True}) == []


async def test_a_role_that_owns_something_is_not_dropped_and_nothing_else_is_done(
    herd: LocalHerd, schema: str
) -> None:
    name = f"owner_{schema}"
    async with superusers(herd, schema) as admins:
        await changed(herd, "n1", {"name": name})
        await spread(
            admins, 0, f"CREATE TABLE t (id int PRIMARY KEY); ALTER TABLE t OWNER TO {name}"
        )
        gone = {"name": name, "absent": True}
        code, why = await ask(herd, "n1", {"name": f"other_{schema}"}, gone)
        assert code == 409
        assert name in why
        assert "owner of table" in why
        others = f"SELECT rolname FROM pg_roles WHERE rolname LIKE '%{schema}'"
        assert await same_everywhere(admins, others) == [(name,)]
        await run(admins[0], "DROP TABLE t")
        assert await changed(herd, "n1", gone) == [f"{name}: dropped"]
        assert await same_everywhere(admins, others) == []


async def test_a_role_that_was_made_by_hand_on_one_member_comes_to_all(
    herd: LocalHerd, schema: str
) -> None:
    name = f"hand_{schema}"
    async with superusers(herd, schema) as admins:
        await run(admins[1], f"CREATE ROLE {name} LOGIN CREATEDB PASSWORD 'by hand'")
        assert await changed(herd, "n2", {"name": name}) == []
        attributes = f"SELECT rolcreatedb FROM pg_roles WHERE rolname = '{name}'"
        await until_same(admins, attributes, [(True,)])
        assert await logged_in(herd, name, "by hand") == ALL
        assert await changed(herd, "n3", {"name": name, "absent": True}) == [f"{name}: dropped"]


async def test_who_is_asked_to_write_everything_does_and_becomes_nothing_more(
    herd: LocalHerd, schema: str, connections: list[Connection]
) -> None:
    name = f"writer_{schema}"
    await run(connections[0], "CREATE TABLE t (id int PRIMARY KEY)")
    writes = {"name": name, "member_of": ["pg_write_all_data"], "password": "a"}
    await changed(herd, "n1", writes)
    await caught_up(connections)
    dsn = make_conninfo(herd.dsn("n2"), user=name, password="a")
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as writer:
        await run(writer, f"INSERT INTO {schema}.t VALUES (1)")
        for statement in (
            "INSERT INTO pgherd.request (role, act, object)"
            f" VALUES ('postgres', 'run', 'ALTER ROLE {name} SUPERUSER')",
            "INSERT INTO pgherd.installed VALUES ('as it is')",
            f"ALTER ROLE {name} SUPERUSER",
        ):
            assert (await failure(writer, statement)).sqlstate == "42501"
    assert await same_everywhere(connections, "SELECT id FROM t") == [(1,)]
    await changed(herd, "n1", {"name": name, "absent": True})


@pytest.mark.family(every=2)
@pytest.mark.parametrize(
    ("by_hand", "said"),
    [
        ("ALTER ROLE {0} CONNECTION LIMIT 3", "changed"),
        ("ALTER ROLE {0} PASSWORD 'another'", "password changed"),
        ("REVOKE pg_read_all_data FROM {0}", "member of pg_read_all_data"),
        ("GRANT pg_monitor TO {0}", "not member of pg_monitor"),
        ("DROP ROLE {0}", "created"),
    ],
)
async def test_what_was_changed_by_hand_is_put_right_on_all_members(
    herd: LocalHerd, schema: str, by_hand: str, said: str
) -> None:
    name = f"user_{schema}"
    wanted = {
        "name": name, "password": "right", "member_of": ["pg_read_all_data"], "connection_limit": 7,
    }  # fmt: skip
    async with superusers(herd, schema) as admins:
        await changed(herd, "n1", wanted)
        await caught_up(admins)
        await run(admins[1], by_hand.format(name))
        assert f"{name}: {said}" in await changed(herd, "n2", wanted)
        await caught_up(admins)
        for member in ALL:
            assert await changed(herd, member, wanted) == []
        assert await logged_in(herd, name, "right") == ALL
        attributes = (
            "SELECT a.rolpassword, a.rolconnlimit,"
            " array(SELECT g.role FROM pgherd.grants g WHERE g.member = a.rolname)"
            f" FROM pg_authid a WHERE a.rolname = '{name}'"
        )
        assert (await same_everywhere(admins, attributes))[0][1:] == (7, ["pg_read_all_data"])

        await run(admins[1], f"DROP ROLE {name}")
        await until_same(admins, attributes, [])
        gone = {"name": name, "absent": True}
        assert await changed(herd, "n3", gone) == []


async def test_the_superuser_and_the_database_s_owner_are_left_alone(
    herd: LocalHerd, schema: str
) -> None:
    async with superusers(herd, schema) as admins:
        owner = await run(
            admins[0], "SELECT datdba::regrole::text FROM pg_database WHERE datname = 'app'"
        )
        await spread(
            admins, 0, f"SELECT pgherd.run_everywhere('CREATE ROLE root_{schema} SUPERUSER')"
        )
        for wanted in (
            {"name": f"root_{schema}", "password": "a"},
            {"name": owner[0][0], "absent": True},
            {"name": "pgherd_apply", "password": "a"},
            {"name": f"x_{schema}", "member_of": [f"root_{schema}"]},
            {"name": f"x_{schema}", "member_of": ["pg_write_server_files"]},
        ):
            code, _ = await ask(herd, "n2", wanted)
            assert code == 409, wanted
        await run(admins[0], f"SELECT pgherd.run_everywhere('DROP ROLE root_{schema}')")


async def test_no_password_is_left_on_any_member(
    herd: LocalHerd, schema: str, connections: list[Connection]
) -> None:
    name, password = f"quiet_{schema}", f"password of {schema}"
    await changed(herd, "n1", {"name": name, "password": password})
    await caught_up(connections)
    await changed(herd, "n1", {"name": name, "absent": True})
    logs = [path for path in home(herd).rglob("*.log") if path.is_file()]
    assert logs
    assert not [path for path in logs if password in path.read_text(errors="replace")]
    async with superusers(herd, schema) as admins:
        found = await run(
            admins[0],
            "SELECT relname FROM pg_class WHERE relname LIKE 'capture%' AND relkind = 'r'",
        )
        assert found
        for (table,) in found:
            query = sql.SQL("SELECT t::text FROM pgherd.{} t").format(sql.Identifier(table))
            cursor = await admins[0].execute(query)
            assert password not in str(await cursor.fetchall())


async def test_many_roles_are_told_of_without_a_look_at_all_of_them_for_each(
    herd: LocalHerd, admins: list[Connection]
) -> None:
    read = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables"
    await run(
        admins[0],
        "BEGIN; SET session_replication_role = replica;"
        "SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_seqscan = off;"
        "CREATE ROLE many_0; DO $$ BEGIN FOR n IN 1 .. 300 LOOP"
        " EXECUTE format('CREATE ROLE many_%1$s; GRANT many_%1$s TO many_%2$s', n, n - 1);"
        " END LOOP; END $$;",
    )
    await run(
        admins[0],
        "INSERT INTO pgherd.shared SELECT * FROM pgherd.shared_now() n"
        " WHERE n.key[1] = 'role' AND n.key[2] LIKE 'many%'",
    )
    ((before,),) = await run(admins[0], f"{read} WHERE relid = 'pgherd.shared'::regclass")
    ((documents,),) = await run(admins[0], "SELECT count(*) FROM pgherd.shared_now()")
    ((after,),) = await run(admins[0], f"{read} WHERE relid = 'pgherd.shared'::regclass")
    await run(admins[0], "ROLLBACK")
    assert documents > 600
    assert after - before < 10 * documents, (before, after, documents)
