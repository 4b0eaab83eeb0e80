-- The role that writes what other members committed. It is no superuser, so that code of a user's which is run
-- where rows are written, should it ever get there, can't leave the database: no files, no programs, no roles, no DDL.
--
--   BYPASSRLS                            rows are written as they are, whatever policies say
--   pg_read_all_data, pg_write_all_data  every table, of every owner
--   SET ON PARAMETER                     what only superusers may set otherwise
--
-- TRUNCATE has no such role: pgherd.truncate(). EXECUTE of functions neither: pgherd.let_apply().

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'pgherd_apply') THEN
        CREATE ROLE pgherd_apply;
    END IF;
    -- From 16 on these connections can be reserved: clients that take all others don't keep replication out.
    IF to_regrole('pg_use_reserved_connections') IS NOT NULL THEN
        GRANT pg_use_reserved_connections TO pgherd_apply;
    END IF;
END $$;
ALTER ROLE pgherd_apply LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION BYPASSRLS CONNECTION LIMIT -1;
GRANT pg_read_all_data, pg_write_all_data TO pgherd_apply;
GRANT SET ON PARAMETER session_replication_role, deadlock_timeout, max_stack_depth, log_parameter_max_length TO pgherd_apply;
