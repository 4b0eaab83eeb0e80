"""The members of the herd, as this member knows them: identity, notes, roster, and links to peers.

In come the views that the log names, and connections; out go messages of peers that have proved
who they are. The room promises that a directory belongs to one member of one cluster, that nobody
founds a herd a second time, and that a stranger is never listened to. Identity and notes survive a
restart.
"""
