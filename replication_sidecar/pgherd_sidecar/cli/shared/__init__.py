"""What all commands share: options with their checks, and tables and JSON as they are printed.

In come words of a command line and answers of members; out go paths, members and text. Nothing here
knows a command.
"""
