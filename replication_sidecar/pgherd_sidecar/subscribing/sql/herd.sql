-- Sets and subscriptions: a schema of its own in the herd, replicated as all others.

-- name: exists
SELECT pgherd.keeps_subscriptions() AS found

-- name: make_schema
CREATE SCHEMA pgherd_subscriptions

-- name: make_set
CREATE TABLE pgherd_subscriptions.set (name text PRIMARY KEY)

-- name: make_set_table
CREATE TABLE pgherd_subscriptions.set_table (
    set text REFERENCES pgherd_subscriptions.set ON DELETE CASCADE,
    tab text,                     -- as pgherd.present_shapes names it
    PRIMARY KEY (set, tab)
)

-- name: make_subscription
CREATE TABLE pgherd_subscriptions.subscription (
    name text PRIMARY KEY,
    set text NOT NULL REFERENCES pgherd_subscriptions.set,
    dsn text NOT NULL,            -- how members reach the subscriber, with its password
    generation int8 NOT NULL,     -- another one: everything is to be copied anew
    keep_bytes int8 NOT NULL,     -- so much of the log is kept for it
    keep_s float8 NOT NULL,       -- for so long since it was reached last
    confirmed int8,               -- it shows this GID or a later one
    stopped text                  -- why it is not fed
)

-- The members that can't feed a subscription, each by its own word.
-- name: make_unable
CREATE TABLE pgherd_subscriptions.unable (
    subscription text,
    member text,
    generation int8 NOT NULL,
    why text NOT NULL,
    PRIMARY KEY (subscription, member)
)

-- name: make_set_sequence
CREATE TABLE pgherd_subscriptions.set_sequence (
    set text REFERENCES pgherd_subscriptions.set ON DELETE CASCADE,
    seq text,                     -- schema.sequence, quoted where SQL needs it
    PRIMARY KEY (set, seq)
)

-- Of each subscription the provider of its subscriber.
-- name: make_cascade
CREATE TABLE pgherd_subscriptions.cascade (
    subscription text PRIMARY KEY REFERENCES pgherd_subscriptions.subscription ON DELETE CASCADE,
    provider text REFERENCES pgherd_subscriptions.subscription (name),  -- NULL: the members
    forward bool NOT NULL,        -- it keeps what it gets, for others
    revision int8 NOT NULL        -- grows with each order
)

-- What of a table a set has, where that is not the whole table.
-- name: make_selection
CREATE TABLE pgherd_subscriptions.selection (
    set text,
    tab text,
    columns text[],               -- that subscribers get; NULL: all
    condition text,               -- of the rows that they get; NULL: all
    reads text[] NOT NULL,        -- columns that the condition reads
    PRIMARY KEY (set, tab),
    FOREIGN KEY (set, tab) REFERENCES pgherd_subscriptions.set_table ON DELETE CASCADE
)

-- Who hands orders down a cascade may learn of an end late, when the name has a later meaning.
-- name: make_ended
CREATE TABLE IF NOT EXISTS pgherd_subscriptions.ended (
    set text REFERENCES pgherd_subscriptions.set ON DELETE CASCADE,
    subscription text,
    revision int8 NOT NULL,       -- orders of this name up to here have ended
    silent int8 NOT NULL,         -- of those up to here the subscribers stay as they are (--herd-only)
    PRIMARY KEY (set, subscription)
)

-- name: keeps_ends
SELECT to_regclass('pgherd_subscriptions.ended') IS NOT NULL AS found

-- name: ends
SELECT e.set, e.subscription AS name, e.revision, e.silent FROM pgherd_subscriptions.ended e

-- name: note_end
INSERT INTO pgherd_subscriptions.ended AS e
SELECT b.set, b.name, c.revision, CASE WHEN %(silent)s THEN c.revision ELSE 0 END
  FROM pgherd_subscriptions.subscription b JOIN pgherd_subscriptions.cascade c ON c.subscription = b.name WHERE b.name = %(name)s
    ON CONFLICT (set, subscription) DO UPDATE SET revision = excluded.revision, silent = greatest(e.silent, excluded.silent)

-- A set that goes to a subscriber, or has gone.
-- name: make_move
CREATE TABLE pgherd_subscriptions.move (
    set text PRIMARY KEY REFERENCES pgherd_subscriptions.set ON DELETE CASCADE,
    subscription text NOT NULL,
    state text NOT NULL           -- moving, undoing or moved
)

