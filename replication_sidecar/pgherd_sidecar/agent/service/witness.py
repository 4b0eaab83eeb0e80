"""A witness: a member that holds the log and votes, and has no database.

It lets a herd of two databases go on without either. All of its work is the log's; here is what it
answers to the admin API, and that it does not keep the log for ever.

Called by ``main`` in place of ``Replica``. Nothing but the log survives a restart.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import NoReturn

from pgherd_sidecar.agent.admin.port import StatusValue, Unavailable
from pgherd_sidecar.agent.base.config import NodeConfig
from pgherd_sidecar.agent.log.host import LogHost
from pgherd_sidecar.agent.log.news import LogListener
from pgherd_sidecar.agent.membership.identity import StoredIdentity
from pgherd_sidecar.agent.standing.views import Views, no_majority
from pgherd_sidecar.agent.stream.explain import Explainer
from pgherd_sidecar.pg.comparison.indexes import IndexReport

_TRIM_S = 60.0


class Witness(LogListener):
    """The service of a witness; see ``Service``."""

    def __init__(self, config: NodeConfig, host: LogHost, identity: StoredIdentity) -> None:
        self.views = Views(config, host)
        self.changes = None
        self.roles = None
        self.maintenance = None
        self.subscriptions = None
        self._config = config
        self._host = host
        self._identity = identity
        self._stopping = asyncio.Event()
        self._wake = asyncio.Event()
        host.listen(self)

    async def run(self) -> None:
        """Trim the log now and then until ``stop``; begin it anew where the others' begins.

        That loses nothing: whoever is behind votes truthfully, and what it lacks is committed.
        """
        if not self._identity.incarnation:  # from now on there is a log that it can lose
            await asyncio.to_thread(self._identity.next_incarnation)
        while not self._stopping.is_set():
            beginning = self._host.extent.beginning
            if self._host.extent.behind and self._host.extent.may_begin_after(beginning):
                await self._host.begin_after(beginning)
            self._host.trim(self._host.commit_position)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TRIM_S):
                    await self._wake.wait()
            self._wake.clear()

    def left_behind(self) -> None:
        """See LogListener: the log can begin anew where that of the others begins."""
        self._wake.set()

    async def stop(self) -> None:
        """See Service."""
        self._stopping.set()
        self._wake.set()

    async def status(self) -> Mapping[str, StatusValue]:
        """See AdminBackend."""
        return {
            "name": self._config.name,
            "cluster_id": str(self._config.cluster_id),
            "split_from": self._identity.split_from,
            "disk_id": self._host.disk,
            "state": "departed" if self._host.peers.has_left else "witness",
            "reason": self._reason(),
            "incarnation": self._identity.incarnation,
            **self._host.status(),
            **self.views.status(),
        }

    def _reason(self) -> str | None:
        trouble = self._host.reader.trouble
        return trouble or (None if self._host.primary else no_majority(self._host))

    async def explain(self, gid: int, *, rows: bool) -> Mapping[str, StatusValue]:
        """See AdminBackend; no verdicts are made here."""
        return await Explainer(self._host, None, _no_hashes).explain(gid, rows=rows)

    async def shutdown(self) -> None:
        """See AdminBackend."""
        await self.stop()

    def _refuse(self) -> NoReturn:
        raise Unavailable(f"{self._config.name} is a witness: it has no database")

    @property
    def markers(self) -> NoReturn:
        """See AdminBackend."""
        self._refuse()

    async def rebuild(self, partner: str | None, rate_bytes_s: int | None) -> None:
        """See AdminBackend."""
        self._refuse()

    async def skip(self, gid: int, *, act: bool) -> Mapping[str, StatusValue]:
        """See AdminBackend."""
        self._refuse()

    async def order_marker(self, names: tuple[str, ...]) -> tuple[str, int]:
        """See AdminBackend."""
        self._refuse()

    async def check_indexes(self) -> IndexReport:
        """See AdminBackend."""
        self._refuse()


async def _no_hashes() -> Mapping[int, str]:
    return {}
