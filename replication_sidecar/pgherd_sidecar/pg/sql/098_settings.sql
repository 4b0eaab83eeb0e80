-- What a session's settings must not reach. Which these are, and what is done about each: docs/settings.md.

-- Settings under which a command has a result of its own on each member.
CREATE OR REPLACE FUNCTION pgherd.check_settings(made oid[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('gin_fuzzy_search_limit') <> '0'
       AND EXISTS (SELECT FROM pg_class c WHERE c.oid = ANY (made) AND c.relkind = 'm') THEN
        PERFORM pgherd.refuse('a materialized view cannot be filled under gin_fuzzy_search_limit',
            'Each member would find other rows: SET gin_fuzzy_search_limit = 0.');
    END IF;
END $$;
REVOKE ALL ON FUNCTION pgherd.check_settings(oid[]) FROM PUBLIC;

-- The functions that run with our rights write names as PostgreSQL quotes them: into triggers, and into the names of
-- tables, of which certification keys are hashes. So they write them in one way, whatever the session wants.
-- Those that set no search path are called in every transaction; they write no names.
DO $$
DECLARE f regprocedure;
BEGIN
    FOR f IN SELECT p.oid FROM pg_proc p
              WHERE p.pronamespace = 'pgherd'::regnamespace AND p.prosecdef
                AND array_to_string(p.proconfig, ' ') LIKE '%search_path=%' LOOP
        EXECUTE format('ALTER FUNCTION %s SET quote_all_identifiers = off', f);
    END LOOP;
END $$;