-- Keeps writes away from the tables of such a set; the argument is its name. This herd may follow the new origin: who feeds
-- it has to own the tables, and says so. An owner who does the same by hand is not kept away.
-- name: make_refusal
CREATE OR REPLACE FUNCTION pgherd_subscriptions.refuse() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('pgherd_subscriber.feeding', true) = 'on'
       AND pg_has_role((SELECT c.relowner FROM pg_class c WHERE c.oid = TG_RELID), 'USAGE') THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION 'table %.% takes no writes here: its set % moves to a subscriber', TG_TABLE_SCHEMA, TG_TABLE_NAME, TG_ARGV[0]
        USING ERRCODE = 'read_only_sql_transaction', HINT = 'Write to that server, or repeat it if the move is undone.';
END $$

-- name: move
SELECT m.set, m.subscription, m.state FROM pgherd_subscriptions.move m WHERE m.set = %(name)s

-- name: begin_move
INSERT INTO pgherd_subscriptions.move VALUES (%(name)s, %(subscription)s, 'moving')

-- An order that ends the subscription writes this row, too: one of the two transactions loses, and looks again.
-- name: keep_subscription
UPDATE pgherd_subscriptions.subscription SET stopped = stopped WHERE name = %(subscription)s

-- name: undo_move
UPDATE pgherd_subscriptions.move SET state = 'undoing' WHERE set = %(name)s AND state = 'moving'

-- name: moved
UPDATE pgherd_subscriptions.move SET state = 'moved' WHERE set = %(name)s

-- name: end_move
DELETE FROM pgherd_subscriptions.move WHERE set = %(name)s

-- Tables with their partitions.
-- name: relations
SELECT n.nspname AS schema, c.relname AS relation
  FROM pgherd.present_shapes p CROSS JOIN LATERAL pgherd.partitions(p.relid) q
  JOIN pg_class c ON c.oid = q.relid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE p.tab = ANY (%(names)s) ORDER BY 1, 2

-- One of them whose rows are also written through a table that it inherits from and that is not among them.
-- name: inheriting
SELECT p.tab, i.inhparent::regclass::text AS parent
  FROM pgherd.present_shapes p CROSS JOIN LATERAL pgherd.partitions(p.relid) q
  JOIN pg_inherits i ON i.inhrelid = q.relid
 WHERE p.tab = ANY (%(names)s) AND NOT EXISTS (
       SELECT FROM pgherd.present_shapes o CROSS JOIN LATERAL pgherd.partitions(o.relid) s
        WHERE o.tab = ANY (%(names)s) AND s.relid = i.inhparent) ORDER BY 1, 2 LIMIT 1

-- Those that take no writes because of a move.
-- name: locked
SELECT n.nspname AS schema, c.relname AS relation
  FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE t.tgfoid = to_regprocedure('pgherd_subscriptions.refuse()') AND NOT t.tgisinternal
   AND t.tgargs = convert_to(%(name)s, 'UTF8') || '\x00'::bytea ORDER BY 1, 2

-- Members of pg_read_all_data would see passwords, and those of pg_write_all_data write what superusers execute.
-- name: unprotected
SELECT format('%I', c.relname) AS name FROM pg_class c
 WHERE c.relnamespace = to_regnamespace('pgherd_subscriptions') AND c.relkind = 'r' AND NOT c.relrowsecurity ORDER BY 1

-- name: add_sequence
INSERT INTO pgherd_subscriptions.set_sequence VALUES (%(name)s, %(seq)s) ON CONFLICT DO NOTHING

-- name: remove_sequence
DELETE FROM pgherd_subscriptions.set_sequence WHERE set = %(name)s AND seq = %(seq)s

-- Sequences whose numbers the log tells: those that a column of a table owns. `last` is this member's last number.
-- name: sequences
SELECT format('%I.%I', n.nspname, c.relname) AS name, n.nspname AS schema, c.relname AS relation, p.tab, a.attname AS column,
       format_type(s.seqtypid, NULL) AS type, coalesce(q.step, s.seqincrement) AS step, s.seqmin AS least, s.seqmax AS greatest,
       pg_sequence_last_value(c.oid) AS last
  FROM pgherd.user_sequences u
  JOIN pg_class c ON c.oid = u.relid
  JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_sequence s ON s.seqrelid = u.relid
  JOIN pgherd.present_shapes p ON p.relid = u.owner
  JOIN pg_attribute a ON a.attrelid = u.owner AND a.attnum = u.owner_column
  LEFT JOIN pgherd.sequences q ON q.relid = u.relid
 WHERE a.atttypid = ANY ('{int2, int4, int8}'::regtype[]) ORDER BY 1

