"""The ordered log on disk, and small files that are replaced as a whole.

In come blocks and values; out come the same after a crash. The room promises that what was flushed
is there, that a torn tail is cut off, and that damage is found and told, never read as data.
"""
