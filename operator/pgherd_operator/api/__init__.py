"""Models of the custom resources, and the CRDs generated from them."""

GROUP = "pgherd.dev"
VERSION = "v1alpha1"
KIND = "ReplicatedCluster"
PLURAL = "replicatedclusters"
SHORT_NAMES = ["herd"]
OPERATOR = f"{GROUP}/operator"
"""Annotation of a ReplicatedCluster: namespace and name of the release that looks after it."""
SNAPSHOT, SCHEDULE, CHECK = "Snapshot", "SnapshotSchedule", "ConsistencyCheck"
MAINTENANCE = "MaintenanceSchedule"
SET, SUBSCRIPTION = "ReplicationSet", "Subscription"
