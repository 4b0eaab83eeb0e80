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

-- Tells whether a constraint, an index, a partition key or a generated column calls a function or an operator.
CREATE OR REPLACE FUNCTION pgherd.is_called_by_rows(class regclass, object oid) RETURNS bool
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT EXISTS (SELECT FROM pg_depend d
                    WHERE d.refclassid = class AND d.refobjid = object
                      AND d.classid IN ('pg_constraint'::regclass, 'pg_class'::regclass, 'pg_attrdef'::regclass));
END;

-- Lets the applier connect, and call what constraints, indexes, generated columns, domains and partition keys call,
-- and how keys are compared: it needs the right to, as everybody who writes into such a table.
CREATE OR REPLACE FUNCTION pgherd.let_apply() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE f regprocedure;
BEGIN
    IF NOT has_database_privilege('pgherd_apply', current_database(), 'CONNECT') THEN
        EXECUTE format('GRANT CONNECT ON DATABASE %I TO pgherd_apply', current_database());
    END IF;
    FOR f IN
        SELECT p.oid FROM pg_proc p
         WHERE p.oid >= 16384 AND p.proacl IS NOT NULL -- of users and extensions, and not as it was made
           AND p.pronamespace NOT IN ('pgherd'::regnamespace, 'pgherd_gen'::regnamespace)
           AND NOT has_function_privilege('pgherd_apply', p.oid, 'EXECUTE')
           AND (pgherd.is_called_by_rows('pg_proc'::regclass, p.oid)
                OR EXISTS (SELECT FROM pg_operator o
                            WHERE o.oprcode = p.oid
                              AND (pgherd.is_called_by_rows('pg_operator'::regclass, o.oid)
                                   OR EXISTS (SELECT FROM pg_amop a WHERE a.amopopr = o.oid))))
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO pgherd_apply', f);
    END LOOP;
END $$;

REVOKE ALL ON FUNCTION pgherd.truncate(regclass[]), pgherd.is_called_by_rows(regclass, oid), pgherd.let_apply() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION pgherd.expect(int8, int8), pgherd.not_committed(xid8), pgherd.token_of_xid(xid8),
    pgherd.token_of_batch(int8), pgherd.truncate(regclass[]), pgherd.fingerprint_single_rows(), pgherd.fingerprint_records(json),
    pgherd.row_hashes(text, text[]), pgherd.key_of_record(text, text), pgherd.row_difference(text, text[], json),
    pgherd.check_fingerprint(int8, text) TO pgherd_apply;
