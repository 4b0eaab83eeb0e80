"""The fuzzer: random schemas and transactions on a herd of three, compared after each of them.

In goes a seed; out comes a case (``case``) that made members differ, shrunk, or none. ``schemas``
and ``statements`` draw from the seed and know no server. ``servers`` has the herd and, beside it, a
plain PostgreSQL; ``play`` says a case to them, ``compare`` looks at what came of it, ``shrink``
makes a failing case small, ``__main__`` is the command line. ``remembered`` holds the cases that
once failed: they are played first. docs/fuzzing.md tells what is drawn and how it is judged.
"""
