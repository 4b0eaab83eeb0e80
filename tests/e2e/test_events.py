"""Rarer events in the life of a herd on a real cluster; minutes more of what test_herd.py shows."""

import base64
import itertools
import json
import os
import random
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from .cluster import HERD, NAMESPACE, Herd, Kubectl, Object, until, until_ready, until_well
from .test_herd import restarted

pytestmark = [pytest.mark.timeout(1800), pytest.mark.long]

_KILLS, _BETWEEN_KILLS_S = 4, 40.0
_CHAIN = "pgherd-policy"


def in_node(node: str, *command: str) -> str:
    """Run something in a node of kind's, which is a container of docker's."""
    return docker("exec", node, *command)


def docker(*arguments: str) -> str:
    """Run docker."""
    done = subprocess.run(["docker", *arguments], check=True, capture_output=True, text=True)
    return done.stdout


def node_of(kubectl: Kubectl, pod: str) -> str:
    """The node that a pod runs on."""
    return str(kubectl.get("pod", pod)["spec"]["nodeName"])


def elsewhere(kubectl: Kubectl, members: list[str]) -> str:
    """A member whose node holds neither the control plane nor the clients."""
    client = node_of(kubectl, "client")
    nodes = {member: node_of(kubectl, member) for member in members}
    return next(m for m, node in nodes.items() if "control-plane" not in node and node != client)


def test_a_herd_whose_pods_are_all_stopped_comes_back_by_itself(
    herd: Herd, kubectl: Kubectl
) -> None:
    members = herd.members()
    with herd.writing(f"{HERD}-rw") as written:
        kubectl("delete", "pods", *members)
        until_ready(kubectl, *members)
    herd.assert_nothing_is_lost(members, written)


def test_another_image_reaches_all_members_one_after_the_other(
    herd: Herd, kubectl: Kubectl
) -> None:
    members = herd.members()
    image = kubectl.get("pod", members[0])["spec"]["containers"][1]["image"]
    # The same one, by another name.
    other = image.removeprefix("docker.io/") if "docker.io/" in image else f"docker.io/{image}"
    with herd.writing(f"{HERD}-rw", *members) as written:
        herd.change(images={"sidecar": other})
        until_well(kubectl, 3)
    for member in members:
        _, sidecar = kubectl.get("pod", member)["spec"]["containers"]
        assert sidecar["image"] == other
    herd.assert_nothing_is_lost(members, written)


def test_a_node_is_drained_and_comes_back(herd: Herd, kubectl: Kubectl) -> None:
    members = herd.members()
    node = node_of(kubectl, members[1])
    others = [member for member in members if node_of(kubectl, member) != node]
    with herd.writing(*others) as written:
        kubectl("drain", node, "--ignore-daemonsets", "--delete-emptydir-data",
                f"--pod-selector=pgherd.dev/cluster={HERD}", "--timeout=300s")  # fmt: skip
        kubectl("uncordon", node)
        until_well(kubectl, 3)
    herd.assert_nothing_is_lost(members, written)


def test_the_last_members_that_commit_are_not_drained(herd: Herd, kubectl: Kubectl) -> None:
    """The budget spares a second member while a first is away."""
    members = herd.members()
    budget = kubectl.get("poddisruptionbudget", HERD)
    assert budget["status"]["disruptionsAllowed"] == 1
    node = node_of(kubectl, members[2])
    kubectl("cordon", node)
    try:
        kubectl("delete", "pod", members[2])
        until(
            lambda: kubectl.get("poddisruptionbudget", HERD)["status"]["disruptionsAllowed"] == 0,
            "nobody else may go",
        )
    finally:
        kubectl("uncordon", node)
    until_well(kubectl, 3)


