"""Follows the log for what it says of databases, without one: it needs no certification.

Nothing survives a restart.
"""

import asyncio

from pgherd_sidecar.agent.log.host import LogHost
from pgherd_sidecar.core.replication.databases import Databases
from pgherd_sidecar.core.replication.entries import (
    DatabaseState,
    EntryFormatError,
    Members,
    Skip,
    iter_entries,
)

_READ_BYTES = 1 << 20
_MENDING_S, _LOOK_S = 10.0, 0.2


class Onlooker:
    """Follows the log for what it says of databases.

    Args:
        host: the log.
        databases: what is known at a position.
        position: that position.
    """

    def __init__(self, host: LogHost, databases: Databases, position: int) -> None:
        self.databases = databases.copy()
        self.position = position
        self._host = host

    async def follow_log(self) -> bool:
        """Take what is committed; False if the log doesn't hold what comes next, or not yet.

        False, too, if this version does not understand what comes next.
        """
        waited_s = 0.0
        while self.position < self._host.commit_position:
            blocks = self._host.reader.read(self.position + 1, _READ_BYTES)
            if not blocks:
                if not self._host.reader.mending or waited_s >= _MENDING_S:
                    return False
                waited_s += _LOOK_S
                await asyncio.sleep(_LOOK_S)
            try:
                for block in blocks:
                    self._take(block.first, block.data)
            except EntryFormatError:
                return False
            await asyncio.sleep(0)
        return True

    def _take(self, first: int, data: bytes) -> None:
        for gid, entry in enumerate(iter_entries(data), first):
            if gid <= self.position:
                continue
            match entry:
                case DatabaseState():
                    self.databases.take_state(gid, entry)
                case Skip():
                    self.databases.skip(gid, entry)
                case Members():
                    self.databases.install(gid, entry.numbers)
            self.position = gid
