"""The operator's half of maintenance, in one conversation with the sidecars of real servers."""

import asyncio
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from patience import in_time
from pgherd_operator.api import MAINTENANCE
from pgherd_operator.shell import maintenance, members
from pgherd_operator.shell.kube.interface import Manifest
from pgherd_operator.shell.observing.sidecars import SidecarError, SidecarRefusedError
from pgherd_sidecar.client.exchange import decode, encode, exchange

from .localherd import LocalHerd, home

pytestmark = pytest.mark.long

_NOW = datetime.now(UTC)


class Sidecars:
    """See Sidecars: those of a herd on this machine, by their sockets."""

    def __init__(self, herd: LocalHerd) -> None:
        self._home = home(herd)

    async def prepare(self) -> None:
        """See Sidecars."""

    async def status(self, number: int) -> Mapping[str, Any]:
        """See Sidecars."""
        return await self._call("GET", number, "/status", None)

    async def request(
        self, number: int, path: str, body: Mapping[str, Any], timeout_s: float = 0
    ) -> Mapping[str, Any]:
        """See Sidecars."""
        return await self._call("POST", number, path, body)

    async def _call(
        self, method: str, number: int, path: str, body: Mapping[str, Any] | None
    ) -> Mapping[str, Any]:
        socket = str(self._home / f"n{number}" / "run" / "admin.sock")
        connection = await asyncio.open_unix_connection(socket)
        asked = encode(method, path, None if body is None else dict(body))
        code, content = decode(await exchange(connection, asked))
        answer: dict[str, Any] = json.loads(content)
        if code in (400, 409):
            raise SidecarRefusedError(f"n{number}", answer["error"])
        if code >= 400:
            raise SidecarError(answer["error"])
        return answer


class Api:
    """See KubernetesApi: one resource, and the herd that it names."""

    def __init__(self, **spec: Any) -> None:
        self.reasons: list[str] = []
        self.resource: Manifest = {
            "kind": MAINTENANCE,
            "metadata": {
                "name": f"every-{id(self)}", "namespace": "test", "uid": "u", "generation": 1,
                "creationTimestamp": (_NOW - timedelta(minutes=11)).isoformat(),
            },
            "spec": {"cluster": "herd", "schedule": "*/10 * * * *", **spec},
        }  # fmt: skip

    async def get(self, kind: str, namespace: str, name: str) -> Manifest:
        """See KubernetesApi."""
        if kind == MAINTENANCE:
            return self.resource
        return {"metadata": {"name": name, "namespace": namespace, "uid": "h"}, "spec": {}}

    async def apply(self, manifest: Manifest, *, subresource: str = "") -> Manifest:
        """See KubernetesApi."""
        self.resource["status"] = manifest["status"]
        return self.resource

    def tell(self, about: object, event: Any, kind: str) -> None:
        """See JobEvents."""
        self.reasons.append(event.reason.value)


@pytest.fixture(autouse=True)
def _members(monkeypatch: pytest.MonkeyPatch) -> None:
    async def found(*_: object) -> tuple[tuple[int, ...], str, str]:
        return (1, 2, 3), "", ""

    monkeypatch.setattr(members, "database_members", found)


def maintainer(herd: LocalHerd, api: Any) -> maintenance.Maintainer:
    return maintenance.Maintainer(api, lambda _: Sidecars(herd), api, lambda: _NOW)


async def test_a_time_of_a_resource_becomes_a_run_whose_outcome_comes_back(
    mortal: LocalHerd,
) -> None:
    api = Api(sql=["ANALYZE"], oneByOne=True, drain=True, graceSeconds=0)
    name = api.resource["metadata"]["name"]
    async with in_time():
        while True:
            await maintainer(mortal, api).look("test", name)
            status = api.resource["status"]
            runs = status.get("runs", [])
            if runs and runs[0]["phase"] != "Running":
                break
            await asyncio.sleep(0.2)
    (run,) = runs
    assert run["phase"] == "Succeeded"
    assert {one["name"]: one["state"] for one in run["members"]} == {
        "n1": "done", "n2": "done", "n3": "done",
    }  # fmt: skip
    assert api.reasons == ["MaintenanceScheduled", "MaintenanceDone"]
    assert [one["status"] for one in status["conditions"]] == ["True", "True"]


async def test_what_a_sidecar_refuses_is_told_in_its_words(mortal: LocalHerd) -> None:
    api = Api(sql=["DROP TABLE t"])
    await maintainer(mortal, api).look("test", "wrong")
    (ready,) = api.resource["status"]["conditions"]
    assert (ready["status"], ready["reason"]) == ("False", "MaintenanceRefused")
    assert "DROP TABLE t: it is no maintenance of one server" in ready["message"]
    api = Api(reindex=["t"], members=["herd-7"])
    await maintainer(mortal, api).look("test", "wrong")
    (ready,) = api.resource["status"]["conditions"]
    assert "there is no table t" in ready["message"] or "herd-7 can't" in ready["message"]
