-- Roles belong to the server, so PostgreSQL tells no event trigger of them, and one made by hand is there on one
-- member only. What a member lacks cannot be named in commands that all members execute.

-- Who is a member of what, by names.
CREATE OR REPLACE VIEW pgherd.grants AS
SELECT DISTINCT r.rolname::text AS role, m.rolname::text AS member
  FROM pg_auth_members a JOIN pg_roles r ON r.oid = a.roleid JOIN pg_roles m ON m.oid = a.member;

-- Roles that every member of the herd has, and memberships in them: those there were when this node began, and
-- those that pgherd.run_everywhere() made.
DO $$
BEGIN
    IF to_regclass('pgherd.roles') IS NULL THEN
        CREATE TABLE pgherd.roles (name text PRIMARY KEY);
        INSERT INTO pgherd.roles SELECT r.rolname FROM pg_roles r;
        CREATE TABLE pgherd.memberships (role text, member text, PRIMARY KEY (role, member));
        INSERT INTO pgherd.memberships SELECT g.role, g.member FROM pgherd.grants g;
    END IF;
END $$;

CREATE OR REPLACE FUNCTION pgherd.local_roles() RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
RETURN (SELECT jsonb_agg(r.rolname) FROM pg_roles r
         WHERE NOT EXISTS (SELECT FROM pgherd.roles k WHERE k.name = r.rolname));

-- The roles whose names stand in a command, more or less: one too many does no harm.
CREATE OR REPLACE FUNCTION pgherd.roles_named(command text) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
RETURN (SELECT coalesce(jsonb_agg(r.rolname), '[]') FROM pg_roles r
         WHERE command ~* format('(^|[^[:alnum:]_$])%s($|[^[:alnum:]_$])',
                                 regexp_replace(replace(r.rolname, '"', '""'), '([^[:alnum:]_])', E'\\\\\\1', 'g')));

