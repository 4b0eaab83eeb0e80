-- What the role of 095_apply_role.sql needs in a replicated database.

-- Truncates tables in one command. Takes no text: its caller must not become its owner. PostgreSQL wants whatever
-- refers to them in the same command. The origin named partitioned tables, too, but we get their leaves only: so
-- those that refer, and have no other leaf, are named again.
CREATE OR REPLACE FUNCTION pgherd.truncate(tables regclass[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET session_replication_role = replica AS $$
DECLARE
    roots regclass[] := array(
        SELECT DISTINCT f.conrelid::regclass
          FROM pg_constraint f JOIN pg_class c ON c.oid = f.conrelid AND c.relkind = 'p'
         WHERE f.contype = 'f'
           AND f.confrelid IN (SELECT unnest(tables) UNION ALL
                               SELECT a.relid FROM unnest(tables) AS t(name), pg_partition_ancestors(t.name) a)
           AND NOT EXISTS (SELECT FROM pg_partition_tree(f.conrelid) t JOIN pg_class l ON l.oid = t.relid
                            WHERE l.relkind <> 'p' AND t.relid <> ALL (tables)));
BEGIN
    EXECUTE 'TRUNCATE ' || array_to_string(roots::text[] || array(SELECT 'ONLY ' || t.name::text FROM unnest(tables) AS t(name)), ', ');
END $$;

-- Lets the applier connect, and call what constraints, indexes, generated columns, domains and partition keys call,
-- and how keys are compared: it needs the right to, as everybody who writes into such a table. No dependency tells which of
-- PostgreSQL's own functions these call. So the applier may call all immutable ones that everybody may call at first.
--   builtin  somebody may have revoked the right to call PostgreSQL's own functions
CREATE OR REPLACE FUNCTION pgherd.let_apply(builtin bool DEFAULT true) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE f regprocedure;
BEGIN
    IF NOT has_database_privilege('pgherd_apply', current_database(), 'CONNECT') THEN
        EXECUTE format('GRANT CONNECT ON DATABASE %I TO pgherd_apply', current_database());
    END IF;
    FOR f IN
        SELECT p.oid
          FROM (SELECT d.refobjid AS oid FROM pg_depend d -- few: our own functions are called by triggers
                 WHERE d.refclassid = 'pg_proc'::regclass AND d.refobjid >= 16384
                   AND d.classid IN ('pg_constraint'::regclass, 'pg_class'::regclass, 'pg_attrdef'::regclass)
                UNION
                SELECT o.oprcode FROM pg_operator o
                 WHERE o.oid >= 16384 AND o.oprcode::oid >= 16384
                   AND (EXISTS (SELECT FROM pg_depend d
                                 WHERE d.refclassid = 'pg_operator'::regclass AND d.refobjid = o.oid
                                   AND d.classid IN ('pg_constraint'::regclass, 'pg_class'::regclass, 'pg_attrdef'::regclass))
                        OR EXISTS (SELECT FROM pg_amop a WHERE a.amopopr = o.oid))
                UNION
                SELECT b.oid FROM pg_proc b
                 WHERE builtin AND b.oid < 16384 AND b.proacl IS NOT NULL AND b.provolatile = 'i'
                   AND NOT EXISTS (SELECT FROM pg_init_privs i WHERE i.classoid = 'pg_proc'::regclass AND i.objoid = b.oid)) called
          JOIN pg_proc p ON p.oid = called.oid
         WHERE p.proacl IS NOT NULL -- it is not as it was made
           AND p.pronamespace NOT IN ('pgherd'::regnamespace, 'pgherd_gen'::regnamespace)
           AND NOT has_function_privilege('pgherd_apply', p.oid, 'EXECUTE')
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO pgherd_apply', f);
    END LOOP;
END $$;

REVOKE ALL ON FUNCTION pgherd.truncate(regclass[]), pgherd.note_places(oid, bool), pgherd.let_apply(bool) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION pgherd.expect(int8, int8), pgherd.not_committed(xid8), pgherd.token_of_xid(xid8),
    pgherd.token_of_batch(int8), pgherd.truncate(regclass[]), pgherd.note_places(oid, bool), pgherd.fingerprint_single_rows(), pgherd.fingerprint_records(json),
    pgherd.row_hashes(text, text[]), pgherd.key_of_record(text, text), pgherd.row_difference(text, text[], json),
    pgherd.check_fingerprint(int8, text) TO pgherd_apply;
