-- What puts a snapshot into a new server, besides pg_restore. Each statement follows a line `-- name: NAME`.

-- name: copy
COPY {relation} ({columns}) FROM STDIN (FORMAT binary);

-- As its user made it: each member takes its own share of the numbers when it begins, further than all before.
-- name: sequence
ALTER SEQUENCE {name} INCREMENT BY {step} START WITH {start};

-- name: position
SELECT setval({name}::regclass, {value}, {called});

-- By oid: a view comes after what it reads from.
-- name: materialized_views
SELECT n.nspname, c.relname
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind = 'm' AND NOT c.relispopulated
 ORDER BY c.oid;

-- name: refresh
REFRESH MATERIALIZED VIEW {view};

-- name: blocks
SELECT (pg_relation_size(format('%%I.%%I', %s::text, %s::text)::regclass)
        / current_setting('block_size')::int)::int;

-- The largest first. A partitioned table's statistics are made together with its partitions'.
-- name: to_analyze
SELECT n.nspname, c.relname
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'm', 'p') AND NOT c.relispartition
 ORDER BY pg_table_size(c.oid) DESC;

-- name: analyze
ANALYZE {tables};
