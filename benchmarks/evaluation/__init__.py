"""The evaluation of Postgres-R(SI), section 6, made again: ``python -m benchmarks.evaluation``.

In comes a scale; out go ``evaluation.json``, plots and the generated sections of
``docs/evaluation.md``. ``plan`` says what is measured, ``systems`` starts and fills what it is
measured on, ``load`` and ``galera`` run one point, ``record`` keeps it; ``paper`` holds what the
paper prints, ``arithmetic`` what should come out, ``tables`` and ``curves`` show it all.

Like the other benchmarks it meets a herd as its users do, and imports nothing of the product.
"""
