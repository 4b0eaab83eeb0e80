"""Two members change roles in the same moment, so that their changes cannot both stand.

Nobody has more rights for it than an order of the two would give him on one server, no member
stops, and the member whose change was taken back tells so. The tests decide which change is ordered
first: they hold the turn of a member's commands, so that it can't order what was done there.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from patience import wait_until_async
from psycopg.conninfo import make_conninfo

from .installations import usable
from .localherd import LocalHerd, free_port_base, standing
from .members import (
    Connection,
    assert_same_roles,
    assert_same_schema,
    caught_up,
    failure,
    run,
    spread,
    turn_held,
    unordered,
    until_same,
)
from .test_unseen_roles import admins, settled, shared

__all__ = ["admins"]

_ROUNDS = 12  # changes that are ordered while others go on


@pytest.fixture(scope="module", params=["own", "newer-version"])
def herd(work_directory: Path, request: pytest.FixtureRequest) -> Iterator[LocalHerd]:
    """A herd of the tests' PostgreSQL, and one of the newest: since 16 a grant has a grantor."""
    found = usable()
    if request.param == "own":
        chosen: list[str] = []
    elif max(found) < 16:
        pytest.skip("no PostgreSQL 16 or newer: name one in PGHERD_TEST_OTHER_POSTGRES")
    else:
        chosen = ["--postgres-bin", str(found[max(found)])]
    herd = LocalHerd(work_directory / f"conflicts-{request.param}", free_port_base())
    with standing(herd, *chosen):
        yield herd


class Turns:
    """Which members may order what was done on them: none until it is let."""

    def __init__(self, admins: list[Connection], holders: list[Connection]) -> None:
        self._admins = admins
        self._holders = holders

    async def let(self, place: int) -> None:
        """Have this member order all that was done on it, and the others apply it."""
        await run(self._holders[place], "ROLLBACK")
        one = [self._admins[place]]
        await wait_until_async(lambda: unordered(one), lambda left: not left)
        await caught_up(self._admins)


@contextlib.asynccontextmanager
async def turns(herd: LocalHerd, admins: list[Connection]) -> AsyncIterator[Turns]:
    """Hold the turn of all members; at the end all have ordered what they have."""
    await settled(admins)
    async with contextlib.AsyncExitStack() as stack:
        holders = [await stack.enter_async_context(turn_held(node.dsn)) for node in herd.nodes()]
        yield Turns(admins, holders)
        for holder in holders:
            await run(holder, "ROLLBACK")
    await settled(admins)


@contextlib.asynccontextmanager
async def logged_in(herd: LocalHerd, place: int, name: str) -> AsyncIterator[Connection]:
    dsn = make_conninfo(herd.nodes()[place].dsn, user=name, password="p")
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as one:
        yield one


async def may_log_in(herd: LocalHerd, name: str, password: str) -> bool:
    """On any member."""
    for node in herd.nodes():
        dsn = make_conninfo(node.dsn, user=name, password=password)
        with contextlib.suppress(psycopg.OperationalError):
            async with await psycopg.AsyncConnection.connect(dsn):
                return True
    return False


async def maker(admins: list[Connection], schema: str) -> str:
    """A role that may make roles, on all members."""
    name = f"eve_{schema}"
    await run(admins[0], f"CREATE ROLE {name} LOGIN CREATEROLE PASSWORD 'p'")
    await settled(admins)
    return name


async def undone(herd: LocalHerd, member: str, word: str) -> None:
    """Wait until the status of a member tells of something that was taken back."""
    await told(herd, member, "roles_undone", lambda said: any(word in one for one in said))


async def told(
    herd: LocalHerd, member: str, what: str, wanted: Callable[[list[str]], bool]
) -> None:
    """Wait until the status of a member says so."""
    await wait_until_async(
        lambda: asyncio.to_thread(herd.member, member), lambda seen: wanted(seen[what])
    )


def is_new(connection: Connection) -> bool:
    return connection.info.server_version >= 160000


