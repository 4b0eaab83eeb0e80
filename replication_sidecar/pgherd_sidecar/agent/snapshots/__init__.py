"""Snapshots at one and the same GID on every member, and what compares them: markers and the scrub.

In come orders for markers; out go snapshots that sessions of others import, and checksums. The
room promises that a snapshot holds exactly what comes before its marker. The scrub remembers in a
file how far it is; a snapshot ends with the sidecar.
"""
