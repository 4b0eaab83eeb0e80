"""What a herd begins with, and what is left of it: herds of their own beside the first one."""

from typing import Any

import pytest

from .cluster import NAMESPACE, Herd, Kubectl, tried, until, until_ready, until_well
from .installation import SMALL

pytestmark = [pytest.mark.timeout(1800), pytest.mark.long]

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
    kubectl.apply(
        {
            "apiVersion": "pgherd.dev/v1alpha1", "kind": "ReplicatedCluster",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": SMALL | {"instances": instances} | spec,
        }
    )  # fmt: skip
    until_well(kubectl, instances, name)


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
