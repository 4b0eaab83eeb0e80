"""Roles as commands, reasons as lines, connection strings without secrets."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pglast
import psycopg
import pytest
from pgherd_sidecar.importing import preflight, roles
from pgherd_sidecar.importing.ends import source
from pgherd_sidecar.importing.ends.connections import conninfo, without_password
from pgherd_sidecar.importing.ends.errors import Changed, ImportFailed
from pgherd_sidecar.importing.ends.model import SchemaStatement
from pgherd_sidecar.tables.rowsql import literal
from pgherd_sidecar.tables.values import UNCHANGED
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

_ROLE = {
    "superuser": False, "inherit": True, "createrole": False, "createdb": False, "login": True,
    "replication": False, "bypassrls": False, "connections": 3, "until": None,
}  # fmt: skip
_FIT: dict[str, Any] = {
    "version": 150020, "wal_level": "logical", "standby": False, "encoding": "UTF8",
    "database": "shop", "role": "mover", "superuser": False, "may_replicate": True,
    "may_create": True, "owns_database": True, "may_signal": True, "slots": 2, "senders": 2,
    "herd": False, "large_objects": False, "prepared": 0, "subscriptions": [],
    "reads_passwords": True,
}  # fmt: skip


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://mover:s3cr/et@source/shop", "postgresql://mover:s@s3cret@source/shop",
        "postgresql://mover:%s3cret@source/shop",
        "host=source password=x s3cret", "postgresql://source/shop@s3cret",
    ],
)  # fmt: skip
def test_a_connection_string_that_is_none_is_told_of_without_its_parts(dsn: str) -> None:
    """The error becomes a condition of the herd, and is answered to anybody who asks the pod."""
    with pytest.raises(ImportFailed, match="%40 for @") as raised:
        conninfo(dsn, {})
    assert "s3cr" not in str(raised.value)


def _membership(role: str, member: str, **options: bool) -> dict[str, Any]:
    """What the source says of one; without options as before PostgreSQL 16."""
    row = {"role": role, "member": member, "admin": False, "may_set": None}
    return row | {"inherits_instead": None} | options


async def read(monkeypatch: pytest.MonkeyPatch, answers: dict[str, Any]) -> roles.SourceRoles:
    async def rows(_session: Any, name: str, **_values: Any) -> Any:
        return answers.get(name, [])

    monkeypatch.setattr(source, "rows", rows)
    server = _FIT | {"reads_passwords": "passwords" in answers}
    return await roles.read(None, server, ["postgres", "app"])  # type: ignore[arg-type]


async def test_roles_come_with_what_they_may_and_their_passwords(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = await read(
        monkeypatch,
        {
            "role_list": [
                {"name": "app", **_ROLE},
                {"name": 'o"k', **_ROLE, "until": "2030-01-01 00:00:00+00"},
                {"name": "group", **_ROLE, "login": False, "createdb": True},
            ],
            "passwords": [{"name": 'o"k', "password": "md5it's"}],
            "memberships": [
                _membership("group", 'o"k', admin=True),
                _membership("app", "postgres"),
                _membership("pg_monitor", "stranger"),
            ],
        },
    )
    assert found.commands == (
        'CREATE ROLE "o""k" NOSUPERUSER INHERIT NOCREATEROLE NOCREATEDB LOGIN NOREPLICATION'
        " NOBYPASSRLS CONNECTION LIMIT 3 PASSWORD 'md5it''s' VALID UNTIL '2030-01-01 00:00:00+00'",
        'CREATE ROLE "group" NOSUPERUSER INHERIT NOCREATEROLE CREATEDB NOLOGIN NOREPLICATION'
        " NOBYPASSRLS CONNECTION LIMIT 3",
        'GRANT "group" TO "o""k" WITH ADMIN OPTION',
    )
    assert (found.made, found.kept, found.without_password) == (("group", 'o"k'), ("app",), ())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"may_set": True}, ""),
        ({"may_set": True, "inherits_instead": False}, " WITH INHERIT FALSE"),
        ({"may_set": False, "inherits_instead": True}, " WITH INHERIT TRUE, SET FALSE"),
        ({"may_set": False, "admin": True}, " WITH ADMIN OPTION, SET FALSE"),
    ],
)
async def test_a_membership_gives_no_more_than_at_the_source(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, bool], words: str
) -> None:
    found = await read(
        monkeypatch,
        {
            "role_list": [{"name": "clerk", **_ROLE}],
            "memberships": [_membership("app", "clerk", **options)],
        },
    )
    assert found.commands[1:] == (f'GRANT "app" TO "clerk"{words}',)
    assert len(pglast.parse_sql(found.commands[1])) == 1


async def test_who_has_no_password_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    found = await read(monkeypatch, {"role_list": [{"name": "clerk", **_ROLE}]})
    assert found.without_password == ("clerk",)


async def test_settings_of_roles_and_of_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    found = await read(
        monkeypatch,
        {
            "role_list": [{"name": "clerk", **_ROLE}, {"name": "app", **_ROLE}],
            "role_settings": [
                {"role": "clerk", "here": False, "setting": "work_mem=5MB"},
                {"role": "clerk", "here": True, "setting": 'search_path="$user", shop'},
                {"role": "app", "here": False, "setting": "work_mem=6MB"},
                {"role": None, "here": True, "setting": "application_name=it's"},
                {"role": None, "here": True, "setting": "default_transaction_read_only=on"},
            ],
        },
    )
    assert found.commands[1:] == (
        """ALTER ROLE "clerk" SET "work_mem" TO '5MB'""",
        """ALTER ROLE "clerk" IN DATABASE "app" SET "search_path" TO '$user', 'shop'""",
        """ALTER DATABASE "app" SET "application_name" TO 'it''s'""",
    )


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("search_path=", """ "search_path" TO ''"""),
        ('search_path=""', """ "search_path" TO ''"""),
        ('search_path="a, ""b""",c', """ "search_path" TO 'a, "b"', 'c'"""),
        ("search_path=a;drop/**/role'x'", """ "search_path" TO 'a;drop/**/role''x'''"""),
        ("x.y; DROP ROLE z; --=1", """ "x.y; DROP ROLE z; --" TO '1'"""),
        ('x."y=1', """ "x.""y" TO '1'"""),
    ],
)
async def test_a_setting_is_one_command_whatever_its_role_has_written(
    monkeypatch: pytest.MonkeyPatch, setting: str, words: str
) -> None:
    """Any role of the source may write it, and the herd's superuser executes the command."""
    answers = {
        "role_list": [{"name": "clerk", **_ROLE}],
        "role_settings": [{"role": "clerk", "here": False, "setting": setting}],
    }
    found = await read(monkeypatch, answers)
    assert found.commands[1:] == (f'ALTER ROLE "clerk" SET{words}',)
    assert len(pglast.parse_sql(found.commands[1])) == 1


