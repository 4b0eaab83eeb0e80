"""Settings of a superuser that switch capture off are told of, and writes go on all the same."""

from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp
import pytest
from patience import wait_until_async
from pgherd_sidecar.client.admin import AdminClient
from pgherd_sidecar.local.herd import load

from .localherd import LocalHerd, home, query

_ROLE = "capture_off"


@contextmanager
def superuser_s(herd: LocalHerd, setting: str, undo: str) -> Iterator[None]:
    """Have a setting on n3."""
    dsn = herd.dsn("n3")
    query(dsn, f"CREATE ROLE {_ROLE}")
    try:
        query(dsn, setting)
        query(dsn, "SELECT pg_reload_conf()")
        yield
    finally:
        query(dsn, undo)
        query(dsn, "SELECT pg_reload_conf()")
        query(dsn, f"DROP ROLE {_ROLE}")


def alter_role(herd: LocalHerd, name: str, value: str) -> str:
    """The command; where the server knows no such setting, what a newer one would store."""
    if query(herd.dsn("n3"), f"SELECT FROM pg_settings WHERE name = '{name}'"):
        return f"ALTER ROLE {_ROLE} SET {name} = {value}"
    pair = f"{{{name}={value}}}"
    return (
        "DO $$ BEGIN SET LOCAL allow_system_table_mods = on; INSERT INTO pg_db_role_setting"
        f" VALUES (0, '{_ROLE}'::regrole, '{pair}'); END $$"
    )


async def until_told(admin: AdminClient, told: tuple[str, ...]) -> None:
    await wait_until_async(admin.status, lambda seen: seen.capture_off == told)


async def metrics(herd: LocalHerd, name: str = "n3") -> str:
    connector = aiohttp.UnixConnector(str(load(home(herd)).node(name).admin_socket))
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.get("http://sidecar/metrics") as response,
    ):
        return await response.text()


SERVER = "ALTER SYSTEM, postgresql.conf or the command line: "
CASES = {
    "ALTER SYSTEM SET session_replication_role = Replica": (
        "ALTER SYSTEM RESET session_replication_role",
        SERVER + "session_replication_role = replica",
    ),
    "ALTER DATABASE app SET session_replication_role = replica": (
        "ALTER DATABASE app RESET session_replication_role",
        "ALTER DATABASE app: session_replication_role = replica",
    ),
    "ALTER ROLE ALL SET session_replication_role = replica": (
        "ALTER ROLE ALL RESET session_replication_role",
        "ALTER ROLE ALL: session_replication_role = replica",
    ),
    f"ALTER ROLE {_ROLE} IN DATABASE app SET session_replication_role = replica": (
        "SELECT",
        f"ALTER ROLE {_ROLE} IN DATABASE app: session_replication_role = replica",
    ),
    "ALTER DATABASE app SET backtrace_functions = pgherd": (
        "ALTER DATABASE app RESET backtrace_functions",
        "ALTER DATABASE app: backtrace_functions = pgherd",
    ),
    "event_triggers": ("SELECT", f"ALTER ROLE {_ROLE}: event_triggers = off"),
}


@pytest.mark.family(every=3)
@pytest.mark.parametrize("case", CASES)
async def test_what_switches_capture_off_is_told_and_refuses_no_write(
    herd: LocalHerd, schema: str, case: str
) -> None:
    undo, told = CASES[case]
    setting = alter_role(herd, case, "Off") if case == "event_triggers" else case
    admin = AdminClient(load(home(herd)).node("n3").admin_socket)
    log = next(home(herd).glob("**/n3/**/sidecar.log"))
    before = log.read_text()
    with superuser_s(herd, setting, undo):
        await until_told(admin, (told,))
        assert f"n3: what this lets by is not replicated: {told}" in herd.must("status")
        shown = {member["name"]: member["capture_off"] for member in herd.members()}
        assert shown == {"n1": [], "n2": [], "n3": [told]}
        assert 'pgherd_capture_off_settings{member="n3"} 1\n' in await metrics(herd)
        lines = log.read_text()[len(before) :].splitlines()
        (line,) = (one for one in lines if "capture.off" in one)
        assert told in line
        assert "warning" in line
        assert herd.member("n3")["state"] == "primary"
    await until_told(admin, ())


async def test_a_setting_of_another_database_hides_nothing(herd: LocalHerd) -> None:
    dsn, admin = herd.dsn("n3"), AdminClient(load(home(herd)).node("n3").admin_socket)
    setting = "ALTER SYSTEM SET session_replication_role = Replica"
    undo, told = CASES[setting]
    query(dsn, "ALTER DATABASE template1 SET session_replication_role = origin")
    try:
        with superuser_s(herd, setting, undo):
            await until_told(admin, (told,))
    finally:
        query(dsn, "ALTER DATABASE template1 RESET session_replication_role")
    await until_told(admin, ())


@pytest.mark.parametrize(
    "setting",
    [
        "session_replication_role = origin",
        "session_replication_role = local",
        "backtrace_functions = pgherd_of_somebody_else",
        "event_triggers = on",
    ],
)
async def test_other_values_are_nobody_s_business(herd: LocalHerd, setting: str) -> None:
    with superuser_s(herd, alter_role(herd, *setting.split(" = ")), "SELECT"):
        assert query(herd.dsn("n3"), "SELECT pgherd.capture_off()") == [(None,)]
