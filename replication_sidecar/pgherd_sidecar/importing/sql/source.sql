-- What is asked of the source, PostgreSQL 12 to 18. Each statement follows a line `-- name: NAME`.

-- name: server
SELECT current_setting('server_version_num')::int AS version, current_setting('wal_level') AS wal_level,
       pg_is_in_recovery() AS standby, current_setting('server_encoding') AS encoding, current_database() AS database,
       current_user AS role, r.rolsuper AS superuser,
       r.rolreplication OR r.rolsuper OR EXISTS (
           SELECT FROM pg_roles m WHERE m.rolname = 'rds_replication' AND pg_has_role(m.oid, 'MEMBER')) AS may_replicate,
       has_database_privilege(current_database(), 'CREATE') AS may_create,
       pg_has_role(d.datdba, 'USAGE') AS owns_database,
       r.rolsuper OR pg_has_role('pg_signal_backend', 'MEMBER') AS may_signal,
       has_table_privilege('pg_catalog.pg_authid', 'SELECT') AS reads_passwords,
       has_table_privilege('pg_catalog.pg_authid', 'SELECT') OR r.rolsuper AS knows_passwords,
       current_setting('max_replication_slots')::int - (SELECT count(*) FROM pg_replication_slots)::int AS slots,
       current_setting('max_wal_senders')::int - (SELECT count(*) FROM pg_stat_replication)::int AS senders,
       EXISTS (SELECT FROM pg_namespace n WHERE n.nspname = 'pgherd') AS herd,
       EXISTS (SELECT FROM pg_largeobject_metadata) AS large_objects,
       (SELECT count(*)::int FROM pg_prepared_xacts p WHERE p.database = current_database()) AS prepared,
       array(SELECT s.subname::text FROM pg_subscription s WHERE s.subdbid = d.oid ORDER BY 1) AS subscriptions
  FROM pg_database d, pg_roles r WHERE d.datname = current_database() AND r.rolname = current_user;

-- Tables of users, but for those that extensions bring, and for what a feeder has made there. `key`: positions among the columns that are not generated.
-- `equality`: for each of these how the key's index finds equal values.
-- `identity`: how changed rows are told: key, full (the whole row), none (only insertions can be).
-- name: tables
SELECT c.oid::int8 AS relid, format('%I.%I', n.nspname, c.relname) AS name, n.nspname AS schema, c.relname AS relation,
       pg_relation_size(c.oid) + coalesce(pg_relation_size(nullif(c.reltoastrelid, 0)), 0) AS bytes, a.columns,
       CASE WHEN c.relreplident = 'f' AND k.columns IS NULL THEN 'full' WHEN k.columns IS NULL THEN 'none' ELSE 'key' END
           AS identity,
       coalesce(k.columns, '[]') AS key, coalesce(k.equality, '[]') AS equality,
       coalesce(pg_stat_get_tuples_updated(c.oid) + pg_stat_get_tuples_deleted(c.oid), 0) AS changed,
       has_table_privilege(c.oid, 'SELECT') AS readable, pg_has_role(c.relowner, 'USAGE') AS owned,
       c.relrowsecurity AND NOT (SELECT r.rolsuper OR r.rolbypassrls FROM pg_roles r WHERE r.rolname = current_user)
           AND (c.relforcerowsecurity OR NOT pg_has_role(c.relowner, 'USAGE')) AS guarded
  FROM pg_class c
  JOIN pg_namespace n ON n.oid = c.relnamespace
 CROSS JOIN LATERAL (
       SELECT coalesce(json_agg(json_build_object(
                  'name', a.attname, 'type', format_type(a.atttypid, -1), 'oid', a.atttypid::int8, 'modifier', a.atttypmod,
                  'generated', a.attgenerated <> '',
                  'as_text', t.typcategory IN ('A', 'C') OR t.typarray = 0 OR t.typdelim <> ',') ORDER BY a.attnum), '[]') AS columns
         FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) a
  LEFT JOIN LATERAL (
       SELECT json_agg(k.position - 1 ORDER BY k.position) AS columns,
              json_agg(json_build_object(
                  'operator', coalesce((
                      SELECT format('%I.%s', s.nspname, o.oprname)
                        FROM unnest(i.indkey::int2[], i.indclass::oid[]) AS u(attnum, class)
                        JOIN pg_opclass p ON p.oid = u.class
                        JOIN pg_am m ON m.oid = p.opcmethod AND m.amname = 'btree'
                        JOIN pg_amop e ON e.amopfamily = p.opcfamily AND e.amopstrategy = 3
                                      AND e.amoplefttype = p.opcintype AND e.amoprighttype = p.opcintype
                        JOIN pg_operator o ON o.oid = e.amopopr JOIN pg_namespace s ON s.oid = o.oprnamespace
                       WHERE u.attnum = k.attnum LIMIT 1), 'pg_catalog.='),
                  'base', (
                      WITH RECURSIVE d(typ, base) AS (
                          SELECT t.oid, t.typbasetype FROM pg_type t WHERE t.oid = k.atttypid AND t.typtype = 'd'
                           UNION ALL
                          SELECT t.oid, t.typbasetype FROM d JOIN pg_type t ON t.oid = d.base AND d.base <> 0)
                      SELECT format_type(d.typ, -1) FROM d WHERE d.base = 0)) ORDER BY k.position) AS equality
         FROM pg_index i
        CROSS JOIN LATERAL (
              SELECT a.attnum, a.atttypid, row_number() OVER (ORDER BY a.attnum) AS position FROM pg_attribute a
               WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '') k
        WHERE i.indrelid = c.oid AND i.indimmediate AND i.indisvalid
          AND k.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
          AND CASE c.relreplident WHEN 'i' THEN i.indisreplident WHEN 'n' THEN false ELSE i.indisprimary END) k ON true
 WHERE c.relkind = 'r' AND c.relpersistence = 'p'
   AND n.nspname NOT LIKE E'pg\\_%' AND n.nspname NOT IN ('information_schema', 'pgherd_subscriber')
   AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e')
 ORDER BY 2;

