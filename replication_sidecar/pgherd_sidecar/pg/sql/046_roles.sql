-- Roles belong to the server, so PostgreSQL tells no event trigger of them, and one made by hand is there on one
-- member only. What a member lacks cannot be named in commands that all members execute.

-- Roles that every member has: those there were when this node began, and those that pgherd.run_everywhere() named.
DO $$
BEGIN
    IF to_regclass('pgherd.roles') IS NULL THEN
        CREATE TABLE pgherd.roles (name text PRIMARY KEY);
        INSERT INTO pgherd.roles SELECT r.rolname FROM pg_roles r;
    END IF;
END $$;

CREATE OR REPLACE FUNCTION pgherd.local_roles() RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
RETURN (SELECT jsonb_agg(r.rolname) FROM pg_roles r WHERE NOT EXISTS (SELECT FROM pgherd.roles k WHERE k.name = r.rolname));

-- The roles whose names stand in a command, more or less: one too many does no harm.
CREATE OR REPLACE FUNCTION pgherd.roles_named(command text) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
RETURN (SELECT coalesce(jsonb_agg(r.rolname), '[]') FROM pg_roles r
         WHERE r.rolname NOT LIKE 'pg\_%'
           AND command ~* format('(^|[^[:alnum:]_$])%s($|[^[:alnum:]_$])', regexp_replace(replace(r.rolname, '"', '""'), '([^[:alnum:]_])', '\\\1', 'g')));

-- Makes roles known, and on a member that lacks one, makes the role: it may do nothing, and nobody can log in, but
-- a command that names it does not fail.
CREATE OR REPLACE FUNCTION pgherd.ensure_roles(names jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE r text;
BEGIN
    FOR r IN SELECT n.name FROM jsonb_array_elements_text(names) AS n(name) LOOP
        IF NOT EXISTS (SELECT FROM pg_roles a WHERE a.rolname = r) THEN
            EXECUTE format('CREATE ROLE %I', r);
        END IF;
        INSERT INTO pgherd.roles VALUES (r) ON CONFLICT DO NOTHING;
    END LOOP;
END $$;

-- CREATE ROLE on a member where somebody has made a role of that name by hand.
CREATE OR REPLACE FUNCTION pgherd.reset_role(role text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles a WHERE a.rolname = role) THEN
        EXECUTE format('ALTER ROLE %I NOSUPERUSER NOCREATEDB NOCREATEROLE INHERIT NOLOGIN NOREPLICATION NOBYPASSRLS'
                       ' CONNECTION LIMIT -1 PASSWORD NULL VALID UNTIL ''infinity''', role);
    END IF;
END $$;

-- DROP ROLE on a member where it may be missing, or own something in another database of the server.
CREATE OR REPLACE FUNCTION pgherd.drop_roles(names jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE r text;
BEGIN
    FOR r IN SELECT n.name FROM jsonb_array_elements_text(names) AS n(name) LOOP
        DELETE FROM pgherd.roles k WHERE k.name = r;
        BEGIN
            EXECUTE format('DROP ROLE IF EXISTS %I', r);
        EXCEPTION WHEN dependent_objects_still_exist THEN
            RAISE WARNING 'role % stays on this member: %', r, SQLERRM;
            EXECUTE format('ALTER ROLE %I NOLOGIN', r);
        END;
    END LOOP;
END $$;
