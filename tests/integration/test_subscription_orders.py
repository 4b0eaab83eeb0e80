"""Sets and subscriptions as a sidecar's admin API has them ordered: the part in a member.

These tests ask a herd on this machine what the operator asks for its resources.
"""

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from patience import wait_until
from pgherd_sidecar.client import exchange, routes
from pgherd_sidecar.local.herd import load

from .localherd import LocalHerd, free_port_base, home, put, query, settle
from .plainpostgres import PlainPostgres, forget_set

pytestmark = pytest.mark.timeout(600)
_PASSWORD = "pass word/is@secret"
Answer = dict[str, Any]


@pytest.fixture
def name(herd: LocalHerd, subscriber: PlainPostgres) -> Iterator[str]:
    """A schema with two tables, of which all is removed that is about it."""
    found = f"o_{random.getrandbits(32):x}"
    query(
        herd.app_dsn("n1"),
        f"CREATE SCHEMA {found};"
        f" CREATE TABLE {found}.item (id serial PRIMARY KEY, region text, note text);"
        f" CREATE TABLE {found}.other (id int PRIMARY KEY);"
        f" CREATE UNIQUE INDEX ON {found}.item (id, region);"
        f" INSERT INTO {found}.item (region) SELECT (ARRAY['EU', 'US'])[1 + i % 2]"
        "   FROM generate_series(1, 100) i",
    )
    settle(herd)
    yield found
    forget_set(herd, subscriber, found)


def ask(herd: LocalHerd, route: routes.Route, **body: Any) -> tuple[int, Answer]:
    """Ask one of the members, another one each time: all of them know the same."""
    node = random.choice(herd.nodes()).name
    socket = load(home(herd)).node(node).admin_socket

    async def call() -> bytes:
        request = exchange.encode(route.method, route.path, body)
        return await exchange.exchange(await asyncio.open_unix_connection(socket), request)

    code, content = exchange.decode(asyncio.run(call()))
    answer: Answer = json.loads(content)
    return code, answer


def must(herd: LocalHerd, route: routes.Route, **body: Any) -> Answer:
    code, answer = ask(herd, route, **body)
    assert code == 200, answer
    return answer


def refused(herd: LocalHerd, route: routes.Route, **body: Any) -> str:
    code, answer = ask(herd, route, **body)
    assert code == 409, answer
    error: str = answer["error"]
    return error


def order_set(herd: LocalHerd, name: str, **body: Any) -> Answer:
    return must(herd, routes.ORDER_SET, name=name, **body)


def until(herd: LocalHerd, wanted: Answer, state: str) -> Answer:
    """Repeat an order, as the operator does, until its subscriber is so."""
    found = wait_until(
        lambda: must(herd, routes.ORDER_SUBSCRIPTION, **wanted),
        lambda found: found["state"] == state,
    )
    return found


def until_same(herd: LocalHerd, subscriber: PlainPostgres, there: str, here: str) -> None:
    """Wait until a query at the subscriber gives what another one gives in the herd."""
    wanted = query(herd.app_dsn("n1"), here)
    wait_until(
        lambda: query(subscriber.dsn(), there),
        lambda seen: seen == wanted,
        told=lambda: (there, here),
    )


