"""The PostgreSQL server beside the sidecar as a whole: started, prepared, and told what it may do.

In come a configuration and the word whether this member takes writes; out come connections to a
server whose state is known. The room promises that no session of an earlier incarnation still
commits when a new one begins.
"""
