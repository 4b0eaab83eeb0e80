"""Whatever stops a herd is named in its resource within half a minute, in the words of who refuses.

Each trouble is planted in a herd of its own, in a namespace of its own; one of them in a herd that
works, whose other members are healed all the same. And what a newcomer applies comes up on a node
of two cores.
"""

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest

from .cluster import HERD, NAMESPACE, Herd, Kubectl, Object, is_well, until, until_ready, until_well
from .installation import SMALL, from_readme
from .preparation import IMAGES, REPOSITORY, run, tool

pytestmark = [pytest.mark.timeout(1800), pytest.mark.long]

_ELSEWHERE = "troubles"
_OPERATOR = ("deployment/pgherd", "--namespace=pgherd-system")
_NODE = "--selector=node-role.kubernetes.io/control-plane"


def upgrade(kubectl: Kubectl, *namespaces: str) -> None:
    """Have the operator watch these namespaces, with the rights that the chart gives it there."""
    run(
        str(tool("PGHERD_HELM", "helm")), f"--kubeconfig={kubectl.kubeconfig}", "upgrade", "pgherd",
        str(REPOSITORY / "charts/pgherd"), "--namespace=pgherd-system", "--reuse-values", "--wait",
        f"--set=namespaces={{{','.join(namespaces)}}}",
    )  # fmt: skip


@pytest.fixture(scope="module")
def elsewhere(kubectl: Kubectl) -> Iterator[Kubectl]:
    """Another namespace that the operator watches, too."""
    there = replace(kubectl, namespace=_ELSEWHERE)
    there.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _ELSEWHERE}})
    upgrade(kubectl, NAMESPACE, _ELSEWHERE)
    yield there
    upgrade(kubectl, NAMESPACE)
    there("delete", "namespace", _ELSEWHERE, "--wait=false")


@contextmanager
def two_cores_left(kubectl: Kubectl) -> Iterator[None]:
    """Leave one node that takes pods, with two cores for the cluster's own and for what comes."""
    node = json.loads(kubectl("get", "nodes", _NODE, "--output=json"))["items"][0]
    name, cores = node["metadata"]["name"], node["status"]["allocatable"]["cpu"]
    milli = int(cores[:-1]) if cores.endswith("m") else 1000 * int(cores)
    others = kubectl("get", "nodes", "--output=name").split()
    others = [one for one in others if one != f"node/{name}"]
    with ExitStack() as undo:
        for other in others:
            kubectl("cordon", other)
            undo.callback(kubectl, "uncordon", other)
        if milli > 2000:
            kubectl.apply(_holder(kubectl.namespace, name, milli - 2000))
            undo.callback(kubectl, "delete", "pod", "holder", "--grace-period=0", "--force")
            until_ready(kubectl, "holder")
        yield


def _holder(namespace: str, node: str, milli: int) -> Object:
    """A pod that does nothing and has all cores but two."""
    container = {
        "name": "holder", "image": IMAGES["sidecar"], "command": ["sleep", "infinity"],
        "resources": {"requests": {"cpu": f"{milli}m"}},
    }  # fmt: skip
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "holder", "namespace": namespace},
        "spec": {
            "containers": [container], "terminationGracePeriodSeconds": 0,
            "nodeSelector": {"kubernetes.io/hostname": node},
        },
    }  # fmt: skip


def test_what_the_readme_applies_comes_up_on_a_node_of_two_cores(elsewhere: Kubectl) -> None:
    resource = from_readme()
    name = resource["metadata"]["name"]
    with two_cores_left(elsewhere):
        elsewhere.apply(resource)
        elsewhere("wait", "--for=condition=Ready", f"herd/{name}", "--timeout=5m")
        assert is_well(elsewhere, resource["spec"]["instances"], name)
        for member, statement in (
            (1, "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)"),
            (3, "TABLE t"),
        ):
            psql = ["psql", "--host=/run/pgherd/server", "--username=postgres", "--no-align"]
            command = [*psql, "app", f"--command={statement}"]
            until(partial(answers, elsewhere, f"{name}-{member}", *command), statement)
        elsewhere("delete", "herd", name)


def answers(kubectl: Kubectl, pod: str, *command: str) -> bool:
    """Whether a program in a server's container ends well."""
    try:
        kubectl("exec", pod, "--container=postgres", "--", *command)
    except AssertionError:
        return False
    return True


@dataclass(frozen=True)
class Trouble:
    """What is planted, and what has to be said of it.

    Attributes:
        spec: of a herd of one member.
        words: a pattern, in the message of a condition that is not as it should be.
        objects: made before, and removed afterwards.
    """

    spec: Object
    words: str
    objects: tuple[Object, ...] = ()


def thing(version: str, kind: str, name: str, **content: Any) -> Object:
    """An object of the namespace."""
    metadata = {"name": name, "namespace": _ELSEWHERE}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **content}