-- Tables of extensions that hold rows of users: pg_dump would take these over.
-- name: extension_tables
SELECT format('%I.%I', n.nspname, c.relname) AS name, e.extname AS extension
  FROM pg_extension e CROSS JOIN LATERAL unnest(e.extconfig) AS t(relid)
  JOIN pg_class c ON c.oid = t.relid AND c.relkind = 'r' JOIN pg_namespace n ON n.oid = c.relnamespace
 ORDER BY 1;

-- name: odd_relations
SELECT format('%I.%I', n.nspname, c.relname) AS name, CASE WHEN c.relkind = 'f' THEN 'foreign' ELSE 'unlogged' END AS kind
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE (c.relkind = 'f' OR c.relkind IN ('r', 'p') AND c.relpersistence = 'u')
   AND n.nspname NOT LIKE E'pg\\_%' AND n.nspname NOT IN ('information_schema', 'pgherd_subscriber')
 ORDER BY 1;

-- Tables that refuse writes: those that follow a herd, and those that have moved to one.
-- name: guarded
SELECT DISTINCT t.tgrelid::regclass::text AS name, t.tgfoid = to_regprocedure('pgherd_import.refuse()') AS moved FROM pg_trigger t
 WHERE t.tgfoid IN (to_regprocedure('pgherd_subscriber.refuse()'), to_regprocedure('pgherd_import.refuse()')) ORDER BY 1;

-- Stops transactions that begin with BEGIN READ WRITE, and those of superusers.
-- name: make_fence
CREATE SCHEMA pgherd_import;
CREATE FUNCTION pgherd_import.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'table %.% has moved to a herd and takes no writes here', TG_TABLE_SCHEMA, TG_TABLE_NAME
        USING ERRCODE = 'read_only_sql_transaction', HINT = 'Write to the herd.';
END $$;

-- name: to_fence
SELECT n.nspname AS schema, c.relname AS relation FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
   AND n.nspname NOT LIKE E'pg\\_%' AND n.nspname NOT IN ('information_schema', 'pgherd_subscriber')
   AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e')
 ORDER BY 1, 2;

-- name: fenced
SELECT n.nspname AS schema, c.relname AS relation
  FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE t.tgfoid = to_regprocedure('pgherd_import.refuse()') ORDER BY 1, 2;

-- name: extensions
SELECT e.extname AS name, e.extversion AS version FROM pg_extension e WHERE e.extname <> 'plpgsql' ORDER BY 1;

-- name: collations
SELECT DISTINCT k.collname AS name
  FROM (SELECT a.attcollation AS oid FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid AND c.relnamespace NOT IN
               (SELECT s.oid FROM pg_namespace s WHERE s.nspname IN ('pg_catalog', 'information_schema', 'pg_toast'))
         WHERE a.attnum > 0 AND NOT a.attisdropped
        UNION ALL SELECT unnest(i.indcollation::oid[]) FROM pg_index i
        UNION ALL SELECT t.typcollation FROM pg_type t WHERE t.typtype = 'd'
        UNION ALL SELECT r.rngcollation FROM pg_range r) u
  JOIN pg_collation k ON k.oid = u.oid AND k.collnamespace = 'pg_catalog'::regnamespace
 WHERE k.collname NOT IN ('default', 'C', 'POSIX') ORDER BY 1;

