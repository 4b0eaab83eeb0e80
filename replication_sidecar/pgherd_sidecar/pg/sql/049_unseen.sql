-- Changes of which PostgreSQL tells no event trigger: roles, memberships, settings, privileges on the database and on
-- parameters (046), owners by REASSIGN OWNED (048). The member where somebody has made them finds them by comparing its
-- catalogs with what all members have, and has them ordered: before its next command, which may rest on them, and if there
-- is none by its sidecar. The transaction of a command holds the turn (043), so that nobody orders the same twice.
--
-- What is ordered are the documents that differ, and of each only the attributes that do. So changes of different
-- attributes of one role on two members both stand, and of one attribute the later in the order: a member that has
-- changed it and has not had that ordered yet keeps its own value, and then orders it.
--
-- That is so for one role only: the one that all members know by its name. Each has its number, by which a new name is
-- told from another role. Where the order gives a name to a role, by CREATE or by RENAME, whoever has that name here by a
-- change that is not ordered yet gives way: a renamed role has its former name again, and one that was made is dropped.
-- Nor does anything stand that was changed here of a role that became a superuser or the like elsewhere, or here while it
-- was changed elsewhere. So a role has no rights that came from two members and that one server would not have given it.
-- What is taken back is told of (undone).

CREATE OR REPLACE FUNCTION pgherd.renamed_key(key text[], renames jsonb) RETURNS text[]
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN key[1:1] || array(SELECT coalesce((SELECT r.pair ->> 1 FROM jsonb_array_elements(renames) AS r(pair) WHERE r.pair ->> 0 = k.part), k.part)
                           FROM unnest(key[2:]) WITH ORDINALITY AS k(part, place) ORDER BY k.place);

-- The attributes in which a document differs from an older one, or all; null for those that are gone. `null` for all of it.
CREATE OR REPLACE FUNCTION pgherd.document_change(older jsonb, newer jsonb, whole bool) RETURNS jsonb
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN CASE WHEN newer IS NULL THEN 'null' ELSE (
           SELECT coalesce(jsonb_object_agg(u.name, coalesce(newer -> u.name, 'null')), '{}')
             FROM (SELECT jsonb_object_keys(newer) AS name UNION SELECT jsonb_object_keys(coalesce(older, '{}'))) u
            WHERE whole OR newer -> u.name IS DISTINCT FROM older -> u.name) END;

-- A document of which nothing is left.
CREATE OR REPLACE FUNCTION pgherd.emptied(value jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN (SELECT coalesce(jsonb_object_agg(k.name, 'null'::jsonb), '{}') FROM jsonb_object_keys(value) AS k(name));

-- Roles that have another name here than all members know, as pairs of that and this.
CREATE OR REPLACE FUNCTION pgherd.unseen_renames() RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT coalesce(jsonb_agg(jsonb_build_array(s.key[2], r.name)), '[]')
              FROM pgherd.shared s JOIN pgherd.shared_roles r ON r.oid = s.id
             WHERE s.key[1] = 'role' AND s.key[2] <> r.name);
END $$;

