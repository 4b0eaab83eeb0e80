"""ReplicationSets and Subscriptions: what is ordered of the herd, shown, told and ended."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pgherd_sidecar.subscribing
import pytest
from following_world import PARTS, PASSWORD, FollowingWorld, life_of_followers
from jobs_world import HERD
from pgherd_operator.api import KIND, SET, SUBSCRIPTION
from pgherd_operator.api.subscriptions import SetSpec, SubscriptionSpec
from pgherd_operator.jobs.following import in_resources
from pgherd_operator.objects.names import FOLLOWING
from pgherd_operator.shell.kube.interface import ApiError
from psycopg.conninfo import conninfo_to_dict
from pydantic import ValidationError

ORDER, END = "/subscriptions/order", "/subscriptions/end"
FOLLOWS = {"state": "following", "tables_done": 1}
STOPS = {
    "state": "stopped", "tables_done": 1,
    "reason": "GID 9 alters a table of the set (ALTER TABLE): the subscriber shows what was before."
    " `pgherd subscribe SET --to DSN --anew` copies the tables as they are now",
}  # fmt: skip


def world(**spec: Any) -> FollowingWorld:
    it = FollowingWorld()
    it.begin(**spec)
    return it


async def test_a_subscription_begins_copies_follows_and_is_told_once() -> None:
    it = world(keepBytes="1Gi", keepHours=24)
    await it.look_at_both()
    assert it.condition(SET)[:2] == ("True", "SetReady")
    assert (it.of(SET)["tables"], it.of(SET)["count"]) == (["sales.item"], 1)
    order = it.last(ORDER)
    assert (order["name"], order["set"]) == ("warehouse", "orders")
    assert (order["keep_bytes"], order["keep_s"]) == (1 << 30, 86400)
    assert conninfo_to_dict(order["dsn"]) == {
        "host": "warehouse", "user": "report", "password": PASSWORD, "dbname": "shop",
    }  # fmt: skip
    assert it.condition(SUBSCRIPTION)[:2] == ("True", "SubscriptionOrdered")
    assert it.condition(SUBSCRIPTION, "Following")[:2] == ("False", "SubscriberCopies")
    assert it.of(SUBSCRIPTION)["state"] == "copying"
    it.state = FOLLOWS
    assert await it.look_at(SUBSCRIPTION) == 30
    assert await it.look_at(SUBSCRIPTION) == 30
    status = it.of(SUBSCRIPTION)
    assert (status["gid"], status["lagGids"], status["lagSeconds"]) == (41, 1, 0)
    assert (status["tables"], status["tablesDone"], status["tablesAll"]) == ("1/1", 1, 1)
    assert it.condition(SUBSCRIPTION, "Following")[0] == "True"
    assert it.reasons() == ["SubscriptionStarted", "SubscriberFollows"]


async def test_a_state_that_is_not_known_yet_is_shown() -> None:
    it = world()
    it.state = {"state": "resting", "tables_done": 1}
    await it.look_at_both()
    assert it.of(SUBSCRIPTION)["state"] == "resting"
    assert it.condition(SUBSCRIPTION, "Following")[:2] == ("Unknown", "SubscriberWaits")


async def test_one_that_is_stopped_says_what_to_do_with_the_resource_and_goes_on_when_told() -> (
    None
):
    it = world()
    it.state = FOLLOWS
    await it.look_at_both()
    it.state = STOPS
    await it.look_at(SUBSCRIPTION)
    await it.look_at(SUBSCRIPTION)
    assert (
        it.reasons()[-1] == "SubscriptionStopped" and it.reasons().count("SubscriptionStopped") == 1
    )
    truth, reason, message = it.condition(SUBSCRIPTION, "Following")
    assert (truth, reason) == ("False", "SubscriptionStopped")
    assert ". A larger spec.anew copies the tables" in message
    assert it.last(ORDER)["resume"] is False
    it.change(SUBSCRIPTION, resume=1)
    await it.look_at(SUBSCRIPTION)
    assert it.last(ORDER)["resume"] is True
    assert it.last(ORDER)["anew_after"] is None
    it.state = FOLLOWS
    await it.look_at(SUBSCRIPTION)
    assert it.last(ORDER)["resume"] is False


async def test_everything_is_copied_anew_once_though_the_operator_dies_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    it = world(anew=3)  # what it begins with is no raise
    it.state = FOLLOWS
    await it.look_at_both()
    assert it.subscriptions == {"warehouse": 1}
    it.change(SUBSCRIPTION, anew=4)

    async def dies(*_: object, **__: object) -> None:
        raise ApiError(0, "gone")

    with monkeypatch.context() as patched:
        patched.setattr(it, "apply", dies)
        with pytest.raises(ApiError):
            await it.look_at(SUBSCRIPTION)
    for _ in range(3):
        await it.look_at(SUBSCRIPTION)
    assert it.subscriptions == {"warehouse": 2}
    assert it.of(SUBSCRIPTION)["copyNumber"] == 2
    assert it.reasons().count("SubscriptionStarted") == 2


async def test_a_set_is_changed_and_its_filters_are_not_read_at_each_look() -> None:
    it = world()
    await it.look_at(SET)
    it.change(SET, tables=["crm.*"], exclude=["crm.tmp"], table=["sales.item (id) WHERE (id > 0)"])
    await it.look_at(SET)
    assert it.last("/sets/order")["exclude"] == ["crm.tmp"]
    assert it.last("/sets/order")["chosen_tables"] == []
    assert it.of(SET)["tables"] == ["crm.item", "sales.item"]
    assert await it.look_at(SET) == 60
    assert it.last("/sets/order")["chosen_tables"] == ["sales.item"]
    assert it.reasons() == ["SetChanged"]
    assert it.events[-1].message == "tables that the set has more: crm.item"


@pytest.mark.parametrize(
    ("values", "key", "told"),
    [
        (None, None, "Secret warehouse is missing: make it"),
        ({}, None, "Secret warehouse has no key host: give it, or name a key"),
        ({"uri": ""}, "uri", "Secret warehouse has no connection string under its key uri"),
        (PARTS | {"host": "a\0b"}, None, "no text in UTF-8 under its key host"),
    ],
)
async def test_a_secret_that_does_not_say_where_is_named(
    values: dict[str, str] | None, key: str | None, told: str
) -> None:
    it = world(secret={"name": "warehouse", "key": key})
    if values is None:
        del it.objects["Secret", "warehouse"]
    else:
        it.give_secret(**values)
    await it.look_at(SET)
    assert (await it.look_at(SUBSCRIPTION) or 99) <= 30
    await it.look_at(SUBSCRIPTION)
    truth, reason, message = it.condition(SUBSCRIPTION)
    assert (truth, reason) == ("False", "SecretNotUsable")
    assert told in message
    assert it.reasons() == ["SecretNotUsable"]
    it.give_secret(**PARTS, uri="postgresql://report@warehouse/shop\n")
    await it.look_at(SUBSCRIPTION)
    assert it.condition(SUBSCRIPTION)[0] == "True"
    if key:
        assert it.last(ORDER)["dsn"] == "postgresql://report@warehouse/shop"


async def test_what_the_herd_refuses_and_who_is_not_reached_is_said_once_and_tried_again() -> None:
    it = world()
    await it.look_at(SUBSCRIPTION)  # before the set
    assert it.condition(SUBSCRIPTION)[:2] == ("False", "OrderRefused")
    assert "there is no set orders" in it.condition(SUBSCRIPTION)[2]
    it.refusal = "no table is meant by sales.*: give --tables 'SCHEMA.TABLE'"
    await it.look_at(SET)
    assert it.condition(SET)[2] == (
        "no table is meant by sales.*: make such a table, or correct the pattern"
    )
    it.refusal, it.reached = "", False
    await it.look_at_both()
    assert it.condition(SUBSCRIPTION)[:2] == ("False", "SubscriberNotReached")
    assert it.of(SUBSCRIPTION)["state"] == "unreachable"
    assert "connection refused" in it.of(SUBSCRIPTION)["reason"]
    it.reached, it.state = True, FOLLOWS
    await it.look_at(SUBSCRIPTION)
    assert it.condition(SUBSCRIPTION)[0] == "True"
    assert it.of(SUBSCRIPTION)["reason"] == ""
    it.silent = True
    for _ in range(2):
        assert (await it.look_at(SUBSCRIPTION) or 99) <= 30
    assert it.condition(SUBSCRIPTION)[:2] == ("Unknown", "HerdNotReached")
    assert it.condition(SUBSCRIPTION, "Following")[:2] == ("Unknown", "HerdNotReached")
    assert it.of(SUBSCRIPTION)["gid"] == 41  # what was heard last
    it.silent = False
    await it.look_at(SUBSCRIPTION)
    assert it.reasons() == [
        "OrderRefused", "OrderRefused", "SubscriberNotReached", "SubscriptionStarted",
        "SubscriberFollows", "HerdNotReached",
    ]  # fmt: skip


async def test_no_password_gets_into_a_status_or_an_event() -> None:
    it = world()
    it.reached = False
    await it.look_at_both()
    it.reached, it.state = True, STOPS
    await it.look_at_both()
    it.remove(SUBSCRIPTION)
    shown = json.dumps([it.of(SET), it.of(SUBSCRIPTION), it.objects[SUBSCRIPTION, "warehouse"]])
    told = " ".join(event.message for event in it.events)
    for secret in (PASSWORD, "p@ss"):
        assert secret not in shown + told


async def test_a_deleted_resource_unsubscribes_and_the_set_waits_for_that() -> None:
    it = world()
    await it.look_at_both()
    assert it.objects[SUBSCRIPTION, "warehouse"]["metadata"]["finalizers"] == [FOLLOWING]
    it.remove(SET)
    await it.look_at(SET)
    assert it.condition(SET)[2] == (
        "warehouse still subscribe to set orders: delete these Subscriptions, too"
    )
    it.remove(SUBSCRIPTION)
    await it.look_at(SUBSCRIPTION)
    assert (it.is_there(SUBSCRIPTION), it.subscriptions) == (False, {})
    await it.look_at(SET)
    assert (it.is_there(SET), it.sets) == (False, {})
    assert it.reasons()[-2:] == ["SubscriptionEnded", "SetDropped"]


async def test_retained_ones_stay_in_the_herd() -> None:
    it = world(deletionPolicy="Retain")
    it.change(SET, deletionPolicy="Retain")
    await it.look_at_both()
    it.remove(SUBSCRIPTION)
    it.remove(SET)
    assert not it.is_there(SUBSCRIPTION) and not it.is_there(SET)
    assert (it.sets, it.subscriptions) == ({"orders": ["sales.item"]}, {"warehouse": 1})
    it = world()
    await it.look_at_both()
    it.change(SUBSCRIPTION, deletionPolicy="Retain")  # after it had a finalizer
    it.remove(SUBSCRIPTION)
    await it.look_at(SUBSCRIPTION)
    assert (it.is_there(SUBSCRIPTION), it.subscriptions) == (False, {"warehouse": 1})


async def test_a_subscriber_that_is_gone_is_left_behind_after_a_minute() -> None:
    it = world()
    await it.look_at_both()
    it.reached = False
    it.remove(SUBSCRIPTION)
    await it.look_at(SUBSCRIPTION)
    assert it.condition(SUBSCRIPTION)[:2] == ("False", "SubscriberNotReached")
    it.passes(seconds=61)
    await it.look_at(SUBSCRIPTION)
    assert not it.is_there(SUBSCRIPTION) and it.last(END)["herd_only"] is True
    assert it.reasons()[-1] == "SubscriberLeftBehind"
    assert "DROP SCHEMA pgherd_subscriber CASCADE" in it.events[-1].message


async def test_a_herd_whose_spec_cannot_be_used_is_asked_all_the_same() -> None:
    it = world()
    it.objects[KIND, HERD]["spec"] = {"postgres": {"version": "none"}}
    await it.look_at_both()
    assert it.of(SUBSCRIPTION)["state"] == "copying"
    it.remove(SUBSCRIPTION)
    await it.look_at(SUBSCRIPTION)
    assert not it.is_there(SUBSCRIPTION)


@pytest.mark.parametrize("herd", ["gone", "going", "silent", "asleep"])
async def test_a_deletion_waits_for_a_herd_only_as_long_as_there_is_one(herd: str) -> None:
    it = world()
    await it.look_at_both()
    it.silent = True
    it.remove(SUBSCRIPTION)
    it.remove(SET)
    if herd == "gone":
        del it.objects[KIND, HERD]
    elif herd == "going":
        it.objects[KIND, HERD]["metadata"]["deletionTimestamp"] = it.now.isoformat()
    elif herd == "asleep":
        it.objects[KIND, HERD]["spec"]["hibernated"] = True
    await it.look_at_both()
    waits = herd in ("silent", "asleep")
    assert it.is_there(SUBSCRIPTION) is it.is_there(SET) is waits
    for kind in (SUBSCRIPTION, SET) if waits else ():
        assert "set deletionPolicy: Retain" in it.of(kind)["message"]
        it.change(kind, deletionPolicy="Retain")
    await it.look_at_both()
    assert not it.is_there(SUBSCRIPTION)
    assert not it.is_there(SET)


@pytest.mark.parametrize("herd", ["gone", "going"])
async def test_nothing_waits_for_us_once_there_is_no_herd(herd: str) -> None:
    it = world()
    await it.look_at_both()
    if herd == "gone":
        del it.objects[KIND, HERD]
    else:
        it.objects[KIND, HERD]["metadata"]["deletionTimestamp"] = it.now.isoformat()
    await it.look_at_both()
    for kind, name in ((SET, "orders"), (SUBSCRIPTION, "warehouse")):
        assert it.objects[kind, name]["metadata"]["finalizers"] == []


async def test_one_with_an_invalid_spec_ends_what_was_ordered() -> None:
    it = world()
    await it.look_at_both()
    it.change(SUBSCRIPTION, keepHours=0)
    it.change(SET, tables=[])
    await it.look_at_both()
    assert "keepHours" in it.of(SUBSCRIPTION)["message"]
    it.remove(SUBSCRIPTION)
    it.remove(SET)
    it.silent = True
    assert (await it.look_at(SUBSCRIPTION) or 99) <= 30
    assert it.condition(SUBSCRIPTION)[:2] == ("Unknown", "HerdNotReached")
    it.silent = False
    await it.look_at(SUBSCRIPTION)
    await it.look_at(SET)
    assert not it.is_there(SUBSCRIPTION) and not it.is_there(SET)
    assert (it.sets, it.subscriptions) == ({}, {})
    assert it.reasons()[-2:] == ["SubscriptionEnded", "SetDropped"]


async def test_one_that_was_never_valid_ends_nothing() -> None:
    it = world(keepHours=0)
    await it.look_at_both()
    it.subscriptions["warehouse"] = 1  # of somebody else
    it.remove(SUBSCRIPTION)
    assert await it.look_at(SUBSCRIPTION) is None
    assert (it.is_there(SUBSCRIPTION), it.subscriptions) == (False, {"warehouse": 1})


async def test_an_invalid_one_that_is_retained_is_let_go() -> None:
    it = world()
    await it.look_at_both()
    it.change(SUBSCRIPTION, keepHours=0, deletionPolicy="Retain")
    it.remove(SUBSCRIPTION)
    await it.look_at(SUBSCRIPTION)
    assert (it.is_there(SUBSCRIPTION), it.subscriptions) == (False, {"warehouse": 1})


async def test_one_whose_end_is_not_understood_waits_and_says_so() -> None:
    it = world()
    await it.look_at_both()
    it.change(SUBSCRIPTION, deletionPolicy="Hibernate")  # of a later release
    it.remove(SUBSCRIPTION)
    assert await it.look_at(SUBSCRIPTION) is not None
    assert (it.is_there(SUBSCRIPTION), it.subscriptions) == (True, {"warehouse": 1})
    message = it.of(SUBSCRIPTION)["message"]
    assert message.startswith("spec.deletionPolicy: ") and "may still have it" in message
    it.change(SUBSCRIPTION, deletionPolicy="Unsubscribe")
    await it.look_at(SUBSCRIPTION)
    assert (it.is_there(SUBSCRIPTION), it.subscriptions) == (False, {})


@pytest.mark.parametrize("is_invalid", [False, True])
async def test_a_finalizer_that_another_one_sets_meanwhile_is_kept(*, is_invalid: bool) -> None:
    it = world()
    await it.look_at(SET)
    metadata = it.objects[SUBSCRIPTION, "warehouse"]["metadata"]

    def change(*finalizers: str) -> None:
        metadata.update(finalizers=[*finalizers], resourceVersion=it.uid())

    change("example.com/first")
    it.meanwhile = lambda: change("example.com/first", "example.com/second")
    await it.look_at(SUBSCRIPTION)
    assert metadata["finalizers"] == ["example.com/first", "example.com/second", FOLLOWING]
    if is_invalid:
        it.change(SUBSCRIPTION, keepHours=0)
    it.remove(SUBSCRIPTION)
    it.meanwhile = lambda: change("example.com/second", FOLLOWING)  # the first one is done
    assert await it.look_at(SUBSCRIPTION) is None
    assert metadata["finalizers"] == ["example.com/second"]
    assert it.subscriptions == {}
    assert it.reasons() == ["SubscriptionStarted", "SubscriptionEnded"]


@pytest.mark.parametrize("what", ["deleted", "replaced", "gone", "changed"])
async def test_nothing_is_ordered_for_one_that_goes_meanwhile(what: str) -> None:
    """Its deletion would not wait for the end of what was ordered."""
    it = world()
    await it.look_at(SET)
    metadata = it.objects[SUBSCRIPTION, "warehouse"]["metadata"]
    metadata["finalizers"] = ["example.com/mine"]

    def happens() -> None:
        if what == "gone":
            del it.objects[SUBSCRIPTION, "warehouse"]
            return
        metadata["resourceVersion"] = it.uid()
        if what == "deleted":
            metadata["deletionTimestamp"] = it.now.isoformat()
        elif what == "replaced":
            metadata["uid"] = it.uid()
        else:
            it.meanwhile = happens

    it.meanwhile = happens
    assert (await it.look_at(SUBSCRIPTION) or 99) <= 30
    assert metadata["finalizers"] == ["example.com/mine"]
    assert it.subscriptions == {} and not it.reasons()


async def test_what_has_gone_is_looked_at_no_more() -> None:
    it = await life_of_followers()
    assert await it.look_at(SUBSCRIPTION) is None and await it.look_at(SET) is None


async def test_a_finalizer_of_another_is_left_and_waited_for() -> None:
    it = world()
    it.objects[SUBSCRIPTION, "warehouse"]["metadata"]["finalizers"] = ["example.com/mine"]
    await it.look_at_both()
    it.remove(SUBSCRIPTION)
    await it.look_at(SUBSCRIPTION)
    await it.look_at(SUBSCRIPTION)
    assert it.objects[SUBSCRIPTION, "warehouse"]["metadata"]["finalizers"] == ["example.com/mine"]
    assert [path for path, _ in it.asked].count(END) == 1


def test_a_set_has_tables_and_limits_are_sane() -> None:
    with pytest.raises(ValidationError, match="at least one"):
        SetSpec.model_validate({"cluster": "herd", "sequences": ["a.*"]})
    good = {"cluster": "herd", "set": "orders", "secret": {"name": "warehouse"}}
    for wrong in ({"keepBytes": "8GB"}, {"keepHours": 1000}, {"provider": ""}, {"to": "host=x"}):
        with pytest.raises(ValidationError):
            SubscriptionSpec.model_validate(good | wrong)


def texts_of(module: ast.Module) -> Iterator[str]:
    """All strings of a module; what is put into them is ``herd``."""
    docstrings = {id(node.value) for node in ast.walk(module) if isinstance(node, ast.Expr)}
    pieces: set[int] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.JoinedStr):
            pieces |= {id(part) for part in node.values}
            parts = [
                part.value if isinstance(part, ast.Constant) else "herd" for part in node.values
            ]
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and id(node) not in pieces | docstrings:
            yield str(node.value)


def test_no_reason_of_a_subscription_names_what_does_not_work_on_kubernetes() -> None:
    """What a user runs beside a subscriber does, and moves of sets are not for resources."""
    root = Path(pgherd_sidecar.subscribing.__file__).parent
    texts = [
        in_resources(text)
        for path in root.rglob("*.py")
        if "failover" not in path.parts
        for text in texts_of(ast.parse(path.read_text()))
    ]
    assert len(texts) > 100
    commands = re.compile(r"`pgherd (?!forward)| --(?!at)[a-z]")
    assert [text for text in texts if commands.search(text)] == []
