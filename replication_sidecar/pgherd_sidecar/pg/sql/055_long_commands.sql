-- Long commands: each member does one on its own, beside the commits. CREATE INDEX CONCURRENTLY is one; the next file has
-- the other, DROP INDEX CONCURRENTLY.
--
-- PostgreSQL runs the command in several transactions. The first one, which leaves an index in the catalog that nobody uses
-- yet, is ordered: from there on every member has a row here, and its sidecar builds the index. The last one at the origin
-- waits until every member of the view has reported that it has the index, and is ordered as well: it takes the row away
-- everywhere. A member that has not got the index then, because it was away, builds it before it goes on. So a command
-- behind that place in the order finds the index everywhere, and one between the two places that concerns the table is
-- refused. If the session of the origin does not get to its end, the sidecar of the origin orders that all drop the index.

-- The long commands under way. A member has the same rows as the others at the same GID, but for the last columns.
--   token       names the origin's first transaction
--   member      the origin
--   definition  CREATE INDEX as any member executes it
--   tab, index  qualified names
--   done        members that have reported the index; the origin does not report
--   failed      why a member can't have it: the command is going to fail, with the SQLSTATE `state`
--   kind        'build' or 'drop'
--   go          of a drop: the others begin
--   row_key     of a unique index that is built: the certification key of the row `pgherd_row`, as SQL text
--   columns     the columns of which that is made
-- These are a member's own:
--   relid       the table here
--   pid, backend_start, query_start
--               the client's session, at the origin
--   abandoned   why this member has given up building it, with the SQLSTATE `state`; not reported yet
--   ready       of a unique index that is built: what is captured here from now on is in the index
--   missing     at the origin: the members that are waited for, by name; '' if none is, NULL if that is not known yet
CREATE TABLE IF NOT EXISTS pgherd.long_commands (
    token         text   PRIMARY KEY,
    member        int    NOT NULL,
    kind          text   NOT NULL DEFAULT 'build',
    definition    text   NOT NULL,
    tab           text   NOT NULL,
    index         text   NOT NULL,
    done          int[]  NOT NULL DEFAULT '{}',
    failed        text,
    state         text,
    go            bool   NOT NULL DEFAULT false,
    row_key       text,
    columns       name[],
    relid         oid,
    pid           int,
    backend_start timestamptz,
    query_start   timestamptz,
    abandoned     text,
    ready         bool   NOT NULL DEFAULT false,
    missing       text
);

CREATE OR REPLACE FUNCTION pgherd.tell_of_long() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pg_notify('pgherd_long', '');
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER tell AFTER INSERT OR UPDATE OR DELETE ON pgherd.long_commands
    FOR EACH STATEMENT EXECUTE FUNCTION pgherd.tell_of_long();
ALTER TABLE pgherd.long_commands ENABLE ALWAYS TRIGGER tell;

-- A command that is perhaps a long one has begun: its words say so, which may stand in a comment. At the end of its first
-- transaction the catalog tells.
CREATE UNLOGGED TABLE IF NOT EXISTS pgherd.long_starts (xid xid8 NOT NULL);

