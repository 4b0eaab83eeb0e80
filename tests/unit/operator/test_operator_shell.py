"""The operator's shell: one leader, herds that do not delay each other, HTTP as it has to be."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from cryptography import x509
from operator_api_server import ApiServer
from operator_world import World
from pgherd_operator.api.resource import parse_resource
from pgherd_operator.core.actions import Event, Reason
from pgherd_operator.core.observed import Ledger, Phase
from pgherd_operator.objects.model import Role
from pgherd_operator.shell.kube.client import Access, Client
from pgherd_operator.shell.kube.election import DURATION_S, Election, LostLeadershipError
from pgherd_operator.shell.kube.events import EventPoster
from pgherd_operator.shell.kube.interface import ApiError, ConflictError, Manifest, NotFoundError
from pgherd_operator.shell.kube.queue import Queue
from pgherd_operator.shell.main import Changes, handlers, release
from pgherd_operator.shell.observing import certificates
from pgherd_operator.shell.observing.reading import ledger_data, parse_ledger
from pgherd_operator.shell.observing.sidecars import SidecarError
from pgherd_operator.shell.observing.sidecars import parse as parse_report
from pgherd_sidecar.pki.authority import subject

NOW = datetime(2030, 1, 1, tzinfo=UTC)


class Leases:
    """One Lease, with versions."""

    def __init__(self) -> None:
        self.lease: Manifest | None = None
        self.version = 0
        self.down = False
        self.hangs = False

    async def get(self, kind: str, namespace: str, name: str) -> Manifest:
        if self.down:
            raise ApiError(0, "unreachable")
        if self.hangs:
            await asyncio.Event().wait()
        if self.lease is None:
            raise NotFoundError(404, "no lease")
        return self.lease

    async def create(self, manifest: Manifest) -> None:
        if self.lease is not None:
            raise ConflictError(409, "exists")
        self._store(manifest)

    async def replace(self, manifest: Manifest) -> None:
        if manifest["metadata"]["resourceVersion"] != str(self.version):
            raise ConflictError(409, "changed")
        self._store(manifest)

    def _store(self, manifest: Manifest) -> None:
        self.version += 1
        metadata = manifest["metadata"] | {"resourceVersion": str(self.version)}
        self.lease = manifest | {"metadata": metadata}


class Clock:
    """Time that passes when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


def candidate(leases: Leases, name: str, clock: Clock) -> Election:
    return Election(leases, "system", "lease", name, clock, clock.sleep)


def holder(leases: Leases) -> str:
    assert leases.lease is not None
    found = leases.lease["spec"]["holderIdentity"]
    assert isinstance(found, str)
    return found


async def test_the_first_candidate_leads() -> None:
    leases, clock = Leases(), Clock()
    await candidate(leases, "a", clock).acquire()
    assert holder(leases) == "a"


async def test_another_leads_only_when_the_lease_has_not_changed_for_its_duration() -> None:
    leases, clock = Leases(), Clock()
    await candidate(leases, "a", clock).acquire()
    began = clock.now
    await candidate(leases, "b", clock).acquire()
    assert holder(leases) == "b"
    assert clock.now - began > DURATION_S


async def test_a_leader_that_renews_is_left_alone() -> None:
    leases, clock = Leases(), Clock()
    leader = candidate(leases, "a", clock)
    await leader.acquire()
    async with asyncio.TaskGroup() as group:
        keeping = group.create_task(leader.keep())
        waiting = group.create_task(candidate(leases, "b", clock).acquire())
        for _ in range(200):
            await asyncio.sleep(0)
        assert holder(leases) == "a"
        assert not waiting.done()
        keeping.cancel()
        waiting.cancel()


async def test_a_leader_steps_down_before_others_may_take_over() -> None:
    leases, clock = Leases(), Clock()
    leader = candidate(leases, "a", clock)
    await leader.acquire()
    leases.down = True
    began = clock.now
    with pytest.raises(LostLeadershipError):
        await leader.keep()
    assert clock.now - began < DURATION_S


async def test_a_leader_whose_renewal_hangs_steps_down() -> None:
    leases, clock = Leases(), Clock()

    async def sleep(seconds: float) -> None:
        clock.now += DURATION_S

    leader = Election(leases, "system", "lease", "a", clock, sleep)
    await leader.acquire()
    leases.hangs = True
    with pytest.raises(LostLeadershipError, match="no answer"):
        await leader.keep()