-- Partitions whose bounds are in the order of the database's own collation, which is 100 everywhere.
-- name: bounded_by_text
SELECT p.partrelid::regclass::text AS name FROM pg_partitioned_table p
 WHERE p.partstrat = 'r' AND 100 = ANY (p.partcollation::oid[]) ORDER BY 1;

-- name: sequences
SELECT format('%I.%I', n.nspname, c.relname) AS name, pg_has_role(c.relowner, 'USAGE')
       OR has_sequence_privilege(c.oid, 'SELECT') AS readable
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind = 'S' AND c.relpersistence = 'p'
   AND n.nspname NOT LIKE E'pg\\_%' AND n.nspname NOT IN ('information_schema', 'pgherd_subscriber')
   AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e')
 ORDER BY 1;

-- Everything that is defined, with a hash of how: another answer than before means DDL. What a subscriber of a herd holds
-- beside its tables does not count, nor does the fence of a cut-over.
-- name: definitions
WITH spaces AS MATERIALIZED (
    SELECT n.oid, n.nspname, n.nspowner, n.nspacl FROM pg_namespace n
     WHERE n.nspname NOT LIKE E'pg\\_%' AND n.nspname NOT IN ('information_schema', 'pgherd_subscriber', 'pgherd_import')),
relations AS MATERIALIZED (
    SELECT c.*, format('%I.%I', s.nspname, c.relname) AS name FROM pg_class c JOIN spaces s ON s.oid = c.relnamespace
     WHERE c.relkind IN ('r', 'p', 'v', 'm', 'S', 'c', 'f'))
