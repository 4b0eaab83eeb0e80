"""A herd that subscribes to another one: what the tests of such share."""

from urllib.parse import urlsplit

import psycopg
from patience import wait_until

from .localherd import LocalHerd, query
from .test_subscriptions import state


def as_subscriber(herd: LocalHerd) -> str:
    """The connection string of all its members, of the role ``app``."""
    parts = [urlsplit(node.app_dsn) for node in herd.nodes()]
    account = parts[0].netloc.rpartition("@")[0]
    hosts = ",".join(f"{one.hostname}:{one.port}" for one in parts)
    return f"postgresql://{account}@{hosts}/app"


def caught_up(herd: LocalHerd, follower: LocalHerd, subscription: str) -> None:
    """Wait until some member of the follower shows what the herd has committed by now."""
    wanted = max(query(node.dsn, "SELECT pgherd.last_gid()")[0][0] for node in herd.nodes())
    wait_until(
        lambda: max(_shown(node.dsn, subscription) for node in follower.nodes()),
        lambda seen: seen >= wanted,
        told=lambda: (wanted, state(herd, subscription)),
    )


def _shown(dsn: str, subscription: str) -> int:
    statement = "SELECT gid FROM pgherd_subscriber.standing WHERE subscription = '{}'"
    try:
        found = query(dsn, statement.format(subscription))
    except (psycopg.errors.UndefinedTable, psycopg.OperationalError):
        return 0
    return int(found[0][0] or 0) if found else 0
