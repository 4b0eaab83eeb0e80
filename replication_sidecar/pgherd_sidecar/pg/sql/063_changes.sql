-- What readers of the change stream need beside the log: the columns of tables as they were at each GID, and that
-- the log is kept while they live.

-- The columns of each table, whenever they changed. A writeset's records hold values by position only, and its
-- reader may be behind: the catalog of today would give them other names.
--   xid        of the transaction here
--   n          order of those of one table: transactions' ids need not be in the order of their commits
--   gid        of the transaction; NULL until somebody has asked pgherd.applied (number_shapes)
--   generated  columns that PostgreSQL computes: no record has their values
CREATE TABLE IF NOT EXISTS pgherd.shape (
    xid       xid8   NOT NULL,
    n         int    NOT NULL,
    gid       int8,
    tab       text   NOT NULL,
    columns   text[] NOT NULL,
    types     text[] NOT NULL,
    key       text[] NOT NULL,
    generated text[] NOT NULL
);
CREATE INDEX IF NOT EXISTS shape_tab ON pgherd.shape (tab, n);
CREATE INDEX IF NOT EXISTS shape_new ON pgherd.shape (tab) WHERE gid IS NULL;

CREATE OR REPLACE VIEW pgherd.present_shapes AS
SELECT c.oid AS relid, format('%I.%I', s.nspname, c.relname) AS tab, a.columns, a.types,
       array(SELECT k.attname::text FROM pg_index i CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS u(attnum, pos)
               JOIN pg_attribute k ON k.attrelid = c.oid AND k.attnum = u.attnum
              WHERE i.indexrelid = pgherd.identity_index(c.oid) AND u.pos <= i.indnkeyatts ORDER BY u.pos) AS key,
       a.generated
  FROM pg_class c JOIN pg_namespace s ON s.oid = c.relnamespace
 CROSS JOIN LATERAL (SELECT coalesce(array_agg(t.attname::text ORDER BY t.attnum), '{}') AS columns,
                            coalesce(array_agg(format_type(t.atttypid, t.atttypmod) ORDER BY t.attnum), '{}') AS types,
                            coalesce(array_agg(t.attname::text) FILTER (WHERE t.attgenerated <> ''), '{}') AS generated
                       FROM pg_attribute t WHERE t.attrelid = c.oid AND t.attnum > 0 AND NOT t.attisdropped) a
 WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND NOT c.relispartition
   AND s.nspname NOT LIKE E'pg\\_%' AND s.nspname NOT IN ('information_schema', 'pgherd', 'pgherd_gen');

-- Notes what a command has changed, in its transaction, on every member.
CREATE OR REPLACE FUNCTION pgherd.note_shapes(rels oid[], everything bool) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO pgherd.shape
    SELECT pg_current_xact_id(), coalesce(known.n, 0) + 1, NULL, p.tab, p.columns, p.types, p.key, p.generated
      FROM pgherd.present_shapes p
      LEFT JOIN LATERAL (SELECT k.n, k.columns, k.types, k.key, k.generated FROM pgherd.shape k
                          WHERE k.tab = p.tab ORDER BY k.n DESC LIMIT 1) known ON true
     WHERE (everything OR p.relid = ANY (rels))
       AND (p.columns, p.types, p.key, p.generated)
           IS DISTINCT FROM (known.columns, known.types, known.key, known.generated);
END $$;

-- What was there before there was a stream counts from here on.
INSERT INTO pgherd.shape
SELECT pg_current_xact_id(), 1, pgherd.last_gid(), p.tab, p.columns, p.types, p.key, p.generated
  FROM pgherd.present_shapes p WHERE NOT EXISTS (SELECT FROM pgherd.shape);

-- Transactions executed from the log say their GID themselves: this is for local ones, before `applied` is pruned.
CREATE OR REPLACE FUNCTION pgherd.number_shapes() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM pgherd.shape s WHERE s.gid IS NULL) THEN
        UPDATE pgherd.shape s SET gid = a.gid FROM pgherd.applied a WHERE s.gid IS NULL AND a.xid = s.xid;
    END IF;
END $$;

-- Forgets what no position after `before` needs.
CREATE OR REPLACE FUNCTION pgherd.forget_shapes(before int8) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    DELETE FROM pgherd.shape s
     WHERE EXISTS (SELECT FROM pgherd.shape k WHERE k.tab = s.tab AND (k.gid, k.n) > (s.gid, s.n) AND k.gid <= before);
END;

-- Streams for whom the log after a position is kept. A lease, like a joiner's: who does not come back holds nothing
-- for ever.
CREATE UNLOGGED TABLE IF NOT EXISTS pgherd.stream_hold (
    stream  text PRIMARY KEY,
    held    int8 NOT NULL,
    expires timestamptz NOT NULL
);

CREATE OR REPLACE FUNCTION pgherd.hold_for_stream(name text, after int8, seconds float8) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    DELETE FROM pgherd.stream_hold h WHERE h.expires < clock_timestamp() AND h.stream <> name;
    INSERT INTO pgherd.stream_hold VALUES (name, after, clock_timestamp() + make_interval(secs => seconds))
        ON CONFLICT (stream) DO UPDATE SET held = EXCLUDED.held, expires = EXCLUDED.expires;
END;

-- Who has the log after a position kept: as `pgherd status` shows it, and as `pgherd release` names it.
CREATE OR REPLACE VIEW pgherd.held_log AS
    SELECT CASE WHEN h.member > 0 THEN concat('member:', h.member) ELSE concat('snapshot:', -1 - h.member) END AS hold,
           h.wanted, h.held, h.expires
      FROM pgherd.log_hold h
    UNION ALL
    SELECT concat('stream:', s.stream), NULL, s.held, s.expires FROM pgherd.stream_hold s;

-- What is held; called before each trimming, with where the log begins. No hold lasts for more than `most` seconds from
-- now, whatever was asked for.
CREATE OR REPLACE FUNCTION pgherd.log_holds(base int8, most float8, OUT wanted int8, OUT held int8, OUT holds jsonb)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    UPDATE pgherd.recovery_source s SET log_base = base WHERE s.log_base <> base;
    UPDATE pgherd.log_hold h SET expires = clock_timestamp() + make_interval(secs => most)
     WHERE h.expires > clock_timestamp() + make_interval(secs => most);
    UPDATE pgherd.stream_hold s SET expires = clock_timestamp() + make_interval(secs => most)
     WHERE s.expires > clock_timestamp() + make_interval(secs => most);
    DELETE FROM pgherd.log_hold h WHERE h.expires <= clock_timestamp();
    DELETE FROM pgherd.stream_hold s WHERE s.expires <= clock_timestamp();
    SELECT max(h.wanted), min(h.held),
           coalesce(jsonb_agg(jsonb_build_object('hold', h.hold, 'after', h.held, 'until', h.expires) ORDER BY h.hold), '[]')
      FROM pgherd.held_log h;
END;

-- Gives a hold back before its time; false if there is none of this name. Who is still there takes it anew.
CREATE OR REPLACE FUNCTION pgherd.release_hold(name text) RETURNS bool
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH kept AS (
        DELETE FROM pgherd.log_hold h
         WHERE name IN (concat('member:', h.member), concat('snapshot:', -1 - h.member)) RETURNING 1
    ), streams AS (
        DELETE FROM pgherd.stream_hold s WHERE name = concat('stream:', s.stream) RETURNING 1
    )
    SELECT EXISTS (SELECT FROM kept) OR EXISTS (SELECT FROM streams);
END;