@pytest.mark.family(every=4)
@pytest.mark.parametrize("first", ["the maker of roles", "the superuser"])
async def test_two_roles_of_one_name_do_not_become_one(
    herd: LocalHerd, schema: str, admins: list[Connection], first: str
) -> None:
    eve, boss = await maker(admins, schema), f"boss_{schema}"
    async with turns(herd, admins) as order, logged_in(herd, 0, eve) as one:
        if is_new(one):
            await run(one, "SET createrole_self_grant = 'set, inherit'")
        await run(one, f"CREATE ROLE {boss} LOGIN PASSWORD 'eve'")
        if not is_new(one):
            await run(one, f"GRANT {boss} TO {eve}")
        await run(one, f"GRANT {boss} TO app; ALTER ROLE {boss} SET search_path = eve")
        await run(admins[1], f"CREATE ROLE {boss} LOGIN SUPERUSER")
        places = (0, 1) if first == "the maker of roles" else (1, 0)
        for place in places:
            await order.let(place)
    await shared(admins, schema)
    for admin in admins:
        rights = await run(
            admin,
            f"SELECT r.rolsuper, pg_has_role('{eve}', r.oid, 'member'), r.rolpassword IS NULL,"
            " (SELECT count(*)::int FROM pg_db_role_setting s WHERE s.setrole = r.oid)"
            f" FROM pg_authid r WHERE r.rolname = '{boss}'",
        )
        assert rights == [
            (False, True, False, 1) if first == "the maker of roles" else (True, False, True, 0)
        ]
    await undone(herd, ("n2", "n1")[places[0]], boss)


async def test_a_role_that_was_made_twice_and_owns_something_is_set_aside(
    herd: LocalHerd, schema: str, admins: list[Connection]
) -> None:
    role = f"both_{schema}"
    async with turns(herd, admins) as order:
        await run(admins[0], f"CREATE ROLE {role} LOGIN; GRANT CREATE ON DATABASE app TO {role}")
        await run(admins[1], f"CREATE ROLE {role} LOGIN")
        await run(admins[1], f"CREATE DATABASE {role} OWNER {role}")
        await run(admins[1], f"GRANT TEMPORARY ON DATABASE app TO {role} WITH GRANT OPTION")
        await order.let(0)
        await order.let(1)
    try:
        owner = await run(
            admins[1],
            "SELECT r.rolname, r.rolcanlogin FROM pg_database d JOIN pg_roles r ON r.oid = d.datdba"
            f" WHERE d.datname = '{role}'",
        )
        assert owner[0][0] != role
        assert not owner[0][1]
        name = owner[0][0]
        await told(herd, "n2", "roles_differ", lambda said: any(name in one for one in said))
        privileges = (
            "SELECT privilege FROM pgherd.database_grants"
            f" WHERE grantee = '{role}' ORDER BY privilege"
        )
        await until_same(admins, privileges, [("CREATE",)])
    finally:
        await run(admins[1], f"DROP DATABASE {role}")
    # it is gone by itself
    await told(herd, "n2", "roles_differ", lambda said: not said)
    assert await run(admins[1], f"SELECT 1 FROM pg_roles WHERE rolname = '{owner[0][0]}'") == []
    await run(admins[2], f"REVOKE CREATE ON DATABASE app FROM {role}; DROP ROLE {role}")
    await shared(admins, schema)


_ASIDE = "SELECT r.rolname FROM pgherd.set_aside k JOIN pg_roles r ON r.oid = k.id"


@contextlib.asynccontextmanager
async def set_aside(herd: LocalHerd, admins: list[Connection], role: str) -> AsyncIterator[None]:
    """The second member can't drop the role, which the first one drops."""
    await settled(admins)
    await run(admins[1], f"CREATE DATABASE {role} OWNER {role}")
    try:
        await run(admins[0], f"DROP ROLE {role}")
        await until_same(admins, f"SELECT 1 FROM pg_roles WHERE rolname = '{role}'", [])
        await told(herd, "n2", "roles_differ", lambda said: any(role in one for one in said))
        yield
    finally:
        await run(admins[1], f"DROP DATABASE {role}")
    await until_same(admins, _ASIDE, [])
    await told(herd, "n2", "roles_differ", lambda said: not said)


