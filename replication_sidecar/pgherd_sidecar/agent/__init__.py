"""The asyncio shell: one process beside one PostgreSQL server.

It brings disk, links, the server and the protocols of ``core`` together. In come a configuration
file, requests of the server's sessions, of people and of peers; out go verdicts, rows, log blocks
and answers. ``main`` is the program and ``process`` is its life from command line to exit status;
all else is in rooms, which import downwards only (``pyproject.toml`` has their order).
"""
