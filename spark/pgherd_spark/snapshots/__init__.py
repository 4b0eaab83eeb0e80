"""The snapshot job: writes a herd's tables and its schema at one GID.

In come members at a marker and a store; out come files, and on demand what a member is made from.
"""
