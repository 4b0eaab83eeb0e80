-- What the applier calls on its own connections.

-- A batch must affect exactly the rows it names (C10): anything else means that this node differs from the
-- others, and it stops instead of going on.
CREATE OR REPLACE FUNCTION pgherd.expect(actual int8, wanted int8) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF actual <> wanted THEN
        RAISE EXCEPTION '% rows affected instead of %', actual, wanted USING ERRCODE = 'PH001';
    END IF;
END $$;

-- The predecessor of a batch has ended without committing (C8).
CREATE OR REPLACE FUNCTION pgherd.not_committed(x xid8) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'transaction % was certified and did not commit', x USING ERRCODE = 'PH002';
END $$;

-- The end of the commit chain: applied rows in order, each naming the one before it (C8).
CREATE OR REPLACE FUNCTION pgherd.chain_end(OUT gid int8, OUT broken_at int8) 
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT coalesce(max(a.gid), 0), min(a.gid) FILTER (WHERE a.broken)
      FROM (SELECT a.gid, a.prev <> lag(a.gid, 1, a.prev) OVER (ORDER BY a.gid) AS broken FROM pgherd.applied a) a;
END;

-- Terminates every session of this database, other than ours, that holds a commit token; returns how many there
-- were. The keys are those of transactions, and of batches up to the last one of this incarnation.
CREATE OR REPLACE FUNCTION pgherd.end_token_holders() RETURNS int8
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT count(pg_terminate_backend(l.pid))
      FROM (SELECT DISTINCT l.pid FROM pg_locks l CROSS JOIN pgherd.node n
             WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.mode = 'ExclusiveLock' AND l.granted
               AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
               AND (l.classid::int8 << 32) | l.objid::int8 >= pgherd.token_of_xid('0')
               AND (l.classid::int8 << 32) | l.objid::int8 < pgherd.token_of_batch((n.incarnation + 1) << 32)
               AND l.pid <> pg_backend_pid()) l;
END;

-- What became of certified transactions: the newest visible GID, and the status of each xid
-- ('committed', 'aborted', 'in progress').
CREATE OR REPLACE FUNCTION pgherd.outcomes(xids text[], OUT gid int8, OUT statuses text[])
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT pgherd.last_gid(),
           (SELECT array_agg(pg_xact_status(u.x::xid8) ORDER BY u.i) FROM unnest(xids) WITH ORDINALITY u(x, i));
END;

-- The sidecar's own sessions, but for those that hold a marker's snapshot: they may have to give way. So may one
-- that writes a large transaction before it is decided.
CREATE OR REPLACE VIEW pgherd.own_sessions AS
    SELECT s.pid, s.application_name AS name FROM pg_stat_activity s
     WHERE s.application_name IN ('pgherd', 'pgherd apply', 'pgherd repair', 'pgherd ddl',
                                  'pgherd large', 'pgherd watch', 'pgherd upkeep', 'pgherd alone')
       AND s.datname = current_database() AND s.usename IN (current_user, 'pgherd_apply');

DROP FUNCTION IF EXISTS pgherd.blockers(int[]); -- that of an earlier version did not ask for transactions

-- Sessions that hold what these wait for, in these transactions (32 bits of their xids; 0: in any): who waits, who holds it
-- in which transaction (0: it has no xid), for how long that one has waited for a lock itself, and for how long it has been
-- idle (0: not at all). A prepared transaction has no session (pid 0): it is known by its name, `prepared`. The activity
-- is one snapshot, older than the locks. On a busy machine most of those that take long wait for nobody, and the
-- view of all activity costs far more than to see that.
CREATE OR REPLACE FUNCTION pgherd.blockers(
    waiting int[], xids int8[],
    OUT waiter int, OUT pid int, OUT xid int8, OUT waits_s float8, OUT idle_s float8, OUT prepared text)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM unnest(waiting) AS w(process) WHERE pg_blocking_pids(w.process) <> '{}') THEN
        RETURN;
    END IF;
    RETURN QUERY
    SELECT DISTINCT s.pid, b.pid, coalesce(o.backend_xid::text::int8, p.transaction::text::int8, 0),
           coalesce((SELECT max(extract(epoch FROM clock_timestamp() - l.waitstart))
                       FROM pg_locks l WHERE l.pid = b.pid AND NOT l.granted), 0)::float8,
           CASE WHEN o.state LIKE 'idle%' THEN extract(epoch FROM clock_timestamp() - o.state_change) ELSE 0 END::float8,
           p.gid
      FROM pg_stat_activity s
     CROSS JOIN LATERAL unnest(pg_blocking_pids(s.pid)) AS b(pid)
      LEFT JOIN pg_stat_activity o ON o.pid = b.pid
      LEFT JOIN pg_prepared_xacts p ON b.pid = 0 AND p.database = current_database() AND EXISTS (
           SELECT FROM pg_locks w
             JOIN pg_locks x ON x.pid IS NULL AND x.locktype = 'transactionid' AND x.transactionid = p.transaction
             JOIN pg_locks h ON h.pid IS NULL AND h.virtualtransaction = x.virtualtransaction
                                  AND (h.locktype, h.database, h.relation, h.page, h.tuple, h.transactionid, h.classid,
                                       h.objid, h.objsubid) IS NOT DISTINCT FROM
                                      (w.locktype, w.database, w.relation, w.page, w.tuple, w.transactionid, w.classid,
                                       w.objid, w.objsubid)
            WHERE w.pid = s.pid AND NOT w.granted)
     WHERE s.pid = ANY (waiting) AND s.wait_event_type = 'Lock' AND NOT (b.pid = s.pid)
       AND (SELECT u.xid FROM unnest(waiting, xids) AS u(process, xid) WHERE u.process = s.pid)
           IN (0, coalesce(s.backend_xid::text::int8, 0))
       -- The applier holds tokens that commits wait for, also in the moment between two batches.
       AND b.pid NOT IN (SELECT w.pid FROM pgherd.own_sessions w WHERE w.name <> 'pgherd large');
