"""The change stream as a program reads it: the log of a herd, taken apart into changes of rows.

In come positions; out come changes with their GIDs, in order, from whichever member answers. The
room keeps nothing, so a reader that remembers its GID has each change once.
"""
