"""A dump of a node, and a snapshot, load into a plain server as its own would: docs/leaving.md."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pgherd_sidecar.local import herd as herds
from pgherd_spark.snapshots import snapshot
from pgherd_spark.storing.stores import DirectoryStore
from psycopg.conninfo import make_conninfo

from .installations import program
from .localherd import (
    COMMAND_TIMEOUT_S,
    LocalHerd,
    error_of,
    free_port_base,
    home,
    put,
    query,
    settle,
    standing,
)
from .plainpostgres import PlainPostgres, plain_postgres
from .shop import dumped, fill_herd, fill_plain, repeat
from .sparkherd import NEEDS_PYARROW, OneByOne, members_of

_USED = """
CREATE TABLE used (id serial PRIMARY KEY, n int);
"""


@pytest.fixture(scope="module")
def herd(work_directory: Path) -> Iterator[LocalHerd]:
    with standing(LocalHerd(work_directory / "dumped", free_port_base(3)), "--nodes", "2") as herd:
        fill_herd(herd, _USED)
        yield herd


@pytest.fixture(scope="module")
def twin(work_directory: Path, herd: LocalHerd) -> Iterator[PlainPostgres]:
    """A plain server on which the same was executed; other databases of it are loaded."""
    with plain_postgres(
        work_directory / "twin", free_port_base(1) + 1, herd.dsn("n1"), "max_wal_size = '1GB'\n"
    ) as server:
        fill_plain(server, _USED)
        yield server


@pytest.fixture
def target(twin: PlainPostgres) -> Iterator[str]:
    """An empty database of the plain server."""
    query(twin.dsn(), "CREATE DATABASE target OWNER app")
    yield twin.dsn("target")
    query(twin.dsn(), "DROP DATABASE target WITH (FORCE)")


def export(herd: LocalHerd, *words: str) -> subprocess.CompletedProcess[bytes]:
    """Run the command; its output may be an archive."""
    done = subprocess.run(
        [sys.executable, "-m", "pgherd_sidecar.cli.main", "export", "dump", *words,
         "--dir", str(herd.directory)],
        capture_output=True, timeout=COMMAND_TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr
    return done


def load(twin: PlainPostgres, name: str, *words: str, text: bytes | None = None) -> None:
    """Load a dump by psql or pg_restore, which stop at the first error."""
    done = subprocess.run(
        [program(name, twin.major), *words], input=text, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr


def same(target: str, twin: PlainPostgres, *arguments: str) -> None:
    assert dumped(target, *arguments).replace("target", "app") == dumped(twin.dsn(), *arguments)


@pytest.mark.parametrize("name", ["n1", "n2"])
def test_text_is_that_of_a_plain_server(
    herd: LocalHerd, twin: PlainPostgres, target: str, name: str
) -> None:
    done = export(herd, name)
    assert done.stderr == b""
    text = re.sub(rb"^\\(un)?restrict .*\n", b"", done.stdout, flags=re.MULTILINE)
    assert text.decode() == dumped(twin.dsn())
    load(twin, "psql", "-XqvON_ERROR_STOP=1", "-d", target, text=done.stdout)
    same(target, twin)


def test_a_dump_by_pg_dump_itself_is_not(herd: LocalHerd, twin: PlainPostgres) -> None:
    bare = dumped(herd.dsn("n1"), "--schema-only", "-N", "pgherd", "-N", "pgherd_gen")
    assert bare != dumped(twin.dsn(), "--schema-only")
    assert "pgherd" in bare


def test_a_role_that_may_read_everything_dumps_all_but_ours(
    herd: LocalHerd, twin: PlainPostgres
) -> None:
    query(herd.dsn("n1"), "CREATE ROLE backup LOGIN PASSWORD 'b'; GRANT pg_read_all_data TO backup")
    backup = make_conninfo(herd.app_dsn("n1"), user="backup", password="b")
    with pytest.raises(subprocess.CalledProcessError) as refused:
        dumped(backup)
    assert "row-level security policy" in str(refused.value.stderr)
    rows = ("--data-only", "-T", "shop.nokey")  # which has row security by its owner's wish
    bare = dumped(backup, *rows, "--exclude-schema=pgherd*")
    assert without_numbers(bare) == without_numbers(dumped(twin.dsn(), *rows))
    put(herd, herd.dsn("n1"), "SELECT pgherd.run_everywhere('DROP ROLE backup')")


def without_numbers(dump: str) -> str:
    return re.sub(r"^SELECT pg_catalog\.setval.*\n", "", dump, flags=re.MULTILINE)


@pytest.mark.long
def test_an_archive_in_custom_format(
    herd: LocalHerd, twin: PlainPostgres, target: str, tmp_path: Path
) -> None:
    export(herd, "n2", "--format", "custom", "--to", str(tmp_path / "dump"))
    assert (tmp_path / "dump").stat().st_mode & 0o777 == 0o600
    load(twin, "pg_restore", "--exit-on-error", "-j2", "-d", target, str(tmp_path / "dump"))
    same(target, twin)
    piped = export(herd, "n2", "--format", "custom").stdout
    listed = [program("pg_restore", twin.major), "--list"]
    contents = subprocess.run(listed, input=piped, capture_output=True, check=True).stdout
    assert b"TABLE DATA shop orders" in contents
    assert b"pgherd" not in contents.replace(b"pgherd_apply", b"")


@pytest.mark.long
def test_an_archive_in_directory_format_by_several_jobs(
    herd: LocalHerd, twin: PlainPostgres, target: str, tmp_path: Path
) -> None:
    export(herd, "n1", "-j2", "--format", "directory", "--to", str(tmp_path / "dump"))
    load(twin, "pg_restore", "--exit-on-error", "-j2", "-d", target, str(tmp_path / "dump"))
    same(target, twin)
    assert "is there already" in error_of(herd.top("export", "dump", "--to", str(tmp_path)))


@pytest.mark.parametrize(
    "words",
    [
        ("--schema-only",),
        ("--data-only",),
        ("-sOx", "--no-comments"),
        ("--clean", "--if-exists", "--create", "-s"),
        ("-t", "shop.orders", "--inserts"),
        ("-n", "shop", "-T", "shop.parted", "--section=pre-data"),
    ],
)
def test_arguments_of_pg_dump(herd: LocalHerd, twin: PlainPostgres, words: tuple[str, ...]) -> None:
    text = re.sub(
        r"^\\(un)?restrict .*\n", "", export(herd, "n1", *words).stdout.decode(), flags=re.M
    )
    assert text == dumped(twin.dsn(), *words)


def test_numbers_are_past_those_of_all_members_and_of_the_rows(
    herd: LocalHerd, twin: PlainPostgres, target: str
) -> None:
    rows = [
        query(node.app_dsn, "INSERT INTO used (n) VALUES (1) RETURNING id")[0][0]
        for node in herd.nodes()
        for _ in range(3)
    ]
    text = export(herd).stdout
    load(twin, "psql", "-XqvON_ERROR_STOP=1", "-d", target, text=text)
    numbers = "SELECT nextval('used_id_seq') FROM generate_series(1, 3)"
    following = [number for (number,) in query(target, numbers)]
    assert following == list(range(max(rows) + 1, max(rows) + 4))


def test_what_a_plain_server_has_not_is_told(herd: LocalHerd, twin: PlainPostgres) -> None:
    body = "CREATE FUNCTION shop.speaks() RETURNS bigint LANGUAGE sql AS 'SELECT pgherd.last_gid()'"
    repeat(herd.app_dsn("n1"), body)
    done = export(herd, "n1", "-s")
    assert b"FUNCTION shop speaks()" in done.stderr
    assert b"which a plain server has not" in done.stderr
    repeat(herd.app_dsn("n1"), "DROP FUNCTION shop.speaks()")


def test_what_is_wrong_is_told_in_a_line(herd: LocalHerd, tmp_path: Path) -> None:
    for words, told in (
        (("n9",), "unknown node n9"),
        (("n1", "-Fc"), "-F is taken: give --format"),
        (("n1", "--format", "directory"), "give --to"),
        (("n1", "--nonsense"), "pg_dump has failed"),
        (("n1", "--format", "custom", "--nonsense", "--to", str(tmp_path / "d")), "pg_dump has"),
    ):
        assert told in error_of(herd.top("export", "dump", *words))
    assert list(tmp_path.iterdir()) == []


def test_a_table_of_some_size_comes_whole(
    herd: LocalHerd, twin: PlainPostgres, target: str, tmp_path: Path
) -> None:
    repeat(herd.app_dsn("n1"), "CREATE TABLE wide (id int PRIMARY KEY, t text)")
    many = "INSERT INTO wide SELECT g, repeat(md5(g::text), 20) FROM generate_series(1, 5000) g"
    repeat(herd.app_dsn("n1"), many)
    file = tmp_path / "wide.sql"
    export(herd, "n1", "-t", "wide", "--to", str(file))
    load(twin, "psql", "-XqvON_ERROR_STOP=1", "-d", target, "-f", str(file))
    total = "SELECT count(*), sum(hashtext(t)) FROM wide"
    settle(herd)
    assert query(target, total) == query(herd.app_dsn("n2"), total)
    repeat(herd.app_dsn("n1"), "DROP TABLE wide")


def test_roles_are_those_of_a_plain_server(herd: LocalHerd, twin: PlainPostgres) -> None:
    told = herd.top("export", "roles", "n2")
    wanted = dumped(twin.dsn(), "--roles-only", name="pg_dumpall")
    assert commands(told.stdout) == commands(wanted)


def commands(script: str) -> list[str]:
    """Its lines but for comments, the random word, and verifiers, which each server salts."""
    lines = [re.sub(r" PASSWORD '.*'", "", line) for line in script.splitlines()]
    return [line for line in lines if line and not line.startswith(("--", "\\"))]


@NEEDS_PYARROW
async def test_a_snapshot_is_put_into_a_plain_server(
    herd: LocalHerd, twin: PlainPostgres, target: str, tmp_path: Path
) -> None:
    programs = herds.load(home(herd)).postgres_bin
    query(
        herd.dsn("n2"), "CREATE ROLE elsewhere LOGIN; SELECT pgherd.limit_role('elsewhere', '{n2}')"
    )
    settle(herd)
    asked = snapshot.SnapshotOptions(
        to=DirectoryStore(tmp_path), read=("n1",), programs=programs, cluster_id="of this test",
        part_bytes=100_000,
    )  # fmt: skip
    await snapshot.snapshot(OneByOne(), members_of(herd), asked, print)
    query(twin.dsn(), "CREATE ROLE pgherd_apply")  # as an attempt that has failed leaves it
    done = put_in(tmp_path, target)
    assert done.returncode == 0, done.stderr
    assert "roles that were limited to some nodes log in again: elsewhere" in done.stderr
    login = "SELECT rolcanlogin FROM pg_roles WHERE rolname = 'elsewhere'"
    assert query(twin.dsn(), login) == [(True,)]
    for server in (herd.dsn("n1"), twin.dsn()):
        query(server, "DROP ROLE elsewhere")
    values = re.compile(r"^SELECT pg_catalog\.setval.*\n", re.MULTILINE)
    ours, theirs = (values.sub("", dumped(dsn, "-T", "used")) for dsn in (target, twin.dsn()))
    assert ours == theirs
    roles = ("--roles-only", "--no-role-passwords")
    assert "pgherd" not in dumped(twin.dsn(), *roles, name="pg_dumpall")
    query(target, "SELECT lo_unlink(lo_create(0))")
    ((next_,),) = query(target, "SELECT nextval('shop.customer_id_seq')")
    assert next_ > 56
    assert query(target, "SELECT nextval('shop.loose')") == [(17,)]
    assert "the database is not empty" in error_of(put_in(tmp_path, target))
    assert "the server is a member of a herd" in error_of(put_in(tmp_path, herd.dsn("n1")))


def put_in(folder: Path, dsn: str) -> subprocess.CompletedProcess[str]:
    """Put the newest snapshot of a folder into a database."""
    return subprocess.run(
        [sys.executable, "-m", "pgherd_sidecar.cli.main", "export", "snapshot", str(folder),
         "--to", dsn, "--jobs", "2"],
        capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False,
    )  # fmt: skip