-- Roles that all members know and that were dropped here; some were made anew, and are other roles.
CREATE OR REPLACE FUNCTION pgherd.unseen_drops() RETURNS text[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN array(SELECT s.key[2] FROM pgherd.shared s
                  WHERE s.key[1] = 'role' AND NOT EXISTS (SELECT FROM pgherd.shared_roles r WHERE r.oid = s.id) ORDER BY 1);
END $$;

-- The documents that differ from what all members have, once roles are dropped, with all that is known of them, and renamed.
--   whole  those that name one of these roles are given with all that they say, whether they differ or not
CREATE OR REPLACE FUNCTION pgherd.unseen_documents(renames jsonb, whole text[], OUT key text[], OUT change jsonb) RETURNS SETOF record
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    dropped text[] := pgherd.unseen_drops();
BEGIN
    RETURN QUERY
    SELECT key, pgherd.document_change(o.value, n.value, coalesce(key[2:] && whole, false))
      FROM (SELECT CASE renames WHEN '[]' THEN s.key ELSE pgherd.renamed_key(s.key, renames) END AS key, s.value
              FROM pgherd.shared s WHERE NOT s.key[2:] && dropped) o
      FULL JOIN (SELECT * FROM pgherd.shared_now()) n USING (key)
     WHERE o.value IS DISTINCT FROM n.value OR key[2:] && whole;
    RETURN QUERY
    SELECT ARRAY['role', d.name], 'null'::jsonb FROM unnest(dropped) AS d(name)
     WHERE NOT EXISTS (SELECT FROM pgherd.shared_roles r WHERE r.name = d.name);
END $$;

-- In words, for people: what this member has changed and nobody else knows, and what could not be brought about here.
CREATE OR REPLACE FUNCTION pgherd.document_name(key text[]) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN CASE key[1] WHEN 'role' THEN format('role %I', key[2])
                   WHEN 'member' THEN format('membership of %I in %I', key[3], key[2])
                   WHEN 'setting here' THEN format('settings of %s in this database', coalesce(quote_ident(nullif(key[2], '')), 'everybody'))
                   WHEN 'setting all' THEN format('settings of %s', coalesce(quote_ident(nullif(key[2], '')), 'everybody'))
                   WHEN 'database' THEN format('privileges of %s on the database', coalesce(quote_ident(nullif(key[2], '')), 'everybody'))
                   WHEN 'parameter' THEN format('privileges of %s on parameters', coalesce(quote_ident(nullif(key[2], '')), 'everybody'))
                   ELSE 'the database' END;

-- Documents that all members have are about to change, so the next look reads all of them.
CREATE OR REPLACE FUNCTION pgherd.look_again() RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    UPDATE pgherd.shared_seen SET print = pg_current_xact_id()::text;
END;

-- Looks, for the sidecar. Where a role that may not log in here, or that is set aside, was let in, it is kept out again.
CREATE OR REPLACE FUNCTION pgherd.look_for_unseen(OUT unseen text[], OUT failed text[], OUT undone text[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET TimeZone = 'UTC' AS $$
DECLARE
    seen      text := (SELECT s.print FROM pgherd.shared_seen s); -- before all else is read
    print_now text := pgherd.roles_fingerprint();
    renames   jsonb;
    r         text;
BEGIN
    unseen := '{}';
    IF print_now IS DISTINCT FROM seen THEN
        FOR r IN SELECT a.rolname FROM pg_roles a WHERE a.rolcanlogin
                   AND (pgherd.is_kept_out(a.rolname) OR EXISTS (SELECT FROM pgherd.set_aside k WHERE k.id = a.oid)) LOOP
            EXECUTE format('ALTER ROLE %I NOLOGIN', r);
        END LOOP;
        renames := pgherd.unseen_renames();
        unseen := array(SELECT pgherd.document_name(d.key) FROM pgherd.unseen_documents(renames, '{}') d
                        UNION SELECT format('name of role %I', p.pair ->> 0) FROM jsonb_array_elements(renames) AS p(pair) ORDER BY 1);
        IF unseen = '{}' AND print_now = pgherd.roles_fingerprint() THEN
            -- Nobody is waited for: a command that is under way holds the row, since it changes what all members have, and
            -- one that was under way has left another value. If it had not, a role that it made, and that is dropped
            -- here before the next look, would leave the catalogs as they are noted, and its end would never be ordered.
            UPDATE pgherd.shared_seen k SET print = print_now
             WHERE k.only_row IN (SELECT o.only_row FROM pgherd.shared_seen o WHERE o.print = seen FOR UPDATE SKIP LOCKED);
        END IF;
    END IF;
    IF EXISTS (SELECT FROM pgherd.set_aside) THEN
        PERFORM pgherd.drop_set_aside();
    END IF;
    failed := array(SELECT pgherd.document_name(f.key) || ': ' || f.reason FROM pgherd.shared_failures f
                    UNION ALL SELECT format('role %I: ', r.rolname) || k.reason FROM pgherd.set_aside k JOIN pg_roles r ON r.oid = k.id
                    ORDER BY 1);
    undone := array(SELECT to_char(u.at, 'YYYY-MM-DD HH24:MI:SS') || ': ' || u.what FROM pgherd.undone u
                     WHERE u.at > now() - interval '1 day' ORDER BY u.at);
END $$;

-- Drops roles of which nothing is left.
CREATE OR REPLACE FUNCTION pgherd.drop_set_aside() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE r text;
BEGIN
    FOR r IN SELECT a.rolname FROM pgherd.set_aside k JOIN pg_roles a ON a.oid = k.id
              WHERE NOT EXISTS (SELECT FROM pg_shdepend d WHERE d.refclassid = 'pg_authid'::regclass AND d.refobjid = k.id
                                                   AND d.classid <> 'pg_auth_members'::regclass) LOOP
        EXECUTE format('DROP ROLE IF EXISTS %I', r);
    END LOOP;
    DELETE FROM pgherd.set_aside k WHERE NOT EXISTS (SELECT FROM pg_roles a WHERE a.oid = k.id);
END $$;

-- Notes what all members have now.
CREATE OR REPLACE FUNCTION pgherd.note_change(document text[], change jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF change = 'null' THEN
        DELETE FROM pgherd.shared s WHERE s.key = document;
    ELSE -- a role keeps its number: who has its name here may be another one
        INSERT INTO pgherd.shared AS s (key, value, id)
        VALUES (document, jsonb_strip_nulls(change),
                CASE WHEN document[1] = 'role' THEN (SELECT r.oid FROM pgherd.shared_roles r WHERE r.name = document[2]) END)
            ON CONFLICT (key) DO UPDATE SET value = jsonb_strip_nulls(s.value || change);
    END IF;
END $$;

-- Likewise, that roles are gone, with all that is known of them.
CREATE OR REPLACE FUNCTION pgherd.note_drops(names text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF names <> '{}' THEN
        DELETE FROM pgherd.shared s WHERE s.key[2:] && names;
        DELETE FROM pgherd.role_limits l WHERE l.name = ANY (names);
        DELETE FROM pgherd.shared_failures f WHERE f.key[2:] && names;
    END IF;
END $$;

-- Notes a document as it is here.
CREATE OR REPLACE FUNCTION pgherd.remember(document text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgherd.look_again();
    INSERT INTO pgherd.shared AS s SELECT * FROM pgherd.shared_now() n WHERE n.key = document
        ON CONFLICT (key) DO UPDATE SET value = EXCLUDED.value, id = EXCLUDED.id;
END $$;

-- Two roles may have exchanged their names: all that is known of both is taken away first.
CREATE OR REPLACE FUNCTION pgherd.note_renames(renames jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    documents pgherd.shared[];
    limits    pgherd.role_limits[];
BEGIN
    IF renames <> '[]' THEN
        WITH gone AS (DELETE FROM pgherd.shared s WHERE pgherd.renamed_key(s.key, renames) <> s.key RETURNING s.key, s.value, s.id)
        SELECT array_agg(ROW(pgherd.renamed_key(g.key, renames), g.value, g.id)::pgherd.shared) INTO documents FROM gone g;
        INSERT INTO pgherd.shared SELECT d.* FROM unnest(documents) d
            ON CONFLICT (key) DO UPDATE SET value = EXCLUDED.value, id = EXCLUDED.id;
        WITH gone AS (DELETE FROM pgherd.role_limits l USING jsonb_array_elements(renames) AS r(pair)
                       WHERE l.name = r.pair ->> 0 RETURNING r.pair ->> 1 AS name, l.nodes)
        SELECT array_agg(ROW(g.name, g.nodes)::pgherd.role_limits) INTO limits FROM gone g;
        INSERT INTO pgherd.role_limits SELECT l.* FROM unnest(limits) l ON CONFLICT (name) DO UPDATE SET nodes = EXCLUDED.nodes;
    END IF;
END $$;

-- On the member where something was changed, before a command or a request of its own: puts it among the captured rows.
--   named   roles of which all is ordered, whether it has changed or not
--   owners  those of before the command, which has ended and may have given others: they are noted after it
CREATE OR REPLACE FUNCTION pgherd.put_unseen(
    x xid8, base int8, hoisted bool, named text[] DEFAULT '{}', owners jsonb DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    moved   jsonb := coalesce(owners, pgherd.moved_owners_named());
    renames jsonb := '[]';
    dropped text[] := '{}';
    changes jsonb;
    now_is  text;
BEGIN
    IF NOT (SELECT n.writable FROM pgherd.node n) OR current_setting('transaction_isolation') = 'serializable' THEN
        RETURN; -- no command is ordered
    END IF;
    now_is := pgherd.roles_fingerprint(); -- before all else is read
    IF named <> '{}' OR now_is IS DISTINCT FROM (SELECT s.print FROM pgherd.shared_seen s) THEN
        renames := pgherd.unseen_renames();
        dropped := pgherd.unseen_drops();
        SELECT jsonb_agg(jsonb_build_array(to_jsonb(d.key), d.change) ORDER BY d.key) INTO changes
          FROM pgherd.unseen_documents(renames, named) d;
    END IF;
    IF moved = '[]' AND renames = '[]' AND dropped = '{}' AND changes IS NULL THEN
        RETURN;
    END IF;
    changes := coalesce(changes, '[]');
    BEGIN
        UPDATE pgherd.shared_seen SET print = now_is;
    EXCEPTION WHEN lock_not_available THEN -- after the second that start_command waits
        RAISE EXCEPTION 'another session changes roles or privileges' USING ERRCODE = '40001', HINT = 'Repeat the command.';
    END;
    PERFORM pgherd.note_drops(dropped);
    PERFORM pgherd.note_renames(renames);
    PERFORM pgherd.note_change(array(SELECT jsonb_array_elements_text(c.one -> 0)), c.one -> 1) FROM jsonb_array_elements(changes) AS c(one);
    DELETE FROM pgherd.shared_failures f WHERE to_jsonb(f.key) IN (SELECT c.one -> 0 FROM jsonb_array_elements(changes) AS c(one));
    IF owners IS NULL THEN
        PERFORM pgherd.take_owners(moved);
    END IF;
    PERFORM pgherd.put_command(x, base, '{}', false,
        jsonb_build_object('act', 'unseen', 'dropped', dropped, 'renames', renames, 'changes', changes, 'owners', moved, 'forced', named,
                           'leaves_tables', true, 'version', current_setting('server_version_num')::int,
                           'roles', '[]'::jsonb), hoisted);
END $$;

-- Every member executes the script of an extension. A role that it made there would be another one than here: only the
-- first that is ordered could keep the name, and with it what the script grants (see above). A script that finds its roles
-- makes none.
CREATE OR REPLACE FUNCTION pgherd.check_script_roles() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    made     oid[] := array(SELECT a.oid FROM pg_authid a JOIN pgherd.shared_roles r ON r.oid = a.oid
                             WHERE pgherd.is_new(a.xmin)
                               AND NOT EXISTS (SELECT FROM pgherd.shared s WHERE s.key[1] = 'role' AND s.id = a.oid));
    commands text;
BEGIN
    IF made <> '{}' THEN
        SELECT string_agg(c.command, '; ' ORDER BY c.place, c.id) INTO commands FROM (
            SELECT 1, a.oid, concat('CREATE ROLE ', a.oid::regrole, CASE WHEN a.rolcanlogin THEN ' LOGIN' END,
                             CASE WHEN a.rolsuper THEN ' SUPERUSER' END, CASE WHEN NOT a.rolinherit THEN ' NOINHERIT' END,
                             CASE WHEN a.rolcreatedb THEN ' CREATEDB' END, CASE WHEN a.rolcreaterole THEN ' CREATEROLE' END,
                             CASE WHEN a.rolreplication THEN ' REPLICATION' END, CASE WHEN a.rolbypassrls THEN ' BYPASSRLS' END)
              FROM pg_authid a WHERE a.oid = ANY (made)
            UNION ALL
            SELECT 2, m.member, format('GRANT %s TO %s%s', m.roleid::regrole, m.member::regrole, CASE WHEN m.admin_option THEN ' WITH ADMIN OPTION' END)
              FROM pg_auth_members m
             WHERE (m.roleid = ANY (made) OR m.member = ANY (made))) AS c(place, id, command);
        PERFORM pgherd.refuse('the script of an extension makes roles: '
                              || (SELECT string_agg(u.id::regrole::text, ', ' ORDER BY u.id) FROM unnest(made) AS u(id)),
            'Each member would make roles of its own. If the script makes only those that it does not find, make them'
            || ' before, and repeat: ' || commands || ';');
    END IF;
END $$;

-- ---- on the other members

-- A role that is no business of other members has that name.
CREATE OR REPLACE FUNCTION pgherd.is_of_this_member(role text) RETURNS bool
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN EXISTS (SELECT FROM pg_roles r WHERE r.rolname = role AND NOT EXISTS (SELECT FROM pgherd.shared_roles s WHERE s.oid = r.oid));
END $$;

-- A name that nobody can have: nobody could guess it.
CREATE OR REPLACE FUNCTION pgherd.rename_for_now(id oid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET client_min_messages = warning AS $$
BEGIN
    EXECUTE format('ALTER ROLE %I RENAME TO %I', (SELECT r.rolname FROM pg_roles r WHERE r.oid = id), 'pgherd_' || gen_random_uuid());
END $$;

-- Drops a role, and what it has and has given of that which documents tell of. One that owns something in another database
-- of this server, or is named in its privileges, stays, under a name that no command means. It may not log in, has no rights
-- of other roles, and nobody has its rights.
--   former  the name under which it is told of
CREATE OR REPLACE FUNCTION pgherd.remove_role(id oid, former text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET client_min_messages = warning AS $$
DECLARE
    name    text := (SELECT r.rolname FROM pg_roles r WHERE r.oid = id);
    version int  := current_setting('server_version_num')::int;
    command text;
    reason  text;
    detail  text;
BEGIN
    FOR command IN
        SELECT format('REVOKE %I FROM %I GRANTED BY %I CASCADE', r.rolname, m.rolname, name)
          FROM pg_auth_members a JOIN pg_roles r ON r.oid = a.roleid JOIN pg_roles m ON m.oid = a.member
         WHERE a.grantor = id AND version >= 160000
        UNION ALL
        SELECT c.c FROM pgherd.shared_now() n
         CROSS JOIN LATERAL pgherd.document_commands(n.key, pgherd.emptied(n.value), version, true) AS c(c)
         WHERE n.key[1] IN ('database', 'parameter') AND n.key[2] = name LOOP
        EXECUTE command;
    END LOOP;
    BEGIN
        EXECUTE format('DROP ROLE %I', name);
    EXCEPTION WHEN dependent_objects_still_exist THEN
        GET STACKED DIAGNOSTICS reason = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL;
        reason := replace(reason, name, former) || ': ' || detail;
        FOR command IN
            SELECT format('REVOKE %I FROM %I%s CASCADE', r.rolname, m.rolname,
                          CASE WHEN version >= 160000 THEN format(' GRANTED BY %I', g.rolname) ELSE '' END)
              FROM pg_auth_members a JOIN pg_roles r ON r.oid = a.roleid JOIN pg_roles m ON m.oid = a.member
              LEFT JOIN pg_roles g ON g.oid = a.grantor
             WHERE id IN (a.roleid, a.member) LOOP
            EXECUTE command;
        END LOOP;
        EXECUTE format('ALTER ROLE %I NOLOGIN NOSUPERUSER NOCREATEROLE NOCREATEDB NOREPLICATION NOBYPASSRLS PASSWORD NULL', name);
        EXECUTE format('ALTER ROLE %I RESET ALL', name);
        PERFORM pgherd.rename_for_now(id);
        INSERT INTO pgherd.set_aside VALUES (id, reason);
        RAISE WARNING 'role % stays on this member as %: %', former, (SELECT r.rolname FROM pg_roles r WHERE r.oid = id), reason;
    END;
END $$;

-- Nobody has one of these names here any more who is known to nobody else.
CREATE OR REPLACE FUNCTION pgherd.remove_strangers(names text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET client_min_messages = warning AS $$
DECLARE r record;
BEGIN
    FOR r IN SELECT a.oid, a.name FROM pgherd.shared_roles a
              WHERE a.name = ANY (names) AND NOT EXISTS (SELECT FROM pgherd.shared s WHERE s.id = a.oid) LOOP
        PERFORM pgherd.remove_role(r.oid, r.name);
        PERFORM pgherd.tell_undone(format('role %I, made here, is gone: of that name is one that another member knew first', r.name));
    END LOOP;
    PERFORM pgherd.rename_for_now(k.id) FROM pgherd.set_aside k JOIN pg_roles a ON a.oid = k.id WHERE a.rolname = ANY (names);
END $$;

-- Has nobody stand here under these names who got them by a change that is not ordered yet.
--   known  they are those of roles that all members know, and these shall have them
CREATE OR REPLACE FUNCTION pgherd.make_room(names text[], known bool) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET client_min_messages = warning AS $$
DECLARE
    renamed jsonb := pgherd.unseen_renames();
    former  text[] := array(SELECT p.pair ->> 0 FROM jsonb_array_elements(renamed) AS p(pair));
    r       record;
BEGIN
    IF EXISTS (SELECT FROM jsonb_array_elements(renamed) AS p(pair)
                WHERE p.pair ->> 1 = ANY (names) OR known AND p.pair ->> 0 = ANY (names)) THEN
        FOR r IN SELECT s.id FROM pgherd.shared s WHERE s.key[1] = 'role' AND s.key[2] = ANY (former) LOOP
            PERFORM pgherd.rename_for_now(r.id);
        END LOOP;
        PERFORM pgherd.remove_strangers(former);
        FOR r IN SELECT p.pair ->> 0 AS name, p.pair ->> 1 AS here, a.rolname AS now_is, s.value ->> 'PASSWORD' AS password
                   FROM jsonb_array_elements(renamed) AS p(pair)
                   JOIN pgherd.shared s ON s.key = ARRAY['role', p.pair ->> 0] JOIN pg_roles a ON a.oid = s.id
                  WHERE NOT pgherd.is_of_this_member(p.pair ->> 0) LOOP -- see rename_roles()
            EXECUTE format('ALTER ROLE %I RENAME TO %I', r.now_is, r.name);
            IF r.password LIKE 'md5%' THEN -- a new name takes it away
                EXECUTE format('ALTER ROLE %I PASSWORD %L', r.name, r.password);
            END IF;
            PERFORM pgherd.tell_undone(format('role %I, renamed here, is %I again: a change of another member came first', r.here, r.name));
        END LOOP;
    END IF;
    PERFORM pgherd.remove_strangers(names);
END $$;

-- Has roles be gone, and others have new names; returns those that are gone, which are dropped in the end.
CREATE OR REPLACE FUNCTION pgherd.rename_roles(dropped text[], renames jsonb, OUT gone oid[], OUT gone_names text[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET client_min_messages = warning AS $$
DECLARE
    renamed oid[];
    r       record;
BEGIN
    SELECT array_agg(a.oid ORDER BY a.oid), array_agg(s.key[2] ORDER BY a.oid) INTO gone, gone_names
      FROM pgherd.shared s JOIN pgherd.shared_roles a ON a.oid = s.id WHERE s.key[1] = 'role' AND s.key[2] = ANY (dropped);
    -- One that has a new name here already, by a change that is not ordered yet, keeps it until that is.
    renamed := array(SELECT a.oid FROM jsonb_array_elements(renames) AS p(pair) JOIN pgherd.shared s ON s.key = ARRAY['role', p.pair ->> 0]
                       JOIN pgherd.shared_roles a ON a.oid = s.id AND a.name = s.key[2]);
    PERFORM pgherd.rename_for_now(u.id) FROM unnest(gone || renamed) AS u(id);
    PERFORM pgherd.note_drops(dropped), pgherd.note_renames(renames);
    FOR r IN SELECT a.name, s.key[2] AS new FROM pgherd.shared s JOIN pgherd.shared_roles a ON a.oid = s.id
              WHERE s.key[1] = 'role' AND a.oid = ANY (renamed) LOOP
        IF pgherd.is_of_this_member(r.new) THEN -- this member orders that it is called on all as it is here now
            PERFORM pgherd.tell_undone(format('role %I is called %I: a role of this member alone has that name', r.new, r.name));
        ELSE
            EXECUTE format('ALTER ROLE %I RENAME TO %I', r.name, r.new);
        END IF;
    END LOOP;
END $$;

-- One attribute of a setting's text as words: lists are kept as quoted names, and quoting them once more would make them one.
CREATE OR REPLACE FUNCTION pgherd.setting_words(name text, value text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN CASE WHEN name IN ('local_preload_libraries', 'search_path', 'session_preload_libraries', 'shared_preload_libraries',
                          'temp_tablespaces', 'unix_socket_directories')
            THEN coalesce((SELECT string_agg(quote_literal(CASE WHEN m.part[1] LIKE '"%' THEN replace(substr(m.part[1], 2, length(m.part[1]) - 2), '""', '"')
                                                                ELSE m.part[1] END), ', ')
                             FROM regexp_matches(value, '("(?:[^"]|"")*"|[^,[:space:]"]+)', 'g') AS m(part)), '''''')
            ELSE quote_literal(value) END;

-- The commands that make a document here what `change` says. `version` is its origin's.
--   through  a membership is taken away with those that rest on it
CREATE OR REPLACE FUNCTION pgherd.document_commands(key text[], change jsonb, version int, through bool) RETURNS SETOF text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    here text := quote_ident(current_database());
    whom text := CASE key[2] WHEN '' THEN 'PUBLIC' ELSE quote_ident(key[2]) END;
    a    record;
BEGIN
    IF key[1] = 'role' THEN
        IF pgherd.is_of_this_member(key[2]) THEN
            RAISE EXCEPTION 'a role of this member alone has that name' USING ERRCODE = '42710';
        ELSIF NOT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = key[2]) THEN
            RETURN NEXT format('CREATE ROLE %s', whom);
        END IF;
        RETURN QUERY
        SELECT format('ALTER ROLE %s %s', whom, string_agg(
                   CASE WHEN e.name = 'LOGIN' AND pgherd.is_kept_out(key[2]) THEN 'NOLOGIN'
                        WHEN jsonb_typeof(e.value) = 'boolean' THEN CASE WHEN e.value = 'true' THEN '' ELSE 'NO' END || e.name
                        WHEN e.name = 'VALID UNTIL' THEN 'VALID UNTIL ' || quote_literal(coalesce(e.value #>> '{}', 'infinity'))
                        WHEN e.name = 'CONNECTION LIMIT' THEN 'CONNECTION LIMIT ' || (e.value #>> '{}')::int
                        WHEN e.name = 'PASSWORD' THEN 'PASSWORD ' || quote_nullable(e.value #>> '{}') END, ' '))
          FROM jsonb_each(change) AS e(name, value) WHERE e.name <> 'COMMENT' HAVING count(*) > 0;
        IF change ? 'COMMENT' THEN
            RETURN NEXT format('COMMENT ON ROLE %s IS %L', whom, change ->> 'COMMENT');
        END IF;
    ELSIF key[1] = 'member' THEN
        IF change = 'null' THEN
            RETURN QUERY
            SELECT format('REVOKE %I FROM %I%s%s', key[2], key[3],
                          CASE WHEN current_setting('server_version_num')::int >= 160000 THEN format(' GRANTED BY %I', g.rolname) ELSE '' END,
                          CASE WHEN through THEN ' CASCADE' ELSE '' END)
              FROM pg_auth_members m JOIN pg_roles r ON r.oid = m.roleid JOIN pg_roles k ON k.oid = m.member
              LEFT JOIN pg_roles g ON g.oid = m.grantor
             WHERE r.rolname = key[2] AND k.rolname = key[3]
               AND (least(version, current_setting('server_version_num')::int) < 160000
                    OR g.rolname = key[4] OR key[4] = '' AND NOT EXISTS (SELECT FROM pgherd.shared_roles s WHERE s.oid = m.grantor));
        ELSIF current_setting('server_version_num')::int >= 160000 THEN
            RETURN NEXT format('GRANT %I TO %I%s GRANTED BY %I', key[2], key[3],
                (SELECT ' WITH ' || string_agg(e.name || ' ' || e.value, ', ') FROM jsonb_each_text(change) AS e(name, value)
                  WHERE e.value IS NOT NULL),
                coalesce(nullif(key[4], ''), pg_get_userbyid(10)::text));
        ELSE
            IF change ->> 'ADMIN' = 'false' THEN
                RETURN NEXT format('REVOKE ADMIN OPTION FOR %I FROM %I CASCADE', key[2], key[3]);
            END IF;
            RETURN NEXT format('GRANT %I TO %I%s', key[2], key[3], CASE WHEN change ->> 'ADMIN' = 'true' THEN ' WITH ADMIN OPTION' ELSE '' END);
        END IF;
    ELSIF key[1] LIKE 'setting%' THEN
        whom := CASE WHEN key[2] <> '' THEN format('ROLE %I', key[2]) || CASE key[1] WHEN 'setting here' THEN ' IN DATABASE ' || here ELSE '' END
                     WHEN key[1] = 'setting here' THEN 'DATABASE ' || here ELSE 'ROLE ALL' END;
        RETURN QUERY SELECT format('ALTER %s ', whom) || CASE WHEN e.value IS NULL THEN format('RESET %I', e.name)
                                                              ELSE format('SET %I TO ', e.name) || pgherd.setting_words(e.name, e.value) END
                       FROM jsonb_each_text(change) AS e(name, value);
    ELSIF key[1] IN ('database', 'parameter') THEN
        FOR a IN SELECT e.value, CASE key[1] WHEN 'database' THEN e.name ELSE split_part(e.name, ' ON ', 1) END AS privilege,
                        CASE key[1] WHEN 'database' THEN 'DATABASE ' || here
                                    ELSE 'PARAMETER ' || quote_ident(split_part(e.name, ' ON ', 2)) END AS object
                   FROM jsonb_each_text(change) AS e(name, value) LOOP
            IF a.value IS NULL THEN
                RETURN NEXT format('REVOKE %s ON %s FROM %s CASCADE', a.privilege, a.object, whom);
            ELSIF a.value = 'true' THEN
                RETURN NEXT format('GRANT %s ON %s TO %s WITH GRANT OPTION', a.privilege, a.object, whom);
            ELSE
                IF whom <> 'PUBLIC' THEN
                    RETURN NEXT format('REVOKE GRANT OPTION FOR %s ON %s FROM %s CASCADE', a.privilege, a.object, whom);
                END IF;
                RETURN NEXT format('GRANT %s ON %s TO %s', a.privilege, a.object, whom);
            END IF;
        END LOOP;
    ELSE
        RETURN QUERY SELECT CASE e.name WHEN 'COMMENT' THEN format('COMMENT ON DATABASE %s IS %L', here, e.value)
                                        ELSE format('ALTER DATABASE %s CONNECTION LIMIT %s', here, e.value::int) END
                       FROM jsonb_each_text(change) AS e(name, value);
    END IF;
END $$;

-- Makes a document here what `change` says. What can't be done here (a version that has no such setting) is noted and told
-- of; nobody has less for it. Errors that pass are the caller's. False where a membership cannot be given or taken yet.
--   through  take it away with what rests on it
--   finally  nothing is to come on which it could rest
CREATE OR REPLACE FUNCTION pgherd.carry_out(document text[], change jsonb, version int, through bool, finally bool) RETURNS bool
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET client_min_messages = warning AS $$
DECLARE command text;
BEGIN
    DELETE FROM pgherd.shared_failures f WHERE f.key = document;
    FOR command IN SELECT d.c FROM pgherd.document_commands(document, change, version, through) AS d(c) LOOP
        EXECUTE command;
    END LOOP;
    RETURN true;
EXCEPTION WHEN OTHERS THEN
    IF SQLSTATE ~ '^(40|53|57|58|XX)' OR SQLSTATE IN ('55P03', '55006')
       OR SQLSTATE IN ('23505', '42704', '42710') AND NOT pgherd.roles_are_locked() THEN -- see change_roles()
        RAISE;
    ELSIF SQLSTATE = '0LP01' OR SQLSTATE IN ('2BP01', '42501') AND NOT finally THEN
        RETURN false;
    END IF;
    INSERT INTO pgherd.shared_failures VALUES (document, SQLERRM) ON CONFLICT (key) DO UPDATE SET reason = EXCLUDED.reason;
    RAISE WARNING '% stays as it is on this member: %', pgherd.document_name(document), SQLERRM;
    RETURN true;
END $$;

-- Carries out changes of documents, each [key, change]. Memberships rest on each other: who grants one has to have his own
-- with ADMIN OPTION, none is taken away under another that stays, and none closes a circle that another one still makes. So
-- what cannot be done yet is tried again after the others, as long as that helps. In the end memberships are taken away with
-- all that rests on them here. Returns those that close a circle even so: one that was granted here and is not ordered yet
-- is in their way, and will stand.
CREATE OR REPLACE FUNCTION pgherd.carry_out_all(changes jsonb, version int) RETURNS jsonb
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    waiting jsonb;
    stage   int := 0;
    c       record;
BEGIN
    LOOP
        waiting := '[]';
        FOR c IN SELECT array(SELECT jsonb_array_elements_text(j.one -> 0)) AS key, j.one -> 1 AS change, j.one
                   FROM jsonb_array_elements(changes) WITH ORDINALITY AS j(one, place) ORDER BY j.place LOOP
            IF NOT pgherd.carry_out(c.key, c.change, version, stage > 0, stage > 1) THEN
                waiting := waiting || jsonb_build_array(c.one);
            END IF;
        END LOOP;
        EXIT WHEN waiting = '[]' OR stage > 1;
        IF waiting = changes THEN
            stage := stage + 1;
        END IF;
        changes := waiting;
    END LOOP;
    RETURN waiting;
END $$;

-- Is a role in this document a superuser, or does it replicate or pass by row security?
CREATE OR REPLACE FUNCTION pgherd.is_mighty(value jsonb) RETURNS bool
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN coalesce(value @> '{"SUPERUSER": true}' OR value @> '{"REPLICATION": true}' OR value @> '{"BYPASSRLS": true}', false);

-- Brings about documents of these kinds. forced: roles of which nothing that was changed here stands.
CREATE OR REPLACE FUNCTION pgherd.take_documents(changes jsonb, kinds text[], version int, forced text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    old     bool  := current_setting('server_version_num')::int < 160000;
    renamed jsonb := pgherd.unseen_renames();
    dropped text[] := pgherd.unseen_drops();
    taken   jsonb := '[]';
    wanted  jsonb := '[]';
    failed  jsonb;
    c       record;
    change  jsonb;
    kept    text[];
    names   text[];
BEGIN
    -- Memberships are taken away before others are given.
    FOR c IN SELECT d.key, d.change, s.value AS known, n.value AS here, pgherd.renamed_key(d.key, renamed) AS key_here,
                    coalesce(d.key[2:] && forced, false) AS is_forced
               FROM (SELECT CASE WHEN u.key[1] = 'member' AND old THEN u.key[1:3] || ''::text ELSE u.key END AS key,
                            CASE WHEN u.key[1] = 'member' AND old AND u.change <> 'null' THEN u.change - '{INHERIT,SET}'::text[]
                                 ELSE u.change END AS change, u.place
                       FROM (SELECT array(SELECT jsonb_array_elements_text(j.one -> 0)) AS key, j.one -> 1 AS change, j.place
                               FROM jsonb_array_elements(changes) WITH ORDINALITY AS j(one, place)) u
                      WHERE u.key[1] = ANY (kinds)) d
               LEFT JOIN pgherd.shared s ON s.key = d.key
               LEFT JOIN pgherd.shared_now() n ON n.key = pgherd.renamed_key(d.key, renamed)
              WHERE d.key[1] <> 'role' OR d.change <> 'null' -- see rename_roles()
              ORDER BY d.change <> 'null', coalesce(d.key[4], '') <> '', d.change ->> 'ADMIN' = 'false', d.place
    LOOP
        change := CASE c.change WHEN 'null' THEN pgherd.emptied(coalesce(c.known, c.here, '{}')) ELSE c.change END;
        kept := array(SELECT e.name FROM jsonb_each(change) AS e(name, value)
                       WHERE NOT c.is_forced AND c.here -> e.name IS DISTINCT FROM c.known -> e.name
                         AND c.here -> e.name IS DISTINCT FROM nullif(e.value, 'null'));
        IF NOT c.is_forced AND c.key[2:] && dropped THEN
            kept := array(SELECT jsonb_object_keys(change)); -- one was dropped here, who has its name now is another
        ELSIF c.key[1] = 'role' AND c.known IS DISTINCT FROM c.here AND NOT pgherd.is_mighty(c.known)
              AND (pgherd.is_mighty(c.here) OR pgherd.is_mighty(change)) THEN
            -- Whoever changed the other attributes may not change such a role, or has not seen what it is.
            change := pgherd.document_change(c.here, jsonb_strip_nulls(coalesce(c.known, '{}') || change), false);
            kept := '{}';
            IF NOT c.is_forced AND c.known IS NOT NULL THEN
                PERFORM pgherd.tell_undone(format('what was changed of role %I here does not stand: another member changed it first,'
                                                  ' and it is a superuser or the like', c.key[2]));
            END IF;
        END IF;
        names := array(SELECT jsonb_object_keys(change - kept));
        change := (SELECT coalesce(jsonb_object_agg(e.name, e.value), '{}') FROM jsonb_each(change - kept) AS e(name, value)
                    WHERE c.here -> e.name IS DISTINCT FROM nullif(e.value, 'null'));
        IF change <> '{}' THEN
            wanted := wanted || jsonb_build_array(jsonb_build_array(
                to_jsonb(c.key_here), CASE WHEN c.key[1] = 'member' AND c.change = 'null' THEN c.change ELSE change END));
        ELSE
            DELETE FROM pgherd.shared_failures f WHERE f.key = c.key_here;
        END IF;
        taken := taken || jsonb_build_array(jsonb_build_object('key', c.key, 'here', c.key_here, 'names', names, 'change', c.change));
    END LOOP;
    failed := pgherd.carry_out_all(wanted, version);
    PERFORM pgherd.note_change(t.key, coalesce(t.change, 'null')) FROM jsonb_to_recordset(taken) AS t(key text[], change jsonb);
    -- What could not be done here is told of, and is no change that this member has made.
    FOR c IN SELECT t.key, s.value AS known, n.id, n.value AS here, t.names
               FROM jsonb_to_recordset(taken) AS t(key text[], here text[], names text[])
               LEFT JOIN pgherd.shared s ON s.key = t.key LEFT JOIN pgherd.shared_now() n ON n.key = t.here
              WHERE NOT EXISTS (SELECT FROM jsonb_array_elements(failed) AS f(one) WHERE f.one -> 0 = to_jsonb(t.here)) LOOP
        change := (SELECT coalesce(jsonb_object_agg(u.name, coalesce(c.here -> u.name, 'null')), '{}') FROM unnest(c.names) AS u(name)
                    WHERE c.here -> u.name IS DISTINCT FROM c.known -> u.name);
        IF change <> '{}' THEN
            INSERT INTO pgherd.shared_failures VALUES (c.key, 'it is otherwise here') ON CONFLICT DO NOTHING;
            PERFORM pgherd.note_change(c.key, CASE WHEN c.here IS NULL THEN 'null' ELSE change END);
        END IF;
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION pgherd.take_unseen(command jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET session_replication_role = replica AS $$
DECLARE
    changes jsonb := command -> 'changes';
    renames jsonb := command -> 'renames';
    version int   := (command ->> 'version')::int;
    forced  text[] := array(SELECT jsonb_array_elements_text(command -> 'forced'));
    made    text[] := array(SELECT c.one -> 0 ->> 1 FROM jsonb_array_elements(changes) AS c(one)
                             WHERE c.one -> 0 ->> 0 = 'role' AND c.one -> 1 <> 'null');
    dropped text[] := array(SELECT jsonb_array_elements_text(command -> 'dropped'));
    gone    record;
BEGIN
    PERFORM pgherd.look_again();
    -- The names that the order gives to other roles than those that have them in it.
    PERFORM pgherd.make_room(
        array(SELECT p.pair ->> 1 FROM jsonb_array_elements(renames) AS p(pair)
              UNION SELECT m.name FROM unnest(made) AS m(name)
                     WHERE m.name = ANY (forced || dropped) OR NOT EXISTS (SELECT FROM pgherd.shared s WHERE s.key = ARRAY['role', m.name])
                           OR EXISTS (SELECT FROM jsonb_array_elements(renames) AS p(pair) WHERE p.pair ->> 0 = m.name)), false);
    gone := pgherd.rename_roles(dropped, renames);
    PERFORM pgherd.take_documents(changes, '{role}', version, forced);
    UPDATE pgherd.shared s SET id = r.oid FROM pgherd.shared_roles r -- was dropped here, and had to be made again
     WHERE s.key = ARRAY['role', r.name] AND r.name = ANY (forced) AND NOT EXISTS (SELECT FROM pg_roles o WHERE o.oid = s.id);
    PERFORM pgherd.take_owners(command -> 'owners');
    PERFORM pgherd.take_documents(changes, '{member,setting here,setting all,database,parameter,base}', version, forced);
    PERFORM pgherd.remove_role(u.id, u.name) FROM unnest(gone.gone, gone.gone_names) AS u(id, name);
END $$;

-- Makes documents what all members have: what was changed here and is not ordered is taken back. Roles have their names.
CREATE OR REPLACE FUNCTION pgherd.restore_documents(keys jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    differ jsonb := (SELECT jsonb_agg(jsonb_build_array(to_jsonb(s.key), pgherd.document_change(n.value, s.value, false))
                                      ORDER BY s.key[1] <> 'role', coalesce(s.key[4], '') <> '')
                       FROM pgherd.shared s LEFT JOIN pgherd.shared_now() n USING (key)
                      WHERE to_jsonb(s.key) IN (SELECT k.one FROM jsonb_array_elements(keys) AS k(one))
                        AND s.value IS DISTINCT FROM n.value);
BEGIN
    IF differ IS NULL THEN
        RETURN;
    END IF;
    PERFORM pgherd.look_again();
    PERFORM pgherd.carry_out_all(differ, current_setting('server_version_num')::int);
    PERFORM pgherd.remember(array(SELECT jsonb_array_elements_text(d.one -> 0))) FROM jsonb_array_elements(differ) AS d(one);
END $$;

-- A copy of a partner has what all members have, and not what somebody had just changed there.
CREATE OR REPLACE FUNCTION pgherd.restore_shared() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r record;
BEGIN
    PERFORM pgherd.make_room(array(SELECT s.key[2] FROM pgherd.shared s WHERE s.key[1] = 'role'), true);
    PERFORM pgherd.restore_documents(jsonb_agg(to_jsonb(s.key))) FROM pgherd.shared s;
    FOR r IN SELECT a.oid, a.name FROM pgherd.shared_roles a
              WHERE NOT EXISTS (SELECT FROM pgherd.shared s WHERE s.key = ARRAY['role', a.name]) LOOP
        PERFORM pgherd.remove_role(r.oid, r.name);
    END LOOP;
    PERFORM pgherd.carry_out_all(
        jsonb_agg(jsonb_build_array(to_jsonb(w.key), CASE WHEN w.key[1] = 'member' THEN 'null' ELSE pgherd.emptied(w.value) END)),
        current_setting('server_version_num')::int)
       FROM pgherd.shared_now() w WHERE w.key[1] <> 'role' AND NOT EXISTS (SELECT FROM pgherd.shared s WHERE s.key = w.key);
    DELETE FROM pgherd.undone; -- of the partner
END $$;

-- On any member: who may log in on some nodes only; for nodes null on all.
CREATE OR REPLACE FUNCTION pgherd.take_limit(command jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    role  text  := command -> 'limit' ->> 'role';
    nodes jsonb := command -> 'limit' -> 'nodes';
    had   bool  := pgherd.is_kept_out(role);
    known pgherd.shared;
    here  text;
BEGIN
    SELECT * INTO known FROM pgherd.shared s WHERE s.key = ARRAY['role', role];
    SELECT r.name INTO here FROM pgherd.shared_roles r WHERE r.oid = known.id; -- it may have another name here
    DELETE FROM pgherd.role_limits l WHERE l.name = role;
    IF nodes <> 'null' THEN
        INSERT INTO pgherd.role_limits VALUES (role, array(SELECT jsonb_array_elements_text(nodes)));
    END IF;
    IF had <> pgherd.is_kept_out(role) AND here IS NOT NULL THEN
        PERFORM pgherd.look_again();
        EXECUTE format('ALTER ROLE %I %s', here, CASE WHEN NOT had OR known.value -> 'LOGIN' <> 'true' THEN 'NOLOGIN' ELSE 'LOGIN' END);
    END IF;
END $$;
