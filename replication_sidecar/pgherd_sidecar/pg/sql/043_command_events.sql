-- The event triggers. They fire for every session that is not in replica role: not for the sidecar's own.
--
-- pgherd_1_context runs with the rights of the user, since only so can it see his role and settings; what
-- it leaves in a custom setting is read by the next event trigger at once, before any code of the user
-- could have changed it. All others are SECURITY DEFINER.

-- Is this one of the commands with which we follow a command: functions, triggers, sequences? They concern this member
-- alone. Their setting is a superuser's and has no other effect: PostgreSQL knows no C function of that name. Under
-- session_replication_role = replica no event trigger fires, but each change of that empties the session's cache of plans,
-- and to plan our queries again costs more than most commands.
CREATE OR REPLACE FUNCTION pgherd.is_own_command() RETURNS bool
LANGUAGE sql STABLE RETURN current_setting('backtrace_functions') = 'pgherd';

-- Has a superuser event triggers of his own? They shall not see our commands, so these have to be done as a replica then.
CREATE OR REPLACE FUNCTION pgherd.is_watched() RETURNS bool
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN EXISTS (SELECT FROM pg_event_trigger e JOIN pg_proc p ON p.oid = e.evtfoid
                    WHERE p.pronamespace <> 'pgherd'::regnamespace AND e.evtenabled = 'O');
END $$;

