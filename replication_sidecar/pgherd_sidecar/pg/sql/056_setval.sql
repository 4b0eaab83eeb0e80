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

-- Whose sequence a member has for itself: a temporary one, or a local table's. Others are replicated.
CREATE OR REPLACE FUNCTION pgherd.is_local_sequence(rel oid) RETURNS bool
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT EXISTS (
        SELECT FROM pg_class c
          LEFT JOIN pg_depend o ON o.classid = 'pg_class'::regclass AND o.objid = c.oid
                               AND o.refclassid = 'pg_class'::regclass AND o.deptype IN ('a', 'i')
         WHERE c.oid = rel AND c.relkind = 'S'
           AND (c.relpersistence = 't' OR EXISTS (SELECT FROM pgherd.local_tables l WHERE l.relid = o.refobjid)));
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

-- The database as it was: for one that leaves replication, before the schema pgherd is dropped. Functions in standard
-- SQL are bound to what they call, so those that call ours are made once more, as they are.
CREATE OR REPLACE FUNCTION pgherd.give_back_setval() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET session_replication_role = replica AS $$
DECLARE
    arguments text;
    made      text;
    bound     text[];
BEGIN
    FOREACH arguments IN ARRAY '{"regclass, int8", "regclass, int8, bool"}'::text[] LOOP
        IF to_regprocedure(format('pgherd.local_setval(%s)', arguments))::oid < 16384 THEN
            bound := bound || array(
                SELECT pg_get_functiondef(d.objid) FROM pg_depend d
                 WHERE d.classid = 'pg_proc'::regclass AND d.refclassid = 'pg_proc'::regclass
                   AND d.refobjid = to_regprocedure(format('pg_catalog.setval(%s)', arguments)));
            EXECUTE format('ALTER FUNCTION pg_catalog.setval(%s) SET SCHEMA pgherd_gen', arguments);
            EXECUTE format('ALTER FUNCTION pgherd.local_setval(%s) SET SCHEMA pg_catalog', arguments);
            EXECUTE format('ALTER FUNCTION pg_catalog.local_setval(%s) RENAME TO setval', arguments);
            EXECUTE format('GRANT EXECUTE ON FUNCTION pg_catalog.setval(%s) TO PUBLIC', arguments);
        END IF;
    END LOOP;
    FOREACH made IN ARRAY coalesce(bound, '{}') LOOP
        EXECUTE made;
    END LOOP;
    DROP FUNCTION IF EXISTS pgherd_gen.setval(regclass, int8), pgherd_gen.setval(regclass, int8, bool);
END $$;
