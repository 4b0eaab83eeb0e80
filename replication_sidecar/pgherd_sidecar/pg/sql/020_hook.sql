-- The pre-commit hook of unmodified PostgreSQL.
--
-- A row captured first in its transaction fires pgherd.arm() at COMMIT (deferred constraint trigger),
-- which declares a holdable cursor over pgherd.certify(); PostgreSQL runs a holdable cursor's query
-- inside COMMIT after all deferred triggers and before the commit record. certify() sends the
-- writeset to the sidecar and returns when this transaction may become visible.

-- Arms the hook (CORRECTNESS C1). SET CONSTRAINTS can fire this trigger before COMMIT; the cursor could
-- then be closed, so in that case another deferred event (a sentinel row) is queued. That this firing
-- is COMMIT's own is proven, not guessed: PostgreSQL fires deferred triggers only in COMMIT and in
-- SET CONSTRAINTS, and a SET CONSTRAINTS is seen either in the context (inside a function) or as that
-- word in the client's query. Each early firing in one client message needs its own occurrence of the
-- word, so the n-th sentinel of a message with fewer occurrences is COMMIT's.
CREATE OR REPLACE FUNCTION pgherd.arm() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    context  text;
    query    text := lower(current_query() COLLATE "C");
    message  int8 := extract(epoch FROM statement_timestamp()) * 1000000;
    firing   int8 := 1;
    possible int8 := 0;
