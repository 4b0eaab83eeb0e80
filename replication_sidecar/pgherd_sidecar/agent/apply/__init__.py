"""The room that writes committed transactions into the server, in the order of their GIDs.

In come committed entries of other members, and repairs; out go rows, commands and a row of
``pgherd.applied`` for each, in one transaction with them. The room promises that each GID is
written once, and that what is visible is a prefix of the log. All of it is in the database, so
nothing here survives a restart by other means.
"""
