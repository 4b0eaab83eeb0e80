"""Objects that are made otherwise than most: a snapshot that has them is restored all the same."""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from .ledger import create_everywhere
from .localherd import LocalHerd, query
from .sparkherd import NEEDS_PYARROW, database, put, take

pytestmark = NEEDS_PYARROW

_OBJECTS = """
CREATE TABLE nothing ();
CREATE TABLE computed (seven int GENERATED ALWAYS AS (7) STORED);
"""


@dataclass
class Restored:
    """What a herd's objects have become.

    Attributes:
        dsn: the new database's.
        schema: theirs.
        said: while it was filled.
    """

    dsn: str
    schema: str
    said: list[str]

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
            yield Restored(dsn, schema, said)
    finally:
        query(herd.nodes()[0].dsn, f"DROP SCHEMA {schema} CASCADE")


def test_tables_without_a_column_that_is_stored_are_there(restored: Restored) -> None:
    assert restored.query("SELECT * FROM nothing") == []
    restored.query("INSERT INTO computed DEFAULT VALUES")
    assert restored.query("SELECT * FROM computed") == [(7,)]
