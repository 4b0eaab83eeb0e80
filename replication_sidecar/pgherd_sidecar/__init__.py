"""pgherd's replication sidecar: the replication manager beside one PostgreSQL server.

Packages, imports in one direction only (``tests/unit/test_imports.py`` checks it)::

    cli  ->  agent  ->  pg, env  ->  core

* ``core``: the protocols, free of IO: ordered log, certification, writesets, merging.
* ``env``: what the protocols need of the world: disk segments, links to peers, clock.
* ``pg``: SQL that lives inside PostgreSQL, and the code that talks to the server.
* ``agent``: the asyncio shell that joins the three into one process.
* ``cli``: the ``pgherd`` command.
"""
