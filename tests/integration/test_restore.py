"""A snapshot put into a server without Spark: what is there then is compared, not believed."""

import asyncio
import copy
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, ClassVar, cast

import psycopg
import pytest
from pgherd_spark.restoring import proof, restore
from pgherd_spark.restoring.restore import RestoreError
from pgherd_spark.snapshots import snapshot
from pgherd_spark.storing.parts import PartError
from pgherd_spark.storing.stores import DirectoryStore

from .ledger import create_everywhere
from .localherd import LocalHerd, query
from .sparkherd import NEEDS_PYARROW, Snapshot, database, given_back, put, take

pytestmark = NEEDS_PYARROW

_ROWS = 3000
_EMPTY_FRAME = bytes.fromhex("502a4d1800000000")
"""Which zstd passes over: the rows stay the same."""


@pytest.fixture(scope="module")
def table(herd: LocalHerd) -> Iterator[str]:
    name = f"r_{random.getrandbits(40):x}"
    create_everywhere(
        herd,
        f"CREATE TABLE {name} (id int PRIMARY KEY, t text UNIQUE);"
        f"INSERT INTO {name} SELECT g, sha512(g::text::bytea)::text"
        f" FROM generate_series(1, {_ROWS}) g",
    )
    yield name
    query(herd.nodes()[0].dsn, f"DROP TABLE {name}")


@pytest.fixture
async def taken(herd: LocalHerd, table: str, tmp_path: Path) -> Snapshot:
    return await take(herd, tmp_path, part_bytes=100_000)


@pytest.fixture
def empty(herd: LocalHerd) -> Iterator[str]:
    """Likewise, for one test."""
    with database(herd) as conninfo:
        yield conninfo