@pytest.mark.parametrize("how", ["pause", "disconnect"])
def test_a_node_that_is_not_heard_of_for_a_while_comes_back(
    herd: Herd, kubectl: Kubectl, how: str
) -> None:
    members = herd.members()
    victim = elsewhere(kubectl, members)
    node, others = node_of(kubectl, victim), [m for m in members if m != victim]
    away = ["pause", node] if how == "pause" else ["network", "disconnect", "kind", node]
    back = ["unpause", node] if how == "pause" else ["network", "connect", "kind", node]
    with herd.writing(*others) as written:
        docker(*away)
        try:
            until(lambda: not kubectl.ready(victim), "the control plane misses it")
            herd.repeat(f"{HERD}-rw", "INSERT INTO mark DEFAULT VALUES")
        finally:
            docker(*back)
        until_well(kubectl, 3)
    herd.assert_nothing_is_lost(members, written)


_PRESENTED = """
import socket, ssl, struct, sys
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)
if sys.argv[2] == "5432":
    connection.sendall(struct.pack("!ii", 8, 80877103))
    assert connection.recv(1) == b"S"
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
der = context.wrap_socket(connection).getpeercert(binary_form=True)
print(ssl.DER_cert_to_PEM_cert(der), end="")
"""


def test_certificates_are_replaced_under_running_members(herd: Herd, kubectl: Kubectl) -> None:
    members = herd.members()

    def issued(member: str) -> str:
        data = kubectl.get("secret", f"{member}-tls").get("data", {})
        return base64.b64decode(data.get("tls.crt", "")).decode()

    def presented(member: str, port: int) -> str:
        target = [f"{member}.{HERD}-peers", str(port)]
        return kubectl("exec", "client", "--", "python", "-c", _PRESENTED, *target)

    def used(certificates: dict[str, str]) -> bool:
        doors = itertools.product(certificates, (5432, 7801))
        return all(presented(member, port) == certificates[member] for member, port in doors)

    def reissued() -> bool:
        return all(issued(member) not in ("", old) for member, old in before.items())

    before = {member: issued(member) for member in members}
    assert used(before)
    pods = [kubectl.get("pod", member)["metadata"]["uid"] for member in members]
    with herd.writing(*members) as written:
        kubectl("delete", "secrets", *(f"{member}-tls" for member in members))
        until(reissued, "there are others")
        after = {member: issued(member) for member in members}
        until(lambda: used(after), "the members use them")
    assert [kubectl.get("pod", member)["metadata"]["uid"] for member in members] == pods
    assert [one.errors for one in written] == [{}] * 3
    herd.assert_nothing_is_lost(members, written)


@contextmanager
def cut_off(kubectl: Kubectl, member: str, others: list[str]) -> Iterator[None]:
    """Drop what a member and others send each other; clients and kubelets reach all of them."""
    nodes = {node_of(kubectl, one) for one in [member, *others]}
    mine = kubectl.get("pod", member)["status"]["podIP"]
    rules = []
    for other in others:
        theirs = kubectl.get("pod", other)["status"]["podIP"]
        rules += [["-s", mine, "-d", theirs], ["-s", theirs, "-d", mine]]
    for node in nodes:
        for rule in rules:
            in_node(node, "iptables", "-I", "FORWARD", *rule, "-j", "DROP")
    try:
        yield
    finally:
        for node in nodes:
            for rule in rules:
                in_node(node, "iptables", "-D", "FORWARD", *rule, "-j", "DROP")


def test_a_member_cut_off_from_the_others_leaves_the_service_and_returns(
    herd: Herd, kubectl: Kubectl
) -> None:
    members = herd.members()
    with (
        herd.writing(f"{HERD}-rw", *members) as written,
        cut_off(kubectl, members[0], members[1:]),
    ):
        until(lambda: not kubectl.ready(members[0]), "it is not ready any more")
        for _ in range(10):
            herd.repeat(f"{HERD}-rw", "INSERT INTO mark DEFAULT VALUES")
        # It still shows what it has to who asks for it by name.
        assert herd.sql(members[0], "SELECT count(*) > 0 FROM ledger") == "t"
    until_well(kubectl, 3)
    herd.assert_nothing_is_lost(members, written)


