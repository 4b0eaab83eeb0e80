"""Where this member and its database stand in the herd, as the log tells it and as people see it.

In come entries of the log about databases and members; out go what this member does about its own
database, reasons in words, and the membership for people. The room promises that a database which
stopped at an entry is never used again unless the log allows it. Incidents survive a restart.
"""
