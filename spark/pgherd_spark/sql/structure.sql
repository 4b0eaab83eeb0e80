-- Everything that has a definition and should be the same on every member: kind, name, definition, and a version.
-- Each statement follows a line `-- name: NAME`.
--
-- PostgreSQL writes some definitions from its present catalog, whatever the snapshot. The version is a row's xmin
-- where that is so: if it has changed since the marker, somebody is changing the structure, and then this is
-- no moment to compare it. Where the object is gone by now (has_table_privilege() is NULL) it writes none.
--
-- Left out: what pgherd adds to each server for itself, what belongs to an extension, and what is no promise of
-- ours: passwords (each server salts its own), oids, statistics, places on disk.

-- name: structure
WITH
schemas AS MATERIALIZED (
    SELECT n.* , n.xmin AS version FROM pg_namespace n
     WHERE n.nspname NOT LIKE E'pg\\_%' AND n.nspname NOT IN ('information_schema', 'pgherd', 'pgherd_gen')),
extension_parts AS MATERIALIZED (
    SELECT d.classid, d.objid FROM pg_depend d WHERE d.deptype = 'e'),
relations AS MATERIALIZED (
    SELECT c.*, format('%I.%I', n.nspname, c.relname) AS full_name
      FROM pg_class c JOIN schemas n ON n.oid = c.relnamespace
     WHERE c.relpersistence <> 't' AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
       AND NOT EXISTS (SELECT FROM extension_parts e WHERE e.classid = 'pg_class'::regclass AND e.objid = c.oid))
SELECT 'schema' AS kind, format('%I', n.nspname) AS name,
       concat_ws('; ', 'owner ' || n.nspowner::regrole::text,
           (SELECT string_agg(a.grantee::regrole::text || ' ' || a.privilege_type, ', '
                              ORDER BY a.grantee::regrole::text, a.privilege_type)
              FROM aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner))) a)) AS definition,
       '' AS version
  FROM schemas n
UNION ALL
SELECT 'table', c.full_name,
       concat_ws('; ', 'kind ' || c.relkind::text, 'persistence ' || c.relpersistence::text,
           CASE WHEN EXISTS (SELECT FROM pgherd.replicated_tables r WHERE r.relid = c.oid) THEN 'replicated' END, 'owner ' || c.relowner::regrole::text,
           'row security ' || c.relrowsecurity || ' ' || c.relforcerowsecurity, 'options ' || c.reloptions::text,
           'partition ' || pg_get_expr(c.relpartbound, c.oid),
           (SELECT string_agg(a.grantee::regrole::text || ' ' || a.privilege_type, ', '
                              ORDER BY a.grantee::regrole::text, a.privilege_type)
              FROM aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) a)),
       ''
  FROM relations c
UNION ALL
SELECT 'column', c.full_name || '.' || quote_ident(a.attname),
       concat_ws('; ', 'place ' || (SELECT count(*) FROM pg_attribute b
                                     WHERE b.attrelid = c.oid AND b.attnum BETWEEN 1 AND a.attnum AND NOT b.attisdropped),
           format_type(a.atttypid, a.atttypmod), CASE WHEN a.attnotnull THEN 'NOT NULL' END,
           'collation ' || nullif(a.attcollation, 0)::regcollation::text,
           'identity ' || nullif(a.attidentity, '')::text, 'generated ' || nullif(a.attgenerated, '')::text,
           'default ' || pg_get_expr(d.adbin, d.adrelid), 'grants ' || a.attacl::text),
       concat(d.xmin)
  FROM relations c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
  LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
UNION ALL
SELECT 'index', format('%I.%I', n.nspname, x.relname),
       concat_ws('; ', CASE WHEN has_table_privilege(i.indexrelid, 'SELECT') IS NOT NULL THEN pg_get_indexdef(i.indexrelid) END, CASE WHEN NOT i.indisvalid THEN 'INVALID' END,
                 CASE WHEN i.indisreplident THEN 'replica identity' END),
       concat(i.xmin)
  FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid JOIN relations c ON c.oid = i.indrelid
  JOIN pg_namespace n ON n.oid = x.relnamespace
