"""Takes a running plain PostgreSQL over into a herd while it takes writes: ``pgherd import``.

It is a client of both sides, and nothing of it runs in a sidecar::

    preflight   what keeps the source from being taken over, all of it, before anything is made
    begin       publication and slot at the source; roles and definitions in the herd
    copying     rows under the slot's snapshot, in pieces
    following   what the slot tells since then, whole transactions in their order
    cutover     writes end at the source, the rest is applied, everything is compared

How far it is stands in the herd, in a schema of its own (``state``), and each transaction that
writes rows changes that as well, from what it was to what it will be. So it does not matter when
this program dies, or the member that it writes to, or whether a commit was in doubt: a transaction
that was committed already finds another standing than it expects, here or by certification.

``pgoutput`` and ``folding`` do no IO. The command line is in ``cli.imports``.
"""