END $$;

-- The certification keys of the tables that a session keeps writers out of, as a command does.
CREATE OR REPLACE FUNCTION pgherd.locked_keys(backend int) RETURNS int8[]
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
RETURN string_to_array(pgherd.table_keys(array(
    SELECT l.relation FROM pg_locks l
     WHERE l.pid = backend AND l.granted AND l.locktype = 'relation'
       AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock'))), ',')::int8[];

-- Cancels what a session does, if it still does it in that transaction.
CREATE OR REPLACE FUNCTION pgherd.cancel(backend int, xid text) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT pg_cancel_backend(s.pid) FROM pg_stat_activity s
     WHERE s.pid = backend AND coalesce(s.backend_xid::text, '0') = xid;
END;

-- Terminates a session, if it is still in that transaction ('0': in none with an xid).
CREATE OR REPLACE FUNCTION pgherd.terminate(backend int, xid text) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT pg_terminate_backend(s.pid) FROM pg_stat_activity s
     WHERE s.pid = backend AND coalesce(s.backend_xid::text, '0') = xid;
END;

-- Has a session make room, if it is still in that transaction. Returns whether it keeps its connection: autovacuum,
-- which only has to leave the table that it is at, and where rows are captured natively (docs/native.md) a client whose
-- transaction has captured rows. The module makes 40001 of the cancel of a transaction that is marked by an advisory
-- lock of the caller's.
CREATE OR REPLACE FUNCTION pgherd.give_way(backend int, xid text) RETURNS bool
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    victim record;
    keeps  bool;
BEGIN
    SELECT s.pid, s.backend_type = 'autovacuum worker' AS is_autovacuum, s.backend_xid AS xid INTO victim
      FROM pg_stat_activity s WHERE s.pid = backend AND coalesce(s.backend_xid::text, '0') = give_way.xid;
    keeps := victim.is_autovacuum
          OR (SELECT m.native FROM pgherd.capture_mode m)
             AND EXISTS (SELECT FROM pg_locks l
                          WHERE l.pid = backend AND l.mode = 'RowExclusiveLock'
                            AND l.relation IN ('pgherd.capture_0'::regclass, 'pgherd.capture_1'::regclass));
    IF victim.pid IS NULL THEN
        RETURN false;
    ELSIF NOT keeps THEN
        PERFORM pg_terminate_backend(victim.pid);
        RETURN false;
    END IF;
    IF NOT victim.is_autovacuum THEN
        -- not for sure, since a user may hold it: that is a mark, too
        PERFORM pg_try_advisory_lock(pgherd.token_of_victim(victim.xid));
    END IF;
    PERFORM pg_cancel_backend(victim.pid);
    RETURN true;
END $$;

-- Ends what a sidecar that is no more has left at work under one name: it builds an index, or maintains tables.
CREATE OR REPLACE FUNCTION pgherd.end_old(name text) RETURNS int8
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT count(pg_terminate_backend(s.pid)) FROM pg_stat_activity s
     WHERE s.application_name = name AND s.datname = current_database() AND s.usename = current_user;
END;

-- Terminates what an earlier incarnation of the sidecar may have left at work on its own connections.
CREATE OR REPLACE FUNCTION pgherd.end_old_writers() RETURNS int8
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT count(pg_terminate_backend(w.pid)) FROM pgherd.own_sessions w
     WHERE w.pid <> pg_backend_pid() AND w.name NOT IN ('pgherd watch', 'pgherd upkeep');
END;
