"""Commands that a member's machine can't execute: it is asked before they are ordered.

n1 and n2 run on a copy of PostgreSQL with files of ours in it. n3 runs on one that lacks these.
"""

import asyncio
import contextlib
import random
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from patience import wait_until, wait_until_async

from . import installations
from .ledger import create_everywhere
from .localherd import LocalHerd, free_port_base, home, query, settle, standing

_SLOW_S = 5  # long enough to be killed meanwhile, and less than a member takes for a try

#: Extensions that the copy has files of. The second of them makes a schema for itself.
_EXTENSIONS = ("gadget", "gears", "gizmo", "keepers", "slow")

#: As the scripts of pgq and others do it: roles are made unless they are there.
_ROLES = """
DO $$ BEGIN
    IF to_regrole('keeper') IS NULL THEN CREATE ROLE keeper; END IF;
    IF to_regrole('"Head"') IS NULL THEN CREATE ROLE "Head" CREATEDB IN ROLE keeper; END IF;
END $$;
REVOKE ALL ON FUNCTION keepers() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION keepers() TO keeper;
"""


def _installation(into: Path) -> Path:
    """Copy PostgreSQL; return the directory of its programs."""
    found = sorted(installations.usable())[-1]
    programs = Path(installations.program("postgres", found)).resolve().parent
    ask = {"lib": "--pkglibdir", "share": "--sharedir"}
    root = Path("/usr")
    if not programs.is_relative_to(root):
        pytest.skip(f"{programs} is not where packages of Debian put it")
    for option in ask.values():
        where = subprocess.run(
            [programs / "pg_config", option], capture_output=True, text=True, check=True
        ).stdout.strip()
        shutil.copytree(
            where,
            into / Path(where).relative_to(root),
            ignore=shutil.ignore_patterns("bitcode", "contrib", "man"),
        )
    copied = into / programs.relative_to(root)
    shutil.copytree(programs, copied)
    share = into / "share" / "postgresql" / str(found)
    (share / "timezonesets" / "Own").write_text("@INCLUDE Default\nOWNT 3600\n")
    (share / "tsearch_data" / "own.stop").write_text("the\n")
    for name in _EXTENSIONS:
        place = "schema = gears" if name == "gears" else "relocatable = true"
        control = f"comment = 'for a test'\ndefault_version = '1.0'\n{place}\n"
        (share / "extension" / f"{name}.control").write_text(control)
        body = f"SELECT pg_sleep({_SLOW_S});" if name == "slow" else ""
        made = f"{body} CREATE FUNCTION {name}() RETURNS int LANGUAGE sql AS 'SELECT 1';"
        made += _ROLES if name == "keepers" else ""
        (share / "extension" / f"{name}--1.0.sql").write_text(made)
        change = f"CREATE FUNCTION {name}_more() RETURNS int LANGUAGE sql AS 'SELECT 2';"
        (share / "extension" / f"{name}--1.0--1.1.sql").write_text(change)
    return copied


def _make_lean(programs: Path) -> None:
    """Take away what n3 shall lack."""
    share = programs.parents[3] / "share" / "postgresql" / programs.parents[0].name
    (share / "timezonesets" / "Own").unlink()
    (share / "tsearch_data" / "own.stop").unlink()
    (share / "tsearch_data" / "german.stop").unlink()
    (share / "extension" / "gadget.control").unlink()
    (share / "extension" / "gizmo--1.0--1.1.sql").unlink()


@pytest.fixture(scope="module")
def unlike(work_directory: Path) -> Iterator[LocalHerd]:
    """A herd of which n3 has another machine."""
    full = _installation(work_directory / "full")
    lean = _installation(work_directory / "lean")
    _make_lean(lean)
    herd = LocalHerd(work_directory / "unlike", free_port_base())
    with standing(herd, "--nodes", "2", "--postgres-bin", str(full)):
        herd.must("add", "n3", "--postgres-bin", str(lean))
        query(herd.dsn("n3"), "DELETE FROM pg_collation WHERE collname = 'sv-x-icu'")
        query(
            herd.dsn("n3"),
            "UPDATE pg_collation SET collcollate = 'zz_ZZ', collctype = 'zz_ZZ'"
            " WHERE collname = 'C.utf8'",
        )
        yield herd


@pytest.fixture
def schema(unlike: LocalHerd) -> str:
    """An empty schema, first in the search path of whoever uses it."""
    name = f"v_{random.getrandbits(40):x}"
    create_everywhere(unlike, f"CREATE SCHEMA {name}; CREATE TABLE {name}.t (id int PRIMARY KEY)")
    return name


