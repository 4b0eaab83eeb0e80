"""The objects of a herd: safe pods, configurations that are understood, no text that escapes."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pgherd_operator.api.resource import Cluster, parse_resource
from pgherd_operator.objects import config, names, network, pod
from pgherd_operator.objects.model import Origin, Release, Role, Seat
from pgherd_sidecar.agent.base.config import NodeConfig
from pgherd_sidecar.pki.authority import subject

ID = "7f0c2a44-93d8-5c7b-9d61-0a3c5f1f2b10"
DATABASE = Seat(1, Role.DATABASE, Origin.FOUNDER)
WITNESS = Seat(4, Role.WITNESS, Origin.JOINER)
JOINER = Seat(5, Role.DATABASE, Origin.JOINER)


def cluster(**spec: Any) -> Cluster:
    """A resource."""
    metadata = {"name": "herd", "namespace": "test", "uid": "u"}
    return parse_resource({"metadata": metadata, "spec": spec})


def pods(**spec: Any) -> list[dict[str, Any]]:
    """The pods of a database and of a witness."""
    return [pod.pod(cluster(**spec), ID, seat, Release()) for seat in (DATABASE, WITNESS)]


def node(seat: Seat, *others: Seat, **spec: Any) -> dict[str, Any]:
    """A member's node.json."""
    files = config.config_map(cluster(**spec), ID, seat, [seat, *others])["data"]
    found = json.loads(files["node.json"])
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("which", [0, 1], ids=["database", "witness"])
def test_pods_meet_the_restricted_standard(which: int) -> None:
    spec = pods()[which]["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    assert {kind for volume in spec["volumes"] for kind in volume} <= {
        "name", "persistentVolumeClaim", "emptyDir", "configMap", "secret",
    }  # fmt: skip
    for container in spec["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
        }


_BUCKET = {"bucket": "backups", "prefix": "herd", "endpoint": "https://s3", "credentials": "keys"}


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ({"volumeClaim": {"name": "backups", "path": "a"}}, ["/var/lib/pgherd-jobs/a"]),
        ({"s3": _BUCKET}, ["s3://backups/herd", "https://s3"]),
    ],
    ids=["volume", "bucket"],
)
def test_only_the_founder_reads_the_snapshot_that_a_herd_begins_with(
    place: dict[str, Any], said: list[str]
) -> None:
    begun = cluster(bootstrap={"snapshot": place})
    founder = pod.pod(begun, ID, DATABASE, Release())
    (seed,) = founder["spec"]["initContainers"]
    assert seed["args"] == ["seed", *said]
    assert seed["securityContext"]["readOnlyRootFilesystem"] is True
    assert ("store" in {one["name"] for one in seed["volumeMounts"]}) is ("volumeClaim" in place)
    assert seed.get("envFrom", []) == [{"secretRef": {"name": "keys"}}] * ("s3" in place)
    mounted = {one["name"] for one in seed["volumeMounts"]}
    assert mounted <= {one["name"] for one in founder["spec"]["volumes"]}
    files = config.config_map(begun, ID, DATABASE, [DATABASE])["data"]
    assert files["origin"] == "snapshot\n"
    # It becomes a member like others without a restart, and is made like them the next time.
    settled = pod.pod(begun, ID, Seat(1, Role.DATABASE, Origin.JOINER), Release())
    assert founder["metadata"]["annotations"] == settled["metadata"]["annotations"]
    for other in (
        settled,
        pod.pod(begun, ID, JOINER, Release()),
        pod.pod(begun, ID, WITNESS, Release()),
    ):
        assert "initContainers" not in other["spec"]
        assert "store" not in {one["name"] for one in other["spec"]["volumes"]}


def test_a_witness_has_no_database_and_no_passwords() -> None:
    spec = pods()[1]["spec"]
    assert [container["name"] for container in spec["containers"]] == ["sidecar"]
    assert not {"superuser", "app"} & {volume["name"] for volume in spec["volumes"]}


def test_parallel_queries_have_more_shared_memory_than_a_container_has_by_itself() -> None:
    database, witness = (item["spec"] for item in pods())
    (server,) = [one for one in database["containers"] if one["name"] == "postgres"]
    (name,) = [one["name"] for one in server["volumeMounts"] if one["mountPath"] == "/dev/shm"]
    memory = {"name": name, "emptyDir": {"medium": "Memory"}}
    assert memory in database["volumes"] and memory not in witness["volumes"]