@pytest.mark.long
async def test_nobody_has_the_name_of_a_role_that_is_set_aside(
    herd: LocalHerd, schema: str, admins: list[Connection]
) -> None:
    """Neither does one who guesses it, nor one who has read it."""
    eve, role = await maker(admins, schema), f"kept_{schema}"
    await run(admins[0], f"CREATE ROLE {role}; CREATE ROLE a_{schema} CREATEDB")
    await settled(admins)
    number = (await run(admins[1], f"SELECT '{role}'::regrole::oid"))[0][0]
    taken = [f"pgherd_was_{number}"]
    try:
        async with logged_in(herd, 0, eve) as one:
            await run(one, f"CREATE ROLE {taken[0]}")
            async with set_aside(herd, admins, role):
                for command in ("CREATE ROLE {}", f"ALTER ROLE a_{schema} RENAME TO {{}}"):
                    taken.append((await run(admins[1], _ASIDE))[0][0])
                    await run(admins[0], command.format(f'"{taken[-1]}"'))
                    await settled(admins)
                    await until_same(
                        admins, f"SELECT 1 FROM pg_roles WHERE rolname = '{taken[-1]}'", [(1,)]
                    )
                assert (await run(admins[1], _ASIDE))[0][0] not in taken
        asked = f"SELECT rolcreatedb FROM pg_roles WHERE rolname = '{taken[-1]}'"
        await until_same(admins, asked, [(True,)])
        await shared(admins, schema)
    finally:
        for name in taken:
            await run(admins[0], f'DROP ROLE IF EXISTS "{name}"')


async def test_nobody_has_the_rights_of_a_role_that_is_set_aside(
    herd: LocalHerd, schema: str, admins: list[Connection]
) -> None:
    user, role, group = (f"{name}_{schema}" for name in ("user", "kept", "group"))
    await run(
        admins[0],
        f"CREATE ROLE {user} LOGIN PASSWORD 'p'; CREATE ROLE other_{schema}; CREATE ROLE {group};"
        f"CREATE ROLE {role} LOGIN PASSWORD 'p'; ALTER ROLE {role} SET work_mem = '5MB';"
        f"GRANT {role} TO {user} WITH ADMIN OPTION;"
        f"GRANT {group}, pg_write_all_data TO {role} WITH ADMIN OPTION",
    )
    await settled(admins)
    async with logged_in(herd, 0, user) as one:
        await run(one, f"GRANT {role} TO other_{schema}")
    mighty = "SUPERUSER CREATEROLE CREATEDB REPLICATION BYPASSRLS"
    await run(admins[0], f"ALTER ROLE {role} {mighty}")
    async with set_aside(herd, admins, role):
        name = (await run(admins[1], _ASIDE))[0][0]
        asked = (
            "SELECT rolsuper OR rolcreaterole OR rolcreatedb OR rolreplication OR rolbypassrls"
            " OR rolcanlogin, rolpassword, (SELECT count(*)::int FROM pg_db_role_setting s"
            " WHERE s.setrole = r.oid), (SELECT count(*)::int FROM pg_auth_members m"
            f" WHERE r.oid IN (m.roleid, m.member)) FROM pg_authid r WHERE rolname = '{name}'"
        )
        assert await run(admins[1], asked) == [(False, None, 0, 0)]
        await run(admins[2], f"ALTER ROLE other_{schema} IN DATABASE postgres SET work_mem = '7MB'")
        await settled(admins)
        await assert_same_roles(admins)  # that role and this setting are the members' own
        await run(admins[2], f"ALTER ROLE other_{schema} IN DATABASE postgres RESET ALL")
        rights = (
            f"SELECT pg_has_role('{user}', '{group}', 'member'),"
            f" pg_has_role('{user}', 'pg_write_all_data', 'member')"
        )
        await until_same(admins, rights, [(False, False)])
        async with logged_in(herd, 1, user) as one:
            assert (await failure(one, f'SET ROLE "{name}"')).sqlstate == "42501"
        await run(admins[1], f'ALTER ROLE "{name}" LOGIN')
        await wait_until_async(lambda: run(admins[1], asked), lambda seen: not seen[0][0])
    await shared(admins, schema)


