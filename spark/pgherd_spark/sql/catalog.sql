-- The replicated tables as they were at the marker. Each statement follows a line `-- name: NAME`.

-- Columns by name and in the order of their names: two members may have them at other places. `form`: in which COPY writes
-- all rows and reads them again. Of some types that extensions bring, and of what is made of them, the server knows no
-- binary form.
-- name: tables
SELECT r.name,
       (SELECT array_agg(a.attname::text ORDER BY a.attname COLLATE "C")
          FROM pg_attribute a WHERE a.attrelid = r.relid AND a.attnum > 0 AND NOT a.attisdropped) AS columns,
       (SELECT array_agg(format_type(a.atttypid, a.atttypmod) ORDER BY a.attname COLLATE "C")
          FROM pg_attribute a WHERE a.attrelid = r.relid AND a.attnum > 0 AND NOT a.attisdropped) AS types,
       (SELECT array_agg(a.attname::text ORDER BY k.position)
          FROM pg_index i
         CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, position)
          JOIN pg_attribute a ON a.attrelid = r.relid AND a.attnum = k.attnum
         WHERE i.indrelid = r.relid AND i.indisprimary AND i.indisvalid AND k.position <= i.indnkeyatts) AS key,
       (SELECT array_agg(a.attname::text ORDER BY a.attname COLLATE "C")
          FROM pg_attribute a
         WHERE a.attrelid = r.relid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '') AS stored,
       CASE WHEN EXISTS (
           SELECT FROM pg_attribute a CROSS JOIN LATERAL pgherd.parts_of_type(a.atttypid) t
            WHERE a.attrelid = r.relid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
              AND (t.typsend::oid = 0 OR t.typreceive::oid = 0))
       THEN 'text' ELSE 'binary' END AS form
  FROM pgherd.replicated_tables r
 ORDER BY r.name;

-- Which columns the names stood for: a column that is dropped and made again has another number.
-- name: columns
SELECT r.name, array_agg(a.attname || ' ' || a.attnum ORDER BY a.attnum)
  FROM pgherd.replicated_tables r JOIN pg_attribute a ON a.attrelid = r.relid
 WHERE a.attnum > 0 AND NOT a.attisdropped
 GROUP BY r.name;

-- What the values of the users' types in the tables are made of. A part that is copied later has labels and columns as they
-- are by then.
-- name: types
SELECT t.oid::int8, v.what, format('%I.%I', n.nspname, t.typname)
  FROM (SELECT DISTINCT p.oid
          FROM pgherd.replicated_tables r JOIN pg_attribute a ON a.attrelid = r.relid
         CROSS JOIN LATERAL pgherd.parts_of_type(a.atttypid) p
         WHERE a.attnum > 0 AND NOT a.attisdropped) p
  JOIN pg_type t ON t.oid = p.oid JOIN pg_namespace n ON n.oid = t.typnamespace
 CROSS JOIN LATERAL (
       SELECT format('label %s %s', e.oid, e.enumlabel) FROM pg_enum e WHERE e.enumtypid = t.oid
        UNION ALL
       SELECT 'columns ' || (SELECT string_agg(concat_ws(' ', a.attnum, a.atttypid), ',' ORDER BY a.attnum)
                               FROM pg_attribute a WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped)
        WHERE t.typtype = 'c') v(what);

-- The tables and partitions that hold their rows.
-- name: relations
WITH RECURSIVE part(root, relid) AS (
    SELECT r.name, r.relid FROM pgherd.replicated_tables r
     UNION ALL
    SELECT p.root, i.inhrelid
      FROM part p JOIN pg_class c ON c.oid = p.relid AND c.relkind = 'p' JOIN pg_inherits i ON i.inhparent = p.relid)
SELECT p.root, n.nspname, c.relname, c.oid::int8, c.relfilenode::int8,
       coalesce(pg_relation_size(c.oid), 0) / current_setting('block_size')::int8, current_setting('block_size')::int
  FROM part p JOIN pg_class c ON c.oid = p.relid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind = 'r'
 ORDER BY p.root, n.nspname, c.relname;

-- Tables whose rows are not replicated, so that each member has its own.
-- name: not_replicated
SELECT format('%I.%I', n.nspname, c.relname)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'm', 'f') AND NOT c.relispartition AND c.relpersistence <> 't'
   AND n.nspname NOT LIKE E'pg\\_%' AND n.nspname NOT IN ('information_schema', 'pgherd', 'pgherd_gen')
   AND NOT EXISTS (SELECT FROM pgherd.replicated_tables r WHERE r.relid = c.oid)
 ORDER BY 1;

-- name: server
SELECT current_setting('server_version_num')::int, (SELECT system_identifier::text FROM pg_control_system()),
       getdatabaseencoding(), d.datcollate, d.datctype, version()
  FROM pg_database d WHERE d.datname = current_database();
