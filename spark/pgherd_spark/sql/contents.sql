-- Materialized views and indexes. Each statement follows a line `-- name: NAME`; {...} are filled in by contents.py.

-- They are read only where the server can be told not to read a view in their place (from 15.8 and 16.4 on).
-- name: views
SELECT format('%I.%I', n.nspname, c.relname), c.relispopulated,
       (SELECT array_agg(a.attname::text ORDER BY a.attname COLLATE "C")
          FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
       n.nspname, c.relname, c.oid::int8, c.relfilenode::int8
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind = 'm' AND n.nspname NOT LIKE E'pg\\_%' AND n.nspname NOT IN ('information_schema', 'pgherd', 'pgherd_gen')
   AND EXISTS (SELECT FROM pg_settings s WHERE s.name = 'restrict_nonsystem_relation_kind')
 ORDER BY 1;

-- LOCK TABLE takes no materialized views. Reading no row takes the same lock.
-- name: claim
SELECT FROM {view} LIMIT 0;

-- name: contents
SELECT count(*), coalesce(sum(hashtextextended(t.whole, 0)), 0), coalesce(sum(hashtextextended(t.whole, 1)), 0)
  FROM (SELECT {row}::text AS whole FROM {view} t OFFSET 0) t;

-- Why the server can't compare materialized views, and indexes; NULL where it can, or has none.
-- name: limits
SELECT (SELECT 'PostgreSQL before 15.8 and 16.4 may read a view in the place of one' FROM pg_class c
          JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE c.relkind = 'm' AND n.nspname NOT LIKE E'pg\\_%' AND n.nspname NOT IN ('information_schema', 'pgherd', 'pgherd_gen')
           AND NOT EXISTS (SELECT FROM pg_settings s WHERE s.name = 'restrict_nonsystem_relation_kind') LIMIT 1),
       (SELECT 'its server has no amcheck' FROM pgherd.checkable_indexes
         WHERE has_function_privilege(to_regprocedure('pgherd.bt_index_check(regclass, bool)')::oid, 'EXECUTE') IS NOT TRUE
         LIMIT 1);

-- name: indexes
SELECT i.name FROM pgherd.checkable_indexes i ORDER BY i.name COLLATE "C";

-- A command may drop an index, or put another in its place, before it is checked.
-- name: index
SELECT i.relid::int8 FROM pgherd.checkable_indexes i WHERE i.name = {name};

-- name: check
SELECT pgherd.bt_index_check({index}::oid, true);
