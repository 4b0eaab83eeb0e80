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
