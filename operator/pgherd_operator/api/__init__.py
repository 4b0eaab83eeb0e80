"""Models of the custom resource ReplicatedCluster, and the CRD generated from them."""

GROUP = "pgherd.dev"
VERSION = "v1alpha1"
KIND = "ReplicatedCluster"
PLURAL = "replicatedclusters"
SHORT_NAMES = ["herd", "rc"]  # kubectl takes `rc` for ReplicationController where both fit