def test_every_mount_has_its_volume() -> None:
    for item in pods():
        volumes = {volume["name"] for volume in item["spec"]["volumes"]}
        for container in item["spec"]["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes


def test_readiness_leaves_within_two_seconds() -> None:
    (probe,) = [c["readinessProbe"] for c in pods()[1]["spec"]["containers"]]
    assert probe["periodSeconds"] * probe["failureThreshold"] <= 2


def test_only_what_makes_the_pod_changes_its_revision() -> None:
    def revision(**spec: Any) -> str:
        found = pods(**spec)[0]["metadata"]["annotations"][names.REVISION]
        assert isinstance(found, str)
        return found

    same = revision()
    assert revision(instances=5) == same
    assert revision(storage={"size": "20Gi"}) == same
    assert revision(deletionPolicy="Delete") == same
    assert revision(postgres={"parameters": {"work_mem": "8MB"}}) != same
    assert revision(postgres={"pgHba": ["hostssl all all all cert"]}) != same
    assert revision(images={"sidecar": "x"}) != same
    assert revision(capture="Auto") == same
    assert revision(capture="SQL") != same
    assert revision(scheduling={"nodeSelector": {"disk": "fast"}}) != same


def test_the_sidecar_takes_the_configuration_of_a_database() -> None:
    read = NodeConfig.model_validate(node(DATABASE, JOINER))
    assert read.founder and read.recovery is None
    assert (read.address.host, read.listens_on) == ("herd-1.herd-peers.test.svc", "0.0.0.0")
    assert (read.postgres.database, read.postgres.tcp_host) == ("app", read.address.host)


def test_a_herd_may_be_kept_from_the_native_module() -> None:
    assert NodeConfig.model_validate(node(DATABASE)).capture == "auto"
    assert NodeConfig.model_validate(node(DATABASE, capture="SQL")).capture == "sql"
    assert NodeConfig.model_validate(node(JOINER, capture="SQL")).capture == "sql"


def test_a_member_that_joins_copies_the_database_and_leaves_the_server_to_its_container() -> None:
    read = NodeConfig.model_validate(node(JOINER, DATABASE, WITNESS))
    assert not read.founder
    assert read.recovery is not None and read.recovery.automatic and not read.recovery.runs_server
    assert [one.member for one in read.recovery.partners] == ["herd-1"]


def test_the_sidecar_takes_the_configuration_of_a_witness() -> None:
    read = NodeConfig.model_validate(node(WITNESS, DATABASE))
    assert read.witness and read.address.witness and read.recovery is None


def test_who_else_is_a_member_is_no_other_configuration() -> None:
    def files(*members: Seat) -> dict[str, str]:
        found = config.config_map(cluster(), ID, DATABASE, members)["data"]
        assert isinstance(found, dict)
        return found

    alone, both = files(DATABASE), files(DATABASE, JOINER)
    assert alone != both and config.same_but_members(alone, both)
    assert not config.same_but_members(alone, alone | {"pg_hba.conf": ""})
    assert not config.same_but_members(alone, alone | {"node.json": "[]"})


@given(st.dictionaries(st.from_regex(r"mine_[a-z_]{1,12}", fullmatch=True), st.text(max_size=40)))
def test_a_parameter_stays_in_its_line(parameters: dict[str, str]) -> None:
    text = config.member_files(cluster(postgres={"parameters": parameters}), ID, DATABASE)[
        "pgherd.conf"
    ]
    lines = text.split("\n")[1:-1]
    for line in lines:
        name, _, value = line.partition(" = ")
        assert name.isidentifier()
        assert value[0] == value[-1] == "'"
        assert "'" not in value[1:-1].replace("''", "")
        assert value[1:-1].replace("\\\\", "").count("\\") == 0


@pytest.mark.parametrize(("version", "written"), [("16", False), ("17", True), ("18", True)])
def test_a_server_that_can_ignore_event_triggers_is_told_not_to(
    version: str, written: bool
) -> None:
    own = {"postgres": "p:1", "sidecar": "s:1"}  # ours have 17
    files = config.member_files(cluster(postgres={"version": version}, images=own), ID, DATABASE)
    assert ("event_triggers = 'on'" in files["pgherd.conf"]) is written


def test_the_users_cannot_override_what_pgherd_sets() -> None:
    theirs = "host all all all trust"
    files = config.member_files(cluster(postgres={"pgHba": [theirs]}), ID, DATABASE)
    assert "ssl = 'on'" in files["pgherd.conf"]
    lines = [" ".join(line.split()) for line in files["pg_hba.conf"].splitlines()]
    ours = [
        "local all postgres,pgherd_apply trust",
        "host all pgherd_apply all reject",
        "hostssl all,replication postgres all cert clientname=DN map=members",
        "host all,replication postgres all reject",
        "hostssl app pgherd_jobs all cert map=jobs",
        "host all pgherd_jobs all reject",
    ]
    assert lines[1:8] == [*ours, theirs]
    default = lines[8:]
    assert not [line for line in default if line.startswith("host ")], "a password in the clear"


@pytest.mark.parametrize(
    ("name", "organization", "member"),
    [
        ("herd-1", ID, True),
        ("herd-12", ID, True),
        ("herd-1", "another herd", False),  # of a company whose authority signs for both
        ("herd-1", None, False),
        ("operator", ID, False),
        (f"herd-1,O={ID}", None, False),
    ],
)
def test_a_certificate_is_a_members_by_its_name_and_the_id_of_the_herd(
    name: str, organization: str | None, member: bool
) -> None:
    line = config.member_files(cluster(), ID, DATABASE)["pg_ident.conf"].splitlines()[1]
    pattern = line.split('"')[1].removeprefix("/")
    # As PostgreSQL writes it: RFC 2253, of which RFC 4514 is the successor.
    text = subject(name, organization).rfc4514_string()
    assert bool(re.search(pattern, text)) is member


def test_nothing_that_is_collected_as_garbage_holds_data() -> None:
    assert "ownerReferences" not in pod.volume(cluster(), ID, DATABASE)["metadata"]


def test_only_pods_of_the_herd_reach_the_log() -> None:
    (policy,) = [
        item for item in network.shared(cluster(), "system") if item["kind"] == "NetworkPolicy"
    ]
    rules = [
        rule
        for rule in policy["spec"]["ingress"]
        if names.PEER_PORT in [port["port"] for port in rule["ports"]]
    ]
    own = {"podSelector": {"matchLabels": {names.CLUSTER: "herd"}}}
    assert [rule["from"] for rule in rules] == [[own]]


@pytest.mark.parametrize(("members", "needed"), [(1, 0), (2, 1), (3, 2), (5, 4)])
def test_one_member_may_be_drained_at_a_time(members: int, needed: int) -> None:
    (budget,) = [
        item
        for item in network.shared(cluster(instances=members), "system")
        if item["kind"] == "PodDisruptionBudget"
    ]
    assert budget["spec"]["minAvailable"] == needed
