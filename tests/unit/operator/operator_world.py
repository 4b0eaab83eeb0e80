"""Kubernetes, its nodes and a herd of sidecars in memory, for tests of the operator.

``ApiServer`` keeps the manifests, and fails when told to. ``tick`` lets everything else act: pods
start and stop, volumes in use are protected, the herd founds itself, learners become voters. The
herd's true view is here; the operator learns of it from the members that answer.

Every write is checked on the spot for what must never happen (``Forbidden``): a volume made from
nothing when there may be data, the deletion of a disk that has a vote, two working members taken
out at once, a password made anew.

Not modelled: the log, and thus what a view change does to it; a majority that reports an old view
(a view changes through a majority of the one before it).
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from operator_api_server import ApiServer
from pgherd_operator.api import GROUP, KIND, VERSION
from pgherd_operator.api.resource import Cluster
from pgherd_operator.core.actions import Event
from pgherd_operator.core.observed import View, ViewMember
from pgherd_operator.core.upgrade import Turns
from pgherd_operator.objects import names
from pgherd_operator.objects.model import Release
from pgherd_operator.shell.controller import Environment, reconcile_once
from pgherd_operator.shell.kube.interface import Manifest
from pgherd_operator.shell.observing import certificates
from pgherd_operator.shell.observing.sidecars import SidecarError, SidecarRefusedError
from pgherd_sidecar.pki.authority import subject

NAME, NAMESPACE = "herd", "test"


class Forbidden(AssertionError):
    """The operator did what it must never do."""


@dataclass
class Process:
    """A running sidecar."""

    number: int
    disk_id: str
    founder: bool
    founders: tuple[tuple[int, bool], ...]
    witness: bool
    reader: bool = False
    silent: bool = False
    diverged: bool = False
    maintained: bool = False
    """It is drained, and in the middle of what a restart would break off."""
    serves: bool = False
    """It is not drained for its maintenance."""
    capture_off: tuple[str, ...] = ()
    differences: tuple[dict[str, Any], ...] = ()
    scrubs: bool = True
    incidents: tuple[dict[str, Any], ...] = ()
    held: str | None = None
    broken: bool = False
    """It never becomes a working member: its configuration is bad."""


@dataclass
class World(ApiServer):
    """All of it."""

    processes: dict[int, Process] = field(default_factory=dict)
    diverged_disks: set[str] = field(default_factory=set)
    departed: set[str] = field(default_factory=set)
    emptied: dict[str, int] = field(default_factory=dict)
    """How often the content of a volume was lost, by its uid."""
    dead_nodes: set[int] = field(default_factory=set)
    unscheduled: set[int] = field(default_factory=set)
    """Numbers of the members whose pods get no node."""
    view: View | None = None
    founded_with: int = 0
    """How many members the first view had."""
    events: list[Event] = field(default_factory=list)
    ever_ran: bool = False
    joins_held: bool = False
    """Who asks to be taken in has to wait."""
    roles: dict[str, dict[str, Any]] = field(default_factory=dict)
    by_hand: dict[int, dict[str, dict[str, Any]]] = field(default_factory=dict)
    """Roles that are otherwise on one member."""
    owners: set[str] = field(default_factory=set)
    asked: int = 0
    """How often a sidecar was asked for roles."""
    release: Release = field(default_factory=Release)
    """Of the operator that looks."""
    began: datetime = datetime(2030, 1, 1, tzinfo=UTC)
    turns: Turns = field(default_factory=lambda: Turns(0.0))
    unseen: set[int] = field(default_factory=set)
    """Numbers of those who have joined since the operator's last look began."""

    # ---- the user ----------------------------------------------------------------------------

    def submit(self, **spec: Any) -> None:
        """Create the resource."""
        metadata = {"name": NAME, "namespace": NAMESPACE, "uid": self.uid(), "generation": 1}
        resource = {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND, "metadata": metadata}
        self.objects[KIND, NAME] = resource | {"spec": spec}

    @property
    def resource(self) -> Manifest:
        """The resource."""
        return self.objects[KIND, NAME]

    @property
    def spec(self) -> dict[str, Any]:
        """Its spec."""
        found = self.resource["spec"]
        assert isinstance(found, dict)
        return found

    def change(self, **spec: Any) -> None:
        """Edit the spec."""
        self.resource["spec"] = self.spec | spec
        self.resource["metadata"]["generation"] += 1

    async def changed(self, **spec: Any) -> None:
        """Edit the spec, and let what follows be done."""
        self.change(**spec)
        await self.settle()

    def empty(self, number: int) -> None:
        """Lose what is on a volume, while its claim stays: a node with local volumes made anew."""
        uid = self.objects["PersistentVolumeClaim", f"{NAME}-{number}-data"]["metadata"]["uid"]
        self.emptied[uid] = self.emptied.get(uid, 0) + 1

    def disk(self, volume: Manifest) -> str:
        """The identity of what is on a volume."""
        uid = str(volume["metadata"]["uid"])
        return f"{uid}/{self.emptied[uid]}" if uid in self.emptied else uid

    def remove_resource(self) -> None:
        """Delete the resource."""
        self.mark_deleted((KIND, NAME))

    async def removed(self, *, ticking: bool = False) -> None:
        """Delete the resource, and let the operator look, and the world act, until it is gone."""
        self.remove_resource()
        while (KIND, NAME) in self.objects:
            await self.reconcile()
            if ticking:
                self.tick()

    # ---- the environment of the controller ---------------------------------------------------

    async def reconcile(self) -> float | None:
        """Let the operator look once."""
        self.unseen.clear()
        env = Environment(
            self, lambda _: self, self, self, lambda: self.now, self.release, self.began,
            self.turns,
        )  # fmt: skip
        return await reconcile_once(env, NAMESPACE, NAME)

    async def told(self, address: str) -> Mapping[str, Any]:
        """See Importers: nothing is imported here."""
        return {}

    def tell(self, cluster: Cluster, event: Event) -> None:
        """See Events."""
        self.events.append(event)

    async def settle(self, rounds: int = 80) -> None:
        """Let the operator and the world act in turn until there is nothing left to do."""
        quiet = 0
        for _ in range(rounds):
            before = len(self.writes)
            await self.reconcile()
            self.tick()
            quiet = quiet + 1 if len(self.writes) == before else 0
            if quiet == 3:
                return
        raise AssertionError(f"does not settle: {self.writes[-8:]}; {self.resource.get('status')}")

    # ---- what must never happen --------------------------------------------------------------

    def _check_creation(self, kind: str, manifest: Manifest) -> None:
        annotations = manifest["metadata"].get("annotations", {})
        if kind == "PersistentVolumeClaim":
            founder = annotations[names.ORIGIN] == "Founder"
            if founder and (self.ever_ran or self.view is not None):
                raise Forbidden("a second founding")
            number = int(manifest["metadata"]["labels"][names.MEMBER])
            if self.view is not None and self.view.find(number) is not None:
                raise Forbidden("two disks for one member of the view")
        lasting = kind == "Secret" and manifest["metadata"]["name"] in names.lasting_secrets(NAME)
        if lasting and any(key[0] == "Pod" for key in self.objects):
            raise Forbidden("a new secret while members run on the old one")

    def _check_deletion(self, kind: str, item: Manifest) -> None:
        if "deletionTimestamp" in self.resource["metadata"]:
            if kind == "PersistentVolumeClaim" and self.spec.get("deletionPolicy") != "Delete":
                raise Forbidden("a volume that was to be retained")
            return
        if kind in ("Certificate", "ConfigMap", "Secret", "Service"):
            self._check_removal(item["metadata"]["name"])
        if kind == "PersistentVolumeClaim":
            if self.view is None:
                raise Forbidden("a volume, and nobody knows who is a member")
            if any(process.disk_id == self.disk(item) for process in self.processes.values()):
                raise Forbidden("a volume under a process that may join")
            if any(member.disk_id == self.disk(item) for member in self.view.members):
                raise Forbidden("the volume of a member of the view")
        if kind == "Pod" and not self.spec.get("hibernated"):
            number = int(item["metadata"]["labels"][names.MEMBER])
            if number in self.processes and self.processes[number].maintained:
                raise Forbidden("a member in the middle of maintenance")
            self._check_restart(number)

    def _check_removal(self, name: str) -> None:
        if name == names.import_certificate(NAME):
            return
        number = names.number_of(NAME, name.removesuffix("-tls"))
        if number is None:
            raise Forbidden("what all members need")
        inside = self.view is None or self.view.find(number) is not None
        if inside or number in self.processes or ("Pod", f"{NAME}-{number}") in self.objects:
            raise Forbidden("what a member needs")

    def _check_restart(self, number: int) -> None:
        if self.view is None or not self.primary() or not self.works(number):
            return
        if number in self.unseen:  # nobody can know
            return
        others = [voter for voter in self.view.voters if voter.number != number]
        if not all(self.works(voter.number) for voter in others):
            raise Forbidden("a working member, while another does not work")
        if any(
            "deletionTimestamp" in item["metadata"]
            for (kind, _), item in self.objects.items()
            if kind == "Pod" and int(item["metadata"]["labels"][names.MEMBER]) in self.voters()
        ):
            raise Forbidden("two members at once")

    # ---- the herd ----------------------------------------------------------------------------

    def voters(self) -> set[int]:
        """Numbers of the voters of the true view."""
        return {voter.number for voter in self.view.voters} if self.view is not None else set()

    def works(self, number: int) -> bool:
        """The member runs, on its disk, and takes writes if its component is primary."""
        process = self.processes.get(number)
        member = self.view.find(number) if self.view is not None else None
        return (
            process is not None
            and member is not None
            and (member.voter or member.reader)
            and member.disk_id == process.disk_id
            and not process.diverged
            and not (process.broken or (process.maintained and not process.serves))
        )

    def primary(self) -> bool:
        """A majority of the view runs."""
        if self.view is None:
            return False
        alive = [n for n in self.voters() if n in self.processes and self._votes(n)]
        return len(alive) >= self.view.majority

    def _votes(self, number: int) -> bool:
        assert self.view is not None
        member, process = self.view.find(number), self.processes[number]
        return member is not None and member.disk_id == process.disk_id and not process.broken

    async def prepare(self) -> None:
        """See Sidecars."""

    async def status(self, number: int) -> Mapping[str, Any]:
        """See Sidecars."""
        process = self.processes.get(number)
        if process is None or process.silent or process.broken:
            raise SidecarError("silent")
        member = self.view.find(number) if self.view is not None else None
        inside = member is not None and member.disk_id == process.disk_id
        primary = inside and self.primary()
        writes = primary and self.works(number)
        return {
            "name": names.member(NAME, number),
            "cluster_id": self.cluster_id(),
            "disk_id": process.disk_id,
            "departed": process.disk_id in self.departed,
            "state": "diverged"
            if process.diverged
            else "reader" if writes and process.reader
            else "maintenance" if primary and process.maintained and not process.serves
            else "primary" if writes else "recovering" if primary else "secondary",
            "component": "primary" if primary else "secondary",
            "term": 0 if self.view is None else 1,
            "proposer": names.member(NAME, min(self.voters(), default=0)),
            "gid": 7,
            "capture_off": list(process.capture_off),
            "scrub": {"differences": list(process.differences)} if process.scrubs else None,
            "incidents": list(process.incidents),
            "maintenance": {"run": "weekly-1"} if process.maintained else None,
            "held": process.held,
            "databases": [] if process.witness else [{"name": "herd-1", "condition": "whole"}],
            "view": None if self.view is None or not inside else {
                "id": self.view.id,
                "members": [
                    {"name": m.name, "number": m.number, "disk_id": m.disk_id,
                     "voter": m.voter, "witness": m.witness, "reader": m.reader}
                    for m in self.view.members
                ],
            },
        }  # fmt: skip

    def cluster_id(self) -> str:
        """The identity on the volumes."""
        for (kind, _), item in self.objects.items():
            if kind == "PersistentVolumeClaim":
                found = item["metadata"].get("labels", {}).get(names.CLUSTER_ID)
                if found is not None:
                    return str(found)
        return ""

    async def request(
        self, number: int, path: str, body: Mapping[str, Any], timeout_s: float = 0
    ) -> Mapping[str, Any]:
        """See Sidecars."""
        if path == "/roles":
            return self._make_roles(number, body["roles"])
        self._change_view(path, body, number)
        return {}

    def _make_roles(self, number: int, wanted: list[dict[str, Any]]) -> Mapping[str, Any]:
        """What a sidecar does; a role that owns something is not dropped."""
        self.asked += 1
        if not self.primary() or not self.works(number):
            raise SidecarError("not ready")
        changed = []
        roles = self.roles | self.by_hand.get(number, {})
        for role in wanted:
            name, kept = role["name"], role
            if role.get("absent"):
                if name in self.owners:
                    raise SidecarRefusedError("herd-1", f"{name} owns a table")
                if roles.pop(name, None) is not None:
                    changed.append(f"{name}: dropped")
                continue
            if role["password"] is None:
                kept = role | {"password": roles.get(name, {}).get("password")}
            if roles.get(name) != kept:
                changed.append(f"{name}: changed" if name in roles else f"{name}: created")
                roles[name] = kept
        if changed:
            with self.writing("ask", "/roles", str(number)):
                self.roles, self.by_hand = roles, {}
        return {"changed": changed}

    def _change_view(self, path: str, body: Mapping[str, Any], number: int) -> None:
        with self.writing("ask", path, str(body["name"])):
            process = self.processes.get(number)
            if process is None or process.silent or not self.primary() or self.view is None:
                raise SidecarError("not in the primary component")
            about = names.number_of(NAME, str(body["name"]))
            assert about is not None
            member = self.view.find(about)
            if member is None or member.disk_id != body["disk_id"]:
                raise SidecarError("no such member")
            target = self.processes.get(about)
            heard = target is not None and target.disk_id == body["disk_id"]
            if path == "/view/evict" and heard and target is not None and not target.diverged:
                raise SidecarError("it is heard of")
            if all(one == member or one.witness for one in self.view.voters):
                raise SidecarError("it is the last one")
            if member.voter:
                self._check_shrinking(path)
            self.drop(about)

    def let_in(self) -> None:
        """Have all join who can, and vote."""
        before = self.voters()
        held, self.joins_held = self.joins_held, False
        for _ in self.processes:
            self._join()
            self._promote()
        self.joins_held = held
        self.unseen |= self.voters() - before

    def drop(self, number: int) -> None:
        """Have the view go on without a member, whose disk never comes back.

        Witnesses that would be half of the voters, or more, become learners.
        """
        assert self.view is not None
        view = View(
            self.view.id + 1, tuple(one for one in self.view.members if one.number != number)
        )
        self.departed |= {one.disk_id for one in self.view.members if one not in view.members}
        for witness in view.members:
            if witness.witness and witness.voter and not _few_witnesses(view.voters):
                learner = replace(witness, voter=False)
                members = tuple(learner if one == witness else one for one in view.members)
                view = replace(view, members=members)
        self.view = view

    def _check_shrinking(self, path: str) -> None:
        wanted = self.spec.get("instances", 3) + self.spec.get("witnesses", 0)
        if path == "/view/leave" and len(self.voters()) <= wanted:
            raise Forbidden("fewer voters than wanted")

    # ---- time passes -------------------------------------------------------------------------

    def tick(self) -> None:
        """Let everybody but the operator act."""
        self.now += timedelta(seconds=2)
        self._stop_pods()
        self._release_volumes()
        self._certify()
        self._start_pods()
        self._found()
        self._join()
        self._promote()
        self._show_readiness()

    def _certify(self) -> None:
        """What cert-manager does, if it is asked."""
        for (kind, name), item in list(self.objects.items()):
            if kind == "Certificate" and ("Secret", name) not in self.objects:
                asked = {"cert-manager.io/certificate-name": item["spec"]["secretName"]}
                metadata = {"name": name, "uid": self.uid(), "annotations": asked}
                secret = {"kind": "Secret", "metadata": metadata}
                self.objects["Secret", name] = secret | {"data": self.signed(timedelta(days=30))}

    def signed(self, validity: timedelta, authority_days: int = 3650) -> dict[str, str]:
        """The data of a Secret with a certificate that somebody else has made just now."""
        began = self.now - timedelta(days=3650 - authority_days)
        ca = certificates.authority("somebody", began).data
        owner = subject("a member")
        data = certificates.issue(ca, owner, ["a.member"], self.now, validity).data
        return {key: base64.b64encode(value).decode() for key, value in data.items()}

    def _stop_pods(self) -> None:
        for (kind, name), item in list(self.objects.items()):
            if kind != "Pod":
                continue
            number = int(item["metadata"]["labels"][names.MEMBER])
            failed = item.get("status", {}).get("phase") == "Failed"
            if number in self.dead_nodes or failed:
                self.processes.pop(number, None)
            if "deletionTimestamp" in item["metadata"] and number not in self.dead_nodes:
                del self.objects[kind, name]
                self.processes.pop(number, None)

    def _release_volumes(self) -> None:
        for (kind, name), item in list(self.objects.items()):
            if kind == "PersistentVolumeClaim" and "deletionTimestamp" in item["metadata"]:
                number = item["metadata"]["labels"][names.MEMBER]
                if ("Pod", f"{NAME}-{number}") not in self.objects:
                    del self.objects[kind, name]

    def _start_pods(self) -> None:
        for (kind, name), item in list(self.objects.items()):
            number = int(item["metadata"].get("labels", {}).get(names.MEMBER, 0))
            if kind != "Pod" or number in self.processes or number in self.dead_nodes:
                continue
            if number in self.unscheduled:
                continue
            if item.get("status", {}).get("phase") == "Failed":
                continue
            config = self.objects.get(("ConfigMap", name))
            volume = self.objects.get(("PersistentVolumeClaim", f"{name}-data"))
            if config is None or volume is None or ("Secret", f"{name}-tls") not in self.objects:
                continue
            node = json.loads(config["data"]["node.json"])
            disk_id = self.disk(volume)
            self.ever_ran = True
            self.processes[number] = Process(
                number=number,
                disk_id=disk_id,
                founder=node["founder"],
                founders=tuple((member["number"], False) for member in node["members"]),
                witness=node.get("witness", False),
                reader=node.get("reader", False),
                diverged=disk_id in self.diverged_disks,
                broken="broken" in config["data"].get("pgherd.conf", ""),
            )

    def _found(self) -> None:
        """The founders begin when all of them have met, each of whom was told of the same ones."""
        founders = {n: p for n, p in self.processes.items() if p.founder and not p.broken}
        told = {process.founders for process in founders.values()}
        met = [one for one in told if all(
            n in founders and founders[n].founders == one for n, _ in one
        )]  # fmt: skip
        if len(met) > 1:
            raise Forbidden("founders that were told of different founders")
        if self.view is None and met:
            self.view = View(1, tuple(
                ViewMember(names.member(NAME, n), n, founders[n].disk_id,
                           witness=founders[n].witness)
                for n, _ in met[0]
            ))  # fmt: skip
            self.founded_with = len(met[0])

    def _join(self) -> None:
        """Who has a copy asks to be taken in, under a name that no other disk has."""
        if self.view is None or not self.primary() or self.joins_held:
            return
        for number, process in self.processes.items():
            if self.view.find(number) is not None or process.broken:
                continue
            if process.disk_id in self.departed:
                continue
            name = names.member(NAME, number)
            new = ViewMember(name, number, process.disk_id, False, process.witness, process.reader)
            self.view = View(self.view.id + 1, (*self.view.members, new))
            return

    def _promote(self) -> None:
        """A learner that runs has caught up by now; readers, and witnesses too many, stay so."""
        if self.view is None or not self.primary():
            return
        for member in sorted(self.view.members, key=lambda one: one.witness):
            process = self.processes.get(member.number)
            learns = not (member.voter or member.reader)
            if learns and not _few_witnesses((*self.view.voters, member)):
                continue
            if learns and process is not None and process.disk_id == member.disk_id:
                members = tuple(
                    replace(one, voter=True) if one == member else one for one in self.view.members
                )
                self.view = View(self.view.id + 1, members)
                return

    def _show_readiness(self) -> None:
        for (kind, _), item in self.objects.items():
            if kind == "Pod":
                number = int(item["metadata"]["labels"][names.MEMBER])
                ready = self.primary() and self.works(number)
                status = item.setdefault("status", {})
                status["conditions"] = [{"type": "Ready", "status": "True" if ready else "False"}]
                if number in self.unscheduled and number not in self.processes:
                    status["phase"] = "Pending"
                    why = {"reason": "Unschedulable", "message": "0/3 nodes are available"}
                    status["conditions"].append({"type": "PodScheduled", "status": "False"} | why)
                elif number in self.processes and status.get("phase") == "Pending":
                    del status["phase"]


def _few_witnesses(voters: tuple[ViewMember, ...]) -> bool:
    """They have to stay under half of the voters."""
    return not voters or 2 * sum(voter.witness for voter in voters) < len(voters)


async def running(**spec: object) -> World:
    """A herd that has come up."""
    world = World()
    world.submit(**spec)
    await world.settle()
    return world


def condition(world: World, kind: str) -> dict[str, str]:
    """A condition of the resource."""
    (found,) = [c for c in world.resource["status"]["conditions"] if c["type"] == kind]
    assert isinstance(found, dict)
    return found
