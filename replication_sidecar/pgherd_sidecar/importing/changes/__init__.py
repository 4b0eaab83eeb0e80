"""The changes of a source as its plugin ``pgoutput`` tells them: decoded and joined, without IO.

In come bytes of the replication protocol; out come row changes of whole transactions, in order.
"""
