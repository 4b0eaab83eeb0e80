-- The pre-commit hook of unmodified PostgreSQL.
--
-- A row captured first in its transaction fires pgherd.arm() at COMMIT (deferred constraint trigger, 036_native.sql),
-- which declares a holdable cursor over pgherd.certify(); PostgreSQL runs a holdable cursor's query
-- inside COMMIT after all deferred triggers and before the commit record. certify() sends the
-- writeset to the sidecar and returns when this transaction may become visible.
--
-- Nobody's code may run between the last arm() and certify(), since it could close the cursor. What
-- PostgreSQL runs there, and what keeps users' code out of it (C1):
--   deferred triggers    a user's are refused unless a superuser owns their function (check_user_code)
--   deferred unique and exclusion constraints, foreign keys
--                        run operators, casts and expressions; likewise refused unless a superuser's
--   other holdable cursors of the transaction
--                        PostgreSQL materialises them in no certain order: arm() refuses them
--   other open cursors   dropped without being run on
--   loops of a procedure over its COMMIT
--                        their queries are run to the end before the deferred triggers

-- Who made arm() fire, if not the client's own message: the next line of the call stack, in English. Inside a
-- function a SET CONSTRAINTS is an SQL statement there; the COMMIT of a procedure is a line of the procedure.
CREATE OR REPLACE FUNCTION pgherd.caller_of_arm() RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lc_messages = 'C' AS $$
DECLARE context text;
BEGIN
    GET DIAGNOSTICS context = PG_CONTEXT;
    RETURN substring(context FROM E'function (?:pgherd[.])?arm[(][)][^\n]*\n([^\n]*)');
END $$;

-- Is this firing of arm() one of a SET CONSTRAINTS, before COMMIT? Then another deferred event (a sentinel row) is
-- queued, so that something is always left for COMMIT. Nothing is guessed: PostgreSQL fires deferred triggers
-- only in COMMIT and in SET CONSTRAINTS, and a SET CONSTRAINTS is seen either in the call stack (inside a
-- function) or as that word in the client's message. There each early firing needs an occurrence of the word of
-- its own, so one more firing than there are occurrences is COMMIT's. `base` of a sentinel counts them;
-- those inside functions don't count, or they would use up the words of others.
-- A client may have prepared it by the protocol, and EXECUTE it by another message, which does not hold that word: then this
-- one counts, too. Words that are too many only cost a firing each.
CREATE OR REPLACE FUNCTION pgherd.fires_early(x xid8, tab text, base int8, message int8, nested bool) RETURNS bool
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    now_at  int8 := extract(epoch FROM statement_timestamp()) * 1000000;
    seen    int8 := CASE WHEN tab = 'sentinel' AND message = now_at THEN base ELSE 0 END;
    query   text := lower(current_query() COLLATE "C");
    words   int8 := (length(query) - length(replace(query, 'constraints', ''))) / length('constraints')
                  + CASE WHEN EXISTS (SELECT FROM pg_prepared_statements s
                                       WHERE strpos(lower(s.statement COLLATE "C"), 'constraints') > 0)
                         THEN (length(query) - length(replace(query, 'execute', ''))) / length('execute') ELSE 0 END;
