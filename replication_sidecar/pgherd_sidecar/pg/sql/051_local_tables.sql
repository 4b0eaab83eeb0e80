-- Tables that the user keeps local: their structure is replicated, their rows are not.

-- Keeps the marks right after DDL: names, dropped tables, new partitions of a local table.
CREATE OR REPLACE FUNCTION pgherd.follow_local_tables() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM pgherd.local_tables) THEN
        RETURN;
    END IF;
    UPDATE pgherd.local_tables l SET relid = to_regclass(l.name) WHERE l.relid IS NULL;
    DELETE FROM pgherd.local_tables l WHERE NOT EXISTS (SELECT FROM pgherd.all_tables a WHERE a.relid = l.relid);
    UPDATE pgherd.local_tables l SET name = a.name
      FROM pgherd.all_tables a WHERE a.relid = l.relid AND a.name <> l.name;
    INSERT INTO pgherd.local_tables (name, relid)
    SELECT DISTINCT a.name, a.relid
      FROM pgherd.local_tables l
     CROSS JOIN LATERAL unnest(pgherd.tree_below(l.relid)) AS p(relid) JOIN pgherd.all_tables a ON a.relid = p.relid
     -- never one that has been replicated
     WHERE NOT EXISTS (SELECT FROM pgherd.generated g WHERE g.relid = a.relid)
        ON CONFLICT DO NOTHING;
END $$;

