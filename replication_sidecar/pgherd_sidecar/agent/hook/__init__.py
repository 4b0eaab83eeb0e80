"""The socket on which sessions of the server wait in COMMIT for their verdict.

In come writesets of local transactions, whole or in pieces; out go log entries, and later a GID or
a reason for an abort to the session that waits. The room promises that a waiting session hears
either its verdict or that the outcome is unknown, and never an abort of what may still commit.
"""
