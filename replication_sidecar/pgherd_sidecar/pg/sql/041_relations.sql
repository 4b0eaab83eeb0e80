-- What a DDL command means for the replicated tables: which of them it concerns, and so which
-- certification keys it takes and for which tables the capture functions are made anew.

-- Permanent tables and materialized views, replicated or not.
CREATE OR REPLACE VIEW pgherd.all_tables AS
SELECT c.oid AS relid, format('%I.%I', n.nspname, c.relname) AS name, c.relnatts AS columns,
       (SELECT format('%I.%I', rn.nspname, r.relname)
          FROM pg_class r JOIN pg_namespace rn ON rn.oid = r.relnamespace
         WHERE r.oid = coalesce(pg_partition_root(c.oid), c.oid)) AS root_name
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p', 'm') AND c.relpersistence <> 't'
   AND n.nspname NOT LIKE E'pg\\_%' AND n.nspname NOT IN ('information_schema', 'pgherd', 'pgherd_gen');

-- The tables as the event triggers have last seen them. `names`: the table's and its partition root's, whose
-- hashes writers hold as certification keys; after ALTER TABLE ... RENAME the old ones still count for
-- transactions that wrote before. Attribute numbers above `columns` belong to columns that are new.
-- A table that was made behind the event triggers' back (EXPLAIN ANALYZE CREATE TABLE AS, replica role) is missing here, and
-- is not replicated.
--   made_by   the transaction here that made the table, as long as that may be the running one
--   identity  the name of the index by which its rows were known; `replica_identity`: of the one that the user chose for
--             subscribers. Where one is dropped, PostgreSQL does not say of which table.
DO $$
BEGIN
    IF to_regclass('pgherd.tables') IS NULL THEN
        CREATE TABLE pgherd.tables (
            relid oid PRIMARY KEY, names text[] NOT NULL, columns int2 NOT NULL, made_by xid8, identity text, replica_identity text);
        INSERT INTO pgherd.tables SELECT a.relid, ARRAY[a.name, a.root_name], a.columns FROM pgherd.all_tables a;
    END IF;
END $$;
CREATE INDEX IF NOT EXISTS tables_identity ON pgherd.tables (identity);
CREATE INDEX IF NOT EXISTS tables_replica_identity ON pgherd.tables (replica_identity);

-- Those under whose names rows travel.
CREATE OR REPLACE VIEW pgherd.replicated_tables AS
SELECT t.relid, t.name
  FROM pgherd.user_tables t
 WHERE t.relid = t.root_relid AND EXISTS (SELECT FROM pgherd.tables k WHERE k.relid = t.relid);

CREATE OR REPLACE FUNCTION pgherd.identity_name(rel oid) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN (
        SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE c.oid = pgherd.identity_index(rel));
END $$;

CREATE OR REPLACE FUNCTION pgherd.replica_identity_name(rel oid) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN (
        SELECT format('%I.%I', n.nspname, c.relname)
          FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE i.indrelid = rel AND i.indisreplident);
END $$;

UPDATE pgherd.tables t SET identity = pgherd.identity_name(t.relid), replica_identity = pgherd.replica_identity_name(t.relid)
 WHERE (t.identity, t.replica_identity)
       IS DISTINCT FROM (pgherd.identity_name(t.relid), pgherd.replica_identity_name(t.relid));

-- Did the running command or its transaction make this table? Then no other member holds rows of it yet.
CREATE OR REPLACE FUNCTION pgherd.is_made_here(rel oid) RETURNS bool
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN (
        SELECT coalesce((SELECT coalesce(t.made_by = pg_current_xact_id(), false) FROM pgherd.tables t WHERE t.relid = rel), true));
END $$;

-- The table that an object belongs to, or the relation itself; NULL for objects of other kinds.
CREATE OR REPLACE FUNCTION pgherd.relation_of(class oid, obj oid) RETURNS oid
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN (
        SELECT CASE class
            WHEN 'pg_class'::regclass THEN coalesce((SELECT i.indrelid FROM pg_index i WHERE i.indexrelid = obj), obj)
            WHEN 'pg_trigger'::regclass THEN (SELECT t.tgrelid FROM pg_trigger t WHERE t.oid = obj)
            WHEN 'pg_rewrite'::regclass THEN (SELECT r.ev_class FROM pg_rewrite r WHERE r.oid = obj)
            WHEN 'pg_policy'::regclass THEN (SELECT p.polrelid FROM pg_policy p WHERE p.oid = obj)
            WHEN 'pg_constraint'::regclass THEN (SELECT nullif(c.conrelid, 0) FROM pg_constraint c WHERE c.oid = obj)
            WHEN 'pg_attrdef'::regclass THEN (SELECT d.adrelid FROM pg_attrdef d WHERE d.oid = obj)
            WHEN 'pg_statistic_ext'::regclass THEN (SELECT s.stxrelid FROM pg_statistic_ext s WHERE s.oid = obj)
        END);
END $$;

