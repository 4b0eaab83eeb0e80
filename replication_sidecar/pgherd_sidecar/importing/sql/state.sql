-- How far an import is: a schema of its own in the herd, replicated as all others.

-- name: make
CREATE SCHEMA pgherd_import

-- name: make_state
CREATE TABLE pgherd_import.state (
    id int PRIMARY KEY CHECK (id = 1),
    version int8 NOT NULL,        -- how many transactions have changed this row
    run uuid NOT NULL,            -- of whom
    run_by text NOT NULL,
    phase text NOT NULL,
    source text NOT NULL,         -- connection string, without a password
    slot text NOT NULL,
    statement int4 NOT NULL,      -- so many of pgherd_import.statements have been executed
    position pg_lsn,              -- what the source committed before it is here
    committed timestamptz,        -- when it did
    roles jsonb NOT NULL,         -- those that were made here
    stopped bool NOT NULL,        -- writes at the source are
    began timestamptz NOT NULL
)

-- name: make_tables
CREATE TABLE pgherd_import.tables (
    name text PRIMARY KEY,
    run uuid NOT NULL,
    pieces int8 NOT NULL,         -- so many transactions have written rows of it
    rows int8 NOT NULL,
    copied int8 NOT NULL,         -- bytes
    done bool NOT NULL,
    since pg_lsn,                 -- what the source committed before it was copied
    changed int8 NOT NULL,        -- as the source's statistics told it in the beginning
    definition jsonb NOT NULL
)

-- name: make_statements
CREATE TABLE pgherd_import.statements (
    number int4 PRIMARY KEY,
    part text NOT NULL,
    everywhere bool NOT NULL,
    sql text NOT NULL
)

-- name: make_definitions
CREATE TABLE pgherd_import.definitions (
    object text PRIMARY KEY,
    hash text NOT NULL
)

-- name: exists
SELECT to_regclass('pgherd_import.state') IS NOT NULL AS found

-- name: read
SELECT s.version, s.run, s.run_by, s.phase, s.source, s.slot, s.statement, s.position::text, s.roles, s.stopped,
       s.began, s.committed
  FROM pgherd_import.state s

-- name: read_tables
SELECT t.name, t.run, t.pieces, t.rows, t.copied, t.done, t.since::text, t.changed, t.definition
  FROM pgherd_import.tables t ORDER BY t.name

-- name: read_statements
SELECT t.number, t.part, t.everywhere, t.sql FROM pgherd_import.statements t ORDER BY t.number

-- name: read_definitions
SELECT d.object, d.hash FROM pgherd_import.definitions d

-- name: begin
INSERT INTO pgherd_import.state
VALUES (1, 1, %(run)s, %(run_by)s, 'begun', %(source)s, %(slot)s, 0, NULL, NULL, %(roles)s, false, now())

-- name: add_table
INSERT INTO pgherd_import.tables VALUES (%(name)s, %(run)s, 0, 0, 0, false, NULL, %(changed)s, %(definition)s)

-- name: add_statement
INSERT INTO pgherd_import.statements VALUES (%(number)s, %(part)s, %(everywhere)s, %(sql)s)

-- name: add_definition
INSERT INTO pgherd_import.definitions VALUES (%(object)s, %(hash)s)

-- name: take
UPDATE pgherd_import.state SET run = %(run)s, run_by = %(run_by)s, version = version + 1

-- name: take_tables
UPDATE pgherd_import.tables SET run = %(run)s WHERE NOT done

-- name: advance
UPDATE pgherd_import.state
   SET version = version + 1, phase = coalesce(%(phase)s, phase), statement = coalesce(%(statement)s, statement),
       position = coalesce(%(position)s, position), committed = coalesce(%(committed)s, committed),
       stopped = coalesce(%(stopped)s, stopped)
 WHERE id = 1 AND run = %(run)s AND version = %(version)s

-- name: advance_table
UPDATE pgherd_import.tables
   SET pieces = pieces + 1, rows = rows + %(rows)s, copied = copied + %(bytes)s, done = %(done)s, since = %(since)s
 WHERE name = %(name)s AND run = %(run)s AND pieces = %(pieces)s AND NOT done

-- name: restart_table
UPDATE pgherd_import.tables SET pieces = pieces + 1, rows = 0, copied = 0, since = NULL
 WHERE name = %(name)s AND run = %(run)s AND pieces = %(pieces)s AND NOT done

-- name: read_table
SELECT t.run, t.pieces, t.done FROM pgherd_import.tables t WHERE t.name = %(name)s

-- name: leave
DROP SCHEMA IF EXISTS pgherd_import CASCADE

-- What users have made in this database.
-- name: contents
SELECT format('%I.%I', n.nspname, c.relname) AS name
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p', 'v', 'm', 'S', 'f')
   AND n.nspname NOT LIKE E'pg\\_%' AND n.nspname NOT IN ('information_schema', 'pgherd', 'pgherd_gen', 'pgherd_import')
   AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e')
 ORDER BY 1 LIMIT 1

-- name: own_roles
SELECT r.rolname AS name FROM pg_roles r

-- name: extensions
SELECT e.name FROM pg_available_extensions e

-- name: collations
SELECT k.collname AS name FROM pg_collation k, pg_database d
 WHERE d.datname = current_database() AND k.collnamespace = 'pg_catalog'::regnamespace AND k.collencoding IN (-1, d.encoding)

-- What was made by an import, for `abort`.
-- name: schemas
SELECT n.nspname AS name FROM pg_namespace n
 WHERE n.nspname NOT LIKE E'pg\\_%' AND n.nspname NOT IN ('information_schema', 'pgherd', 'pgherd_gen', 'public')

-- With all that was acknowledged before, on any member.
-- name: writable
SELECT n.writable, pgherd.strong('5 seconds') FROM pgherd.node n