-- A table with its partitions and inheritance children.
CREATE OR REPLACE FUNCTION pgherd.tree_below(rel oid) RETURNS oid[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN (
        WITH RECURSIVE tree(relid) AS (
            SELECT rel UNION SELECT i.inhrelid FROM tree t JOIN pg_inherits i ON i.inhparent = t.relid
        )
        SELECT array_agg(t.relid) FROM tree t);
END $$;

-- A table is kept like those above it: who writes to a partitioned table or an inheritance parent writes to the tables
-- below it. A table that the command has made follows its parent.
CREATE OR REPLACE FUNCTION pgherd.check_marks(rels oid[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE r record;
BEGIN
    FOR r IN SELECT i.inhrelid::regclass AS child, i.inhparent::regclass AS parent, cl.relid IS NOT NULL AS child_is_local
               FROM (SELECT h.inhrelid, h.inhparent FROM pg_inherits h
                      WHERE h.inhrelid = ANY (rels) OR h.inhparent = ANY (rels) OFFSET 0) i
               JOIN pgherd.all_tables a ON a.relid = i.inhrelid
               JOIN pgherd.all_tables b ON b.relid = i.inhparent
               LEFT JOIN pgherd.local_tables cl ON cl.relid = i.inhrelid
               LEFT JOIN pgherd.local_tables pl ON pl.relid = i.inhparent
              WHERE (cl.relid IS NULL) <> (pl.relid IS NULL)
                AND (EXISTS (SELECT FROM pgherd.tables t WHERE t.relid = i.inhrelid)
                     -- a new one whose parents differ can follow none
                     OR EXISTS (SELECT FROM pg_inherits o
                                 WHERE o.inhrelid = i.inhrelid
                                   AND NOT EXISTS (SELECT FROM pgherd.local_tables l WHERE l.relid = o.inhparent))) LOOP
        PERFORM pgherd.refuse(
            format('of %s and its %s %s one is local, the other replicated', r.child,
                   CASE WHEN (SELECT c.relispartition FROM pg_class c WHERE c.oid = r.child) THEN 'partitioned table'
                        ELSE 'parent' END, r.parent),
            format('Mark both alike first: SELECT pgherd.%s(%L).',
                   CASE WHEN r.child_is_local THEN 'set_replicated' ELSE 'set_local' END, r.child));
    END LOOP;
END $$;

-- What would tell that a command has looked at the rows of local tables, which differ: constraints and indexes that
-- hold for all rows, columns that are not null, the kind of the table and its place in a partition tree. Tables that
-- this transaction has made are left out: they are empty on other members.
CREATE OR REPLACE FUNCTION pgherd.local_shapes() RETURNS jsonb
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    IF NOT EXISTS (SELECT FROM pgherd.local_tables) THEN
        RETURN NULL;
    END IF;
    RETURN (
        SELECT jsonb_object_agg(c.oid::text, jsonb_build_object(
                   'kind', c.relkind, 'columns', c.relnatts, 'partition', c.relispartition,
                   'not_null', (SELECT coalesce(jsonb_object_agg(a.attnum::text, true), '{}') FROM pg_attribute a
                                 WHERE a.attrelid = c.oid AND a.attnum > 0 AND a.attnotnull),
                   'constraints', (SELECT coalesce(jsonb_object_agg(k.oid::text, true), '{}') FROM pg_constraint k
                                    WHERE k.convalidated AND (k.conrelid = c.oid OR k.contypid <> 0)),
                   'indexes', (SELECT coalesce(jsonb_object_agg(i.indexrelid::text, true), '{}') FROM pg_index i
                                WHERE i.indrelid = c.oid),
                   'domains', (SELECT coalesce(jsonb_object_agg(t.oid::text, true), '{}') FROM pg_type t
                                WHERE t.typtype = 'd' AND t.typnotnull),
                   'children', (SELECT coalesce(jsonb_object_agg(h.inhrelid::text, true), '{}') FROM pg_inherits h
                                 WHERE h.inhparent = c.oid)))
          FROM pgherd.local_tables l JOIN pg_class c ON c.oid = l.relid
         WHERE NOT pgherd.is_made_here(c.oid));
END $$;

CREATE OR REPLACE FUNCTION pgherd.refuse_local(rel regclass, why text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgherd.refuse(format('table %s is local, and %s: that may fail for the rows of another member', rel, why),
        format('Make a new table with it, in one transaction with pgherd.set_local(); or, where no member needs its rows:'
               ' SELECT pgherd.set_replicated(%L).', rel));
END $$;

-- Is this an index that no row can violate or be too large for? Then it may be made on a local table.
CREATE OR REPLACE FUNCTION pgherd.takes_any_row(idx oid) RETURNS bool
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT NOT i.indisunique AND NOT i.indisexclusion AND i.indexprs IS NULL AND i.indpred IS NULL
       AND EXISTS (SELECT FROM pg_class c JOIN pg_am m ON m.oid = c.relam AND m.amname IN ('btree', 'hash', 'brin')
                    WHERE c.oid = idx)
       AND NOT EXISTS (SELECT FROM pg_attribute a JOIN pg_type t ON t.oid = pgherd.base_type(a.atttypid)
                        WHERE a.attrelid = idx AND (t.typlen < 0 OR t.oid >= 16384 AND t.typtype <> 'e'))
       AND NOT EXISTS (SELECT FROM unnest(i.indclass::oid[]) AS o(class) WHERE o.class >= 16384)
      FROM pg_index i WHERE i.indexrelid = idx;
END;

-- Commands that look at the rows of a local table work where it has no row that is in their way.
CREATE OR REPLACE FUNCTION pgherd.check_local_tables(before jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE r record;
BEGIN
    FOR r IN
        SELECT b.key::oid::regclass AS rel, w.why
          FROM jsonb_each(CASE jsonb_typeof(before) WHEN 'object' THEN before ELSE '{}' END) AS b
          JOIN pg_class c ON c.oid = b.key::oid
         CROSS JOIN LATERAL (
               SELECT 'it would become a view' AS why WHERE c.relkind::text <> b.value ->> 'kind'
               UNION ALL
               SELECT 'its rows would have to fit a partition' WHERE c.relispartition AND b.value ->> 'partition' = 'false'
               UNION ALL
               SELECT format('its column %I would have to be filled', a.attname) FROM pg_attribute a
                WHERE a.attrelid = c.oid AND a.attnum > 0 AND a.attnotnull AND NOT a.attisdropped
                  AND NOT b.value -> 'not_null' ? a.attnum::text
                  AND NOT (a.attnum > (b.value ->> 'columns')::int AND a.atthasmissing)
               UNION ALL
               SELECT format('%s would be checked', pg_describe_object('pg_constraint'::regclass, k.oid, 0))
                 FROM pg_constraint k
                WHERE k.convalidated AND k.contype NOT IN ('t', 'n') AND NOT b.value -> 'constraints' ? k.oid::text
                  AND (k.conrelid = c.oid OR k.contypid <> 0 AND c.oid = ANY (pgherd.tables_of_types(ARRAY[k.contypid])))
               UNION ALL
               SELECT format('index %s would be made', i.indexrelid::regclass) FROM pg_index i
                WHERE i.indrelid = c.oid AND NOT b.value -> 'indexes' ? i.indexrelid::text
                  AND NOT pgherd.takes_any_row(i.indexrelid)
               UNION ALL
               SELECT format('type %s would have to be filled', t.oid::regtype) FROM pg_type t
                WHERE t.typtype = 'd' AND t.typnotnull AND NOT b.value -> 'domains' ? t.oid::text
                  AND c.oid = ANY (pgherd.tables_of_types(ARRAY[t.oid]))
               UNION ALL -- the rows of the default partition must not belong to the new one
               SELECT format('rows of %s may belong to %s', p.partdefid::regclass, h.inhrelid::regclass)
                 FROM pg_partitioned_table p JOIN pg_inherits h ON h.inhparent = p.partrelid
                WHERE p.partrelid = c.oid AND p.partdefid <> 0 AND NOT b.value -> 'children' ? h.inhrelid::text
                  AND h.inhrelid <> p.partdefid AND NOT pgherd.is_made_here(p.partdefid)) w
    LOOP
        PERFORM pgherd.refuse_local(r.rel, r.why);
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION pgherd.mark_local(rel oid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET session_replication_role = replica AS $$
DECLARE tree oid[] := pgherd.tree_below(rel);
BEGIN
    PERFORM pgherd.release_sequence(s) FROM pgherd.user_sequences s WHERE s.owner = ANY (tree);
    INSERT INTO pgherd.local_tables (name, relid) SELECT a.name, a.relid FROM pgherd.all_tables a WHERE a.relid = ANY (tree)
        ON CONFLICT DO NOTHING;
END $$;

-- What the members hold of a local table has nothing in common: it begins empty everywhere.
CREATE OR REPLACE FUNCTION pgherd.mark_replicated(rel oid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET session_replication_role = replica AS $$
BEGIN
    EXECUTE format('DELETE FROM %s', rel::regclass);
    DELETE FROM pgherd.local_tables l WHERE l.relid = ANY (pgherd.tree_below(rel));
END $$;

-- May this role change how the table is kept, and does it make sense?
CREATE OR REPLACE FUNCTION pgherd.check_mark(role name, rel oid, act text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    c      pg_class;
    filled bool;
BEGIN
    SELECT * INTO c FROM pg_class p
     WHERE p.oid = rel AND p.relkind IN ('r', 'p') AND p.oid IN (SELECT t.relid FROM pgherd.tables t);
    IF c.oid IS NULL THEN
        RAISE EXCEPTION '% is not a table that could be replicated', rel::regclass USING ERRCODE = '42809';
    ELSIF NOT pg_has_role(role, c.relowner, 'USAGE') THEN
        RAISE EXCEPTION 'must be owner of table %', rel::regclass USING ERRCODE = '42501';
    ELSIF c.relispartition THEN
        PERFORM pgherd.refuse(format('%s is a partition', rel::regclass),
                              'Mark the partitioned table: its partitions follow.');
    ELSIF EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = rel) THEN
        PERFORM pgherd.refuse(format('%s inherits from another table', rel::regclass),
                              'Mark the table above it: those that inherit from it follow.');
    ELSIF act = 'set_replicated' THEN
        EXECUTE format('SELECT EXISTS (SELECT FROM %s)', rel::regclass) INTO filled;
        IF filled THEN
            PERFORM pgherd.refuse(format('table %s is not empty', rel::regclass),
                                  'A table begins empty when it becomes replicated, also on the other members:'
                                  ' save its rows elsewhere first.');
        END IF;
    END IF;
END $$;