-- What is done under these settings means the same on every member, and so does what is written.
CREATE OR REPLACE FUNCTION pgherd.portable_index(idx oid, OUT tab text, OUT index text, OUT definition text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp SET DateStyle = 'ISO, YMD' SET IntervalStyle = 'postgres'
SET TimeZone = 'UTC' SET extra_float_digits = 1 SET bytea_output = 'hex' SET lc_monetary = 'C' SET xmlbinary = 'base64'
SET quote_all_identifiers = off
BEGIN ATOMIC
    SELECT format('%I.%I', t.nspname, r.relname), format('%I.%I', n.nspname, c.relname), pg_get_indexdef(i.indexrelid)
      FROM pg_index i
      JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace
      JOIN pg_class r ON r.oid = i.indrelid JOIN pg_namespace t ON t.oid = r.relnamespace
     WHERE i.indexrelid = idx;
END;

-- ddl_command_start of a command whose words name CONCURRENTLY.
CREATE OR REPLACE FUNCTION pgherd.start_long(x xid8, tag text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF tag <> 'CREATE INDEX' THEN
        PERFORM pgherd.refuse('DETACH PARTITION CONCURRENTLY is not supported: it runs in several transactions, and members would'
                              ' know the rows of the partition by the keys of one table or of two',
                              'ALTER TABLE ... DETACH PARTITION ... without CONCURRENTLY.');
    END IF;
    PERFORM pgherd.check_long_start(tag);
    INSERT INTO pgherd.long_starts VALUES (x);
END $$;

-- Two of them would wait for each other across members: the end of each holds a snapshot. And that sees what the sidecar
-- says of the others in the meantime only if it is made anew for each query.
CREATE OR REPLACE FUNCTION pgherd.check_long_start(tag text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE other record;
BEGIN
    SELECT l.index, l.kind INTO other FROM pgherd.long_commands l ORDER BY l.index LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'index % is being % on all members, and only one at a time can be', other.index,
            CASE other.kind WHEN 'drop' THEN 'dropped' ELSE 'built' END
            USING ERRCODE = '55006', HINT = 'Repeat when `pgherd status` no longer names it.';
    ELSIF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM pgherd.refuse(tag || ' CONCURRENTLY is supported at READ COMMITTED only',
            'SET default_transaction_isolation = ''read committed''.');
    END IF;
END $$;

-- The end of the first transaction, as a deferred trigger: the new index is in the catalog, and not valid. It is judged here,
-- because the other members begin behind this transaction.
CREATE OR REPLACE FUNCTION pgherd.begin_long() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    x      xid8 := NEW.xid;
    opened record;
    i      record;
    about  record;
    item   jsonb;
BEGIN
    DELETE FROM pgherd.long_starts s WHERE s.xid = x;
    SELECT * INTO opened FROM pgherd.running_rows(x) c WHERE c.keys = 'open';
    IF NOT FOUND THEN
        RETURN NULL; -- the command has ended: the words stood in a comment
    END IF;
    SELECT n.indexrelid, n.indrelid, n.indisunique, c.reltablespace INTO i
      FROM pg_index n JOIN pg_class c ON c.oid = n.indexrelid
     WHERE NOT n.indisvalid AND n.xmin::text::int8 = x::text::int8 & 4294967295;
    IF NOT FOUND THEN
        PERFORM pgherd.refuse('what this command does CONCURRENTLY cannot be told', 'Leave CONCURRENTLY out.');
    ELSIF i.reltablespace <> 0 THEN
        PERFORM pgherd.refuse('tablespaces are not replicated', 'Leave TABLESPACE out.');
    END IF;
    PERFORM pgherd.check_long(i.indrelid, i.indexrelid, opened.recs[1]::jsonb);
    PERFORM pgherd.end_open(x);
    SELECT * INTO about FROM pgherd.portable_index(i.indexrelid);
    INSERT INTO pgherd.long_commands (token, member, definition, tab, index, relid, pid, backend_start, query_start)
    SELECT pgherd.current_token(), n.member, about.definition, about.tab, about.index, i.indrelid,
           pg_backend_pid(), a.backend_start, statement_timestamp()
      FROM pgherd.node n JOIN pg_stat_activity a ON a.pid = pg_backend_pid();
    IF i.indisunique THEN
        PERFORM pgherd.begin_unique(i.indrelid, i.indexrelid);
    END IF;
    SELECT pgherd.long_item(l, 'long_begin') INTO item
      FROM pgherd.long_commands l WHERE l.token = pgherd.current_token();
    -- Like any command it excludes every other one; rows of the table are written as before.
    PERFORM pgherd.put(x, opened.base, '""', (pgherd.name_hash('schema') | 2)::text, '{0}', ARRAY[item::text]);
    IF i.indisunique THEN
        PERFORM pgherd.follow_long(item);
        PERFORM pgherd.put(x, pgherd.last_gid(), '""', pgherd.table_keys(ARRAY[i.indrelid]), '{0}', '{}');
    END IF;
    RETURN NULL;
END $$;

-- What travels of a long command.
CREATE OR REPLACE FUNCTION pgherd.long_item(l pgherd.long_commands, act text) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    -- What is captured depends on a unique index.
    changes bool := l.definition LIKE 'CREATE UNIQUE INDEX %'
                    AND (act IN ('long_end', 'long_undo') OR act = 'long_begin' AND l.kind = 'build');
BEGIN
    RETURN jsonb_build_object('act', act, 'token', l.token, 'member', l.member, 'kind', l.kind, 'definition', l.definition,
                              'tab', l.tab, 'index', l.index, 'row_key', l.row_key, 'columns', l.columns,
                              'leaves_tables', NOT changes,
                              'rels', CASE WHEN changes
                                           THEN pgherd.relation_names(pgherd.with_relatives(ARRAY[l.relid])) ELSE '[]' END);
END $$;

-- What follows from it on the member that orders it: the others come to that in execute_command().
CREATE OR REPLACE FUNCTION pgherd.follow_long(command jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT (command ->> 'leaves_tables')::bool THEN
        PERFORM pgherd.follow_command(array(SELECT to_regclass(r.name)::oid
                                              FROM jsonb_array_elements_text(command -> 'rels') AS r(name)), false, false);
    END IF;
END $$;

DROP TRIGGER IF EXISTS begin_long ON pgherd.long_starts;
CREATE CONSTRAINT TRIGGER begin_long AFTER INSERT ON pgherd.long_starts
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION pgherd.begin_long();

-- What speaks against an index; what an index cannot bring about is not looked for.
CREATE OR REPLACE FUNCTION pgherd.check_long(rel oid, idx oid, command jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    rels oid[] := pgherd.with_relatives(ARRAY[rel]);
    used text;
BEGIN
    PERFORM pgherd.check_writable();
    PERFORM pgherd.check_strays(command -> 'before' -> 'strays', ARRAY[rel]);
    PERFORM pgherd.check_temporary();
    PERFORM pgherd.check_expressions(NULL);
    PERFORM pgherd.check_user_code();
    PERFORM pgherd.check_search_paths('{}', command);
    PERFORM pgherd.check_storage(rels, false);
    PERFORM pgherd.check_local_tables(command -> 'before' -> 'local');
    SELECT min(pg_describe_object(d.refclassid, d.refobjid, 0)) INTO used
      FROM pg_depend d JOIN pg_proc f ON f.oid = d.refobjid AND d.refclassid = 'pg_proc'::regclass
     WHERE d.classid = 'pg_class'::regclass AND d.objid = idx AND d.deptype = 'n'
       AND f.pronamespace IN ('pgherd'::regnamespace, 'pgherd_gen'::regnamespace);
    IF used IS NOT NULL THEN
        PERFORM pgherd.refuse(format('the index uses %s, which belongs to replication', used), 'Use other functions.');
    END IF;
    -- Here by its name alone: it is not valid yet, as such copies are.
    PERFORM pgherd.refuse_reindex_copy((
        SELECT min(c.oid::regclass::text)
          FROM pg_class made JOIN pg_index i ON i.indrelid = rel JOIN pg_class c ON c.oid = i.indexrelid
         WHERE made.oid = idx
           AND CASE WHEN c.oid = idx THEN c.relname ~ '_cc(new|old)[0-9]*$'
                    ELSE i.indisvalid AND regexp_replace(c.relname, '_cc(new|old)[0-9]*$', '') = made.relname END));
END $$;

-- ddl_command_end in the last transaction of a long command: waits for the other members, and has all forget the command.
-- Its client may cancel it meanwhile: then it is undone everywhere. The sidecar says who is waited for.
CREATE OR REPLACE FUNCTION pgherd.end_long(tag text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    began timestamptz := clock_timestamp();
    told  text;
    item  jsonb;
    l     pgherd.long_commands;
BEGIN
    LOOP
        SELECT k.* INTO l FROM pgherd.long_commands k JOIN pg_stat_activity a ON a.pid = pg_backend_pid()
         WHERE k.pid = a.pid AND k.backend_start = a.backend_start AND k.query_start = statement_timestamp();
        IF NOT FOUND THEN
            EXIT WHEN told IS NULL AND tag = 'CREATE INDEX'; -- an ordinary one
            RAISE EXCEPTION 'the command was undone on all members' USING ERRCODE = '40001';
        ELSIF l.failed IS NOT NULL THEN
            RAISE EXCEPTION 'index % could not be built on all members', l.index
                USING ERRCODE = coalesce(l.state, '55000'), DETAIL = l.failed, HINT = 'The other members drop it again.';
        ELSIF l.missing = '' THEN
            PERFORM pgherd.check_writable();
            DELETE FROM pgherd.long_commands k WHERE k.token = l.token;
            item := pgherd.long_item(l, 'long_end');
            PERFORM pgherd.put(pg_current_xact_id(), pgherd.last_gid(), '""',
                               concat_ws(',', pgherd.name_hash('long commands') | 3,
                                         CASE WHEN l.row_key <> '' THEN pgherd.unready_key(l.index) | 3 END),
                               '{0}', ARRAY[item::text]);
            PERFORM pgherd.follow_long(item);
            EXIT;
        ELSIF l.missing <> coalesce(told, '') AND clock_timestamp() > began + interval '3 s' THEN
            RAISE NOTICE 'index % is % on this member, which waits for %', l.index,
                CASE l.kind WHEN 'drop' THEN 'dropped' ELSE 'ready' END, l.missing;
            told := l.missing;
        END IF;
        told := coalesce(told, '');
        PERFORM pg_sleep(0.02);
    END LOOP;
END $$;

-- Is an index still being built somewhere? Some members have it, and some have not.
CREATE OR REPLACE FUNCTION pgherd.is_long_index(rel oid, idx oid) RETURNS bool
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN EXISTS (SELECT FROM pgherd.long_commands l WHERE l.relid = rel AND to_regclass(l.index) = idx);
END $$;

-- Is it an index of that table?
CREATE OR REPLACE FUNCTION pgherd.long_index(rel oid, name text, OUT id oid, OUT valid bool)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT i.indexrelid, i.indisvalid FROM pg_index i WHERE i.indexrelid = to_regclass(name) AND i.indrelid = rel;
END;

-- What became of a long command, on any member.
CREATE OR REPLACE FUNCTION pgherd.perform_long(command jsonb) RETURNS bool
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET session_replication_role = replica SET DateStyle = 'ISO, YMD'
SET IntervalStyle = 'postgres' SET TimeZone = 'UTC' SET default_tablespace = '' AS $$
DECLARE
    act   text := command ->> 'act';
    drops bool := command ->> 'kind' = 'drop';
    stays bool;
    l     pgherd.long_commands;
    i     record;
BEGIN
    IF act = 'long_begin' THEN
        INSERT INTO pgherd.long_commands (token, member, kind, definition, tab, index, relid, row_key, columns)
        VALUES (command ->> 'token', (command ->> 'member')::int, command ->> 'kind',
                command ->> 'definition', command ->> 'tab', command ->> 'index', to_regclass(command ->> 'tab'),
                command ->> 'row_key', CASE WHEN jsonb_typeof(command -> 'columns') = 'array'
                                            THEN array(SELECT jsonb_array_elements_text(command -> 'columns')::name) END)
            ON CONFLICT (token) DO NOTHING;
        IF command ->> 'row_key' <> '' THEN
            EXECUTE format('LOCK TABLE ONLY %s IN SHARE MODE', command ->> 'tab'); -- see lock_writers_out()
        END IF;
        RETURN true;
    END IF;
    SELECT * INTO l FROM pgherd.long_commands k WHERE k.token = command ->> 'token';
    IF NOT FOUND AND act NOT IN ('long_end', 'long_undo') THEN -- which tell all by themselves
        RETURN false;
    ELSIF act = 'long_done' THEN
        UPDATE pgherd.long_commands k SET done = k.done || (command ->> 'value')::int
         WHERE k.token = l.token AND NOT (command ->> 'value')::int = ANY (k.done);
        RETURN true;
    ELSIF act = 'long_failed' THEN
        UPDATE pgherd.long_commands k
           SET failed = coalesce(k.failed, command ->> 'reason'),
               state = CASE WHEN k.failed IS NULL THEN command ->> 'state' ELSE k.state END
         WHERE k.token = l.token;
        RETURN true;
    ELSIF act = 'long_go' THEN
        UPDATE pgherd.long_commands k SET go = true WHERE k.token = l.token;
        RETURN true;
    END IF;
    -- The index is there behind the end of a build, and behind a drop that was undone.
    SELECT * INTO i FROM pgherd.long_index(to_regclass(command ->> 'tab'), command ->> 'index');
    stays := (act = 'long_end') <> drops;
    IF i.id IS NOT NULL AND NOT (stays AND i.valid) THEN
        EXECUTE format('DROP INDEX %s', command ->> 'index');
    END IF;
    IF stays AND i.valid IS NOT TRUE THEN -- this member was away while the others built it, or did not get far with the drop
        EXECUTE command ->> 'definition';
    END IF;
    DELETE FROM pgherd.long_commands k WHERE k.token = command ->> 'token';
    RETURN true;
END $$;

-- The sidecar's own requests: `object` is JSON. They take no turn, since no command depends on them. A command that has no
-- row any more has come to its end.
CREATE OR REPLACE FUNCTION pgherd.order_long(r pgherd.request) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
DECLARE
    base    int8 := pgherd.last_gid();
    command jsonb;
BEGIN
    IF r.act = 'long_drop' THEN
        PERFORM pgherd.begin_drop(pg_current_xact_id(), base, r.object::jsonb);
        RETURN;
    END IF;
    SELECT pgherd.long_item(l, r.act) || jsonb_build_object('value', r.value) || r.object::jsonb INTO command
      FROM pgherd.long_commands l WHERE l.token = r.object::jsonb ->> 'token';
    IF command IS NOT NULL AND pgherd.perform_long(command) THEN
        PERFORM pgherd.follow_long(command);
        PERFORM pgherd.put(pg_current_xact_id(), base, '""', (pgherd.name_hash('long commands') | 3)::text, '{0}',
                           ARRAY[command::text]);
    END IF;
END $$;

-- Refuses a command that concerns a table on which an index is being built: other members could not execute it, or would
-- end the building. Also one that takes the name which the index has on members that are further.
CREATE OR REPLACE FUNCTION pgherd.check_long_commands(tag text, rels oid[], coarse bool) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE l record;
BEGIN
    IF tag IN ('GRANT', 'REVOKE', 'ALTER DEFAULT PRIVILEGES') THEN
        RETURN; -- which have nothing to do with indexes, and lock no table
    ELSIF NOT EXISTS (SELECT FROM pgherd.long_commands) THEN
        RETURN;
    END IF;
    FOR l IN
        SELECT k.index, k.tab, k.kind FROM pgherd.long_commands k
         WHERE coarse OR k.relid = ANY (rels) OR to_regclass(k.tab) = ANY (rels)
            OR EXISTS (SELECT FROM pg_locks o
                        WHERE o.pid = pg_backend_pid() AND o.locktype = 'relation' AND o.granted AND o.relation = k.relid
                          AND o.mode IN ('ShareUpdateExclusiveLock', 'ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock',
                                         'AccessExclusiveLock'))
            OR k.kind = 'drop' AND EXISTS ( -- see shares_name()
                   SELECT FROM pg_class c WHERE c.relname = (parse_ident(k.index))[2] AND c.relpersistence <> 't'
                                            AND c.oid IS DISTINCT FROM to_regclass(k.index) AND pgherd.is_new(c.xmin))
            OR EXISTS (SELECT FROM pg_class c WHERE c.oid = to_regclass(k.index)
                          AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indexrelid = c.oid AND i.indrelid = k.relid)) LOOP
        RAISE EXCEPTION 'index % of table % is being % on all members', l.index, l.tab,
            CASE l.kind WHEN 'drop' THEN 'dropped' ELSE 'built' END
            USING ERRCODE = '55006',
                  HINT = 'Repeat when `pgherd status` no longer names it, or cancel the session that does it.';
    END LOOP;
END $$;

-- The long commands as the sidecar and people see them.
--   here     has this member done it: has it the index, or has it not, if it is dropped?
--   at_work  at the origin: is the client's session still at it?
--   valid    is the index used here for queries?
--   dead     does nobody write into it here any more?
--   ready    is what is captured here in the index?
--   built    at the origin: has PostgreSQL built it?
--   phase    what is done here at the moment, from pg_stat_progress_create_index
CREATE OR REPLACE VIEW pgherd.long_commands_here AS
SELECT l.token, l.member, l.definition, l.tab, l.index, l.done, l.failed, l.abandoned, l.missing,
       CASE l.kind WHEN 'drop' THEN i.id IS NULL ELSE coalesce(i.valid, false) END AS here, i.id IS NOT NULL AS begun,
       EXISTS (SELECT FROM pg_stat_activity a
                WHERE a.pid = l.pid AND a.backend_start = l.backend_start AND a.datname = current_database()
                  AND (a.state = 'disabled' OR a.state = 'active' AND a.query_start = l.query_start)) AS at_work,
       (SELECT concat(p.phase, CASE WHEN p.blocks_total > 0 THEN format(', %s %% of blocks', 100 * p.blocks_done / p.blocks_total)
                                    WHEN p.tuples_total > 0 THEN format(', %s %% of rows', 100 * p.tuples_done / p.tuples_total)
                                    WHEN p.lockers_total > 0 THEN format(', for %s of %s transactions', p.lockers_total - p.lockers_done,
                                                                         p.lockers_total) END)
          FROM pg_stat_progress_create_index p WHERE p.relid = l.relid AND p.command LIKE '% CONCURRENTLY' LIMIT 1) AS phase,
       l.kind, l.go, coalesce(i.valid, false) AS valid,
       i.id IS NULL OR NOT (SELECT x.indislive FROM pg_index x WHERE x.indexrelid = i.id) AS dead,
       l.row_key IS NULL OR l.ready AS ready, l.state,
       -- PostgreSQL has built it for the client's session, which only waits for the others, or has failed
       coalesce((SELECT x.indisready FROM pg_index x WHERE x.indexrelid = i.id), false)
       AND NOT EXISTS (SELECT FROM pg_stat_get_progress_info('CREATE INDEX') p WHERE p.pid = l.pid) AS built
  FROM pgherd.long_commands l
  LEFT JOIN LATERAL pgherd.long_index(l.relid, l.index) i ON true;

-- An entry could not be applied here. It may be that the row has no place in an index that its origin has not got yet, or has
-- not got any more: then the index gives way, since rows are ordered and it is not. The command fails, if it builds one.
-- Returns whether an index has given way; the one that is named by `key` may be gone by now.
--   key  the index that refused a row; empty where it is not known
CREATE OR REPLACE FUNCTION pgherd.abandon_long(reason text, sqlstate text, key text) RETURNS bool
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET session_replication_role = replica SET lock_timeout = '1s' AS $$
DECLARE
    l        record;
    gave_way bool := false;
BEGIN
    FOR l IN SELECT k.token, k.index, k.relid, k.kind, k.pid, k.backend_start FROM pgherd.long_commands k
              CROSS JOIN LATERAL pgherd.long_index(k.relid, k.index) i WHERE i.id IS NOT NULL LOOP
        PERFORM pg_terminate_backend(a.pid) FROM pg_stat_activity a WHERE a.pid = l.pid AND a.backend_start = l.backend_start;
        PERFORM pgherd.end_old('pgherd long'), pgherd.ready_unique(l.token, false);
        LOOP
            BEGIN
                EXECUTE format('DROP INDEX IF EXISTS %s', l.index);
                EXIT;
            EXCEPTION WHEN lock_not_available THEN -- nothing is applied here until the index is gone
                PERFORM pg_terminate_backend(a.pid)
                   FROM pg_locks o JOIN pg_stat_activity a ON a.pid = o.pid AND a.backend_type = 'client backend'
                  WHERE o.locktype = 'relation' AND o.relation = l.relid AND o.granted AND o.pid <> pg_backend_pid()
                    AND o.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database());
            END;
        END LOOP;
        IF l.kind = 'build' THEN
            UPDATE pgherd.long_commands k SET abandoned = reason, state = CASE abandon_long.sqlstate WHEN '23505' THEN '23505' END
             WHERE k.token = l.token;
        END IF;
        gave_way := true;
    END LOOP;
    RETURN gave_way OR abandon_long.sqlstate = '23505' AND EXISTS (
        SELECT FROM pgherd.long_commands k WHERE (parse_ident(k.index))[2] = key AND to_regclass(k.index) IS NULL);
END $$;