SELECT found.object, md5(found.definition) AS hash FROM (
    SELECT 'schema ' || quote_ident(s.nspname) AS object, concat_ws(' ', s.nspowner, s.nspacl) AS definition FROM spaces s
    UNION ALL
    SELECT 'relation ' || c.name, concat_ws(E'\n', c.relkind, c.relpersistence, c.relowner, c.relacl, c.reloptions,
           c.relreplident, c.relrowsecurity, c.relforcerowsecurity, pg_get_expr(c.relpartbound, c.oid),
           (SELECT string_agg(concat_ws(' ', a.attname, a.atttypid, a.atttypmod, a.attnotnull, a.attcollation,
                                        a.attgenerated, a.attidentity, pg_get_expr(d.adbin, d.adrelid)), E'\n' ORDER BY a.attnum)
              FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
             WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
           CASE WHEN c.relkind IN ('v', 'm') THEN pg_get_viewdef(c.oid) END,
           (SELECT q::text FROM pg_sequence q WHERE q.seqrelid = c.oid))
      FROM relations c
    UNION ALL
    SELECT 'index ' || i.indexrelid::regclass, concat_ws(' ', pg_get_indexdef(i.indexrelid), i.indisvalid, i.indisreplident)
      FROM pg_index i JOIN relations c ON c.oid = i.indrelid
    UNION ALL
    SELECT format('constraint %I of %s', k.conname, c.name), concat_ws(' ', pg_get_constraintdef(k.oid), k.convalidated)
      FROM pg_constraint k JOIN relations c ON c.oid = k.conrelid
    UNION ALL
    SELECT format('trigger %I of %s', t.tgname, c.name), concat_ws(' ', pg_get_triggerdef(t.oid), t.tgenabled)
      FROM pg_trigger t JOIN relations c ON c.oid = t.tgrelid
     WHERE NOT t.tgisinternal AND t.tgfoid IS DISTINCT FROM to_regprocedure('pgherd_subscriber.refuse()')
       AND t.tgfoid IS DISTINCT FROM to_regprocedure('pgherd_import.refuse()')
    UNION ALL
    SELECT format('rule %I of %s', r.rulename, c.name), pg_get_ruledef(r.oid)
      FROM pg_rewrite r JOIN relations c ON c.oid = r.ev_class WHERE r.rulename <> '_RETURN'
    UNION ALL
    SELECT format('policy %I of %s', p.polname, c.name), concat_ws(' ', p.polcmd, p.polpermissive, p.polroles,
           pg_get_expr(p.polqual, p.polrelid), pg_get_expr(p.polwithcheck, p.polrelid))
      FROM pg_policy p JOIN relations c ON c.oid = p.polrelid
    UNION ALL
    SELECT 'function ' || f.oid::regprocedure, concat_ws(E'\n', f.proowner, f.proacl, f.prokind, f.prosrc, f.proconfig,
           f.prosecdef, f.provolatile, f.proisstrict, CASE WHEN f.prokind <> 'a' THEN pg_get_functiondef(f.oid) END)
      FROM pg_proc f JOIN spaces s ON s.oid = f.pronamespace
    UNION ALL
    SELECT 'type ' || t.oid::regtype, concat_ws(' ', t.typtype, t.typowner, t.typacl, t.typnotnull, t.typdefault, t.typbasetype,
           t.typtypmod, (SELECT string_agg(quote_literal(e.enumlabel), ',' ORDER BY e.enumsortorder)
                           FROM pg_enum e WHERE e.enumtypid = t.oid),
           (SELECT string_agg(pg_get_constraintdef(k.oid), ' ' ORDER BY k.conname) FROM pg_constraint k WHERE k.contypid = t.oid))
      FROM pg_type t JOIN spaces s ON s.oid = t.typnamespace WHERE t.typtype IN ('d', 'e', 'r')
    UNION ALL
    SELECT 'extension ' || quote_ident(e.extname), e.extversion FROM pg_extension e
) found;

-- name: role_list
SELECT r.rolname AS name, r.rolsuper AS superuser, r.rolinherit AS inherit, r.rolcreaterole AS createrole,
       r.rolcreatedb AS createdb, r.rolcanlogin AS login, r.rolreplication AS replication, r.rolbypassrls AS bypassrls,
       r.rolconnlimit AS connections, r.rolvaliduntil::text AS until
  FROM pg_roles r WHERE r.rolname NOT LIKE E'pg\\_%' ORDER BY 1;

-- name: passwords
SELECT a.rolname AS name, a.rolpassword AS password FROM pg_authid a WHERE a.rolpassword IS NOT NULL;

-- name: memberships
-- Before PostgreSQL 16 a membership has neither option: it inherits if its member does, and may be set.
SELECT r.rolname AS role, m.rolname AS member, bool_or(a.admin_option) AS admin,
       bool_or((to_jsonb(a) ->> 'set_option')::boolean) AS may_set,
       nullif(bool_or((to_jsonb(a) ->> 'inherit_option')::boolean), m.rolinherit) AS inherits_instead
  FROM pg_auth_members a JOIN pg_roles r ON r.oid = a.roleid JOIN pg_roles m ON m.oid = a.member
 GROUP BY 1, 2, m.rolinherit ORDER BY 1, 2;

-- name: role_settings
SELECT r.rolname AS role, s.setdatabase <> 0 AS here, c.setting
  FROM pg_db_role_setting s LEFT JOIN pg_roles r ON r.oid = s.setrole
 CROSS JOIN LATERAL unnest(s.setconfig) AS c(setting)
 WHERE s.setdatabase IN (0, (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))
   AND (s.setrole = 0 OR r.oid IS NOT NULL) AND (s.setrole <> 0 OR s.setdatabase <> 0)
 ORDER BY 1, 2, 3;

-- name: changes_without_identity
SELECT c.oid::int8 AS relid, coalesce(pg_stat_get_tuples_updated(c.oid) + pg_stat_get_tuples_deleted(c.oid), 0) AS changed
  FROM pg_class c WHERE c.oid = ANY (%(relids)s::oid[]);

-- name: position
SELECT CASE WHEN pg_is_in_recovery() THEN NULL ELSE pg_current_wal_lsn() END::text AS lsn;

-- What makes a walsender go past all that was written.
-- name: mark
SELECT pg_logical_emit_message(false, 'pgherd_import', '')::text AS lsn;

-- name: slot
SELECT s.active, s.active_pid, s.confirmed_flush_lsn::text AS confirmed, s.restart_lsn::text AS restart
  FROM pg_replication_slots s WHERE s.slot_name = %(slot)s;

-- Of this database; ours have another application_name.
-- name: end_sessions
SELECT count(pg_terminate_backend(a.pid)) AS ended FROM pg_stat_activity a
 WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND a.application_name <> %(ours)s
   AND a.backend_type = 'client backend';

-- name: sessions_left
SELECT count(*) AS sessions FROM pg_stat_activity a
 WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND a.application_name <> %(ours)s
   AND a.backend_type = 'client backend' AND a.backend_start < %(since)s;
