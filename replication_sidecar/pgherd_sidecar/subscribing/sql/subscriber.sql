-- What a subscriber holds beside the tables themselves: a schema that the subscribing role owns.

-- name: look
SELECT current_setting('server_version_num')::int AS version, pg_is_in_recovery() AS standby,
       to_regnamespace('pgherd') IS NOT NULL AS herd, to_regnamespace('pgherd_subscriber') IS NOT NULL AS made,
       to_regclass('pgherd_subscriber.standing') IS NOT NULL AS ready,
       has_database_privilege(current_database(), 'CREATE') AS may_create, current_user AS role,
       EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolsuper AND pg_catalog.pg_has_role(session_user, r.oid, 'MEMBER')) AS superuser,
       to_regclass('pgherd_subscriber.turn') IS NOT NULL AND to_regclass('pgherd_subscriber.beat') IS NOT NULL AS turned

-- Of two who make a schema, or what is in it, the second waits for the first one's end, and then finds it. CREATE fails
-- where it is made at the same time, and so does IF NOT EXISTS.
-- name: lock_schema
SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('pgherd schema ' || %(schema)s, 0))

-- name: make_schema
CREATE SCHEMA pgherd_subscriber

-- name: make_standing
CREATE TABLE IF NOT EXISTS pgherd_subscriber.standing (
    subscription text PRIMARY KEY,
    cluster text NOT NULL,        -- the herd
    generation int8 NOT NULL,     -- of the copy that is followed or being made
    gid int8,                     -- its tables are as the herd's were at this GID
    as_of timestamptz,            -- the herd had nothing newer then
    revision int8 NOT NULL        -- of the order by which it is fed
)

-- name: make_tables
CREATE TABLE IF NOT EXISTS pgherd_subscriber.tables (
    subscription text NOT NULL REFERENCES pgherd_subscriber.standing ON DELETE CASCADE,
    tab text NOT NULL,            -- as the herd names it
    staged bool NOT NULL,         -- it was copied, and is not shown yet
    generation int8 NOT NULL,
    gid int8 NOT NULL,            -- of the copy; once it is shown: since when it is
    definition jsonb NOT NULL,
    parts bool NOT NULL,          -- its rows are in partitions in the herd
    PRIMARY KEY (subscription, tab, staged)
)

-- Keeps those away who write by mistake: whoever owns the table can do as he likes.
-- name: make_guard
CREATE OR REPLACE FUNCTION pgherd_subscriber.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF pg_catalog.current_setting('pgherd_subscriber.feeding', true) = 'on' THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION 'table %.% follows a herd and takes no writes here', TG_TABLE_SCHEMA, TG_TABLE_NAME
        USING ERRCODE = 'read_only_sql_transaction', HINT = 'Write to the herd, or end the subscription with pgherd unsubscribe.';
END $$

-- Whose turn it is at a herd, where an advisory lock holds at one member only. Each transaction that feeds writes the row.
-- name: make_turn
CREATE TABLE IF NOT EXISTS pgherd_subscriber.turn (
    subscription text PRIMARY KEY,
    turn int8 NOT NULL,           -- grows with each one who takes it
    holder text NOT NULL,         -- who that is; empty: he has left
    place text NOT NULL           -- number of the member where he has the advisory lock
)

-- name: make_beat
CREATE TABLE IF NOT EXISTS pgherd_subscriber.beat (
    subscription text PRIMARY KEY REFERENCES pgherd_subscriber.turn ON DELETE CASCADE,
    turn int8 NOT NULL,
    number int8 NOT NULL          -- grows as long as he is alive
)

-- name: place
SELECT split_part(pgherd.current_token(), '.', 1) AS place

-- name: turn
SELECT t.turn, t.holder, t.place, b.number FROM pgherd_subscriber.turn t LEFT JOIN pgherd_subscriber.beat b USING (subscription, turn)
 WHERE t.subscription = %(name)s

-- name: first_turn
INSERT INTO pgherd_subscriber.turn VALUES (%(name)s, 1, %(holder)s, %(place)s) RETURNING turn

-- name: take_turn
UPDATE pgherd_subscriber.turn SET turn = turn + 1, holder = %(holder)s, place = %(place)s
 WHERE subscription = %(name)s AND turn = %(turn)s RETURNING turn

-- name: hold_turn
UPDATE pgherd_subscriber.turn SET turn = turn WHERE subscription = %(name)s AND turn = %(turn)s

