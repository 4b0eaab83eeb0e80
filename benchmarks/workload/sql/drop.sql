-- Away with what an earlier, perhaps unfinished, set-up left.
DROP TABLE IF EXISTS pgbench_history, pgbench_accounts, pgbench_tellers, pgbench_branches;
DROP SCHEMA IF EXISTS tpcc CASCADE;
