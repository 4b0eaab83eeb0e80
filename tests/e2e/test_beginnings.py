"""What a herd begins with, and what is left of it: herds of their own beside the first one."""

import base64
import os
import random
from typing import Any

import pytest

from .cluster import HERD, NAMESPACE, Herd, Kubectl, is_well, tried, until, until_ready, until_well
from .installation import SMALL
from .test_events import kill_operator

pytestmark = [pytest.mark.timeout(1800), pytest.mark.long]

_ACTS_S = 4.0
"""A herd's founding takes an operator so long, up to its pods."""
_LEASES = ("get", "leases", "--namespace=pgherd-system", "--output=name")
_SOURCE = """
initdb --pgdata=/tmp/source --username=postgres --auth=trust >/dev/null
echo 'host all all all trust' >>/tmp/source/pg_hba.conf
pg_ctl start --wait --silent --pgdata=/tmp/source --log=/tmp/source.log \
    --options="-c port=5433 -c listen_addresses='*' -c unix_socket_directories=/tmp"
psql --quiet --host=/tmp --port=5433 --username=postgres <<'END'
CREATE TABLE animal (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text UNIQUE);
INSERT INTO animal (name) SELECT 'sheep ' || g FROM generate_series(1, 1000) g;
END
"""


def begin(kubectl: Kubectl, name: str, instances: int = 3, **spec: Any) -> None:
    """Make a herd, and wait until it is well."""
    apply(kubectl, name, instances, **spec)
    until_well(kubectl, instances, name)


def apply(kubectl: Kubectl, name: str, instances: int, **spec: Any) -> None:
    """Ask for a herd."""
    kubectl.apply(
        {
            "apiVersion": "pgherd.dev/v1alpha1", "kind": "ReplicatedCluster",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": SMALL | {"instances": instances} | spec,
        }
    )  # fmt: skip


def ask(kubectl: Kubectl, member: str, query: str) -> str:
    """Ask a member's server, as its superuser."""
    return kubectl(
        "exec", member, "--container=postgres", "--", "psql", "--no-align", "--tuples-only",
        "--host=/run/pgherd/server", "--username=postgres", "--dbname=app", f"--command={query}",
    ).strip()  # fmt: skip


def write(kubectl: Kubectl, member: str, statement: str) -> None:
    """Have a member take a statement; one that has just come up may refuse at first."""
    until(lambda: tried(lambda: ask(kubectl, member, statement)), f"{member} takes it")


def until_answer(kubectl: Kubectl, member: str, query: str, answer: str) -> None:
    """Wait until a member says so."""
    until(lambda: ask(kubectl, member, query) == answer, f"{query} is {answer} on {member}")


def test_a_herd_begins_with_another_database_and_a_script(herd: Herd, kubectl: Kubectl) -> None:
    kubectl("exec", "client", "--", "sh", "-euc", _SOURCE)
    address = kubectl.get("pod", "client")["status"]["podIP"]
    dsn = f"host={address} port=5433 user=postgres dbname=postgres"
    kubectl.apply(
        {
            "apiVersion": "v1", "kind": "Secret", "stringData": {"dsn": dsn},
            "metadata": {"name": "source", "namespace": NAMESPACE},
        }
    )  # fmt: skip
    script = "INSERT INTO animal (name) VALUES ('goat') -- the last one"
    begin(
        kubectl, "begun",
        bootstrap={"importFrom": {"dsn": {"name": "source"}}, "sql": [script]},
    )  # fmt: skip
    kubectl("delete", "secret", "source")
    found = {
        member: ask(kubectl, member, "SELECT count(*), max(id), max(tableowner) FROM animal,"
                    " pg_tables WHERE tablename = 'animal'")
        for member in ("begun-1", "begun-2", "begun-3")
    }  # fmt: skip
    assert set(found.values()) == {"1001|1001|app"}
    # All of it is replicated like what was made later.
    for member in found:
        write(kubectl, member, f"INSERT INTO animal (name) VALUES ('of {member}')")
    for member in found:
        until_answer(kubectl, member, "SELECT count(*) FROM animal", "1004")
    pods = [kubectl.get("pod", member)["metadata"]["uid"] for member in found]
    kubectl("delete", "pod", "begun-1")  # without the secret
    until_ready(kubectl, "begun-1")
    until_well(kubectl, 3, "begun")
    assert pods[1:] == [kubectl.get("pod", m)["metadata"]["uid"] for m in ("begun-2", "begun-3")]
    kubectl("delete", "replicatedcluster", "begun")


