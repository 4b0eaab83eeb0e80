-- The private schema of pgherd inside one database: state that lives in PostgreSQL because it has to
-- commit with the user's transaction, or has to be read by it under MVCC.
--
-- Installed by the sidecar, as superuser, each time it starts; every file here is idempotent.
-- Nothing in it is open to ordinary users but the few functions granted in 090_grants.sql.

CREATE SCHEMA IF NOT EXISTS pgherd;
-- One schema for generated code, so that DROP of a table's functions cannot touch anything else.
CREATE SCHEMA IF NOT EXISTS pgherd_gen;
REVOKE ALL ON SCHEMA pgherd, pgherd_gen FROM PUBLIC;

-- Rows travel as JSON, which is in UTF8. Bytes that are none would stop all members that have to read them.
DO $$
BEGIN
    IF current_setting('server_encoding') <> 'UTF8' THEN
        RAISE EXCEPTION 'the encoding of this database is %, and rows travel in UTF8', current_setting('server_encoding')
            USING ERRCODE = '55000', HINT = 'Dump it, and load it into a database that was made with ENCODING ''UTF8''.';
    END IF;
END $$;

-- Sessions find their connection to the sidecar by its name, and who may call dblink could put another one in its place. So
-- there is no dblink for users.
DO $$
DECLARE place regnamespace := (SELECT e.extnamespace FROM pg_extension e WHERE e.extname = 'dblink');
BEGIN
    IF place <> 'pgherd'::regnamespace THEN
        RAISE EXCEPTION 'the extension dblink is in the schema % of this database', place
            USING ERRCODE = '55000', HINT = 'DROP EXTENSION dblink. Replication needs it for itself.';
    END IF;
END $$;
CREATE EXTENSION IF NOT EXISTS dblink SCHEMA pgherd;

-- Which of these files were run last; written by the sidecar. One made after 090_grants.sql would be open to pg_write_all_data.
CREATE TABLE IF NOT EXISTS pgherd.installed (fingerprint text NOT NULL);

-- One row: what a transaction must know of the node it runs on.
--   epoch     one start of the sidecar; names the dblink connection, so that no session talks to a dead one
--   secret    proves to the sidecar that a message comes from certify(), not from a user of dblink
--   hook_socket  the path of the socket that hook_conninfo names, for the native module
--   piece_bytes  a transaction that writes more is sent in pieces (034_pieces.sql)
--   fingerprint_every  one of so many transactions carries a fingerprint (035_fingerprint.sql)
--   writable  false outside the primary component: the first write fails early (the fence itself is certify())
--   held      it is false only because the herd takes no writes until another database is whole: it can be copied
--   database, server_start  where the row was written: a copy of the database has the row, too (refuse_copy)
CREATE TABLE IF NOT EXISTS pgherd.node (
    only_row      bool PRIMARY KEY DEFAULT true CHECK (only_row),
    member        int  NOT NULL,
    member_name   text NOT NULL,
    slots         int  NOT NULL,
    incarnation   int8 NOT NULL,
    epoch         int8 NOT NULL,
    secret        text NOT NULL,
    hook_conninfo text NOT NULL,
    writable      bool NOT NULL,
    reason        text NOT NULL,
    piece_bytes   int8 NOT NULL DEFAULT 1048576,
    fingerprint_every int8 NOT NULL DEFAULT 1,
    held          bool NOT NULL DEFAULT false,
    hook_socket   text NOT NULL DEFAULT '',
    database      name NOT NULL DEFAULT current_database(),
    server_start  timestamptz NOT NULL DEFAULT pg_postmaster_start_time()
);

-- The commit chain: one row per local transaction or merged batch of remote writesets, written in the
-- same transaction, so that the last committed GID is exactly as durable as the rows (C8).
-- xid: of a local transaction, NULL for a batch.
CREATE TABLE IF NOT EXISTS pgherd.applied (
    gid  int8 PRIMARY KEY,
    prev int8 NOT NULL UNIQUE,
    xid  xid8
);

-- Entries that this database has come by without applying them, as an administrator has ordered. One that goes
-- beyond a skipped entry and does not know of it here has applied it, and needs a copy of one that has not.
CREATE TABLE IF NOT EXISTS pgherd.skipped (gid int8 PRIMARY KEY);

-- Captured rows, keyed by transaction. Which of the two tables a transaction uses is a function of its
-- xid (pgherd.capture_side): a side whose xids have all ended is truncated while nobody can hold a lock
-- on it. Unlogged: a crash ends the transactions too.
--   seq    the row's place in its transaction: 1, 2, 3 ... Whoever captures a row sees all earlier ones, so a
--          savepoint that is rolled back takes the last numbers away, and they are given again. PostgreSQL's own
--          cmin is no order: a row inserted and deleted by one transaction has another one there.
--          The row with 1 arms the pre-commit hook. Some sentinels stand outside this order.
--   tab    the replicated table, as a JSON string of its qualified name; '""' and 'sentinel' are explained
--          in 040_command_rows.sql
--   keys   certification keys, "k1,k2,..." in decimal (low two bits: lock mode)
--   pks    per row: hash of its primary key, mode bits clear
--   recs   per row: "I(...)", "D(...)", "U0101(...)", "T", see docs/writeset-format.md
-- A captured row is never updated or deleted: what it says is taken back by a row that is added.
DO $$
DECLARE side int;
BEGIN
    FOR side IN 0..1 LOOP
        EXECUTE format(
            'CREATE UNLOGGED TABLE IF NOT EXISTS pgherd.capture_%s (
                 xid   xid8   NOT NULL,
                 seq   int8   NOT NULL,
                 base  int8   NOT NULL,
                 tab   text   NOT NULL,
                 keys  text   NOT NULL,
                 pks   int8[] NOT NULL,
                 recs  text[] NOT NULL
             ) WITH (autovacuum_enabled = off)', side);
        EXECUTE format(
            'CREATE INDEX IF NOT EXISTS capture_%1$s_order ON pgherd.capture_%1$s (xid, seq DESC)', side);
        -- Compressing costs more than it saves on what is read once; and so its size is known without reading it.
        EXECUTE format('ALTER TABLE pgherd.capture_%s ALTER COLUMN recs SET STORAGE EXTERNAL,'
                       ' ALTER COLUMN keys SET STORAGE EXTERNAL, ALTER COLUMN pks SET STORAGE EXTERNAL', side);
    END LOOP;
