-- The way out: a database that leaves replication has nothing of ours in it afterwards, and its sequences are as their
-- users made them. `pgherd export plain` calls this; a superuser may do so by himself, once the sidecar does not run.

-- Where this member stands with each interleaved sequence: {"schema.name": [last_value, is_called]}.
CREATE OR REPLACE FUNCTION pgherd.sequence_standings() RETURNS jsonb
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found jsonb := '{}';
    k     record;
    at    jsonb;
BEGIN
    FOR k IN SELECT s.relid::regclass AS rel, n.nspname, c.relname
               FROM pgherd.sequences s JOIN pg_class c ON c.oid = s.relid JOIN pg_namespace n ON n.oid = c.relnamespace LOOP
        EXECUTE format('SELECT jsonb_build_array(q.last_value, q.is_called) FROM %s q', k.rel) INTO at;
        found := found || jsonb_build_object(format('%I.%I', k.nspname, k.relname), at);
    END LOOP;
    RETURN found;
END $$;

-- Each interleaved sequence as a plain server has it: the user's INCREMENT and START, and a value that is past every
-- number that was given out by this member, by `others` (what sequence_standings() says there), or that the column
-- holds which owns the sequence. A member whose sequence is not called may have used all of its share before it: a
-- crash moves sequences on in this way.
CREATE OR REPLACE FUNCTION pgherd.plain_sequences(others jsonb DEFAULT '[]')
RETURNS TABLE (relid oid, schema name, name name, step int8, start int8, value int8, called bool)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET row_security = off AS $$
DECLARE
    s    pgherd.user_sequences;
    all_ jsonb := jsonb_build_array(pgherd.sequence_standings()) || others;
    lap  numeric;  -- from the first share of a lap to the last
    way  int;      -- 1, or -1 of a descending sequence: everything is compared in its direction
    next numeric;
    used bool;
BEGIN
    FOR s IN SELECT u.* FROM pgherd.user_sequences u JOIN pgherd.sequences k ON k.relid = u.relid ORDER BY u.relid LOOP
        SELECT k.relid, n.nspname, c.relname, k.step, k.start INTO relid, schema, name, step, start
          FROM pgherd.sequences k JOIN pg_class c ON c.oid = k.relid JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE k.relid = s.relid;
        lap := step::numeric * ((SELECT d.slots FROM pgherd.node d) - 1);
        way := sign(step::numeric);
        SELECT bool_or((m.at ->> 1)::bool),
               way * greatest(max(way * ((m.at ->> 0)::numeric + CASE WHEN (m.at ->> 1)::bool THEN step ELSE -lap END)),
                              CASE WHEN NOT bool_or((m.at ->> 1)::bool) THEN min(way * (m.at ->> 0)::numeric) END,
                              way * (pgherd.last_in_column(s, step, false)::numeric + step))
          INTO used, next
          FROM (SELECT o.standing -> format('%I.%I', schema, name) AS at FROM jsonb_array_elements(all_) AS o(standing)) m
         WHERE m.at IS NOT NULL;
        called := used OR next <> start;
        value := CASE WHEN NOT called THEN start
                      WHEN next - step > s.seqmax THEN s.seqmax
                      WHEN next - step < s.seqmin THEN s.seqmin
                      ELSE next - step END;
        IF called AND next - step NOT BETWEEN s.seqmin AND s.seqmax AND next BETWEEN s.seqmin AND s.seqmax THEN
            called := false; -- the number before it does not exist
            value := next;
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;

-- Functions that are ours: in our schemas, and what stands in for PostgreSQL's setval. (No view: who may write all
-- tables could write pg_proc through one.)
CREATE OR REPLACE FUNCTION pgherd.own_functions() RETURNS SETOF oid
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT p.oid FROM pg_proc p
     WHERE p.pronamespace IN ('pgherd'::regnamespace, 'pgherd_gen'::regnamespace)
        OR p.pronamespace = 'pg_catalog'::regnamespace AND p.proname = 'setval' AND p.oid >= 16384;
END;