async def test_a_new_name_that_is_a_superuser_s_of_one_member_stops_nothing(
    herd: LocalHerd, schema: str, admins: list[Connection]
) -> None:
    """That member keeps another name for the role, which it orders for all."""
    boss, role, taken = (f"{name}_{schema}" for name in ("boss", "role", "taken"))
    await run(admins[0], f"CREATE ROLE {boss} LOGIN SUPERUSER PASSWORD 'p'; CREATE ROLE {role}")
    async with turns(herd, admins), logged_in(herd, 1, boss) as applier:
        own = await run(applier, "SELECT rolname FROM pg_roles WHERE oid = 10")
        number = await run(applier, f"SELECT '{role}'::regrole::oid")
        await run(applier, "SET session_replication_role = replica; BEGIN")
        await run(applier, f'ALTER ROLE "{own[0][0]}" RENAME TO {taken}')
        command = {
            "act": "unseen", "renames": [[role, taken]], "dropped": [], "owners": [], "forced": [],
            "changes": [[["role", taken], {"CREATEDB": True}]], "version": 150000,
            "roles": [], "grants": [], "database": [],
        }  # fmt: skip
        await run(applier, f"SELECT pgherd.perform('{json.dumps(command)}')")
        found = f"SELECT rolname, rolcreatedb FROM pg_roles WHERE oid = {number[0][0]}"
        ((name, created),) = await run(applier, found)
        assert created
        assert await run(applier, "SELECT rolname FROM pg_roles WHERE oid = 10") == [(taken,)]
        assert await run(applier, "SELECT pgherd.unseen_renames()") == [([[taken, name]],)]
        said = await run(applier, f"SELECT count(*)::int FROM pgherd.undone WHERE what ~ '{taken}'")
        assert said == [(1,)]
        # a command that names it, and an order that gives the name of this member to another role
        await run(applier, f"SELECT pgherd.make_room(ARRAY['{taken}', '{name}'], true)")
        ((name, _),) = await run(applier, found)
        assert await run(applier, "SELECT pgherd.unseen_renames()") == [([[taken, name]],)]
        await run(applier, "ROLLBACK")
    await shared(admins, schema)


@pytest.mark.parametrize("first", ["the maker of roles", "the superuser"])
async def test_who_becomes_a_superuser_has_no_password_of_another_s(
    herd: LocalHerd, schema: str, admins: list[Connection], first: str
) -> None:
    """On one server either the password is the superuser's, or the other may not change it."""
    eve, boss = await maker(admins, schema), f"boss_{schema}"
    async with logged_in(herd, 0, eve) as one:
        await run(one, f"CREATE ROLE {boss} LOGIN PASSWORD 'old' CONNECTION LIMIT 5")
        async with turns(herd, admins) as order:
            await run(one, f"ALTER ROLE {boss} PASSWORD 'eve' CONNECTION LIMIT 3")
            await run(admins[1], f"ALTER ROLE {boss} SUPERUSER PASSWORD 'right'")
            places = (0, 1) if first == "the maker of roles" else (1, 0)
            for place in places:
                await order.let(place)
    await shared(admins, schema)
    is_super = first == "the superuser"
    asked = f"SELECT rolsuper, rolconnlimit FROM pg_roles WHERE rolname = '{boss}'"
    await until_same(admins, asked, [(is_super, 5 if is_super else 3)])
    assert await may_log_in(herd, boss, "eve") is not is_super
    assert await may_log_in(herd, boss, "right") is is_super
    await undone(herd, ("n2", "n1")[places[0]], boss)


@pytest.mark.long
async def test_names_that_look_like_ours_are_in_nobody_s_way(
    herd: LocalHerd, schema: str, admins: list[Connection]
) -> None:
    eve = await maker(admins, schema)
    ours = [f"pgherd_renamed_{number}" for number in (1, 2)] + ["pgherd_renamed"]
    async with logged_in(herd, 0, eve) as one:
        for name in ours:
            await run(one, f"CREATE ROLE {name}")
        await run(one, f"CREATE ROLE a_{schema} LOGIN PASSWORD 'p'")
        await run(admins[0], f"GRANT USAGE, CREATE ON SCHEMA {schema} TO a_{schema}")
        async with logged_in(herd, 0, f"a_{schema}") as owner:
            await run(owner, f"CREATE TABLE {schema}.t (id int PRIMARY KEY)")
        await settled(admins)
        await run(admins[1], f"ALTER ROLE a_{schema} RENAME TO b_{schema}")
        await settled(admins)
        await run(admins[1], f"CREATE TABLE {schema}.u (id int)")
        # whose name is of our kind, and who owns something, is a role like any other
        await run(one, f"ALTER ROLE b_{schema} RENAME TO pgherd_{schema}")
        await run(one, f"ALTER ROLE pgherd_{schema} PASSWORD 'p'")
        await settled(admins)
        async with logged_in(herd, 0, f"pgherd_{schema}") as owner:
            await run(owner, f"ALTER TABLE {schema}.t ADD COLUMN c int")
        await assert_same_schema(admins, schema)
        owners = f"SELECT relowner::regrole::text FROM pg_class WHERE oid = '{schema}.t'::regclass"
        await until_same(admins, owners, [(f"pgherd_{schema}",)])
        await run(one, "DROP ROLE " + ", ".join(ours))
    await shared(admins, schema)


