"""The ground that all rooms share: configuration, log lines, and errors that end a session.

In comes the file that ``--config`` names; out go checked values. The room keeps nothing and starts
nothing, and it imports no other room of the agent.
"""
