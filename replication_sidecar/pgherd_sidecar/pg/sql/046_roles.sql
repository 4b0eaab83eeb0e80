-- Roles and settings belong to the server, and PostgreSQL tells no event trigger of them. Every member remembers them
-- as all members have them: pgherd.shared. Where its catalog says otherwise, somebody has changed something here.
-- 049_unseen.sql finds that and has it ordered.
--
-- What is remembered are documents: a key, and attributes by name. Everything is known by the names of roles; a role
-- '' is everybody, or, as who has granted something, the bootstrap superuser (oid 10). He, pgherd_apply, pgherd_jobs and
-- PostgreSQL's own belong to each member. Keys:
--   {role, R}                   attributes by the words of CREATE ROLE, and its comment
--   {member, R, M, G}           M is a member of R; G has granted it (PostgreSQL 16; '' before)
--   {setting here, R}, {setting all, R}  settings in this database, and in all; '' is everybody
--   {database, R}, {parameter, R}  privileges, and whether they can be granted on
--   {base}                      comment and connection limit of this database

-- Roles that all members but this one have dropped, or that had a name here that the order gave to another role. They own
-- something in another database of this server.
CREATE TABLE IF NOT EXISTS pgherd.set_aside (id oid PRIMARY KEY, reason text NOT NULL);

-- OFFSET: nobody can write pg_authid through it.
CREATE OR REPLACE VIEW pgherd.shared_roles AS
SELECT a.oid, a.rolname::text AS name FROM pg_authid a
 WHERE a.oid <> 10 AND a.rolname !~ '^pg_' AND a.rolname NOT IN ('pgherd_apply', 'pgherd_jobs')
   AND NOT EXISTS (SELECT FROM pgherd.set_aside k WHERE k.id = a.oid) OFFSET 0;

-- Who is a member of what, by names.
CREATE OR REPLACE VIEW pgherd.grants AS
SELECT DISTINCT r.rolname::text AS role, m.rolname::text AS member
  FROM pg_auth_members a JOIN pg_roles r ON r.oid = a.roleid JOIN pg_roles m ON m.oid = a.member;

-- Privileges on the database, and who owns it: he has the rights of pg_database_owner, above all on the schema public.
-- `grantee` is 'public' for everybody.
CREATE OR REPLACE VIEW pgherd.database_grants AS
SELECT coalesce(r.rolname::text, 'public') AS grantee, a.privilege_type AS privilege
  FROM pg_database d
 CROSS JOIN LATERAL aclexplode(coalesce(d.datacl, acldefault('d', d.datdba))) a
  LEFT JOIN pg_roles r ON r.oid = a.grantee
 WHERE d.datname = current_database() AND (a.grantee = 0 OR r.oid IS NOT NULL)
UNION
SELECT r.rolname::text, 'OWNER' FROM pg_database d JOIN pg_roles r ON r.oid = d.datdba WHERE d.datname = current_database();

-- The documents that all members have; of a role, the number that it has here, by which it is known under a new name.
--   shared_seen      the catalogs' fingerprint when they were last found to say the same, or what is none: look again
--   shared_failures  documents that could not be brought about here
--   role_limits      roles that may log in on some nodes only
--   undone           what was changed here, and taken back since another member's change came first
CREATE TABLE IF NOT EXISTS pgherd.shared (key text[] PRIMARY KEY, value jsonb NOT NULL, id oid);
CREATE TABLE IF NOT EXISTS pgherd.shared_seen (only_row bool PRIMARY KEY DEFAULT true CHECK (only_row), print text NOT NULL);
INSERT INTO pgherd.shared_seen (print) VALUES ('') ON CONFLICT (only_row) DO NOTHING;
CREATE TABLE IF NOT EXISTS pgherd.shared_failures (key text[] PRIMARY KEY, reason text NOT NULL);
CREATE TABLE IF NOT EXISTS pgherd.role_limits (name text PRIMARY KEY, nodes text[] NOT NULL);
CREATE TABLE IF NOT EXISTS pgherd.undone (at timestamptz NOT NULL DEFAULT clock_timestamp(), what text NOT NULL);

