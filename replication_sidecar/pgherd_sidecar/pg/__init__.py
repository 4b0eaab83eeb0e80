"""PostgreSQL as pgherd uses it: the SQL that lives in it (``sql/``), statements, and connections.

In come merged rows, roles and settings; out come statements and what the server answered. ``sql``
is executed in the order of the file names, and may be executed again. The modules here don't know
the log.
"""
