-- Indexes against their heap, by contrib's amcheck.

-- The library's function under a name of ours, where the library is installed. CREATE EXTENSION would take the name from
-- the user, whose own CREATE EXTENSION amcheck would then fail on some members and not on others. It takes ACCESS SHARE
-- locks only. Code of indexed expressions runs as the table's owner.
DO $$
BEGIN
    CREATE OR REPLACE FUNCTION pgherd.bt_index_check(index regclass, heapallindexed bool) RETURNS void
        LANGUAGE c STRICT PARALLEL RESTRICTED AS '$libdir/amcheck', 'bt_index_check';
EXCEPTION WHEN undefined_file THEN
    RAISE DEBUG 'amcheck is not installed';
END $$;

-- The B-trees of replicated tables, of their partitions, and of materialized views.
CREATE OR REPLACE VIEW pgherd.checkable_indexes AS
SELECT i.indexrelid AS relid, format('%I.%I', n.nspname, c.relname) AS name, i.indrelid AS table_relid
  FROM pg_index i
  JOIN pg_class c ON c.oid = i.indexrelid
  JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_am a ON a.oid = c.relam
  JOIN pgherd.all_tables t ON t.relid = i.indrelid
 WHERE c.relkind = 'i' AND a.amname = 'btree' AND i.indisvalid AND i.indisready AND i.indislive;