UNION ALL
SELECT 'constraint', concat(coalesce(c.full_name, format('%I.%I', n.nspname, y.typname)), '.', quote_ident(k.conname)),
       concat_ws('; ', CASE WHEN (k.conindid = 0 OR has_table_privilege(k.conindid, 'SELECT') IS NOT NULL)
                             AND (k.conrelid = 0 OR has_table_privilege(k.conrelid, 'SELECT') IS NOT NULL) THEN pg_get_constraintdef(k.oid) END,
                 CASE WHEN NOT k.convalidated THEN 'NOT VALID' END),
       concat(k.xmin)
  FROM pg_constraint k JOIN schemas n ON n.oid = k.connamespace LEFT JOIN relations c ON c.oid = k.conrelid
  LEFT JOIN pg_type y ON y.oid = k.contypid
 WHERE c.oid IS NOT NULL OR k.contypid <> 0
       AND NOT EXISTS (SELECT FROM extension_parts e WHERE e.classid = 'pg_type'::regclass AND e.objid = k.contypid)
UNION ALL
SELECT 'trigger', c.full_name || '.' || quote_ident(t.tgname),
       concat_ws('; ', CASE WHEN has_table_privilege(c.oid, 'SELECT') IS NOT NULL THEN pg_get_triggerdef(t.oid) END, 'enabled ' || t.tgenabled::text), concat(t.xmin)
  FROM pg_trigger t JOIN relations c ON c.oid = t.tgrelid JOIN pg_proc p ON p.oid = t.tgfoid
 WHERE NOT t.tgisinternal AND t.tgparentid = 0
   AND p.pronamespace NOT IN ('pgherd'::regnamespace, 'pgherd_gen'::regnamespace)
UNION ALL
SELECT 'policy', c.full_name || '.' || quote_ident(p.polname),
       concat_ws('; ', p.polcmd, p.polpermissive, (SELECT string_agg(r.oid::regrole::text, ', ' ORDER BY r.oid::regrole::text)
                                                     FROM unnest(p.polroles) AS r(oid)),
                 'using ' || pg_get_expr(p.polqual, p.polrelid), 'check ' || pg_get_expr(p.polwithcheck, p.polrelid)),
       concat(p.xmin)
  FROM pg_policy p JOIN relations c ON c.oid = p.polrelid
UNION ALL
SELECT 'rule', c.full_name || '.' || quote_ident(r.rulename),
       CASE WHEN has_table_privilege(c.oid, 'SELECT') IS NOT NULL THEN pg_get_ruledef(r.oid) END, concat(r.xmin)
  FROM pg_rewrite r JOIN relations c ON c.oid = r.ev_class
UNION ALL
SELECT 'function', format('%I.%I(%s)', n.nspname, p.proname, oidvectortypes(p.proargtypes)),
       concat_ws('; ', 'kind ' || p.prokind::text, 'returns ' || p.prorettype::regtype::text, 'owner ' || p.proowner::regrole::text,
           'language ' || l.lanname, 'volatility ' || p.provolatile::text, 'security definer ' || p.prosecdef,
           'settings ' || p.proconfig::text, 'body ' || md5(concat(p.prosrc, pg_get_function_sqlbody(p.oid))),
           (SELECT string_agg(a.grantee::regrole::text || ' ' || a.privilege_type, ', '
                              ORDER BY a.grantee::regrole::text, a.privilege_type)
              FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
             WHERE a.grantee <> coalesce(to_regrole('pgherd_apply'), 0)::oid)),
       concat(p.xmin)
  FROM pg_proc p JOIN schemas n ON n.oid = p.pronamespace JOIN pg_language l ON l.oid = p.prolang
 WHERE NOT EXISTS (SELECT FROM extension_parts e WHERE e.classid = 'pg_proc'::regclass AND e.objid = p.oid)
