"""The service above the log in one process: the replica, or a witness without a database.

In come the configuration, the log and requests of people; out go sessions, one after the other, and
answers. The room promises that a session begins only from a database that the log has a use for,
and that no failure of a server or of a session costs the herd this member's vote.
"""