BEGIN
    GET DIAGNOSTICS context = PG_CONTEXT;
    IF position(E'\n' IN context) > 0 OR position('constraints' IN query) > 0 THEN
        IF NEW.tab = 'sentinel' AND NEW.pks[1] = message THEN
            firing := NEW.base + 1;
        END IF;
        possible := (length(query) - length(replace(query, 'constraints', ''))) / length('constraints');
        IF position(E'\n' IN context) > 0 OR firing <= possible THEN
            EXECUTE 'SET CONSTRAINTS pgherd.arm DEFERRED';
            EXECUTE format('INSERT INTO pgherd.capture_%s VALUES ($1, true, $2, ''sentinel'', '''', ARRAY[$3], ''{}'')',
                           pgherd.capture_side(NEW.xid))
                USING NEW.xid, firing, message;
        END IF;
    END IF;
    BEGIN
        EXECUTE 'CLOSE pgherd_commit';
    EXCEPTION WHEN invalid_cursor_name THEN
        NULL; -- the first write of this session
    END;
    EXECUTE 'DECLARE pgherd_commit NO SCROLL CURSOR WITH HOLD FOR SELECT pgherd.certify()';
    RETURN NULL;
END $$;

DO $$
DECLARE side int;
BEGIN
    FOR side IN 0..1 LOOP
        EXECUTE format('DROP TRIGGER IF EXISTS arm ON pgherd.capture_%s', side);
        EXECUTE format(
            'CREATE CONSTRAINT TRIGGER arm AFTER INSERT ON pgherd.capture_%s
                 DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.first)
                 EXECUTE FUNCTION pgherd.arm()', side);
    END LOOP;
END $$;

-- The dblink connection of this session to the sidecar, opened when there is none of this epoch.
CREATE OR REPLACE FUNCTION pgherd.hook_connection(n pgherd.node) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    wanted text := 'pgherd_' || n.epoch;
    open   text[] := coalesce(pgherd.dblink_get_connections(), '{}');
    stale  text;
BEGIN
    IF wanted = ANY (open) THEN
        RETURN wanted;
    END IF;
    FOREACH stale IN ARRAY open LOOP
        IF stale LIKE 'pgherd\_%' THEN
            PERFORM pgherd.dblink_disconnect(stale);
        END IF;
    END LOOP;
    PERFORM pgherd.dblink_connect_u(wanted, n.hook_conninfo);
    RETURN wanted;
EXCEPTION WHEN sqlclient_unable_to_establish_sqlconnection THEN
    PERFORM pgherd.refuse_write('its sidecar does not answer');
END $$;

-- Reads what the transaction has captured: the certification groups and the body of its writeset.
-- `statements` counts rows with content; more than one may touch a row twice (C3).
CREATE OR REPLACE FUNCTION pgherd.captured(
    x xid8, OUT statements int8, OUT repeated bool, OUT ddl bool, OUT keys text, OUT body text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
    IF pgherd.capture_side(x) = 0 THEN
        SELECT count(*), count(*) > 1, coalesce(bool_or(c.tab = 'ddl'), false),
               string_agg(c.base || ':' || c.keys, ';'),
               string_agg('[' || c.tab || ',' || array_to_json(c.pks) || ',' || array_to_json(c.recs) || ']', ',')
          INTO statements, repeated, ddl, keys, body
          FROM pgherd.capture_0 c WHERE c.xid = x AND c.tab <> 'sentinel';
    ELSE
        SELECT count(*), count(*) > 1, coalesce(bool_or(c.tab = 'ddl'), false),
               string_agg(c.base || ':' || c.keys, ';'),
               string_agg('[' || c.tab || ',' || array_to_json(c.pks) || ',' || array_to_json(c.recs) || ']', ',')
          INTO statements, repeated, ddl, keys, body
          FROM pgherd.capture_1 c WHERE c.xid = x AND c.tab <> 'sentinel';
    END IF;
    IF statements > 1 THEN
        repeated := pgherd.touches_a_row_twice(x);
    END IF;
END $$;

CREATE OR REPLACE FUNCTION pgherd.touches_a_row_twice(x xid8) RETURNS bool
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
    IF pgherd.capture_side(x) = 0 THEN
        RETURN (SELECT count(*) <> count(DISTINCT k) OR coalesce(bool_or(k = 0), false)
                  FROM pgherd.capture_0 c, unnest(c.pks) AS k WHERE c.xid = x AND c.tab NOT IN ('sentinel', 'ddl'));
    END IF;
    RETURN (SELECT count(*) <> count(DISTINCT k) OR coalesce(bool_or(k = 0), false)
              FROM pgherd.capture_1 c, unnest(c.pks) AS k WHERE c.xid = x AND c.tab NOT IN ('sentinel', 'ddl'));
END $$;

-- Certifies the transaction that is committing; runs inside its COMMIT. Returns when the transaction has
-- its place in the total order and all its predecessors are visible; raises otherwise:
--   40001  it lost against a conflicting writeset    25006  outside the primary component
--   08007  the outcome cannot be told here, or it was ordered to commit but could not be finished here:
--          then the node applies it from the log like any other member (C4, C9)
CREATE OR REPLACE FUNCTION pgherd.certify() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    x        xid8 := pg_current_xact_id();
    n        pgherd.node;
    ws       record;
    conn     text;
    request  text;
    verdict  text[];
    gid      int8;
    prev     int8;
BEGIN
    SELECT * INTO n FROM pgherd.node;
    SELECT * INTO ws FROM pgherd.captured(x);
    IF ws.statements = 0 THEN
        RETURN; -- everything was rolled back to a savepoint
    END IF;
    IF EXISTS (SELECT FROM pg_cursors c WHERE c.is_holdable AND c.name <> 'pgherd_commit'
                                          AND c.creation_time >= transaction_timestamp()) THEN
        -- C2: its query may write, and PostgreSQL runs it in an order that nobody promises.
        RAISE EXCEPTION 'a transaction that writes replicated tables cannot leave a WITH HOLD cursor behind'
            USING ERRCODE = '0A000', HINT = 'Declare the cursor in a transaction of its own, or close it before COMMIT.';
    END IF;
    IF ws.repeated THEN
        ws.body := pgherd.final_state(x);
    END IF;
    conn := pgherd.hook_connection(n);
    request := concat('W ', n.secret, ' ', pg_backend_pid(), ' ', x, ' ', CASE WHEN ws.ddl THEN 1 ELSE 0 END,
                      E'\n', ws.keys, E'\n[', ws.body, ']');
    PERFORM pg_advisory_xact_lock(pgherd.token_of_xid(x));
    LOOP
        BEGIN
            IF gid IS NULL THEN
                verdict := string_to_array(pgherd.dblink_exec(conn, request), ' ');
                gid := verdict[2];
                prev := verdict[3];
            END IF;
            INSERT INTO pgherd.applied VALUES (gid, prev, x);
            PERFORM pgherd.wait_for_predecessor(n, conn, x, prev, verdict[4], verdict[5]);
            EXIT;
        EXCEPTION
            WHEN query_canceled OR deadlock_detected OR lock_not_available THEN
                -- The order is fixed already or may be: to stop here would read as an abort.
                conn := pgherd.after_interruption(n, conn, x, gid);
                request := concat('R ', n.secret, ' ', x);
            WHEN connection_failure THEN
                PERFORM pgherd.outcome_unknown(x, gid, SQLERRM);
            WHEN OTHERS THEN
                IF gid IS NULL THEN
                    RAISE; -- the sidecar's own word: not ordered, or ordered and lost
                END IF;
                PERFORM pgherd.outcome_unknown(x, gid, SQLERRM);
        END;
    END LOOP;
    -- The majority has it on disk (Tashkent); only this transaction may skip its own flush (C13).
    PERFORM set_config('synchronous_commit', 'off', true),
            -- PostgreSQL itself refuses whatever would still write after this (C2).
            set_config('transaction_read_only', 'on', true);
END $$;

-- Waits until the predecessor in the commit chain is visible here (visibility order = GID order).
-- kind: 'L' a local transaction (argument: its xid), 'B' a batch of the applier (argument: its number),
-- 'N' nothing to wait for.
CREATE OR REPLACE FUNCTION pgherd.wait_for_predecessor(
    n pgherd.node, conn text, x xid8, after int8, kind text, predecessor text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE visible bool;
BEGIN
    IF kind = 'N' THEN
        RETURN;
    ELSIF kind = 'L' THEN
        PERFORM pg_advisory_xact_lock_shared(pgherd.token_of_xid(predecessor::xid8));
        visible := pg_xact_status(predecessor::xid8) = 'committed'; -- bound to no snapshot
    ELSE
        PERFORM pg_advisory_xact_lock_shared(pgherd.token_of_batch(predecessor::int8));
        visible := EXISTS (SELECT FROM pgherd.applied a WHERE a.gid = after);
    END IF;
    IF NOT visible THEN
        -- It died, and the sidecar applies it from the log (C8); or our snapshot is too old to see it.
        PERFORM pgherd.dblink_exec(conn, concat('P ', n.secret, ' ', x, ' ', after));
    END IF;
END $$;

-- After a cancel, a timeout or a deadlock report in certify(): may this transaction go on waiting?
-- Returns the connection to use from now on; raises 08007 when the applier needs its locks (C9).
CREATE OR REPLACE FUNCTION pgherd.after_interruption(n pgherd.node, conn text, x xid8, gid int8) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    fresh text := 'pgherd_' || n.epoch || '_' || md5(conn);
BEGIN
    IF gid IS NOT NULL THEN
        IF pgherd.dblink_exec(conn, concat('Y ', n.secret, ' ', x)) = 'YIELD' THEN
            PERFORM pgherd.outcome_unknown(x, gid, 'it gives way to a change ordered before it');
        END IF;
        RETURN conn;
    END IF;
    -- From PostgreSQL 17 on the wait itself was interrupted: that connection is in the middle of a query.
    PERFORM pgherd.dblink_connect_u(fresh, n.hook_conninfo);
    RETURN fresh;
END $$;

CREATE OR REPLACE FUNCTION pgherd.outcome_unknown(x xid8, gid int8, cause text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION '%', CASE WHEN gid IS NULL THEN 'the outcome of this transaction is not known here'
                              ELSE 'the transaction could not be finished here, but it is committed as GID ' || gid END
        USING ERRCODE = '08007',
              DETAIL = format('Its token is %s. Cause: %s', pgherd.current_token(), cause),
              HINT = 'Do not repeat it before you know: SELECT pgherd.transaction_status(token) answers on any member.';
END $$;
