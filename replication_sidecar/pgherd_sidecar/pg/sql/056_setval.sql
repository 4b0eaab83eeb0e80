-- PostgreSQL's setval moves the sequence of one member only, and every dump ends with calls of pg_catalog.setval. So
-- ours stands in its place in this database: the same schema, name and arguments. PostgreSQL's own lives on in our
-- schema under another name, with the oid that it always had, and knows sequences that each member has for itself.
-- pgherd.give_back_setval() undoes that.

DO $$
DECLARE arguments text;
BEGIN
    FOREACH arguments IN ARRAY '{"regclass, int8", "regclass, int8, bool"}'::text[] LOOP
        -- 16384: what initdb has made lies below. A database that was restored from a dump has its own again.
        IF to_regprocedure(format('pg_catalog.setval(%s)', arguments))::oid < 16384 THEN
            EXECUTE format('DROP FUNCTION IF EXISTS pgherd.local_setval(%s)', arguments);
            EXECUTE format('ALTER FUNCTION pg_catalog.setval(%s) RENAME TO local_setval', arguments);
            EXECUTE format('ALTER FUNCTION pg_catalog.local_setval(%s) SET SCHEMA pgherd', arguments);
        END IF;
    END LOOP;
END $$;

-- Whose sequence a member has for itself: a temporary one, or that of a table that is local, or that it has alone. Others
-- are replicated.
CREATE OR REPLACE FUNCTION pgherd.is_local_sequence(rel oid) RETURNS bool
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT EXISTS (
        SELECT FROM pg_class c
          LEFT JOIN pg_depend o ON o.classid = 'pg_class'::regclass AND o.objid = c.oid
                               AND o.refclassid = 'pg_class'::regclass AND o.deptype IN ('a', 'i')
         WHERE c.oid = rel AND c.relkind = 'S'
           AND (c.relpersistence = 't' OR EXISTS (SELECT FROM pgherd.local_tables l WHERE l.relid = o.refobjid)
                OR EXISTS (SELECT FROM pgherd.strays t WHERE t.relid = o.refobjid)));
END;

-- As PostgreSQL's setval, for all members; each goes on with the next number of its own share.
-- A client that has set row_security off would be refused by the policies of the table of requests.
CREATE OR REPLACE FUNCTION pgherd.setval(sequence regclass, value int8, is_called bool DEFAULT true) RETURNS int8
LANGUAGE sql VOLATILE SET row_security = on BEGIN ATOMIC
    INSERT INTO pgherd.request (act, object, value, called) VALUES ('setval', sequence::oid::text, value, is_called);
    SELECT value;
END;

CREATE OR REPLACE FUNCTION pg_catalog.setval(regclass, int8, bool) RETURNS int8
LANGUAGE sql VOLATILE STRICT BEGIN ATOMIC
    SELECT pgherd.setval($1, $2, $3);
END;

CREATE OR REPLACE FUNCTION pg_catalog.setval(regclass, int8) RETURNS int8
LANGUAGE sql VOLATILE STRICT BEGIN ATOMIC
    SELECT pgherd.setval($1, $2, true);
END;

COMMENT ON FUNCTION pg_catalog.setval(regclass, int8, bool) IS 'set sequence value, on all members';
COMMENT ON FUNCTION pg_catalog.setval(regclass, int8) IS 'set sequence value, on all members';

-- Functions in standard SQL, defaults and views are bound to what they call: commands that make those once more, as they
-- are, which are bound to this function.
CREATE OR REPLACE FUNCTION pgherd.bound_to(called oid) RETURNS TABLE (class oid, object oid, command text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY
    SELECT d.classid, d.objid, CASE d.classid
               WHEN 'pg_proc'::regclass THEN pg_get_functiondef(d.objid)
               WHEN 'pg_attrdef'::regclass THEN (
                   SELECT format('ALTER TABLE ONLY %s ALTER COLUMN %I SET DEFAULT %s', a.attrelid::regclass, a.attname,
                                 pg_get_expr(e.adbin, e.adrelid))
                     FROM pg_attrdef e JOIN pg_attribute a ON a.attrelid = e.adrelid AND a.attnum = e.adnum
                    WHERE e.oid = d.objid)
               ELSE (
                   SELECT format('CREATE OR REPLACE VIEW %s%s AS %s', c.oid::regclass,
                                 ' WITH (' || array_to_string(c.reloptions, ', ') || ')', pg_get_viewdef(c.oid))
                     FROM pg_rewrite r JOIN pg_class c ON c.oid = r.ev_class WHERE r.oid = d.objid) END
      FROM (SELECT DISTINCT p.classid, p.objid FROM pg_depend p
             WHERE p.refclassid = 'pg_proc'::regclass AND p.refobjid = called AND p.deptype = 'n') d
     WHERE d.classid IN ('pg_proc'::regclass, 'pg_attrdef'::regclass)
        OR d.classid = 'pg_rewrite'::regclass
           AND EXISTS (SELECT FROM pg_rewrite r JOIN pg_class c ON c.oid = r.ev_class
                        WHERE r.oid = d.objid AND r.rulename = '_RETURN' AND c.relkind = 'v');
END $$;

-- The database as it was: for one that leaves replication, before the schema pgherd is dropped. Those that are bound to ours
-- are made once more.
CREATE OR REPLACE FUNCTION pgherd.give_back_setval() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET session_replication_role = replica AS $$
DECLARE
    given     text[] := array(SELECT a.arguments FROM unnest('{"regclass, int8", "regclass, int8, bool"}'::text[]) AS a(arguments)
                               WHERE to_regprocedure(format('pgherd.local_setval(%s)', a.arguments))::oid < 16384);
    bound     text[] := array(SELECT DISTINCT b.command FROM unnest(given) AS g(arguments)
                               CROSS JOIN LATERAL pgherd.bound_to(to_regprocedure(format('pg_catalog.setval(%s)', g.arguments))) b);
    arguments text;
    made      text;
BEGIN
    FOREACH arguments IN ARRAY given LOOP
        EXECUTE format('ALTER FUNCTION pg_catalog.setval(%s) SET SCHEMA pgherd_gen', arguments);
        EXECUTE format('ALTER FUNCTION pgherd.local_setval(%s) SET SCHEMA pg_catalog', arguments);
        EXECUTE format('ALTER FUNCTION pg_catalog.local_setval(%s) RENAME TO setval', arguments);
        EXECUTE format('GRANT EXECUTE ON FUNCTION pg_catalog.setval(%s) TO PUBLIC', arguments);
    END LOOP;
    FOREACH made IN ARRAY bound LOOP
        EXECUTE made;
    END LOOP;
    DROP FUNCTION IF EXISTS pgherd_gen.setval(regclass, int8), pgherd_gen.setval(regclass, int8, bool);
END $$;