async def test_a_leader_that_ends_gives_the_lease_back() -> None:
    leases, clock = Leases(), Clock()
    first = candidate(leases, "a", clock)
    await first.acquire()
    await first.release()
    assert holder(leases) == ""
    began = clock.now
    second = candidate(leases, "b", clock)
    await second.acquire()
    assert (holder(leases), clock.now) == ("b", began)
    await first.release()  # it is another's now
    assert holder(leases) == "b"
    leases.down = True
    await second.release()  # nobody hears it, and the duration does it


async def test_a_leader_that_was_replaced_steps_down() -> None:
    leases, clock = Leases(), Clock()
    leader = candidate(leases, "a", clock)
    await leader.acquire()
    await candidate(leases, "b", clock).acquire()
    with pytest.raises(LostLeadershipError):
        await leader.keep()


async def test_an_event_has_room_for_any_letters() -> None:
    # The API server counts bytes, and refuses an Event with more than 1024 of them.
    api = ApiServer()
    about = World()
    about.submit()
    cluster = parse_resource(about.resource)
    async with asyncio.TaskGroup() as group:
        poster = EventPoster(api, group, "operator-0")
        poster.tell(cluster, Event(Reason.MEMBERS_DIFFER, "\u4e16" * 500))
        poster.tell(cluster, Event(Reason.MEMBERS_DIFFER, "a" * 2000))
    messages = [item["message"] for (kind, _), item in api.objects.items() if kind == "Event"]
    assert [len(one.encode()) for one in messages] == [1023, 1024]


async def test_a_herd_that_hangs_delays_no_other() -> None:
    looked = asyncio.Queue[str]()

    async def look(namespace: str, name: str) -> float | None:
        if name == "stuck":
            await asyncio.Event().wait()
        await looked.put(name)
        return None

    with pytest.raises(asyncio.CancelledError):  # the stuck one has to be ended somehow
        async with asyncio.TaskGroup() as group:
            queue = Queue(look, group)
            queue.wake("n", "stuck")
            queue.wake("n", "well")
            assert await looked.get() == "well"
            raise asyncio.CancelledError


async def test_wakes_during_a_look_are_one_more_look() -> None:
    looks, began, go_on = 0, asyncio.Event(), asyncio.Event()

    async def look(namespace: str, name: str) -> float | None:
        nonlocal looks
        looks += 1
        began.set()
        await go_on.wait()
        return None

    async with asyncio.TaskGroup() as group:
        queue = Queue(look, group)
        queue.wake("n", "herd")
        await began.wait()
        for _ in range(5):
            queue.wake("n", "herd")
        go_on.set()
    assert looks == 2


EVENTS = [
    {"type": "Normal", "reason": "Scheduled", "message": "assigned to a node"},
    {"type": "Warning", "reason": "FailedMount", "message": "no such device"},
    {"type": "Normal", "reason": "FailedBinding", "message": "no storage class is set"},
]


@pytest.fixture
async def server() -> AsyncIterator[tuple[Client, list[dict[str, Any]]]]:
    """A client of an API server that notes what it is asked, and answers by the name asked for."""
    seen: list[dict[str, Any]] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append({
            "method": request.method, "path": request.path, "query": dict(request.query),
            "type": request.content_type, "body": await request.text(),
        })  # fmt: skip
        for word, status in (("missing", 404), ("taken", 409), ("broken", 500)):
            if word in request.path:
                return web.json_response({"message": f"it is {word}"}, status=status)
        if "proxy" in request.path:
            status = 502 if "502" in request.path else 200
            page = b"<html>\xff\t{[it is a proxy" if "binary" in request.path else b"[]"
            return web.Response(body=page, status=status, content_type="text/html")
        events = EVENTS if request.path.endswith("/events") else []
        return web.json_response({"items": events, "kind": "x"})

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    client = Client(Access(f"http://127.0.0.1:{port}"))
    yield client, seen
    await client.close()
    await runner.cleanup()


