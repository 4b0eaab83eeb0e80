"""The Kubernetes objects of a herd, built from its resource.

In comes a ReplicatedCluster; out come manifests. The same input gives the same bytes.
"""
