"""Objects that are made otherwise than most: a snapshot that has them is restored all the same."""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pgherd_spark.restoring import plain
from pgherd_spark.restoring.seeding import SeedError
from pgherd_spark.storing.stores import Store

from .ledger import create_everywhere
from .localherd import LocalHerd, query
from .sparkherd import NEEDS_PYARROW, database, put, take

_FREE = """
SELECT p.oid::regprocedure::text, pg_get_function_arguments(p.oid), pg_get_function_result(p.oid)
  FROM pg_proc p
 WHERE p.pronamespace = 'pgherd'::regnamespace
   AND has_function_privilege('public', p.oid, 'EXECUTE')
 ORDER BY 1
"""
pytestmark = NEEDS_PYARROW

_OBJECTS = """
CREATE TABLE nothing ();
CREATE TABLE computed (seven int GENERATED ALWAYS AS (7) STORED);
CREATE TABLE bag (v int, token text DEFAULT pgherd.current_token());
INSERT INTO bag VALUES (1);
CREATE VIEW seen AS SELECT pgherd.last_gid() AS gid, pgherd.fresh();
"""


@dataclass
class Restored:
    """What a herd's objects have become.

    Attributes:
        dsn: the new database's.
        schema: theirs.
        said: while it was filled.
        store: the snapshot.
    """

    dsn: str
    schema: str
    said: list[str]
    store: Store

    def query(self, statement: str) -> list[tuple[object, ...]]:
        return query(self.dsn, f"SET search_path = {self.schema}; {statement}")


@pytest.fixture(scope="module")
def restored(herd: LocalHerd, work_directory: Path) -> Iterator[Restored]:
    schema, said = f"o_{random.getrandbits(40):x}", list[str]()
    create_everywhere(herd, f"CREATE SCHEMA {schema}; SET search_path = {schema}; {_OBJECTS}")
    try:
        store, manifest = asyncio.run(take(herd, work_directory / "odd"))
        with database(herd) as dsn:
            put(herd, store, manifest, dsn, said.append)
            yield Restored(dsn, schema, said, store)
    finally:
        query(herd.nodes()[0].dsn, f"DROP SCHEMA {schema} CASCADE")


def test_tables_without_a_column_that_is_stored_are_there(restored: Restored) -> None:
    assert restored.query("SELECT * FROM nothing") == []
    restored.query("INSERT INTO computed DEFAULT VALUES")
    assert restored.query("SELECT * FROM computed") == [(7,)]


def test_ours_that_are_used_are_there_as_a_member_has_them(
    restored: Restored, herd: LocalHerd
) -> None:
    assert query(restored.dsn, _FREE) == query(herd.dsn("n1"), _FREE)
    assert restored.query("SELECT v FROM bag") == [(1,)]
    ((definition,),) = restored.query("SELECT pg_get_viewdef('seen'::regclass)")
    assert "pgherd.last_gid() AS gid" in definition


def test_a_plain_server_has_nothing_in_place_of_ours(restored: Restored) -> None:
    with pytest.raises(SeedError, match="a plain server has nothing in its place") as told:
        plain.put(restored.store, conninfo="", programs=Path(), jobs=1, say=print)
    assert f"view {restored.schema}.seen uses function pgherd.last_gid()" in str(told.value)