async def test_an_apply_is_a_server_side_apply_under_our_name(
    server: tuple[Client, list[dict[str, Any]]],
) -> None:
    client, seen = server
    metadata = {"name": "herd", "namespace": "n"}
    await client.apply({"kind": "NetworkPolicy", "metadata": metadata})
    assert seen[0]["method"] == "PATCH"
    assert seen[0]["path"] == "/apis/networking.k8s.io/v1/namespaces/n/networkpolicies/herd"
    assert seen[0]["query"] == {"fieldManager": "pgherd-operator", "force": "true"}
    assert seen[0]["type"] == "application/apply-patch+yaml"


async def test_a_deletion_names_the_object_by_its_uid_and_version(
    server: tuple[Client, list[dict[str, Any]]],
) -> None:
    client, seen = server
    await client.delete("PersistentVolumeClaim", "n", "herd-1-data", "u-7", "12")
    conditions = {"uid": "u-7", "resourceVersion": "12"}
    assert json.loads(seen[0]["body"]) == {"preconditions": conditions}


@pytest.mark.parametrize(
    ("name", "error"), [("missing", NotFoundError), ("taken", ConflictError), ("broken", ApiError)]
)
async def test_refusals_have_a_type_and_the_servers_words(
    server: tuple[Client, list[dict[str, Any]]], name: str, error: type[ApiError]
) -> None:
    client, _ = server
    with pytest.raises(error, match=f"it is {name}"):
        await client.get("Pod", "n", name)


async def test_a_patch_of_another_object_of_the_name_is_a_conflict() -> None:
    # By this the API server says that the uid in the patch is not that of the object.
    message = 'pods "herd-1" is invalid: metadata.uid: Invalid value: "u-7": field is immutable'
    causes = [{"reason": "FieldValueInvalid", "field": "metadata.uid"}]
    refusal = {"reason": "Invalid", "message": message, "details": {"causes": causes}}

    async def answer(request: web.Request) -> web.Response:
        return web.json_response(refusal, status=422)

    async with serving(answer) as url:
        client = Client(Access(url))
        try:
            with pytest.raises(ConflictError, match="field is immutable"):
                await client.patch("Pod", "n", "herd-1", {"metadata": {"uid": "u-7"}})
            causes[0]["field"] = "spec.nodeName"
            with pytest.raises(ApiError) as refused:
                await client.patch("Pod", "n", "herd-1", {"metadata": {"uid": "u-7"}})
            assert not isinstance(refused.value, ConflictError)
        finally:
            await client.close()


async def test_what_is_wrong_is_told_by_warnings_about_an_object_and_why_it_waits(
    server: tuple[Client, list[dict[str, Any]]],
) -> None:
    client, seen = server
    found = await client.warnings("n", "u-7")
    assert [one["reason"] for one in found] == ["FailedMount", "FailedBinding"]
    assert seen[0]["path"] == "/api/v1/namespaces/n/events"
    assert seen[0]["query"] == {"fieldSelector": "involvedObject.uid=u-7"}


REFUSALS = {
    "taken": (409, 'pods "herd-1" already exists', True),
    "quota": (403, "exceeded quota: pods, requested: pods=1, used: pods=3, limited: pods=3", True),
    "hook": (400, 'admission webhook "x" does not support dry run', True),
    "policy": (403, "denied by policy", False),
    "limits": (422, "must be less than or equal to memory limit", False),
    "no hook": (500, "failed calling webhook", False),
}


@pytest.mark.parametrize("name", REFUSALS)
async def test_what_would_be_admitted_is_asked_without_making_it(name: str) -> None:
    status, message, admitted = REFUSALS[name]
    seen: list[dict[str, str]] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append({"path": request.path, **request.query})
        return web.json_response({"message": message}, status=status)

    async with serving(answer) as url:
        client = Client(Access(url))
        try:
            wanted: Manifest = {"kind": "Pod", "metadata": {"name": "herd-1", "namespace": "n"}}
            if admitted:
                await client.admit(wanted)
            else:
                with pytest.raises(ApiError, match=message):
                    await client.admit(wanted)
        finally:
            await client.close()
    assert [(one["path"], one["dryRun"]) for one in seen] == [("/api/v1/namespaces/n/pods", "All")]