END $$;

-- Tables that the user keeps local, by name: the mark is the same on all members.
--   relid  the table on this member; its name follows when it is renamed
CREATE TABLE IF NOT EXISTS pgherd.local_tables (
    name  text PRIMARY KEY,
    relid oid
);

-- This table says for which tables functions and triggers have been generated. A fingerprint tells whether a table's functions
-- have to be made anew; of its triggers there are the statements that made them, by name. `inputs`: see source_inputs().
CREATE TABLE IF NOT EXISTS pgherd.generated (
    relid       oid  PRIMARY KEY,
    fingerprint text NOT NULL,
    triggers    jsonb,
    inputs      text
);
ALTER TABLE pgherd.generated ADD COLUMN IF NOT EXISTS inputs text; -- an earlier version had none

-- 131,072 transactions on one side, then as many on the other.
CREATE OR REPLACE FUNCTION pgherd.capture_side(x xid8) RETURNS int
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN ((x::text::int8 >> 17) & 1)::int;

-- One captured statement as an item of a writeset's body.
CREATE OR REPLACE FUNCTION pgherd.item(tab text, pks int8[], recs text[]) RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE
RETURN '[' || tab || ',' || array_to_json(pks) || ',' || array_to_json(recs) || ']';

-- Advisory lock keys. Each certified transaction holds its own token until its commit is visible; its
-- successor in the total order waits for it. Far from the small numbers that applications like to lock.
CREATE OR REPLACE FUNCTION pgherd.token_of_xid(x xid8) RETURNS int8
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN x::text::int8 + 5785081970366611456;

CREATE OR REPLACE FUNCTION pgherd.token_of_batch(batch int8) RETURNS int8
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN batch + 5786207870273454080;

-- Held by the sidecar while it has the statement of a transaction in the way fail (060_apply.sql).
CREATE OR REPLACE FUNCTION pgherd.token_of_victim(x xid) RETURNS int8
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN x::text::int8 + 5783956070459768832;

-- The newest GID committed here, as this snapshot sees it. Commits become visible in GID order, so all
-- GIDs up to it are visible too. With the owner's rights, since a user may have switched row security off.
-- In PL/pgSQL, which keeps the plan: a function in SQL is planned at each call, and a command asks five times. That plan must
-- not be one for a table that was small when it was made.
CREATE OR REPLACE FUNCTION pgherd.last_gid() RETURNS int8
LANGUAGE plpgsql STABLE PARALLEL SAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
    RETURN coalesce((SELECT a.gid FROM pgherd.applied a ORDER BY a.gid DESC LIMIT 1), 0);
END $$;

CREATE OR REPLACE FUNCTION pgherd.refuse_write(reason text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'this node takes no writes: %', reason
        USING ERRCODE = '25006',
              HINT = CASE WHEN reason LIKE 'no writes since GID %' -- the sidecar's word for a herd that is held
                          THEN 'No member takes writes until an administrator has chosen: see `pgherd status`.'
                          ELSE 'Connect to a member whose state is "primary", or wait until this one has caught up.' END;
END $$;

-- Holds one row from the start of an incarnation until the server crashes, which empties unlogged tables. In
-- between xids do not come again; after it they do, until the next incarnation has begun (C12).
CREATE UNLOGGED TABLE IF NOT EXISTS pgherd.alive (
    only_row bool PRIMARY KEY DEFAULT true CHECK (only_row)
);

CREATE OR REPLACE FUNCTION pgherd.refuse_token() RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgherd.refuse_write('it is starting');
END $$;

-- Names this transaction for pgherd.transaction_status(): readable before COMMIT, because a connection
-- that dies delivers no error message. The incarnation makes a reused xid harmless (C12).
CREATE OR REPLACE FUNCTION pgherd.current_token() RETURNS text
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT coalesce((SELECT n.member || '.' || n.incarnation || '.' || pg_current_xact_id()::text
                       FROM pgherd.node n CROSS JOIN pgherd.alive), pgherd.refuse_token());
END;

-- Certification does not know what a transaction has read, so on two nodes two serializable transactions
-- could both commit although each read what the other wrote. 0A000 and not 40001: to repeat never helps.
CREATE OR REPLACE FUNCTION pgherd.refuse_serializable() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'writes at SERIALIZABLE are not supported on replicated tables'
        USING ERRCODE = '0A000',
              HINT = 'Use REPEATABLE READ or READ COMMITTED for transactions that write;'
                     ' reads at SERIALIZABLE are fine.';
END $$;

-- The base GID for a write that is captured now; says why where it must not be.
CREATE OR REPLACE FUNCTION pgherd.check_capture() RETURNS int8
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE n pgherd.node;
BEGIN
    SELECT * INTO n FROM pgherd.node;
    IF current_setting('transaction_isolation') = 'serializable' THEN
        PERFORM pgherd.refuse_serializable();
    ELSIF n.writable IS NOT TRUE THEN
        PERFORM pgherd.refuse_write(coalesce(n.reason, 'it has never been started'));
    END IF;
    RETURN pgherd.last_gid();
END $$;
