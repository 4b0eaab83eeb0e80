"""A sidecar that replicates nothing: it answers the admin API, so that the command line can be
tested by itself.

It is ``primary`` once its PostgreSQL answers; a marker's snapshot is taken at once, under GID 1;
the replicated tables are all tables of the schema ``public``.
"""

import asyncio
import contextlib
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psycopg
from aiohttp import web
from pgherd_sidecar.agent.base import config
from pgherd_sidecar.pg.comparison import checksum, indexes

REPLICATED_TABLES = """
CREATE SCHEMA IF NOT EXISTS pgherd;
CREATE OR REPLACE VIEW pgherd.replicated_tables AS
SELECT c.oid AS relid, quote_ident(n.nspname) || '.' || quote_ident(c.relname) AS name
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND n.nspname = 'public'
"""


class StandIn:
    def __init__(self, settings: config.NodeConfig) -> None:
        self._settings = settings
        self._markers: dict[str, psycopg.AsyncConnection[Any]] = {}
        self.finished = asyncio.Event()

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/status", self._status),
            web.post("/shutdown", self._shutdown),
            web.post("/marker", self._order),
            web.get("/marker/{id}/ready", self._ready),
            web.post("/marker/{id}/tables", self._tables),
            web.post("/marker/{id}/buckets", self._buckets),
            web.post("/marker/{id}/keys", self._keys),
            web.delete("/marker/{id}", self._drop),
            web.post("/indexes", self._check_indexes),
        ]

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        postgres = self._settings.postgres
        return await psycopg.AsyncConnection.connect(
            host=postgres.host, port=postgres.port, user=postgres.user, dbname=postgres.database
        )

    async def _status(self, _request: web.Request) -> web.Response:
        state, reason = "primary", None
        try:
            async with await self._connect() as connection:
                await connection.execute(REPLICATED_TABLES)
        except psycopg.Error as error:
            state, reason = "secondary", str(error)
        return web.json_response(
            {
                "name": self._settings.name,
                "cluster_id": str(self._settings.cluster_id),
                "state": state,
                "reason": reason,
                "gid": 1,
                "log_position": 1,
                "flushed_position": 1,
                "term": 1,
                "proposer": "n1",
                "incarnation": 1,
                "pid": os.getpid(),
            }
        )

    async def _shutdown(self, _request: web.Request) -> web.Response:
        self.finished.set()
        return web.json_response({})

    async def _order(self, _request: web.Request) -> web.Response:
        return web.json_response({"id": "marker-1", "gid": 1})

    async def _ready(self, request: web.Request) -> web.Response:
        connection = await self._connect()
        await connection.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
        self._markers[request.match_info["id"]] = connection
        return web.json_response({"gid": 1})

    async def _tables(self, request: web.Request) -> web.Response:
        found = await checksum.table_checksums(self._markers[request.match_info["id"]])
        return web.json_response(
            {
                "tables": {
                    name: {"rows": one.rows, "checksum": one.checksum, "columns": one.columns}
                    for name, one in found.items()
                }
            }
        )

    async def _buckets(self, request: web.Request) -> web.Response:
        body = await request.json()
        connection = self._markers[request.match_info["id"]]
        return web.json_response(
            {"buckets": await checksum.bucket_checksums(connection, body["table"])}
        )

    async def _keys(self, request: web.Request) -> web.Response:
        body = await request.json()
        connection = self._markers[request.match_info["id"]]
        keys = await checksum.key_checksums(connection, body["table"], body["bucket"])
        return web.json_response({"keys": keys})

    async def _check_indexes(self, _request: web.Request) -> web.Response:
        async with await self._connect() as connection:
            return web.json_response(asdict(await indexes.check_all(connection)))

    async def _drop(self, request: web.Request) -> web.Response:
        connection = self._markers.pop(request.match_info["id"], None)
        if connection is not None:
            await connection.close()
        return web.json_response({})


async def run(settings: config.NodeConfig) -> None:
    standin = StandIn(settings)
    application = web.Application()
    application.add_routes(standin.routes())
    runner = web.AppRunner(application)
    await runner.setup()
    with contextlib.suppress(FileNotFoundError):
        settings.admin_socket.unlink()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, standin.finished.set)
    await web.UnixSite(runner, str(settings.admin_socket)).start()
    await standin.finished.wait()
    await runner.cleanup()


if __name__ == "__main__":
    assert sys.argv[1] == "--config"
    asyncio.run(run(config.load_config(Path(sys.argv[2]))))
