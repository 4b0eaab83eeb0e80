-- What DDL may not do, judged by the catalog as the command leaves it and not by its words, so that no
-- spelling gets past. SQLSTATE 0A000 throughout: nothing is left silently local (CORRECTNESS C22, C23).

CREATE OR REPLACE FUNCTION pgherd.refuse(message text, hint text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION '%', message USING ERRCODE = '0A000', HINT = hint;
END $$;

-- Our triggers stay as they are, and no trigger or rule of the user fires while others' rows are applied.
CREATE OR REPLACE FUNCTION pgherd.check_triggers(rels oid[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE r record;
BEGIN
    FOR r IN SELECT t.tgname, t.tgrelid::regclass AS rel, t.tgenabled,
                    p.pronamespace IN ('pgherd'::regnamespace, 'pgherd_gen'::regnamespace) AS ours
               FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
              WHERE (rels IS NULL OR t.tgrelid = ANY (rels))
                AND t.tgrelid NOT IN ('pgherd.capture_0'::regclass, 'pgherd.capture_1'::regclass, 'pgherd.request'::regclass) LOOP
        IF r.ours AND (r.tgenabled <> 'O' OR r.tgname NOT LIKE 'pgherd\_%') THEN
            PERFORM pgherd.refuse(format('trigger %I of table %s belongs to replication', r.tgname, r.rel),
                'Disable your own triggers by name. To keep a table out of replication: SELECT pgherd.set_local(''table'').');
        ELSIF r.tgname LIKE 'pgherd\_%' AND NOT r.ours THEN
            PERFORM pgherd.refuse(format('trigger names that begin with "pgherd_" are reserved: %I', r.tgname), 'Give the trigger another name.');
        ELSIF r.tgenabled IN ('A', 'R') THEN
            PERFORM pgherd.refuse(format('trigger %I of table %s would fire again on every member', r.tgname, r.rel),
                'ENABLE TRIGGER without ALWAYS or REPLICA: it fires where the transaction runs, and what it writes is replicated.');
        END IF;
    END LOOP;
    FOR r IN SELECT w.rulename, w.ev_class::regclass AS rel FROM pg_rewrite w
              WHERE w.ev_enabled IN ('A', 'R') AND (rels IS NULL OR w.ev_class = ANY (rels)) LOOP
        PERFORM pgherd.refuse(format('rule %I of %s would act again on every member', r.rulename, r.rel), 'ENABLE RULE without ALWAYS or REPLICA.');
    END LOOP;
END $$;

-- What a table must not be, have or refer to.
CREATE OR REPLACE FUNCTION pgherd.check_tables(rels oid[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE r record;
BEGIN
    FOR r IN SELECT c.oid::regclass AS rel, c.relpersistence, c.reltablespace, c.relkind FROM pg_class c
              WHERE (c.oid = ANY (rels) OR c.oid IN (SELECT i.indexrelid FROM pg_index i WHERE i.indrelid = ANY (rels)))
                AND (c.reltablespace <> 0 OR c.relkind = 'f' OR c.relpersistence = 'u'
                     AND c.relkind IN ('r', 'p') AND c.oid IN (SELECT a.relid FROM pgherd.all_tables a)
                     AND NOT EXISTS (SELECT FROM pgherd.local_tables l WHERE l.relid = c.oid)) LOOP
        IF r.relpersistence = 'u' THEN
            PERFORM pgherd.refuse(format('table %s is unlogged and cannot be replicated', r.rel),
                'Make it an ordinary table, or mark it with pgherd.set_local() first and ALTER TABLE ... SET UNLOGGED then.');
        ELSIF r.relkind = 'f' THEN
            PERFORM pgherd.refuse('foreign tables are not supported', 'Keep them in another database of the server, which is local.');
        END IF;
        PERFORM pgherd.refuse(format('%s: tablespaces are not supported', r.rel), 'Members need not have the same tablespaces: leave it in the default one.');
    END LOOP;
    FOR r IN SELECT f.conname, f.conrelid::regclass AS child, f.confrelid::regclass AS parent FROM pg_constraint f
              WHERE f.contype = 'f' AND (f.conrelid = ANY (rels) OR f.confrelid = ANY (rels))
                AND EXISTS (SELECT FROM pgherd.local_tables l WHERE l.relid = f.conrelid)
                    <> EXISTS (SELECT FROM pgherd.local_tables l WHERE l.relid = f.confrelid) LOOP
        PERFORM pgherd.refuse(format('foreign key %I between %s and %s: one is local, the other replicated', r.conname, r.child, r.parent),
            'Members would not agree on which rows exist. Drop the foreign key, or mark both tables alike.');
    END LOOP;
    FOR r IN SELECT c.conname, coalesce(nullif(c.conrelid, 0)::regclass::text, c.contypid::regtype::text) AS owner FROM pg_constraint c
              WHERE c.contype = 'c' AND c.oid >= 16384 AND (c.conrelid = ANY (rels) OR c.contypid <> 0)
                AND NOT pgherd.same_everywhere(c.conbin) LOOP
        PERFORM pgherd.refuse(format('check constraint %I of %s may have another result on another member', r.conname, r.owner),
            'Use immutable functions only; a function of yours is VOLATILE unless declared otherwise.');
    END LOOP;
END $$;

-- A column that is new and whose values the command itself computed would have others on each member (C22).
CREATE OR REPLACE FUNCTION pgherd.check_new_columns(rels oid[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r      record;
    filled bool;
BEGIN
    FOR r IN SELECT a.attname, a.attrelid::regclass AS rel
               FROM pgherd.tables t
               JOIN pg_attribute a ON a.attrelid = t.relid AND a.attnum > t.columns AND a.atthasmissing AND NOT a.attisdropped
               JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
              WHERE t.relid = ANY (rels) AND NOT pgherd.same_everywhere(d.adbin) LOOP
        EXECUTE format('SELECT EXISTS (SELECT FROM ONLY %s)', r.rel) INTO filled;
        IF filled THEN
            PERFORM pgherd.refuse_computed(format('the default of column %I of table %s', r.attname, r.rel));
        END IF;
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION pgherd.refuse_computed(what text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgherd.refuse(what || ' would have other values on other members',
        'In three steps: ADD COLUMN without the default; UPDATE the rows, which is replicated; SET DEFAULT.');
END $$;

-- Materialized views are filled by each member for itself, at the same GID.
CREATE OR REPLACE FUNCTION pgherd.check_materialized_views(rels oid[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE r record;
BEGIN
    FOR r IN SELECT c.oid::regclass AS rel FROM pg_class c JOIN pg_rewrite w ON w.ev_class = c.oid
              WHERE c.relkind = 'm' AND c.oid = ANY (rels) AND NOT pgherd.same_everywhere(w.ev_action) LOOP
        PERFORM pgherd.refuse(format('materialized view %s may have other contents on other members', r.rel),
            'Its query calls a volatile function, or one that knows the time or the session.');
    END LOOP;
END $$;

-- Code that PostgreSQL runs whenever a row is written is run by the applier too, with all its rights and on
-- each member for itself. So it has to be PostgreSQL's own or a superuser's: what an ordinary user wrote could
-- take those rights over, write behind the back of capture, or have another result on another member.
CREATE OR REPLACE FUNCTION pgherd.check_user_code() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE r record;
BEGIN
    FOR r IN
        WITH code(class, id, name) AS (
            SELECT 'pg_proc'::regclass, p.oid, p.oid::regprocedure::text
              FROM pg_proc p JOIN pg_roles o ON o.oid = p.proowner WHERE NOT o.rolsuper
            UNION ALL
            SELECT 'pg_operator'::regclass, p.oid, p.oid::regoperator::text
              FROM pg_operator p JOIN pg_roles o ON o.oid = p.oprowner WHERE NOT o.rolsuper
        )
        SELECT c.name, pg_describe_object(d.classid, d.objid, d.objsubid) AS place
          FROM code c JOIN pg_depend d ON d.refclassid = c.class AND d.refobjid = c.id
         WHERE CASE d.classid
                   WHEN 'pg_constraint'::regclass THEN EXISTS (
                       SELECT FROM pg_constraint k
                        WHERE k.oid = d.objid AND (k.contypid <> 0 OR k.conrelid IN (SELECT u.relid FROM pgherd.user_tables u)))
                   WHEN 'pg_attrdef'::regclass THEN EXISTS (
                       SELECT FROM pg_attrdef f JOIN pg_attribute a ON a.attrelid = f.adrelid AND a.attnum = f.adnum
                        WHERE f.oid = d.objid AND a.attgenerated <> '' AND f.adrelid IN (SELECT u.relid FROM pgherd.user_tables u))
                   WHEN 'pg_class'::regclass THEN EXISTS (
                       SELECT FROM pgherd.user_tables u LEFT JOIN pg_index i ON i.indrelid = u.relid
                        WHERE d.objid IN (u.relid, i.indexrelid))
                   -- casts to and from text and row types are what records travel by
                   WHEN 'pg_cast'::regclass THEN true
                   WHEN 'pg_type'::regclass THEN EXISTS (SELECT FROM pg_range g WHERE d.objid IN (g.rngtypid, g.rngmultitypid))
                   ELSE false
               END
         ORDER BY 1, 2 LIMIT 1
    LOOP
        PERFORM pgherd.refuse(format('%s uses %s, which is not a superuser''s', r.place, r.name),
            'Every member runs this code for each row that it applies. Have a superuser own it (ALTER FUNCTION ... OWNER TO), or use built-in functions only.');
    END LOOP;
    -- A foreign key across types is certified under the parent's type: the cast must be PostgreSQL's.
    FOR r IN
        SELECT f.conname AS name, f.conrelid::regclass AS place
          FROM pg_constraint f
         CROSS JOIN LATERAL ROWS FROM (unnest(f.conkey), unnest(f.confkey)) AS k(child, parent)
          JOIN pg_attribute c ON c.attrelid = f.conrelid AND c.attnum = k.child
          JOIN pg_attribute p ON p.attrelid = f.confrelid AND p.attnum = k.parent
          JOIN pg_type ct ON ct.oid = pgherd.base_type(c.atttypid)
          JOIN pg_type pt ON pt.oid = pgherd.base_type(p.atttypid)
         WHERE f.contype = 'f' AND ct.oid <> pt.oid
           AND NOT (ct.typnamespace = 'pg_catalog'::regnamespace AND pt.typnamespace = 'pg_catalog'::regnamespace)
         LIMIT 1
    LOOP
        PERFORM pgherd.refuse(format('foreign key %I of %s compares a type of your own with another type', r.name, r.place),
            'Give both columns the same type.');
    END LOOP;
END $$;

-- Tables that exist here only, because EXPLAIN ANALYZE CREATE TABLE AS fires no event trigger.
CREATE OR REPLACE VIEW pgherd.strays AS
SELECT a.relid, a.name FROM pgherd.all_tables a WHERE NOT EXISTS (SELECT FROM pgherd.tables t WHERE t.relid = a.relid);

CREATE OR REPLACE FUNCTION pgherd.check_strays(made oid[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE stray text := (SELECT min(s.name) FROM pgherd.strays s WHERE NOT (s.relid = ANY (made)));
BEGIN
    IF stray IS NOT NULL THEN
        PERFORM pgherd.refuse(format('table %s exists on this node only: EXPLAIN ANALYZE made it', stray),
            format('First DROP TABLE %s, which stays local.', stray));
    END IF;
END $$;