async def test_two_roles_take_the_names_of_two_that_are_dropped(
    herd: LocalHerd, schema: str, admins: list[Connection]
) -> None:
    """So that two memberships, one of them of a role that is gone, would have one key."""
    await run(
        admins[0],
        "".join(f"CREATE ROLE {name}_{schema};" for name in "abcd")
        + f"GRANT a_{schema} TO d_{schema}; GRANT c_{schema} TO b_{schema};"
        f"ALTER ROLE a_{schema} SET work_mem = '5MB'; ALTER ROLE c_{schema} SET work_mem = '6MB';"
        f"GRANT CREATE ON DATABASE app TO c_{schema}",
    )
    await settled(admins)
    await run(
        admins[0],
        f"BEGIN; DROP ROLE a_{schema}, b_{schema}; ALTER ROLE c_{schema} RENAME TO a_{schema};"
        f"ALTER ROLE d_{schema} RENAME TO b_{schema}; COMMIT",
    )
    await run(admins[0], "CREATE TABLE t (id int PRIMARY KEY)")
    await shared(admins, schema)
    for admin in admins:
        found = await run(
            admin,
            "SELECT r.rolname, s.setconfig[1], has_database_privilege(r.oid, 'app', 'CREATE'),"
            " (SELECT count(*)::int FROM pgherd.grants g WHERE r.rolname IN (g.role, g.member))"
            " FROM pg_roles r LEFT JOIN pg_db_role_setting s ON s.setrole = r.oid"
            f" WHERE r.rolname LIKE '__{schema}' ORDER BY 1",
        )
        assert found == [
            (f"a_{schema}", "work_mem=6MB", True, 0), (f"b_{schema}", None, False, 0),
        ]  # fmt: skip
    await run(admins[0], f"REVOKE CREATE ON DATABASE app FROM a_{schema}")


@pytest.mark.long
async def test_a_role_that_was_made_anew_has_nothing_of_the_former_one(
    herd: LocalHerd, schema: str, admins: list[Connection]
) -> None:
    """What another member gives to the former one, at the same time, the new one does not get."""
    role = f"anew_{schema}"
    await run(admins[0], f"CREATE ROLE {role}; CREATE TABLE t (id int PRIMARY KEY)")
    async with turns(herd, admins) as order:
        await run(admins[0], f"DROP ROLE {role}; CREATE ROLE {role}")
        await run(admins[1], f"ALTER ROLE {role} SUPERUSER; GRANT pg_read_all_data TO {role}")
        await order.let(1)
        await order.let(0)
    await shared(admins, schema)
    rights = (
        f"SELECT rolsuper, pg_has_role('{role}', 'pg_read_all_data', 'member')"
        f" FROM pg_roles WHERE rolname = '{role}'"
    )
    await until_same(admins, rights, [(False, False)])
    async with turns(herd, admins) as order:  # and a command, which needs the former one
        await run(admins[0], f"DROP ROLE {role}; CREATE ROLE {role} CREATEDB")
        await order.let(1)
        await spread(admins, 1, f"GRANT SELECT ON {schema}.t TO {role}")
        await order.let(0)
    await shared(admins, schema)
    asked = f"SELECT rolcreatedb FROM pg_roles WHERE rolname = '{role}'"
    await until_same(admins, asked, [(False,)])
    assert f"GRANT SELECT ON TABLE {schema}.t TO {role}" in await assert_same_schema(admins, schema)
    await undone(herd, "n1", role)