def _run(herd: LocalHerd, node: str, schema: str, *statements: str) -> None:
    """Execute statements in one transaction."""
    path = f"-c search_path={schema},public"
    with (
        psycopg.connect(herd.dsn(node), autocommit=True, options=path) as connection,
        connection.transaction(),
    ):
        for statement in statements:
            connection.execute(statement.encode())


def _vetoed(herd: LocalHerd, schema: str, *statements: str) -> str:
    """Have a transaction be refused because of n3; return the message."""
    settle(herd)  # a member that waits for what it was asked about might take too long
    with pytest.raises(psycopg.errors.FeatureNotSupported) as caught:
        _run(herd, "n1", schema, *statements)
    said = caught.value.diag
    assert said.message_primary is not None
    assert said.message_primary.startswith("member n3 can't execute this: ")
    assert "n3" in (said.message_hint or "")
    return said.message_primary


def _alike(herd: LocalHerd, schema: str) -> None:
    """All take part, and a write on each reaches all."""
    for number, node in enumerate(["n1", "n2", "n3"]):
        query(herd.dsn(node), f"INSERT INTO {schema}.t VALUES ({number})")
    wait_until(
        lambda: all(
            len(query(herd.dsn(node), f"TABLE {schema}.t")) >= 3 for node in ["n1", "n2", "n3"]
        )
    )
    assert [member["state"] for member in herd.members()] == ["primary"] * 3


def test_an_extension_of_which_a_member_has_no_files(unlike: LocalHerd, schema: str) -> None:
    assert "gadget" in _vetoed(unlike, schema, "CREATE EXTENSION gadget")
    assert query(unlike.dsn("n1"), "SELECT 1 FROM pg_extension WHERE extname = 'gadget'") == []
    made = f"{schema}_e"
    _vetoed(unlike, schema, f"CREATE SCHEMA {made}", f"CREATE EXTENSION gadget SCHEMA {made}")
    assert query(unlike.dsn("n1"), f"SELECT to_regnamespace('{made}')") == [(None,)]
    _alike(unlike, schema)


def test_a_version_of_which_a_member_has_no_files(unlike: LocalHerd, schema: str) -> None:
    assert "1.1" in _vetoed(unlike, schema, "CREATE EXTENSION gizmo VERSION '1.1'")
    _run(unlike, "n1", schema, f"CREATE EXTENSION gizmo SCHEMA {schema}")
    assert "1.1" in _vetoed(unlike, schema, "ALTER EXTENSION gizmo UPDATE TO '1.1'")
    _alike(unlike, schema)
    assert query(unlike.dsn("n3"), f"SELECT {schema}.gizmo()") == [(1,)]


def test_an_extension_that_makes_its_schema(unlike: LocalHerd, schema: str) -> None:
    _run(unlike, "n1", schema, "CREATE EXTENSION gears")
    _alike(unlike, schema)
    for node in ["n1", "n2", "n3"]:
        assert query(unlike.dsn(node), "SELECT gears.gears()") == [(1,)]
    owners = "SELECT nspowner::regrole::text FROM pg_namespace WHERE nspname = 'gears'"
    assert len({str(query(unlike.dsn(node), owners)) for node in ["n1", "n2", "n3"]}) == 1


def test_roles_that_an_extension_makes_are_made_first(unlike: LocalHerd, schema: str) -> None:
    """Each member would make its own, and all but one would lose them with all grants."""
    makes = 'makes roles: keeper, "Head"'
    with pytest.raises(psycopg.errors.FeatureNotSupported, match=makes) as it:
        _run(unlike, "n1", schema, f"CREATE EXTENSION keepers SCHEMA {schema}")
    hint = it.value.diag.message_hint or ""
    first = hint.partition(": ")[2]
    assert first == 'CREATE ROLE keeper; CREATE ROLE "Head" CREATEDB; GRANT keeper TO "Head";'
    _run(unlike, "n1", schema, first, f"CREATE EXTENSION keepers SCHEMA {schema}")
    _alike(unlike, schema)
    may = f"SELECT has_function_privilege('Head', '{schema}.keepers()', 'execute')"
    for node in ["n1", "n2", "n3"]:
        assert query(unlike.dsn(node), may) == [(True,)]


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TEXT SEARCH DICTIONARY d (TEMPLATE = simple, STOPWORDS = own)",
        "CREATE TABLE g (x text, y tsvector GENERATED ALWAYS AS (to_tsvector('german', x)) STORED)",
        'CREATE TABLE g (x text COLLATE "sv-x-icu")',
        'CREATE DOMAIN g AS text COLLATE "C.utf8"',
        'ALTER TABLE t ADD COLUMN x text COLLATE pg_catalog."sv-x-icu"',
        'CREATE COLLATION g FROM "sv-x-icu"',
        "CREATE FUNCTION g() RETURNS int LANGUAGE sql SET timezone_abbreviations = 'Own'"
        " AS 'SELECT 1'",
    ],
)
def test_what_a_command_names(unlike: LocalHerd, schema: str, statement: str) -> None:
    _vetoed(unlike, schema, statement)
    _alike(unlike, schema)