def of_table(manifest: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = (one for one in manifest["tables"] if one["name"] == f"public.{name}")
    assert isinstance(found, dict)
    return found


def test_all_rows_are_loaded_in_parts_and_compared_in_ranges(
    herd: LocalHerd, table: str, taken: Snapshot, empty: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, manifest = taken
    assert len(of_table(manifest, table)["parts"]) > 1
    monkeypatch.setattr(proof, "_RANGE_BLOCKS", 7)
    put(herd, store, manifest, empty)
    asked = f"SELECT count(*), md5(string_agg(t, '' ORDER BY id)) FROM {table}"
    assert query(empty, asked) == query(herd.dsn("n1"), asked)
    blocks = f"SELECT pg_relation_size('{table}') / current_setting('block_size')::int"
    assert query(empty, blocks)[0] > (14,)  # three ranges at least
    analyzed = f"SELECT reltuples::int FROM pg_class WHERE oid = '{table}'::regclass"
    assert query(empty, analyzed) == [(_ROWS,)]
    with pytest.raises(psycopg.errors.UniqueViolation):
        query(empty, f"INSERT INTO {table} SELECT 0, t FROM {table} WHERE id = 1")


def test_rows_that_are_not_the_snapshot_s_are_noticed(
    herd: LocalHerd, table: str, taken: Snapshot, empty: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, manifest = taken
    monkeypatch.setattr(proof, "_RANGE_BLOCKS", 7)
    wrong = copy.deepcopy(manifest)
    of_table(wrong, table)["parts"].pop()
    wanted = rf"public\.{table}: \d+ rows .* has {_ROWS} with"
    with database(herd) as used, pytest.raises(RestoreError, match=wanted):
        put(herd, store, wrong, used)
    tables = [of_table(manifest, table)]
    put(herd, store, manifest | {"tables": tables, "sequences": []}, empty)
    assert list(proof.differences(map, empty, tables)) == []
    query(empty, f"UPDATE {table} SET t = t || ' ' WHERE id = {random.randint(1, _ROWS)}")
    (told,) = proof.differences(map, empty, tables)
    assert told.startswith(f"public.{table}: {_ROWS} rows with checksum ")


def test_rows_that_an_extension_brings_are_replaced_by_the_snapshot_s(
    herd: LocalHerd, table: str, taken: Snapshot, empty: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, manifest = taken
    make = restore._pg_restore

    def as_an_extension(*arguments: Any) -> None:
        make(*arguments)
        if "pre-data" in arguments:
            query(
                empty,
                f"CREATE EXTENSION seg; INSERT INTO {table} SELECT 1, 'brought';"
                f"ALTER EXTENSION seg ADD TABLE {table}",
            )

    monkeypatch.setattr(restore, "_pg_restore", as_an_extension)
    tables = [of_table(manifest, table)]
    put(herd, store, manifest | {"tables": tables, "sequences": []}, empty)
    assert query(empty, f"SELECT count(*) FROM {table} WHERE t = 'brought'") == [(0,)]


async def test_commands_that_come_while_rows_are_copied_leave_the_snapshot_as_it_was(
    herd: LocalHerd, empty: str, tmp_path: Path
) -> None:
    schema, dsn = f"r_{random.getrandbits(40):x}", herd.nodes()[0].dsn
    create_everywhere(
        herd,
        f"CREATE SCHEMA {schema}; SET search_path = {schema};"
        "CREATE TABLE t (id serial PRIMARY KEY); CREATE SEQUENCE dropped;"
        "CREATE SEQUENCE renamed; CREATE SEQUENCE down INCREMENT -1;"
        "CREATE TYPE mood AS ENUM ('low', 'high'); CREATE TYPE pair AS (a int, b int);"
        "CREATE TYPE unused AS (a int);"
        "CREATE TABLE u (id int PRIMARY KEY, m mood, p pair);"
        "INSERT INTO u VALUES (1, 'low', '(1,2)')",
    )
    names = [f"{schema}.{one}" for one in ("t_id_seq", "dropped", "renamed", "down")]
    used = {
        name: query(herd.dsn("n2"), f"SELECT nextval('{name}') FROM generate_series(1, 99)")[-1][0]
        for name in names
    }

    async def taken_beside(place: str, *commands: str) -> Snapshot:
        def say(text: str) -> None:
            if text.startswith("rows of"):
                for command in commands:
                    query(dsn, f"SET search_path = {schema}; {command}")

        return await take(herd, tmp_path / place, say)

    try:
        store, manifest = await taken_beside(
            "whole",
            "CREATE TABLE later (id serial PRIMARY KEY); ALTER TYPE mood ADD VALUE 'higher'",
            "DROP SEQUENCE dropped; ALTER SEQUENCE t_id_seq RESTART; ALTER SEQUENCE down RESTART",
            "ALTER SEQUENCE renamed RENAME TO other; DROP TYPE unused",
        )
        assert [schema, "later_id_seq"] not in [one["name"] for one in manifest["sequences"]]
        put(herd, store, manifest, empty)
        assert query(empty, f"SELECT * FROM {schema}.u") == [(1, "low", "(1,2)")]
        for name, last in used.items():
            ((next_,),) = query(empty, f"SELECT nextval('{name}')")
            assert abs(next_) > abs(last)
        for place, command, name in (
            ("label", "ALTER TYPE mood RENAME VALUE 'low' TO 'lower'", "mood"),
            ("attribute", "ALTER TYPE pair ADD ATTRIBUTE c int CASCADE", "pair"),
        ):
            with pytest.raises(snapshot.ChangedError, match=rf"{schema}\.{name}"):
                await taken_beside(place, command)
            await asyncio.to_thread(given_back, herd, DirectoryStore(tmp_path / place))
    finally:
        query(dsn, f"DROP SCHEMA {schema} CASCADE")


@pytest.mark.long
async def test_values_without_a_binary_form_are_loaded_and_compared(
    herd: LocalHerd, empty: str, tmp_path: Path
) -> None:
    schema = f"r_{random.getrandbits(40):x}"
    create_everywhere(
        herd,
        f"CREATE SCHEMA {schema}; SET search_path = {schema}; CREATE EXTENSION seg SCHEMA {schema};"
        "CREATE TYPE reading AS (s seg, at timestamptz, x float8);"
        "CREATE TABLE measured (s seg PRIMARY KEY, twice seg GENERATED ALWAYS AS (s) STORED,"
        " all_ reading[], v text, i interval);"
        "INSERT INTO measured (s, all_, v, i)"
        " SELECT (g || ' .. ' || g + 0.5)::seg, ARRAY[ROW('1(+-)0.1',"
        " '2026-01-01 12:00Z', g / 3.0)::reading, NULL], E'\\t\\\\N \u00e4\\n', '-1 day 2 hours'"
        " FROM generate_series(1, 500) g;"
        "CREATE TABLE plain (id int PRIMARY KEY, s text)",
    )
    try:
        store, manifest = await take(herd, tmp_path, read=("n1", "n2"), part_bytes=20_000)
        forms = {one["name"]: one["form"] for one in manifest["tables"]}
        assert (forms[f"{schema}.measured"], forms[f"{schema}.plain"]) == ("text", "binary")
        put(herd, store, manifest, empty)
        rows = f"SELECT count(*), md5(string_agg(t::text, '' ORDER BY t)) FROM {schema}.measured t"
        assert query(empty, rows) == query(herd.dsn("n1"), rows)
    finally:
        query(herd.nodes()[0].dsn, f"DROP SCHEMA {schema} CASCADE")


class _Broken:
    """A file that breaks off after some bytes."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file: IO[bytes] | None = file

    def read(self, size: int) -> bytes:
        if self._file is None:
            raise OSError("the connection was closed")
        data, self._file = self._file.read(1000), None
        return data


class _Frail(DirectoryStore):
    """A store whose answers break off some times, each part's."""

    breaks: ClassVar[Counter[str]] = Counter()

    @contextmanager
    def read(self, name: str) -> Iterator[IO[bytes]]:
        with super().read(name) as file:
            if name.endswith(".zst") and self.breaks[name] > 0:
                self.breaks[name] -= 1
                yield cast(IO[bytes], _Broken(file))
            else:
                yield file


def test_a_part_is_read_again_if_the_store_breaks_off(
    herd: LocalHerd, table: str, taken: Snapshot, empty: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, manifest = _Frail(taken[0].root), taken[1]
    monkeypatch.setattr(restore, "_PAUSE_S", 0.01)
    paths = [part["path"] for part in of_table(manifest, table)["parts"]]
    monkeypatch.setattr(_Frail, "breaks", Counter(dict.fromkeys(paths, 3)))
    put(herd, store, manifest, empty)
    assert query(empty, f"SELECT count(*) FROM {table}") == [(_ROWS,)]
    monkeypatch.setattr(_Frail, "breaks", Counter(dict.fromkeys(paths, 4)))
    with database(herd) as used, pytest.raises(OSError, match="the connection was closed"):
        put(herd, store, manifest, used)


@pytest.mark.family(every=4)
@pytest.mark.parametrize("damage", ["a bit", "more", "less", "gone"])
def test_a_part_that_is_not_what_was_written_is_named(
    herd: LocalHerd, table: str, taken: Snapshot, empty: str, damage: str
) -> None:
    store, manifest = taken
    path = random.choice(of_table(manifest, table)["parts"])["path"]
    data = bytearray(store.get(path))
    match damage:
        case "a bit":
            data[random.randrange(len(data))] ^= 1
            store.put(path, bytes(data))
        case "more":
            store.put(path, bytes(data) + _EMPTY_FRAME)
        case "less":
            store.put(path, bytes(data[:-1]))
        case "gone":
            store.delete(path)
    with pytest.raises((PartError, RestoreError), match=path):
        put(herd, store, manifest, empty)
