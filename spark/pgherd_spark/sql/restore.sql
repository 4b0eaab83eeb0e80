-- What puts a snapshot into a new server, besides pg_restore. Each statement follows a line `-- name: NAME`.

-- `columns`: a list, and nothing for a table that stores none.
-- name: copy
COPY {relation} {columns} FROM STDIN (FORMAT {form});

-- CREATE EXTENSION fills some tables, and the snapshot has their rows.
-- name: of_extensions
SELECT n.nspname, c.relname
  FROM pg_depend d JOIN pg_class c ON c.oid = d.objid AND c.relkind = 'r' JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE d.classid = 'pg_class'::regclass AND d.deptype = 'e';

-- name: empty
DELETE FROM ONLY {relation};

-- Code of users that runs for each row finds what it finds without our settings.
-- name: own_path
RESET search_path;

-- As its user made it: each member takes its own share of the numbers when it begins, further than all before.
-- name: sequence
ALTER SEQUENCE {name} INCREMENT BY {step} START WITH {start};

-- The columns that take their numbers from a sequence: the one that owns it, and those whose default draws from it; and
-- which numbers it still can give, from its start on: all, and those after which each of so many members has one left.
-- name: columns_of_sequence
SELECT DISTINCT n.nspname, c.relname, a.attname,
       CASE WHEN s.seqincrement > 0 THEN s.seqstart ELSE s.seqmin END,
       CASE WHEN s.seqincrement > 0 THEN s.seqmax ELSE s.seqstart END,
       CASE WHEN s.seqincrement > 0 THEN s.seqstart
            ELSE least(s.seqmin - %(members)s * s.seqincrement::numeric, s.seqmax)::int8 END,
       CASE WHEN s.seqincrement > 0 THEN greatest(s.seqmax - %(members)s * s.seqincrement::numeric, s.seqmin)::int8
            ELSE s.seqstart END
  FROM pg_sequence s
  JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = s.seqrelid AND d.refclassid = 'pg_class'::regclass
                      AND d.deptype IN ('a', 'i')
       OR d.classid = 'pg_attrdef'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = s.seqrelid
  LEFT JOIN pg_attrdef e ON d.classid = 'pg_attrdef'::regclass AND e.oid = d.objid
  JOIN pg_attribute a ON a.attrelid = coalesce(e.adrelid, d.refobjid) AND a.attnum = coalesce(e.adnum, d.refobjsubid)
                         AND a.atttypid IN ('int2'::regtype, 'int4'::regtype, 'int8'::regtype)
  JOIN pg_class c ON c.oid = a.attrelid AND c.relkind IN ('r', 'p') AND NOT c.relispartition
  JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE s.seqrelid = %(name)s::regclass;

-- name: furthest
SELECT (SELECT {further}(t.{column}) FROM {table} t WHERE t.{column} BETWEEN {low} AND {high}),
       (SELECT {further}(t.{column}) FROM {table} t WHERE t.{column} BETWEEN {first} AND {last});

-- name: position
SELECT setval({name}::regclass, {value}, {called});

-- By oid: a view comes after what it reads from.
-- name: materialized_views
SELECT n.nspname, c.relname
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind = 'm' AND NOT c.relispopulated
 ORDER BY c.oid;

-- name: refresh
REFRESH MATERIALIZED VIEW {view};

-- name: blocks
SELECT (pg_relation_size(format('%%I.%%I', %s::text, %s::text)::regclass)
        / current_setting('block_size')::int)::int;

-- The largest first. A partitioned table's statistics are made together with its partitions'.
-- name: to_analyze
SELECT n.nspname, c.relname
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'm', 'p') AND NOT c.relispartition
 ORDER BY pg_table_size(c.oid) DESC;

-- name: analyze
ANALYZE {tables};

-- name: let_in
ALTER ROLE {role} LOGIN;

-- name: roles_there
SELECT rolname FROM pg_roles;

-- An earlier attempt may have left the role. It is one of a member if it has something in another database, too.
-- name: emptiness
SELECT (SELECT rolsuper FROM pg_roles WHERE rolname = current_user),
       to_regnamespace('pgherd') IS NOT NULL
       OR EXISTS (SELECT FROM pg_shdepend d
                   WHERE d.refclassid = 'pg_authid'::regclass AND d.refobjid = to_regrole('pgherd_apply')
                     AND d.dbid NOT IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))),
       (SELECT min(c.oid::regclass::text) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE n.nspname NOT LIKE 'pg\_%' AND n.nspname <> 'information_schema');

-- What definitions of a member's grant and revoke, besides what its users have.
-- name: make_plain
DROP OWNED BY pgherd_apply;
DROP ROLE pgherd_apply;
GRANT EXECUTE ON FUNCTION pg_catalog.lo_creat(int), pg_catalog.lo_create(oid), pg_catalog.lo_from_bytea(oid, bytea),
    pg_catalog.lo_put(oid, int8, bytea), pg_catalog.lowrite(int, bytea), pg_catalog.lo_truncate(int, int),
    pg_catalog.lo_truncate64(int, int8), pg_catalog.lo_unlink(oid) TO PUBLIC;