_LIMITS = [{"type": "Container", "max": {"memory": "16Mi"}}]
_REQUESTS = {"requests": {"cpu": "1000"}}
TROUBLES = {
    "image": Trouble(
        {"images": {"sidecar": "registry.invalid/none:1"}},
        r"container sidecar: (ErrImagePull|ImagePullBackOff)",
    ),
    "no such node": Trouble(
        {"scheduling": {"nodeSelector": {"pgherd.dev/no-such": "node"}}},
        r"Unschedulable: .*nodes are available",
    ),
    "no room": Trouble(
        {"resources": {"postgres": _REQUESTS, "sidecar": {}}}, r"Unschedulable: .*Insufficient cpu"
    ),
    "priority class": Trouble(
        {"scheduling": {"priorityClassName": "missing"}},
        r"no PriorityClass with name missing was found",
    ),
    "quota": Trouble(
        {},
        r"exceeded quota: none",
        (thing("v1", "ResourceQuota", "none", spec={"hard": {"count/pods": "0"}}),),
    ),
    "admission": Trouble(
        {}, r"16Mi", (thing("v1", "LimitRange", "tiny", spec={"limits": _LIMITS}),)
    ),
    "storage class": Trouble(
        {"storage": {"size": "1Gi", "className": "missing"}},
        r'ProvisioningFailed: storageclass.storage.k8s.io "missing" not found',
    ),
    "kubelet": Trouble(
        {"postgres": {"pgHba": ["this is no line of pg_hba.conf"]}}, r"container postgres: "
    ),
    "certificates": Trouble({"tls": {"mode": "Provided"}}, r"planted-1-tls"),
    "kind": Trouble({"monitoring": {"podMonitor": True}}, r"PodMonitor objects cannot be read"),
    "name": Trouble(
        {},
        r"not touched, as it is not this herd's: Service planted-rw",
        (
            thing("v1", "Service", "planted-rw",
                  spec={"ports": [{"port": 1}], "selector": {"app": "theirs"}}),
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", TROUBLES)
def test_what_stops_a_herd_is_named(elsewhere: Kubectl, kind: str) -> None:
    trouble = TROUBLES[kind]
    for one in trouble.objects:
        elsewhere.apply(one)
    try:
        herd = thing("pgherd.dev/v1alpha1", "ReplicatedCluster", "planted")
        elsewhere.apply(herd | {"spec": SMALL | {"instances": 1} | trouble.spec})
        until(lambda: said(elsewhere, "planted", trouble.words), trouble.words)
    finally:
        for one in trouble.objects:
            elsewhere("delete", one["kind"], one["metadata"]["name"])
        elsewhere("delete", "herd", "planted", "--wait")
        claims = "--selector=pgherd.dev/cluster=planted"
        elsewhere("delete", "persistentvolumeclaims,secrets", claims, "--wait")


def said(kubectl: Kubectl, herd: str, words: str) -> bool:
    """Whether a condition of a herd says this."""
    conditions = kubectl.get("replicatedcluster", herd).get("status", {}).get("conditions", ())
    return any(re.search(words, one["message"]) for one in conditions if one["status"] != "True")


def test_a_member_over_the_quota_keeps_the_others_from_nothing(
    herd: Herd, kubectl: Kubectl
) -> None:
    members = herd.members()
    # Pods of other tests count until they are gone, and would leave places.
    other = f"--selector=pgherd.dev/cluster,pgherd.dev/cluster!={HERD}"
    until(lambda: not kubectl("get", "pods", other, "--output=name"), "the other herds are gone")
    used = len(kubectl("get", "pods", "--output=name").split())
    quota = thing("v1", "ResourceQuota", "full", spec={"hard": {"count/pods": str(used)}})
    quota["metadata"]["namespace"] = NAMESPACE
    kubectl.apply(quota)
    try:
        until(
            lambda: kubectl.get("resourcequota", "full").get("status", {}).get("used"),
            "it is counted",
        )
        with herd.writing(*members[:2]) as written:
            herd.change(instances=4)
            until(lambda: said(kubectl, HERD, "exceeded quota: full"), "the quota")
            kubectl("delete", "pod", members[2])
            until_ready(kubectl, members[2])
            herd.change(instances=3)
            until_well(kubectl, 3)
        herd.assert_nothing_is_lost(members, written)
    finally:
        kubectl("delete", "resourcequota", "full")


def test_a_right_that_the_operator_lacks_is_named(herd: Herd, kubectl: Kubectl) -> None:
    role = kubectl.get("role", "pgherd")
    fewer = [rule for rule in role["rules"] if rule["resources"] != ["services"]]
    assert len(fewer) < len(role["rules"])
    patch = {"rules": fewer}
    kubectl("patch", "role", "pgherd", "--type=merge", f"--patch={json.dumps(patch)}")
    try:
        words = r"services is forbidden"
        # A herd that is well is looked at each half minute.
        until(lambda: said(kubectl, HERD, words), words)
    finally:
        patch = {"rules": role["rules"]}
        kubectl("patch", "role", "pgherd", "--type=merge", f"--patch={json.dumps(patch)}")
    until_well(kubectl, 3)
    herd.verify()


def test_an_operator_that_cannot_lead_is_not_ready(herd: Herd, kubectl: Kubectl) -> None:
    name, where = "pgherd-election", "--namespace=pgherd-system"
    binding = json.loads(kubectl("get", "rolebinding", name, where, "--output=json"))
    kubectl("delete", "rolebinding", name, where)
    try:
        ready = ["get", *_OPERATOR, "--output=jsonpath={.status.readyReplicas}"]
        until(lambda: kubectl(*ready) in ("", "0"), "no operator is ready")
    finally:
        kept = ("apiVersion", "kind", "roleRef", "subjects")
        metadata = {key: binding["metadata"][key] for key in ("name", "namespace", "labels")}
        metadata["annotations"] = binding["metadata"].get("annotations", {})  # helm's
        again = {key: binding[key] for key in kept} | {"metadata": metadata}
        kubectl("apply", "-f", "-", where, stdin=json.dumps(again))
    kubectl("rollout", "status", *_OPERATOR)
    until_well(kubectl, 3)
    herd.verify()