@contextmanager
def enforced(kubectl: Kubectl, policy: Object) -> Iterator[None]:
    """Have the nodes let in what a policy of ingress allows, as a network that knows policies does.

    Kind's network may not. For pods of this moment, with selectors by labels only.
    """
    allowed = [
        ["-p", "tcp", "--dport", str(port["port"]), *source]
        for rule in policy["spec"]["ingress"]
        for port in rule["ports"]
        for source in _sources(kubectl, rule)
    ]
    begun = ["-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED"]
    chain = [*([*one, "-j", "RETURN"] for one in (begun, *allowed)), ["-j", "DROP"]]
    guarded = _addresses(kubectl, {"podSelector": policy["spec"]["podSelector"]})
    nodes = kubectl("get", "nodes", "--output=name").replace("node/", "").split()
    for node in nodes:
        in_node(node, "iptables", "-N", _CHAIN)
        for rule in chain:
            in_node(node, "iptables", "-A", _CHAIN, *rule)
        for address in guarded:
            in_node(node, "iptables", "-I", "FORWARD", "-d", address, "-j", _CHAIN)
    try:
        yield
    finally:
        for node in nodes:
            for address in guarded:
                in_node(node, "iptables", "-D", "FORWARD", "-d", address, "-j", _CHAIN)
            in_node(node, "iptables", "-F", _CHAIN)
            in_node(node, "iptables", "-X", _CHAIN)


def _sources(kubectl: Kubectl, rule: Object) -> list[list[str]]:
    """Options of iptables, one for each address that a rule lets in; one without if it is all."""
    if "from" not in rule:
        return [[]]
    return [["-s", one] for peer in rule["from"] for one in _addresses(kubectl, peer)]


def _addresses(kubectl: Kubectl, peer: Object) -> list[str]:
    """Of the pods that a peer of a policy names."""

    def chosen(kind: str, selector: Object, *options: str) -> list[Object]:
        assert selector.keys() == {"matchLabels"}
        labels = ",".join(f"{name}={value}" for name, value in selector["matchLabels"].items())
        text = kubectl("get", kind, f"--selector={labels}", "--output=json", *options)
        items: list[Object] = json.loads(text)["items"]
        return items

    namespaces = [NAMESPACE]
    if "namespaceSelector" in peer:
        found = chosen("namespaces", peer["namespaceSelector"])
        namespaces = [one["metadata"]["name"] for one in found]
    return [
        pod["status"]["podIP"]
        for namespace in namespaces
        for pod in chosen("pods", peer["podSelector"], f"--namespace={namespace}")
    ]


def test_the_network_policy_lets_in_who_has_to_and_nobody_else(
    herd: Herd, kubectl: Kubectl
) -> None:
    members = herd.members()

    def reached() -> set[tuple[str, int]]:
        """What a pod that is no member's gets a connection to."""
        connect = "import socket, sys; socket.create_connection((sys.argv[1], sys.argv[2]), 2)"
        doors = itertools.product(members, (5432, 7801, 7802, 7803))
        return {
            (member, port)
            for member, port in doors
            if subprocess.run(
                kubectl.command("exec", "client", "--", "python", "-c", connect,
                                f"{member}.{HERD}-peers", str(port)),
                check=False, capture_output=True,
            ).returncode == 0
        }  # fmt: skip

    def told_to_operator() -> list[int]:
        """The members' positions, as they were when it last asked."""
        status = kubectl.get("replicatedcluster", HERD)["status"]
        return [int(one.get("gid", 0)) for one in status["members"]]

    everything = set(itertools.product(members, (5432, 7801, 7802, 7803)))
    assert reached() == everything
    with (
        herd.writing(f"{HERD}-rw", *members) as written,
        enforced(kubectl, kubectl.get("networkpolicy", HERD)),
    ):
        assert reached() == set(itertools.product(members, (5432, 7803)))
        # Connections that are there go on, so have all of a member's be made anew.
        restarts = restarted(kubectl, members[0])
        kubectl("exec", members[0], "--container=sidecar", "--", "sh", "-c", "kill -TERM 1")
        until(lambda: restarted(kubectl, members[0]) > restarts, "the sidecar was started again")
        until_ready(kubectl, members[0])
        newest = int(herd.sql(f"{HERD}-rw", "SELECT pgherd.last_gid()"))
        until(lambda: min(told_to_operator()) >= newest, "the operator hears of all members")
    until_well(kubectl, 3)
    herd.assert_nothing_is_lost(members, written)
    assert reached() == everything


