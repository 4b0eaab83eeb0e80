-- DROP INDEX CONCURRENTLY. PostgreSQL begins it only in a transaction that has written nothing, so it cannot be captured
-- there. Before it begins, its session has the sidecar order a row of pgherd.long_commands: all members know what is going to
-- happen, and do nothing yet. Then PostgreSQL drops the index at the origin. As soon as nobody writes into it there any more,
-- the sidecar orders the others to begin. The last transaction of the command waits for them, and is ordered.
--
-- If PostgreSQL refuses the command, the index is still valid, and all forget that it was to be dropped. If the session does
-- not get to its end later, the command goes on without it: the index is dropped everywhere.
--
-- A unique index may go this way, too. Rows that it would not allow are written at the origin from the moment on that nobody
-- writes into it there. Where another member has it still, it gives way to them (abandon_long).

-- ddl_command_start, of DROP INDEX with the word CONCURRENTLY: true if the command is on its way as a long one. If not, it is
-- an ordinary command, which PostgreSQL refuses to do concurrently because our transaction has written something by then.
CREATE OR REPLACE FUNCTION pgherd.start_drop() RETURNS bool
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    command jsonb := current_setting('pgherd.command_context');
    drops   jsonb := command -> 'drops';
    bare    bool  := cardinality(parse_ident(drops ->> 'name')) = 1;
    i       record;
BEGIN
    IF drops ->> 'index' IS NULL OR pg_current_xact_id_if_assigned() IS NOT NULL THEN
        RETURN false;
    END IF;
    SELECT c.oid, c.relowner, n.nspowner, x.indisvalid, x.indisreplident, x.indrelid, format('%I.%I', n.nspname, c.relname) AS name INTO i
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_index x ON x.indexrelid = c.oid
     WHERE c.oid = (drops ->> 'index')::oid AND c.relkind = 'i' AND c.relpersistence <> 't'
       AND (pg_has_role(command ->> 'role', c.relowner, 'USAGE') OR pg_has_role(command ->> 'role', n.nspowner, 'USAGE'))
       AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conindid = c.oid)
       AND NOT EXISTS (SELECT FROM pg_inherits h WHERE h.inhrelid = c.oid);
    IF NOT FOUND THEN
        RETURN false; -- PostgreSQL says what is wrong; a temporary one is no other member's business
    END IF;
    IF coalesce(pgherd.broken_indexes() ? i.oid::text, false) -- this member has it alone
       OR EXISTS (SELECT FROM pgherd.strays s WHERE s.relid = i.indrelid) THEN
        PERFORM set_config('pgherd.drops_here', i.oid::text, false);
        RETURN true;
    END IF;
    PERFORM set_config('pgherd.drops_here', '', false);
    PERFORM pgherd.check_writable(), pgherd.check_long_start('DROP INDEX');
    IF EXISTS (SELECT FROM pgherd.tables t WHERE t.identity = i.name) THEN
        PERFORM pgherd.refuse(format('DROP INDEX CONCURRENTLY of %s is not supported: table %s has no primary key, and its rows'
                                     ' are known by this index', i.name, i.indrelid::regclass),
                              format('DROP INDEX %s', i.name));
    END IF;
    -- Members that have it still would update published rows, and those that have dropped it could not.
    IF i.indisreplident THEN
        PERFORM pgherd.refuse(format('DROP INDEX CONCURRENTLY of %s is not supported: it is the replica identity of table %s',
                                     i.name, i.indrelid::regclass),
                              format('DROP INDEX %s', i.name));
    END IF;
    IF bare AND pgherd.shares_name(i.oid) THEN
        PERFORM pgherd.refuse(format('DROP INDEX CONCURRENTLY of %s by its name alone is not supported: another schema has'
                                     ' something of that name', i.name),
                              format('DROP INDEX CONCURRENTLY %s', i.name));
    END IF;
    PERFORM pgherd.announce_drop(jsonb_build_object('index', i.oid, 'bare', bare, 'pid', pg_backend_pid(), 'query_start', statement_timestamp()));
    RETURN true;
END $$;

-- PostgreSQL looks the name of the index up again when it has waited for a lock, and a name without a schema may be another
-- relation's by then: one that was made, or became visible, in a schema that comes first in the search_path. So no other one
-- may have it when the command begins, and none gets it until the end (check_long_commands).
CREATE OR REPLACE FUNCTION pgherd.shares_name(rel oid) RETURNS bool
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN EXISTS (SELECT FROM pg_class c JOIN pg_class o ON o.relname = c.relname AND o.oid <> c.oid AND o.relpersistence <> 't'
                    WHERE c.oid = rel);
END $$;

-- Has the sidecar order that an index is going to be dropped. It goes through the session's connection with the sidecar,
-- since whatever this transaction wrote itself would end the command.
CREATE OR REPLACE FUNCTION pgherd.announce_drop(what jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE n pgherd.node;
BEGIN
    SELECT * INTO n FROM pgherd.node;
    PERFORM pgherd.ask(n, 'D', concat(pg_backend_pid(), E'\n', what));
END $$;

-- The sidecar's request: `what` is said above. The session waits for the answer.
CREATE OR REPLACE FUNCTION pgherd.begin_drop(x xid8, base int8, what jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE l pgherd.long_commands;
BEGIN
    PERFORM pgherd.check_long_start('DROP INDEX');
    INSERT INTO pgherd.long_commands (token, member, kind, definition, tab, index, relid, pid, backend_start, query_start)
    SELECT pgherd.current_token(), n.member, 'drop', about.definition, about.tab, about.index, i.indrelid,
           a.pid, a.backend_start, (what ->> 'query_start')::timestamptz
      FROM pgherd.node n
      JOIN pg_stat_activity a ON a.pid = (what ->> 'pid')::int
      JOIN pg_index i ON i.indexrelid = (what ->> 'index')::oid AND i.indisvalid AND NOT i.indisreplident
     CROSS JOIN LATERAL pgherd.portable_index(i.indexrelid) about
    RETURNING * INTO l;
    IF NOT FOUND OR (what ->> 'bare')::bool AND pgherd.shares_name((what ->> 'index')::oid) THEN
        RAISE EXCEPTION 'the index or the session is gone or has changed, or its name is not its own any more' USING ERRCODE = '40001', HINT = 'Repeat the command.';
    END IF;
    PERFORM pgherd.put(x, base, '""', (pgherd.name_hash('schema') | 2)::text, '{0}',
                       ARRAY[pgherd.long_item(l, 'long_begin')::text]);
END $$;

-- sql_drop in the last transaction: is it the index that all members know of? Its name may have been another's when the
-- command began.
CREATE OR REPLACE FUNCTION pgherd.check_dropped() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE d record;
BEGIN
    FOR d IN SELECT o.objid, format('%I.%I', o.address_names[1], o.address_names[2]) AS name
               FROM pg_event_trigger_dropped_objects() o WHERE o.original LOOP
        IF d.objid::text <> coalesce(current_setting('pgherd.drops_here', true), '')
           AND NOT EXISTS (SELECT FROM pgherd.long_commands l
                            WHERE l.pid = pg_backend_pid() AND l.query_start = statement_timestamp() AND l.index = d.name) THEN
            RAISE EXCEPTION 'index % is dropped, and another one had its name when the command began', d.name
                USING ERRCODE = '40001', HINT = 'Repeat the command.';
        END IF;
    END LOOP;
END $$;
