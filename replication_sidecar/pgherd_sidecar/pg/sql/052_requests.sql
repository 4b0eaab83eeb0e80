-- Acts that a user asks of all members at once: SELECT pgherd.set_local('t') and the like.
--
-- A request is a row inserted by the user's own function call. Whose request it is says the default of
-- the column `role`, which nobody may set; a trigger with our rights does the rest and keeps no row.

CREATE TABLE IF NOT EXISTS pgherd.request (
    role   name NOT NULL DEFAULT current_user,
    act    text NOT NULL,
    object text NOT NULL,
    value  int8,
    called bool
);

-- But for members of pg_write_all_data, who set any column: with the rights of whoever inserts, before the other.
CREATE OR REPLACE FUNCTION pgherd.own_request() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NEW.role <> current_user THEN
        RAISE EXCEPTION 'a request is made in one''s own name only' USING ERRCODE = '42501';
    ELSIF NEW.act = 'setval' AND num_nulls(NEW.object, NEW.value, NEW.called) > 0 THEN
        RETURN NULL; -- PostgreSQL's setval does nothing either
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE TRIGGER a_own_request BEFORE INSERT ON pgherd.request
    FOR EACH ROW EXECUTE FUNCTION pgherd.own_request();

-- A client that has set row_security off would be refused by the policies of the table of requests.
CREATE OR REPLACE FUNCTION pgherd.set_local("table" regclass) RETURNS void
LANGUAGE sql VOLATILE SET row_security = on BEGIN ATOMIC
    INSERT INTO pgherd.request (act, object) VALUES ('set_local', "table"::oid::text);
END;

CREATE OR REPLACE FUNCTION pgherd.set_replicated("table" regclass) RETURNS void
LANGUAGE sql VOLATILE SET row_security = on BEGIN ATOMIC
    INSERT INTO pgherd.request (act, object) VALUES ('set_replicated', "table"::oid::text);
END;

-- For what belongs to the server and not to the database, and so fires no event trigger: roles above all.
CREATE OR REPLACE FUNCTION pgherd.run_everywhere(command text) RETURNS void
LANGUAGE sql VOLATILE SET row_security = on BEGIN ATOMIC
    INSERT INTO pgherd.request (act, object) VALUES ('run', command);
END;

-- setval on every member.
CREATE OR REPLACE FUNCTION pgherd.set_sequence(rel regclass, value int8, called bool) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET session_replication_role = replica AS $$
DECLARE
    q    pg_sequence;
    step int8 := (SELECT k.step FROM pgherd.sequences k WHERE k.relid = rel);
BEGIN
    SELECT * INTO q FROM pg_sequence s WHERE s.seqrelid = rel;
    IF value NOT BETWEEN q.seqmin AND q.seqmax THEN
        RAISE EXCEPTION 'setval: value % is out of bounds for sequence %', value, rel USING ERRCODE = '22003';
    END IF;
    IF called THEN
        -- The caller's currval is this value. The first command gives the sequence a new file, so that nobody else
        -- sees the number, which may be another member's, and a rollback leaves nothing of it.
        EXECUTE format('ALTER SEQUENCE %s RESTART', rel);
        PERFORM pgherd.local_setval(rel, value, true);
    END IF;
    PERFORM pgherd.move_sequence(rel, value::numeric + CASE WHEN called THEN step ELSE 0 END, step, q.seqmin, q.seqmax);
END $$;

-- Does, on any member, what was asked for; returns the relations concerned.
CREATE OR REPLACE FUNCTION pgherd.perform(command jsonb) RETURNS oid[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE rel oid;
BEGIN
    IF command ->> 'act' = 'run' THEN
        PERFORM pgherd.drop_roles(command -> 'dropped');
        IF command ->> 'sql' <> '' THEN
            EXECUTE command ->> 'sql';
        END IF;
        PERFORM pgherd.follow_grants(command -> 'roles', command -> 'grants'),
                pgherd.follow_database_rights(command -> 'grantees', command -> 'database');
        RETURN '{}';
    END IF;
    rel := (command ->> 'object')::regclass;
    CASE command ->> 'act'
        WHEN 'set_local' THEN PERFORM pgherd.mark_local(rel);
        WHEN 'set_replicated' THEN PERFORM pgherd.mark_replicated(rel);
        WHEN 'restart' THEN EXECUTE format('ALTER SEQUENCE %s RESTART', rel::regclass);
        WHEN 'setval' THEN PERFORM pgherd.set_sequence(rel, (command ->> 'value')::int8, (command ->> 'called')::bool);
    END CASE;
    RETURN pgherd.with_relatives(ARRAY[rel]);
END $$;

-- As PostgreSQL's setval does.
CREATE OR REPLACE FUNCTION pgherd.check_setval(r pgherd.request) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = r.object::oid AND c.relkind = 'S') THEN
        RAISE EXCEPTION '"%" is not a sequence', r.object::oid::regclass USING ERRCODE = '42809';
    ELSIF NOT has_sequence_privilege(r.role, r.object::oid, 'UPDATE') THEN
        RAISE EXCEPTION 'permission denied for sequence %', r.object::oid::regclass USING ERRCODE = '42501';
    END IF;
END $$;

CREATE OR REPLACE FUNCTION pgherd.check_request(r pgherd.request) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgherd.check_writable(), pgherd.check_user_code(); -- before we plan a query on any table
    IF r.act IN ('set_local', 'set_replicated') THEN
        PERFORM pgherd.check_mark(r.role, r.object::oid, r.act);
    ELSIF r.act = 'setval' THEN
        IF NOT EXISTS (SELECT FROM pgherd.sequences k WHERE k.relid = r.object::oid) THEN
            PERFORM pgherd.refuse(format('sequence %s is not replicated', r.object::oid::regclass),
                'Something made it while replication was switched off: make it anew.');
        END IF;
    ELSIF r.act <> 'run' OR NOT (SELECT a.rolsuper FROM pg_roles a WHERE a.rolname = r.role) THEN
        RAISE EXCEPTION 'only a superuser may run a command on every member' USING ERRCODE = '42501';
    END IF;