async def test_each_grant_has_its_grantor(
    herd: LocalHerd, schema: str, admins: list[Connection]
) -> None:
    if not is_new(admins[0]):
        pytest.skip("a grant has no grantor before PostgreSQL 16")
    names = {name: f"{name}_{schema}" for name in "rmzaq"}
    await run(
        admins[0],
        "BEGIN;"
        + "".join(f"CREATE ROLE {name};" for name in names.values())
        + "GRANT {r} TO {m} WITH ADMIN OPTION; GRANT {r} TO {z} WITH ADMIN OPTION GRANTED BY {m};"
        "GRANT {r} TO {a} WITH ADMIN OPTION GRANTED BY {z}; GRANT {r} TO {q} GRANTED BY {a};"
        "COMMIT".format(**names),
    )
    await shared(admins, schema)
    asked = (
        "SELECT m.member::regrole::text, m.grantor::regrole::text FROM pg_auth_members m"
        f" WHERE m.roleid = '{names['r']}'::regrole ORDER BY 1"
    )
    chain = [(names["a"], names["z"]), (names["m"], "postgres"), (names["q"], names["a"]),
             (names["z"], names["m"])]  # fmt: skip
    await until_same(admins, asked, chain)
    # The root of all of them is another one, and what rests on it stays.
    await run(
        admins[1],
        "BEGIN; GRANT {r} TO {q} WITH ADMIN OPTION; GRANT {r} TO {m} WITH ADMIN OPTION GRANTED BY"
        " {q}; REVOKE {r} FROM {m}; COMMIT".format(**names),
    )
    await shared(admins, schema)
    chain = [(names["a"], names["z"]), (names["m"], names["q"]), (names["q"], names["a"]),
             (names["q"], "postgres"), (names["z"], names["m"])]  # fmt: skip
    await until_same(admins, asked + ", 2", chain)
    # A grant whose grantor has just lost his own on another member is nobody's.
    async with turns(herd, admins) as order:
        await run(admins[0], "GRANT {r} TO app GRANTED BY {z}".format(**names))
        await run(admins[1], "REVOKE {r} FROM {z} GRANTED BY {m} CASCADE".format(**names))
        await order.let(0)
        await order.let(1)
    await shared(admins, schema)
    await until_same(admins, asked + ", 2", [(names["m"], names["q"]), (names["q"], "postgres")])


async def test_a_new_name_that_another_member_has_given_is_taken_back(
    herd: LocalHerd, schema: str, admins: list[Connection]
) -> None:
    await run(admins[0], "CREATE TABLE t (id int PRIMARY KEY)")
    await run(admins[0], f"CREATE ROLE a_{schema}; GRANT INSERT ON t TO a_{schema}")
    async with turns(herd, admins) as order:
        await run(admins[0], f"ALTER ROLE a_{schema} RENAME TO b_{schema}")
        await run(admins[0], f"CREATE ROLE a_{schema} CREATEDB")
        await order.let(1)
        await run(admins[1], f"CREATE ROLE b_{schema}")
        await spread(admins, 1, f"GRANT SELECT ON {schema}.t TO b_{schema}")
        await order.let(0)
    await shared(admins, schema)
    dump = await assert_same_schema(admins, schema)
    assert f"GRANT SELECT ON TABLE {schema}.t TO b_{schema}" in dump
    assert f"GRANT INSERT ON TABLE {schema}.t TO a_{schema}" in dump
    asked = f"SELECT bool_or(rolcreatedb) FROM pg_roles WHERE rolname LIKE '__{schema}'"
    await until_same(admins, asked, [(False,)])
    await undone(herd, "n1", f"b_{schema}")
    # and the other way round: the name is ordered first, then the role is made
    async with turns(herd, admins) as order:
        await run(admins[0], f"ALTER ROLE a_{schema} RENAME TO c_{schema}")
        await run(admins[1], f"CREATE ROLE c_{schema} SUPERUSER; GRANT c_{schema} TO app")
        await order.let(0)
        await order.let(1)
    await shared(admins, schema)
    asked = f"SELECT rolsuper FROM pg_roles WHERE rolname = 'c_{schema}'"
    await until_same(admins, asked, [(False,)])
    assert await run(admins[0], f"SELECT 1 FROM pgherd.grants WHERE role = 'c_{schema}'") == []
    await undone(herd, "n2", f"c_{schema}")


