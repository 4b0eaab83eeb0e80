-- What ordinary users may call, and nothing else: functions are open to PUBLIC when they are made.

REVOKE ALL ON ALL TABLES IN SCHEMA pgherd FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA pgherd, pgherd_gen FROM PUBLIC;
REVOKE ALL ON SCHEMA pgherd, pgherd_gen FROM PUBLIC;

GRANT USAGE ON SCHEMA pgherd TO PUBLIC;
GRANT INSERT (act, object, value, called) ON pgherd.request TO PUBLIC;
GRANT EXECUTE ON FUNCTION pgherd.current_token(), pgherd.set_local(regclass), pgherd.set_replicated(regclass),
    pgherd.setval(regclass, int8, bool), pgherd.run_everywhere(text) TO PUBLIC;

-- last_gid() reads pgherd.applied, which holds nothing secret.
GRANT EXECUTE ON FUNCTION pgherd.last_gid(), pgherd.wait_for(int8, interval), pgherd.last_commit_gid(),
    pgherd.why_read_only() TO PUBLIC;
GRANT EXECUTE ON FUNCTION pgherd.gid_of_row(regclass, text[]) TO PUBLIC;
-- They make their caller wait for other members, and tell positions only.
GRANT EXECUTE ON FUNCTION pgherd.strong(interval), pgherd.fresh(int8, interval) TO PUBLIC;
GRANT EXECUTE ON PROCEDURE pgherd.begin_strong(interval) TO PUBLIC;
GRANT SELECT ON pgherd.applied TO PUBLIC;

-- Who may write, or read, all tables (pg_write_all_data, pg_read_all_data) may not ours: rows that no policy shows are not
-- there for anybody but their owner and those who pass by policies, and none can be added.
DO $$
DECLARE tab regclass;
BEGIN
    FOR tab IN SELECT c.oid FROM pg_class c WHERE c.relnamespace = 'pgherd'::regnamespace AND c.relkind = 'r' LOOP
        EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', tab);
    END LOOP;
END $$;
DROP POLICY IF EXISTS anybody ON pgherd.applied;
CREATE POLICY anybody ON pgherd.applied FOR SELECT TO PUBLIC USING (true);

-- Where it exists: pgherd.transaction_status(token).
DO $$
BEGIN
    IF to_regprocedure('pgherd.transaction_status(text)') IS NOT NULL THEN
        GRANT EXECUTE ON FUNCTION pgherd.transaction_status(text) TO PUBLIC;
    END IF;
END $$;

-- State that no trigger sees (C23): large objects.
REVOKE EXECUTE ON FUNCTION pg_catalog.lo_creat(int), pg_catalog.lo_create(oid), pg_catalog.lo_from_bytea(oid, bytea),
    pg_catalog.lo_put(oid, int8, bytea), pg_catalog.lowrite(int, bytea), pg_catalog.lo_truncate(int, int),
    pg_catalog.lo_truncate64(int, int8), pg_catalog.lo_unlink(oid), pg_catalog.lo_import(text), pg_catalog.lo_import(text, oid) FROM PUBLIC;
