"""The scrub: has members compare their tables with each other's in idle time, again and again.

In come requests and answers that the log delivers; out go requests, while this member is the
proposer, and answers. The room promises nothing: a busy member says so, and nothing waits for it.
It remembers in ``scrub.json`` how far it is. ``core.replication.scrub`` decides what is asked and
what it means.
"""