-- name: unable
SELECT u.member, u.why FROM pgherd_subscriptions.unable u
 WHERE u.subscription = %(name)s AND u.generation = %(generation)s ORDER BY 1

-- name: become_unable
INSERT INTO pgherd_subscriptions.unable VALUES (%(name)s, %(member)s, %(generation)s, %(why)s)
    ON CONFLICT (subscription, member) DO UPDATE SET generation = excluded.generation, why = excluded.why

-- name: become_able
DELETE FROM pgherd_subscriptions.unable WHERE subscription = %(name)s AND member = %(member)s

-- name: all_able
DELETE FROM pgherd_subscriptions.unable WHERE subscription = %(name)s

-- name: tables_like
SELECT p.tab AS name FROM pgherd.present_shapes p JOIN pgherd.replicated_tables r ON r.relid = p.relid
 WHERE p.tab NOT LIKE 'pgherd\_%' ORDER BY 1

-- A connection string may hold a password.
-- name: not_logged
SET LOCAL log_parameter_max_length = 0

-- name: sets
SELECT s.name, array(SELECT t.tab FROM pgherd_subscriptions.set_table t WHERE t.set = s.name ORDER BY 1) AS tables,
       pgherd.sequences_of_set(s.name) AS sequences, pgherd.selections_of_set(s.name) AS selections,
       array(SELECT b.name FROM pgherd_subscriptions.subscription b WHERE b.set = s.name ORDER BY 1) AS subscriptions
  FROM pgherd_subscriptions.set s ORDER BY 1

-- name: add_set
INSERT INTO pgherd_subscriptions.set VALUES (%(name)s)

-- name: add_table
INSERT INTO pgherd_subscriptions.set_table VALUES (%(name)s, %(tab)s) ON CONFLICT DO NOTHING

-- name: remove_table
DELETE FROM pgherd_subscriptions.set_table WHERE set = %(name)s AND tab = %(tab)s

-- name: select
INSERT INTO pgherd_subscriptions.selection VALUES (%(name)s, %(tab)s, %(columns)s, %(condition)s, %(reads)s)
    ON CONFLICT (set, tab) DO UPDATE SET columns = excluded.columns, condition = excluded.condition, reads = excluded.reads

-- name: select_all
DELETE FROM pgherd_subscriptions.selection WHERE set = %(name)s AND tab = %(tab)s

-- What a publication has that was made for this.
-- name: selected
SELECT r.prrelid::regclass::text AS named, p.tab, coalesce(p.key, '{}') AS key, coalesce(p.generated, '{}') AS generated,
       (SELECT array_agg(a.attname::text ORDER BY a.attnum) FROM pg_attribute a
         WHERE a.attrelid = r.prrelid AND a.attnum = ANY (r.prattrs::int2[])) AS columns,
       pg_get_expr(r.prqual, r.prrelid) AS condition,
       array(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = r.prrelid AND a.attnum IN (
                SELECT m[1]::int FROM regexp_matches(r.prqual::text, ':varattno (\d+)', 'g') m) ORDER BY a.attnum) AS reads,
       array(SELECT a.attname::text FROM pgherd.columns(r.prrelid) c
               JOIN pg_attribute a ON a.attrelid = r.prrelid AND quote_ident(a.attname) = c.col
              WHERE c.in_pk OR c.in_unique) AS whole
  FROM pg_publication b JOIN pg_publication_rel r ON r.prpubid = b.oid
  LEFT JOIN pgherd.replicated_tables t ON t.relid = r.prrelid
  LEFT JOIN pgherd.present_shapes p ON p.relid = t.relid
 WHERE b.pubname = %(publication)s
 UNION ALL
SELECT n.nspname, NULL, '{}', '{}', NULL, NULL, '{}', '{}'
  FROM pg_publication b JOIN pg_publication_namespace s ON s.pnpubid = b.oid JOIN pg_namespace n ON n.oid = s.pnnspid
 WHERE b.pubname = %(publication)s ORDER BY 2

-- name: drop_set
DELETE FROM pgherd_subscriptions.set WHERE name = %(name)s

