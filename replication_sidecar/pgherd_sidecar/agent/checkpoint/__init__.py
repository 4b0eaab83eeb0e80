"""The files that a member keeps beside its log so that it need not begin at the log's beginning.

In come the replicated state, sequences and verdicts of this member; out come the same after a
restart. The room promises that a file is whole or not there, and that a checkpoint which does not
fit to the database or to the log is refused.
"""
