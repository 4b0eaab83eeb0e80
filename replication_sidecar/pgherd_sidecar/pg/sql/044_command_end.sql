-- The end of a DDL command: what it did is judged, its certification keys are known, triggers and sequences
-- follow the new shape of the tables.

-- Does this function, or what calls it, decide which rows a table takes? A plain default does not: its origin evaluates it.
-- PostgreSQL does not know whom the text of a function calls, so whoever mentions one counts. Mostly no function of a user
-- decides, and no text need be read.
CREATE OR REPLACE FUNCTION pgherd.decides_rows(function oid) RETURNS bool
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    ours CONSTANT oid[] := '{pgherd,pgherd_gen}'::regnamespace[];
    deciding      oid[] := ARRAY( -- of users
        SELECT DISTINCT p.oid
          FROM pg_depend d JOIN pg_proc p ON p.oid = d.refobjid AND p.pronamespace <> ALL (ours)
         WHERE d.refclassid = 'pg_proc'::regclass AND d.refobjid >= 16384
           AND d.classid <> ALL ('{pg_proc,pg_rewrite,pg_trigger,pg_event_trigger,pg_policy}'::regclass[])
           AND NOT (d.classid = 'pg_attrdef'::regclass
                    AND EXISTS (SELECT FROM pg_attrdef f
                                  JOIN pg_attribute a ON a.attrelid = f.adrelid AND a.attnum = f.adnum AND a.attgenerated = ''
                                 WHERE f.oid = d.objid)));
BEGIN
    IF deciding = '{}' OR function = ANY (deciding) THEN
        RETURN deciding <> '{}';
    END IF;
    RETURN (
        WITH RECURSIVE texts AS MATERIALIZED (
            SELECT p.oid, lower(p.prosrc) AS words FROM pg_proc p WHERE p.oid >= 16384 AND p.pronamespace <> ALL (ours)
        ), callers(id) AS (
            SELECT function
            UNION
            SELECT n.id
              FROM callers c JOIN pg_proc f ON f.oid = c.id CROSS JOIN LATERAL (
                  SELECT d.objid AS id
                    FROM pg_depend d
                   WHERE d.refclassid = 'pg_proc'::regclass AND d.refobjid = c.id AND d.classid = 'pg_proc'::regclass
                  UNION ALL
                  SELECT t.oid FROM texts t
                   WHERE strpos(t.words, lower(f.proname)) > 0 AND pgherd.mentions(t.words, ARRAY[f.proname::text])) n)
        SELECT EXISTS (SELECT FROM callers c WHERE c.id = ANY (deciding)));
END $$;

-- Objects whose change concerns the rows of no table: they need no table's key.
CREATE OR REPLACE FUNCTION pgherd.concerns_no_rows(command_tag text, object_type text) RETURNS bool
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN coalesce(command_tag LIKE 'CREATE %' OR command_tag IN ('COMMENT', 'GRANT', 'REVOKE', 'SECURITY LABEL',
                    'ALTER DEFAULT PRIVILEGES', 'REFRESH MATERIALIZED VIEW')
                OR object_type IN ('view', 'materialized view', 'function', 'procedure', 'aggregate', 'sequence',
                                   'publication', 'publication relation', 'publication namespace',
                                   'statistics object', 'policy'), false);
END $$;

-- What a command did that is ending. running: see running_command().
--   rels       relations concerned, with their relatives
--   made       relations that it reports
--   coarse     it cannot be told which tables it concerns
--   here_only  it concerns this node alone
CREATE OR REPLACE FUNCTION pgherd.command_effect(
    running record, tag text, OUT rels oid[], OUT made oid[], OUT coarse bool, OUT here_only bool, OUT rewrites bool)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    done   record;
    notes  record;
    broken jsonb := running.said -> 'before' -> 'broken';
    mere   bool; -- has it made nothing but partitions?
