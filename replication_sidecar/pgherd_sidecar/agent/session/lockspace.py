"""Makes room in the server's table of locks where one session has filled it.

The table has room for ``max_locks_per_transaction`` locks a session on average, and one session may
take all of it, with advisory locks say. Then nothing can be applied, and the server says that it is
out of shared memory. That is no fault of the entry, nor of the database: the session gives way.
"""

from collections.abc import Iterable

import psycopg
import structlog

from pgherd_sidecar.agent.base.config import NodeConfig
from pgherd_sidecar.agent.base.errors import EntryFailedError
from pgherd_sidecar.agent.server import startup
from pgherd_sidecar.pg.failures import OUT_OF_MEMORY, judge_error

log = structlog.get_logger()


async def free(config: NodeConfig, causes: Iterable[BaseException]) -> None:
    """End the session that has filled the table, if what ended ours says that it is full.

    Args:
        config: of this member.
        causes: the errors that ended our session.
    """
    if not any(map(_is_out_of_memory, causes)):
        return
    try:
        async with await startup.connect(config, "pgherd") as connection:
            rows = await connection.execute("SELECT pid, locks FROM pgherd.free_locks()")
            for pid, locks in await rows.fetchall():
                log.warning("locks.freed", pid=pid, locks=locks)
    except psycopg.Error as obstacle:
        log.warning("locks.not_freed", error=str(obstacle).strip())


def _is_out_of_memory(error: BaseException) -> bool:
    found = error.failure if isinstance(error, EntryFailedError) else judge_error(error)
    return found.sqlstate == OUT_OF_MEMORY