-- In one statement: who sees an order without its provider would feed it himself.
-- name: subscriptions
SELECT b.name, b.set, b.dsn, b.generation, b.keep_bytes, b.keep_s, b.confirmed, b.stopped,
       array(SELECT t.tab FROM pgherd_subscriptions.set_table t WHERE t.set = b.set ORDER BY 1) AS tables,
       pgherd.sequences_of_set(b.set) AS sequences, pgherd.selections_of_set(b.set) AS selections,
       c.provider, c.forward, c.revision
  FROM pgherd_subscriptions.subscription b JOIN pgherd_subscriptions.cascade c ON c.subscription = b.name ORDER BY 1

-- A GID as the first revision: a subscription that had this name before had smaller ones.
-- name: order_cascade
INSERT INTO pgherd_subscriptions.cascade AS c VALUES (%(name)s, %(provider)s, %(forward)s, pgherd.last_gid())
    ON CONFLICT (subscription) DO UPDATE SET provider = excluded.provider, forward = excluded.forward,
       revision = greatest(c.revision + 1, excluded.revision)

-- Whoever feeds a subscriber by an order from before a change of its set leaves.
-- name: order_anew
UPDATE pgherd_subscriptions.cascade SET revision = greatest(revision + 1, pgherd.last_gid())
 WHERE subscription IN (SELECT b.name FROM pgherd_subscriptions.subscription b WHERE b.set = %(name)s)

-- name: hand_over
UPDATE pgherd_subscriptions.cascade SET provider = %(provider)s, revision = greatest(revision + 1, pgherd.last_gid())
 WHERE provider = %(name)s

-- Later than what an earlier subscription of that name may have left at the subscriber (--herd-only): each order of a
-- generation took a GID, too.
-- name: subscribe
INSERT INTO pgherd_subscriptions.subscription
VALUES (%(name)s, %(set)s, %(dsn)s, greatest(pgherd.last_gid(), 1), %(keep_bytes)s, %(keep_s)s, NULL, NULL)

-- The log may be gone from behind the GID that a copy before has confirmed.
-- name: resume
UPDATE pgherd_subscriptions.subscription
   SET dsn = %(dsn)s, stopped = NULL, generation = generation + %(anew)s::int, keep_bytes = %(keep_bytes)s, keep_s = %(keep_s)s,
       confirmed = CASE WHEN %(anew)s THEN NULL ELSE confirmed END
 WHERE name = %(name)s

-- name: unsubscribe
DELETE FROM pgherd_subscriptions.subscription WHERE name = %(name)s

-- name: stop
UPDATE pgherd_subscriptions.subscription SET stopped = %(reason)s
 WHERE name = %(name)s AND generation = %(generation)s AND dsn = %(dsn)s AND stopped IS NULL

-- name: confirm
UPDATE pgherd_subscriptions.subscription SET confirmed = %(gid)s
 WHERE name = %(name)s AND generation = %(generation)s

-- name: visible
SELECT pgherd.last_gid() AS gid

-- Everything that was acknowledged anywhere is here now.
-- name: strong
SELECT pgherd.strong()