-- Relations with all others of their partition and inheritance trees. Each is looked for by an index, though a session may have
-- planned this when the database had no partitions yet.
CREATE OR REPLACE FUNCTION pgherd.trees_of(rels oid[]) RETURNS oid[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
#variable_conflict use_column
BEGIN
    RETURN (
        WITH RECURSIVE tree(relid) AS (
            SELECT u.r FROM unnest(rels) AS u(r)
            UNION
            SELECT n.relid
              FROM tree t CROSS JOIN LATERAL (
                   SELECT i.inhparent AS relid FROM pg_inherits i WHERE i.inhrelid = t.relid
                   UNION ALL SELECT i.inhrelid FROM pg_inherits i WHERE i.inhparent = t.relid) n
        )
        SELECT coalesce(array_agg(t.relid), '{}') FROM tree t);
END $$;

-- The tables and materialized views that hold values of some types, through any number of others: arrays, domains,
-- ranges, composite types, row types of tables and views; and tables that are made OF one of them.
CREATE OR REPLACE FUNCTION pgherd.tables_of_types(types oid[]) RETURNS oid[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN (
        WITH RECURSIVE used(typ) AS (
            SELECT u.t FROM unnest(types) AS u(t)
            UNION
            SELECT CASE WHEN d.classid = 'pg_type'::regclass THEN d.objid ELSE c.reltype END
              FROM used u
              JOIN pg_depend d ON d.refclassid = 'pg_type'::regclass AND d.refobjid = u.typ
                              AND d.classid IN ('pg_type'::regclass, 'pg_class'::regclass)
              LEFT JOIN pg_class c ON d.classid = 'pg_class'::regclass AND c.oid = d.objid
             WHERE c.oid IS NULL OR c.reltype <> 0
        )
        SELECT coalesce(array_agg(DISTINCT c.oid), '{}')
          FROM used u JOIN pg_type t ON t.oid = u.typ JOIN pg_class c ON c.oid = t.typrelid
         WHERE c.relkind IN ('r', 'p', 'm'));
END $$;

-- The same for the row types of relations: who changes one changes the values that these hold (C16).
CREATE OR REPLACE FUNCTION pgherd.holders_of_rows(rels oid[]) RETURNS oid[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN pgherd.tables_of_types(array(SELECT c.reltype FROM pg_class c WHERE c.oid = ANY (rels) AND c.reltype <> 0));
END $$;

-- Relations, and the tables that a foreign key ties to one of them.
CREATE OR REPLACE FUNCTION pgherd.with_tied(rels oid[]) RETURNS oid[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN array(
        SELECT unnest(rels)
        UNION
        SELECT u.r
          FROM pg_constraint f CROSS JOIN LATERAL (VALUES (f.conrelid), (f.confrelid)) AS u(r)
         WHERE f.contype = 'f' AND (f.conrelid = ANY (rels) OR f.confrelid = ANY (rels)));
END $$;

-- With each relation go the table that owns it (a sequence), the tables of its inheritance or partition
-- tree, then those that a foreign key ties to one of them: their triggers know each other's columns. A foreign key may
-- refer to one partition, whose rows the root's functions capture, so these are there with their trees, too.
CREATE OR REPLACE FUNCTION pgherd.with_relatives(rels oid[]) RETURNS oid[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN (
        SELECT coalesce(array_agg(u.r ORDER BY u.r), '{}')
          FROM unnest(pgherd.trees_of(pgherd.with_tied(pgherd.trees_of(rels || array(
                   SELECT d.refobjid FROM pg_depend d
                    WHERE d.classid = 'pg_class'::regclass AND d.objid = ANY (rels)
                      AND d.refclassid = 'pg_class'::regclass AND d.deptype IN ('a', 'i')))))) AS u(r));
END $$;

-- A new partition with nothing of its own (an index, a foreign key) leaves all other partitions as they are. Only the tables
-- above it go with it then, and those that foreign keys tie to them, which it locks: there may be hundreds of others.
CREATE OR REPLACE FUNCTION pgherd.is_mere_partition(rel oid) RETURNS bool
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN EXISTS (SELECT FROM pg_class c WHERE c.oid = rel AND c.relispartition AND c.relkind IN ('r', 'p'))
           AND NOT EXISTS (SELECT FROM pg_index i
                            WHERE i.indrelid = rel AND NOT EXISTS (SELECT FROM pg_inherits h WHERE h.inhrelid = i.indexrelid))
           AND NOT EXISTS (SELECT FROM pg_constraint f
                            WHERE f.conrelid = rel AND f.contype = 'f' AND f.conparentid = 0);
END $$;

CREATE OR REPLACE FUNCTION pgherd.with_tables_above(rels oid[]) RETURNS oid[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (
        WITH RECURSIVE above(relid) AS (
            SELECT u.r FROM unnest(rels) AS u(r)
            UNION
            SELECT h.inhparent FROM above a JOIN pg_inherits h ON h.inhrelid = a.relid
        )
        SELECT pgherd.with_tied(array_agg(a.relid)) FROM above a);
END $$;

-- What was a partition when the event triggers saw it last, and is none any more: PostgreSQL reports the table that
-- it was detached from only.
CREATE OR REPLACE FUNCTION pgherd.former_partitions() RETURNS oid[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN array(SELECT t.relid FROM pgherd.tables t JOIN pg_class c ON c.oid = t.relid
                  WHERE t.names[1] <> t.names[2] AND NOT c.relispartition);
END $$;

-- Certification keys of tables, exclusively (C16): under the names that writers have used so far, and
-- under those they will use from now on.
CREATE OR REPLACE FUNCTION pgherd.table_keys(rels oid[]) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN (
        SELECT coalesce(string_agg(DISTINCT (pgherd.name_hash('table ' || k.name) | 3)::text, ','), '')
          FROM (SELECT unnest(t.names) AS name FROM pgherd.tables t WHERE t.relid = ANY (rels)
                UNION SELECT unnest(ARRAY[a.name, a.root_name]) FROM pgherd.all_tables a WHERE a.relid = ANY (rels)) k);
END $$;