class _Refusing:
    """A session with a herd that refuses commands in which a word stands."""

    broken = False

    def __init__(self, word: str) -> None:
        self._word = word
        self.executed: list[str] = []

    @asynccontextmanager
    async def transaction(self, **_options: bool) -> AsyncIterator[None]:
        yield

    async def execute(self, command: bytes | sql.Composed) -> None:
        text = command.decode() if isinstance(command, bytes) else command.as_string(None)
        self.executed.append(text)
        if self._word in text:
            raise psycopg.errors.InvalidParameterValue("no")


@pytest.mark.parametrize(
    ("refused", "executed"), [("CREATE ROLE", 1), ("OWNER TO", 3), ("CREATE FUNCTION", 4)]
)
async def test_a_trial_ends_where_an_object_would_stay_the_superusers(
    refused: str, executed: int
) -> None:
    """A function that the superuser owns is executed with his rights: for an index, say."""
    wanted = roles.SourceRoles(('CREATE ROLE "clerk"',), ("clerk",), (), ())
    made = [
        SchemaStatement("before", "CREATE FUNCTION s.f() RETURNS bool"),
        SchemaStatement("before", "ALTER FUNCTION s.f() OWNER TO clerk"),
        SchemaStatement("keys", "CREATE INDEX i ON s.t (a) WHERE s.f()"),
    ]
    session = _Refusing(refused)
    [_] = await preflight._tried(session, wanted, made)  # type: ignore[arg-type]
    assert len(session.executed) == executed