-- name: leave_turn
UPDATE pgherd_subscriber.turn SET holder = '' WHERE subscription = %(name)s AND turn = %(turn)s

-- name: forget_turn
DELETE FROM pgherd_subscriber.turn WHERE subscription = %(name)s

-- name: beat
INSERT INTO pgherd_subscriber.beat AS b VALUES (%(name)s, %(turn)s, 1)
    ON CONFLICT (subscription) DO UPDATE SET turn = excluded.turn, number = b.number + 1

-- Everything that any member has acknowledged is visible here.
-- name: strong
SELECT pgherd.strong()

-- name: unlock
SELECT pg_catalog.pg_advisory_unlock(pg_catalog.hashtextextended('pgherd subscription ' || %(name)s, 0))

-- name: lock
SELECT pg_catalog.pg_try_advisory_lock(pg_catalog.hashtextextended('pgherd subscription ' || %(name)s, 0)) AS locked

-- name: wait_lock
SELECT pg_catalog.pg_advisory_lock(pg_catalog.hashtextextended('pgherd subscription ' || %(name)s, 0))

-- No feeder takes it.
-- name: lock_failover
SELECT pg_catalog.pg_try_advisory_lock(pg_catalog.hashtextextended('pgherd failover ' || %(name)s, 0)) AS locked

-- name: begin
INSERT INTO pgherd_subscriber.standing VALUES (%(name)s, %(cluster)s, %(generation)s, NULL, NULL, %(revision)s)
    ON CONFLICT DO NOTHING

-- The feeder of an earlier order finds it with its next transaction, and leaves.
-- name: claim
UPDATE pgherd_subscriber.standing SET revision = %(revision)s
 WHERE subscription = %(name)s AND revision < %(revision)s AND cluster = coalesce(%(cluster)s::text, cluster)

-- Nobody feeds it any more, and it shows this GID: so it takes writes.
-- name: hand_over
UPDATE pgherd_subscriber.standing SET revision = %(to)s
 WHERE subscription = %(name)s AND generation = %(generation)s AND revision = %(revision)s AND gid >= %(gid)s

-- name: revision
SELECT s.revision FROM pgherd_subscriber.standing s WHERE s.subscription = %(name)s

-- name: begin_anew
UPDATE pgherd_subscriber.standing SET generation = %(generation)s WHERE subscription = %(name)s

-- name: standing
SELECT s.cluster, s.generation, s.gid, s.revision, s.as_of, pg_catalog.date_part('epoch', pg_catalog.clock_timestamp() - s.as_of) AS age_s
  FROM pgherd_subscriber.standing s WHERE s.subscription = %(name)s

-- What is here, whose ever it is, and whether somebody has the lock of those that feed.
-- name: followed
SELECT s.subscription AS name, s.gid, s.revision,
       EXISTS (SELECT FROM pgherd_subscriber.tables t WHERE t.subscription = s.subscription) AS has_tables,
       EXISTS (SELECT FROM pg_catalog.pg_locks l
                WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
                  AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database())
                  AND (l.classid::int8 << 32 | l.objid::int8)
                      = pg_catalog.hashtextextended('pgherd subscription ' || s.subscription, 0)) AS fed
  FROM pgherd_subscriber.standing s ORDER BY 1

-- The log is needed after this position.
-- name: needed
SELECT least((SELECT s.gid FROM pgherd_subscriber.standing s
               WHERE s.subscription = %(name)s AND s.generation = %(generation)s
                 AND EXISTS (SELECT FROM pgherd_subscriber.tables t
                              WHERE t.subscription = s.subscription AND t.generation = s.generation AND NOT t.staged)),
             (SELECT min(t.gid) FROM pgherd_subscriber.tables t
               WHERE t.subscription = %(name)s AND t.generation = %(generation)s AND t.staged)) AS gid

-- name: tables
SELECT t.tab, t.staged, t.generation, t.gid, t.definition, t.parts FROM pgherd_subscriber.tables t
 WHERE t.subscription = %(name)s ORDER BY 1, 2

-- Tables that other subscriptions have, and places that they have guarded and not filled yet.
-- name: others
SELECT t.subscription, t.tab FROM pgherd_subscriber.tables t
 WHERE t.subscription <> %(name)s AND t.tab = ANY (%(tables)s)
