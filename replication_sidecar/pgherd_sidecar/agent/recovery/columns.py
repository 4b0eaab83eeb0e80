"""The order in which tables have their columns, which a dump may change.

Records name columns by their place. ``pg_dump`` writes those that a table inherits before its own,
whatever their order was. And it leaves out a table that was added to an extension.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg

from pgherd_sidecar.agent.base.errors import UnfitError

Columns = Mapping[str, Sequence[str]]
"""Names of columns in order, by the quoted qualified name of their table."""

_WANTED = """
SELECT t.name, array_agg(a.attname::text ORDER BY a.attnum)
  FROM pgherd.user_tables t
  JOIN pg_attribute a ON a.attrelid = t.relid AND a.attnum > 0 AND NOT a.attisdropped
 GROUP BY t.name
"""
_FOUND = """
SELECT w.name, array(SELECT a.attname::text FROM pg_attribute a
                      WHERE a.attrelid = to_regclass(w.name) AND a.attnum > 0 AND NOT a.attisdropped
                      ORDER BY a.attnum)
  FROM unnest($1::text[]) AS w(name)
 WHERE NOT $2 OR EXISTS (SELECT FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
                          WHERE c.oid = to_regclass(w.name) AND NOT c.relispartition)
"""


async def columns_of(member: psycopg.AsyncConnection[Any]) -> dict[str, list[str]]:
    """Return the columns of all replicated tables of a member.

    Raises:
        psycopg.Error: it is gone.
    """
    return dict(await (await member.execute(_WANTED)).fetchall())


async def require_columns(
    server: psycopg.AsyncConnection[Any], wanted: Columns, *, may_have_changed: bool
) -> None:
    """Check that a server which was made from a dump has the columns of a member.

    Args:
        server: the new one.
        wanted: those of the member.
        may_have_changed: commands may have come between. So only tables that inherit are looked at,
            and no columns that one of the two does not have.

    Raises:
        UnfitError: a table has others, or has them in another order.
        psycopg.Error: the server is gone.
    """
    rows = await (await server.execute(_FOUND, [list(wanted), may_have_changed])).fetchall()
    for name, found in sorted(rows):
        if is_kept(wanted[name], found, may_have_changed=may_have_changed):
            continue
        if not found:
            raise UnfitError(
                f"a dump leaves table {name} out, as those that were added to an extension."
                " ALTER EXTENSION ... DROP TABLE takes it out, or copy the member by a base backup"
            )
        raise UnfitError(
            f"a dump gives table {name} its columns in the order {', '.join(found)}, and the"
            f" members have {', '.join(wanted[name])}. Those that a table inherits come first in a"
            " dump: make the table anew in that order, or copy the member by a base backup, which"
            " needs the same major version of PostgreSQL"
        )


def is_kept(wanted: Sequence[str], found: Sequence[str], *, may_have_changed: bool) -> bool:
    """Are the columns those that are wanted, in their order? See ``require_columns``."""
    if not may_have_changed:
        return list(found) == list(wanted)
    common = set(wanted) & set(found)
    return [one for one in found if one in common] == [one for one in wanted if one in common]
