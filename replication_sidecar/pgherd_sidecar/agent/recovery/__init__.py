"""Total recovery: how a node without a usable database of its own becomes a member again.

Start reading at ``rebuild``; ``docs/recovery.md`` has the reasons. What must survive the death of
this process is in ``progress`` (what is being done) and ``certstate`` (from where to certify).
"""
