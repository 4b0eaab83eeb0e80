"""Does a writeset, at its place in the total order, commit or abort?

In come keys and GIDs in the order of the log; out come verdicts. The room promises the same
verdict on every member, whatever was pruned before: the horizon follows from the log alone.
"""
