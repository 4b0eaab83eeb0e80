"""A subscriber takes a set over: `pgherd failover` if the herd is lost, or `pgherd switchover`.

A failover asks the most advanced of some subscribers, and not the herd, which is gone. They come to
one GID, and one of them takes writes. A switchover has the herd stop writes to the set first, so
nothing is lost. The room promises that no feeder of the herd writes to the new origin afterwards,
and that never both sides take writes that a switchover has moved.
"""
