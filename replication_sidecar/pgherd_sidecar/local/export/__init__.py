"""How data leave a herd: a node becomes a plain server, or a dump that a plain server loads.

In comes a node; out come files with nothing of ours in them. The room promises that the rest of
the herd goes on, and that a target which was not finished does not look finished.
"""