-- What a member has of tables: how to make and fill them elsewhere. `image` is another one after DDL and TRUNCATE.
-- name: describe
SELECT c.oid::int8 AS relid, p.tab AS name, n.nspname AS schema, c.relname AS relation, 0::int8 AS bytes, a.columns,
       CASE WHEN cardinality(p.key) > 0 THEN 'key' ELSE 'full' END AS identity,
       (SELECT coalesce(json_agg(u.pos - 1 ORDER BY array_position(p.key, u.attname::text)), '[]')
          FROM (SELECT a.attname, row_number() OVER (ORDER BY a.attnum) AS pos FROM pg_attribute a
                 WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
                   AND (NOT %(columns)s ? p.tab OR %(columns)s -> p.tab ? a.attname::text)) u
         WHERE u.attname::text = ANY (p.key)) AS key,
       (SELECT coalesce(json_agg(json_build_object(
                   'operator', format('%%I.%%s', os.nspname, o.oprname),
                   'base', format_type(nullif(pgherd.base_type(k.atttypid), k.atttypid), -1))
                   ORDER BY array_position(p.key, k.attname::text)), '[]')
          FROM pgherd.index_columns(pgherd.identity_index(c.oid), 'n') i
          JOIN pg_attribute k ON k.attrelid = c.oid AND k.attnum = i.attnum
          JOIN pg_operator o ON o.oid = i.equality JOIN pg_namespace os ON os.oid = o.oprnamespace
         WHERE NOT %(columns)s ? p.tab OR %(columns)s -> p.tab ? k.attname::text) AS equality,
       cardinality(p.key) AS key_columns, c.relkind = 'p' AS parts, p.types,
       a.declared || CASE WHEN cardinality(p.key) = 0 THEN '' ELSE
           format(', PRIMARY KEY (%%s)', (SELECT string_agg(quote_ident(k), ', ' ORDER BY o) FROM unnest(p.key) WITH ORDINALITY AS u(k, o)))
           END AS declared,
       a.image || (WITH RECURSIVE part(relid, relfilenode) AS (
              SELECT c.oid, c.relfilenode
               UNION ALL
              SELECT i.inhrelid, q.relfilenode FROM part JOIN pg_inherits i ON i.inhparent = part.relid JOIN pg_class q ON q.oid = i.inhrelid)
           SELECT string_agg(concat_ws(' ', part.relid, part.relfilenode), ',' ORDER BY part.relid) FROM part) AS image
  FROM pgherd.present_shapes p
  JOIN pgherd.replicated_tables r ON r.relid = p.relid
  JOIN pg_class c ON c.oid = p.relid
  JOIN pg_namespace n ON n.oid = c.relnamespace
 CROSS JOIN LATERAL (
       SELECT coalesce(json_agg(json_build_object(
                  'name', a.attname, 'type', format_type(a.atttypid, -1), 'oid', a.atttypid::int8, 'modifier', a.atttypmod,
                  'generated', a.attgenerated <> '',
                  'as_text', t.typcategory IN ('A', 'C') OR t.typarray = 0 OR t.typdelim <> ',') ORDER BY a.attnum)
                  FILTER (WHERE NOT %(columns)s ? p.tab OR %(columns)s -> p.tab ? a.attname::text), '[]') AS columns,
              string_agg(format('%%I %%s', a.attname, format_type(a.atttypid, a.atttypmod))
                  || CASE WHEN a.attcollation <> t.typcollation THEN format(' COLLATE %%I.%%I', s.nspname, l.collname) ELSE '' END
                  || CASE WHEN a.attgenerated <> '' THEN format(' GENERATED ALWAYS AS (%%s) STORED', pg_get_expr(d.adbin, d.adrelid))
                          WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END, ', ' ORDER BY a.attnum)
                  FILTER (WHERE NOT %(columns)s ? p.tab OR %(columns)s -> p.tab ? a.attname::text) AS declared,
              string_agg(concat_ws(' ', a.attnum, a.attname, a.atttypid, a.atttypmod, a.attgenerated, a.attmissingval), ',' ORDER BY a.attnum) AS image
         FROM pg_attribute a
         JOIN pg_type t ON t.oid = a.atttypid
         LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
         LEFT JOIN pg_collation l ON l.oid = a.attcollation
         LEFT JOIN pg_namespace s ON s.oid = l.collnamespace
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) a
 WHERE p.tab = ANY (%(names)s) ORDER BY 2

-- Types of the columns that row filters read, as a cast has them. Those of users are left out: a superuser reads the rows,
-- and would run the functions of their casts and domains.
-- name: read_types
SELECT p.tab, array(SELECT format_type(b.atttypid, b.atttypmod)
                    || CASE WHEN b.attcollation = 0 THEN '' ELSE format(' COLLATE %%I.%%I', bs.nspname, bl.collname) END
               FROM jsonb_array_elements_text(%(reads)s -> p.tab) WITH ORDINALITY AS u(col, o)
               JOIN pg_attribute b ON b.attrelid = p.relid AND b.attname = u.col AND b.attnum > 0 AND NOT b.attisdropped
               LEFT JOIN pg_collation bl ON bl.oid = b.attcollation
               LEFT JOIN pg_namespace bs ON bs.oid = bl.collnamespace
              WHERE b.atttypid < 16384 ORDER BY u.o) AS types
  FROM pgherd.present_shapes p WHERE %(reads)s ? p.tab

-- Its id.
-- name: cluster
SELECT s.cluster_id AS cluster FROM pgherd.recovery_source s

-- This herd may follow others itself.
-- name: follows
SELECT to_regclass('pgherd_subscriber.tables') IS NOT NULL AS found

-- An ordinary role owns these: COPY reads no view, and evaluates nothing.
-- name: followed_tables
COPY pgherd_subscriber.tables (tab, subscription) TO STDOUT

-- name: followed_by
COPY pgherd_subscriber.standing (subscription, revision) TO STDOUT

-- name: has_turns
SELECT to_regclass('pgherd_subscriber.turn') IS NOT NULL AS found

-- name: turns
COPY pgherd_subscriber.turn (subscription, holder) TO STDOUT