def test_what_the_session_of_a_command_has_set(unlike: LocalHerd, schema: str) -> None:
    setting = "SET LOCAL timezone_abbreviations = 'Own'"
    assert "Own" in _vetoed(unlike, schema, setting, "CREATE TABLE g (id int PRIMARY KEY)")
    _run(unlike, "n1", schema, "CREATE TABLE g (id int PRIMARY KEY)")
    _alike(unlike, schema)


def test_what_all_have_is_ordered(unlike: LocalHerd, schema: str) -> None:
    _run(
        unlike,
        "n1",
        schema,
        "SET LOCAL TimeZone = 'Europe/Stockholm'",
        "CREATE COLLATION c (provider = icu, locale = 'sv')",
        "CREATE TEXT SEARCH CONFIGURATION s (COPY = english)",
        'CREATE TABLE g (x text COLLATE c, z text COLLATE "de-x-icu", at timestamptz'
        " CHECK (at AT TIME ZONE 'Europe/Berlin' > '2001-01-01'),"
        " y tsvector GENERATED ALWAYS AS (to_tsvector('s', z)) STORED, PRIMARY KEY (x))",
        "INSERT INTO g VALUES ('a', 'the dogs', '2020-02-02')",
        f"CREATE EXTENSION hstore SCHEMA {schema}",
    )
    _alike(unlike, schema)
    assert query(unlike.dsn("n3"), f"SELECT y::text FROM {schema}.g") == [("'dog':2",)]


def test_a_lock_that_is_not_free_is_no_veto(unlike: LocalHerd, schema: str) -> None:
    """Nor does the member that is asked keep anybody waiting."""
    with psycopg.connect(unlike.dsn("n3")) as holder:
        holder.execute("SELECT FROM pg_ts_dict WHERE dictname = 'simple' FOR UPDATE")
        holder.execute("LOCK pg_ts_dict IN SHARE MODE")
        log = home(unlike) / "n1" / "sidecar.log"
        before = len(log.read_text().splitlines())
        _run(unlike, "n1", schema, "CREATE TEXT SEARCH DICTIONARY d (TEMPLATE = simple)")
        with contextlib.suppress(psycopg.errors.AdminShutdown):  # the command itself does not wait
            holder.commit()
    _run(unlike, "n1", schema, "CREATE TEXT SEARCH DICTIONARY e (TEMPLATE = simple)")
    told = [line for line in log.read_text().splitlines()[before:] if "command.not_voted" in line]
    of_n3 = [line for line in told if "n3" in line]
    assert len(of_n3) == 1, told  # who has answered too late is not asked the second time
    _alike(unlike, schema)


def _asked(herd: LocalHerd, node: str) -> bool:
    rows = query(
        herd.dsn(node),
        "SELECT 1 FROM pg_stat_activity"
        " WHERE application_name = 'pgherd vote' AND state = 'active'",
    )
    return len(rows) > 0


@pytest.mark.long
@pytest.mark.parametrize(
    "process", ["node", *(pytest.param(p, marks=pytest.mark.long) for p in ("sidecar", "postgres"))]
)
async def test_a_member_killed_while_it_is_asked(
    unlike: LocalHerd, schema: str, process: str
) -> None:
    """The command goes on without its answer, and it executes the command when it is back."""
    await asyncio.to_thread(query, unlike.dsn("n1"), "DROP EXTENSION IF EXISTS slow")
    await asyncio.to_thread(_alike, unlike, schema)
    command = f"CREATE EXTENSION slow SCHEMA {schema}"
    running = asyncio.create_task(asyncio.to_thread(_run, unlike, "n1", schema, command))
    await wait_until_async(
        lambda: asyncio.to_thread(_asked, unlike, "n3"), brief=True, hopeless=running.done
    )
    await asyncio.to_thread(unlike.must, "kill", "n3", "--process", process)
    await running
    await asyncio.to_thread(unlike.must, "start", "n3")
    for node in ("n1", "n2", "n3"):
        await wait_until_async(
            partial(asyncio.to_thread, _made, unlike, node), lambda seen: seen == 1
        )
    await asyncio.to_thread(unlike.must, "verify")


def _made(herd: LocalHerd, node: str) -> int:
    try:
        rows: list[Any] = query(herd.dsn(node), "SELECT 1 FROM pg_extension WHERE extname = 'slow'")
    except psycopg.OperationalError:
        return 0
    return len(rows)
