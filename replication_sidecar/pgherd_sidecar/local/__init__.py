"""A herd on one machine: its directory, its servers and sidecars, one node and one file at a time.

In comes the herd's directory; out come processes that run, stop, and are asked. The room promises
that one command at a time changes a herd, that only a herd's directory is ever removed, and that
servers run as an account that is not root. ``herd.json`` and the nodes' directories survive.
"""