def test_what_is_left_of_a_herd_is_taken_up_by_the_next_or_removed(kubectl: Kubectl) -> None:
    def left() -> str:
        return kubectl(
            "get", "pods,persistentvolumeclaims,secrets,services", "--output=name",
            "--selector=pgherd.dev/cluster=left",
        )  # fmt: skip

    begin(
        kubectl, "left", instances=1, deletionPolicy="Retain",
        bootstrap={"sql": ["CREATE TABLE kept (id int PRIMARY KEY); INSERT INTO kept VALUES (7)"]},
    )  # fmt: skip
    kubectl("delete", "replicatedcluster", "left")
    until(lambda: "pod/" not in left() and "service/" not in left(), "pods and services go")
    kept = left().split()
    assert "persistentvolumeclaim/left-1-data" in kept
    assert {"secret/left-app", "secret/left-superuser", "secret/left-ca"} <= {*kept}
    begin(kubectl, "left", instances=1)
    assert ask(kubectl, "left-1", "SELECT id FROM kept") == "7"
    kubectl("delete", "replicatedcluster", "left")
    until(lambda: not left(), "nothing is left")


def test_users_are_made_on_every_member_and_kept_as_the_spec_has_them(
    herd: Herd, kubectl: Kubectl
) -> None:
    def provide(password: str) -> None:
        kubectl.apply(
            {
                "apiVersion": "v1", "kind": "Secret", "stringData": {"password": password},
                "metadata": {"name": "reporting-login", "namespace": NAMESPACE},
            }
        )  # fmt: skip

    def are(truth: str, *words: str) -> bool:
        found = kubectl.get("replicatedcluster", HERD)
        (ready,) = (c for c in found["status"]["conditions"] if c["type"] == "UsersReady")
        seen = ready["observedGeneration"] == found["metadata"]["generation"]
        return seen and ready["status"] == truth and all(word in ready["message"] for word in words)

    def count(user: str, password: str) -> set[str]:
        """What a user gets from each member."""
        query = "SELECT current_user || ' ' || count(*) FROM kept"
        return {
            tried(lambda member=member: kubectl(  # type: ignore[misc]
                "exec", "client", "--", "env", f"PGPASSWORD={password}", "psql", "--tuples-only",
                "--no-align", f"--command={query}",
                f"host={member} user={user} dbname=app connect_timeout=5 sslmode=require",
            )).strip()
            for member in herd.members()
        }  # fmt: skip

    provide("the first")
    herd.repeat(f"{HERD}-rw", "CREATE TABLE IF NOT EXISTS kept (id int PRIMARY KEY)")
    reporting = {
        "name": "reporting", "memberOf": ["pg_read_all_data"],
        "passwordSecret": {"name": "reporting-login"},
    }  # fmt: skip
    loader = {"name": "loader", "memberOf": ["app"], "connectionLimit": 5}
    herd.change(users=[reporting, loader])
    until(lambda: are("True"), "the users are there")
    until(lambda: count("reporting", "the first") == {"reporting 0"}, "reporting reads")
    encoded = kubectl.get("secret", f"{HERD}-user-loader")["data"]["password"]
    generated = base64.b64decode(encoded).decode()
    until(lambda: count("loader", generated) == {"loader 0"}, "loader reads")

    provide("another")
    until(lambda: count("reporting", "another") == {"reporting 0"}, "the new password counts")
    assert count("reporting", "the first") == {""}

    write(kubectl, f"{HERD}-2", "ALTER ROLE reporting CONNECTION LIMIT 3")  # there only
    limit = "SELECT rolconnlimit FROM pg_roles WHERE rolname = 'reporting'"
    for member in herd.members():
        until_answer(kubectl, member, limit, "-1")

    write(kubectl, f"{HERD}-1", "ALTER TABLE kept OWNER TO loader")
    herd.change(users=[reporting, loader | {"ensure": "absent"}])
    until(lambda: are("False", "loader", "owner of table"), "it says why loader stays")
    events = kubectl("get", "events", "--field-selector=reason=UsersFailed", "--output=name")
    assert events
    assert is_well(kubectl, 3)
    write(kubectl, f"{HERD}-1", "ALTER TABLE kept OWNER TO app")
    until(lambda: are("True"), "loader is dropped")
    left = "SELECT rolname FROM pg_roles WHERE rolname IN ('reporting', 'loader')"
    for member in herd.members():
        until_answer(kubectl, member, left, "reporting")

    with pytest.raises(AssertionError, match="choose another name"):
        herd.change(users=[{"name": "postgres"}])
    with pytest.raises(AssertionError, match="makes a superuser"):
        herd.change(users=[{"name": "a", "memberOf": ["pg_execute_server_program"]}])
    with pytest.raises(AssertionError, match="Duplicate value"):
        herd.change(users=[{"name": "a"}, {"name": "a"}])
    herd.change(users=[])
    herd.repeat(f"{HERD}-rw", "DROP TABLE kept")