@pytest.mark.long
def test_an_order_is_carried_out_once_and_told_how_far_it_is(
    herd: LocalHerd, subscriber: PlainPostgres, name: str
) -> None:
    found = order_set(herd, name, tables=[f"{name}.*"], sequences=[f"{name}.*"])
    assert found["tables"] == [f"{name}.item", f"{name}.other"]
    assert found["sequences"] == [f"{name}.item_id_seq"]
    wanted = {"name": name, "set": name, "dsn": subscriber.dsn(user="app")}
    first = must(herd, routes.ORDER_SUBSCRIPTION, **wanted)
    assert (first["ordered"], first["begun"], first["tables"]) == (True, True, 2)
    found = until(herd, wanted, "following")
    assert (found["begun"], found["tables_done"], found["reason"]) == (False, 2, "")
    assert found["generation"] == first["generation"]
    table = f"SELECT id, region, note FROM {name}.item ORDER BY 1"
    until_same(herd, subscriber, table, table)
    rows = "SELECT revision FROM pgherd_subscriptions.cascade WHERE subscription = '{}'"
    revision = query(herd.dsn("n1"), rows.format(name))
    must(herd, routes.ORDER_SUBSCRIPTION, **wanted)
    settle(herd)
    assert query(herd.dsn("n1"), rows.format(name)) == revision  # nothing was written
    must(herd, routes.ORDER_SUBSCRIPTION, **wanted, keep_bytes=1 << 30)
    settle(herd)
    assert query(herd.dsn("n1"), rows.format(name)) != revision
    assert (must(herd, routes.ORDER_SET, name=name, tables=[f"{name}.*"])["subscriptions"]) == [
        name
    ]
    assert "subscribe to set" in refused(herd, routes.DROP_SET, name=name)
    assert must(herd, routes.END_SUBSCRIPTION, name=name) == {"ended": True, "told_by": None}
    assert must(herd, routes.END_SUBSCRIPTION, name=name) == {"ended": True}
    query(subscriber.dsn(), f"INSERT INTO {name}.other VALUES (-1)")  # it takes writes again
    assert must(herd, routes.DROP_SET, name=name) == {"found": True}
    assert must(herd, routes.DROP_SET, name=name) == {"found": False}


@pytest.mark.long
def test_a_set_becomes_what_is_ordered_and_its_subscribers_follow(
    herd: LocalHerd, subscriber: PlainPostgres, name: str
) -> None:
    item = f"{name}.item (id, region) WHERE (region = 'EU')"
    wanted = {"name": name, "set": name, "dsn": subscriber.dsn(user="app")}
    order_set(herd, name, chosen=[item])
    until(herd, wanted, "following")
    theirs = f"SELECT * FROM {name}.item ORDER BY 1"
    until_same(
        herd, subscriber, theirs,
        f"SELECT id, region FROM {name}.item WHERE region = 'EU' ORDER BY 1",
    )  # fmt: skip
    other = f"{name}.item (id, region) WHERE (region = 'US')"
    found = order_set(herd, name, chosen=[other], tables=[f"{name}.other"])
    assert found["tables"] == [f"{name}.item", f"{name}.other"]
    assert found["chosen"] == [f"{name}.item"]
    until_same(
        herd, subscriber, theirs,
        f"SELECT id, region FROM {name}.item WHERE region = 'US' ORDER BY 1",
    )  # fmt: skip
    # Where the tables are known the filter is not read again: no lock that a vacuum waits for.
    put(herd, herd.app_dsn("n1"), f"CREATE TABLE {name}.later (id int PRIMARY KEY)")
    body = {"chosen": ["no SQL"], "chosen_tables": [f"{name}.item"], "tables": [f"{name}.*r"]}
    found = order_set(herd, name, **body)
    assert found["tables"] == [f"{name}.item", f"{name}.later", f"{name}.other"]
    put(herd, herd.app_dsn("n1"), f"INSERT INTO {name}.later VALUES (7)")
    later = f"SELECT id FROM {name}.later"
    until(herd, wanted, "following")
    until_same(herd, subscriber, later, later)
    found = order_set(herd, name, tables=[f"{name}.*"], exclude=[f"{name}.i*", "absent.*"])
    assert found["tables"] == [f"{name}.later", f"{name}.other"]
    found = order_set(herd, name, tables=[f"{name}.later"])
    assert (found["tables"], found["chosen"]) == ([f"{name}.later"], [])
    wait_until(
        lambda: must(herd, routes.ORDER_SUBSCRIPTION, **wanted)["tables_done"],
        lambda seen: seen == 1,
    )