-- Tells who has made the change, who heard that it was done: for a day.
CREATE OR REPLACE FUNCTION pgherd.tell_undone(said text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM pgherd.undone u WHERE u.at < now() - interval '1 day';
    INSERT INTO pgherd.undone (what) VALUES (said);
    RAISE WARNING '%', said;
END $$;

-- May the role not log in here, whatever the others say?
CREATE OR REPLACE FUNCTION pgherd.is_kept_out(role text) RETURNS bool
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN EXISTS (SELECT FROM pgherd.role_limits l, pgherd.node n WHERE l.name = role AND n.member_name <> ALL (l.nodes));
END $$;

-- The documents as the catalogs have them. Settings that switch capture off are a member's own. Roles may be many, and
-- the applier's settings would have the planner loop over all for each.
CREATE OR REPLACE FUNCTION pgherd.shared_now(OUT key text[], OUT value jsonb, OUT id oid) RETURNS SETOF record
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET TimeZone = 'UTC' SET DateStyle = 'ISO, YMD'
SET enable_seqscan = on SET enable_hashjoin = on SET enable_nestloop = off AS $$
#variable_conflict use_column
DECLARE
    base pg_database;
BEGIN
    SELECT * INTO base FROM pg_database d WHERE d.datname = current_database();
    RETURN QUERY
    SELECT ARRAY['role', r.name],
           jsonb_strip_nulls(jsonb_build_object(
               'SUPERUSER', a.rolsuper, 'INHERIT', a.rolinherit, 'CREATEROLE', a.rolcreaterole, 'CREATEDB', a.rolcreatedb,
               'LOGIN', CASE WHEN l.nodes IS NULL OR n.member_name = ANY (l.nodes) THEN to_jsonb(a.rolcanlogin)
                             ELSE s.value -> 'LOGIN' END,
               'REPLICATION', a.rolreplication, 'BYPASSRLS', a.rolbypassrls, 'CONNECTION LIMIT', a.rolconnlimit,
               'PASSWORD', a.rolpassword, 'VALID UNTIL', nullif(a.rolvaliduntil, 'infinity')::text,
               'COMMENT', shobj_description(a.oid, 'pg_authid'))),
           a.oid
      FROM pg_authid a JOIN pgherd.shared_roles r USING (oid)
      LEFT JOIN pgherd.shared s ON s.id = a.oid AND s.key[1] = 'role'
      LEFT JOIN pgherd.role_limits l ON l.name = s.key[2]
      LEFT JOIN pgherd.node n ON true;
    RETURN QUERY
    SELECT DISTINCT ON (1) ARRAY['member', r.rolname::text, m.name, coalesce(g.name, '')],
           jsonb_strip_nulls(jsonb_build_object('ADMIN', a.admin_option, 'INHERIT', to_jsonb(a) -> 'inherit_option',
                                                'SET', to_jsonb(a) -> 'set_option')),
           NULL::oid
      FROM pg_auth_members a JOIN pgherd.shared_roles m ON m.oid = a.member
      JOIN pg_roles r ON r.oid = a.roleid AND (r.rolname ~ '^pg_' OR EXISTS (SELECT FROM pgherd.shared_roles s WHERE s.oid = r.oid))
      LEFT JOIN pgherd.shared_roles g ON g.oid = a.grantor AND current_setting('server_version_num')::int >= 160000;
    RETURN QUERY
    SELECT ARRAY[CASE s.setdatabase WHEN 0 THEN 'setting all' ELSE 'setting here' END, coalesce(r.name, '')],
           jsonb_object_agg(split_part(c.pair, '=', 1), substr(c.pair, strpos(c.pair, '=') + 1)), NULL::oid
      FROM pg_db_role_setting s CROSS JOIN LATERAL unnest(s.setconfig) AS c(pair)
      LEFT JOIN pgherd.shared_roles r ON r.oid = s.setrole
     WHERE s.setdatabase IN (0, base.oid) AND (s.setrole = 0 OR r.oid IS NOT NULL)
       AND split_part(c.pair, '=', 1) NOT IN ('session_replication_role', 'event_triggers', 'backtrace_functions')
     GROUP BY 1;
    RETURN QUERY
    SELECT ARRAY['database', coalesce(r.name, '')], jsonb_object_agg(a.privilege_type, a.grantable), NULL::oid
      FROM (SELECT e.grantee, e.privilege_type, bool_or(e.is_grantable) AS grantable
              FROM aclexplode(coalesce(base.datacl, acldefault('d', base.datdba))) e GROUP BY 1, 2) a
      LEFT JOIN pgherd.shared_roles r ON r.oid = a.grantee
     WHERE a.grantee = 0 OR r.oid IS NOT NULL GROUP BY 1;
    RETURN QUERY
    SELECT ARRAY['parameter', coalesce(r.name, '')], jsonb_object_agg(a.privilege, a.grantable), NULL::oid
      FROM (SELECT e.grantee, e.privilege_type || ' ON ' || p.parname AS privilege, bool_or(e.is_grantable) AS grantable
              FROM pg_parameter_acl p CROSS JOIN LATERAL aclexplode(p.paracl) e GROUP BY 1, 2) a
      LEFT JOIN pgherd.shared_roles r ON r.oid = a.grantee
     WHERE a.grantee = 0 OR r.oid IS NOT NULL GROUP BY 1;
    RETURN QUERY
    SELECT ARRAY['base'], jsonb_strip_nulls(jsonb_build_object('CONNECTION LIMIT', base.datconnlimit,
                                                               'COMMENT', shobj_description(base.oid, 'pg_database'))), NULL::oid;
END $$;

-- Changes with each change of a role, of who may do what as whom, and of what else is in the documents. Also for what
-- pg_dumpall writes, which reads no snapshot.
CREATE OR REPLACE FUNCTION pgherd.roles_fingerprint() RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET TimeZone = 'UTC' SET DateStyle = 'ISO, YMD' AS $$
BEGIN
    RETURN md5(concat(
        (SELECT string_agg(a::text, ' ' ORDER BY a.oid) FROM pg_authid a),
        (SELECT string_agg(m::text, ' ' ORDER BY m.roleid, m.member, m.grantor) FROM pg_auth_members m),
        (SELECT string_agg(s::text, ' ' ORDER BY s.setdatabase, s.setrole) FROM pg_db_role_setting s),
        (SELECT string_agg(p::text, ' ' ORDER BY p.oid) FROM pg_parameter_acl p),
        (SELECT string_agg(d::text, ' ' ORDER BY d.classoid, d.objoid) FROM pg_shdescription d),
        (SELECT concat_ws(' ', d.datdba, d.datconnlimit, d.datacl) FROM pg_database d WHERE d.datname = current_database())));
END $$;

-- A local transaction that waits for a writer which waits for it hears 40P01 soon and keeps its session. The
-- detector looks once, so it must not look before the circle is closed; on a busy machine a commit takes long.
-- Where it was too early, the sidecar cancels. Milliseconds.
-- Before all settings are written down below: else a new herd would order it, in the way of its first command.
DO $$
BEGIN
    EXECUTE format('ALTER DATABASE %I SET deadlock_timeout = 100', current_database());
END $$;

-- At the beginning all members have what this one has.
INSERT INTO pgherd.shared SELECT n.* FROM pgherd.shared_now() n WHERE NOT EXISTS (SELECT FROM pgherd.shared);

-- The roles whose names stand in a command, more or less: one too many does no harm.
CREATE OR REPLACE FUNCTION pgherd.roles_named(command text) RETURNS text[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
RETURN (SELECT coalesce(array_agg(r.rolname::text), '{}') FROM pg_roles r
         WHERE command ~* format('(^|[^[:alnum:]_$])%s($|[^[:alnum:]_$])',
                                 regexp_replace(replace(r.rolname, '"', '""'), '([^[:alnum:]_])', E'\\\\\\1', 'g')));

-- The memberships on which the rights of a role rest, as pairs of names; a superuser needs none.
CREATE OR REPLACE FUNCTION pgherd.rights_of(role text) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN (
        WITH RECURSIVE rights(role, member) AS (
            SELECT g.role, g.member FROM pgherd.grants g JOIN pg_roles r ON r.rolname = g.member AND NOT r.rolsuper
             WHERE g.member = rights_of.role
            UNION
            SELECT g.role, g.member FROM rights r JOIN pgherd.grants g ON g.member = r.role
        )
        SELECT coalesce(jsonb_agg(jsonb_build_array(r.role, r.member)), '[]') FROM rights r);
END $$;

-- The privileges on the database on which a command of a role may rest, as pairs of grantee and privilege.
CREATE OR REPLACE FUNCTION pgherd.database_rights_of(role text, tag text) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    names jsonb;
BEGIN
    IF tag !~ ' (SCHEMA|EXTENSION|PUBLICATION|LANGUAGE)$' THEN
        RETURN '[]';
    ELSIF (SELECT r.rolsuper FROM pg_roles r WHERE r.rolname = role) THEN
        RETURN '[]';
    END IF;
    names := jsonb_build_array(role, 'public') || jsonb_path_query_array(pgherd.rights_of(role), '$[*][0]');
    RETURN (SELECT coalesce(jsonb_agg(jsonb_build_array(g.grantee, g.privilege)), '[]') FROM pgherd.database_grants g
             WHERE g.privilege = 'CREATE' AND names ? g.grantee);
END $$;

-- On another member, before it executes a command: what it rests on and what was taken away here, which is not ordered
-- yet, is given back. A role is the one that all members know by that name, and not one that has taken its name here.
CREATE OR REPLACE FUNCTION pgherd.ensure_roles(names jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    missing text[] := array(SELECT s.key[2] FROM pgherd.shared s
                             WHERE s.key[1] = 'role' AND names ? s.key[2]
                               AND NOT EXISTS (SELECT FROM pgherd.shared_roles r WHERE r.oid = s.id AND r.name = s.key[2]));
    former  pgherd.shared[];
    r       text;
BEGIN
    IF missing <> '{}' THEN
        PERFORM pgherd.make_room(missing, true);
        former := array(SELECT s FROM pgherd.shared s WHERE s.key[1] = 'role' AND s.key[2] = ANY (missing)
                                                        AND NOT EXISTS (SELECT FROM pgherd.shared_roles a WHERE a.oid = s.id));
        PERFORM pgherd.restore_documents(jsonb_agg(to_jsonb(s.key)))
           FROM pgherd.shared s WHERE s.key[2:] && array(SELECT f.key[2] FROM unnest(former) f);
        UPDATE pgherd.owners o SET owner = s.id
          FROM unnest(former) f JOIN pgherd.shared s ON s.key = f.key WHERE o.owner = f.id AND s.id IS NOT NULL;
        PERFORM pgherd.tell_undone(format('role %I is there again: a command of another member needs it', f.key[2])) FROM unnest(former) f;
        PERFORM pgherd.restore_owners();
    END IF;
    FOR r IN SELECT n.name FROM jsonb_array_elements_text(names) AS n(name)
              WHERE NOT starts_with(n.name, 'pg_') AND NOT EXISTS (SELECT FROM pg_roles a WHERE a.rolname = n.name) LOOP
        EXECUTE format('CREATE ROLE %I', r); -- it may do nothing, and nobody can log in
        PERFORM pgherd.remember(ARRAY['role', r]);
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION pgherd.ensure_rights(rights jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE g record;
BEGIN
    PERFORM pgherd.ensure_roles(jsonb_path_query_array(rights, '$[*][*]'));
    FOR g IN SELECT p.pair ->> 0 AS role, p.pair ->> 1 AS member FROM jsonb_array_elements(rights) AS p(pair)
             EXCEPT SELECT k.role, k.member FROM pgherd.grants k LOOP
        PERFORM pgherd.restore_documents(jsonb_agg(to_jsonb(s.key)))
           FROM pgherd.shared s WHERE s.key[1] = 'member' AND s.key[2:3] = ARRAY[g.role, g.member];
        PERFORM pgherd.tell_undone(format('role %I is a member of %I again: a command of another member needs it', g.member, g.role));
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION pgherd.ensure_database_rights(rights jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE g record;
BEGIN
    FOR g IN SELECT p.pair ->> 0 AS grantee, p.pair ->> 1 AS privilege FROM jsonb_array_elements(rights) AS p(pair)
             EXCEPT SELECT k.grantee, k.privilege FROM pgherd.database_grants k LOOP
        PERFORM pgherd.restore_documents(
            jsonb_build_array(jsonb_build_array('database', CASE g.grantee WHEN 'public' THEN '' ELSE g.grantee END)));
        PERFORM pgherd.tell_undone(
            format('%s has %s on the database again: a command of another member needs it', g.grantee, g.privilege));
    END LOOP;
END $$;

-- All that a command of another member rests on.
CREATE OR REPLACE FUNCTION pgherd.ensure_ground(command jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgherd.ensure_roles(command -> 'roles'), pgherd.ensure_rights(command -> 'grants'),
            pgherd.ensure_database_rights(command -> 'database');
END $$;

-- Nobody else changes roles and the like here until the transaction ends; who only reads them, or logs in, goes on.
CREATE OR REPLACE FUNCTION pgherd.lock_roles() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    LOCK TABLE pg_authid, pg_auth_members, pg_db_role_setting, pg_parameter_acl, pg_database, pg_shdescription
            IN SHARE ROW EXCLUSIVE MODE;
    PERFORM set_config('pgherd.roles_are_locked', 'on', true);
END $$;

CREATE OR REPLACE FUNCTION pgherd.roles_are_locked() RETURNS bool
LANGUAGE sql STABLE RETURN coalesce(current_setting('pgherd.roles_are_locked', true), '') = 'on';

-- Does for an ordered command what changes roles here. Sessions here change the same, and there is no lock of one role:
-- "tuple concurrently updated", or a role is there that was not there a moment before, or has no name any more. Who has lost
-- such a race once excludes them. It is not done at once, because a transaction that has changed a role and waits for its verdict would be
-- in the way.
CREATE OR REPLACE FUNCTION pgherd.change_roles(step text, command jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE format('SELECT pgherd.%I($1)', step) USING command;
EXCEPTION WHEN internal_error OR unique_violation OR duplicate_object OR undefined_object OR null_value_not_allowed THEN
    IF pgherd.roles_are_locked() THEN
        RAISE;
    END IF;
    PERFORM pgherd.lock_roles();
    EXECUTE format('SELECT pgherd.%I($1)', step) USING command;
END $$;
