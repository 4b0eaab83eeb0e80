"""Users of the spec: made through a sidecar, kept as they are wanted, and in nobody's way."""

import base64
import contextlib
from typing import Any

import pytest
from operator_api_server import Killed
from operator_world import NAME, NAMESPACE, World, running
from pgherd_operator.api.resource import InvalidSpec, parse_resource
from pgherd_operator.core.actions import Reason
from pgherd_operator.objects import names


async def herd_with(*users: dict[str, Any], **spec: Any) -> World:
    world = await running(users=list(users), **spec)
    return world


def condition(world: World) -> tuple[str, str, str]:
    """Status, reason and message of UsersReady."""
    (found,) = (c for c in world.resource["status"]["conditions"] if c["type"] == "UsersReady")
    return found["status"], found["reason"], found["message"]


def told(world: World) -> list[tuple[str, str]]:
    """The Events about users."""
    about = (Reason.USERS_CHANGED, Reason.USERS_FAILED)
    return [(event.reason.value, event.message) for event in world.events if event.reason in about]


def make_secret(world: World, name: str, **data: str | bytes) -> None:
    """What a user does with kubectl."""
    encoded = {
        key: base64.b64encode(value.encode() if isinstance(value, str) else value).decode()
        for key, value in data.items()
    }
    metadata = {"name": name, "namespace": NAMESPACE, "uid": world.uid()}
    world.objects["Secret", name] = {"kind": "Secret", "metadata": metadata, "data": encoded}


def password_in(world: World, secret: str) -> str:
    return base64.b64decode(world.objects["Secret", secret]["data"]["password"]).decode()


async def test_a_user_is_made_with_a_password_of_its_own() -> None:
    world = await herd_with({"name": "load_er", "memberOf": ["pg_monitor"]})
    role = world.roles["load_er"]
    assert (role["login"], role["member_of"]) == (True, ["pg_monitor"])
    secret = world.objects["Secret", f"{NAME}-user-load-er"]
    data = {key: base64.b64decode(value).decode() for key, value in secret["data"].items()}
    assert data["username"] == "load_er"
    assert data["password"] == role["password"]
    assert data["uri"] == f"postgresql://load_er:{role['password']}@{data['host']}:5432/app"
    assert condition(world) == ("True", "AsWanted", "1 as asked for")
    assert told(world) == [("UsersChanged", "load_er: created")]
    assert role["password"] not in str(world.events) + str(world.resource["status"])


async def test_the_password_is_that_of_the_secret_also_after_it_has_changed() -> None:
    world = await running(users=[{"name": "ann", "passwordSecret": {"name": "mine", "key": "pw"}}])
    text = "Secret mine with the password of ann is missing: make it"
    assert condition(world) == ("False", "UsersFailed", text)
    assert told(world) == [("UsersFailed", text)]  # once
    assert not world.roles
    make_secret(world, "mine", pw="first")
    await world.settle()
    assert world.roles["ann"]["password"] == "first"
    assert condition(world)[0] == "True"
    make_secret(world, "mine", pw="second")
    assert await world.reconcile() is not None
    assert world.roles["ann"]["password"] == "second"
    assert told(world)[-1] == ("UsersChanged", "ann: changed")
    assert ("Secret", f"{NAME}-user-ann") not in world.objects


@pytest.mark.parametrize("data", [{}, {"password": ""}, {"password": b"\xff"}, {"password": "a\0"}])
async def test_a_secret_without_a_usable_password_is_told_of(data: dict[str, Any]) -> None:
    world = World()
    make_secret(world, "mine", **data)
    world.submit(users=[{"name": "ann", "passwordSecret": {"name": "mine"}}])
    await world.settle()
    assert condition(world)[1:] == (
        "UsersFailed", "Secret mine has no password in UTF-8 under its key password",
    )  # fmt: skip
    assert not world.roles


async def test_a_role_that_was_changed_by_hand_on_any_member_is_put_right() -> None:
    world = await herd_with({"name": "ann"})
    for number in (1, 2, 3):
        world.by_hand = {number: {"ann": world.roles["ann"] | {"connection_limit": 3}}}
        assert await world.reconcile() == 5
        assert not world.by_hand
        assert told(world)[-1] == ("UsersChanged", "ann: changed")
        assert await world.reconcile() == 30


async def test_a_generated_secret_that_is_gone_is_made_anew_and_its_password_set() -> None:
    world = await herd_with({"name": "ann"})
    before = password_in(world, f"{NAME}-user-ann")
    del world.objects["Secret", f"{NAME}-user-ann"]
    await world.settle()
    after = password_in(world, f"{NAME}-user-ann")
    assert after != before
    assert world.roles["ann"]["password"] == after


async def test_a_secret_of_another_herd_is_not_used() -> None:
    world = World()
    make_secret(world, f"{NAME}-user-ann", password="of others")
    before = dict(world.objects["Secret", f"{NAME}-user-ann"])
    world.submit(users=[{"name": "ann"}])
    await world.settle()
    assert condition(world)[1] == "UsersFailed"
    assert not world.roles
    assert world.objects["Secret", f"{NAME}-user-ann"] == before