@pytest.mark.long
def test_what_can_not_be_is_refused_in_a_sentence_without_the_password(
    herd: LocalHerd, subscriber: PlainPostgres, name: str, work_directory: Path
) -> None:
    assert "no table is meant by absent.*" in refused(
        herd, routes.ORDER_SET, name=name, tables=["absent.*"]
    )
    assert "FOR TABLE of CREATE PUBLICATION" in refused(
        herd, routes.ORDER_SET, name=name, chosen=[f"{name}.item WHERE (missing = 1)"]
    )
    good = {"name": name, "set": name, "dsn": subscriber.dsn(user="app")}
    assert f"there is no set {name}" in refused(herd, routes.ORDER_SUBSCRIPTION, **good)
    order_set(herd, name, tables=[f"{name}.*"])
    for dsn in (
        f"postgresql://app:{_PASSWORD}@127.0.0.1/app", "postgresql://app:secret@127.0.0.1:x/app",
        "host=127.0.0.1 secret", "dbname=app password=secret",
    ):  # fmt: skip
        error = refused(herd, routes.ORDER_SUBSCRIPTION, **(good | {"dsn": dsn}))
        assert "the connection string" in error and "postgresql://USER:PASSWORD@HOST" in error
        assert "secret" not in error
    socket = load(home(herd)).node("n1").run
    for dsn, wrong in (
        (f"host={socket} user=postgres dbname=postgres", "host name or address"),
        (f"host=127.0.0.1,{work_directory} user=app dbname=app", "host name or address"),
        (f"{good['dsn']}?passfile={work_directory}/x", "leave passfile out of the connection"),
        ("service=other", "leave service out of the connection"),
    ):
        assert wrong in refused(herd, routes.ORDER_SUBSCRIPTION, **(good | {"dsn": dsn}))
    nobody = f"host=127.0.0.1 port={free_port_base()} user=app password=secret dbname=app"
    found = must(herd, routes.ORDER_SUBSCRIPTION, **(good | {"dsn": nobody}))
    assert (found["ordered"], found["state"]) == (False, "unreachable")
    assert "the subscriber can't be reached" in found["reason"]
    assert "secret" not in found["reason"]
    query(subscriber.dsn(), "CREATE ROLE nothing LOGIN")
    try:
        dsn = subscriber.dsn(user="nothing")
        error = refused(herd, routes.ORDER_SUBSCRIPTION, **(good | {"dsn": dsn}))
        assert "may not create schemas there" in error
    finally:
        query(subscriber.dsn(), "DROP ROLE nothing")
    assert "give another name" in refused(
        herd, routes.ORDER_SUBSCRIPTION, **(good | {"name": "herd"})
    )
    assert "there is no subscription west" in refused(
        herd, routes.ORDER_SUBSCRIPTION, **good, provider="west"
    )


@pytest.mark.long
def test_one_that_is_stopped_goes_on_when_that_is_ordered_and_is_copied_anew_once(
    herd: LocalHerd, subscriber: PlainPostgres, name: str
) -> None:
    order_set(herd, name, tables=[f"{name}.*"])
    wanted = {"name": name, "set": name, "dsn": subscriber.dsn(user="app")}
    generation = until(herd, wanted, "following")["generation"]
    put(herd, herd.app_dsn("n1"), f"ALTER TABLE {name}.item DROP COLUMN note")
    found = until(herd, wanted, "stopped")
    assert "alters a table of the set" in found["reason"]
    assert must(herd, routes.ORDER_SUBSCRIPTION, **wanted)["state"] == "stopped"
    anew = wanted | {"resume": True, "anew_after": generation}
    copied = must(herd, routes.ORDER_SUBSCRIPTION, **anew)["generation"]
    assert copied > generation
    # A client that did not hear the answer asks again, and begins no second copy.
    assert must(herd, routes.ORDER_SUBSCRIPTION, **anew)["generation"] == copied
    until(herd, wanted, "following")
    theirs = f"SELECT * FROM {name}.item ORDER BY 1"
    until_same(herd, subscriber, theirs, theirs)


@pytest.mark.long
def test_a_subscriber_that_is_gone_can_be_left_behind(
    herd: LocalHerd, subscriber: PlainPostgres, name: str
) -> None:
    order_set(herd, name, tables=[f"{name}.*"])
    until(herd, {"name": name, "set": name, "dsn": subscriber.dsn(user="app")}, "following")
    subscriber.stop("immediate")
    try:
        found = must(herd, routes.END_SUBSCRIPTION, name=name)
        assert found["ended"] is False
        assert "the subscriber can't be reached" in found["reason"]
        assert must(herd, routes.END_SUBSCRIPTION, name=name, herd_only=True)["ended"] is True
    finally:
        subscriber.start()
    settle(herd)
    assert query(herd.dsn("n1"), "SELECT FROM pgherd_subscriptions.subscription") == []
