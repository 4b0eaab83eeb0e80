-- Positions for clients: a session tells which GID its last commit has, and a session on another member waits
-- until that GID is visible there. Reads that ask for nothing never meet this file.

-- The GID of the last commit of this session that changed replicated tables; NULL if there is none, or if DISCARD ALL
-- or RESET ALL came since. certify() has left it in a setting of the session, which its user may write: he would
-- mislead nobody but himself, and nothing of ours reads it. What is no number there counts as none.
CREATE OR REPLACE FUNCTION pgherd.last_commit_gid() RETURNS int8
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT CASE WHEN s.value ~ '^[0-9]{1,18}$' THEN s.value::int8 END
      FROM current_setting('pgherd.last_commit', true) AS s(value);
END;

-- Waits until this member shows all commits up to a GID, and returns the newest one that it shows then. Statements
-- after this one see them; this one and its own query may not. A NULL GID is nothing to wait for, and a NULL timeout
-- is none.
--
-- It looks again and again, because no session of a reader is to need the sidecar. It looks with a new snapshot each
-- time, which a transaction above READ COMMITTED does not get: that one would wait in vain.
CREATE OR REPLACE FUNCTION pgherd.wait_for(gid int8, timeout interval DEFAULT '30 seconds') RETURNS int8
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    ends  timestamptz := clock_timestamp() + timeout;
    rest  float8;
    pause float8 := 0.001;
    here  int8 := pgherd.last_gid();
BEGIN
    IF timeout < interval '0' THEN
        RAISE EXCEPTION 'a timeout cannot be negative: %', timeout
            USING ERRCODE = '22023', HINT = 'Give the longest time to wait, like ''5 seconds''.';
    END IF;
    IF here < gid AND current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        RAISE EXCEPTION 'a transaction at % cannot wait for GID %: it goes on seeing what it saw first',
            upper(current_setting('transaction_isolation')), gid
            USING ERRCODE = '0A000', HINT = 'Wait before the transaction begins, or at READ COMMITTED.';
    END IF;
    WHILE here < gid LOOP
        rest := extract(epoch FROM ends - clock_timestamp());
        IF rest <= 0 THEN
            RAISE EXCEPTION 'this member shows no more than GID % after %, and not GID %', here, timeout, gid
                USING ERRCODE = '55000',
                      HINT = 'Wait again or longer, or read on the member that has committed it;'
                             ' `pgherd status` shows how far each member is.';
        END IF;
        PERFORM pg_sleep(least(pause, coalesce(rest, pause)));
        pause := least(2 * pause, 0.02);
        here := pgherd.last_gid();
    END LOOP;
    RETURN here;
END $$;

-- Waits until this member shows all that was acknowledged on any member before the call, and returns the newest GID
-- that it shows then. Statements after this one see it, and so does every transaction that begins on this member
-- afterwards; this one's own query need not. A NULL timeout is none. The sidecar says which GID that is: it asks a
-- majority, once for all who wait at the moment. It answers within half a second, "WAIT" if it has to, because older
-- minor versions of PostgreSQL do not look for a cancel while they wait for a connection of dblink.
--
-- What is asked of the session is asked with its owner's rights; whom it concerns is nobody but the caller.
CREATE OR REPLACE FUNCTION pgherd.strong(timeout interval DEFAULT '10 seconds') RETURNS int8
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    ends   timestamptz := clock_timestamp() + timeout;
    rest   float8;
    n      pgherd.node;
    act    text := 'S';
    answer text := 'WAIT';
    cause  text;
BEGIN
    IF timeout < interval '0' THEN
        RAISE EXCEPTION 'a timeout cannot be negative: %', timeout
            USING ERRCODE = '22023', HINT = 'Give the longest time to wait, like ''5 seconds''.';
    ELSIF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        RAISE EXCEPTION 'a transaction at % cannot become strong: it goes on seeing what it saw first',
            upper(current_setting('transaction_isolation'))
            USING ERRCODE = '0A000', HINT = 'CALL pgherd.begin_strong() before the transaction begins.';
    END IF;
    SELECT * INTO n FROM pgherd.node;
    WHILE answer = 'WAIT' AND cause IS NULL LOOP
        rest := extract(epoch FROM ends - clock_timestamp());
        IF rest <= 0 THEN
            cause := coalesce((SELECT k.reason FROM pgherd.node k WHERE NOT k.writable), 'it is slow');
        ELSE
            BEGIN
                answer := pgherd.ask(n, act, ceil(least(coalesce(rest, 1), 0.5) * 1000)::text);
                act := 'G';
            EXCEPTION WHEN connection_failure OR read_only_sql_transaction THEN
                cause := 'its sidecar does not answer';
            END;
        END IF;
    END LOOP;
    IF cause IS NOT NULL THEN
        RAISE EXCEPTION 'this member cannot tell now what was committed elsewhere: %', cause
            USING ERRCODE = '25006',
                  HINT = 'Repeat it on another member. What needs not be strong can be read here all the same.';
    END IF;
    RETURN pgherd.wait_for(substr(answer, 5)::int8,
                           CASE WHEN ends IS NOT NULL THEN greatest(ends - clock_timestamp(), interval '0') END);
END $$;

-- The same before a transaction at any level. A COMMIT in a transaction block fails (2D000): its snapshot may be taken.
CREATE OR REPLACE PROCEDURE pgherd.begin_strong(timeout interval DEFAULT '10 seconds')
LANGUAGE plpgsql AS $$
BEGIN
    COMMIT;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    PERFORM pgherd.strong(timeout);
    COMMIT;
END $$;

-- Waits for what the session's level calls for, and returns the newest GID that this member shows then. The level is
-- the setting pgherd.consistency, of the session, its role or its database: it can only make its own user wait. A token
-- is a GID, of last_gid() or last_commit_gid() on any member.
--   local    for nothing, whatever token is given
--   session  for the token, or for that in the setting pgherd.after; the default
--   strong   for all that was acknowledged before; that covers every token
CREATE OR REPLACE FUNCTION pgherd.fresh(token int8 DEFAULT NULL, timeout interval DEFAULT '10 seconds') RETURNS int8
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    level text := coalesce(nullif(current_setting('pgherd.consistency', true), ''), 'session');
    after text := coalesce(nullif(current_setting('pgherd.after', true), ''), '0');
BEGIN
    CASE level
        WHEN 'local' THEN
            RETURN pgherd.last_gid();
        WHEN 'session' THEN
            IF after !~ '^[0-9]{1,18}$' THEN
                RAISE EXCEPTION 'pgherd.after is no token: %', quote_literal(after)
                    USING ERRCODE = '22023', HINT = 'A token is a GID, as SELECT pgherd.last_gid() returns it.';
            END IF;
            RETURN pgherd.wait_for(greatest(token, after::int8), timeout);
        WHEN 'strong' THEN
            RETURN pgherd.strong(timeout);
        ELSE
            RAISE EXCEPTION 'pgherd.consistency is no level: %', quote_literal(level)
                USING ERRCODE = '22023', HINT = 'The levels are local, session and strong.';
    END CASE;
END $$;

-- Why this member takes no writes now; NULL if it does. Transactions begin read-only then, and PostgreSQL's own words
-- for that, "cannot execute INSERT in a read-only transaction", don't say why.
CREATE OR REPLACE FUNCTION pgherd.why_read_only() RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT CASE WHEN n.writable THEN NULL ELSE n.reason END FROM pgherd.node n;
END;