async def test_owners_come_back_with_a_role_that_a_command_needs(
    herd: LocalHerd, schema: str, admins: list[Connection]
) -> None:
    """It was dropped here after REASSIGN OWNED, and another member's command of it came first."""
    old, new = f"old_{schema}", f"new_{schema}"
    await run(
        admins[0],
        f"CREATE ROLE {old} LOGIN PASSWORD 'p'; CREATE ROLE {new};"
        f"GRANT USAGE ON SCHEMA {schema} TO public; GRANT CREATE ON SCHEMA {schema} TO {old}",
    )
    async with logged_in(herd, 0, old) as owner:
        await run(owner, f"CREATE TABLE {schema}.t (id int PRIMARY KEY)")
        await run(admins[0], f"REVOKE CREATE ON SCHEMA {schema} FROM {old}")
        async with turns(herd, admins) as order:
            await run(admins[1], f"REASSIGN OWNED BY {old} TO {new}; DROP ROLE {old}")
            await order.let(0)
            await run(owner, f"ALTER TABLE {schema}.t ADD COLUMN c int")
            await caught_up(admins)
            await order.let(1)
    await shared(admins, schema)
    assert f"OWNER TO {old}" in await assert_same_schema(admins, schema)


_RACES: dict[str, Callable[[str], dict[str, Any]]] = {
    "unseen": lambda role: {
        "act": "unseen", "renames": [], "owners": [], "forced": [], "version": 150000,
        "changes": [[["setting all", role], {"maintenance_work_mem": "77MB"}]],
    },
    "attributes": lambda role: {
        "act": "unseen", "renames": [], "owners": [], "forced": [], "version": 150000,
        "changes": [[["role", role], {"CREATEDB": True}]],
    },
    "limit": lambda role: {"act": "limit", "limit": {"role": role, "nodes": ["n1"]}},
}  # fmt: skip
_CHANGE = {
    "unseen": "ALTER ROLE {} SET work_mem = '{}MB'",
    "attributes": "ALTER ROLE {} CONNECTION LIMIT {}",
    "limit": "ALTER ROLE {} CONNECTION LIMIT {}",
}


@pytest.mark.family(every=3)
@pytest.mark.parametrize("act", list(_RACES))
async def test_a_race_is_lost_once(
    herd: LocalHerd, schema: str, admins: list[Connection], act: str
) -> None:
    """Sessions that change one role without end can't have an ordered change fail."""
    role = f"racer_{schema}"
    await run(admins[0], f"CREATE ROLE {role} LOGIN PASSWORD 'p'")
    await settled(admins)
    dsn = herd.nodes()[1].dsn
    async with (
        turns(herd, admins),
        await psycopg.AsyncConnection.connect(dsn, autocommit=True) as applier,
        await psycopg.AsyncConnection.connect(dsn, autocommit=True) as racer,
    ):
        await run(applier, "SET session_replication_role = replica; BEGIN")
        command = json.dumps(_RACES[act](role) | {"roles": [], "grants": [], "database": []})
        await run(racer, "BEGIN; " + _CHANGE[act].format(role, 1))
        applying = asyncio.create_task(run(applier, f"SELECT pgherd.perform('{command}')"))
        lost = 0
        for number in range(2, 40):
            await until_it_waits(admins[1], applier, applying)
            if applying.done():
                break
            await run(racer, "COMMIT")
            lost += 1
            racing = asyncio.create_task(run(racer, "BEGIN; " + _CHANGE[act].format(role, number)))
            await asyncio.wait([racing, applying], return_when=asyncio.FIRST_COMPLETED)
            if applying.done():
                await applying
                await run(applier, "ROLLBACK")
                await racing
        await applying
        assert lost <= 5  # one race, and those before it has its turn
        await run(racer, "ROLLBACK")
        await run(applier, "ROLLBACK")
    await settled(admins)


