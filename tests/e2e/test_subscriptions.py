"""A plain server outside of a herd follows a set of its tables, as resources say."""

from typing import Any

import pytest

from .cluster import HERD, NAMESPACE, Herd, Kubectl, tried, until
from .test_importing import pod

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

_PASSWORD = r"it's a p@ss\word/7"
_WAREHOUSE = r"""
if [ ! -d /tmp/data ]; then
    initdb --pgdata=/tmp/data --username=postgres --auth=trust >/dev/null
    echo 'host all all all scram-sha-256' >>/tmp/data/pg_hba.conf
fi
exec postgres -D /tmp/data -c unix_socket_directories=/tmp -c listen_addresses='*'
"""
_ROLE = """
DO $$BEGIN IF to_regrole('report') IS NULL THEN CREATE ROLE report LOGIN; END IF; END$$;
ALTER ROLE report PASSWORD $q${password}$q$;
GRANT CREATE ON DATABASE postgres TO report;
"""


def there(kubectl: Kubectl, statement: str) -> str:
    """Ask the warehouse, as its superuser."""
    psql = ("psql", "--host=/tmp", "--username=postgres", "--no-align", "--tuples-only", "--quiet")
    stop = "--set=ON_ERROR_STOP=1"
    return kubectl("exec", "warehouse", "--", *psql, stop, f"--command={statement}").strip()