BEGIN
    SELECT count(*) AS objects,
           bool_and(u.temporary OR u.broken) AS temporary, bool_or(u.temporary) AS some_temporary,
           bool_or(coalesce(o.schema_name, '') IN ('pgherd', 'pgherd_gen')
                   OR o.object_type = 'schema' AND o.object_identity IN ('pgherd', 'pgherd_gen')) AS ours,
           bool_or(c.oid IS NULL AND (NOT pgherd.concerns_no_rows(o.command_tag, o.object_type)
                                      OR o.classid = 'pg_proc'::regclass AND pgherd.decides_rows(o.objid))) AS coarse,
           bool_or(o.schema_name = 'pg_toast'
                   OR o.classid = 'pg_trigger'::regclass
                      AND EXISTS (SELECT FROM pg_trigger t WHERE t.oid = o.objid AND t.tgisinternal)) AS named_by_oid,
           array_agg(c.oid) FILTER (WHERE c.oid IS NOT NULL) AS rels
      INTO done
      FROM pg_event_trigger_ddl_commands() o
      LEFT JOIN pg_class c ON c.oid = pgherd.relation_of(o.classid, o.objid)
     CROSS JOIN LATERAL (
           SELECT coalesce(
               o.schema_name = 'pg_temp'
               OR c.relpersistence = 't' AND o.object_type <> 'statistics object' -- they have a schema of their own
               OR (SELECT t.typnamespace = pg_my_temp_schema() FROM pg_constraint k JOIN pg_type t ON t.oid = k.contypid
                    WHERE o.classid = 'pg_constraint'::regclass AND k.oid = o.objid), false) AS temporary,
               o.classid = 'pg_class'::regclass AND coalesce(broken ? o.objid::text, false) AS broken) u;
    SELECT count(*) FILTER (WHERE n.j ->> 'dropped' = 'true') AS drops,
           bool_and((n.j ->> 'temporary')::bool) AS temporary,
           bool_or((n.j ->> 'some_temporary')::bool) AS some_temporary,
           bool_or((n.j ->> 'ours')::bool) AS ours,
           bool_and(coalesce((n.j ->> 'strays')::bool, false)) FILTER (WHERE n.j ? 'dropped') AS strays,
           bool_or((n.j ->> 'some_strays')::bool) AS some_strays,
           coalesce(bool_or((n.j ->> 'rewrites')::bool), false) AS rewrites,
           (SELECT array_agg(r.oid::oid)
              FROM jsonb_array_elements(running.notes) AS k(j), jsonb_array_elements_text(k.j -> 'rels') AS r(oid)
             WHERE jsonb_typeof(k.j -> 'rels') = 'array') AS rels
      INTO notes
      FROM jsonb_array_elements(running.notes) AS n(j);
    IF done.ours OR notes.ours THEN
        PERFORM pgherd.refuse('the schemas pgherd and pgherd_gen belong to replication',
            'They are installed by the sidecar and look after themselves.');
    END IF;
    IF done.named_by_oid THEN
        PERFORM pgherd.refuse(tag || ' of what PostgreSQL has made for itself is not supported',
            'Its name holds a number, which is another one on each member: change the table or the constraint instead.');
    END IF;
    here_only := coalesce(done.temporary, true) AND coalesce(notes.temporary OR notes.strays, true)
                 AND tag <> 'DROP OWNED';
    IF NOT here_only AND (coalesce(done.some_temporary, false) OR coalesce(notes.some_temporary, false)) THEN
        PERFORM pgherd.refuse(tag || ' of temporary and permanent objects together is not supported',
            'Use one command for each kind.');
    END IF;
    IF NOT here_only AND coalesce(notes.some_strays, false) THEN
        PERFORM pgherd.refuse(tag || ' of something that exists on this node only, together with other things',
            'Use one command for each.');
    END IF;
    rewrites := notes.rewrites;
    coarse := coalesce(done.coarse, false) OR tag = 'DROP OWNED';
    made := coalesce(done.rels, '{}') || array(
        SELECT d.objid FROM pg_event_trigger_ddl_commands() o
          JOIN pg_depend d ON d.refclassid = o.classid AND d.refobjid = o.objid
         WHERE o.object_type = 'extension' AND d.classid = 'pg_class'::regclass AND d.deptype = 'e');
    rels := made || coalesce(notes.rels, '{}') || pgherd.former_partitions();
    IF tag LIKE '%PUBLICATION' THEN
        rels := rels || pgherd.published_by_command();
    END IF;
    IF tag = 'CREATE TABLE' AND made <> '{}' AND rels <@ made THEN
        mere := (SELECT bool_and(pgherd.is_mere_partition(m.relid)) FROM unnest(made) AS m(relid));
    END IF;
    IF mere THEN
        rels := pgherd.with_tables_above(made);
    ELSE
        rels := pgherd.with_relatives(rels || pgherd.holders_of_rows(pgherd.trees_of(rels)));
    END IF;
