"""What entries of the log mean: their format, the replicated state, and rows merged for writing.

In come the blocks' opaque data; out come entries, decisions, and plans for the applier. The room
promises that the state after a position is a function of the log up to it, and that a checkpoint
of it goes on as if there had been none.
"""