def test_nobody_misses_the_control_plane(herd: Herd, kubectl: Kubectl) -> None:
    members = herd.members()
    node = kubectl("get", "nodes", "--selector=node-role.kubernetes.io/control-plane",
                   "--output=jsonpath={.items[0].metadata.name}")  # fmt: skip
    manifest = "/etc/kubernetes/manifests/kube-apiserver.yaml"
    with herd.writing(f"{HERD}-rw", *members) as written:
        in_node(node, "mv", manifest, "/root/kube-apiserver.yaml")
        try:
            until(lambda: not answers(kubectl), "nobody answers")
            # The kubelets and all that is in the pods go on alone for longer than any lease.
            in_node(node, "sleep", "60")
        finally:
            in_node(node, "mv", "/root/kube-apiserver.yaml", manifest)
        until(lambda: answers(kubectl), "the control plane is back")
    assert [one.errors for one in written] == [{}] * 4
    until_well(kubectl, 3)
    herd.assert_nothing_is_lost(members, written)


def answers(kubectl: Kubectl) -> bool:
    """Whether the API server says that it is ready."""
    done = subprocess.run(
        kubectl.command("get", "--raw=/readyz", "--request-timeout=2s"),
        check=False, capture_output=True,
    )  # fmt: skip
    return done.returncode == 0


def test_a_herd_sleeps_and_wakes_up(herd: Herd, kubectl: Kubectl) -> None:
    members = herd.members()
    with herd.writing(f"{HERD}-rw") as written:
        herd.change(hibernated=True)
        until(lambda: not any(kubectl.get("pod", member) for member in members), "all are stopped")
        assert all(kubectl.get("persistentvolumeclaim", f"{one}-data") for one in members)
        herd.change(hibernated=False)
        until_well(kubectl, 3)
    herd.assert_nothing_is_lost(members, written)


def test_an_operator_that_is_killed_again_and_again_gets_there(
    herd: Herd, kubectl: Kubectl
) -> None:
    """At random moments, so in the middle of whatever it does (RELIABILITY: crash, stale read)."""
    members = herd.members()
    seed = int(os.environ.get("PGHERD_E2E_SEED", random.randrange(1 << 32)))
    print(f"PGHERD_E2E_SEED={seed}")  # noqa: T201 - shown where it fails
    rng = random.Random(seed)
    with herd.writing(*members) as written:
        for instances, connections in ((4, "160"), (3, "170")):
            herd.change(
                instances=instances, postgres={"parameters": {"max_connections": connections}}
            )
            kill_operator(kubectl, rng)
            until_well(kubectl, instances)
    assert herd.members() == members
    for member in members:
        assert herd.sql(member, "SHOW max_connections") == "170"
    herd.assert_nothing_is_lost(members, written)


def kill_operator(
    kubectl: Kubectl,
    rng: random.Random,
    times: int = _KILLS,
    between_s: float = _BETWEEN_KILLS_S,
) -> None:
    """Kill all of the operator's processes without notice, again and again.

    A new one acts only once the lease of the former leader has run out.

    Args:
        between_s: at most.
    """
    for _ in range(times):
        time.sleep(rng.uniform(0, between_s))
        kubectl(
            "delete", "pods", "--namespace=pgherd-system", "--grace-period=0", "--force",
            "--selector=app.kubernetes.io/name=pgherd-operator", "--ignore-not-found",
        )  # fmt: skip