async def test_a_role_that_cannot_be_dropped_holds_up_no_other_work() -> None:
    world = await herd_with({"name": "ann"})
    world.owners.add("ann")
    await world.changed(users=[{"name": "ann", "ensure": "absent"}], instances=4)
    assert world.voters() == {1, 2, 3, 4}
    assert condition(world) == ("False", "UsersFailed", "ann owns a table")
    assert told(world)[1:] == [("UsersFailed", "ann owns a table")]
    ready = {c["type"]: c["status"] for c in world.resource["status"]["conditions"]}
    assert ready["Ready"] == "True"
    assert await world.reconcile() == 30
    world.owners.clear()
    await world.settle()
    assert not world.roles
    assert condition(world)[0] == "True"


async def test_who_is_taken_out_of_the_list_stays() -> None:
    world = await herd_with({"name": "ann"}, {"name": "group", "login": False})
    assert world.roles["group"]["password"] is None
    assert ("Secret", f"{NAME}-user-group") not in world.objects
    await world.changed(users=[])
    assert world.roles.keys() == {"ann", "group"}
    assert condition(world) == ("True", "AsWanted", "none are asked for")


async def test_nobody_is_asked_where_no_user_is_wanted_or_nobody_writes() -> None:
    world = await herd_with()
    assert world.asked == 0
    assert condition(world)[0] == "True"
    await world.changed(users=[{"name": "ann"}], hibernated=True)
    assert world.asked == 0
    assert condition(world)[:2] == ("Unknown", "Waiting")
    await world.changed(hibernated=False)
    assert world.roles.keys() == {"ann"}
    asked = world.asked
    await world.changed(maintenance={"paused": True})
    assert world.asked == asked


@pytest.mark.parametrize("kind", ["error", "lost-answer"])
async def test_a_member_that_does_not_answer_is_asked_again_soon(kind: Any) -> None:
    world = await herd_with({"name": "ann", "passwordSecret": {"name": "mine"}})
    make_secret(world, "mine", password="first")
    world.fault = 0, kind
    assert await world.reconcile() == 5
    assert condition(world)[:2] == ("Unknown", "Waiting")
    await world.settle()
    assert world.roles["ann"]["password"] == "first"


@pytest.mark.parametrize("write", range(3))
@pytest.mark.parametrize("kind", ["error", "lost-answer", "killed-before", "killed-after"])
async def test_whatever_fails_the_users_come_about(kind: Any, write: int) -> None:
    world = await herd_with()
    world.fault = write, kind
    world.change(users=[{"name": "ann"}, {"name": "bob"}])  # two secrets, and a request
    with contextlib.suppress(Killed):
        await world.reconcile()
    assert world.fault is None
    await world.settle()
    assert {name: role["password"] for name, role in world.roles.items()} == {
        name: password_in(world, f"{NAME}-user-{name}") for name in ("ann", "bob")
    }
    assert condition(world)[0] == "True"


async def test_passwords_go_with_the_volumes_only() -> None:
    world = await herd_with({"name": "ann"}, {"name": "bob", "passwordSecret": {"name": "mine"}})
    make_secret(world, "mine", password="bob's")
    await world.removed(ticking=True)
    assert ("Secret", f"{NAME}-user-ann") in world.objects

    world = World()
    make_secret(world, "mine", password="bob's")
    world.submit(
        deletionPolicy="Delete",
        users=[{"name": "ann"}, {"name": "bob", "passwordSecret": {"name": "mine"}}],
    )
    await world.settle()
    await world.removed(ticking=True)
    assert [name for kind, name in world.objects if kind == "Secret"] == ["mine"]


@pytest.mark.parametrize(
    "user",
    [
        {},
        *({"name": name} for name in ("app", "postgres", "pg_x", "pgherd_apply", "Ann", "a-b", "a_",
                                      "_a", "1a", "", "a" * 64, "public")),
        {"name": "ann", "memberOf": ["pg_execute_server_program"]},
        {"name": "ann", "memberOf": ["pg_write_server_files"]},
        {"name": "ann", "memberOf": ["pgherd_apply"]},
        {"name": "ann", "memberOf": ["a b"]},
        {"name": "ann", "ensure": "maybe"},
        {"name": "ann", "superuser": True},
        {"name": "ann", "connectionLimit": -2},
        {"name": "ann", "passwordSecret": {}},
    ],
    ids=str,
)  # fmt: skip
def test_a_user_that_cannot_be_is_refused(user: dict[str, Any]) -> None:
    metadata = {"name": NAME, "namespace": NAMESPACE, "uid": "u"}
    parse_resource({"metadata": metadata, "spec": {"users": [{"name": "ann"}]}})
    writer = {"name": "ann", "memberOf": ["pg_read_all_data", "pg_write_all_data"]}
    parse_resource({"metadata": metadata, "spec": {"users": [writer]}})
    with pytest.raises(InvalidSpec):
        parse_resource({"metadata": metadata, "spec": {"users": [user]}})


def test_a_user_is_listed_once() -> None:
    metadata = {"name": NAME, "namespace": NAMESPACE, "uid": "u"}
    with pytest.raises(InvalidSpec, match="twice"):
        parse_resource(
            {"metadata": metadata, "spec": {"users": [{"name": "ann"}, {"name": "ann"}]}}
        )


def test_no_two_users_have_one_secret() -> None:
    wanted = ["a_b", "a__b", "ab", "a_b_c", "ab_c"]
    assert len({names.user_secret(NAME, user) for user in wanted}) == len(wanted)
