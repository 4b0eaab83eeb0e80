-- Total recovery: what a member whose database is lost asks of the server that it copies (its partner), and what
-- makes the copy a member of its own. The joiner calls the functions of the partner as superuser.

-- Which cluster's database this is, where the sidecar beside it keeps its checkpoint (written by it at each start),
-- and after which position its log begins. Server and sidecar run as one account.
CREATE TABLE IF NOT EXISTS pgherd.recovery_source (
    only_row   bool PRIMARY KEY DEFAULT true CHECK (only_row),
    cluster_id text NOT NULL,
    checkpoint text NOT NULL,
    log_base   int8 NOT NULL DEFAULT 0
);

CREATE OR REPLACE FUNCTION pgherd.offer_copies(cluster text, checkpoint text) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    INSERT INTO pgherd.recovery_source VALUES (true, cluster, checkpoint)
        ON CONFLICT (only_row) DO UPDATE SET cluster_id = EXCLUDED.cluster_id, checkpoint = EXCLUDED.checkpoint;
END;

-- Joiners for whom the log is kept. A lease: a joiner that does not come back holds nothing for ever.
--   member  its number; a negative one is that of a snapshot, from which somebody may be made later
--   wanted  a checkpoint at or after this position is needed soon
--   held    the log after this position is kept
CREATE TABLE IF NOT EXISTS pgherd.log_hold (
    member  int PRIMARY KEY,
    wanted  int8 NOT NULL,
    held    int8 NOT NULL,
    expires timestamptz NOT NULL
);

CREATE OR REPLACE FUNCTION pgherd.hold_log(joiner int, wanted int8, held int8, seconds float8) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    INSERT INTO pgherd.log_hold VALUES (joiner, wanted, held, clock_timestamp() + make_interval(secs => seconds))
        ON CONFLICT (member) DO UPDATE
        SET wanted = EXCLUDED.wanted, held = EXCLUDED.held, expires = EXCLUDED.expires;
    SELECT pg_notify('pgherd_checkpoint_wanted', '') WHERE hold_log.wanted > 0;
END;

-- The same for a snapshot, by any number, for the role of jobs: it can't stand for a member, nor hold for ever.
CREATE OR REPLACE FUNCTION pgherd.hold_log_for(snapshot int, wanted int8, held int8, seconds float8) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT pgherd.hold_log(-1 - abs(snapshot), wanted, held, least(seconds, 31 * 86400));
END;

CREATE OR REPLACE FUNCTION pgherd.release_log(joiner int) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    DELETE FROM pgherd.log_hold h WHERE h.member = joiner;
END;

CREATE OR REPLACE FUNCTION pgherd.log_base() RETURNS int8
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT s.log_base FROM pgherd.recovery_source s;
END;

-- How suitable this server is as a partner: whether it takes writes, or would if the herd did, how far it is, how many copies it is making.
CREATE OR REPLACE FUNCTION pgherd.partner_status(OUT cluster_id text, OUT writable bool, OUT gid int8, OUT copies int)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT s.cluster_id, n.writable OR n.held, pgherd.last_gid(), (SELECT count(*) FROM pg_stat_progress_basebackup)
      FROM pgherd.recovery_source s CROSS JOIN pgherd.node n;
END;

-- Whether any session but ours has done something within the last second: then a copy is made slowly.
CREATE OR REPLACE FUNCTION pgherd.clients_at_work() RETURNS bool
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT EXISTS (
        SELECT FROM pg_stat_activity a
         WHERE a.backend_type = 'client backend' AND a.application_name NOT LIKE 'pgherd%'
           AND (a.state IN ('active', 'fastpath function call')
                OR a.state_change > clock_timestamp() - interval '1 s'));
END;

-- Ends the copies for which this server keeps more WAL than so many bytes, and returns who makes them: one that is
-- slow or stands still must not fill the disk. The copying program has the name that the joiner gave it.
CREATE OR REPLACE FUNCTION pgherd.end_copies(most int8) RETURNS text[]
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT array_agg(a.application_name) FILTER (WHERE pg_terminate_backend(a.pid))
      FROM pg_replication_slots s JOIN pg_stat_activity a ON a.pid = s.active_pid
     WHERE s.temporary AND a.application_name LIKE 'pgherd copy %'
       AND pg_wal_lsn_diff(pg_current_wal_insert_lsn(), s.restart_lsn) > most;
END;

-- The newest checkpoint of the sidecar beside this server; NULL if it has none.
CREATE OR REPLACE FUNCTION pgherd.certification_state() RETURNS bytea
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT pg_read_binary_file(s.checkpoint, 0, 1073741000, true) FROM pgherd.recovery_source s;
END;