END $$;

-- A crash of one member would empty an unlogged table there, so a new one becomes an ordinary one, on every member.
CREATE OR REPLACE FUNCTION pgherd.make_logged(rels oid[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE made regclass;
BEGIN
    FOR made IN SELECT c.oid FROM pg_class c
                 WHERE c.oid = ANY (rels) AND c.relpersistence = 'u' AND c.relkind = 'r'
                   AND NOT EXISTS (SELECT FROM pgherd.tables t WHERE t.relid = c.oid) ORDER BY c.oid LOOP
        EXECUTE format('ALTER TABLE %s SET LOGGED', made);
    END LOOP;
END $$;

-- After a command, on every member: registers tables and their columns, interleaves sequences, makes triggers anew.
-- rels: the relations concerned and their relatives; everything: possibly all others too; leaves_tables: nothing of that
-- has to be done, but functions may have other privileges.
CREATE OR REPLACE FUNCTION pgherd.follow_command(rels oid[], everything bool, leaves_tables bool) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF pgherd.is_watched() THEN
        PERFORM pgherd.follow_as_replica(rels, everything, leaves_tables);
    ELSE
        PERFORM pgherd.follow_as_own(rels, everything, leaves_tables);
    END IF;
END $$;

CREATE OR REPLACE FUNCTION pgherd.follow_as_replica(rels oid[], everything bool, leaves_tables bool) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET session_replication_role = replica AS $$
BEGIN
    PERFORM pgherd.follow_as_own(rels, everything, leaves_tables);
END $$;

-- Its functions have been checked when they were written.
CREATE OR REPLACE FUNCTION pgherd.follow_as_own(rels oid[], everything bool, leaves_tables bool) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET backtrace_functions = pgherd SET client_min_messages = warning
SET check_function_bodies = off AS $$
BEGIN
    PERFORM pgherd.follow_owners();
    IF leaves_tables THEN
        PERFORM pgherd.let_apply(pgherd.may_have_written('pg_proc', true)); -- the look at all takes a while
        RETURN;
    END IF;
    DELETE FROM pgherd.tables t WHERE NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = t.relid);
    PERFORM pgherd.make_logged(rels);
    INSERT INTO pgherd.tables AS t
    SELECT a.relid, ARRAY[a.name, a.root_name], a.columns, pg_current_xact_id(), pgherd.identity_name(a.relid),
           pgherd.replica_identity_name(a.relid)
      FROM pgherd.all_tables a
     WHERE everything AND EXISTS (SELECT FROM pgherd.tables k WHERE k.relid = a.relid) OR a.relid = ANY (rels)
        ON CONFLICT (relid) DO UPDATE
       SET names = EXCLUDED.names, columns = EXCLUDED.columns, identity = EXCLUDED.identity,
           replica_identity = EXCLUDED.replica_identity
     WHERE (t.names, t.columns, t.identity, t.replica_identity)
           IS DISTINCT FROM (EXCLUDED.names, EXCLUDED.columns, EXCLUDED.identity, EXCLUDED.replica_identity);
    PERFORM pgherd.note_shapes(rels, everything);
    PERFORM pgherd.note_sequence_ranges();
    PERFORM pgherd.follow_local_tables();
    PERFORM pgherd.align_sequences(rels, everything);
    PERFORM pgherd.reconcile(CASE WHEN NOT everything THEN rels END, false);
    PERFORM pgherd.let_apply(false);
END $$;

-- CREATE TABLE AS and SELECT INTO: the table as it came out, instead of the query; its rows follow.
CREATE OR REPLACE FUNCTION pgherd.table_made(rel oid) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT format('CREATE TABLE %I.%I (%s)%s%s', n.nspname, c.relname,
             (SELECT string_agg(format('%I %s%s', a.attname, format_type(a.atttypid, a.atttypmod),
                                       CASE WHEN a.attcollation NOT IN (0, t.typcollation)
                                            THEN ' COLLATE ' || a.attcollation::regcollation::text ELSE '' END),
                                ', ' ORDER BY a.attnum)
                FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
               WHERE a.attrelid = rel AND a.attnum > 0 AND NOT a.attisdropped),
             (SELECT format(' USING %I', am.amname) FROM pg_am am WHERE am.oid = c.relam),
             CASE WHEN o.options IS NOT NULL THEN format(' WITH (%s)', o.options) ELSE '' END)
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
      LEFT JOIN pg_class toast ON toast.oid = c.reltoastrelid
     CROSS JOIN LATERAL (SELECT string_agg(u.o, ', ') AS options
                           FROM (SELECT unnest(c.reloptions)
                                 UNION ALL SELECT 'toast.' || unnest(toast.reloptions)) AS u(o)) o
     WHERE c.oid = rel;
END;

-- The rows of a table that the command has filled, as a command of its own for each thousand.
CREATE OR REPLACE FUNCTION pgherd.put_filled_table(x xid8, rel regclass, hoisted bool) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET DateStyle = 'ISO, YMD' SET IntervalStyle = 'postgres'
SET TimeZone = 'UTC' SET extra_float_digits = 1 SET bytea_output = 'hex' SET lc_monetary = 'C' SET xmlbinary = 'base64'
SET quote_all_identifiers = off AS $$
DECLARE chunk record;
BEGIN
    FOR chunk IN EXECUTE format(
        'SELECT json_agg(r.row_text) AS rows
           FROM (SELECT ROW(%s)::text AS row_text, row_number() OVER () / 1000 AS n FROM ONLY %s t) r
          GROUP BY r.n ORDER BY r.n',
        (SELECT string_agg(pgherd.field(format('t.%I', a.attname), a.atttypid), ', ' ORDER BY a.attnum)
           FROM pg_attribute a WHERE a.attrelid = rel AND a.attnum > 0), rel)
    LOOP
        PERFORM pgherd.put(x, 0, '""', '', ARRAY[hoisted::int],
                           ARRAY[json_build_object('fill', rel::text, 'rows', chunk.rows)::text]);
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION pgherd.check_writable() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE n pgherd.node;
BEGIN
    SELECT * INTO n FROM pgherd.node;
    IF NOT n.writable THEN
        PERFORM pgherd.refuse_write(n.reason);
    ELSIF current_setting('transaction_isolation') = 'serializable' THEN
        PERFORM pgherd.refuse_serializable();
    END IF;
END $$;

-- functions: those of ordinary roles; NULL where the command computes nothing.
CREATE OR REPLACE FUNCTION pgherd.check_command(effect record, before jsonb, functions oid[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgherd.check_writable();
    PERFORM pgherd.check_strays(before -> 'strays', effect.rels);
    IF pgherd.defines_nothing(before ->> 'tag') THEN
        RETURN;
    END IF;
    PERFORM pgherd.check_triggers(CASE WHEN NOT effect.coarse THEN effect.rels END);
    PERFORM pgherd.check_tables(effect.rels);
    PERFORM pgherd.check_columns(false, CASE WHEN NOT effect.coarse THEN effect.rels END);
    PERFORM pgherd.check_temporary();
    PERFORM pgherd.check_temporary_children();
    PERFORM pgherd.check_expressions(NULL);
    IF functions IS NOT NULL THEN
        PERFORM pgherd.check_user_code(functions);
    END IF;
    PERFORM pgherd.check_new_columns(effect.rels);
    PERFORM pgherd.check_attributes(effect.made);
    PERFORM pgherd.check_storage(effect.rels, false);
    PERFORM pgherd.check_materialized_views(effect.made);
    PERFORM pgherd.check_marks(effect.rels);
    PERFORM pgherd.check_local_tables(before -> 'local');
    PERFORM pgherd.check_settings(effect.made);
    IF before ->> 'tag' IN ('CREATE INDEX', 'ALTER TABLE') THEN
        PERFORM pgherd.check_new_indexes(effect.rels);
    END IF;
    PERFORM pgherd.check_publications();
    PERFORM pgherd.check_dependents();
    IF before ->> 'tag' LIKE '% EXTENSION' THEN
        PERFORM pgherd.check_script_roles();
    END IF;
    IF before ->> 'searches' <> pgherd.text_search_meaning(before ->> 'tag') THEN
        PERFORM pgherd.check_text_search();
    END IF;
END $$;

-- What the sidecar needs in order to judge the words of a command where the catalog does not show it.
--   rewrites   it computed new values for a table that has rows
--   uncertain  columns whose type has more than one reading
--   shadows    names of operators that an ordinary user has made, and of his functions: of all of them where a command
--              may call one (USING), else of those that PostgreSQL has, too
--   dates      there are new constants that may have been read from 'now', and `words` may name it
--   shrinks    a sequence got a smaller range, in which another member's may not stand
--   starts     with what a member begins a sequence of the command: it cannot tell a new START from that
CREATE OR REPLACE FUNCTION pgherd.what_words_tell(
    effect record, tag text, words text, functions oid[]) RETURNS jsonb
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE super oid[];
BEGIN
    IF functions IS NULL THEN
        RETURN '{"dates": false, "shrinks": false, "rewrites": false, "uncertain": null, "shadows": null, "starts": null}';
    END IF;
    super := pgherd.superusers();
    RETURN jsonb_build_object(
        'dates', pgherd.may_name_dates(words) AND pgherd.made_dates(tag),
        'shrinks', pgherd.shrinks_sequence(),
        'starts', CASE WHEN words ~* E'\\mstart\\M' THEN (
            SELECT jsonb_agg(k.start + k.step::numeric * i.i)
              FROM pgherd.user_sequences s JOIN pgherd.sequences k ON k.relid = s.relid
             CROSS JOIN generate_series(1, (SELECT n.slots - 1 FROM pgherd.node n)) AS i(i)
             WHERE s.relid = ANY (effect.rels) OR s.owner = ANY (effect.rels)) END,
        'rewrites', effect.rewrites,
        'uncertain', CASE WHEN effect.rewrites THEN (
            SELECT jsonb_agg(DISTINCT a.attname) FROM pg_attribute a
             WHERE a.attrelid = ANY (effect.rels) AND a.attnum > 0 AND NOT a.attisdropped
               AND NOT pgherd.text_is_certain(a.atttypid, true)) END,
        'shadows', (
            SELECT jsonb_agg(DISTINCT u.name)
              FROM (SELECT p.proname AS name FROM pg_proc p
                     WHERE p.oid = ANY (functions)
                       AND (tag = 'ALTER TABLE' AND words ~* '[[:<:]]using[[:>:]]'
                            OR EXISTS (SELECT FROM pg_proc b
                                        WHERE b.proname = p.proname AND b.pronamespace = 'pg_catalog'::regnamespace))
                    UNION ALL SELECT p.oprname FROM pg_operator p WHERE p.oprowner <> ALL (super)) u));
END $$;

CREATE OR REPLACE FUNCTION pgherd.relation_names(rels oid[]) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN (SELECT coalesce(jsonb_agg(c.oid::regclass::text), '[]') FROM pg_class c WHERE c.oid = ANY (rels));
END $$;

-- Names that tables have had, and partitions with those above them, and that the command which has just ended has taken
-- away, by whatever words: by CASCADE, of a role, of a schema. Another table may have such a name by now.
CREATE OR REPLACE FUNCTION pgherd.names_gone() RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN (SELECT coalesce(jsonb_agg(DISTINCT u.name), '[]')
              FROM pgherd.tables t
              LEFT JOIN (pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace) ON c.oid = t.relid
             CROSS JOIN LATERAL unnest(t.names) AS u(name)
             WHERE c.oid IS NULL OR format('%I.%I', n.nspname, c.relname) <> t.names[1]);
END $$;

-- It is called for our own commands, too, of which there are more; so what costs is in a function of its own.
CREATE OR REPLACE FUNCTION pgherd.command_end() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT pgherd.is_own_command() THEN
        PERFORM pgherd.end_command(TG_TAG);
    END IF;
END $$;

-- Plans are made once for each session, and the catalogs are in memory: by the indexes.
CREATE OR REPLACE FUNCTION pgherd.end_command(tag text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET seq_page_cost = 0.1 SET random_page_cost = 0.1 SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    functions oid[];
    x         xid8 := pg_current_xact_id();
    opened    record;
    effect    record;
    command   jsonb;
    in_use    oid[];
    before    jsonb;
BEGIN
    opened := pgherd.running_command(x, tag);
    IF opened.seq IS NULL THEN
        IF tag = 'CREATE INDEX' OR tag = 'DROP INDEX' AND current_setting('pgherd.drops_here', true) = '' THEN
            PERFORM pgherd.end_long(tag); -- began in another transaction
        END IF;
        RETURN;
    ELSIF opened.nested THEN
        IF tag LIKE '% EXTENSION' THEN
            PERFORM pgherd.end_open(x);
        END IF;
        RETURN;
    END IF;
    effect := pgherd.command_effect(opened, tag);
    IF opened.wrote THEN
        PERFORM pgherd.refuse(tag || ' wrote rows of replicated tables while it ran, which is not supported',
            'A function that it called does this.');
    END IF;
    PERFORM pgherd.put(x, opened.seq, 'sentinel', 'end', '{0}', '{}'); -- as end_open(): nothing is nested in it
    command := opened.said - 'before';
    before := opened.said -> 'before';
    in_use := array(SELECT jsonb_array_elements_text(command -> 'in_use')::oid);
    IF pgherd.leaves_tables(tag, before ->> 'meaning', effect.coarse) THEN
        effect.coarse := false;
        command := command || '{"leaves_tables": true}';
    END IF;
    PERFORM pgherd.check_reindex_copies(before -> 'broken', effect.rels);
    IF effect.here_only THEN
        PERFORM pgherd.check_temporary_children();
        PERFORM pgherd.check_dependents();
        IF NOT pgherd.computes_nothing(tag) THEN -- deferred triggers, indexes of temporary children, domains
            PERFORM pgherd.check_user_code();
        END IF;
        PERFORM pgherd.put(x, 0, 'sentinel', 'local', '{0}', ARRAY[(command || '{"local": true}')::text]);
        RETURN;
    END IF;
    IF before ->> 'owners' <> '' THEN -- it only looked temporary
        PERFORM pgherd.take_turn_late(tag, (before ->> 'beside')::bool);
        PERFORM pgherd.put_unseen(x, opened.base, in_use <> '{}', '{}', before -> 'owners');
    END IF;
    PERFORM pgherd.check_long_commands(tag, effect.rels, effect.coarse);
    PERFORM pgherd.check_moves(tag, effect.rels, command ->> 'role');
    command := command || jsonb_build_object('grants', pgherd.rights_of(command ->> 'role'),
                                             'database', pgherd.database_rights_of(command ->> 'role', tag));
    functions := CASE WHEN NOT pgherd.computes_nothing(tag) THEN pgherd.ordinary_functions() END;
    PERFORM pgherd.check_command(effect, before, functions);
    IF functions IS NOT NULL THEN
        PERFORM pgherd.check_search_paths('{}', command);
    END IF;
    PERFORM pgherd.refuse_doubled(command ->> 'doubled');
    IF in_use <> '{}' THEN
        PERFORM pgherd.check_hoisted(x, tag, effect.rels, effect.made, effect.coarse, in_use);
    END IF;
    command := command - '{in_use,doubled}'::text[];
    IF tag IN ('CREATE TABLE AS', 'SELECT INTO') THEN
        command := command || jsonb_build_object('made', pgherd.table_made(effect.made[1]));
    ELSIF tag = 'CREATE EXTENSION' THEN
        command := command || (
            -- CREATE EXTENSION makes the schema that the extension's control file names, but not the one of WITH SCHEMA
            SELECT jsonb_build_object('extension', json_build_array(
                       e.extname, CASE WHEN v.schema IS NULL THEN n.nspname END, e.extversion))
              FROM pg_event_trigger_ddl_commands() o JOIN pg_extension e ON e.oid = o.objid
              JOIN pg_namespace n ON n.oid = e.extnamespace
              LEFT JOIN pg_available_extension_versions v ON v.name = e.extname AND v.version = e.extversion
             WHERE o.object_type = 'extension' LIMIT 1);
    END IF;
    PERFORM pgherd.put_command(x, opened.base, effect.rels, effect.coarse, command || pgherd.what_words_tell(
                                   effect, tag, current_query() || (opened.said ->> 'context'), functions),
                               in_use <> '{}');
    IF tag IN ('CREATE TABLE AS', 'SELECT INTO') THEN
        PERFORM pgherd.put_filled_table(x, effect.made[1], in_use <> '{}');
    ELSIF tag IN ('CREATE MATERIALIZED VIEW', 'REFRESH MATERIALIZED VIEW') THEN
        PERFORM pgherd.put_tables_read(x, pgherd.fill_again(effect.made, before, command), effect.made, in_use <> '{}');
    END IF;
END $$;

-- A materialized view was filled with the snapshot of its command. That is older than the intention that makes others
-- give way, so the command would lose to whoever committed in between, each time again. Where something was committed,
-- the view is therefore filled once more, unless that took long: an intention does not last, and others' commits may
-- concern other tables. Returns the GID up to which it holds everything.
CREATE OR REPLACE FUNCTION pgherd.fill_again(made oid[], before jsonb, command jsonb) RETURNS int8
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET session_replication_role = replica AS $$
DECLARE
    filled int8 := before ->> 'snapshot';
    newer  int8 := pgherd.last_gid(); -- the next query sees at least as much
    view   record;
BEGIN
    IF newer = filled OR clock_timestamp() > to_timestamp((before ->> 'started')::float8) + interval '2 s'
       OR current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN filled;
    END IF;
    FOR view IN SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                 WHERE c.oid = ANY (made) AND c.relkind = 'm' AND c.relispopulated LOOP
        PERFORM pgherd.refresh(format('%I.%I', view.nspname, view.relname), command -> 'settings' ->> 'search_path');
    END LOOP;
    RETURN newer;
END $$;

-- Under the search path of the command, as other members do it; the query's names are bound already. It is planned as any
-- other, and not as our own queries are.
CREATE OR REPLACE FUNCTION pgherd.refresh(view text, path text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET seq_page_cost = 1 SET random_page_cost = 4
SET enable_hashjoin = on SET enable_mergejoin = on SET plan_cache_mode = auto AS $$
DECLARE
    statement pg_catalog.text := 'REFRESH MATERIALIZED VIEW ' || view;
BEGIN
    PERFORM set_config('search_path', path, true);
    EXECUTE statement;
END $$;

-- The tables that a materialized view was filled from, as the command's snapshot saw them: who wrote to one since then,
-- on any member, is not in the view here, but would be on others. Then the command has lost.
CREATE OR REPLACE FUNCTION pgherd.put_tables_read(x xid8, snapshot int8, made oid[], hoisted bool) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    tables text;
BEGIN
    SELECT nullif(pgherd.table_keys(array_agg(u.relid)), '') INTO tables
      FROM pg_class c CROSS JOIN LATERAL unnest(pgherd.tables_of_view(c.oid)) AS u(relid)
     WHERE c.oid = ANY (made) AND c.relkind = 'm' AND c.relispopulated;
    IF tables IS NOT NULL THEN
        PERFORM pgherd.put(x, snapshot, '""', tables, ARRAY[hoisted::int], '{}');
    END IF;
END $$;

-- Puts a command that has been executed here among the captured rows, with its certification keys (C16).
-- `base`: what it saw of the schema; what it saw of the tables' rows, under their locks, is all up to now.
-- Two commands always exclude each other; a command and a writer only if one of its tables is concerned.
-- `hoisted`: the run of row changes goes on, and the others execute the command before it (047).
CREATE OR REPLACE FUNCTION pgherd.put_command(
    x xid8, base int8, rels oid[], coarse bool, command jsonb, hoisted bool) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    tables text := pgherd.table_keys(rels);
BEGIN
    IF command ->> 'tag' ~ '^(ALTER|DROP) ' THEN -- before they are followed
        command := command || jsonb_build_object('gone', pgherd.names_gone());
    END IF;
    IF command ->> 'act' IS DISTINCT FROM 'setval' THEN -- which leaves everything else as it is
        PERFORM pgherd.follow_command(rels, coarse, coalesce((command ->> 'leaves_tables')::bool, false));
    END IF;
    command := command || jsonb_build_object('rels', pgherd.relation_names(rels), 'everything', coarse)
               || CASE WHEN command ? 'tag' THEN pgherd.command_print(command ->> 'tag', rels) ELSE '{}' END;
    PERFORM pgherd.put(x, base, '""', (pgherd.name_hash('schema') | CASE WHEN coarse THEN 3 ELSE 2 END)::text,
                       ARRAY[hoisted::int], ARRAY[command::text]);
    IF tables <> '' THEN
        PERFORM pgherd.put(x, pgherd.last_gid(), '""', tables, ARRAY[hoisted::int], '{}');
    END IF;
END $$;

DO $$
DECLARE e record;
BEGIN
    FOR e IN SELECT * FROM (VALUES ('pgherd_0_snapshot', 'ddl_command_start', 'command_snapshot'),
                                   ('pgherd_0_turn', 'ddl_command_start', 'command_turn'),
                                   ('pgherd_1_context', 'ddl_command_start', 'command_context'),
                                   ('pgherd_2_start', 'ddl_command_start', 'command_start'),
                                   ('pgherd_drop', 'sql_drop', 'command_drops'),
                                   ('pgherd_rewrite', 'table_rewrite', 'command_rewrites'),
                                   ('pgherd_end', 'ddl_command_end', 'command_end')) AS e(name, event, fname) LOOP
        EXECUTE format('DROP EVENT TRIGGER IF EXISTS %I', e.name);
        EXECUTE format('CREATE EVENT TRIGGER %I ON %s EXECUTE FUNCTION pgherd.%I()', e.name, e.event, e.fname);
    END LOOP;
END $$;
