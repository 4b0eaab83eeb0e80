"""Members die, and are away, while roles are changed by plain commands: all end the same."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import psycopg
import pytest
from patience import wait_until_async

from .localherd import LocalHerd, query, settle
from .members import run, superusers
from .test_unseen_roles import settled, shared

pytestmark = pytest.mark.long

_CHANGES = (
    "CREATE ROLE {0} LOGIN PASSWORD 'a' CONNECTION LIMIT 3",
    "CREATE ROLE {0}_more; GRANT {0} TO {0}_more; GRANT CREATE ON DATABASE app TO {0}",
    "ALTER ROLE {0} RENAME TO {0}_new; ALTER ROLE {0}_new SET work_mem = '5MB'",
    "DROP ROLE {0}_more; REVOKE ALL ON DATABASE app FROM {0}_new; DROP ROLE {0}_new",
)
_STEPS = {
    "the origin's sidecar": ("n1", "sidecar"),
    "the origin": ("n1", "node"),
    "another's sidecar": ("n2", "sidecar"),
    "another": ("n3", "node"),
}


@pytest.fixture
async def quiet(herd: LocalHerd) -> AsyncIterator[LocalHerd]:
    yield herd
    for name in ("n1", "n2", "n3"):
        await asyncio.to_thread(herd.run, "start", name)
    await asyncio.to_thread(settle, herd)


@pytest.mark.parametrize("wait_s", [0, pytest.param(0.2, marks=pytest.mark.long), 0.5])
@pytest.mark.parametrize("step", list(_STEPS))
async def test_a_member_dies_after_each_change(
    quiet: LocalHerd, schema: str, step: str, wait_s: float
) -> None:
    """Before it is ordered, while it is, or when some have it already."""
    member, process = _STEPS[step]
    for change in _CHANGES:
        query(quiet.dsn("n1"), change.format(f"r_{schema}"))
        await asyncio.sleep(wait_s)
        await asyncio.to_thread(quiet.must, "kill", member, "--process", process)
        await asyncio.to_thread(quiet.must, "start", member)
        await asyncio.to_thread(settle, quiet)
        async with superusers(quiet, schema) as admins:
            left = await shared(admins, schema)
    assert [key for key, *_ in left if schema in key] == []


async def test_one_that_was_away_and_one_that_was_alone(quiet: LocalHerd, schema: str) -> None:
    """Changes of a member without a majority are ordered when it is back, as the later ones."""
    role = f"r_{schema}"
    query(quiet.dsn("n1"), f"CREATE ROLE {role} CONNECTION LIMIT 1")
    async with superusers(quiet, schema) as admins:
        await settled(admins)
    await asyncio.to_thread(quiet.must, "kill", "n3", "--process", "sidecar")
    query(quiet.dsn("n1"), f"ALTER ROLE {role} CONNECTION LIMIT 2 CREATEDB")
    query(quiet.dsn("n1"), f"CREATE ROLE {role}_more; GRANT {role} TO {role}_more")
    async with superusers(quiet, schema) as admins:
        await settled_two(quiet, role)
        # without its sidecar the server is read-only, but for those who know what they do
        await run(admins[2], "SET default_transaction_read_only = off")
        await run(admins[2], f"ALTER ROLE {role} CONNECTION LIMIT 3")
        await run(admins[2], f"ALTER ROLE {role} SET work_mem = '3MB'")
    await asyncio.to_thread(quiet.must, "start", "n3")
    await asyncio.to_thread(settle, quiet)
    async with superusers(quiet, schema) as admins:
        found = {key: value for key, value, _ in await shared(admins, schema)}
        assert '"CONNECTION LIMIT": 3' in found[f"{{role,{role}}}"]
        assert '"CREATEDB": true' in found[f"{{role,{role}}}"]
        assert '"work_mem": "3MB"' in found[f'{{"setting all",{role}}}']
        assert any(key.startswith(f"{{member,{role},{role}_more") for key in found)
        await run(admins[0], f"DROP ROLE {role}_more, {role}")
        await settled(admins)


async def settled_two(herd: LocalHerd, role: str) -> None:
    asked = f"SELECT rolcreatedb FROM pg_roles WHERE rolname LIKE '{role}%' ORDER BY rolname"
    await wait_until_async(
        lambda: asyncio.to_thread(query, herd.dsn("n2"), asked),
        lambda seen: seen == [(True,), (False,)],
    )


async def none_differs(herd: LocalHerd) -> None:
    """Wait until no member has a role that it could not drop: other tests use the herd."""
    await wait_until_async(
        lambda: asyncio.to_thread(herd.members),
        lambda seen: not any(one["roles_differ"] for one in seen),
    )


async def test_commands_and_roles_of_all_members_at_once(herd: LocalHerd, schema: str) -> None:
    """Nobody stops, whatever each command finds; afterwards all are the same."""
    roles = [f"{letter}_{schema}" for letter in "abc"]
    commands = (
        "CREATE ROLE {0}", "DROP ROLE {0}", "ALTER ROLE {0} CREATEDB", "GRANT {0} TO {1}",
        "ALTER ROLE {0} RENAME TO {1}", "CREATE SCHEMA s_{0} AUTHORIZATION {0}",
        "GRANT ALL ON SCHEMA {2} TO {0}", "DROP OWNED BY {0} CASCADE", "REVOKE {0} FROM {1}",
        "ALTER ROLE {0} SET work_mem = '5MB'", "REASSIGN OWNED BY {0} TO {1}",
        "GRANT CREATE ON DATABASE app TO {0}", "ALTER ROLE {0} PASSWORD 'x'",
    )  # fmt: skip

    async def work(place: int) -> int:
        done = 0
        for number in range(60):
            first, second = roles[(number + place) % 3], roles[(number * 2 + place + 1) % 3]
            statement = commands[(number * (place + 2) + place) % len(commands)]
            try:
                async with await psycopg.AsyncConnection.connect(
                    herd.nodes()[place].dsn, autocommit=True
                ) as one:
                    await run(one, statement.format(first, second, schema))
                    done += 1
            except psycopg.Error as error:
                assert error.sqlstate is None or error.sqlstate[:2] in (
                    "0A", "0L", "0P", "23", "2B", "3F", "40", "42", "57", "XX",
                ), error  # fmt: skip
        return done

    await asyncio.to_thread(settle, herd)  # all have the schema
    done = await asyncio.gather(*(work(place) for place in range(3)))
    assert min(done) > 5
    async with superusers(herd, schema) as admins:
        await shared(admins, schema)
        for name in roles:
            for statement in (
                f"DROP SCHEMA IF EXISTS s_{name} CASCADE",
                f"DROP OWNED BY {name} CASCADE",
                f"DROP ROLE {name}",
            ):
                with contextlib.suppress(psycopg.errors.UndefinedObject):
                    await run(admins[0], statement)
        await settled(admins)
    await none_differs(herd)
    assert {one["state"] for one in herd.members()} == {"primary"}
    assert "PH003" not in herd.must("status")
    herd.must("verify")


@pytest.mark.parametrize("method", ["basebackup", "dump"])
async def test_a_new_member_gets_what_all_have(herd: LocalHerd, schema: str, method: str) -> None:
    """It gets nothing that was changed on the member that it was copied from, until it is ordered.

    Else it would take that for a change of its own, and undo later ones with it.
    """
    old, new = f"old_{schema}", f"new_{schema}"
    query(
        herd.dsn("n1"),
        f"CREATE ROLE {old} CONNECTION LIMIT 1 PASSWORD 'x'; GRANT {old} TO app;"
        f"CREATE ROLE lim_{schema} LOGIN; SELECT pgherd.limit_role('lim_{schema}', '{{n1}}');"
        f"ALTER DATABASE app SET pgherd_test.x = '{schema}'; GRANT CREATE ON DATABASE app TO {old}",
    )
    async with superusers(herd, schema) as admins:
        await shared(admins, schema)
        for admin in admins:  # no member can order anything
            await run(admin, "BEGIN; LOCK TABLE pgherd.command_turn IN EXCLUSIVE MODE")
        for node in herd.nodes():
            query(node.dsn, f"ALTER ROLE {old} CONNECTION LIMIT 2; CREATE ROLE {new}")
            query(node.dsn, f"REVOKE {old} FROM app; ALTER DATABASE app RESET pgherd_test.x")
        try:
            done = await asyncio.to_thread(herd.run, "add", "n4", "--method", method)
            assert done.returncode == 0, done.stderr
            dsn = herd.member("n4")["dsn"]
            of_all = "SELECT key, value FROM pgherd.shared ORDER BY key"
            assert query(dsn, of_all) == query(herd.dsn("n1"), of_all)
            assert query(dsn, "SELECT key, value FROM pgherd.shared_now() ORDER BY key") == query(
                dsn, of_all
            )
            asked = (
                f"SELECT rolname, rolconnlimit, rolcanlogin FROM pg_roles"
                f" WHERE rolname LIKE '%{schema}' ORDER BY 1"
            )
            assert query(dsn, asked) == [(f"lim_{schema}", -1, False), (old, 1, False)]
        finally:
            for admin in admins:
                await run(admin, "ROLLBACK")
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as fourth:
            await shared([*admins, fourth], schema)
            assert await run(fourth, asked) == [
                (f"lim_{schema}", -1, False), (new, -1, False), (old, 2, False),
            ]  # fmt: skip
            await run(fourth, f"DROP OWNED BY {old}; DROP ROLE {old}, {new}, lim_{schema}")
            await shared([*admins, fourth], schema)
    herd.must("remove", "n4")