BEGIN
    IF NOT nested OR pgherd.caller_of_arm() LIKE 'PL/%' THEN
        IF seen < words THEN
            seen := seen + 1;
        ELSE
            RETURN false;
        END IF;
    END IF;
    EXECUTE 'SET CONSTRAINTS pgherd.arm DEFERRED';
    -- It needs no place among the rows: nobody reads it but the next firing.
    EXECUTE format('INSERT INTO pgherd.capture_%s VALUES ($1, 1, $2, ''sentinel'', '''', ARRAY[$3], ''{}'')',
                   pgherd.capture_side(x)) USING x, seen, now_at;
    RETURN true;
END $$;

-- Arms the hook (C1), if this firing is COMMIT's own. Earlier ones leave nothing behind that a user could touch.
-- Like certify() it has no search path of its own, which would cost as much as an index lookup.
CREATE OR REPLACE FUNCTION pgherd.arm() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    context pg_catalog.text;
    nested  pg_catalog.bool;
    query   pg_catalog.text := pg_catalog.lower(pg_catalog.current_query() COLLATE pg_catalog."C");
    ours    pg_catalog.refcursor := 'pgherd_commit';
    found   pg_catalog.record;
BEGIN
    GET DIAGNOSTICS context = PG_CONTEXT;
    nested := position(E'\n' IN context) OPERATOR(pg_catalog.>) 0;
    IF pg_catalog.starts_with(query, 'prepare transaction') THEN
        PERFORM pgherd.refuse_prepare();
    ELSIF nested OR position('constraints' IN query) OPERATOR(pg_catalog.>) 0
          OR position('execute' IN query) OPERATOR(pg_catalog.>) 0 THEN
        IF pgherd.fires_early(NEW.xid, NEW.tab, NEW.base, NEW.pks[1], nested) THEN
            RETURN NULL;
        END IF;
    END IF;
    SELECT * INTO found FROM pgherd.open_cursors;
    IF found.others OR found.read_only THEN
        PERFORM pgherd.refuse_commit(found.others);
    ELSIF found.ends_sessions THEN
        PERFORM pgherd.keep_session();
    END IF;
    IF found.ours THEN
        CLOSE ours; -- of an earlier transaction of this session
    END IF;
    EXECUTE 'DECLARE pgherd_commit NO SCROLL CURSOR WITH HOLD FOR SELECT pgherd.certify()';
    RETURN NULL;
END $$;

-- What arm() has to know of the session: is our cursor open, are there holdable cursors of this transaction? Would an
-- interruption end the session (keep_session)? PostgreSQL has had transaction_timeout since 17; to ask for it elsewhere
-- would cost as much as the rest.
DO $do$
BEGIN
    EXECUTE format($f$
        CREATE OR REPLACE VIEW pgherd.open_cursors AS
        SELECT bool_or(u.name = 'pgherd_commit') AS ours,
               -- In a procedure the transaction may be younger than the client's statement.
               bool_or(u.is_holdable AND u.name <> 'pgherd_commit'
                       AND u.creation_time >= least(transaction_timestamp(), statement_timestamp())) AS others,
               current_setting('transaction_read_only') = 'on' AS read_only,
               current_setting('exit_on_error') = 'on'%s AS ends_sessions
          FROM pg_cursor() u $f$,
        CASE WHEN current_setting('transaction_timeout', true) IS NOT NULL
             THEN $f$ OR current_setting('transaction_timeout') <> '0'$f$ ELSE '' END);
END $do$;

-- Under these settings an interruption of COMMIT would end the session before certify() could trap it. The client
-- would hear 57014, say, and take what is committed for aborted (C4). They are back when the transaction has ended.
CREATE OR REPLACE FUNCTION pgherd.keep_session() RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp
AS $$
    SELECT pg_catalog.set_config(s.name, s.value, true)
      FROM (VALUES ('exit_on_error', 'off'), ('transaction_timeout', '0')) AS s(name, value)
     WHERE pg_catalog.current_setting(s.name, true) IS NOT NULL
$$;

-- Closes the cursor that an earlier transaction of this session has left, before a TRUNCATE or a CREATE TABLE: COPY ...
-- FREEZE, which follows one in the same transaction, wants none to be open. Not where rows have been captured already,
-- since the cursor may be this transaction's then.
CREATE OR REPLACE FUNCTION pgherd.drop_old_cursor() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    x        xid8 := pg_current_xact_id_if_assigned();
    ours     refcursor := 'pgherd_commit';
    captured bool := false;
BEGIN
    IF x IS NOT NULL THEN
        IF pgherd.capture_side(x) = 0 THEN
            captured := EXISTS (SELECT FROM pgherd.capture_0 c WHERE c.xid = x);
        ELSE
            captured := EXISTS (SELECT FROM pgherd.capture_1 c WHERE c.xid = x);
        END IF;
    END IF;
    IF NOT captured AND EXISTS (SELECT FROM pg_cursor() c WHERE c.name = 'pgherd_commit') THEN
        CLOSE ours;
    END IF;
END $$;

CREATE OR REPLACE FUNCTION pgherd.close_old_cursor() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgherd.drop_old_cursor();
    RETURN NULL;
END $$;

-- What would make the transaction fail after it was ordered, or run the user's code then.
CREATE OR REPLACE FUNCTION pgherd.refuse_commit(cursors bool) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF cursors THEN
        RAISE EXCEPTION 'a transaction that writes replicated tables cannot leave a WITH HOLD cursor behind'
            USING ERRCODE = '0A000',
                  HINT = 'Declare the cursor in a transaction of its own, or close it before COMMIT.';
    END IF;
    RAISE EXCEPTION 'a transaction that has written replicated tables cannot become read-only'
        USING ERRCODE = '0A000', HINT = 'Leave out SET TRANSACTION READ ONLY.';
END $$;

-- PostgreSQL would refuse it, too, because of our cursor, which no user knows.
CREATE OR REPLACE FUNCTION pgherd.refuse_prepare() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'cannot PREPARE a transaction that has written replicated tables'
        USING ERRCODE = '0A000', HINT = 'Two-phase commit is not supported: COMMIT it.';
END $$;

-- The row of pgherd.node names the sidecar of the member for which it was written. A copy of that member's database has the
-- row, too, be it made by pg_dump, of a template or of the server's files: what it writes is not the member's. A server
-- that was started after its row was written might be a copy, until its sidecar has begun anew.
CREATE OR REPLACE FUNCTION pgherd.refuse_copy() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE n pgherd.node;
BEGIN
    SELECT * INTO n FROM pgherd.node;
    IF n.database <> current_database() THEN
        RAISE EXCEPTION 'this node takes no writes: this is a copy of %''s database %', n.member_name, n.database
            USING ERRCODE = '25006', HINT = 'SELECT pgherd.uninstall() makes an ordinary database of it.';
    ELSIF n.server_start <> pg_postmaster_start_time() THEN
        RAISE EXCEPTION 'this node takes no writes: its sidecar has not begun since the server was started'
            USING ERRCODE = '25006',
                  HINT = 'Connect to another member until then. Where this is a copy of a member''s files,'
                         ' SELECT pgherd.uninstall() makes an ordinary database of it.';
    END IF;
END $$;

-- Opens the dblink connection of this session to the sidecar, and closes those of earlier epochs.
CREATE OR REPLACE FUNCTION pgherd.connect_hook(conn text, conninfo text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    stale text;
BEGIN
    PERFORM pgherd.refuse_copy();
    FOREACH stale IN ARRAY coalesce(pgherd.dblink_get_connections(), '{}') LOOP
        IF stale LIKE E'pgherd\\_%' THEN
            PERFORM pgherd.dblink_disconnect(stale);
        END IF;
    END LOOP;
    PERFORM pgherd.dblink_connect_u(conn, conninfo);
EXCEPTION WHEN sqlclient_unable_to_establish_sqlconnection THEN
    PERFORM pgherd.refuse_write('its sidecar does not answer');
END $$;

-- Asks the sidecar for something other than a verdict, and returns its answer. certify() asks by itself: each COMMIT would
-- pay for the call.
CREATE OR REPLACE FUNCTION pgherd.ask(n pgherd.node, act text, words text) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE conn text := 'pgherd_' || n.epoch;
BEGIN
    IF (conn = ANY (pgherd.dblink_get_connections())) IS NOT TRUE THEN
        PERFORM pgherd.connect_hook(conn, n.hook_conninfo);
    END IF;
    RETURN pgherd.dblink_exec(conn, concat(act, ' ', n.secret, ' ', words));
EXCEPTION WHEN query_canceled OR OTHERS THEN
    -- It may be dead, or in the middle of an answer: the next COMMIT shall not find it so.
    PERFORM pgherd.dblink_disconnect(c) FROM unnest(pgherd.dblink_get_connections()) AS c WHERE c = conn;
    RAISE;
END $$;

-- Reads what the transaction has captured: the certification groups and the body of its writeset. `statements`
-- counts rows with content, -1 if they are larger than `most` bytes and hold no DDL: then nothing is read. If several touch a row (C3) the body holds the rows' final states; what one statement
-- alone did was paired by its own function.
DO $do$
DECLARE side int;
BEGIN
    FOR side IN 0..1 LOOP
        EXECUTE format($f$
            CREATE OR REPLACE FUNCTION pgherd.captured_%1$s(x xid8, most int8, OUT statements int8, OUT ddl bool, OUT keys text, OUT body text)
            LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
            DECLARE
                pks   text[];
                since int8; -- the rows up to here have been settled: they count no more (040)
            BEGIN
                SELECT CASE WHEN sum(pg_column_size(c.recs)) > most AND NOT bool_or(c.tab = '""') THEN -1 END,
                       coalesce(max(c.seq) FILTER (WHERE c.keys = 'settled' AND c.tab = 'sentinel'), 0)
                  INTO statements, since FROM pgherd.capture_%1$s c WHERE c.xid = x;
                IF statements < 0 THEN
                    RETURN;
                END IF;
                SELECT count(*), coalesce(bool_or(c.tab = '""'), false), string_agg(c.base || ':' || c.keys, ';') FILTER (WHERE c.keys <> ''),
                       string_agg(pgherd.item(c.tab, c.pks, c.recs), ',') FILTER (WHERE c.seq > since),
                       string_to_array(string_agg(array_to_string(c.pks, ','), ',') FILTER (WHERE c.seq > since), ',')
                  INTO statements, ddl, keys, body, pks
                  FROM pgherd.capture_%1$s c WHERE c.xid = x AND c.tab <> 'sentinel';
                IF ddl THEN
                    SELECT * INTO statements, keys, body FROM pgherd.ordered_body(x);
                ELSIF statements > 1 AND (SELECT count(*) > count(DISTINCT k) OR bool_or(k = '0') FROM unnest(pks) AS k) THEN
                    body := pgherd.final_state(x, since);
                END IF;
            END $$ $f$, side);
    END LOOP;
END $do$;

CREATE OR REPLACE FUNCTION pgherd.captured(x xid8, most int8, OUT statements int8, OUT ddl bool, OUT keys text, OUT body text)
LANGUAGE plpgsql AS $$
DECLARE c pg_catalog.record;
BEGIN
    IF pgherd.capture_side(x) OPERATOR(pg_catalog.=) 0 THEN
        c := pgherd.captured_0(x, most);
    ELSE
        c := pgherd.captured_1(x, most);
    END IF;
    statements := c.statements; ddl := c.ddl; keys := c.keys; body := c.body;
END $$;

-- Among the rows that the transaction captured after the one with number `since`.
CREATE OR REPLACE FUNCTION pgherd.touches_a_row_twice(x xid8, since int8 DEFAULT 0) RETURNS bool
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE twice bool;
BEGIN
    EXECUTE format(
        $f$SELECT count(*) <> count(DISTINCT k) OR coalesce(bool_or(k = 0), false)
             FROM pgherd.capture_%s c, unnest(c.pks) AS k
            WHERE c.xid = $1 AND c.tab NOT IN ('sentinel', '""') AND c.seq > $2$f$, pgherd.capture_side(x))
       INTO twice USING x, since;
    RETURN twice;
END $$;

-- What certify() has to do for a transaction, in one query, because each statement and each expression of
-- PL/pgSQL costs microseconds in every transaction. `todo`: '' for the usual case, one captured statement
-- that `request` carries; otherwise what is different about it. One row is enough to tell, the one captured last:
-- if its number is 1 it is alone. Asked for in the order of the index, the planner takes it, whatever it
-- believes of the table.
DO $do$
DECLARE side int;
BEGIN
    FOR side IN 0..1 LOOP
        EXECUTE format($f$
            DROP VIEW IF EXISTS pgherd.committing_%1$s;
            CREATE VIEW pgherd.committing_%1$s AS
            SELECT CASE WHEN NOT n.token THEN 'token'
                        WHEN c.seq IS DISTINCT FROM 1 OR c.tab IN ('sentinel', '""')
                             OR pg_column_size(c.recs) > n.piece_bytes
                             OR mod(hashint8(c.xid::text::int8), n.fingerprint_every) = 0 THEN 'collect'
                        WHEN n.conn = ANY (pgherd.dblink_get_connections()) THEN ''
                        ELSE 'connect'
                   END AS todo,
                   n.conn, n.secret, n.hook_conninfo,
                   CASE WHEN pg_column_size(c.recs) <= n.piece_bytes
                        THEN concat('W ', n.secret, ' ', pg_backend_pid(), ' ', c.xid, E' 0\n', c.base, ':', c.keys,
                                    E'\n[', pgherd.item(c.tab, c.pks, c.recs), ']') END AS request
              FROM (SELECT 'pgherd_' || n.epoch AS conn, n.secret, n.hook_conninfo, n.piece_bytes, n.fingerprint_every,
                           -- held until the commit is visible; never waited for, where nobody watches
                           pg_try_advisory_xact_lock(pgherd.token_of_xid(pg_current_xact_id())) AS token
                      FROM pgherd.node n) n
              LEFT JOIN (SELECT * FROM pgherd.capture_%1$s c WHERE c.xid >= pg_current_xact_id()
                          ORDER BY c.xid, c.seq DESC LIMIT 1) c ON c.xid = pg_current_xact_id() $f$, side);
    END LOOP;
END $do$;

-- Takes the advisory lock that names this transaction's commit. Its key is not secret, but nobody else has
-- business with it before the transaction is certified: whoever holds it or waits for it loses his session.
CREATE OR REPLACE FUNCTION pgherd.take_token(key int8) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pg_terminate_backend(l.pid) FROM pg_locks l
      WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.pid <> pg_backend_pid()
        AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
        AND (l.classid::int8 << 32) | l.objid::int8 = key;
    PERFORM pg_advisory_xact_lock(key);
END $$;

-- The request of a transaction that is not the usual case; NULL if everything was rolled back to a savepoint. And for how
-- long it waits for the other members to show it (wait_for_others): 0 but for commands.
CREATE OR REPLACE FUNCTION pgherd.unusual_request(
    todo text, x xid8, conn text, conninfo text, secret text, INOUT request text, OUT wait_ms int8)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    n     record;
    c     record;
    large bool := false;
    mark  text := '';
    alone bool := (conn = ANY (pgherd.dblink_get_connections())) IS NOT TRUE;
BEGIN
    wait_ms := 0;
    IF alone THEN -- what has been generated for the tables is another database's, and would only fail
        PERFORM pgherd.refuse_copy();
    END IF;
    IF todo = 'token' THEN
        PERFORM pgherd.take_token(pgherd.token_of_xid(x));
    END IF;
    IF todo <> 'connect' THEN
        SELECT k.piece_bytes, k.fingerprint_every INTO n FROM pgherd.node k;
        c := pgherd.captured(x, n.piece_bytes);
        IF c.statements = 0 THEN
            request := NULL;
            RETURN;
        END IF;
        large := c.statements < 0;
        IF c.ddl AND position(E'\\"tag\\"' IN c.body) > 0 THEN -- a command of the client's
            wait_ms := pgherd.ddl_wait_ms();
        END IF;
        IF mod(hashint8(x::text::int8), n.fingerprint_every) = 0 AND NOT large THEN
            mark := pgherd.fingerprint(concat('[', c.body, ']'));
        END IF;
        request := concat('W ', secret, ' ', pg_backend_pid(), ' ', x, ' ',
                          CASE WHEN c.ddl THEN 1 ELSE 0 END + CASE WHEN mark <> '' THEN 4 ELSE 0 END, E'\n',
                          c.keys, E'\n[', concat_ws(',', c.body, nullif(mark, '')), ']');
    END IF;
    IF alone THEN
        PERFORM pgherd.connect_hook(conn, conninfo);
    END IF;
    IF large THEN
        request := pgherd.send_pieces(x, conn, secret, n.piece_bytes);
    END IF;
END $$;

-- Certifies the transaction that is committing; runs inside its COMMIT. Returns when the transaction has
-- its place in the total order and all its predecessors are visible; raises otherwise:
--   40001  it lost against a conflicting writeset    25006  outside the primary component
--   08007  the outcome cannot be told here, or it was ordered to commit but could not be finished here:
--          then the node applies it from the log like any other member (C4, C9)
-- Without a search path of its own, which would cost as much as an index lookup: every name is qualified.
-- What an interruption calls for is done in the protected block too, since another one may follow.
CREATE OR REPLACE FUNCTION pgherd.certify() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    x           pg_catalog.xid8 := pg_catalog.pg_current_xact_id();
    c           pg_catalog.record;
    wait_ms     pg_catalog.int8 := 0;
    verdict     pg_catalog.text[]; -- C, GID, GID of the predecessor, its kind, its name
    interrupted pg_catalog.bool := false;
    ignored     pg_catalog.text;
BEGIN
    IF pgherd.capture_side(x) OPERATOR(pg_catalog.=) 0 THEN
        SELECT * INTO c FROM pgherd.committing_0;
    ELSE
        SELECT * INTO c FROM pgherd.committing_1;
    END IF;
    IF c.todo OPERATOR(pg_catalog.<>) '' THEN
        -- From then on it may be ordered: native/victim.c reads that.
        SELECT u.request, u.wait_ms, pg_catalog.set_config('pgherd.ordering', 'on', true) INTO c.request, wait_ms, ignored
          FROM pgherd.unusual_request(c.todo, x, c.conn, c.hook_conninfo, c.secret, c.request) u;
        IF c.request IS NULL THEN
            RETURN;
        END IF;
    END IF;
    LOOP
        BEGIN
            IF interrupted THEN
                c.conn := pgherd.after_interruption(c.conn, c.hook_conninfo, c.secret, x, verdict);
                c.request := pg_catalog.concat('R ', c.secret, ' ', x);
                wait_ms := 0;
                interrupted := false;
            END IF;
            IF verdict IS NULL THEN
                verdict := pg_catalog.string_to_array(pgherd.dblink_exec(c.conn, c.request), ' ');
            END IF;
            INSERT INTO pgherd.applied VALUES (verdict[2]::pg_catalog.int8, verdict[3]::pg_catalog.int8, x);
            IF verdict[4] OPERATOR(pg_catalog.<>) 'N' THEN
                ignored := pgherd.wait_for_predecessor(c.conn, c.secret, x, verdict);
            END IF;
            -- The majority has it on disk (Tashkent); only this transaction may skip its own flush (C13).
            ignored := pg_catalog.set_config('synchronous_commit', 'off', true);
            -- For last_commit_gid(). It counts when this transaction commits, and else is what it was.
            ignored := pg_catalog.set_config('pgherd.last_commit', verdict[2], false);
            IF wait_ms OPERATOR(pg_catalog.>) 0 THEN
                ignored := pgherd.wait_for_others(c.conn, c.secret, verdict[2], wait_ms);
            END IF;
            EXIT;
        EXCEPTION
            WHEN query_canceled OR deadlock_detected OR lock_not_available THEN
                interrupted := true; -- the order is fixed already or may be: to stop here would read as an abort
            WHEN connection_failure THEN
                ignored := pgherd.dblink_disconnect(c.conn); -- the next transaction shall not find a dead one
                ignored := pgherd.outcome_unknown(verdict, SQLERRM);
            WHEN transaction_resolution_unknown THEN
                RAISE;
            WHEN OTHERS THEN
                IF verdict IS NULL AND NOT interrupted THEN
                    RAISE; -- the sidecar's own word: not ordered, or ordered and lost
                END IF;
                ignored := pgherd.outcome_unknown(verdict, SQLERRM);
        END;
    END LOOP;
END $$;

-- Waits until the predecessor in the commit chain is visible here (visibility order = GID order): 'L' a local
-- transaction, named by its xid, 'B' a batch of the applier, named by its number.
CREATE OR REPLACE FUNCTION pgherd.wait_for_predecessor(conn text, secret text, x xid8, verdict text[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE ignored pg_catalog.text;
BEGIN
    IF verdict[4] OPERATOR(pg_catalog.=) 'L' THEN -- its status is bound to no snapshot
        ignored := pg_catalog.pg_advisory_xact_lock_shared(pgherd.token_of_xid(verdict[5]::pg_catalog.xid8));
        IF pg_catalog.pg_xact_status(verdict[5]::pg_catalog.xid8) OPERATOR(pg_catalog.=) 'committed' THEN
            RETURN;
        END IF;
    ELSE
        ignored := pg_catalog.pg_advisory_xact_lock_shared(pgherd.token_of_batch(verdict[5]::pg_catalog.int8));
        IF EXISTS (SELECT FROM pgherd.applied a WHERE a.gid OPERATOR(pg_catalog.=) verdict[3]::pg_catalog.int8) THEN
            RETURN;
        END IF;
    END IF;
    -- It died, and the sidecar applies it from the log (C8); or our snapshot is too old to see it.
    ignored := pgherd.dblink_exec(conn, pg_catalog.concat('P ', secret, ' ', x, ' ', verdict[3]));
END $$;

-- For how long a command's transaction waits until the other members show it, in milliseconds: the setting
-- pgherd.ddl_wait of the session, its role or its database. Commits of others wait behind it, so nobody waits for longer than
-- a minute.
CREATE OR REPLACE FUNCTION pgherd.ddl_wait_ms() RETURNS int8
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    value text := coalesce(nullif(current_setting('pgherd.ddl_wait', true), ''), '2s');
    part  text[] := regexp_match(value, '^ *([0-9]{1,7}) *(ms|s|min|) *$');
BEGIN
    IF part IS NULL THEN
        RAISE EXCEPTION 'pgherd.ddl_wait is no time: %', quote_literal(value)
            USING ERRCODE = '22023', HINT = 'Give milliseconds, or a number with ms, s or min; 0 waits for nobody.';
    END IF;
    RETURN least(60000, part[1]::int8 * CASE part[2] WHEN 's' THEN 1000 WHEN 'min' THEN 60000 ELSE 1 END);
END $$;

-- Waits until the other members show a transaction with commands, so that a session that goes on there finds what they
-- have made. Those after it in the order wait too, on this member. It is committed whatever happens here. Only a cancel is
-- heard of: it ends the wait.
CREATE OR REPLACE FUNCTION pgherd.wait_for_others(conn text, secret text, gid text, wait_ms int8) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    ends   timestamptz := clock_timestamp() + wait_ms * interval '1 ms';
    answer text := 'WAIT';
BEGIN
    WHILE answer = 'WAIT' LOOP
        answer := pgherd.dblink_exec(conn, concat('E ', secret, ' ', gid, ' ', wait_ms));
        wait_ms := greatest(1, ceil(extract(epoch FROM ends - clock_timestamp()) * 1000));
    END LOOP;
    IF answer LIKE 'LATE %' THEN
        RAISE NOTICE 'committed, and perhaps not visible yet on %', substr(answer, 6)
            USING HINT = 'SELECT pgherd.strong() there waits for it.';
    END IF;
EXCEPTION WHEN OTHERS THEN
    PERFORM pgherd.dblink_disconnect(c) FROM unnest(pgherd.dblink_get_connections()) AS c WHERE c = conn;
END $$;

-- After a cancel, a timeout or a deadlock report in certify(): may this transaction go on waiting?
-- Returns the connection to use from now on; raises 08007 when the applier needs its locks (C9).
CREATE OR REPLACE FUNCTION pgherd.after_interruption(
    conn text, conninfo text, secret text, x xid8, verdict text[]) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE fresh text := conn || 'r';
BEGIN
    -- It may have been interrupted in the middle of a query, and must not answer anything else then. The next
    -- transaction opens one under the usual name. This here may be interrupted anywhere, too.
    PERFORM pgherd.dblink_disconnect(c) FROM unnest(pgherd.dblink_get_connections()) AS c WHERE c = fresh;
    PERFORM pgherd.dblink_connect_u(fresh, conninfo);
    PERFORM pgherd.dblink_disconnect(c) FROM unnest(pgherd.dblink_get_connections()) AS c WHERE c = conn;
    IF verdict IS NOT NULL AND pgherd.dblink_exec(fresh, concat('Y ', secret, ' ', x)) = 'YIELD' THEN
        PERFORM pgherd.outcome_unknown(verdict, 'it gives way to a change ordered before it');
    END IF;
    RETURN fresh;
END $$;

CREATE OR REPLACE FUNCTION pgherd.outcome_unknown(verdict text[], cause text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION '%',
        CASE WHEN verdict IS NULL THEN 'the outcome of this transaction is not known here'
             ELSE 'the transaction could not be finished here, but it is committed as GID ' || verdict[2] END
        USING ERRCODE = '08007',
              DETAIL = format('Its token is %s. Cause: %s', pgherd.current_token(), cause),
              HINT = 'Do not repeat it before you know: SELECT pgherd.transaction_status(token) answers on any member.';
END $$;

-- What became of the transaction that current_token() named: 'committed GID', 'aborted', or 'unknown' when it
-- is still under way, or so long ago that this member has forgotten. Any member may be asked.
CREATE OR REPLACE FUNCTION pgherd.transaction_status(token text) RETURNS text
LANGUAGE plpgsql STRICT SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE n pgherd.node;
BEGIN
    IF token !~ '^[0-9]{1,4}[.][0-9]{1,10}[.][0-9]{1,19}$' THEN
        RAISE EXCEPTION 'not a token: %', token
            USING ERRCODE = '22023', HINT = 'A token is what pgherd.current_token() returned in the transaction.';
    END IF;
    SELECT * INTO n FROM pgherd.node;
    RETURN pgherd.ask(n, 'T', token);
END $$;
