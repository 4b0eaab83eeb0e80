"""pgherd's replication sidecar: the replication manager beside one PostgreSQL server.

Packages, imports in one direction only (``pyproject.toml`` has the contracts of every room)::

    cli  ->  local  ->  client, agent, importing  ->  pg, env, pki  ->  core

* ``core``: the protocols, free of IO: ordered log, certification, writesets, merging.
* ``env``: what the protocols need of the world: disk segments, links to peers, clock.
* ``pg``: SQL that lives inside PostgreSQL, and the code that talks to the server.
* ``agent``: the asyncio shell that joins the three into one process.
* ``client``: the admin API from the side of those who ask.
* ``importing``: takes a plain server over into a herd.
* ``local``: a herd on one machine; ``pki``: its certificate authority.
* ``cli``: the ``pgherd`` command.
"""
