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

-- Why this member takes no writes now; NULL if it does. Transactions begin read-only then, and PostgreSQL's own words
-- for that, "cannot execute INSERT in a read-only transaction", don't say why.
CREATE OR REPLACE FUNCTION pgherd.why_read_only() RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT CASE WHEN n.writable THEN NULL ELSE n.reason END FROM pgherd.node n;
END;