UNION ALL
SELECT s.subscription, w.tab
  FROM unnest(%(tables)s::text[]) AS w(tab)
  JOIN pg_trigger t ON t.tgrelid = to_regclass(w.tab) AND t.tgfoid = to_regprocedure('pgherd_subscriber.refuse()')
  JOIN pgherd_subscriber.standing s ON t.tgargs = convert_to(s.subscription, 'UTF8') || '\x00'::bytea
 WHERE s.subscription <> %(name)s AND s.revision < %(fenced)s
 LIMIT 1

-- Sequences that columns of tables own.
-- name: owned_sequences
SELECT format('%%I.%%I', s.nspname, c.relname) AS seq, n.nspname AS schema, r.relname AS relation, a.attname AS column, q.seqincrement AS step,
       s.nspname AS place, c.relname AS name, to_regnamespace('pgherd') IS NOT NULL AS of_herd
  FROM pg_depend d
  JOIN pg_sequence q ON q.seqrelid = d.objid JOIN pg_class c ON c.oid = d.objid JOIN pg_namespace s ON s.oid = c.relnamespace
  JOIN pg_class r ON r.oid = d.refobjid JOIN pg_namespace n ON n.oid = r.relnamespace
  JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid AND a.atttypid = ANY ('{int2, int4, int8}'::regtype[])
 WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass AND d.deptype IN ('a', 'i')
   AND d.refobjid IN (SELECT to_regclass(t.tab) FROM unnest(%(tables)s::text[]) AS t(tab)) ORDER BY 1

-- A row may have a number that the sequence never gives.
-- name: move_sequence
SELECT pg_catalog.setval(%(seq)s::regclass, %(value)s::int8) FROM pg_sequence s
 WHERE s.seqrelid = %(seq)s::regclass AND %(value)s::int8 BETWEEN s.seqmin AND s.seqmax

-- name: sequence_kind
SELECT c.relkind::text AS kind FROM pg_class c WHERE c.oid = to_regclass(%(seq)s)

-- Of another herd, which has been shut out: another one may be ordered to feed these tables. The fence stays.
-- name: fenced
SELECT t.subscription, t.tab FROM pgherd_subscriber.tables t JOIN pgherd_subscriber.standing s USING (subscription)
 WHERE s.subscription <> %(name)s AND s.cluster <> %(cluster)s AND s.revision >= %(fenced)s
   AND s.subscription IN (SELECT o.subscription FROM pgherd_subscriber.tables o WHERE o.tab = ANY (%(tables)s))

-- Tables that do not keep rows as they are written, with what to do. A herd has triggers on each table whose rows it
-- replicates.
-- name: not_plain
SELECT t.tab, CASE WHEN c.relkind = 'r' AND l.is_local THEN 'a table that is local to each member'
                   WHEN c.relkind = 'p' THEN 'a partitioned table' WHEN c.relkind <> 'r' THEN 'no table'
                   WHEN c.relpersistence <> 'p' THEN 'a table that is empty after a crash' ELSE 'a table with children' END AS kind,
       CASE WHEN c.relkind = 'r' AND l.is_local THEN 'SELECT pgherd.set_replicated(...)'
            WHEN c.relkind = 'r' AND c.relpersistence = 'u' THEN 'ALTER TABLE ... SET LOGGED' ELSE 'drop or rename it' END AS remedy
  FROM unnest(%(tables)s::text[]) AS t(tab) JOIN pg_class c ON c.oid = to_regclass(t.tab)
 CROSS JOIN LATERAL (SELECT c.relpersistence = 'p' AND to_regnamespace('pgherd') IS NOT NULL AND NOT EXISTS (
                                SELECT FROM pg_trigger g WHERE g.tgrelid = c.oid AND g.tgname LIKE 'pgherd\_%%') AS is_local) l
 WHERE c.relkind <> 'r' OR c.relpersistence <> 'p' OR l.is_local OR EXISTS (SELECT FROM pg_inherits i WHERE i.inhparent = c.oid) ORDER BY 1 LIMIT 1

