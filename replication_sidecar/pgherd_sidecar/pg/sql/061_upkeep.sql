-- Housekeeping, called by the sidecar about once a second.

-- How far an audit has come, as one text: its snapshot, a slash, and the newest GID that it saw.
CREATE OR REPLACE FUNCTION pgherd.snapshot_of(audited text) RETURNS pg_snapshot
LANGUAGE sql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp
RETURN split_part(audited, '/', 1)::pg_snapshot;

-- The transactions that were open then.
CREATE OR REPLACE FUNCTION pgherd.open_in(audited text) RETURNS xid8[]
LANGUAGE sql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp
RETURN array(SELECT pg_snapshot_xip(pgherd.snapshot_of(audited)));

-- Those of them that are over.
CREATE OR REPLACE FUNCTION pgherd.ended_since(audited text) RETURNS xid8[]
LANGUAGE sql STABLE STRICT SET search_path = pg_catalog, pg_temp
RETURN array(SELECT u.x FROM unnest(pgherd.open_in(audited)) AS u(x) WHERE pg_visible_in_snapshot(u.x, pg_current_snapshot()));

CREATE OR REPLACE FUNCTION pgherd.gid_of(audited text) RETURNS int8
LANGUAGE sql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp
RETURN split_part(audited, '/', 2)::int8;

