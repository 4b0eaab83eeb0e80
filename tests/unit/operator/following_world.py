"""A ReplicationSet and a Subscription in memory: the API server, and a herd that keeps orders."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from jobs_world import HERD, NAMESPACE, JobsWorld
from pgherd_operator.api import KIND, SET, SUBSCRIPTION
from pgherd_operator.shell.observing.sidecars import SidecarError, SidecarRefusedError
from pgherd_operator.shell.subscriptions import Followers

PASSWORD = r"it's a p@ss\word"
NAME = {SET: "orders", SUBSCRIPTION: "warehouse"}
PARTS = {
    "host": "warehouse", "username": "report", "password": PASSWORD, "dbname": "shop",
}  # fmt: skip


@dataclass
class FollowingWorld(JobsWorld):
    """See KubernetesApi and Events; and Sidecars, of a herd with two members.

    Attributes:
        silent: no member answers.
        refusal: why the herd does not do what it is asked for.
        reached: the subscriber is.
        asked: what the herd was asked for, by path, the newest last.
        sets: tables, by name of the set.
        subscriptions: numbers of their copies, by name.
        state: of the subscriber.
    """

    silent: bool = False
    refusal: str = ""
    reached: bool = True
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    sets: dict[str, list[str]] = field(default_factory=dict)
    subscriptions: dict[str, int] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=lambda: {"state": "copying", "tables_done": 0})

    def begin(self, **spec: Any) -> None:
        """Make a herd, and both resources."""
        self.found_herd(2)
        self.objects[KIND, HERD]["metadata"] |= {"namespace": NAMESPACE, "uid": "herd"}
        self.give_secret(**PARTS)
        self.put(SET, cluster=HERD, tables=["sales.*"])
        wanted = {"cluster": HERD, "set": "orders", "secret": {"name": "warehouse"}}
        self.put(SUBSCRIPTION, **(wanted | spec))

    def put(self, kind: str, **spec: Any) -> None:
        """Make a resource."""
        metadata = {
            "name": NAME[kind], "namespace": NAMESPACE, "uid": self.uid(), "generation": 1,
            "creationTimestamp": self.now.isoformat(), "resourceVersion": self.uid(),
        }  # fmt: skip
        self.objects[kind, NAME[kind]] = {"kind": kind, "metadata": metadata, "spec": spec}

    def change(self, kind: str, **spec: Any) -> None:
        """Change fields of a spec."""
        body = self.objects[kind, NAME[kind]]
        body["spec"] |= spec
        body["metadata"]["generation"] += 1

    def give_secret(self, **values: str) -> None:
        """Make the Secret, or another one of its name."""
        data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
        metadata = {"name": "warehouse", "namespace": NAMESPACE, "uid": self.uid()}
        self.objects["Secret", "warehouse"] = {"metadata": metadata, "data": data}

    def remove(self, kind: str) -> None:
        """A user deletes a resource."""
        self.mark_deleted((kind, NAME[kind]))

    def is_there(self, kind: str) -> bool:
        """Whether a resource is."""
        return (kind, NAME[kind]) in self.objects

    async def look_at(self, kind: str) -> float | None:
        """Let the operator look once."""
        followers = Followers(self, lambda _: _Herd(self), self, lambda: self.now)
        if kind == SET:
            return await followers.look_at_set(NAMESPACE, NAME[kind])
        return await followers.look_at_subscription(NAMESPACE, NAME[kind])

    async def look_at_both(self) -> None:
        """Let it look at both."""
        await self.look_at(SET)
        await self.look_at(SUBSCRIPTION)

    def of(self, kind: str) -> dict[str, Any]:
        """The status of a resource."""
        return self.status(kind, NAME[kind])

    def condition(self, kind: str, about: str = "Ready") -> tuple[str, str, str]:
        """Status, reason and message."""
        found = {one["type"]: one for one in self.of(kind)["conditions"]}
        return found[about]["status"], found[about]["reason"], found[about]["message"]

    def last(self, path: str) -> dict[str, Any]:
        """What was asked for last at a path."""
        return next(body for asked, body in reversed(self.asked) if asked == path)


class _Herd:
    """See Sidecars."""

    def __init__(self, world: FollowingWorld) -> None:
        self._world = world

    async def prepare(self) -> None:
        """See Sidecars."""

    async def status(self, number: int) -> Mapping[str, Any]:
        """See Sidecars."""
        if self._world.silent:
            raise SidecarError(f"herd-{number}: refused the connection")
        return {"name": f"herd-{number}", "state": "secondary" if number == 1 else "primary"}

    async def request(
        self, number: int, path: str, body: Mapping[str, Any], timeout_s: float = 0
    ) -> Mapping[str, Any]:
        """See Sidecars."""
        world = self._world
        assert number == 2, "one that takes no writes may be behind"
        world.asked.append((path, dict(body)))
        if world.refusal:
            raise SidecarRefusedError(f"herd-{number}", world.refusal)
        return getattr(self, path.strip("/").replace("/", "_"))(body)  # type: ignore[no-any-return]

    def sets_order(self, body: Mapping[str, Any]) -> dict[str, Any]:
        tables = [f"{one.partition('.')[0]}.item" for one in body["tables"]]
        chosen = [one.split(" ")[0] for one in body["chosen"]]
        self._world.sets[body["name"]] = sorted({*tables, *chosen})
        return {
            "tables": self._world.sets[body["name"]], "sequences": [], "chosen": chosen,
            "subscriptions": list(self._world.subscriptions),
        }  # fmt: skip

    def sets_drop(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if self._world.subscriptions:
            raise SidecarRefusedError(
                "herd-2", f"warehouse subscribe to set {body['name']}: `pgherd unsubscribe`"
            )
        return {"found": self._world.sets.pop(body["name"], None) is not None}

    def subscriptions_order(self, body: Mapping[str, Any]) -> dict[str, Any]:
        known = self._world.subscriptions
        if body["set"] not in self._world.sets:
            raise SidecarRefusedError("herd-2", f"there is no set {body['set']}: make it first")
        if not self._world.reached:
            reason = "the subscriber can't be reached: connection refused"
            return {"ordered": False, "state": "unreachable", "reason": reason}
        begun = body["name"] not in known
        known.setdefault(body["name"], 1)
        if body["anew_after"] == known[body["name"]]:
            known[body["name"]] += 1
        return {
            "ordered": True, "begun": begun, "generation": known[body["name"]], "gid": 41,
            "lag_gids": 1, "lag_s": 0.4, "tables": 1, "reason": "",
        } | self._world.state  # fmt: skip

    def subscriptions_end(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if not self._world.reached and not body.get("herd_only"):
            return {"ended": False, "reason": "the subscriber can't be reached: it is gone"}
        self._world.subscriptions.pop(body["name"], None)
        return {"ended": True, "told_by": None}


async def life_of_followers() -> FollowingWorld:
    """Everything that sets and subscriptions may need rights for."""
    world = FollowingWorld(now=datetime(2030, 1, 1, tzinfo=UTC))
    world.begin()
    await world.look_at_both()
    world.remove(SUBSCRIPTION)
    world.remove(SET)
    await world.look_at(SUBSCRIPTION)
    await world.look_at(SET)
    assert not world.is_there(SUBSCRIPTION) and not world.is_there(SET)
    return world
