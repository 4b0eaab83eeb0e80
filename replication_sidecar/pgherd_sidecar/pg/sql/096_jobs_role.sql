-- The role by which jobs on Kubernetes read a member: it reads everything, and can write nothing that others see.
--
--   BYPASSRLS         rows are compared and copied as they are, whatever policies say
--   pg_read_all_data  every table, of every owner; among them the verifiers of passwords, which a snapshot holds
--
-- It has no password: on Kubernetes it is known by a certificate, elsewhere nobody can log in as it.

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'pgherd_jobs') THEN
        CREATE ROLE pgherd_jobs;
    END IF;
    IF NOT has_database_privilege('pgherd_jobs', current_database(), 'CONNECT') THEN
        EXECUTE format('GRANT CONNECT ON DATABASE %I TO pgherd_jobs', current_database());
    END IF;
END $$;
ALTER ROLE pgherd_jobs LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION BYPASSRLS CONNECTION LIMIT -1;
GRANT pg_read_all_data TO pgherd_jobs;
GRANT EXECUTE ON FUNCTION pgherd.certification_state(), pgherd.hold_log_for(int, int8, int8, float8),
    pgherd.sequence_standings(), pgherd.leaving_obstacles(), pgherd.own_functions(), pgherd.bound_to(oid),
    pgherd.parts_of_type(oid) TO pgherd_jobs;

-- Where the server has amcheck: 064_indexes.sql.
DO $$
BEGIN
    IF to_regprocedure('pgherd.bt_index_check(regclass, bool)') IS NOT NULL THEN
        GRANT EXECUTE ON FUNCTION pgherd.bt_index_check(regclass, bool) TO pgherd_jobs;
    END IF;
END $$;
