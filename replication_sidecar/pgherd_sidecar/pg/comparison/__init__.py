"""Checksums and checks of what a member holds, for comparing it with the others.

In comes a connection with a snapshot; out come sums that are equal where the rows are. Nothing is
changed.
"""
