"""What the protocols need of the world: a disk, a network, and processes.

In and out come bytes. A room here knows the values of ``core.consensus`` where it stores or sends
them, and nothing of PostgreSQL. The rooms do not know each other.
``finishing`` is for whoever uses one and may be cancelled.
"""
