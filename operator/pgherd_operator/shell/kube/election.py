"""Leader election by a Lease: of several operators one acts.

The holder renews; who finds a Lease that has not changed for its whole duration, by its own clock,
takes it over. A holder that cannot renew in time ends its process before the others may take over.
Two that act at once for a moment do no harm: every action is safe to repeat, and membership is
decided elsewhere. The Lease survives a restart of the operator, nothing else.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

import structlog

from pgherd_operator.shell.kube.interface import ApiError, ConflictError, Manifest, NotFoundError

log = structlog.get_logger()

DURATION_S = 15
RENEW_S = 3
_GIVE_UP_S = 10.0
_RELEASE_S = 3.0
_FAILURES_TOLD = 20
"""One line in the log for so many failures in a row: a minute."""


class LeaseApi(Protocol):
    """What the election asks of the API server."""

    async def get(self, kind: str, namespace: str, name: str) -> Manifest: ...

    async def create(self, manifest: Manifest) -> object: ...

    async def replace(self, manifest: Manifest) -> None: ...


class LostLeadershipError(Exception):
    """Somebody else acts now, or may."""


@dataclass
class Election:
    """One candidate.

    Attributes:
        clock: seconds that never jump.
        sleep: waits that many seconds.
    """

    api: LeaseApi
    namespace: str
    name: str
    identity: str
    clock: Callable[[], float]
    sleep: Callable[[float], Any] = asyncio.sleep
    trouble: str = ""
    """Why it could not stand for election at the last try: no right to Leases, no API server."""
    _seen: tuple[str, float] = ("", 0.0)
    """The Lease's version as last seen, and when it was seen first."""
    _renewed: float = 0.0
    """When the write began that made the Lease ours last: nobody else counts from earlier."""

    async def acquire(self) -> None:
        """Return when this candidate is the leader."""
        failures = 0
        while not await self._try():
            failures = failures + 1 if self.trouble else 0
            if failures % _FAILURES_TOLD == 1:
                log.warning("election.failed", lease=self.name, reason=self.trouble)
            await self.sleep(RENEW_S)
        log.info("leader.elected", identity=self.identity)

    async def keep(self) -> None:
        """Renew, for ever.

        Raises:
            LostLeadershipError: it could not be renewed in time, or another has it.
        """
        while True:
            await self.sleep(RENEW_S)
            try:
                async with asyncio.timeout(_GIVE_UP_S - (self.clock() - self._renewed)):
                    if not await self._renew():
                        raise LostLeadershipError("another operator has the lease")
            except TimeoutError as error:
                raise LostLeadershipError("the lease was not renewed: no answer") from error
            except ApiError as error:
                if self.clock() - self._renewed > _GIVE_UP_S:
                    raise LostLeadershipError(f"the lease was not renewed: {error}") from error

    async def release(self) -> None:
        """Give the Lease back, if it is ours, so that nobody waits for its end."""
        try:
            async with asyncio.timeout(_RELEASE_S):
                lease = await self.api.get("Lease", self.namespace, self.name)
                if lease["spec"].get("holderIdentity") == self.identity:
                    transitions = int(lease["spec"].get("leaseTransitions") or 0)
                    await self._write(self.api.replace, lease["metadata"], transitions, holder="")
        except (ApiError, TimeoutError) as error:
            log.warning("lease.kept", lease=self.name, reason=str(error) or "no answer")

    async def _try(self) -> bool:
        try:
            async with asyncio.timeout(_GIVE_UP_S):
                taken = await self._take()
                self.trouble = ""
                return taken
        except (ApiError, TimeoutError) as error:
            self.trouble = str(error) or "the API server does not answer"
            return False

    async def _take(self) -> bool:
        try:
            lease = await self.api.get("Lease", self.namespace, self.name)
        except NotFoundError:
            return await self._write(self.api.create, {}, 0)
        spec = lease["spec"]
        version = lease["metadata"]["resourceVersion"]
        if version != self._seen[0]:
            self._seen = version, self.clock()
        duration = spec.get("leaseDurationSeconds") or DURATION_S
        expired = self.clock() - self._seen[1] > duration
        if not expired and spec.get("holderIdentity") not in ("", None, self.identity):
            return False
        transitions = int(spec.get("leaseTransitions") or 0) + 1
        return await self._write(self.api.replace, lease["metadata"], transitions)

    async def _renew(self) -> bool:
        lease = await self.api.get("Lease", self.namespace, self.name)
        if lease["spec"].get("holderIdentity") != self.identity:
            return False
        transitions = int(lease["spec"].get("leaseTransitions") or 0)
        return await self._write(self.api.replace, lease["metadata"], transitions)

    async def _write(
        self,
        write: Callable[[Manifest], Any],
        metadata: dict[str, Any],
        transitions: int,
        holder: str | None = None,
    ) -> bool:
        """Write the Lease as ours; the resourceVersion makes sure that nobody did meanwhile.

        Args:
            holder: who has it; default: this candidate.
        """
        wanted = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self.name, "namespace": self.namespace}
            | {key: metadata[key] for key in ("resourceVersion",) if key in metadata},
            "spec": {
                "holderIdentity": self.identity if holder is None else holder,
                "leaseDurationSeconds": DURATION_S,
                "leaseTransitions": transitions,
                "renewTime": datetime.now(UTC).isoformat(timespec="microseconds"),
            },
        }
        began = self.clock()
        try:
            await write(wanted)
        except ConflictError:
            return False
        self._renewed = began
        return True
