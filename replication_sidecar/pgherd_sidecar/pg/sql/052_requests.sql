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

-- For what belongs to the server and not to the database, where it has to be on all members at once (049 has the rest).
CREATE OR REPLACE FUNCTION pgherd.run_everywhere(command text) RETURNS void
LANGUAGE sql VOLATILE SET row_security = on BEGIN ATOMIC
    INSERT INTO pgherd.request (act, object) VALUES ('run', command);
END;

-- Lets a role log in on these nodes only; null: on all. Elsewhere it is there as well: it may own and be granted things.
CREATE OR REPLACE FUNCTION pgherd.limit_role(role text, nodes text[]) RETURNS void
LANGUAGE sql VOLATILE SET row_security = on BEGIN ATOMIC
    INSERT INTO pgherd.request (act, object) VALUES ('limit', json_build_object('role', role, 'nodes', nodes)::text);
END;

-- The sidecar's own, where somebody has changed roles and the like and no command follows (049).
CREATE OR REPLACE FUNCTION pgherd.order_unseen() RETURNS void
LANGUAGE sql VOLATILE SET row_security = on BEGIN ATOMIC
    INSERT INTO pgherd.request (act, object) VALUES ('unseen', '');
END;

-- setval on every member.
CREATE OR REPLACE FUNCTION pgherd.set_sequence(rel regclass, value int8, called bool) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF pgherd.is_watched() THEN
        PERFORM pgherd.set_sequence_as_replica(rel, value, called);
    ELSE
        PERFORM pgherd.set_sequence_as_own(rel, value, called);
    END IF;
END $$;

CREATE OR REPLACE FUNCTION pgherd.set_sequence_as_replica(rel regclass, value int8, called bool) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET session_replication_role = replica AS $$
BEGIN
    PERFORM pgherd.set_sequence_as_own(rel, value, called);
END $$;

CREATE OR REPLACE FUNCTION pgherd.set_sequence_as_own(rel regclass, value int8, called bool) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET backtrace_functions = pgherd AS $$
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
    IF command ->> 'act' LIKE E'long\\_%' THEN
        PERFORM pgherd.perform_long(command);
        RETURN '{}';
    ELSIF command ->> 'act' = 'run' THEN
        EXECUTE command ->> 'sql';
        RETURN '{}';
    ELSIF command ->> 'act' = 'unseen' THEN
        PERFORM pgherd.change_roles('take_unseen', command);
        RETURN '{}';
    ELSIF command ->> 'act' = 'limit' THEN
        PERFORM pgherd.change_roles('take_limit', command);
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
    PERFORM pgherd.check_writable();
    IF r.act <> 'setval' THEN -- before we plan a query on any table
        PERFORM pgherd.check_user_code();
    END IF;
    IF r.act IN ('set_local', 'set_replicated') THEN
        PERFORM pgherd.check_mark(r.role, r.object::oid, r.act);
    ELSIF r.act = 'setval' THEN
        IF NOT EXISTS (SELECT FROM pgherd.sequences k WHERE k.relid = r.object::oid) THEN
            PERFORM pgherd.refuse(format('sequence %s is not replicated', r.object::oid::regclass),
                'Something made it while replication was switched off: make it anew.');
        END IF;
    ELSIF r.act NOT IN ('run', 'unseen', 'limit', 'long_drop', 'long_go', 'long_done', 'long_failed', 'long_undo', 'long_end') OR NOT (SELECT a.rolsuper FROM pg_roles a WHERE a.rolname = r.role) THEN
        RAISE EXCEPTION 'only a superuser may run a command on every member' USING ERRCODE = '42501';
    ELSIF r.act = 'limit' AND NOT EXISTS (SELECT FROM pgherd.shared_roles s WHERE s.name = r.object::jsonb ->> 'role') THEN
        RAISE EXCEPTION 'there is no role "%" that all members have', r.object::jsonb ->> 'role' USING ERRCODE = '42704';
    END IF;
END $$;

CREATE OR REPLACE FUNCTION pgherd.serve_request() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET seq_page_cost = 0.1 SET random_page_cost = 0.1 SET enable_hashjoin = off SET enable_mergejoin = off AS $$
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
                                     CASE NEW.act WHEN 'run' THEN 'run_everywhere' WHEN 'limit' THEN 'limit_role' ELSE NEW.act END),
                              'RESET session_replication_role first.');
    END IF;
    IF NEW.act LIKE E'long\\_%' THEN
        PERFORM pgherd.check_request(NEW), pgherd.order_long(NEW);
        RETURN NULL;
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
        PERFORM pgherd.put_unseen(x, base, in_use <> '{}');
    END IF;
    IF NEW.act = 'unseen' THEN
        RETURN NULL;
    END IF;
    IF NEW.act = 'run' THEN
        EXECUTE NEW.object;
        -- As asked for also where it changes nothing here.
        PERFORM pgherd.put_unseen(x, base, in_use <> '{}', pgherd.roles_named(NEW.object)
                                     || CASE WHEN NEW.object ~* E'\\mdatabase\\M' THEN '{""}'::text[] ELSE '{}' END);
        command := jsonb_build_object('act', 'run', 'sql', NEW.object);
    ELSIF NEW.act = 'limit' THEN
        command := jsonb_build_object('act', 'limit', 'limit', NEW.object::jsonb, 'leaves_tables', true);
        PERFORM pgherd.perform(command);
    ELSE
        command := jsonb_build_object(
            'act', NEW.act, 'object', NEW.object::oid::regclass::text, 'value', NEW.value, 'called', NEW.called,
            'leaves_tables', NEW.act = 'setval');
        rels := pgherd.perform(command);
        PERFORM pgherd.check_long_commands(NEW.act, CASE WHEN NEW.act <> 'setval' THEN rels ELSE '{}' END, false);
        IF NEW.act IN ('set_local', 'set_replicated') THEN
            PERFORM pgherd.check_tables(rels), pgherd.check_marks(rels);
        END IF;
        IF NEW.act = 'set_replicated' THEN
            PERFORM pgherd.check_columns(true, NULL), pgherd.check_user_code(), pgherd.check_temporary_children(),
                    pgherd.check_storage(pgherd.tree_below(NEW.object::oid), true),
                    pgherd.check_expressions(pgherd.trees_of(ARRAY[NEW.object::oid])),
                    pgherd.check_search_paths(pgherd.trees_of(ARRAY[NEW.object::oid]), NULL);
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
