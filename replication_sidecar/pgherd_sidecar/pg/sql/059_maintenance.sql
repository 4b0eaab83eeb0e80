-- Maintenance is kept in tables of the herd in a schema of their own, which the first request for it makes. An ordinary user
-- may make a schema of that name before. Nothing of his is read: a view would run his functions as superuser.

-- Has a superuser made the tables, and may nobody else write them? A superuser executes what they say.
CREATE OR REPLACE FUNCTION pgherd.keeps_maintenance() RETURNS bool
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT count(*) = 4 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
              JOIN pg_roles o ON o.oid = c.relowner JOIN pg_roles s ON s.oid = n.nspowner
             WHERE n.nspname = 'pgherd_maintenance' AND c.relname IN ('turn', 'schedule', 'run', 'part')
               AND c.relkind = 'r' AND c.relrowsecurity AND o.rolsuper AND s.rolsuper);
END $$;

-- Sessions of clients of this database, which maintenance waits for: not those of the sidecar.
CREATE OR REPLACE VIEW pgherd.sessions_of_clients AS
SELECT a.pid FROM pg_stat_activity a
 WHERE a.datname = current_database() AND a.backend_type = 'client backend' AND a.pid <> pg_backend_pid()
   AND a.usename <> 'pgherd_apply' AND NOT (a.application_name LIKE 'pgherd%' AND a.usename = current_user);
