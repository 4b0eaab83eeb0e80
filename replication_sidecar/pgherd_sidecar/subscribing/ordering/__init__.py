"""What is ordered of a herd: which sets there are to be, and who is to follow them.

In come orders, of the commands or of a member's sidecar; out go rows of the herd, and at the end of
a subscription a transaction of the subscriber. An order may be repeated: what is so already is not
written again. ``process`` carries out the orders of the sidecar, in a process of its own.
"""
