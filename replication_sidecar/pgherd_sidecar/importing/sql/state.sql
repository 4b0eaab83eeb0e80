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
    began timestamptz NOT NULL,
    part pg_lsn,                  -- where a transaction ends of which a part is here,
    part_changes int8             -- of so many changes
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
       s.began, s.committed, to_jsonb(s) ->> 'part' AS part, -- an import may be older than these columns
       (to_jsonb(s) ->> 'part_changes')::int8 AS part_changes
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
 WHERE id = 1 AND run = %(run)s AND version = %(version)s AND phase <> 'done' -- which is the end

-- name: advance_part
UPDATE pgherd_import.state
   SET version = version + 1, position = coalesce(%(position)s, position), committed = coalesce(%(committed)s, committed),
       part = %(part)s, part_changes = %(part_changes)s
 WHERE id = 1 AND run = %(run)s AND version = %(version)s AND phase <> 'done'

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

-- What users have made in this database; schedules of maintenance, sets and subscriptions are no reason against an import.
-- name: contents
SELECT format('%I.%I', n.nspname, c.relname) AS name
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p', 'v', 'm', 'S', 'f')
   AND n.nspname NOT LIKE E'pg\\_%' AND n.nspname NOT IN ('information_schema', 'pgherd', 'pgherd_gen', 'pgherd_import', 'pgherd_maintenance',
                                                               'pgherd_subscriptions')
   AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e')
 ORDER BY 1 LIMIT 1

-- name: own_roles
SELECT r.rolname AS name FROM pg_roles r

-- name: extensions
SELECT e.name FROM pg_available_extensions e

-- name: collations
SELECT k.collname AS name FROM pg_collation k, pg_database d
 WHERE d.datname = current_database() AND k.collnamespace = 'pg_catalog'::regnamespace AND k.collencoding IN (-1, d.encoding)

-- The database's own collation, asked of the source, too: PostgreSQL 12 to 18. `sorts`: the same for all that sort alike.
-- name: default_collation
SELECT concat_ws(' ', CASE k.provider WHEN 'i' THEN 'ICU' WHEN 'b' THEN 'builtin' END, k.locale,
                 CASE WHEN k.provider = 'c' AND d.datctype <> d.datcollate THEN format('(characters: %s)', d.datctype) END) AS name,
       CASE WHEN k.provider = 'b' OR k.provider = 'c' AND k.locale ~ '^(C|POSIX)([.]|$)' THEN 'C'
            ELSE k.provider || ' ' || k.locale END AS sorts
  FROM pg_database d
 CROSS JOIN LATERAL (SELECT to_jsonb(d) AS words) j
 CROSS JOIN LATERAL (
       SELECT coalesce(j.words ->> 'datlocprovider', 'c') AS provider,
              regexp_replace(coalesce(j.words ->> 'datlocale', j.words ->> 'daticulocale', d.datcollate),
                             '[.]utf-?8$', '.UTF-8', 'i') AS locale) k
 WHERE d.datname = current_database()

-- What goes with schemas, extensions and roles of an import though the import has not made it: `abort` drops with CASCADE.
-- Followed as PostgreSQL does: whoever depends on something goes with it, and a part takes its whole along.
-- name: others
WITH RECURSIVE made AS MATERIALIZED (SELECT n.oid FROM pg_namespace n WHERE n.nspname = ANY (%(schemas)s)),
gone (classid, objid, objsubid) AS (
    (SELECT 'pg_namespace'::regclass::oid, m.oid, 0 FROM made m
      UNION ALL
     SELECT 'pg_extension'::regclass, e.oid, 0 FROM pg_extension e WHERE e.extname = ANY (%(extensions)s)
      UNION ALL
     SELECT s.classid, s.objid, s.objsubid FROM pg_shdepend s
       JOIN pg_roles r ON s.refclassid = 'pg_authid'::regclass AND r.oid = s.refobjid AND r.rolname = ANY (%(roles)s)
       JOIN pg_database d ON d.oid = s.dbid AND d.datname = current_database()
      WHERE s.deptype = 'o')
    UNION
    SELECT n.* FROM gone g CROSS JOIN LATERAL (
        SELECT d.classid, d.objid, d.objsubid FROM pg_depend d
         WHERE d.refclassid = g.classid AND d.refobjid = g.objid AND g.objsubid IN (0, d.refobjsubid)
        UNION ALL
        SELECT d.refclassid, d.refobjid, d.refobjsubid FROM pg_depend d
         WHERE d.classid = g.classid AND d.objid = g.objid AND d.deptype IN ('i', 'e')) n),
