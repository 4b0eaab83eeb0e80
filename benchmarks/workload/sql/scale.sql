-- How much of each table whose size never changes is there: tells a finished set-up.
SELECT (SELECT count(*) FROM pgbench_branches),
       (SELECT count(*) FROM pgbench_accounts),
       (SELECT count(*) FROM tpcc.warehouse),
       (SELECT count(*) FROM tpcc.customer),
       (SELECT count(*) FROM tpcc.stock),
       (SELECT count(*) FROM pg_proc WHERE pronamespace = 'tpcc'::regnamespace);
