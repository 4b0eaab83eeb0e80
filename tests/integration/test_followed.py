"""Superusers read what a herd follows from tables that an ordinary role owns or has forged."""

import random
from collections.abc import Iterator

import pytest
from pgherd_sidecar.subscribing.state.errors import StoppedError
from pgherd_sidecar.subscribing.state.followed import followed, is_turn_of
from pgherd_sidecar.tables.sessions import connect

from .herds import as_subscriber
from .localherd import LocalHerd, error_of, put, query, settle
from .test_subscriptions import must

pytestmark = [pytest.mark.timeout(600), pytest.mark.long]
_STANDING = (
    "CREATE TABLE pgherd_subscriber.standing (subscription text, cluster text, generation int8,"
    " gid int8, as_of timestamptz, revision int8);"
    " INSERT INTO pgherd_subscriber.standing (subscription, revision) VALUES ('s', 1)"
)
_VIEWS = (
    f"{_STANDING};"
    " CREATE VIEW pgherd_subscriber.tables AS"
    "  SELECT {name}.evil('x') || '{name}.t' AS tab, 's'::text AS subscription;"
    " CREATE VIEW pgherd_subscriber.turn AS"
    "  SELECT {name}.evil('s') AS subscription, 'h'::text AS holder"
)
_TYPES = (
    f"{_STANDING};"
    " CREATE TYPE {name}.word AS ENUM ('{name}.t', 's', 'h');"
    " CREATE TABLE pgherd_subscriber.tables (tab {name}.word, subscription {name}.word);"
    " INSERT INTO pgherd_subscriber.tables VALUES ('{name}.t', 's');"
    " CREATE TABLE pgherd_subscriber.turn (subscription {name}.word, holder {name}.word);"
    " INSERT INTO pgherd_subscriber.turn VALUES ('s', 'h')"
)


@pytest.fixture
def name(herd: LocalHerd) -> Iterator[str]:
    """A schema with a table and a function that makes its owner a superuser, if one calls it."""
    found = f"f_{random.getrandbits(32):x}"
    query(
        herd.app_dsn("n1"),
        f"CREATE SCHEMA {found}; CREATE TABLE {found}.t (id int PRIMARY KEY);"
        f" CREATE FUNCTION {found}.evil(text) RETURNS text LANGUAGE plpgsql AS"
        " $$ BEGIN EXECUTE 'ALTER ROLE app SUPERUSER'; RETURN $1; END $$;"
        " CREATE SCHEMA pgherd_subscriber",
    )
    settle(herd)
    must(herd, "set", "create", found, "--tables", f"{found}.t")
    yield found
    herd.top("unsubscribe", found, "--herd-only")
    must(herd, "set", "drop", found)
    settle(herd)
    query(
        herd.dsn("n1"),
        f"ALTER ROLE app NOSUPERUSER; DROP SCHEMA pgherd_subscriber, {found} CASCADE",
    )
    settle(herd)


def _is_superuser(herd: LocalHerd) -> bool:
    found = [
        query(node.dsn, "SELECT rolsuper FROM pg_roles WHERE rolname = 'app'")
        for node in herd.nodes()
    ]
    return [(True,)] in found


@pytest.mark.parametrize("forged", [_VIEWS, _TYPES])
async def test_nothing_that_an_ordinary_role_has_forged_runs_as_superuser(
    herd: LocalHerd, name: str, forged: str
) -> None:
    put(herd, herd.app_dsn("n1"), forged.format(name=name))
    done = herd.top("subscribe", name, "--to", as_subscriber(herd))
    settle(herd)
    assert not _is_superuser(herd)
    said = error_of(done)
    session = await connect(herd.dsn("n1"), "test")
    try:
        if forged is _VIEWS:
            assert "holds what no feeder has made" in said
            with pytest.raises(StoppedError, match="no feeder"):
                await is_turn_of(session, "s", "h")
        else:  # they are plain tables, and so they may say what they like
            assert "follows another herd here" in said
            assert await is_turn_of(session, "s", "h")
            assert await followed(session, [f"{name}.t"]) == f"{name}.t"
            assert await followed(session, [f"{name}.other"]) is None
    finally:
        await session.close()
    settle(herd)
    assert not _is_superuser(herd)
