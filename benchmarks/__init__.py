"""Demo workload and benchmarks: a herd as its users meet it, through SQL and the command line.

* ``python -m benchmarks.demo``: a herd of three under a mixed TPC-B and TPC-C-like load.
* ``python -m benchmarks.compare``: pgherd beside plain PostgreSQL, quorum streaming and Galera.
* ``python -m benchmarks.latency``: one client's commit latency, pgherd beside plain PostgreSQL.
* ``python -m benchmarks.evaluation``: the experiments of Postgres-R(SI) and growth.

Nothing here imports the product: a benchmark that knew its insides could not compare it fairly.
"""
