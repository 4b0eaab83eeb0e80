-- What one node holds of its replicated tables, computed inside PostgreSQL for `pgherd local verify`.
-- Each statement follows a line `-- name: NAME`; {...} are identifiers filled in by pg/checksum.py.
--
-- A row counts by its text: the record literal of the whole row under the settings below, hashed to
-- 64 bits twice with different seeds; a set of rows by the sums of the hashes, so that the order in
-- which they are read does not matter and no two equal rows cancel each other. ROW(t.*) is the row even
-- where a column is called t, and a record, which no cast that somebody made turns into text.

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

-- name: replicated_tables
SELECT r.name, n.nspname, c.relname, c.relkind = 'p',
       (SELECT md5(coalesce(string_agg(
                   format('%s %s %s', a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull),
                   E'\n' ORDER BY a.attnum), ''))
          FROM pg_attribute a
         WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) AS columns,
       (SELECT array_agg(a.attname::text ORDER BY k.position)
          FROM pg_index i
         CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, position)
          JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum
         WHERE i.indrelid = c.oid AND i.indisprimary
           AND k.position <= i.indnkeyatts) AS key,
       c.oid,
       (WITH RECURSIVE part(relid) AS (
            SELECT c.oid UNION ALL SELECT i.inhrelid FROM part p JOIN pg_inherits i ON i.inhparent = p.relid
             WHERE c.relkind = 'p')
        SELECT coalesce(jsonb_object_agg(f.oid, f.relfilenode), '{}')::text
          FROM part p JOIN pg_class f ON f.oid = p.relid WHERE f.relkind = 'r') AS files
  FROM pgherd.replicated_tables r
  JOIN pg_class c ON c.oid = r.relid
  JOIN pg_namespace n ON n.oid = c.relnamespace
 ORDER BY r.name;

-- With what belongs to it, if it is partitioned.
-- name: lock
LOCK TABLE {table} IN ACCESS SHARE MODE;

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
SELECT count(*), sum(hashtextextended(ROW(t.*)::text, 0)), sum(hashtextextended(ROW(t.*)::text, 1))
  FROM {table} t;

-- name: buckets
SELECT (hashtextextended(ROW({key})::text, 2) & 1023)::int AS bucket,
       sum(hashtextextended(ROW(t.*)::text, 0)), sum(hashtextextended(ROW(t.*)::text, 1))
  FROM {table} t
 GROUP BY bucket;

-- name: keys
SELECT ROW({key})::text, hashtextextended(ROW(t.*)::text, 0), hashtextextended(ROW(t.*)::text, 1)
  FROM {table} t
 WHERE (hashtextextended(ROW({key})::text, 2) & 1023)::int = %(bucket)s;