-- Prepared transactions that came with a copy: they are the partner's, and are rolled back here.
CREATE TABLE IF NOT EXISTS pgherd.copied_transaction (
    gid      text PRIMARY KEY,
    database name NOT NULL
);

-- The last numbers that the sequences after `after` have given out here: names as in pgherd.user_sequences. As many as
-- one transaction can lock, up to `upto`; NULL when there are no more.
CREATE OR REPLACE FUNCTION pgherd.sequence_positions(after oid, OUT upto oid, OUT positions jsonb)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE rels oid[] := pgherd.next_sequences(after);
BEGIN
    upto := rels[cardinality(rels)];
    positions := (
        SELECT coalesce(jsonb_object_agg(p.name, p.last) FILTER (WHERE p.last IS NOT NULL), '{}')
          FROM (SELECT n.nspname || '.' || c.relname AS name, pg_sequence_last_value(c.oid) AS last
                  FROM pgherd.user_sequences u JOIN pg_class c ON c.oid = u.relid JOIN pg_namespace n ON n.oid = c.relnamespace
                 WHERE u.relid = ANY (rels)) p);
END $$;

-- Moves sequences on to where this member may have been with them before its database was lost: the positions may
-- be as old as the newest checkpoint, so the jump is 16 times that of a crash, which covers one flush of the log.
CREATE OR REPLACE FUNCTION pgherd.resume_sequences(rels oid[], positions jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET session_replication_role = replica AS $$
DECLARE
    s    pgherd.user_sequences;
    step int8;
    at   int8;
    was  int8;
    jump numeric;
    next numeric;
BEGIN
    FOR s IN SELECT * FROM pgherd.user_sequences u WHERE u.relid = ANY (rels) LOOP
        SELECT k.step INTO step FROM pgherd.sequences k WHERE k.relid = s.relid;
        SELECT (positions->>(n.nspname || '.' || c.relname))::int8 INTO was
          FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = s.relid;
        EXECUTE format('SELECT q.last_value FROM %s q', s.relid::regclass) INTO at;
        jump := least(16 * 32768, 16 * div(s.seqmax::numeric - s.seqmin, abs(s.seqincrement)) / 10000);
        next := was + s.seqincrement * (1 + floor(jump));
        IF step IS NOT NULL AND (next - at) * sign(step) > 0 THEN
            PERFORM pgherd.move_sequence(s.relid, next, step, s.seqmin, s.seqmax);
        END IF;
    END LOOP;
END $$;

-- Makes a copy of a partner's server this member's own, before anybody but this session can enter it (C18): it
-- takes no writes and knows no hook until the sidecar beside it has begun an incarnation, and what the partner had under
-- way does not count. own_sequences() follows.
-- needed: the lowest GID at which the copy may stand.
CREATE OR REPLACE FUNCTION pgherd.become_member(number int, name text, needed int8) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET session_replication_role = replica SET row_security = off AS $$
DECLARE
    chain record;
BEGIN
    SELECT * INTO chain FROM pgherd.chain_end();
    IF chain.broken_at IS NOT NULL OR chain.gid < needed THEN
        RAISE EXCEPTION 'the copy stands at GID %, its chain is broken at %, needed is %', chain.gid, chain.broken_at, needed;
    END IF;
    UPDATE pgherd.node SET member = number, member_name = name, incarnation = 0, epoch = 0, hook_conninfo = '',
           secret = gen_random_uuid()::text, writable = false, held = false, reason = 'it is being rebuilt';
    DELETE FROM pgherd.log_hold;
    PERFORM pgherd.restore_owners(), pgherd.restore_shared();
    INSERT INTO pgherd.copied_transaction SELECT p.gid, p.database FROM pg_prepared_xacts p ON CONFLICT DO NOTHING;
    DELETE FROM pgherd.clean_since;
END $$;

-- Has sequences of the copy give out this member's numbers from where it was, in parts like sequences_after_crash().
CREATE OR REPLACE FUNCTION pgherd.own_sequences(after oid, positions jsonb) RETURNS oid
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET session_replication_role = replica SET row_security = off AS $$
DECLARE
    rels oid[] := pgherd.next_sequences(after);
    last oid;
    k    pgherd.sequences;
BEGIN
    -- They start where the partner's numbers do: that is not what users mean by START.
    FOR k IN SELECT * FROM pgherd.sequences q WHERE q.relid = ANY (rels) LOOP
        EXECUTE format('ALTER SEQUENCE %s START WITH %s', k.relid::regclass, pgherd.first_own(k.start, k.step));
    END LOOP;
    last := pgherd.sequences_after_crash(after);
    PERFORM pgherd.resume_sequences(rels, positions);
    -- Numbers of this member in rows that are yet to come from the log are looked for when they are here.
    DELETE FROM pgherd.clean_since;
    RETURN last;
END $$;