def test_a_source_that_fits_has_no_reason_against_it() -> None:
    assert list(preflight._server(_FIT)) == []


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        ({"version": 110000}, "PostgreSQL 11"),
        ({"version": 190000}, "PostgreSQL 19"),
        ({"wal_level": "replica"}, "wal_level"),
        ({"standby": True}, "standby"),
        ({"herd": True}, "member of a herd"),
        ({"encoding": "SQL_ASCII"}, "SQL_ASCII"),
        ({"slots": 1}, "replication slots"),
        ({"senders": 0}, "walsenders"),
        ({"may_replicate": False}, "may not replicate"),
        ({"may_create": False}, "GRANT CREATE"),
        ({"owns_database": False}, "stop writes"),
        ({"may_signal": False}, "pg_signal_backend"),
        ({"large_objects": True}, "large objects"),
        ({"subscriptions": ["feed"]}, "feed"),
        ({"prepared": 2}, "prepared transactions"),
    ],
)
def test_each_reason_is_one_line_that_says_what_to_do(bad: dict[str, Any], word: str) -> None:
    [reason] = preflight._server(_FIT | bad)
    assert word in str(reason)
    assert "\n" not in str(reason)
    assert reason.remedy


def test_all_reasons_are_told() -> None:
    bad = {"wal_level": "minimal", "slots": 0, "may_signal": False, "large_objects": True}
    assert len(list(preflight._server(_FIT | bad))) == 4


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ({"relation s.t": "2"}, "relation s.t has been altered"),
        ({}, "relation s.t is gone"),
        ({"relation s.t": "1", "index s.i": "1", "index s.j": "1"}, "index s.i is new, and 1 more"),
    ],
)
def test_ddl_is_told_by_what_was_changed(now: dict[str, str], said: str) -> None:
    source.require_same({"relation s.t": "1"}, {"relation s.t": "1"})
    with pytest.raises(Changed, match=said):
        source.require_same({"relation s.t": "1"}, now)


def test_a_password_is_not_kept() -> None:
    kept = without_password("postgresql://me:secret@host:5433/shop?options=-cjit%3Doff")
    assert conninfo_to_dict(kept) == {
        "user": "me", "dbname": "shop", "host": "host", "port": "5433",
    }  # fmt: skip


def test_the_password_of_a_key_is_not_kept() -> None:
    kept = conninfo_to_dict(without_password("host=h sslkey=client.key sslpassword=secret"))
    assert kept == {"host": "h", "sslkey": "client.key"}


def test_settings_of_the_user_stay_and_ours_come_behind() -> None:
    found = conninfo_to_dict(
        conninfo("host=h options='-c jit=off' connect_timeout=99", {"DateStyle": "ISO"})
    )
    assert found["options"] == "-c jit=off -c DateStyle=ISO"
    assert (found["connect_timeout"], found["application_name"]) == ("99", "pgherd import")


def test_a_connection_string_that_is_none_is_refused() -> None:
    with pytest.raises(ImportFailed, match="not one of libpq"):
        conninfo("nonsense", {})


def test_an_array_holds_any_text() -> None:
    assert literal(["a", None, 'b"c\\', "", "NULL"]) == '{"a",NULL,"b\\"c\\\\","","NULL"}'
    with pytest.raises(AssertionError):
        literal([UNCHANGED])
