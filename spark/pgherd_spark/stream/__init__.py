"""The change stream: committed changes in the order of their GIDs, for programs and for Spark.

In come the admin APIs of members; out come row changes. Reading goes on at another member where
one fails.
"""