END $$;

-- Passwords travel as verifiers: those of the roles that a command has changed.
CREATE OR REPLACE FUNCTION pgherd.verifiers() RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
RETURN (SELECT jsonb_object_agg(a.rolname, a.rolpassword) FROM pg_authid a WHERE a.rolpassword IS NOT NULL);

-- Runs a command about roles and the like at its origin; returns it with what the other members have to know.
CREATE OR REPLACE FUNCTION pgherd.run_at_origin(command text) RETURNS jsonb
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    before  jsonb  := pgherd.verifiers();
    roles   oid[]  := array(SELECT r.oid FROM pg_roles r ORDER BY r.oid);
    names   text[] := array(SELECT r.rolname FROM pg_roles r ORDER BY r.oid);
    gone    jsonb;
    named   jsonb;
    granted jsonb;
    grantees jsonb := '[]';
    privileges jsonb;
BEGIN
    EXECUTE command;
    named := pgherd.roles_named(command);
    IF command ~* E'\\mdatabase\\M' THEN
        grantees := named || CASE WHEN command ~* E'\\mpublic\\M' THEN '["public"]'::jsonb ELSE '[]' END;
    END IF;
    privileges := pgherd.database_rights_among(grantees);
    gone := (SELECT jsonb_agg(u.name) FROM unnest(roles, names) AS u(id, name)
              WHERE NOT EXISTS (SELECT FROM pg_roles r WHERE r.oid = u.id));
    granted := pgherd.memberships_among(named);
    PERFORM pgherd.ensure_roles(named), pgherd.drop_roles(gone), pgherd.follow_grants(named, granted),
            pgherd.follow_database_rights(grantees, privileges);
    RETURN jsonb_build_object(
        'act', 'run', 'sql', command, 'roles', named, 'grants', granted, 'dropped', coalesce(gone, '[]'),
        'grantees', grantees, 'database', privileges,
        'verifiers', (SELECT coalesce(jsonb_object_agg(v.key, v.value), '{}') FROM jsonb_each(pgherd.verifiers()) v
                       WHERE v.value IS DISTINCT FROM before -> v.key));
END $$;

CREATE OR REPLACE FUNCTION pgherd.serve_request() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    x       xid8 := pg_current_xact_id();
    base    int8;
    rels    oid[] := '{}';
    command jsonb;
    context text;
    in_use  oid[] := '{}';
BEGIN
    IF NEW.act = 'setval' THEN
        PERFORM pgherd.check_setval(NEW);
        IF current_setting('session_replication_role') = 'replica' OR pgherd.is_local_sequence(NEW.object::oid) THEN
            PERFORM pgherd.local_setval(NEW.object::oid, NEW.value, NEW.called);
            RETURN NULL;
        END IF;
    ELSIF current_setting('session_replication_role') = 'replica' THEN
        PERFORM pgherd.refuse(format('pgherd.%s does nothing under session_replication_role = replica',
                                     CASE NEW.act WHEN 'run' THEN 'run_everywhere' ELSE NEW.act END),
                              'RESET session_replication_role first.');
    END IF;
    PERFORM pgherd.take_turn();
    base := pgherd.last_gid();
    PERFORM pgherd.check_request(NEW);
    IF NEW.act <> 'setval' THEN -- which makes no difference to rows, nor they to it
        GET DIAGNOSTICS context = PG_CONTEXT;
        in_use := pgherd.tables_in_use(x, context);
        IF in_use = '{}' THEN
            PERFORM pgherd.settle(x);
            PERFORM pgherd.refuse_doubled(pgherd.doubled_table(x));
        END IF;
    END IF;
    IF NEW.act = 'run' THEN
        command := pgherd.run_at_origin(NEW.object);
    ELSE
        command := jsonb_build_object(
            'act', NEW.act, 'object', NEW.object::oid::regclass::text, 'value', NEW.value, 'called', NEW.called);
        rels := pgherd.perform(command);
        IF NEW.act = 'set_local' THEN
            PERFORM pgherd.check_tables(rels), pgherd.check_marks(rels);
        ELSIF NEW.act = 'set_replicated' THEN
            PERFORM pgherd.check_columns(true), pgherd.check_user_code(), pgherd.check_temporary_children(),
                    pgherd.check_marks(rels), pgherd.check_storage(pgherd.tree_below(NEW.object::oid), true),
                    pgherd.check_expressions(pgherd.trees_of(ARRAY[NEW.object::oid]));
        END IF;
    END IF;
    IF in_use <> '{}' THEN
        PERFORM pgherd.check_hoisted(x, 'pgherd.' || NEW.act, rels, rels, false, in_use);
    END IF;
    PERFORM pgherd.put_command(x, base, rels, false, command, NEW.act = 'setval' OR in_use <> '{}');
    RETURN NULL;
END $$;

DROP TRIGGER IF EXISTS serve ON pgherd.request;
CREATE TRIGGER serve BEFORE INSERT ON pgherd.request FOR EACH ROW EXECUTE FUNCTION pgherd.serve_request();

-- Under session_replication_role = replica, too: setval concerns this member only there, as everything does.
ALTER TABLE pgherd.request ENABLE ALWAYS TRIGGER a_own_request, ENABLE ALWAYS TRIGGER serve;
