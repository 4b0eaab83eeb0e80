"""Total recovery: how a node without a usable database of its own becomes a member again.

In come a partner or a snapshot; out come a database and a checkpoint that fit to a place in the
log. ``rebuild`` is the order of steps and decides; ``means`` does them. The room promises that a
copy which was not finished is never used. It goes on from a small file after a restart:
``progress`` keeps it. ``docs/recovery.md`` has the reasons.
"""
