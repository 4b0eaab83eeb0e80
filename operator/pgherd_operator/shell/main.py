"""The operator's process: ``python -m pgherd_operator.shell.main``.

kopf watches our own kinds and says which resource may have changed; everything else is ours.
What belongs to herds is watched without it (``watching``): kopf picks by labels only after it has
listed all pods of the cluster. Its handlers of events
write nothing to the objects (no annotations, no finalizers), so it cannot put secrets into
annotations or fight another operator. The herd's own finalizer is the reconciler's.

Configured by the environment: POD_NAMESPACE, POD_NAME, PGHERD_RELEASE, PGHERD_NAMESPACES (empty:
all), PGHERD_POSTGRES_IMAGE, PGHERD_SIDECAR_IMAGE, PGHERD_SPARK_IMAGE, PGHERD_LOG_LEVEL.
"""

import asyncio
import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from itertools import product
from typing import Any

import kopf
import structlog
from aiohttp import web

from pgherd_operator.api import (
    CHECK,
    GROUP,
    KIND,
    MAINTENANCE,
    PLURAL,
    SCHEDULE,
    SET,
    SNAPSHOT,
    SUBSCRIPTION,
    VERSION,
)
from pgherd_operator.core.upgrade import Turns
from pgherd_operator.objects.model import Release
from pgherd_operator.shell import logs
from pgherd_operator.shell.controller import Environment, reconcile_once
from pgherd_operator.shell.jobs import Jobs, is_at_rest
from pgherd_operator.shell.kube import watching
from pgherd_operator.shell.kube.client import Access, Client
from pgherd_operator.shell.kube.election import Election
from pgherd_operator.shell.kube.events import EventPoster
from pgherd_operator.shell.kube.interface import ApiError
from pgherd_operator.shell.kube.queue import Queue
from pgherd_operator.shell.maintenance import Maintainer
from pgherd_operator.shell.observing.drivers import HttpDrivers
from pgherd_operator.shell.observing.https import HttpsSidecars
from pgherd_operator.shell.observing.importing import HttpImporters
from pgherd_operator.shell.subscriptions import Followers

log = structlog.get_logger()

HEALTH_PORT = 8080
_LEASE = "pgherd-operator"
"""Where no release gives it another name."""
_RESYNC_S = 60.0
_UNDER_WAY_FIRST_S = 120.0
"""In which every herd has been looked at: who is being upgraded keeps its turn."""


class _Ended(Exception):
    """kopf has ended, on a signal: so shall the rest."""


