-- Tells clients that this member takes no writes when its sidecar was killed and can't tell them itself.
--
-- A session of the sidecar executes this all the time. It is a procedure, and begins a new transaction for each
-- look, so that it keeps no row from VACUUM. ALTER SYSTEM needs a session of its own, since it is refused inside of
-- functions and procedures. A procedure that commits can have no search_path of its own: all names are written in full.
--
--   watched, began   the sidecar's other session, which ends with it; a process id alone may be given again
--   conninfo         how this server is reached from itself, as a superuser
CREATE OR REPLACE PROCEDURE pgherd.tell_when_alone(watched int, began timestamptz, conninfo text)
LANGUAGE plpgsql AS $$
BEGIN
    WHILE EXISTS (SELECT FROM pg_catalog.pg_stat_get_activity(watched) AS a
                   WHERE a.backend_start OPERATOR(pg_catalog.=) began) LOOP
        PERFORM pg_catalog.pg_sleep(0.2);
        COMMIT;
    END LOOP;
    UPDATE pgherd.node SET writable = false, held = false, reason = 'its sidecar does not run';
    COMMIT;
    PERFORM pgherd.dblink_exec(conninfo, 'ALTER SYSTEM SET default_transaction_read_only = on');
    PERFORM pg_catalog.pg_reload_conf();
END $$;
REVOKE ALL ON PROCEDURE pgherd.tell_when_alone(int, timestamptz, text) FROM PUBLIC;