-- Makes roles known, and on a member that lacks one, makes the role: it may do nothing, and nobody can log in, but
-- a command that names it does not fail. PostgreSQL's own (pg_*) nobody can make.
CREATE OR REPLACE FUNCTION pgherd.ensure_roles(names jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE r text;
BEGIN
    FOR r IN SELECT n.name FROM jsonb_array_elements_text(names) AS n(name) LOOP
        IF NOT EXISTS (SELECT FROM pg_roles a WHERE a.rolname = r) AND NOT starts_with(r, 'pg_') THEN
            EXECUTE format('CREATE ROLE %I', r);
        END IF;
        INSERT INTO pgherd.roles VALUES (r) ON CONFLICT DO NOTHING;
    END LOOP;
END $$;

-- The memberships on which the rights of a role rest, as pairs of names; a superuser needs none.
CREATE OR REPLACE FUNCTION pgherd.rights_of(role text) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH RECURSIVE rights(role, member) AS (
        SELECT g.role, g.member FROM pgherd.grants g JOIN pg_roles r ON r.rolname = g.member AND NOT r.rolsuper
         WHERE g.member = rights_of.role
        UNION
        SELECT g.role, g.member FROM rights r JOIN pgherd.grants g ON g.member = r.role
    )
    SELECT coalesce(jsonb_agg(jsonb_build_array(r.role, r.member)), '[]') FROM rights r;
END;

-- What a role may do because of a grant on this node, it could not do on others.
CREATE OR REPLACE FUNCTION pgherd.check_rights(rights jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE g record;
BEGIN
    FOR g IN SELECT p.pair ->> 0 AS role, p.pair ->> 1 AS member FROM jsonb_array_elements(rights) AS p(pair)
             EXCEPT SELECT m.role, m.member FROM pgherd.memberships m LOOP
        PERFORM pgherd.refuse(format('role %I is a member of %I on this node only', g.member, g.role),
            format('Have a superuser execute SELECT pgherd.run_everywhere(%L).',
                   format('GRANT %I TO %I', g.role, g.member)));
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION pgherd.ensure_rights(rights jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE g record;
BEGIN
    PERFORM pgherd.ensure_roles(jsonb_path_query_array(rights, '$[*][*]'));
    FOR g IN SELECT p.pair ->> 0 AS role, p.pair ->> 1 AS member FROM jsonb_array_elements(rights) AS p(pair)
             EXCEPT SELECT k.role, k.member FROM pgherd.grants k LOOP
        EXECUTE format('GRANT %I TO %I', g.role, g.member);
    END LOOP;
END $$;

-- After a command about roles: which memberships among the roles that it named every member has now.
CREATE OR REPLACE FUNCTION pgherd.memberships_among(names jsonb) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
RETURN (SELECT coalesce(jsonb_agg(jsonb_build_array(g.role, g.member)), '[]') FROM pgherd.grants g
         WHERE names ? g.role AND names ? g.member);

CREATE OR REPLACE FUNCTION pgherd.follow_grants(names jsonb, granted jsonb) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    DELETE FROM pgherd.memberships m WHERE names ? m.role AND names ? m.member;
    INSERT INTO pgherd.memberships SELECT p.pair ->> 0, p.pair ->> 1 FROM jsonb_array_elements(granted) AS p(pair);
END;

-- Privileges on the database, and who owns it: PostgreSQL tells no event trigger of them either, and yet whether a
-- command works may rest on them. The owner of the database has the rights of pg_database_owner, above all on the
-- schema public. `grantee` is 'public' for everybody.
CREATE OR REPLACE VIEW pgherd.database_grants AS
SELECT coalesce(r.rolname::text, 'public') AS grantee, a.privilege_type AS privilege
  FROM pg_database d
 CROSS JOIN LATERAL aclexplode(coalesce(d.datacl, acldefault('d', d.datdba))) a
  LEFT JOIN pg_roles r ON r.oid = a.grantee
 WHERE d.datname = current_database() AND (a.grantee = 0 OR r.oid IS NOT NULL)
UNION
SELECT r.rolname::text, 'OWNER' FROM pg_database d JOIN pg_roles r ON r.oid = d.datdba WHERE d.datname = current_database();

-- Those that every member has.
DO $$
BEGIN
    IF to_regclass('pgherd.database_rights') IS NULL THEN
        CREATE TABLE pgherd.database_rights (grantee text, privilege text, PRIMARY KEY (grantee, privilege));
        INSERT INTO pgherd.database_rights SELECT g.grantee, g.privilege FROM pgherd.database_grants g;
    END IF;
END $$;

-- The privileges on which a command of a role may rest, as pairs of grantee and privilege. Says no where it rests on one
-- that was granted on this node only.
CREATE OR REPLACE FUNCTION pgherd.database_rights_of(role text, tag text) RETURNS jsonb
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    names  jsonb := jsonb_build_array(role, 'public') || jsonb_path_query_array(pgherd.rights_of(role), '$[*][0]');
    rights jsonb := '[]';
    needed text;
    known  jsonb;
    holder text;
BEGIN
    IF (SELECT r.rolsuper FROM pg_roles r WHERE r.rolname = role) THEN
        RETURN rights;
    END IF;
    FOREACH needed IN ARRAY CASE WHEN tag ~ ' (SCHEMA|EXTENSION|PUBLICATION|LANGUAGE)$' THEN '{OWNER,CREATE}'::text[]
                                 ELSE '{OWNER}' END LOOP
        SELECT jsonb_agg(jsonb_build_array(g.grantee, g.privilege)) FILTER (WHERE k.grantee IS NOT NULL),
               min(g.grantee) INTO known, holder
          FROM pgherd.database_grants g LEFT JOIN pgherd.database_rights k USING (grantee, privilege)
         WHERE g.privilege = needed AND names ? g.grantee;
        IF known IS NULL AND holder IS NOT NULL THEN
            PERFORM pgherd.refuse_database_right(holder, needed);
        END IF;
        rights := rights || coalesce(known, '[]');
    END LOOP;
    RETURN rights;
END $$;

CREATE OR REPLACE FUNCTION pgherd.database_command(grantee text, privilege text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
RETURN CASE WHEN privilege = 'OWNER' THEN format('ALTER DATABASE %I OWNER TO %I', current_database(), grantee)
            WHEN grantee = 'public' THEN format('GRANT %s ON DATABASE %I TO PUBLIC', privilege, current_database())
            ELSE format('GRANT %s ON DATABASE %I TO %I', privilege, current_database(), grantee) END;

CREATE OR REPLACE FUNCTION pgherd.refuse_database_right(grantee text, privilege text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgherd.refuse(
        CASE WHEN privilege = 'OWNER' THEN format('role %I owns the database on this node only', grantee)
             ELSE format('role %I has %s on the database on this node only', grantee, privilege) END,
        format('Have a superuser execute SELECT pgherd.run_everywhere(%L).', pgherd.database_command(grantee, privilege)));
END $$;

-- Gives a member what it has lost.
CREATE OR REPLACE FUNCTION pgherd.ensure_database_rights(rights jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE g record;
BEGIN
    PERFORM pgherd.ensure_roles(jsonb_path_query_array(rights, '$[*][0] ? (@ <> "public")'));
    FOR g IN SELECT p.pair ->> 0 AS grantee, p.pair ->> 1 AS privilege FROM jsonb_array_elements(rights) AS p(pair)
             EXCEPT SELECT k.grantee, k.privilege FROM pgherd.database_grants k LOOP
        EXECUTE pgherd.database_command(g.grantee, g.privilege);
    END LOOP;
END $$;

-- After a command about the database: what those that it named have now, on every member.
CREATE OR REPLACE FUNCTION pgherd.database_rights_among(names jsonb) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
RETURN (SELECT coalesce(jsonb_agg(jsonb_build_array(g.grantee, g.privilege)), '[]') FROM pgherd.database_grants g
         WHERE names ? g.grantee);

CREATE OR REPLACE FUNCTION pgherd.follow_database_rights(names jsonb, granted jsonb) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    DELETE FROM pgherd.database_rights k
     WHERE names ? k.grantee
        -- there is but one owner, and a new one takes the privileges of the old one over
        OR jsonb_path_exists(granted, 'strict $[*] ? (@[1] == "OWNER")')
           AND NOT EXISTS (SELECT FROM pgherd.database_grants g
                            WHERE (g.grantee, g.privilege) = (k.grantee, k.privilege));
    INSERT INTO pgherd.database_rights SELECT p.pair ->> 0, p.pair ->> 1 FROM jsonb_array_elements(granted) AS p(pair);
END;

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
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET client_min_messages = warning AS $$
DECLARE r text;
BEGIN
    FOR r IN SELECT n.name FROM jsonb_array_elements_text(names) AS n(name) LOOP
        DELETE FROM pgherd.roles k WHERE k.name = r;
        DELETE FROM pgherd.memberships m WHERE r IN (m.role, m.member);
        DELETE FROM pgherd.database_rights d WHERE d.grantee = r;
        BEGIN
            EXECUTE format('DROP ROLE IF EXISTS %I', r);
        EXCEPTION WHEN dependent_objects_still_exist THEN
            RAISE WARNING 'role % stays on this member: %', r, SQLERRM;
            EXECUTE format('ALTER ROLE %I NOLOGIN', r);
        END;
    END LOOP;
END $$;