@asynccontextmanager
async def serving(
    answer: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> AsyncIterator[str]:
    """A server that answers whatever is asked; its address."""
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("name", ["proxy", "proxy-binary", "proxy-502", "proxy-502-binary"])
async def test_what_a_proxy_answers_instead_is_an_error_of_the_api(
    server: tuple[Client, list[dict[str, Any]]], name: str
) -> None:
    client, _ = server
    with pytest.raises(ApiError) as caught:
        await client.get("Pod", "n", name)
    assert caught.value.status == (502 if "502" in name else 200)


async def test_nobody_there_is_an_error_of_the_api() -> None:
    client = Client(Access("http://127.0.0.1:1"))
    with pytest.raises(ApiError) as caught:
        await client.list("Pod", "", "")
    assert caught.value.status == 0
    await client.close()


def test_certificates_are_signed_by_the_herds_authority_and_end_with_it() -> None:
    ca = certificates.authority("pgherd herd", NOW)
    issued = certificates.issue(
        ca.data, subject("herd-1", "ID"), ["a.b.pgherd", "c"], NOW, timedelta(days=90)
    )
    certificate = x509.load_pem_x509_certificate(issued.data["tls.crt"])
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(ca.data["tls.crt"]))
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["a.b.pgherd", "c"]
    long = certificates.issue(ca.data, subject("x"), ["x"], NOW, timedelta(days=9999))
    assert long.not_after <= ca.not_after


def test_a_certificate_serves_a_connection(tmp_path: Path) -> None:
    ca = certificates.authority("pgherd herd", datetime.now(UTC))
    issued = certificates.issue(ca.data, subject("m"), ["m"], datetime.now(UTC), timedelta(days=1))
    for name, content in issued.data.items():
        (tmp_path / name).write_bytes(content)
    context = ssl.create_default_context(cafile=tmp_path / "ca.crt")
    context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    assert context.cert_store_stats()["x509_ca"] == 1


def test_an_authority_without_a_key_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"tls\.key"):
        ca = certificates.authority("x", NOW)
        certificates.issue(
            {"tls.crt": ca.data["tls.crt"]},
            subject("m"),
            ["m"],
            NOW,
            timedelta(days=1),
        )


def test_the_ledger_is_read_as_it_was_written() -> None:
    ledger = Ledger("id", Phase.FOUNDING, ((1, Role.DATABASE), (2, Role.WITNESS)))
    assert parse_ledger({"data": ledger_data(ledger)}) == ledger
    assert parse_ledger({"data": {"phase": "Nonsense"}}) is None


def test_a_sidecar_of_today_tells_of_no_view() -> None:
    report = parse_report(1, {"name": "n1", "cluster_id": "c", "state": "primary", "gid": 3})
    assert report.view is None
    assert not report.primary
    with pytest.raises(SidecarError, match="member 1: state"):
        parse_report(1, {"name": "n1", "cluster_id": "c"})


def test_kopf_is_given_handlers_of_events_only() -> None:
    queue = Queue(lambda *_: asyncio.sleep(0), None)  # type: ignore[arg-type]
    registry = handlers(queue, dict.fromkeys(["Snapshot", "ConsistencyCheck"], queue))
    watched = {
        one.selector.any_name for one in registry._watching.get_all_handlers() if one.selector
    }
    # Whoever watches pods with kopf has all pods of the cluster listed.
    assert watched == {"replicatedclusters", "snapshots", "consistencychecks"}
    assert not registry._changing.get_all_handlers()
    assert not registry._spawning.get_all_handlers()


def test_writing_the_status_is_no_reason_to_look_again() -> None:
    changes = Changes()
    metadata: Manifest = {"uid": "u", "generation": 1, "resourceVersion": "1"}
    assert changes.matter(metadata)
    assert not changes.matter(metadata | {"resourceVersion": "2"})
    assert changes.matter(metadata | {"generation": 2})
    assert changes.matter(metadata | {"deletionTimestamp": "now"})


def test_every_reason_is_explained_to_operators() -> None:
    page = (Path(__file__).parents[3] / "docs" / "operator.md").read_text()
    table = [line for line in page.splitlines() if line.startswith("| ")]
    known = {name.strip() for line in table for name in line.split("|")[1].split(",")}
    assert {reason.value for reason in Reason} <= known


def test_the_release_comes_from_the_environment() -> None:
    found = release({"PGHERD_SIDECAR_IMAGE": "s:1", "POD_NAMESPACE": "here"})
    assert (found.sidecar_image, found.operator_namespace) == ("s:1", "here")
    assert "{version}" in found.postgres_image