-- Role and settings that give the text of a command its meaning, and the values that it computes. What is missing
-- here computes nothing; or is refused (standard_conforming_strings, a default_tablespace); or has to have been
-- judged by the origin (check_function_bodies).
CREATE OR REPLACE FUNCTION pgherd.command_context() RETURNS event_trigger LANGUAGE plpgsql AS $$
BEGIN
    IF pg_catalog.current_setting('backtrace_functions') OPERATOR(pg_catalog.=) 'pgherd' THEN -- see is_own_command()
        RETURN;
    END IF;
    PERFORM pg_catalog.set_config('pgherd.command_context', pg_catalog.json_build_object(
        'role', current_user,
        'drops', CASE WHEN TG_TAG OPERATOR(pg_catalog.=) 'DROP INDEX' THEN (
            SELECT pg_catalog.json_build_object('index', pg_catalog.to_regclass(d.name)::pg_catalog.oid, 'name', d.name)
              FROM pg_catalog.substring(pg_catalog.current_query(), -- no comment here holds another one
                E'(?i)^(?:\\s+|/\\*(?:[^*/]|\\*(?!/)|/(?!\\*))*\\*/|--[^\n]*\n)*'
                'drop\\s+index\\s+concurrently\\s+(?:if\\s+exists\\s+)?'
                '((?:"(?:[^"]|"")+"|[^\\W\\d][\\w$]*)(?:\\s*\\.\\s*(?:"(?:[^"]|"")+"|[^\\W\\d][\\w$]*))?)(?:\\s+restrict)?'
                '(?:\\s+|;|/\\*(?:[^*/]|\\*(?!/)|/(?!\\*))*\\*/|--[^\n]*(?:\n|$))*$') AS d(name)) END,
        'standard_strings', pg_catalog.current_setting('standard_conforming_strings'),
        'settings', (SELECT pg_catalog.json_object_agg(s.name, pg_catalog.current_setting(s.name))
                       FROM pg_catalog.unnest('{
            array_nulls, backslash_quote, bytea_output, DateStyle, default_table_access_method,
            default_text_search_config, default_toast_compression, extra_float_digits, IntervalStyle, lc_monetary,
            lc_numeric, lc_time, quote_all_identifiers, row_security, search_path, TimeZone, timezone_abbreviations,
            transform_null_equals, xmlbinary, xmloption}'::pg_catalog.text[]) AS s(name)))::pg_catalog.text, true);
END $$;

-- What the command's own snapshot sees: its query reads with that, and it is taken before the command waits for a lock
--. Only a STABLE function sees it; all others get one of their own for each query.
CREATE OR REPLACE FUNCTION pgherd.command_snapshot() RETURNS event_trigger
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF pgherd.is_own_command() THEN
        RETURN;
    END IF;
    PERFORM set_config('pgherd.command_snapshot', pgherd.last_gid()::text, true);
END $$;

-- Names of the session's temporary relations and types: the sidecar's parser sees names, not objects.
CREATE OR REPLACE FUNCTION pgherd.temporary_names() RETURNS json
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    IF pg_my_temp_schema() = 0 THEN
        RETURN NULL;
    END IF;
    RETURN (
        SELECT json_agg(n.name)
          FROM (SELECT c.relname AS name FROM pg_class c WHERE c.relnamespace = pg_my_temp_schema() AND c.relkind <> 'i'
                UNION SELECT t.typname FROM pg_type t WHERE t.typnamespace = pg_my_temp_schema()) n);
END $$;

CREATE OR REPLACE FUNCTION pgherd.command_start() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lc_messages = 'C' AS $$
DECLARE context text;
BEGIN
    IF TG_TAG <> 'REINDEX' AND NOT pgherd.is_own_command() THEN -- the first changes nothing that anybody could see
        IF TG_TAG = 'DROP INDEX' AND current_query() ~* E'\\mconcurrently\\M' AND pgherd.start_drop() THEN
            RETURN;
        END IF;
        GET DIAGNOSTICS context = PG_CONTEXT;
        PERFORM pgherd.start_command(TG_TAG, context);
    END IF;
END $$;

-- context: the call stack as an event trigger sees it.
CREATE OR REPLACE FUNCTION pgherd.start_command(tag text, context text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' SET plan_cache_mode = force_generic_plan
SET seq_page_cost = 0.1 SET random_page_cost = 0.1 SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    x       xid8  := pg_current_xact_id();
    command jsonb := current_setting('pgherd.command_context');
    message text  := extract(epoch FROM statement_timestamp())::text || md5(current_query());
    newest  text; -- the message of the command before this one in the transaction
    in_use  oid[];
    strays  jsonb := '{}';
    owners  jsonb;
    beside  bool;
    outer_tag text;
BEGIN
    outer_tag := (SELECT c.recs[1]::jsonb ->> 'tag' FROM pgherd.running_rows(x) c WHERE c.keys = 'open');
    IF outer_tag LIKE '% EXTENSION' THEN -- part of the extension's script
        IF tag LIKE '% EXTENSION' THEN
            PERFORM pgherd.put(x, 0, 'sentinel', 'nested', '{0}', '{}');
        END IF;
        RETURN;
    ELSIF outer_tag = 'REFRESH MATERIALIZED VIEW' AND tag IN ('CREATE TABLE', 'ALTER TABLE', 'DROP TABLE')
          AND context ~* (E'^[^\n]*\nSQL statement "(CREATE TEMP|ALTER|DROP) TABLE pg_temp(_\\d+)?\\.pg_temp_\\d+_2[ ,"][^\n]*'
                         '($|\nSQL function "|\nSQL statement "(\\s|--[^\n]*\n|/\\*.*\\*/)*refresh\\M)') THEN
        RETURN; -- PostgreSQL compares the view's old and new rows in a temporary table, if it refreshes CONCURRENTLY
    ELSIF outer_tag <> '' THEN
        PERFORM pgherd.refuse(tag || ' inside another DDL command is not supported',
            'An event trigger or a function called by the outer command does this.');
    END IF;
    IF tag = 'CREATE INDEX' AND current_query() ~* E'\\mconcurrently\\M'
       OR tag = 'ALTER TABLE' AND current_query() ~* E'\\mdetach\\M.*\\mconcurrently\\M' THEN
        PERFORM pgherd.start_long(x, tag);
    END IF;
    IF tag = 'CREATE TABLE' THEN
        PERFORM pgherd.drop_old_cursor();
    END IF;
    IF EXISTS (SELECT FROM pgherd.strays) THEN
        PERFORM pgherd.refuse_copy(); -- all tables of a restored dump are strays
        IF tag NOT IN ('DROP TABLE', 'DROP MATERIALIZED VIEW') THEN -- or its owner does it himself
            PERFORM pgherd.drop_strays(); -- the other role empties the cache of plans, there and back
        END IF;
        strays := pgherd.note_strays();
        command := command || jsonb_build_object('strays', (
            SELECT coalesce(jsonb_agg(jsonb_build_array(n.nspname, c.relname)), '[]')
              FROM pgherd.strays s JOIN pg_class c ON c.oid = s.relid JOIN pg_namespace n ON n.oid = c.relnamespace));
    END IF;
    in_use := pgherd.tables_in_use(x, context);
    IF in_use = '{}' AND pgherd.run_has_rows(x, pgherd.run_begin(x)) THEN -- or nothing is to settle, and no key is doubled
        PERFORM pgherd.settle(x);
        command := command || jsonb_build_object('doubled', pgherd.doubled_table(x));
    END IF;
    IF pgherd.looks_temporary(left(current_query(), 10000)) THEN -- it has not taken the turn
        owners := pgherd.moved_owners_named();
        beside := pgherd.chooses_names(tag) AND pgherd.is_others_turn();
    ELSE
        PERFORM pgherd.put_unseen(x, pgherd.last_gid(), in_use <> '{}');
    END IF;
    PERFORM pgherd.intend(x, tag);
    -- A script of many commands in one message is kept once, with the first of them.
    newest := pgherd.newest_message(x);
    command := command || jsonb_build_object(
        'query', CASE WHEN newest IS DISTINCT FROM message THEN current_query() END,
        'tag', tag, 'message', message, 'context', context, 'in_use', in_use,
        'quoted', pgherd.quoted_statement(substr(context, nullif(strpos(context, E'\n'), 0) + 1)),
        'version', current_setting('server_version_num')::int,
        'temporary', pgherd.temporary_names(),
        'before', json_build_object('snapshot', current_setting('pgherd.command_snapshot')::int8,
                                    'started', extract(epoch FROM clock_timestamp()),
                                    'owners', owners, 'beside', beside, 'local', pgherd.local_shapes(), 'broken', coalesce(pgherd.broken_indexes(), '{}'), 'strays', strays,
                                    'meaning', pgherd.meaning(tag),
                                    'tag', tag, 'searches', pgherd.text_search_meaning(tag)));
    PERFORM pgherd.put(x, pgherd.last_gid(), 'sentinel', 'open', '{0}', ARRAY[command::text]);
END $$;

-- sql_drop: which relations are concerned. Dropped tables by oid, tables that lost a part by name.
CREATE OR REPLACE FUNCTION pgherd.command_drops() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET seq_page_cost = 0.1 SET random_page_cost = 0.1 SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    running   record;
    d         record;
    note      jsonb;
    before    jsonb;
    here_only jsonb;
BEGIN
    IF pgherd.is_own_command() THEN
        RETURN;
    END IF;
    running := pgherd.running_command(pg_current_xact_id(), TG_TAG);
    IF running.nested THEN
        RETURN;
    ELSIF TG_TAG = 'DROP INDEX' AND NOT EXISTS (SELECT FROM pgherd.running_rows(pg_current_xact_id())) THEN
        PERFORM pgherd.check_dropped(); -- it began in another transaction
        RETURN;
    END IF;
    before := running.said -> 'before';
    here_only := (before -> 'broken') || (before -> 'strays');
    FOR d IN SELECT o.address_names AS names FROM pg_event_trigger_dropped_objects() o
              WHERE o.object_type = 'trigger' AND o.address_names[3] ILIKE E'pgherd\\_%'
                AND to_regclass(format('%I.%I', o.address_names[1], o.address_names[2]))
                    IN (SELECT g.relid FROM pgherd.generated g) LOOP
        PERFORM pgherd.refuse(
            format('trigger %I of table %I.%I belongs to replication', d.names[3], d.names[1], d.names[2]),
                              'To keep a table out of replication: SELECT pgherd.set_local(''table'').');
    END LOOP;
    SELECT jsonb_build_object(
               'dropped', true,
               -- A generated row type goes with the types of its columns, and is made anew like the triggers.
               'ours', bool_or(o.schema_name = 'pgherd' OR o.schema_name = 'pgherd_gen' AND o.original
                               OR o.object_identity IN ('pgherd', 'pgherd_gen') AND o.object_type = 'schema'),
               'temporary', bool_and(o.is_temporary OR coalesce(o.address_names[1] = 'pg_temp', false)),
               'some_temporary', bool_or(o.is_temporary) FILTER (WHERE o.original), -- others go with what they depend on
               'strays', bool_and(u.is_stray OR u.is_temporary) FILTER (WHERE o.original),
               'some_strays', bool_or(u.is_stray) FILTER (WHERE o.original),
               'rels', coalesce(jsonb_agg(DISTINCT coalesce(t.relid, i.relid, c.oid))
                                FILTER (WHERE t.relid IS NOT NULL OR i.relid IS NOT NULL OR c.oid IS NOT NULL), '[]')
                   -- Of which table an index was, nobody says; this session holds a lock on that. One that went with its
                   -- table went by no normal dependency.
                   || CASE WHEN bool_or(o.object_type = 'index' AND (o.original OR o.normal) AND i.relid IS NULL) THEN (
                           SELECT coalesce(jsonb_agg(k.relation), '[]')
                             FROM pg_locks k JOIN pgherd.tables h ON h.relid = k.relation
                            WHERE k.pid = pg_backend_pid() AND k.locktype = 'relation' AND k.mode = 'AccessExclusiveLock')
                      ELSE '[]' END)
      INTO note
      FROM pg_event_trigger_dropped_objects() o
      LEFT JOIN pgherd.tables t ON o.classid = 'pg_class'::regclass AND t.relid = o.objid
      -- The table whose rows were known by the index, here or to subscribers: PostgreSQL lets nobody update published rows
      -- without it, so whoever has just written one on another member excludes the command.
      LEFT JOIN LATERAL (
           SELECT CASE WHEN o.object_type = 'index' THEN format('%I.%I', o.address_names[1], o.address_names[2]) END AS name) x ON true
      LEFT JOIN LATERAL (
           SELECT k.relid FROM pgherd.tables k WHERE k.identity = x.name
           UNION ALL SELECT k.relid FROM pgherd.tables k WHERE k.replica_identity = x.name) i ON true
      -- a composite type or a view, too: there are tables that hold its rows
      LEFT JOIN pg_class c ON c.oid = CASE WHEN cardinality(o.address_names) > 1
                THEN to_regclass(format('%I.%I', o.address_names[1], o.address_names[2])) END
                          AND c.relkind IN ('r', 'p', 'm', 'v', 'c') AND c.relpersistence <> 't'
                          AND o.address_names[1] NOT IN ('pgherd', 'pgherd_gen')
     CROSS JOIN LATERAL (SELECT o.is_temporary OR coalesce(o.address_names[1] = 'pg_temp', false) AS is_temporary) e
     CROSS JOIN LATERAL (
           SELECT e.is_temporary,
                  o.object_type IN ('table', 'materialized view') AND t.relid IS NULL AND NOT e.is_temporary
                  OR o.object_type IN ('index', 'statistics object')
                     AND coalesce(here_only ? o.objid::text, false) AS is_stray) u;
    PERFORM pgherd.put(pg_current_xact_id(), 0, 'sentinel', 'note', '{0}', ARRAY[note::text]);
END $$;

-- table_rewrite: a rewrite computes values, on each member for itself.
CREATE OR REPLACE FUNCTION pgherd.command_rewrites() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET seq_page_cost = 0.1 SET random_page_cost = 0.1 SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE rel regclass := pg_event_trigger_table_rewrite_oid();
BEGIN
    IF pgherd.is_own_command() OR (SELECT c.relpersistence = 't' FROM pg_class c WHERE c.oid = rel) OR pgherd.is_nested(pg_current_xact_id(), TG_TAG) THEN
        RETURN;
    END IF;
    IF EXISTS (SELECT FROM pgherd.local_tables l WHERE l.relid = rel) AND NOT pgherd.is_made_here(rel)
       AND pg_event_trigger_table_rewrite_reason() & ~1 <> 0 THEN -- 1: SET LOGGED, which looks at no value
        PERFORM pgherd.refuse_local(rel, 'its rows would be written anew');
    END IF;
    PERFORM pgherd.check_user_code(); -- the same command may have made an index, and what follows is planned
    IF pgherd.has_rows(rel) THEN
        PERFORM pgherd.check_new_columns(ARRAY[rel]); -- before the table is written anew
        IF pg_event_trigger_table_rewrite_reason() & ~2 <> 0 THEN
            PERFORM pgherd.put(pg_current_xact_id(), 0, 'sentinel', 'note', '{0}', ARRAY['{"rewrites": true}']);
        END IF;
    END IF;
END $$;

-- Temporary tables concern nobody else, but what they do at COMMIT they do after the verdict: a foreign key to one
-- that is emptied there would fail the transaction when it is ordered already.
CREATE OR REPLACE FUNCTION pgherd.command_temporary_keys() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE name text;
BEGIN
    IF pg_my_temp_schema() = 0 THEN
        RETURN;
    END IF;
    SELECT c.conname INTO name FROM pg_constraint c WHERE c.contype = 'f' AND c.connamespace = pg_my_temp_schema();
    IF FOUND THEN
        PERFORM pgherd.refuse(format('foreign key %I of a temporary table is not supported', name),
            'Leave it out: PostgreSQL may find only inside COMMIT that it does not go with ON COMMIT DELETE ROWS.');
    END IF;
END $$;

DROP EVENT TRIGGER IF EXISTS pgherd_keys;
CREATE EVENT TRIGGER pgherd_keys ON ddl_command_end WHEN TAG IN ('CREATE TABLE', 'ALTER TABLE', 'CREATE SCHEMA')
    EXECUTE FUNCTION pgherd.command_temporary_keys();