async def test_a_role_is_dropped_here_while_an_order_drops_it(
    herd: LocalHerd, schema: str, admins: list[Connection]
) -> None:
    """Between two of its steps it has no name any more: that is a race like any other."""
    roles = [f"{name}_{schema}" for name in "ab"]
    for role in roles:
        await run(admins[0], f"CREATE ROLE {role}")
        await settled(admins)  # so that each member drops them in this order
    dsn = herd.nodes()[1].dsn
    async with (
        turns(herd, admins),
        await psycopg.AsyncConnection.connect(dsn, autocommit=True) as applier,
        await psycopg.AsyncConnection.connect(dsn, autocommit=True) as racer,
    ):
        await run(applier, "SET session_replication_role = replica; BEGIN")
        command = {
            "act": "unseen", "renames": [], "dropped": roles, "owners": [], "forced": [],
            "changes": [], "version": 150000, "roles": [], "grants": [], "database": [],
        }  # fmt: skip
        await run(racer, f"BEGIN; ALTER ROLE {roles[0]} CREATEDB")
        applying = asyncio.create_task(
            run(applier, f"SELECT pgherd.perform('{json.dumps(command)}')")
        )
        await until_it_waits(admins[1], applier, applying)
        await run(admins[1], f"DROP ROLE {roles[1]}")
        await run(racer, "ROLLBACK")
        await applying
        asked = f"SELECT 1 FROM pg_roles WHERE rolname LIKE '__{schema}'"
        assert await run(applier, asked) == []
        await run(applier, "ROLLBACK")
    await shared(admins, schema)


async def test_what_is_found_while_an_order_is_under_way_is_not_noted(
    herd: LocalHerd, admins: list[Connection]
) -> None:
    """It would count once the order has made a role: then the end of that role would go unseen."""
    noted = "SELECT print FROM pgherd.shared_seen"
    async with await psycopg.AsyncConnection.connect(herd.nodes()[1].dsn, autocommit=True) as order:

        async def under_way() -> bool:
            await run(order, "ROLLBACK; UPDATE pgherd.shared_seen SET print = 'none'")
            await run(order, "BEGIN; SELECT pgherd.look_again()")
            return await run(admins[1], noted) == [("none",)]  # the sidecar has not looked since

        await wait_until_async(under_way)
        assert await run(admins[1], "SELECT unseen FROM pgherd.look_for_unseen()") == [([],)]
        assert await run(admins[1], noted) == [("none",)]
        await run(order, "ROLLBACK")
    await wait_until_async(lambda: run(admins[1], noted), lambda seen: seen != [("none",)])


async def until_it_waits(admin: Connection, waiter: Connection, task: "asyncio.Task[Any]") -> None:
    blocked = f"SELECT pg_blocking_pids({waiter.info.backend_pid}) <> '{{}}'"
    await wait_until_async(
        lambda: run(admin, blocked), lambda seen: task.done() or seen == [(True,)], brief=True
    )


@pytest.mark.long
async def test_who_sets_his_own_settings_without_end_stops_nobody(
    herd: LocalHerd, schema: str, admins: list[Connection]
) -> None:
    role = f"busy_{schema}"
    await run(admins[0], f"CREATE ROLE {role} LOGIN PASSWORD 'p'")
    await settled(admins)
    over = asyncio.Event()

    async def work(place: int, number: int) -> None:
        async with logged_in(herd, place, role) as one:
            while not over.is_set():
                number += 8
                # PostgreSQL itself says so to two sessions that set a role's settings at once.
                with contextlib.suppress(
                    psycopg.errors.InternalError_, psycopg.errors.UniqueViolation
                ):
                    setting = ("work_mem", "maintenance_work_mem")[place]
                    await run(one, f"ALTER ROLE {role} SET {setting} = '{2048 + number}kB'")

    began = (await run(admins[2], "SELECT pgherd.last_gid()"))[0][0]
    tasks = [asyncio.create_task(work(place, number)) for place in (0, 1) for number in range(3)]
    try:
        ordered = f"SELECT pgherd.last_gid() - {began} >= {_ROUNDS}"
        await until_same(admins, ordered, [(True,)])
    finally:
        over.set()
        await asyncio.gather(*tasks)
    await shared(admins, schema)
    error = await failure(admins[0], "SELECT 1/0")
    assert error.sqlstate == "22012"
