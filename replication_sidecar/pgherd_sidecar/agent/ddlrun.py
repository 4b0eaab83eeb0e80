"""Executes an ordered transaction with DDL on a member other than its origin (Slony-II 10).

The body's items are in the order of their execution: rows are written with the same statements as
the applier's, commands by ``pg.ddl``, all in one transaction with its link of the commit chain.
"""

from typing import Any

import psycopg

from pgherd_sidecar.agent.applier import WRITER_SETTINGS
from pgherd_sidecar.agent.config import NodeConfig
from pgherd_sidecar.agent.errors import DivergedError
from pgherd_sidecar.agent.startup import connect
from pgherd_sidecar.agent.writers import Writers
from pgherd_sidecar.core.entries import FLAG_FINGERPRINT, Writeset, key_array
from pgherd_sidecar.core.merge import Item, decode_body, merge_writesets
from pgherd_sidecar.pg import ddl
from pgherd_sidecar.pg.rows import RowStatements, TableShape


async def describe(connection: psycopg.AsyncConnection[Any], table: str) -> TableShape:
    """Read a table's shape from the catalog, as the connection's transaction sees it.

    Raises:
        DivergedError: this member has no such table.
        psycopg.OperationalError: the server is gone, or can't say now.
    """
    try:
        rows = await connection.execute(
            'SELECT columns, pk, generated, same_key, "only", row_type FROM pgherd.describe($1)',
            (table,),
        )
        row = await rows.fetchone()
    except psycopg.OperationalError:
        raise
    except psycopg.Error as error:
        raise DivergedError(f"table {table}: {error}") from error
    if row is None or row[1] is None:
        raise DivergedError(f"table {table} has no primary key here")
    columns, pk, generated, same_key, only, row_type = row
    return TableShape(columns, pk, frozenset(generated), same_key, only, row_type)


class DdlRunner:
    """Runs transactions with DDL, each on a connection of its own (they are rare)."""

    def __init__(self, config: NodeConfig, writers: Writers) -> None:
        self._config = config
        self._writers = writers

    async def run(self, writeset: Writeset, gid: int, prev: int) -> None:
        """Execute a writeset that holds DDL.

        Raises:
            DivergedError: it fails here, though it was ordered to commit.
        """
        connection = await connect(self._config, "pgherd ddl")
        try:
            await connection.execute("; ".join(WRITER_SETTINGS))
            with self._writers.writing(connection.info.backend_pid, gid):
                async with connection.transaction():
                    await self._items(connection, writeset)
                    if writeset.flags & FLAG_FINGERPRINT:
                        await connection.execute(
                            "SELECT pgherd.check_fingerprint($1, $2)",
                            (gid, writeset.body.decode()),
                        )
                    await connection.execute(
                        "INSERT INTO pgherd.applied VALUES ($1, $2)", (gid, prev)
                    )
                    await connection.execute(
                        "UPDATE pgherd.shape SET gid = $1 WHERE xid = pg_current_xact_id()", (gid,)
                    )
        except psycopg.OperationalError:
            raise
        except psycopg.Error as error:
            raise DivergedError(f"GID {gid}: {error}") from error
        finally:
            await connection.close()

    async def _items(
        self,
        connection: psycopg.AsyncConnection[Any],
        writeset: Writeset,
    ) -> None:
        segment: list[Item] = []
        for item in decode_body(writeset.body):
            if item[0]:
                segment.append(item)
                continue
            await self._rows(connection, writeset, segment)
            segment = []
            for command in item[2]:
                await ddl.execute_command(connection, command)
        await self._rows(connection, writeset, segment)

    async def _rows(
        self,
        connection: psycopg.AsyncConnection[Any],
        writeset: Writeset,
        segment: list[Item],
    ) -> None:
        if not segment:
            return

        async def shape(table: str) -> TableShape:
            return await describe(connection, table)

        rows = RowStatements(shape)
        await rows.learn([table for table, _, _ in segment])
        plan = merge_writesets([(key_array(writeset.keys), segment)], rows.key_columns)
        for query, parameters in rows.plain(plan):
            await connection.execute(query, parameters)
