"""Performs what the applier does alone: tasks of the commit path that are not batches of rows."""

from typing import Any, assert_never

import psycopg
import structlog

from pgherd_sidecar.agent.apply.ddlrun import DdlRunner
from pgherd_sidecar.agent.apply.large import LargeTransactions
from pgherd_sidecar.agent.commit.leaks import Leaks
from pgherd_sidecar.core.commit.batches import Adopt, ApplyPieces, PassBy, Procedure, RunDdl, Work
from pgherd_sidecar.pg.rows import RowStatements

log = structlog.get_logger()


class Tasks:
    """The means to perform each kind of task.

    Args:
        connection: an administrative connection.
        ddl: executes transactions with DDL.
        large: applies transactions in pieces.
        leaks: adopts transactions that have no link.
        rows: statements for rows, which DDL makes obsolete.
    """

    def __init__(
        self,
        connection: psycopg.AsyncConnection[Any],
        *,
        ddl: DdlRunner,
        large: LargeTransactions,
        leaks: Leaks,
        rows: RowStatements,
    ) -> None:
        self._connection = connection
        self._ddl = ddl
        self._large = large
        self._leaks = leaks
        self._rows = rows

    async def perform(self, work: Work) -> None:
        """Perform the task of an item; all before it is visible.

        Raises:
            DivergedError: it can't be done here.
            EntryFailedError, psycopg.Error: the server is gone, or can't do it now.
        """
        gid, prev, task = work.link.gid, work.link.prev, work.task
        match task:
            case RunDdl():
                await self._ddl.run(task.writeset, gid, prev)
                self._rows.forget_shapes()
            case ApplyPieces():
                await self._large.apply_transaction(task.writeset, gid, prev, task.first)
            case Adopt():
                await self._leaks.adopt_leak(gid, prev, task.xid)
            case PassBy():
                await self._connection.execute("SELECT pgherd.pass_by($1, $2)", (gid, prev))
                log.warning("entry.skipped", gid=gid)
            case Procedure():
                await task.run()
            case None:
                raise AssertionError("a batch of rows is no task")
            case _:
                assert_never(task)
