"""Reads members at a marker: leases, sessions in its snapshot, checksums, and Spark tasks.

In come the members' addresses; out come tables and sums as of one GID. The room promises to read
with a pace that leaves the member to its clients.
"""