class Changes:
    """Tells what others changed in a herd's resource from our own writing of its status.

    Without this each status of a busy herd, whose GID is another every time, would be the reason
    for the next look. Kept in memory only: after a restart everything has changed.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[object, ...]] = {}

    def matter(self, metadata: Mapping[str, Any]) -> bool:
        """Whether anything but the status is new since the last call for this resource."""
        state = (
            metadata.get("generation"),
            metadata.get("deletionTimestamp"),
            tuple(metadata.get("finalizers") or ()),
        )
        uid = metadata["uid"]
        if self._seen.get(uid) == state:
            return False
        self._seen[uid] = state
        return True

    def forget(self, uid: str) -> None:
        """A resource is gone for good, and its uid never comes again."""
        self._seen.pop(uid, None)


def handlers(queue: Queue, jobs: Mapping[str, Queue]) -> kopf.OperatorRegistry:
    """What kopf calls: each event wakes what it is about.

    Args:
        queue: of the herds.
        jobs: queues of the other kinds, by kind.

    All are coroutines: others kopf would call in threads, which may not touch the queue.
    """
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.scanning.disabled = True  # needs rights on the whole cluster
        settings.posting.enabled = False
        settings.persistence.finalizer = f"{GROUP}/unused-by-kopf"

    @kopf.on.login(registry=registry)
    async def login(**given: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_service_account(**given) or kopf.login_with_kubeconfig(**given)

    queues = {PLURAL: queue} | {f"{kind.lower()}s": one for kind, one in jobs.items()}
    for plural, its_queue in queues.items():
        kopf.on.event(GROUP, VERSION, plural, id=plural, registry=registry)(
            partial(_wake, queue=its_queue, changes=Changes())
        )
    return registry


async def _wake(
    namespace: str | None,
    name: str | None,
    meta: Mapping[str, Any],
    type: str | None,
    *,
    queue: Queue,
    changes: Changes,
    **_: Any,
) -> None:
    if type == "DELETED":
        changes.forget(meta["uid"])
    elif not changes.matter(meta):
        return
    if namespace and name:
        queue.wake(namespace, name)


def release(environment: Mapping[str, str]) -> Release:
    """What this release of the operator brings."""
    default = Release()
    namespace, own = environment.get("POD_NAMESPACE", ""), environment.get("PGHERD_RELEASE", "")
    return Release(
        version=environment.get("PGHERD_VERSION") or default.version,
        postgres_image=environment.get("PGHERD_POSTGRES_IMAGE") or default.postgres_image,
        sidecar_image=environment.get("PGHERD_SIDECAR_IMAGE") or default.sidecar_image,
        spark_image=environment.get("PGHERD_SPARK_IMAGE") or default.spark_image,
        operator=f"{namespace}/{own}" if namespace and own else "",
        operator_namespace=namespace or default.operator_namespace,
        # Pods have addresses of the family that the API server's service has.
        listen_host="::"
        if ":" in environment.get("KUBERNETES_SERVICE_HOST", "")
        else default.listen_host,
    )


async def run(environment: Mapping[str, str]) -> None:
    """Wait for the leadership, then serve until it is lost or the process is to end.

    Raises:
        LostLeadershipError: inside an ExceptionGroup.
    """
    client = Client(Access.of_pod(environment))
    identity = environment.get("POD_NAME") or "development"
    namespace = environment.get("POD_NAMESPACE") or "default"
    # One lease a release: one for other namespaces does not wait for this one.
    lease = environment.get("PGHERD_RELEASE") or _LEASE
    election = Election(client, namespace, lease, identity, time.monotonic)
    health = await answer_health(election)
    try:
        await election.acquire()
        async with asyncio.TaskGroup() as group:
            group.create_task(election.keep())
            group.create_task(_serve(client, group, environment, identity))
    except* _Ended:
        await election.release()  # nothing of ours acts any more
        log.info("operator.ended")
    finally:
        await health.cleanup()
        await client.close()


async def answer_health(election: Election, port: int = HEALTH_PORT) -> web.AppRunner:
    """Say that the loop turns, and whether this operator leads or can stand for election."""

    async def healthy(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def ready(_: web.Request) -> web.Response:
        if election.trouble:
            return web.Response(status=503, text=f"no part in the election: {election.trouble}")
        return web.Response(text="ok")

    application = web.Application()
    application.add_routes([web.get("/healthz", healthy), web.get("/readyz", ready)])
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, port=port).start()
    return runner


async def _serve(
    client: Client, group: asyncio.TaskGroup, environment: Mapping[str, str], identity: str
) -> None:
    events = EventPoster(client, group, identity)
    env = Environment(
        api=client,
        sidecars=lambda cluster: HttpsSidecars(client, cluster),
        events=events,
        importers=HttpImporters(),
        now=lambda: datetime.now(UTC),
        release=release(environment),
        began=datetime.now(UTC),
        turns=Turns(_UNDER_WAY_FIRST_S),
    )

    async def look(namespace: str, name: str) -> float | None:
        return await reconcile_once(env, namespace, name)

    jobs = Jobs(client, events, HttpDrivers(), env.now, env.release)
    maintenance = Maintainer(client, env.sidecars, events, env.now)
    followers = Followers(client, env.sidecars, events, env.now)
    queues = {
        KIND: Queue(look, group),
        SNAPSHOT: Queue(partial(jobs.job, SNAPSHOT), group),
        CHECK: Queue(partial(jobs.job, CHECK), group),
        SCHEDULE: Queue(jobs.schedule, group),
        MAINTENANCE: Queue(maintenance.look, group),
        SET: Queue(followers.look_at_set, group),
        SUBSCRIPTION: Queue(followers.look_at_subscription, group),
    }
    namespaces = [name for name in environment.get("PGHERD_NAMESPACES", "").split(",") if name]
    group.create_task(_resync(client, queues, namespaces))
    for namespace, kind in product(namespaces or [""], watching.KINDS):
        group.create_task(watching.follow(client, kind, namespace, queues[KIND].wake))
    await kopf.operator(
        registry=handlers(
            queues[KIND], {kind: queue for kind, queue in queues.items() if kind != KIND}
        ),
        standalone=True,  # no peering: the Lease is the election
        clusterwide=not namespaces,
        namespaces=namespaces,
    )
    raise _Ended


async def _resync(client: Client, queues: Mapping[str, Queue], namespaces: list[str]) -> None:
    """Wake everything now and then: a watch may die without anybody noticing."""
    while True:
        for namespace, (kind, queue) in product(namespaces or [""], queues.items()):
            try:
                found = await client.list(kind, namespace, "")
            except ApiError as error:
                log.warning("resync.failed", kind=kind, namespace=namespace, reason=str(error))
                continue
            for item in found:
                if kind in (SNAPSHOT, CHECK) and is_at_rest(item):
                    continue
                queue.wake(item["metadata"]["namespace"], item["metadata"]["name"])
        await asyncio.sleep(_RESYNC_S)


def main() -> None:
    """Run until SIGTERM."""
    logs.configure(os.environ.get("PGHERD_LOG_LEVEL") or "info")
    asyncio.run(run(os.environ))


if __name__ == "__main__":
    main()
