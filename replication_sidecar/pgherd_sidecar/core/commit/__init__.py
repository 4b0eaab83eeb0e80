"""The commit path of one node, free of IO: from a session's COMMIT to its answer and its repair.

What comes in: requests of the server's sessions, entries as the log delivers them with what the
replicated state decided, locks in the way, and the time. What goes out: submissions to the log,
answers to sessions, and orders about sessions in the way, each in a list that the caller takes and
carries out. Nothing here waits, reads a clock or knows a socket.

* ``path``: the face, ``CommitPath``, which composes the others and decides what becomes of each
  delivered writeset on this node.
* ``keys``: certification keys as ``certify()`` sends them.
* ``outbox``: local transactions under way, until the log has decided them.
* ``piecesender``: the large ones of them, until all their pieces are ordered.
* ``underway``: what these two hold, and what goes out because of them.
* ``deciding``: the decision on each entry, at once or, of one with very many keys, in steps.
* ``answers``: what their sessions are told.
* ``chain``: what becomes visible here, in GID order, and what has to be repaired.
* ``batches``: what the applier writes together, and the tokens of its batches.
* ``victims``: what becomes of sessions in the way of what is certain to commit.
* ``outcomes``: memory of what became of transactions, by their tokens.
"""