parts AS (
    SELECT g.*, CASE g.classid WHEN 'pg_class'::regclass THEN g.objid
                    WHEN 'pg_rewrite'::regclass THEN (SELECT w.ev_class FROM pg_rewrite w WHERE w.oid = g.objid)
                    WHEN 'pg_attrdef'::regclass THEN (SELECT x.adrelid FROM pg_attrdef x WHERE x.oid = g.objid)
                    WHEN 'pg_trigger'::regclass THEN (SELECT t.tgrelid FROM pg_trigger t WHERE t.oid = g.objid)
                    WHEN 'pg_policy'::regclass THEN (SELECT l.polrelid FROM pg_policy l WHERE l.oid = g.objid) END AS relid
      FROM gone g
     WHERE NOT EXISTS ( -- of something that is named already
               SELECT FROM pg_depend d
                 JOIN gone o ON o.classid = d.refclassid AND o.objid = d.refobjid AND o.objsubid IN (0, d.refobjsubid)
                WHERE d.classid = g.classid AND d.objid = g.objid
                  AND (d.deptype IN ('i', 'e') OR d.deptype = 'a' AND d.classid <> 'pg_class'::regclass)))
SELECT pg_describe_object(p.classid, p.objid, p.objsubid) AS name
  FROM parts p
  LEFT JOIN pg_class c ON c.oid = p.relid
  LEFT JOIN pg_proc f ON p.classid = 'pg_proc'::regclass AND f.oid = p.objid
  LEFT JOIN pg_type t ON p.classid = 'pg_type'::regclass AND t.oid = p.objid
  LEFT JOIN pg_constraint k ON p.classid = 'pg_constraint'::regclass AND k.oid = p.objid
  LEFT JOIN pg_namespace n ON n.oid = coalesce(c.relnamespace, f.pronamespace, t.typnamespace, k.connamespace,
                                               CASE p.classid WHEN 'pg_namespace'::regclass THEN p.objid END)
 WHERE CASE WHEN n.oid IS NULL THEN p.classid = 'pg_publication'::regclass
                OR p.classid = 'pg_extension'::regclass AND NOT EXISTS (
                       SELECT FROM pg_extension e WHERE e.oid = p.objid AND e.extname = ANY (%(extensions)s))
            WHEN n.oid NOT IN (SELECT m.oid FROM made m)
            THEN n.nspname NOT LIKE E'pg\\_%%' AND n.nspname NOT IN ('pgherd', 'pgherd_gen')
            WHEN p.objsubid = 0
            THEN CASE WHEN p.classid = 'pg_class'::regclass AND c.relkind IN ('r', 'p', 'v', 'm', 'S', 'c', 'f')
                      THEN format('relation %%I.%%I', n.nspname, c.relname)
                      WHEN f.oid IS NOT NULL THEN 'function ' || f.oid::regprocedure
                      WHEN t.typtype IN ('d', 'e', 'r') THEN 'type ' || t.oid::regtype
                 END NOT IN (SELECT d.object FROM pgherd_import.definitions d) END
 ORDER BY p.classid, p.objid, p.objsubid

-- With all that was acknowledged before, on any member.
-- name: writable
SELECT n.writable, pgherd.strong('5 seconds') FROM pgherd.node n