-- Objects of the users that would go with ours: they depend on it, in PostgreSQL's own book. Functions in standard SQL, defaults and
-- views that call setval are no obstacle, since give_back_setval() has them call PostgreSQL's own.
CREATE OR REPLACE FUNCTION pgherd.leaving_obstacles() RETURNS text[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH own_tables AS (
        SELECT c.oid FROM pg_class c WHERE c.relnamespace IN ('pgherd'::regnamespace, 'pgherd_gen'::regnamespace)
    ), own AS (
        SELECT 'pg_proc'::regclass AS class, p.oid FROM pgherd.own_functions() AS p(oid)
        UNION ALL SELECT 'pg_class'::regclass, t.oid FROM own_tables t
        UNION ALL SELECT 'pg_type'::regclass, y.oid FROM pg_type y
                   WHERE y.typnamespace IN ('pgherd'::regnamespace, 'pgherd_gen'::regnamespace)
        UNION ALL SELECT 'pg_namespace'::regclass, n.oid FROM pg_namespace n WHERE n.nspname IN ('pgherd', 'pgherd_gen')
        UNION ALL SELECT 'pg_extension'::regclass, e.oid FROM pg_extension e WHERE e.extnamespace = 'pgherd'::regnamespace
        UNION ALL SELECT 'pg_trigger'::regclass, t.oid FROM pg_trigger t
                   WHERE t.tgrelid IN (SELECT o.oid FROM own_tables o)
                      OR t.tgfoid IN (SELECT f.oid FROM pgherd.own_functions() AS f(oid))
        UNION ALL SELECT 'pg_event_trigger'::regclass, e.oid FROM pg_event_trigger e
                   WHERE e.evtfoid IN (SELECT f.oid FROM pgherd.own_functions() AS f(oid))
        UNION ALL SELECT 'pg_rewrite'::regclass, r.oid FROM pg_rewrite r WHERE r.ev_class IN (SELECT o.oid FROM own_tables o)
        UNION ALL SELECT 'pg_attrdef'::regclass, a.oid FROM pg_attrdef a WHERE a.adrelid IN (SELECT o.oid FROM own_tables o)
        UNION ALL SELECT 'pg_policy'::regclass, l.oid FROM pg_policy l WHERE l.polrelid IN (SELECT o.oid FROM own_tables o)
        UNION ALL SELECT 'pg_constraint'::regclass, k.oid FROM pg_constraint k
                   WHERE k.conrelid IN (SELECT o.oid FROM own_tables o)
        UNION ALL SELECT m.classid::regclass, m.objid FROM pg_depend m
                   WHERE m.deptype = 'e' AND m.refclassid = 'pg_extension'::regclass
                     AND m.refobjid IN (SELECT e.oid FROM pg_extension e WHERE e.extnamespace = 'pgherd'::regnamespace)
    )
    SELECT array_agg(DISTINCT format('%s uses %s', pg_describe_object(d.classid, d.objid, 0),
                                     pg_describe_object(d.refclassid, d.refobjid, 0)))
      FROM pg_depend d JOIN own r ON r.class = d.refclassid AND r.oid = d.refobjid
     WHERE d.deptype NOT IN ('e', 'i')
       AND NOT EXISTS (SELECT FROM own o WHERE o.class = d.classid AND o.oid = d.objid)
       AND NOT (d.refclassid = 'pg_proc'::regclass
                AND EXISTS (SELECT FROM pg_proc p
                             WHERE p.oid = d.refobjid AND p.pronamespace = 'pg_catalog'::regnamespace)
                AND EXISTS (SELECT FROM pgherd.bound_to(d.refobjid) b WHERE b.class = d.classid AND b.object = d.objid));
END;

-- Makes this database a plain one. `others`: what sequence_standings() says on each of the other members; without it
-- sequences are past what this member and the columns that own them know.
CREATE OR REPLACE FUNCTION pgherd.uninstall(others jsonb DEFAULT '[]') RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET session_replication_role = replica
SET client_min_messages = warning AS $$
DECLARE
    found text[] := pgherd.leaving_obstacles();
    -- The roles are the member's, whose database is beside this copy of it.
    roles text[] := CASE WHEN EXISTS (SELECT FROM pgherd.node n WHERE n.database <> current_database())
                         THEN '{}' ELSE '{pgherd_apply, pgherd_jobs}' END;
    s     record;
    e     record;
    r     text;
BEGIN
    IF EXISTS (SELECT FROM pg_stat_activity a
                WHERE a.datname = current_database() AND a.application_name LIKE 'pgherd %' AND a.pid <> pg_backend_pid()) THEN
        RAISE EXCEPTION 'the sidecar of this server is at work'
            USING ERRCODE = '55000', HINT = 'Have the node leave the herd and stop its sidecar first.';
    ELSIF found IS NOT NULL THEN
        RAISE EXCEPTION 'a plain server has nothing in its place: %', found[1]
            USING ERRCODE = '2BP01', DETAIL = array_to_string(found, E'\n'), HINT = 'Change or drop these first.';
    END IF;

    FOR s IN SELECT * FROM pgherd.plain_sequences(others) LOOP
        EXECUTE format('ALTER SEQUENCE %I.%I INCREMENT BY %s START WITH %s RESTART', s.schema, s.name, s.step, s.start);
        PERFORM pgherd.local_setval(s.relid, s.value, s.called);
    END LOOP;
    PERFORM pgherd.give_back_setval();

    -- What 090_grants.sql has taken from everybody.
    GRANT EXECUTE ON FUNCTION pg_catalog.lo_creat(int), pg_catalog.lo_create(oid), pg_catalog.lo_from_bytea(oid, bytea),
        pg_catalog.lo_put(oid, int8, bytea), pg_catalog.lowrite(int, bytea), pg_catalog.lo_truncate(int, int),
        pg_catalog.lo_truncate64(int, int8), pg_catalog.lo_unlink(oid) TO PUBLIC;

    -- What 046_roles.sql has set.
    IF EXISTS (SELECT FROM pg_db_role_setting d
                WHERE d.setdatabase = (SELECT b.oid FROM pg_database b WHERE b.datname = current_database())
                  AND d.setrole = 0 AND 'deadlock_timeout=100' = ANY (d.setconfig)) THEN
        EXECUTE format('ALTER DATABASE %I RESET deadlock_timeout', current_database());
    END IF;

    FOR e IN SELECT t.evtname FROM pg_event_trigger t WHERE t.evtfoid IN (SELECT f.oid FROM pgherd.own_functions() AS f(oid)) LOOP
        EXECUTE format('DROP EVENT TRIGGER %I', e.evtname);
    END LOOP;
    DROP SCHEMA pgherd, pgherd_gen CASCADE; -- and the triggers that call what is in them
    FOREACH r IN ARRAY roles LOOP
        IF to_regrole(r) IS NOT NULL THEN
            EXECUTE format('DROP OWNED BY %I', r);
            EXECUTE format('DROP ROLE %I', r);
        END IF;
    END LOOP;
END $$;
