"""Compares B-trees with their heaps, by contrib's amcheck where the server has it.

Each index is checked by the server beside the sidecar for itself, so no GID takes part. A check
takes ACCESS SHARE locks only, and keeps nothing. It finds rows that an index should have and has
not, and entries that are out of order. The checks that would block writers are not used.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import AsyncConnection, errors

from pgherd_sidecar.pg.comparison.checksum import STATEMENTS

_FAULTS = errors.IndexCorrupted, errors.DataCorrupted, errors.IoError
_TEXT_MAX = 300


@dataclass(frozen=True, slots=True)
class IndexReport:
    """What was found on one node.

    Attributes:
        available: the server has amcheck.
        checked: how many indexes were.
        faults: what is wrong, by the index's name.
        skipped: indexes that something was in the way of, with the reason.
    """

    available: bool
    checked: int
    faults: Mapping[str, str]
    skipped: Mapping[str, str]


async def check_all(connection: AsyncConnection[Any]) -> IndexReport:
    """Check all indexes of replicated tables and materialized views, one after the other.

    Args:
        connection: a superuser's, in no transaction, of the plain kind of cursor.
    """
    if not await available(connection):
        return IndexReport(False, 0, {}, {})
    await connection.execute("SET search_path = pg_catalog, pg_temp")
    cursor = await connection.execute(STATEMENTS["all_indexes"])
    names = [name for (name,) in await cursor.fetchall()]
    checked, faults, skipped = 0, {}, {}
    for name in names:
        try:
            fault = await check(connection, name)
        except psycopg.errors.Error as error:
            if connection.broken:
                raise
            skipped[name] = f"{error.sqlstate}: {_first_line(error)}"
            continue
        checked += 1
        if fault is not None:
            faults[name] = fault
    return IndexReport(True, checked, faults, skipped)


async def available(connection: AsyncConnection[Any]) -> bool:
    """Say whether the server has amcheck."""
    cursor = await connection.execute(STATEMENTS["can_check_indexes"])
    return await cursor.fetchone() == (True,)


async def check(connection: AsyncConnection[Any], name: str) -> str | None:
    """Return what is wrong with an index; None where nothing is, or where it is gone.

    Raises:
        psycopg.Error: it could not be checked.
    """
    try:
        await connection.execute(STATEMENTS["check_index"], {"name": name})
    except _FAULTS as error:
        return _first_line(error)
    return None


def _first_line(error: psycopg.Error) -> str:
    text = error.diag.message_primary or str(error)
    return text.splitlines()[0][:_TEXT_MAX] if text else ""
