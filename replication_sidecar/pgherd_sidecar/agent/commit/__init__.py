"""The way of local transactions that are certified, until they are visible everywhere here.

In come decisions and what the server tells of its sessions; out go links of the commit chain,
repairs, and sessions ended that hold others up. The room promises that what is certified becomes
visible on this node, whatever its own session does.
"""
