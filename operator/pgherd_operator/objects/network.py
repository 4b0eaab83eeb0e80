"""Services, the disruption budget, who may talk to whom, and requests for certificates.

Who is in the read-write service is decided by the pods' readiness, which is the sidecar's word to
the kubelet. The operator takes no part: it may be down.
"""

from typing import Any

from pgherd_operator.api.resource import Cluster
from pgherd_operator.objects import names
from pgherd_operator.objects.model import Manifest, Role, Seat, manifest

_POSTGRES = {"name": "postgres", "port": names.POSTGRES_PORT, "protocol": "TCP"}


def shared(cluster: Cluster, release_namespace: str, voters: int = 0) -> list[Manifest]:
    """Objects that exist once a herd.

    Args:
        voters: of the view in force, 0 where nobody knows.
    """
    found = [
        _peers(cluster),
        _clients(cluster, "rw", {}),
        # For reads, which may go elsewhere one day: no connection of theirs meets a member that is
        # just being copied, or one in a minority that knows the past only.
        # Said aloud, or it stays as somebody has set it.
        _clients(cluster, "ro", {"publishNotReadyAddresses": False}),
        # All that run, up to date or not; who does not listen refuses at once.
        _clients(cluster, "any", {"publishNotReadyAddresses": True}),
        *_readers(cluster),
        _disruption_budget(cluster, voters),
        _policy(cluster, release_namespace),
        manifest(
            cluster,
            "v1",
            "ServiceAccount",
            cluster.name,
            {"automountServiceAccountToken": False},
        ),
    ]
    if cluster.spec.monitoring.pod_monitor:
        found.append(_pod_monitor(cluster))
    return found


def of_member(cluster: Cluster, seat: Seat) -> list[Manifest]:
    """The service of one member, for clients that want just this one."""
    if seat.role is Role.WITNESS:
        return []
    selector = {names.CLUSTER: cluster.name, names.MEMBER: str(seat.number)}
    spec = {"selector": selector, "ports": [_POSTGRES], "publishNotReadyAddresses": True}
    name = names.member(cluster.name, seat.number)
    return [manifest(cluster, "v1", "Service", name, {"spec": spec})]


def _peers(cluster: Cluster) -> Manifest:
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,  # members find each other before any is ready
        "selector": {names.CLUSTER: cluster.name},
        "ports": [
            {"name": "peer", "port": names.PEER_PORT, "protocol": "TCP"},
            {"name": "admin", "port": names.ADMIN_PORT, "protocol": "TCP"},
        ],
    }
    return manifest(cluster, "v1", "Service", names.peers(cluster.name), {"spec": spec})


def _clients(
    cluster: Cluster, suffix: str, extra: dict[str, Any], role: Role = Role.DATABASE
) -> Manifest:
    selector = {names.CLUSTER: cluster.name, names.ROLE: role.value}
    spec = {"selector": selector, "ports": [_POSTGRES]} | extra
    return manifest(cluster, "v1", "Service", f"{cluster.name}-{suffix}", {"spec": spec})


def _readers(cluster: Cluster) -> list[Manifest]:
    """The service of the readers; it stays, empty, when none are wanted any more."""
    return [_clients(cluster, "readers", {}, Role.READER)] if cluster.spec.readers else []


def _disruption_budget(cluster: Cluster, voters: int) -> Manifest:
    """One member at a time; a herd of one may be drained, or its node never could be.

    The view's voters count: while a herd shrinks they are more than the spec asks for, and while it
    grows fewer. Until a herd of more has three of them none may go: it would stop writes.
    """
    wanted = cluster.spec.instances + cluster.spec.witnesses
    voters = voters or wanted
    least = max(voters - 1, min(voters // 2 + 1, wanted - 1))
    voting = {"key": names.ROLE, "operator": "NotIn", "values": [Role.READER.value]}
    spec = {
        "minAvailable": least,
        "selector": {
            "matchLabels": {names.CLUSTER: cluster.name},
            "matchExpressions": [voting],
        },
    }
    return manifest(cluster, "policy/v1", "PodDisruptionBudget", cluster.name, {"spec": spec})


def _policy(cluster: Cluster, operator_namespace: str) -> Manifest:
    own_pods = {"podSelector": {"matchLabels": {names.CLUSTER: cluster.name}}}
    operator = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": operator_namespace}},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": names.FIELD_MANAGER}},
    }
    jobs = {"podSelector": {"matchLabels": {names.JOB_OF: cluster.name}}}
    spec = {
        "podSelector": {"matchLabels": {names.CLUSTER: cluster.name}},
        "policyTypes": ["Ingress"],
        "ingress": [
            {"ports": [_port(names.POSTGRES_PORT), _port(names.HEALTH_PORT)]},
            {"ports": [_port(names.PEER_PORT)], "from": [own_pods]},
            {"ports": [_port(names.ADMIN_PORT)], "from": [own_pods, operator, jobs]},
        ],
    }
    return manifest(cluster, "networking.k8s.io/v1", "NetworkPolicy", cluster.name, {"spec": spec})


def certificate(
    cluster: Cluster, cluster_id: str, secret: str, common_name: str, dns_names: tuple[str, ...]
) -> Manifest:
    """What asks cert-manager for a certificate, of the form of our own (``shell.certificates``)."""
    issuer, days = cluster.spec.tls.issuer, cluster.spec.tls.validity_days
    assert issuer is not None
    spec = {
        "secretName": secret,
        "commonName": common_name,
        "subject": {"organizations": [cluster_id]},
        "dnsNames": list(dns_names),
        "duration": f"{days * 24}h0m0s",
        "renewBefore": f"{days * 8}h0m0s",
        "privateKey": {"algorithm": "ECDSA", "size": 256, "rotationPolicy": "Always"},
        "usages": ["digital signature", "server auth", "client auth"],
        "issuerRef": {"name": issuer.name, "kind": issuer.kind, "group": "cert-manager.io"},
    }
    return manifest(cluster, "cert-manager.io/v1", "Certificate", secret, {"spec": spec})


def _port(number: int) -> dict[str, Any]:
    return {"port": number, "protocol": "TCP"}


def _pod_monitor(cluster: Cluster) -> Manifest:
    spec = {
        "selector": {"matchLabels": {names.CLUSTER: cluster.name}},
        "podMetricsEndpoints": [{"port": "health", "path": "/metrics"}],
    }
    return manifest(cluster, "monitoring.coreos.com/v1", "PodMonitor", cluster.name, {"spec": spec})
