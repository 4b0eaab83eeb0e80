"""Both ends of an import: the source, and the herd that takes it over.

In come connection strings; out come sessions with known settings, what the source has, and how far
the herd is with it. The state of an import is kept in the herd.
"""
