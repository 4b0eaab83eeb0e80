"""Puts a snapshot into a new server: of a new herd, of a member, or of nobody's.

In comes a store; out comes a database whose rows were proved to be the snapshot's.
"""