-- Committed transactions with captured rows that were never certified (C1): their cursor was closed behind
-- our back. A captured row is visible exactly when its transaction's row in `applied` would be.
-- since, audited: how far an earlier audit has come, and this one. It looks at what the earlier snapshot did not show.
-- Such a transaction has a newer GID, since commits become visible in their order. So one that is open for long costs
-- nothing: the others are looked at once.
CREATE OR REPLACE FUNCTION pgherd.audit(since text, OUT leaks text[], OUT audited text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
BEGIN ATOMIC
    SELECT (SELECT array_agg(DISTINCT c.xid::text)
              FROM (SELECT a.xid, a.tab FROM pgherd.capture_0 a
                     WHERE a.xid >= pg_snapshot_xmax(pgherd.snapshot_of(since)) OR a.xid = ANY (pgherd.ended_since(since))
                    UNION ALL
                    SELECT b.xid, b.tab FROM pgherd.capture_1 b
                     WHERE b.xid >= pg_snapshot_xmax(pgherd.snapshot_of(since)) OR b.xid = ANY (pgherd.ended_since(since))) c
             WHERE c.tab <> 'sentinel'
               AND NOT EXISTS (SELECT FROM pgherd.applied p WHERE p.xid = c.xid AND p.gid > pgherd.gid_of(since))),
           concat(pg_current_snapshot(), '/', pgherd.last_gid());
END;

-- The writeset of a leak, as certify() would have sent it.
CREATE OR REPLACE FUNCTION pgherd.leaked(x text, OUT keys text, OUT body text, OUT ddl bool)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT c.keys, '[' || c.body || ']', c.ddl
      FROM pgherd.captured(x::xid8, 1::int8 << 40) c;
END;

-- Makes a leak, whose rows are here already, a link of the commit chain.
CREATE OR REPLACE FUNCTION pgherd.adopt(gid int8, prev int8, x text) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    INSERT INTO pgherd.applied VALUES (gid, prev, x::xid8);
END;

-- Makes an entry that counts as having no effect a link of the commit chain.
CREATE OR REPLACE FUNCTION pgherd.pass_by(gid int8, prev int8) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    INSERT INTO pgherd.applied VALUES (gid, prev);
    INSERT INTO pgherd.skipped VALUES (gid);
END;

-- Up to where the audit has come. It survives a restart of the sidecar, because after one the rows in
-- `applied` that prove older captured rows certified may be gone.
--   xid      the next one then
--   audited  see audit(). An older version moves xid alone, and has audited all below it.
CREATE TABLE IF NOT EXISTS pgherd.audited (
    only_row bool PRIMARY KEY DEFAULT true CHECK (only_row),
    xid      xid8 NOT NULL
);
ALTER TABLE pgherd.audited ADD COLUMN IF NOT EXISTS audited text;

CREATE OR REPLACE FUNCTION pgherd.audited_until() RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT coalesce((SELECT CASE WHEN pg_snapshot_xmax(pgherd.snapshot_of(a.audited)) = a.xid THEN a.audited
                                 ELSE concat(a.xid, ':', a.xid, ':/0') END
                       FROM pgherd.audited a), '1:1:/0');
END;

-- Removes the links of the commit chain below `before`, but for those that an audit may still ask for: what
-- stays has no hole, which would read as a broken chain. The limit of the audit is written
-- now and then only, so that an idle server is not written to. Returns where the next call may go on (`since`): while a
-- transaction is open VACUUM leaves what was removed here, and to pass over that costs more each time.
CREATE OR REPLACE FUNCTION pgherd.prune(since int8, before int8, audited text) RETURNS int8
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
BEGIN ATOMIC
    INSERT INTO pgherd.audited (xid, audited)
    SELECT pg_snapshot_xmax(pgherd.snapshot_of(prune.audited)), prune.audited
     WHERE NOT EXISTS (SELECT FROM pgherd.audited a
                        WHERE a.audited IS NOT NULL
                          AND pg_snapshot_xmax(pgherd.snapshot_of(prune.audited))::text::int8 - a.xid::text::int8 <= 1000)
        ON CONFLICT (only_row) DO UPDATE SET xid = excluded.xid, audited = excluded.audited;
    DELETE FROM pgherd.applied a
     WHERE a.gid >= since AND a.gid < before AND a.gid <= (SELECT pgherd.gid_of(b.audited) FROM pgherd.audited b);
    SELECT greatest(since, least(before, (SELECT pgherd.gid_of(b.audited) + 1 FROM pgherd.audited b)));
END;

-- Empties the capture table whose transactions are over, and were audited. One that is open all the same holds a lock
-- on it if it has captured anything; and so may an administrator who looks into it: not now then.
CREATE OR REPLACE FUNCTION pgherd.truncate_idle_capture(audited text) RETURNS bool
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    next_xid  xid8 := pg_snapshot_xmax(pg_current_snapshot());
    seen      xid8 := pg_snapshot_xmax(pgherd.snapshot_of(audited));
    idle      text := format('pgherd.capture_%s', 1 - pgherd.capture_side(next_xid));
    unaudited bool;
BEGIN
    IF seen::text::int8 < (next_xid::text::int8 >> 17) << 17 OR pg_relation_size(idle) = 0 THEN
        RETURN false;
    END IF;
    BEGIN
        EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE NOWAIT', idle);
    EXCEPTION WHEN lock_not_available THEN
        RETURN false;
    END;
    EXECUTE format('SELECT EXISTS (SELECT FROM %s c WHERE c.xid >= $1 OR c.xid = ANY ($2))', idle)
       INTO unaudited USING seen, pgherd.open_in(audited);
    IF NOT unaudited THEN
        EXECUTE format('TRUNCATE %s', idle);
    END IF;
    RETURN NOT unaudited;
END $$;

-- The sessions whose transactions have captured something, or read what was, and are open for longer than one side of the
-- capture lasts: it can't be emptied while they are. NULL if there are none.
CREATE OR REPLACE FUNCTION pgherd.capture_kept() RETURNS text[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT array_agg(format('process %s of user %s, whose transaction is open since %s', a.pid, a.usename,
                            to_char(a.xact_start, 'YYYY-MM-DD HH24:MI TZ')) ORDER BY a.xact_start)
      FROM pg_stat_activity a
     WHERE a.datname = current_database() AND greatest(age(a.backend_xid), age(a.backend_xmin)) > 1 << 17
       AND (SELECT count(*) FROM pg_locks l
             WHERE l.pid = a.pid AND l.relation IN ('pgherd.capture_0'::regclass, 'pgherd.capture_1'::regclass)) > 0;
END;

-- The next xid, the oldest xid or snapshot that any session of this database still works with, and the
-- newest GID visible now.
CREATE OR REPLACE FUNCTION pgherd.running(OUT next_xid text, OUT oldest text, OUT gid int8)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT n.x::text,
           (n.x - coalesce((SELECT max(greatest(age(s.backend_xmin), age(s.backend_xid))) FROM pg_stat_activity s
                             WHERE s.datname = current_database() AND s.pid <> pg_backend_pid()), 0))::text,
           pgherd.last_gid()
      FROM (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::int8 AS x) n;
END;

-- Tables whose rows have no identity but their image, by name; not more than `most`.
CREATE OR REPLACE FUNCTION pgherd.tables_without_key(most int DEFAULT 1000) RETURNS text[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
RETURN array(SELECT t.name FROM pgherd.replicated_tables t WHERE pgherd.identity_index(t.relid) IS NULL
              ORDER BY t.name COLLATE "C" LIMIT most);

-- Settings that keep our triggers from firing, for sessions of this database: in words; NULL if there are none. Our own
-- session has what the server has but where ALTER ROLE or DATABASE says otherwise, which is told of anyway.
CREATE OR REPLACE FUNCTION pgherd.capture_off() RETURNS text[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH setting AS (
        SELECT split_part(c.pair, '=', 1) AS name, lower(split_part(c.pair, '=', 2)) AS value,
               CASE WHEN s.setrole <> 0
                    THEN format('ALTER ROLE %I', coalesce(r.rolname::text, s.setrole::text))
                         || CASE WHEN s.setdatabase <> 0 THEN format(' IN DATABASE %I', d.datname) ELSE '' END
                    WHEN s.setdatabase <> 0 THEN format('ALTER DATABASE %I', d.datname)
                    ELSE 'ALTER ROLE ALL' END AS place
          FROM pg_db_role_setting s CROSS JOIN LATERAL unnest(s.setconfig) AS c(pair)
          JOIN pg_database d ON d.datname = current_database() AND s.setdatabase IN (0, d.oid)
          LEFT JOIN pg_roles r ON r.oid = s.setrole
        UNION ALL
        SELECT g.name, lower(g.reset_val), 'ALTER SYSTEM, postgresql.conf or the command line'
          FROM pg_settings g
         WHERE NOT EXISTS (SELECT FROM pg_db_role_setting s CROSS JOIN LATERAL unnest(s.setconfig) AS c(pair)
                            WHERE split_part(c.pair, '=', 1) = g.name
                              AND s.setdatabase IN (0, (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))
                              AND s.setrole IN (0, (SELECT r.oid FROM pg_roles r WHERE r.rolname = session_user))))
    SELECT array_agg(format('%s: %s = %s', o.place, o.name, o.value) ORDER BY o.place, o.name) FROM setting o
     WHERE (o.name = 'session_replication_role' AND o.value = 'replica')
        OR (o.name = 'backtrace_functions' AND o.value = 'pgherd')
        OR (o.name = 'event_triggers' AND (o.value ~ '^[fn]' OR o.value IN ('of', 'off', '0')));
END;

-- A certificate that was replaced is used for new connections: the server looks at its files when it
-- is told to only. One that it cannot use changes nothing.
CREATE OR REPLACE FUNCTION pgherd.reload_certificate() RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT pg_reload_conf()
    FROM pg_stat_file(current_setting('ssl_cert_file'), missing_ok => true) AS file
    WHERE current_setting('ssl')::boolean AND file.modification > pg_conf_load_time()
$$;

-- Where the server's table of locks is full, ends the client's session that holds most, if that is more than its share;
-- tells which. Ours are no clients': what they hold is needed for what is certain to commit.
CREATE OR REPLACE FUNCTION pgherd.free_locks(OUT pid int, OUT locks int8) RETURNS SETOF record
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT m.pid, m.locks
      FROM (SELECT a.pid, count(*) AS locks
              FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid JOIN pg_roles r ON r.oid = a.usesysid
             WHERE NOT l.fastpath AND a.backend_type = 'client backend' AND a.usename <> 'pgherd_apply'
               AND NOT (r.rolsuper AND starts_with(a.application_name, 'pgherd '))
             GROUP BY a.pid ORDER BY 2 DESC LIMIT 1) m
     CROSS JOIN (SELECT current_setting('max_locks_per_transaction')::int AS share) s
     WHERE m.locks > s.share
       AND (SELECT count(*) FROM pg_locks l WHERE NOT l.fastpath) >= s.share * current_setting('max_connections')::int
       AND pg_terminate_backend(m.pid, 5000)
$$;

-- Everything committed so far is on disk when this returns.
CREATE OR REPLACE FUNCTION pgherd.flush_wal() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'on', true), pg_logical_emit_message(true, 'pgherd', 'flush');
END $$;

-- Collations of indexes that this machine sorts otherwise than the one that built them: the database was copied
-- from another machine, or this one's libraries were replaced. NULL if there are none.
CREATE OR REPLACE FUNCTION pgherd.stale_collations() RETURNS text[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
RETURN (SELECT array_agg(DISTINCT c.collname::text)
          FROM pg_index i CROSS JOIN LATERAL unnest(i.indcollation::oid[]) AS k(oid)
          JOIN pg_collation c ON c.oid = k.oid JOIN pg_database d ON d.datname = current_database()
         WHERE CASE WHEN c.collprovider = 'd' THEN d.datcollversion <> pg_database_collation_actual_version(d.oid)
                    ELSE c.collversion <> pg_collation_actual_version(c.oid) END);
