"""A certificate authority of a herd's own.

In come names; out come keys and certificates. Nothing is written here: the caller keeps them.
"""