def test_a_setting_that_switches_capture_off_is_told_of(herd: Herd, kubectl: Kubectl) -> None:
    def captured() -> tuple[str, str, str]:
        conditions = kubectl.get("replicatedcluster", HERD)["status"]["conditions"]
        (one,) = (c for c in conditions if c["type"] == "CaptureOn")
        return one["status"], one["reason"], one["message"]

    member = herd.members()[1]
    ask(kubectl, member, "ALTER ROLE app SET event_triggers = off")
    try:
        off = "False", "CaptureOff", f"{member}: ALTER ROLE app: event_triggers = off"
        until(lambda: captured() == off, "the herd says so")
        assert kubectl("get", "events", "--field-selector=reason=CaptureOff", "--output=name")
    finally:
        ask(kubectl, member, "ALTER ROLE app RESET event_triggers")
    until(lambda: captured()[0] == "True", "it is on again")


def test_a_herd_is_founded_by_operators_that_are_killed_again_and_again(
    herd: Herd, kubectl: Kubectl
) -> None:
    """At random moments of all that is made once: volumes, passwords, the authority, the ledger."""
    seed = int(os.environ.get("PGHERD_E2E_SEED", random.randrange(1 << 32)))
    print(f"PGHERD_E2E_SEED={seed}")  # noqa: T201 - shown where it fails
    rng = random.Random(seed)
    script = "CREATE TABLE kept (id int PRIMARY KEY); INSERT INTO kept VALUES (7)"
    for name, spec in (("killed", {}), ("killed-again", {"bootstrap": {"sql": [script]}})):
        apply(kubectl, name, 3, **spec)
        for _ in range(4):
            kill_operator(kubectl, rng, times=1, between_s=_ACTS_S)
            # Another one leads at once, perhaps before this one has ended: no harm either.
            kubectl("delete", "leases", "--all", "--namespace=pgherd-system")
            until(lambda: kubectl(*_LEASES), "another one leads")
        until_well(kubectl, 3, name)
        members = [f"{name}-{number}" for number in (1, 2, 3)]
        ids = {ask(kubectl, member, "SELECT system_identifier FROM pg_control_system()")
               for member in members}  # fmt: skip
        assert len(ids) == (1 if spec else 3)  # founders together, or copies of the first
        for member in members:
            write(kubectl, member, f"CREATE TABLE of_{member[-1]} (id int PRIMARY KEY)")
        for member in members:
            tables = "SELECT count(*) FROM pg_tables WHERE tablename LIKE 'of\\__'"
            until_answer(kubectl, member, tables, "3")
            if spec:
                assert ask(kubectl, member, "SELECT id FROM kept") == "7"
        labelled = f"--selector=pgherd.dev/cluster={name}"
        claims = kubectl("get", "persistentvolumeclaims", labelled, "--output=name").split()
        assert len(claims) == 3
        kubectl("delete", "replicatedcluster", name)
