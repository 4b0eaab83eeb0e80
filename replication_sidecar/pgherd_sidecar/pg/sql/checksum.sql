-- What one node holds of its replicated tables and materialized views, computed inside PostgreSQL for `pgherd local
-- verify` and the scrub.
-- Each statement follows a line `-- name: NAME`; {...} are identifiers filled in by pg/comparison/checksum.py.
--
-- A row counts by its text: the record literal of the whole row under the settings below, hashed to
-- 64 bits twice with different seeds; a set of rows by the sums of the hashes, so that the order in
-- which they are read does not matter and no two equal rows cancel each other. ROW(...) is a
-- record, which no cast that somebody made turns into text. Its columns are those of the snapshot, by name: t.* would be
-- those of the present. They are named without their table, since t.to_json is a function where no column is called so,
-- which calls casts of the table's owner.

-- name: settings
SELECT set_config('DateStyle', 'ISO, YMD', true),
       set_config('IntervalStyle', 'postgres', true),
       set_config('TimeZone', 'UTC', true),
       set_config('extra_float_digits', '3', true),
       set_config('bytea_output', 'hex', true),
       set_config('lc_monetary', 'C', true),
       set_config('xmloption', 'content', true),
       set_config('search_path', 'pg_catalog', true),
       set_config('row_security', 'off', true);

-- Contents of materialized views are read only where the server can be told not to read a view in their place. Of one
-- that has not been populated there is nothing to read.
-- name: compared_tables
SELECT r.name, n.nspname, c.relname, c.relkind::text, c.relispopulated,
       (SELECT md5(coalesce(string_agg(
                   format('%%s %%s %%s', a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull),
                   E'\n' ORDER BY a.attnum), ''))
          FROM pg_attribute a
         WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) AS columns,
       (SELECT array_agg(a.attname::text ORDER BY a.attnum)
          FROM pg_attribute a
         WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) AS names,
       k.columns, k.types, k.sortable, c.oid, l.files, l.names
  FROM (SELECT t.relid, t.name FROM pgherd.replicated_tables t
         UNION ALL
        SELECT m.oid, format('%%I.%%I', s.nspname, m.relname)
          FROM pg_class m JOIN pg_namespace s ON s.oid = m.relnamespace
         WHERE m.relkind = 'm' AND s.nspname NOT LIKE E'pg\\_%%'
           AND s.nspname NOT IN ('information_schema', 'pgherd', 'pgherd_gen')
           AND EXISTS (SELECT FROM pg_settings o WHERE o.name = 'restrict_nonsystem_relation_kind')) r
  JOIN pg_class c ON c.oid = r.relid
  JOIN pg_namespace n ON n.oid = c.relnamespace
 -- Comparisons are found in pg_catalog only: those of types that extensions bring are not.
 CROSS JOIN LATERAL (
        SELECT array_agg(a.attname::text ORDER BY k.position) AS columns,
               array_agg(format_type(a.atttypid, a.atttypmod) ORDER BY k.position) AS types,
               coalesce(bool_and(b.typnamespace = 'pg_catalog'::regnamespace OR b.typtype = 'e'), false) AS sortable
          FROM pg_index i
         CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, position)
          JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum
          JOIN pg_type b ON b.oid = a.atttypid
         WHERE i.indrelid = c.oid AND i.indisprimary AND i.indisvalid
           AND k.position <= i.indnkeyatts) k
 CROSS JOIN LATERAL (
        WITH RECURSIVE part(relid) AS (
            SELECT c.oid UNION ALL SELECT i.inhrelid FROM part p JOIN pg_inherits i ON i.inhparent = p.relid
             WHERE c.relkind = 'p')
        SELECT coalesce(jsonb_object_agg(f.oid, f.relfilenode), '{}')::text AS files,
               coalesce(jsonb_object_agg(f.oid, format('%%I.%%I', fn.nspname, f.relname)), '{}')::text AS names
          FROM part p JOIN pg_class f ON f.oid = p.relid JOIN pg_namespace fn ON fn.oid = f.relnamespace
         WHERE f.relkind IN ('r', 'm')) l
 WHERE %(name)s::text IS NULL OR r.name = %(name)s
 ORDER BY r.name;