def submit(kubectl: Kubectl, kind: str, name: str, **spec: Any) -> None:
    """Make a resource, or change it."""
    metadata = {"name": name, "namespace": NAMESPACE}
    kubectl.apply(
        {"apiVersion": "pgherd.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}
    )


def status(kubectl: Kubectl, kind: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = kubectl.get(f"{kind}.pgherd.dev", name).get("status", {})
    return found


def condition(kubectl: Kubectl, kind: str, name: str, about: str) -> tuple[str, str, str]:
    """Status, reason and message; empty while there is none of this generation."""
    found = kubectl.get(f"{kind}.pgherd.dev", name)
    for one in found.get("status", {}).get("conditions", ()):
        if one["type"] == about and one["observedGeneration"] == found["metadata"]["generation"]:
            return one["status"], one["reason"], one["message"]
    return "", "", ""


def until_follows(kubectl: Kubectl, name: str) -> None:
    until(
        lambda: (
            condition(kubectl, "subscription", name, "Ready")[0] == "True"
            and condition(kubectl, "subscription", name, "Following")[0] == "True"
        ),
        f"{name} follows",
    )


def until_equal(kubectl: Kubectl, herd: Herd, here: str, query: str) -> None:
    """Wait until the warehouse answers a query as the herd answers the first one.

    Each time the herd is asked anew: the member that answers may be a moment behind.
    """
    until(
        lambda: there(kubectl, query) == herd.repeat(f"{HERD}-rw", here),
        f"{query} gives at the warehouse what {here} gives in the herd",
    )


def refused(kubectl: Kubectl, *words: str) -> str:
    with pytest.raises(AssertionError) as error:
        kubectl(*words)
    return str(error.value)


def test_a_plain_server_follows_what_resources_say(kubectl: Kubectl, herd: Herd) -> None:
    kubectl.apply(pod("warehouse", _WAREHOUSE))
    until(lambda: tried(lambda: there(kubectl, "SELECT 1")), "the warehouse answers")
    there(kubectl, _ROLE.format(password="another"))
    secret = {
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "warehouse", "namespace": NAMESPACE},
        "stringData": {
            "host": kubectl.get("pod", "warehouse")["status"]["podIP"], "port": "5432",
            "username": "report", "password": _PASSWORD, "dbname": "postgres",
        },
    }  # fmt: skip
    secretly = {"name": "warehouse"}
    submit(kubectl, "ReplicationSet", "orders", cluster=HERD, tables=["sales.*"])
    submit(
        kubectl, "Subscription", "warehouse", cluster=HERD, set="orders", secret=secretly,
        keepBytes="1Gi", keepHours=24,
    )  # fmt: skip
    # The status names what is missing within half a minute, and the order is done when it is there.
    until(
        lambda: condition(kubectl, "replicationset", "orders", "Ready")[0] == "False",
        "the set is refused",
    )  # fmt: skip
    assert (
        "no table is meant by sales.*" in condition(kubectl, "replicationset", "orders", "Ready")[2]
    )
    until(
        lambda: "Secret warehouse is missing" in str(status(kubectl, "subscription", "warehouse")),
        "the Secret is missed",
    )  # fmt: skip
    herd.repeat(f"{HERD}-rw", "CREATE SCHEMA IF NOT EXISTS sales")
    herd.repeat(
        f"{HERD}-rw",
        "CREATE TABLE IF NOT EXISTS sales.item (id serial PRIMARY KEY, region text, amount int);"
        " CREATE UNIQUE INDEX IF NOT EXISTS regional ON sales.item (id, region)",
    )
    for member in herd.members():
        herd.until_true(member, "SELECT to_regclass('sales.regional') IS NOT NULL")
    herd.repeat(
        f"{HERD}-rw",
        "INSERT INTO sales.item SELECT g, (ARRAY['EU', 'US'])[1 + g % 2], g"
        " FROM generate_series(1, 1000) g ON CONFLICT DO NOTHING",
    )
    kubectl.apply(secret)
    until(
        lambda: "password authentication failed"
        in condition(kubectl, "subscription", "warehouse", "Ready")[2],
        "the password is refused",
    )  # fmt: skip
    there(kubectl, _ROLE.format(password=_PASSWORD))
    until_follows(kubectl, "warehouse")
    item = "SELECT count(*), sum(amount) FROM sales.item"
    until_equal(kubectl, herd, item, item)
    found = status(kubectl, "subscription", "warehouse")
    assert (found["tables"], found["state"]) == ("1/1", "following")

    # A member dies, and another one goes on.
    feeder = there(kubectl, "SELECT client_addr FROM pg_stat_activity WHERE usename = 'report'")
    pods = {kubectl.get("pod", one)["status"]["podIP"]: one for one in herd.members()}
    kubectl("delete", "pod", pods[feeder.split("\n")[0]], "--grace-period=0", "--force")
    herd.repeat(f"{HERD}-rw", "UPDATE sales.item SET amount = amount + 1 WHERE id % 3 = 0")
    until_equal(kubectl, herd, item, item)
    until(lambda: all(kubectl.ready(one) for one in herd.members()), "all are back")

    # A table is added by its pattern, and another one gets a row filter.
    herd.repeat(f"{HERD}-rw", "CREATE TABLE IF NOT EXISTS sales.later (id int PRIMARY KEY)")
    for member in herd.members():
        herd.until_true(member, "SELECT to_regclass('sales.later') IS NOT NULL")
    european = "sales.item (id, region) WHERE (region = 'EU')"
    submit(
        kubectl, "ReplicationSet", "orders", cluster=HERD, tables=["sales.later"], table=[european]
    )
    herd.repeat(f"{HERD}-rw", "INSERT INTO sales.later VALUES (1) ON CONFLICT DO NOTHING")
    until_equal(
        kubectl, herd, "SELECT count(*), sum(id) FROM sales.item WHERE region = 'EU'",
        "SELECT count(*), sum(id) FROM sales.item",
    )  # fmt: skip
    later = "SELECT count(*) FROM sales.later"
    until_equal(kubectl, herd, later, later)
    assert status(kubectl, "replicationset", "orders")["tables"] == ["sales.item", "sales.later"]

    # The status says what stops it, and a larger `anew` has it go on.
    herd.repeat(f"{HERD}-rw", "ALTER TABLE sales.later ADD COLUMN IF NOT EXISTS n int DEFAULT 7")
    until(
        lambda: condition(kubectl, "subscription", "warehouse", "Following")[1]
        == "SubscriptionStopped",
        "it is stopped",
    )  # fmt: skip
    assert "spec.anew" in status(kubectl, "subscription", "warehouse")["reason"]
    submit(
        kubectl, "Subscription", "warehouse", cluster=HERD, set="orders", secret=secretly, anew=1
    )
    until_follows(kubectl, "warehouse")
    later = "SELECT * FROM sales.later"
    until_equal(kubectl, herd, later, later)

    # Fields that are for good are, and nothing that anybody can read holds the password.
    patch = '--patch={"spec": {"set": "other"}}'
    assert "set is for good" in refused(
        kubectl, "patch", "subscriptions.pgherd.dev", "warehouse", "--type=merge", patch
    )
    events = kubectl("get", "events", "--output=json")
    for reason in ("SubscriptionStarted", "SubscriberFollows", "SubscriptionStopped"):
        assert reason in events
    shown = kubectl("get", "subscriptions.pgherd.dev,replicationsets", "--output=json")
    logs = kubectl("logs", "deployment/pgherd", "--namespace=pgherd-system")
    for text in (events, shown, logs):
        assert "p@ss" not in text

    # The set waits for its subscription, which gives the tables back.
    kubectl("delete", "replicationset", "orders", "--wait=false")
    until(
        lambda: "subscribe to set orders"
        in condition(kubectl, "replicationset", "orders", "Ready")[2],
        "the set is in use",
    )  # fmt: skip
    kubectl("delete", "subscriptions.pgherd.dev", "warehouse", "--timeout=120s")
    there(kubectl, "INSERT INTO sales.later VALUES (99, 1)")
    until(lambda: not kubectl.get("replicationset", "orders"), "the set has gone")
    assert there(kubectl, "SELECT to_regnamespace('pgherd_subscriber') IS NULL") == "t"
    kubectl("delete", "pod", "warehouse")


def test_what_has_no_herd_any_more_holds_nothing_up(kubectl: Kubectl) -> None:
    submit(
        kubectl, "Subscription", "lost", cluster="absent", set="orders", secret={"name": "absent"}
    )
    submit(kubectl, "ReplicationSet", "lost", cluster="absent", tables=["*.*"])
    until(
        lambda: "there is no ReplicatedCluster absent"
        in condition(kubectl, "replicationset", "lost", "Ready")[2],
        "the herd is missed",
    )  # fmt: skip
    kubectl("delete", "subscriptions.pgherd.dev,replicationsets", "lost", "--timeout=300s")
