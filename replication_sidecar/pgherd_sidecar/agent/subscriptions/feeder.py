"""Has the member's feeder run while there are subscriptions (docs/subscriptions.md).

The feeder is a process of its own: it takes long to take the log apart, and commits would wait for
this loop. The kernel ends it with the sidecar. It decides itself what it does, and ends when
nothing is left to do.
"""

import asyncio
import subprocess
import sys
from bisect import bisect_right
from collections import deque
from typing import Any

import msgspec
import psycopg
import structlog

from pgherd_sidecar.agent.base.config import NodeConfig
from pgherd_sidecar.agent.server.startup import conninfo
from pgherd_sidecar.env.processes import programs
from pgherd_sidecar.tables.sessions import SETTINGS

log = structlog.get_logger()

_MODULE = "pgherd_sidecar.subscribing.feeder"
_LOOK_S = 2.0
_PAUSE_S = 5.0


_FINE = 600
_COARSE = 10_000
_COARSE_S = 60.0


class Ages:
    """Knows about when this member has got to a GID, to tell how old it is that one is behind.

    It keeps hundreds of the latest looks, and one a minute of those of a week. An age is told too
    large rather than too small.
    """

    def __init__(self) -> None:
        self._fine: deque[tuple[float, int]] = deque(maxlen=_FINE)
        self._coarse: deque[tuple[float, int]] = deque(maxlen=_COARSE)

    def note_newest(self, now_s: float, gid: int) -> None:
        """Take the newest GID of a moment."""
        self._fine.append((now_s, gid))
        if not self._coarse or now_s - self._coarse[-1][0] >= _COARSE_S:
            self._coarse.append((now_s, gid))

    def behind_s(self, now_s: float, gid: int) -> float:
        """For how many seconds there has been something newer than a GID, at most.

        What is older than the first look counts from there.
        """
        if not self._fine or gid >= self._fine[-1][1]:
            return 0.0
        looks = self._fine if self._fine[0][1] <= gid else self._coarse
        known = bisect_right(looks, gid, key=lambda one: one[1])
        return max(now_s - looks[max(known - 1, 0)][0], 0.0)


class FeederProcess:
    """At most one feeder."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self._child: subprocess.Popen[bytes] | None = None
        self._loop = asyncio.get_running_loop()
        self._due = self._loop.time()

    async def begin_if_needed(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Begin a feeder if one is needed.

        Args:
            connection: of the housekeeping.

        Raises:
            psycopg.Error: the server is gone.
        """
        if self._loop.time() < self._due:
            return
        self._due = self._loop.time() + _LOOK_S
        if self._child is not None:
            status = self._child.poll()
            if status is None:
                return
            self._child = None
            if status != 0:
                log.warning("feeder.ended", status=status)
                self._due = self._loop.time() + _PAUSE_S
                return
        if await self._is_needed(connection):
            self._start()

    async def _is_needed(self, connection: psycopg.AsyncConnection[Any]) -> bool:
        try:
            rows = await connection.execute("SELECT pgherd.has_subscriptions()")
        except psycopg.errors.UndefinedTable:  # it was dropped at this moment
            return False
        return await rows.fetchone() == (True,)

    def _start(self) -> None:
        order = {
            "member": self._config.name,
            "cluster": str(self._config.cluster_id),
            "admin": str(self._config.admin_socket),
            "conninfo": conninfo(self._config, "pgherd feeder", settings=SETTINGS),
        }
        self._child = programs.start_program(
            *programs.module(_MODULE),
            msgspec.json.encode(order).decode(),
            output=sys.stderr.fileno(),
            environment=programs.environment_of_modules(),
        )
        log.info("feeder.started", pid=self._child.pid)

    def stop(self) -> None:
        """End it, if there is one. Its open transaction at a subscriber is rolled back."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._child = None
