"""The commands about subscriptions: sets of tables, who follows them, and who takes them over.

In come words of a command line; out go text or JSON and an exit status. The work is done in
``subscribing``.
"""
