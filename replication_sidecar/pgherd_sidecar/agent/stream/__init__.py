"""Reads the log for those who only want to know: the change stream, and ``pgherd explain``.

In come GIDs; out go entries with what a reader needs to understand them. The room promises to
change nothing.
"""