-- Tables with columns that the herd has not got, or to which others refer. Their keys are equal only if their texts are.
-- name: dependent
SELECT t.tab FROM jsonb_to_recordset(%(tables)s) AS t(tab text, known jsonb, key jsonb)
 WHERE (EXISTS (SELECT FROM pg_attribute a
                 WHERE a.attrelid = to_regclass(t.tab) AND a.attnum > 0 AND NOT a.attisdropped AND NOT t.known ? a.attname::text)
        OR EXISTS (SELECT FROM pg_constraint f WHERE f.contype = 'f' AND f.confrelid = to_regclass(t.tab)))
   AND NOT EXISTS (SELECT FROM pg_attribute k
                    WHERE k.attrelid = to_regclass(t.tab) AND t.key ? k.attname::text
                      AND (k.atttypid <> ALL ('{int2,int4,int8,oid,uuid,date,timestamp,timestamptz,bool,bytea,text,varchar}'::regtype[])
                           OR EXISTS (SELECT FROM pg_collation c WHERE c.oid = k.attcollation AND NOT c.collisdeterministic)))

-- name: advance
UPDATE pgherd_subscriber.standing SET gid = %(to)s, as_of = coalesce(%(as_of)s, as_of)
 WHERE subscription = %(name)s AND generation = %(generation)s AND revision = %(revision)s AND gid IS NOT DISTINCT FROM %(from)s

-- name: stage
INSERT INTO pgherd_subscriber.tables VALUES (%(name)s, %(tab)s, true, %(generation)s, %(gid)s, %(definition)s, %(parts)s)

-- name: level
UPDATE pgherd_subscriber.tables SET gid = %(gid)s WHERE subscription = %(name)s AND staged AND gid < %(gid)s

-- The argument of a guard is its subscription.
-- name: guarded
SELECT n.nspname AS schema, c.relname AS relation, t.tgname AS guard
  FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE t.tgrelid = to_regclass(%(tab)s) AND t.tgfoid = to_regprocedure('pgherd_subscriber.refuse()')
   AND t.tgargs = convert_to(%(name)s, 'UTF8') || '\x00'::bytea

-- name: inherits
SELECT i.inhparent FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = %(schema)s AND c.relname = %(relation)s

-- Those of a subscription, but on these tables.
-- name: guards
SELECT n.nspname AS schema, c.relname AS relation, t.tgname AS guard
  FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE t.tgfoid = to_regprocedure('pgherd_subscriber.refuse()') AND t.tgargs = convert_to(%(name)s, 'UTF8') || '\x00'::bytea
   AND NOT EXISTS (SELECT FROM unnest(%(kept)s::text[]) AS k(tab) WHERE to_regclass(k.tab) = t.tgrelid)

-- Of these columns those that have to have a value.
-- name: demanding
SELECT a.attname AS name FROM pg_attribute a
 WHERE a.attrelid = to_regclass(%(tab)s) AND a.attname = ANY (%(names)s) AND a.attnotnull AND a.attidentity = '' AND NOT a.attisdropped

-- name: unstage
DELETE FROM pgherd_subscriber.tables WHERE subscription = %(name)s AND tab = %(tab)s AND staged

-- name: forget_table
DELETE FROM pgherd_subscriber.tables WHERE subscription = %(name)s AND tab = %(tab)s AND NOT staged

-- From this GID on what a subscriber forwards has the table's changes.
-- name: show_table
UPDATE pgherd_subscriber.tables SET staged = false, gid = %(gid)s WHERE subscription = %(name)s AND tab = %(tab)s AND staged

-- Tables of generation 0 belong to no order.
-- name: let_stand
UPDATE pgherd_subscriber.tables SET generation = 0
 WHERE subscription = %(name)s AND tab = ANY (%(tables)s) AND NOT staged AND generation = %(generation)s

-- name: forget_tables
DELETE FROM pgherd_subscriber.tables WHERE subscription = %(name)s

-- A later order may have claimed it meanwhile.
-- name: forget
DELETE FROM pgherd_subscriber.standing
 WHERE subscription = %(name)s AND (revision <= %(revision)s OR revision >= %(fenced)s)

-- It is another one's: of a later order, or of another herd.
-- name: later
SELECT s.revision FROM pgherd_subscriber.standing s
 WHERE s.subscription = %(name)s AND (s.revision > %(revision)s AND s.revision < %(fenced)s OR s.cluster <> %(cluster)s::text)

-- name: left
SELECT EXISTS (SELECT FROM pgherd_subscriber.standing) AS found

-- name: leave
DROP SCHEMA pgherd_subscriber CASCADE

-- name: columns
SELECT a.attname AS name, format_type(a.atttypid, -1) AS type, a.atttypmod AS modifier,
       CASE WHEN a.attgenerated <> '' THEN pg_get_expr(d.adbin, d.adrelid) END AS computed
  FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
 WHERE a.attrelid = to_regclass(%(tab)s) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
