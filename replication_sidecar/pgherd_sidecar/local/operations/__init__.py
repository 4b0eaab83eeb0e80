"""What a command does to a whole herd on one machine: up, down, add, rebuild, verify, split.

In come a herd and what is wanted of it; out comes the herd in that state, or an error that says
how far it is. ``up``, ``add`` and ``rebuild`` that were
interrupted go on when they are given again.
"""
