"""Models of the custom resources, and the CRDs generated from them."""

GROUP = "pgherd.dev"
VERSION = "v1alpha1"
KIND = "ReplicatedCluster"
PLURAL = "replicatedclusters"
SHORT_NAMES = ["herd"]
SNAPSHOT, SCHEDULE, CHECK = "Snapshot", "SnapshotSchedule", "ConsistencyCheck"
