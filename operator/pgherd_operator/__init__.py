"""pgherd's Kubernetes operator: makes reality follow the ReplicatedCluster resources.

Layers, each importing only those above it in this list:

* ``api``      pydantic models of the custom resource; the single source of ``crds/``
* ``objects``  pure builders: from a resource to the Kubernetes objects of its members
* ``core``     the reconciler, a pure function: what is observed -> actions, status, events
* ``jobs``     the same for snapshots, checks and schedules, and the objects that do the work
* ``shell``    everything that talks: the Kubernetes API, the sidecars, kopf, the leader's Lease

Who is a member of the herd is decided by the sidecars, through their log. The operator asks them;
what the Kubernetes API thinks of a pod never decides it.
"""
