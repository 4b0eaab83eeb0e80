"""How a writeset that has won becomes the next link of its node's commit chain.

A transaction that waits in its COMMIT is told its GID and whom to wait for (C9); whatever else has
won is applied here: by the applier, in pieces, or as DDL. Called by the session in the order of
the log; lives as long as it.
"""

import asyncio
from array import array
from collections import deque
from collections.abc import Callable
from functools import partial

from pgherd_sidecar.agent.applier import Applier, Work
from pgherd_sidecar.agent.applying import applying
from pgherd_sidecar.agent.chain import BatchLink, Chain, LocalLink
from pgherd_sidecar.agent.ddlrun import DdlRunner
from pgherd_sidecar.agent.hook import HookServer
from pgherd_sidecar.agent.hookconnection import Pending
from pgherd_sidecar.agent.large import LargeTransactions
from pgherd_sidecar.core.entries import FLAG_DDL, FLAG_PIECES, Writeset


class Commits:
    """Appends to the chain.

    Args:
        chain: the node's.
        hook: tells the sessions of this server.
        applier: writes what others have written.
        large: writes transactions that came in pieces.
        ddl: executes transactions with DDL.
    """

    def __init__(
        self,
        *,
        chain: Chain,
        hook: HookServer,
        applier: Applier,
        large: LargeTransactions,
        ddl: DdlRunner,
    ) -> None:
        self._chain = chain
        self._hook = hook
        self._applier = applier
        self._large = large
        self._ddl = ddl
        self._deferred: deque[tuple[int, Callable[[], None]]] = deque()
        self._loop = asyncio.get_running_loop()

    def local(self, gid: int, pending: Pending, pieces_from: int) -> None:
        """Tell a transaction that waits here to commit, after the last link of the chain.

        Args:
            gid: its position in the log.
            pending: the transaction; its session is still there.
            pieces_from: position of its first piece, 0 if it came in one.
        """
        tail = self._chain.tail
        prev = self._chain.tail_gid
        writeset = pending.writeset
        self._applier.close()
        self._chain.append(
            LocalLink(
                gid, prev, writeset.xid, pending.pid, writeset, self._loop.time(), pieces_from
            )
        )
        if writeset.flags & FLAG_DDL:
            self._applier.schema_changes()
        if tail is None:
            self._hook.writesets.committed(pending, gid, prev, b"N")
        elif isinstance(tail, LocalLink):
            self._hook.writesets.committed(pending, gid, prev, b"L %d" % tail.xid)
        else:
            self._name_batch(tail, pending, gid, prev)

    def remote(self, gid: int, writeset: Writeset, keys: "array[int]", pieces_from: int) -> None:
        """Have a writeset applied; arguments as of ``local``, and its certification keys."""
        with applying(gid, self._chain.settled_gid):
            if not writeset.flags & (FLAG_DDL | FLAG_PIECES):
                self._applier.add(gid, writeset, keys)
            elif writeset.flags & FLAG_PIECES:
                self._applier.add_alone(gid, self._large.work(writeset, gid, pieces_from))
            else:
                run = partial(self._run_ddl, writeset, gid)
                self._applier.add_alone(gid, run, len(writeset.body))

    def tokens_taken(self) -> None:
        """Answer those who wait for a batch whose token the applier has taken now."""
        while self._deferred and self._deferred[0][0] < self._applier.token_limit:
            self._deferred.popleft()[1]()

    def _name_batch(self, batch: BatchLink, pending: Pending, gid: int, prev: int) -> None:
        """Answer with a batch to wait for, as soon as its token is held."""
        batch.named = True

        def answer() -> None:
            if pending.connection is not None:  # else it has died meanwhile, and is repaired
                self._hook.writesets.committed(pending, gid, prev, b"B %d" % batch.number)

        if batch.number < self._applier.token_limit:
            answer()
        else:
            self._deferred.append((batch.number, answer))

    async def _run_ddl(self, writeset: Writeset, gid: int, work: Work) -> None:
        await self._ddl.run(writeset, gid, work.link.prev)
        self._applier.rows.forget()