-- What there is from a name on, its size as far as the planner knows, and how many indexes it has.
-- name: extent
SELECT t.name, coalesce(sum(CASE WHEN c.reltuples < 0 THEN pg_relation_size(c.oid) / 100.0 ELSE c.reltuples END), 0)::float8,
       sum(i.count)::int
  FROM (SELECT r.relid, r.name FROM pgherd.replicated_tables r
         UNION ALL
        SELECT m.oid, format('%%I.%%I', s.nspname, m.relname)
          FROM pg_class m JOIN pg_namespace s ON s.oid = m.relnamespace
         WHERE m.relkind = 'm' AND s.nspname NOT LIKE E'pg\\_%%'
           AND s.nspname NOT IN ('information_schema', 'pgherd', 'pgherd_gen')
       ) t
 CROSS JOIN LATERAL (SELECT t.relid UNION SELECT p.relid FROM pg_partition_tree(t.relid) p) l
  JOIN pg_class c ON c.oid = l.relid AND c.relkind <> 'p'
 CROSS JOIN LATERAL (SELECT count(*) FROM pgherd.checkable_indexes i WHERE i.table_relid = c.oid) i
 WHERE t.name COLLATE "C" >= %(name)s
 GROUP BY t.name
 ORDER BY t.name COLLATE "C";

-- With what belongs to it, if it is partitioned.
-- name: lock
LOCK TABLE {table} IN ACCESS SHARE MODE;

-- LOCK TABLE takes no materialized views. Reading no row takes the same lock.
-- name: lock_view
SELECT FROM {table} LIMIT 0;

-- A name that stands for a view an instant later would run the code of its owner: none is read any more by this
-- transaction, on servers that know how (from 15.8 and 16.4 on), until the restriction is lifted for our own views.
-- name: restrict
SELECT set_config(name, %(kinds)s, true) FROM pg_settings WHERE name = 'restrict_nonsystem_relation_kind';

-- What the name stands for now, and which files hold its rows: both are looked up in the present catalog, not at the
-- snapshot. A table without partitions has no partition tree.
-- name: unchanged
SELECT coalesce(to_regclass(%(name)s) = %(oid)s::oid, false)
       AND %(files)s::jsonb = (
           SELECT coalesce(jsonb_object_agg(f.relid, f.file), '{}')
             FROM (SELECT t.relid::oid, pg_relation_filenode(t.relid) AS file
                     FROM pg_partition_tree(%(oid)s::oid) t
                    WHERE t.isleaf
                    UNION
                   SELECT %(oid)s::oid, pg_relation_filenode(%(oid)s::oid)) f
            WHERE f.file IS NOT NULL);

-- name: table
SELECT count(*), sum(hashtextextended({row}::text, 0)), sum(hashtextextended({row}::text, 1))
  FROM {table} t;

-- name: buckets
SELECT (hashtextextended(ROW({key})::text, 2) & 1023)::int,
       sum(hashtextextended({row}::text, 0)), sum(hashtextextended({row}::text, 1))
  FROM {table} t
 GROUP BY 1;

-- name: keys
SELECT ROW({key})::text, hashtextextended({row}::text, 0), hashtextextended({row}::text, 1), {leaf}
  FROM {table} t
 WHERE (hashtextextended(ROW({key})::text, 2) & 1023)::int = {bucket};

-- Of the scrub: ranges of the primary key. Their bounds compare columns with literals of their types: no cast that
-- somebody made, and no function, turns text into a value.

-- name: range
SELECT count(*), sum(hashtextextended({row}::text, 0)), sum(hashtextextended({row}::text, 1))
  FROM {table} t WHERE {bounds};

-- name: bound
SELECT {values} FROM (SELECT {key} FROM {table} t WHERE {bounds} ORDER BY {key} OFFSET {rows} LIMIT 1) t;

-- name: range_keys
SELECT {values}, hashtextextended({row}::text, 0), hashtextextended({row}::text, 1), {leaf}
  FROM {table} t WHERE {bounds};

-- name: indexes
SELECT i.name
  FROM pgherd.checkable_indexes i
 WHERE i.table_relid = to_regclass(%(table)s)
    OR i.table_relid IN (SELECT p.relid FROM pg_partition_tree(to_regclass(%(table)s)) p)
 ORDER BY i.name COLLATE "C";

-- name: all_indexes
SELECT i.name FROM pgherd.checkable_indexes i ORDER BY i.name COLLATE "C";

-- name: can_check_indexes
SELECT to_regprocedure('pgherd.bt_index_check(regclass, bool)') IS NOT NULL;

-- name: check_index
SELECT pgherd.bt_index_check(i.relid, true) FROM pgherd.checkable_indexes i WHERE i.name = %(name)s;
