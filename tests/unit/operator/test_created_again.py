"""A herd that was deleted with its data, and is applied again before everything is gone."""

import base64

import pytest
from operator_world import NAME, NAMESPACE, running
from pgherd_operator.api import KIND
from pgherd_operator.shell.kube.interface import Manifest


async def test_a_herd_is_founded_anew_when_the_volumes_of_the_former_one_are_gone() -> None:
    world = await running(deletionPolicy="Delete")
    former = world.cluster_id()
    await world.removed()
    assert ("PersistentVolumeClaim", f"{NAME}-1-data") in world.objects  # its pod still ends
    world.submit()
    for _ in range(4):
        await world.reconcile()
    assert "being deleted" in world.resource["status"]["step"]
    world.tick()
    world.view, world.ever_ran = None, False  # there is nothing of it any more
    await world.settle()
    assert world.voters() == {1, 2, 3}
    assert world.cluster_id() != former


async def test_a_herd_that_is_created_again_may_have_another_authority() -> None:
    world = await running()
    former = world.cluster_id()
    await world.removed()
    world.tick()
    for key in [key for key in world.objects if key[0] == "Secret" and key[1].endswith("-tls")]:
        del world.objects[key]
    world.submit(tls={"mode": "CertManager", "issuer": {"name": "ours"}})
    await world.settle()
    assert world.voters() == {1, 2, 3}
    assert world.cluster_id() == former
    assert ("Certificate", f"{NAME}-1-tls") in world.objects


async def test_a_herd_that_is_created_again_does_not_get_the_status_of_the_former_one() -> None:
    world = await running()
    world.change(instances=4)  # there is a new status to write

    def create_again() -> None:
        del world.objects[KIND, NAME]
        world.submit()

    world.meanwhile = create_again
    await world.reconcile()
    assert world.meanwhile is None
    assert "status" not in world.resource


async def test_a_herd_that_is_created_again_while_its_status_is_written_is_left_alone() -> None:
    world = await running()
    world.change(maintenance={"paused": True})

    write = world.apply

    async def apply(manifest: Manifest, *, subresource: str = "") -> Manifest:
        del world.objects[KIND, NAME]
        world.submit()
        return await write(manifest, subresource=subresource)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world, "apply", apply)
        await world.reconcile()
    assert "status" not in world.resource


async def test_a_status_is_written_although_others_change_the_resource_all_the_time() -> None:
    world = await running()
    world.change(maintenance={"paused": True})
    write = world.apply
    others = iter(range(3))

    async def apply(manifest: Manifest, *, subresource: str = "") -> Manifest:
        if next(others, None) is not None:
            world.resource["metadata"]["resourceVersion"] = world.uid()
        return await write(manifest, subresource=subresource)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world, "apply", apply)
        await world.reconcile()
    assert "paused" in world.resource["status"]["step"]


async def test_the_application_s_secret_has_what_clients_read() -> None:
    world = await running()
    secret = world.objects["Secret", f"{NAME}-app"]
    assert secret["type"] == "kubernetes.io/basic-auth"
    data = {key: base64.b64decode(value).decode() for key, value in secret["data"].items()}
    assert data["pgpass"] == f"{data['host']}:5432:app:app:{data['password']}\n"
    assert data["username"] == "app"
    hosts = ",".join(f"{NAME}-{number}.{NAMESPACE}.svc:5432" for number in (1, 2, 3))
    assert f"@{hosts}/app?target_session_attrs=read-write" in data["hosts-uri"]
    assert data["hosts-jdbc-uri"].startswith(f"jdbc:postgresql://{hosts}/app?user=app&password=")
    assert data["hosts-jdbc-uri"].endswith(
        "&targetServerType=primary&hostRecheckSeconds=1&connectTimeout=2"
    )
    assert {f"{NAME}-{number}" for number in (1, 2, 3)} <= {
        name for kind, name in world.objects if kind == "Service"
    }
