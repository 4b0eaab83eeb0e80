"""One life of the replica: from a server that answers until it fails or is no longer needed.

In come committed entries and the state of the log; out goes a server that is equal to the log. The
room ``service`` opens sessions one after the other, and judges why each ended. The room promises
that at most one session writes at a time.
"""
