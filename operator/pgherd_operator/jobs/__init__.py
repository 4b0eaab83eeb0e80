"""Jobs on a herd, pure: which step is next, and the objects that do the work.

In come a resource and what became of its objects; out come objects to create and a status.
"""
