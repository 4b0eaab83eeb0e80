-- A subscriber that forwards holds these beside its tables: the log that others are fed from, and the orders of the herd.

-- name: is_made
SELECT to_regclass('pgherd_subscriber.forwarding') IS NOT NULL AS found

-- name: make_forwarding
CREATE TABLE IF NOT EXISTS pgherd_subscriber.forwarding (
    subscription text PRIMARY KEY REFERENCES pgherd_subscriber.standing ON DELETE CASCADE,
    begins int8 NOT NULL,         -- the log has all changes of the set's tables after this GID
    gone int8 NOT NULL,           -- number of the last row that was removed
    last int8 NOT NULL,           -- number of the last row
    bytes int8 NOT NULL,          -- of all rows that there have been
    sequences jsonb NOT NULL DEFAULT '[]'
)

-- Rows are numbered without a gap, so one that is missing is noticed.
-- name: make_log
CREATE TABLE IF NOT EXISTS pgherd_subscriber.log (
    subscription text NOT NULL REFERENCES pgherd_subscriber.forwarding ON DELETE CASCADE,
    last int8 NOT NULL,           -- GID of its last change
    n int8 NOT NULL,
    first int8 NOT NULL,          -- GID of its first change
    bytes int8 NOT NULL,          -- of all rows up to here
    crc int8 NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (subscription, last, n),
    UNIQUE (subscription, bytes)
)

-- name: store_as_is
ALTER TABLE pgherd_subscriber.log ALTER COLUMN body SET STORAGE EXTERNAL

-- All subscriptions of the set, and how those are that are fed from here, over however many hops.
-- name: make_orders
CREATE TABLE IF NOT EXISTS pgherd_subscriber.orders (
    subscription text NOT NULL REFERENCES pgherd_subscriber.standing ON DELETE CASCADE,
    name text NOT NULL,           -- of a subscription; with a revision behind it if that has ended
    ordered jsonb NOT NULL,       -- as the herd has it; with a connection string if it is fed from here
    revision int8,                -- of the order that the rest is about
    needed int8,                  -- it needs the log after this GID
    state text NOT NULL DEFAULT 'waiting',
    reason text NOT NULL DEFAULT '',
    tables int4 NOT NULL DEFAULT 0,
    begins int8,                  -- its own log has all after this GID
    seen timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (subscription, name)
)

-- name: forwarding
SELECT f.begins, f.gone, f.last, f.bytes FROM pgherd_subscriber.forwarding f WHERE f.subscription = %(name)s

-- Rows that were removed keep their numbers.
-- name: begin_log
INSERT INTO pgherd_subscriber.forwarding AS f (subscription, begins, gone, last, bytes) VALUES (%(name)s, %(gid)s, 0, 0, 0)
    ON CONFLICT (subscription) DO UPDATE SET begins = %(gid)s, gone = f.last

-- name: clear_log
DELETE FROM pgherd_subscriber.log WHERE subscription = %(name)s

-- name: end_log
DELETE FROM pgherd_subscriber.forwarding WHERE subscription = %(name)s

-- name: end_orders
DELETE FROM pgherd_subscriber.orders WHERE subscription = %(name)s

-- name: note_sequences
UPDATE pgherd_subscriber.forwarding SET sequences = %(sequences)s WHERE subscription = %(name)s

-- name: write
WITH f AS (
    UPDATE pgherd_subscriber.forwarding SET last = last + 1, bytes = bytes + %(size)s WHERE subscription = %(name)s
    RETURNING last, bytes)
INSERT INTO pgherd_subscriber.log (subscription, last, n, first, bytes, crc, body)
SELECT %(name)s, %(last)s, f.last, %(first)s, f.bytes, %(crc)s, %(body)s FROM f

-- name: trim
WITH d AS (DELETE FROM pgherd_subscriber.log WHERE subscription = %(name)s AND last <= %(gid)s RETURNING n)
UPDATE pgherd_subscriber.forwarding SET begins = greatest(begins, %(gid)s), gone = greatest(gone, (SELECT max(d.n) FROM d))
 WHERE subscription = %(name)s

-- How far the log may go back with so many bytes of it; NULL: as far as it does.
-- name: floor
SELECT l.last AS gid FROM pgherd_subscriber.log l JOIN pgherd_subscriber.forwarding f USING (subscription)
 WHERE l.subscription = %(name)s AND l.bytes <= f.bytes - %(keep)s ORDER BY l.bytes DESC LIMIT 1

-- name: head
SELECT s.cluster, s.gid, date_part('epoch', s.as_of)::float8 AS as_of_s, f.begins, f.gone, f.last,
       coalesce((SELECT jsonb_object_agg(t.tab, t.gid) FROM pgherd_subscriber.tables t
                  WHERE t.subscription = s.subscription AND NOT t.staged AND t.generation > 0), '{}') AS tables,
       (SELECT max(l.n) FROM pgherd_subscriber.log l WHERE l.subscription = s.subscription AND l.last = (
            SELECT max(m.last) FROM pgherd_subscriber.log m WHERE m.subscription = s.subscription AND m.last <= %(after)s)) AS before
  FROM pgherd_subscriber.standing s JOIN pgherd_subscriber.forwarding f USING (subscription)
 WHERE s.subscription = %(name)s

