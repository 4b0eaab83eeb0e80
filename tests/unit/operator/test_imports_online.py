"""An import online: one Job at a time, which comes to what the spec asks for, and what is told."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from operator_world import NAME, World, running
from pgherd_operator.api.resource import InvalidSpec, parse_resource
from pgherd_operator.core.actions import Reason
from pgherd_operator.objects import imports, names
from pgherd_operator.objects.config import ETC
from pgherd_operator.shell.kube.interface import Manifest
from pgherd_sidecar.importing import job as program

_FOLLOWING = {
    "phase": "Following", "line": "following: 0.1 s behind", "error": "", "reasons": [],
    "tables": 3, "tables_done": 3, "rows": 1000, "bytes": 4096, "bytes_of_tables": 8192,
    "lag_s": 0.1, "lag_bytes": 10,
}  # fmt: skip
_DONE = {"outcome": "done", "tables": 3, "without_writes_s": 1.25, "left": "mend these rows"}


@dataclass
class ImportWorld(World):
    """A world in which Jobs have pods, and those a program that says what it is told to say.

    Attributes:
        says: the program that runs.
        trouble: why its pod does not run.
    """

    says: dict[str, Any] = field(default_factory=dict)
    trouble: str = ""
    most_at_once: int = 0

    async def list(self, kind: str, namespace: str, selector: str) -> list[Manifest]:
        """See KubernetesApi."""
        if kind != "Pod" or not selector.startswith(names.IMPORT):
            return await super().list(kind, namespace, selector)
        self.calls.add(("list", kind))
        strangers = await super().list(kind, namespace, selector)
        if self.trouble == "no pod":
            return strangers
        return [*strangers, *(self._pod(job) for job in self.jobs().values())]

    def _pod(self, job: Manifest) -> Manifest:
        metadata = {
            "name": f"{job['metadata']['name']}-x",
            "ownerReferences": [{"uid": job["metadata"]["uid"]}],
            "uid": f"pod of {job['metadata']['uid']}",
        }
        if "last_words" in job:
            ended = {"terminated": {"exitCode": 0, "message": job["last_words"]}}
            status: Manifest = {"phase": "Succeeded", "containerStatuses": [{"state": ended}]}
        elif self.trouble == "-":
            status = {"phase": "Pending"}
        elif self.trouble:
            waiting = {"waiting": {"reason": "ErrImagePull", "message": self.trouble}}
            status = {
                "phase": "Pending",
                "containerStatuses": [{"name": "import", "state": waiting}],
            }
        else:
            status = {"phase": "Running", "podIP": "10.0.0.9"}
        return {"kind": "Pod", "metadata": metadata, "status": status}

    async def told(self, address: str) -> Mapping[str, Any]:
        """See Importers."""
        assert address == "10.0.0.9"
        return self.says

    def _check_creation(self, kind: str, manifest: Manifest) -> None:
        super()._check_creation(kind, manifest)
        if kind == "Job":
            running = [job for job in self.jobs().values() if "status" not in job]
            assert not running, "two imports at once"

    def jobs(self) -> dict[str, Manifest]:
        """The Jobs that there are, by their goals."""
        prefix = f"{NAME}-import-"
        return {
            name.removeprefix(prefix): item
            for (kind, name), item in self.objects.items()
            if kind == "Job"
        }

    def aim(self, goal: str) -> None:
        """The user wants something else."""
        self.change(bootstrap={"importFrom": self.spec["bootstrap"]["importFrom"] | {"goal": goal}})

    def ends(self, goal: str, words: str, *, well: bool = True) -> None:
        """A Job ends."""
        job = self.jobs()[goal]
        kind = "Complete" if well else "Failed"
        job["status"] = {"conditions": [{"type": kind, "status": "True"}]}
        job["last_words"] = words

    @property
    def condition(self) -> tuple[str, str, str]:
        """Status, reason and message of Imported."""
        (one,) = (c for c in self.resource["status"]["conditions"] if c["type"] == "Imported")
        return one["status"], one["reason"], one["message"]


def online(**more: Any) -> dict[str, Any]:
    """A bootstrap."""
    return {"importFrom": {"dsn": {"name": "old", "key": "uri"}, "mode": "Online", **more}}


async def following() -> ImportWorld:
    """A herd that follows a source."""
    world = ImportWorld()
    world.submit(bootstrap=online())
    await world.settle()
    world.says = dict(_FOLLOWING)
    await world.reconcile()
    return world


async def test_a_pod_of_nobody_with_the_label_of_the_import_stops_nothing() -> None:
    world = await following()
    copied = {"name": "copy", "uid": "copy", "labels": {names.IMPORT: NAME}}
    world.objects["Pod", "copy"] = {"kind": "Pod", "metadata": copied, "status": {}}
    await world.reconcile()
    assert world.condition[:2] == ("False", "ImportFollows")


async def test_the_job_begins_when_all_members_are_there_and_names_them() -> None:
    world = ImportWorld()
    world.submit(bootstrap=online(jobs=3))
    await world.settle()
    job = world.jobs()["follow"]
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    order = msgspec.json.decode(container["args"][0].encode(), type=program.ImportOrder)
    assert order.goal == "follow"
    assert order.jobs == 3
    assert [one.name for one in order.members] == [f"{NAME}-{n}" for n in (1, 2, 3)]
    assert order.dsn_file == f"{ETC}/import/uri"
    assert f"sslcert={ETC}/tls/tls.crt" in order.members[0].dsn
    assert ("Secret", names.import_certificate(NAME)) in world.objects
    assert names.CLUSTER not in job["spec"]["template"]["metadata"]["labels"]  # nobody's member
    # Members let it in as the superuser, and by nothing else.
    roles = world.objects["ConfigMap", f"{NAME}-1"]["data"]["pg_ident.conf"]
    identity = world.cluster_id()
    assert f'members  "CN=import.{identity}.pgherd,O={identity}"  postgres' in roles


async def test_a_herd_without_one_has_neither_its_condition_nor_its_line_in_pg_ident() -> None:
    world = await running()
    status = world.resource["status"]
    assert "Imported" not in {one["type"] for one in status["conditions"]}
    assert "importFrom" not in status
    assert "import." not in world.objects["ConfigMap", f"{NAME}-1"]["data"]["pg_ident.conf"]


def test_the_program_s_words_are_those_of_the_order() -> None:
    assert program.REFUSED == imports.REFUSED
    order = program.ImportOrder("follow", (), "f", 1)
    assert order.progress_port == names.PROGRESS_PORT


async def test_the_status_tells_progress_and_the_herd_is_ready_meanwhile() -> None:
    world = await following()
    status = world.resource["status"]
    assert status["importFrom"]["phase"] == "Following"
    assert status["importFrom"]["lagSeconds"] == 0.1
    assert status["importFrom"]["rowsCopied"] == 1000
    assert world.condition[:2] == ("False", "ImportFollows")
    (ready,) = (one for one in status["conditions"] if one["type"] == "Ready")
    assert ready["status"] == "True"
    assert await world.reconcile() == 2.0  # it is looked at all the time


async def test_a_source_that_cannot_be_taken_over_is_told_with_every_reason() -> None:
    world = await following()
    world.says |= {"phase": "Looking", "reasons": ["wal_level is replica: set it", "no room: make"]}
    await world.reconcile()
    state, reason, text = world.condition
    assert (state, reason) == ("False", "ImportRefused")
    assert "nothing was made" in text
    assert "wal_level is replica: set it; no room: make" in text
    told = [event for event in world.events if event.reason is Reason.IMPORT_REFUSED]
    assert [event.kind for event in told] == ["Warning"]
    await world.reconcile()
    assert [event for event in world.events if event.reason is Reason.IMPORT_REFUSED] == told


async def test_what_stops_it_for_a_while_is_told() -> None:
    world = await following()
    world.says["error"] = "the source can't be reached: no route"
    await world.reconcile()
    assert world.condition[1] == "ImportStopped"
    assert "no route" in world.condition[2]
    world.says, world.trouble = {}, "no such image"
    await world.reconcile()
    assert world.condition[1] == "ImportStopped"
    assert "no such image" in world.condition[2]
    # The kubelet's word about a Secret that is missing is an Event, and nothing else.
    world.trouble = "-"
    uid = f"pod of {world.jobs()['follow']['metadata']['uid']}"
    world.objects["Event", "e"] = {
        "kind": "Event", "metadata": {"name": "e"}, "involvedObject": {"uid": uid},
        "reason": "FailedMount", "message": 'secret "old" not found',
    }  # fmt: skip
    await world.reconcile()
    assert 'FailedMount: secret "old" not found' in world.condition[2]
    # Where no pod can be made it is one about the Job.
    world.trouble = "no pod"
    world.objects["Event", "e"] |= {
        "involvedObject": {"uid": world.jobs()["follow"]["metadata"]["uid"]},
        "reason": "FailedCreate", "message": "exceeded quota: pods",
    }  # fmt: skip
    await world.reconcile()
    assert world.condition[1] == "ImportStopped"
    assert "FailedCreate: exceeded quota: pods" in world.condition[2]


async def test_a_cut_over_ends_the_import_for_good() -> None:
    world = await following()
    world.aim("CutOver")
    await world.settle()
    assert list(world.jobs()) == ["cut-over"]
    world.ends("cut-over", json.dumps(_DONE))
    await world.settle()
    state, reason, text = world.condition
    assert (state, reason) == ("True", "Imported")
    assert "all 3 tables are equal; no writes for 1.2 s; mend these rows; connect" in text
    assert f"Secret {NAME}-app to service {NAME}-rw" in text
    assert world.resource["status"]["importFrom"]["phase"] == "Done"
    assert not world.jobs()
    # Nobody can get in as the superuser by its certificate any more.
    assert ("Secret", names.import_certificate(NAME)) not in world.objects
    for goal in ("Follow", "Abort", "CutOver"):
        world.aim(goal)
        await world.settle()
        assert not world.jobs()
        assert world.condition[0] == "True"


async def made_again(world: ImportWorld) -> None:
    """The resource is deleted, with Retain, and made again."""
    await world.removed()
    world.tick()
    world.submit(bootstrap=online(goal="CutOver"))
    await world.settle()
    assert world.voters() == {1, 2, 3}


async def test_what_was_imported_is_not_imported_again_by_a_resource_that_is_made_again() -> None:
    world = await following()
    world.aim("CutOver")
    await world.settle()
    world.ends("cut-over", json.dumps(_DONE))
    await world.settle()
    await made_again(world)
    assert not world.jobs()
    assert world.condition[:2] == ("True", "Imported")


async def test_what_was_being_imported_is_imported_by_a_resource_that_is_made_again() -> None:
    world = await following()
    await made_again(world)
    assert list(world.jobs()) == ["cut-over"]


async def test_a_cut_over_that_fails_is_not_repeated_and_the_source_is_followed() -> None:
    world = await following()
    world.aim("CutOver")
    await world.settle()
    world.ends("cut-over", '{"error": "tables differ: public.t"}', well=False)
    await world.settle()
    assert set(world.jobs()) == {"cut-over", "follow"}
    assert world.condition[1] == "CutOverFailed"
    assert "tables differ: public.t" in world.condition[2]
    attempt = world.jobs()["cut-over"]["metadata"]["uid"]
    await world.settle()
    assert world.jobs()["cut-over"]["metadata"]["uid"] == attempt
    world.aim("Follow")
    await world.settle()
    assert list(world.jobs()) == ["follow"]
    assert world.condition[1] == "ImportFollows"
    world.aim("CutOver")
    await world.settle()
    assert list(world.jobs()) == ["cut-over"]


async def test_an_abort_removes_all_and_it_may_begin_anew() -> None:
    world = await following()
    world.aim("Abort")
    await world.settle()
    assert list(world.jobs()) == ["abort"]
    world.ends("abort", '{"outcome": "aborted"}')
    await world.settle()
    assert not world.jobs()
    assert world.condition[:2] == ("False", "ImportAborted")
    assert ("Secret", names.import_certificate(NAME)) not in world.objects
    world.aim("Follow")
    await world.settle()
    assert list(world.jobs()) == ["follow"]


async def test_an_abort_that_comes_too_late_is_the_end_of_the_cut_over() -> None:
    world = await following()
    world.aim("Abort")
    await world.settle()
    world.ends("abort", json.dumps(_DONE))
    await world.settle()
    assert world.condition[:2] == ("True", "Imported")


async def test_a_job_that_is_deleted_or_gives_up_is_made_anew() -> None:
    world = await following()
    first = world.jobs()["follow"]["metadata"]["uid"]
    world.ends("follow", '{"error": "another process runs it"}', well=False)
    await world.settle()
    second = world.jobs()["follow"]["metadata"]["uid"]
    assert second != first
    del world.objects["Job", names.import_job(NAME, "follow")]
    await world.settle()
    assert world.jobs()["follow"]["metadata"]["uid"] != second


async def test_other_members_are_told_to_the_job_that_follows() -> None:
    world = await following()
    await world.changed(instances=4)
    (container,) = world.jobs()["follow"]["spec"]["template"]["spec"]["containers"]
    assert f"{NAME}-4" in container["args"][0]


async def test_a_herd_that_sleeps_imports_nothing() -> None:
    world = await following()
    await world.changed(hibernated=True)
    assert not world.jobs()
    assert world.condition[1:] == ("Waiting", "the herd sleeps")


async def test_no_pod_is_replaced_for_another_goal() -> None:
    world = await following()
    pods = {name: item["metadata"]["uid"] for (kind, name), item in world.objects.items()
            if kind == "Pod"}  # fmt: skip
    world.aim("CutOver")
    await world.settle()
    assert pods == {name: item["metadata"]["uid"] for (kind, name), item in world.objects.items()
                    if kind == "Pod"}  # fmt: skip


@pytest.mark.parametrize(
    "bootstrap",
    [
        {"importFrom": {"dsn": {"name": "old"}, "goal": "CutOver"}},
        {**online(), "sql": ["CREATE TABLE t (id int)"]},
    ],
    ids=str,
)
def test_what_does_not_go_together_is_refused(bootstrap: dict[str, Any]) -> None:
    body = {
        "metadata": {"name": "h", "namespace": "n", "uid": "u"},
        "spec": {"bootstrap": bootstrap},
    }
    with pytest.raises(InvalidSpec, match="Online"):
        parse_resource(body)
