"""Jobs on Apache Spark that read a herd at one GID: consistency check and snapshot.

The driver orders a marker and leases each member's snapshot at it (``leases``). The tasks read the
members by sessions of their own, which import those snapshots (``sources``); what can be computed
inside PostgreSQL is, and Spark spreads the work, merges the results and compares (``cluster``).

Called by the ``pgherd`` command on a laptop (``local[*]``), later by SparkApplications on
Kubernetes. Nothing survives a restart but what a job writes where it was told to.
"""