UNION ALL
SELECT 'type', format('%I.%I', n.nspname, t.typname),
       concat_ws('; ', 'kind ' || t.typtype::text, 'owner ' || t.typowner::regrole::text,
           'base ' || format_type(nullif(t.typbasetype, 0), t.typtypmod), 'default ' || t.typdefault,
           CASE WHEN t.typnotnull THEN 'NOT NULL' END,
           (SELECT string_agg(quote_literal(l.enumlabel), ', ' ORDER BY l.enumsortorder)
              FROM pg_enum l WHERE l.enumtypid = t.oid),
           (SELECT string_agg(format('%I %s', a.attname, format_type(a.atttypid, a.atttypmod)), ', ' ORDER BY a.attnum)
              FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid AND c.relkind = 'c'
             WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped)),
       ''
  FROM pg_type t JOIN schemas n ON n.oid = t.typnamespace
 WHERE (t.typtype IN ('e', 'd', 'r')
        OR t.typtype = 'c' AND EXISTS (SELECT FROM pg_class c WHERE c.oid = t.typrelid AND c.relkind = 'c'))
   AND NOT EXISTS (SELECT FROM extension_parts e WHERE e.classid = 'pg_type'::regclass AND e.objid = t.oid)
UNION ALL
-- Each member gives out its own numbers of a sequence: how far it is, is its own.
SELECT 'sequence', format('%I.%I', n.nspname, c.relname),
       concat_ws('; ', 'step ' || k.step, 'start ' || k.start, 'from ' || s.seqmin, 'to ' || s.seqmax,
           'cache ' || s.seqcache, 'owner ' || c.relowner::regrole::text,
           CASE WHEN s.seqincrement <> k.step * m.slots THEN 'not interleaved' END),
       ''
  FROM pgherd.sequences k JOIN pg_sequence s ON s.seqrelid = k.relid JOIN pg_class c ON c.oid = k.relid
  JOIN schemas n ON n.oid = c.relnamespace CROSS JOIN pgherd.node m
UNION ALL
SELECT 'extension', format('%I', e.extname), concat('version ', e.extversion), ''
  FROM pg_extension e
UNION ALL
-- Those that all members have. Settings in other databases are a member's own, and so are those that switch capture off.
SELECT 'role', quote_ident(r.rolname),
       concat_ws('; ', CASE WHEN r.rolsuper THEN 'superuser' END, CASE WHEN r.rolinherit THEN 'inherit' END,
           CASE WHEN r.rolcreaterole THEN 'createrole' END, CASE WHEN r.rolcreatedb THEN 'createdb' END,
           CASE WHEN coalesce((SELECT (s.value ->> 'LOGIN')::bool
                                 FROM pgherd.shared s JOIN pgherd.role_limits l ON l.name = s.key[2]
                                WHERE s.key = ARRAY['role', r.rolname::text]), r.rolcanlogin) THEN 'login' END, CASE WHEN r.rolreplication THEN 'replication' END,
           CASE WHEN r.rolbypassrls THEN 'bypassrls' END, 'connections ' || r.rolconnlimit,
           'until ' || nullif(r.rolvaliduntil, 'infinity')::text,
           (SELECT string_agg(x.place || x.setting, ', ' ORDER BY x.place, x.setting)
              FROM (SELECT CASE s.setdatabase WHEN 0 THEN '' ELSE 'here ' END, unnest(s.setconfig)
                      FROM pg_db_role_setting s
                     WHERE s.setrole = r.oid
                       AND s.setdatabase IN (0, (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())))
                   AS x(place, setting)
             WHERE split_part(x.setting, '=', 1) NOT IN ('session_replication_role', 'event_triggers', 'backtrace_functions'))),
       ''
  FROM pg_roles r JOIN pgherd.shared_roles k ON k.oid = r.oid
UNION ALL
SELECT 'membership', format('%I in %I', g.member, g.role), '', ''
  FROM pgherd.grants g JOIN pgherd.shared_roles k ON k.name = g.member
 WHERE g.role ~ '^pg_' OR EXISTS (SELECT FROM pgherd.shared_roles o WHERE o.name = g.role);
