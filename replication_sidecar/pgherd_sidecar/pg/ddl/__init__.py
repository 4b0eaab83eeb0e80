"""Commands of the data definition language: found, judged, split into statements, executed.

In comes what PostgreSQL captured of a command; out come single statements that mean the same on
every member, or a refusal that says why.
"""