-- name: read
SELECT l.n, l.first, l.last, l.crc, l.body FROM pgherd_subscriber.log l
 WHERE l.subscription = %(name)s AND (l.last, l.n) > (%(last)s, %(n)s) ORDER BY l.last, l.n LIMIT %(rows)s

-- name: sequences
SELECT f.sequences FROM pgherd_subscriber.forwarding f WHERE f.subscription = %(name)s

-- name: sequence_at
SELECT pg_sequence_last_value(c.oid) AS last FROM pg_class c WHERE c.oid = to_regclass(%(seq)s) AND c.relkind = 'S'

-- The tables that a follower has to make: columns as they are here.
-- name: describe
SELECT t.definition, t.parts, d.declared, d.types
  FROM pgherd_subscriber.tables t
 CROSS JOIN LATERAL (
       SELECT string_agg(format('%%I %%s', a.attname, format_type(a.atttypid, a.atttypmod))
                  || CASE WHEN a.attcollation <> y.typcollation THEN format(' COLLATE %%I.%%I', s.nspname, l.collname) ELSE '' END
                  || CASE WHEN a.attgenerated <> '' THEN format(' GENERATED ALWAYS AS (%%s) STORED', pg_get_expr(e.adbin, e.adrelid))
                          WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END, ', ' ORDER BY c.o) AS declared,
              array_agg(format_type(a.atttypid, a.atttypmod) ORDER BY c.o) AS types
         FROM jsonb_array_elements(t.definition->'columns') WITH ORDINALITY AS c(told, o)
         JOIN pg_attribute a ON a.attrelid = to_regclass(t.tab) AND a.attname = c.told->>'name' AND NOT a.attisdropped
         JOIN pg_type y ON y.oid = a.atttypid
         LEFT JOIN pg_attrdef e ON e.adrelid = a.attrelid AND e.adnum = a.attnum
         LEFT JOIN pg_collation l ON l.oid = a.attcollation
         LEFT JOIN pg_namespace s ON s.oid = l.collnamespace) d
 WHERE t.subscription = %(name)s AND NOT t.staged AND t.generation > 0 AND t.tab = ANY (%(names)s) AND d.declared IS NOT NULL ORDER BY t.tab

-- name: forwarders
SELECT f.subscription FROM pgherd_subscriber.forwarding f ORDER BY 1

-- name: orders
SELECT o.subscription, o.name, o.ordered, o.revision, o.needed, o.state, o.reason, o.tables, o.begins,
       date_part('epoch', clock_timestamp() - o.seen)::float8 AS age_s
  FROM pgherd_subscriber.orders o WHERE %(name)s::text IS NULL OR o.subscription = %(name)s ORDER BY 1, 2

-- A copy that is to be made anew needs another part of the log. An end that an earlier version has noted has the bare name.
-- name: order
INSERT INTO pgherd_subscriber.orders AS o (subscription, name, ordered) VALUES (%(name)s, %(follower)s, %(ordered)s)
    ON CONFLICT (subscription, name) DO UPDATE SET ordered = excluded.ordered,
       needed = CASE WHEN o.ordered->'generation' = excluded.ordered->'generation' THEN o.needed END,
       state = CASE WHEN o.state = 'ended' THEN 'waiting' ELSE o.state END,
       seen = CASE WHEN o.ordered = excluded.ordered THEN o.seen ELSE clock_timestamp() END

-- name: forget_order
DELETE FROM pgherd_subscriber.orders WHERE subscription = %(name)s AND name = %(follower)s

-- It stays, with the connection string, until the follower has given its tables back. Another order may have its name now.
-- name: end_order
WITH d AS (DELETE FROM pgherd_subscriber.orders WHERE subscription = %(name)s AND name = %(follower)s RETURNING ordered)
INSERT INTO pgherd_subscriber.orders (subscription, name, ordered, state)
SELECT %(name)s, %(follower)s || ' ' || (d.ordered->>'revision'), d.ordered, 'ended' FROM d ON CONFLICT DO NOTHING

-- name: forget_ended
DELETE FROM pgherd_subscriber.orders
 WHERE subscription = %(name)s AND ordered->>'name' = %(follower)s AND state = 'ended' AND (ordered->'revision')::int8 = %(revision)s

-- name: report
UPDATE pgherd_subscriber.orders
   SET revision = %(revision)s, needed = coalesce(%(needed)s, needed), state = %(state)s, reason = %(reason)s, tables = %(tables)s,
       begins = %(begins)s, seen = greatest(seen, clock_timestamp() - make_interval(secs => %(age_s)s))
 WHERE subscription = %(name)s AND name = %(follower)s AND (ordered->'revision')::int8 = %(revision)s AND state <> 'ended'
