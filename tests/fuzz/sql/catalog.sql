-- What a schema is made of, as lines of (kind, name, text), without any number of an object.
-- What belongs to one member alone is left out: triggers pgherd_*, where a sequence stands, and what an interrupted
-- REINDEX CONCURRENTLY leaves behind, which is local.
WITH
space AS (SELECT oid FROM pg_namespace WHERE nspname = %(schema)s),
rel AS (SELECT c.* FROM pg_class c JOIN space s ON s.oid = c.relnamespace
         WHERE NOT (c.relname ~ '_cc(new|old)[0-9]*$'
                    AND EXISTS (SELECT FROM pg_index i WHERE i.indexrelid = c.oid AND NOT i.indisvalid))),
typ AS (SELECT t.* FROM pg_type t JOIN space s ON s.oid = t.typnamespace),
proc AS (SELECT p.* FROM pg_proc p JOIN space s ON s.oid = p.pronamespace)
SELECT 'relation', relname::text,
       concat_ws(' ', relkind, CASE WHEN %(portable)s AND relpersistence = 'u' THEN 'p' ELSE relpersistence END,
                 relispartition, relrowsecurity, relforcerowsecurity,
                 array_to_string(reloptions, ','), pg_get_userbyid(relowner),
                 (SELECT string_agg(a::text, ',' ORDER BY a::text COLLATE "C") FROM unnest(relacl) a),
                 pg_get_expr(relpartbound, oid), CASE relkind WHEN 'p' THEN pg_get_partkeydef(oid) END,
                 obj_description(oid, 'pg_class'),
                 (SELECT string_agg(inhparent::regclass::text, ',' ORDER BY inhseqno)
                    FROM pg_inherits WHERE inhrelid = rel.oid AND relkind <> 'i'))
  FROM rel
UNION ALL
SELECT 'column', c.relname || '.' || a.attname,
       concat_ws(' ', row_number() OVER (PARTITION BY c.oid ORDER BY a.attnum), format_type(a.atttypid, a.atttypmod),
                 a.attnotnull, a.attidentity, a.attgenerated, a.attstorage, a.attcompression, a.attstattarget,
                 a.attislocal, a.attinhcount, a.attacl::text, (SELECT string_agg(o, ',') FROM unnest(a.attoptions) o WHERE o !~ '^pg_'),
                 CASE WHEN a.attcollation <> 0 THEN a.attcollation::regcollation::text END,
                 pg_get_expr(d.adbin, d.adrelid), col_description(c.oid, a.attnum))
  FROM rel c
  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
  LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
 WHERE c.relkind IN ('r', 'p', 'v', 'm', 'c', 'f')
UNION ALL
SELECT 'constraint', concat_ws('.', coalesce(c.relname, t.typname), k.conname),
       concat_ws(' ', pg_get_constraintdef(k.oid), k.convalidated, k.conislocal, k.coninhcount, k.connoinherit,
                 obj_description(k.oid, 'pg_constraint'))
  FROM pg_constraint k
  JOIN space s ON s.oid = k.connamespace
  LEFT JOIN pg_class c ON c.oid = k.conrelid
  LEFT JOIN pg_type t ON t.oid = k.contypid
UNION ALL
SELECT 'index', c.relname::text,
       concat_ws(' ', pg_get_indexdef(c.oid), i.indisvalid, i.indisready, i.indisunique, i.indisprimary,
                 i.indisclustered, i.indisreplident)
  FROM rel c JOIN pg_index i ON i.indexrelid = c.oid
UNION ALL
SELECT 'trigger', c.relname || '.' || t.tgname, concat_ws(' ', pg_get_triggerdef(t.oid), t.tgenabled)
  FROM rel c JOIN pg_trigger t ON t.tgrelid = c.oid
 WHERE NOT t.tgisinternal AND lower(left(t.tgname, 7)) <> 'pgherd_'
UNION ALL
SELECT 'rule', c.relname || '.' || r.rulename, pg_get_ruledef(r.oid)
  FROM rel c JOIN pg_rewrite r ON r.ev_class = c.oid
UNION ALL
SELECT 'policy', c.relname || '.' || p.polname,
       concat_ws(' ', p.polcmd, p.polpermissive, (SELECT string_agg(r::regrole::text, ',') FROM unnest(p.polroles) r),
                 pg_get_expr(p.polqual, c.oid), pg_get_expr(p.polwithcheck, c.oid))
  FROM rel c JOIN pg_policy p ON p.polrelid = c.oid
UNION ALL
SELECT 'function', oid::regprocedure::text,
       concat_ws(' ', CASE WHEN prokind IN ('f', 'p') THEN pg_get_functiondef(oid) END, pg_get_userbyid(proowner),
                 proacl::text, obj_description(oid, 'pg_proc'))
  FROM proc
UNION ALL
SELECT 'type', typname::text,
       concat_ws(' ', typtype, typcategory, pg_get_userbyid(typowner), format_type(typbasetype, typtypmod), typnotnull,
                 typdefault, typacl::text, obj_description(oid, 'pg_type'),
                 (SELECT string_agg(enumlabel, ',' ORDER BY enumsortorder) FROM pg_enum WHERE enumtypid = typ.oid),
                 (SELECT rngsubtype::regtype::text FROM pg_range WHERE rngtypid = typ.oid))
  FROM typ
UNION ALL
SELECT 'sequence', c.relname::text,
       concat_ws(' ', q.seqtypid::regtype, q.seqcycle,
                 (SELECT d.refobjid::regclass || '.' || d.refobjsubid FROM pg_depend d
                   WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype IN ('a', 'i')
                     AND d.refclassid = 'pg_class'::regclass))
  FROM rel c JOIN pg_sequence q ON q.seqrelid = c.oid
UNION ALL
SELECT 'statistics', stxname::text, concat_ws(' ', pg_get_statisticsobjdef(x.oid), stxstattarget)
  FROM pg_statistic_ext x JOIN space s ON s.oid = x.stxnamespace
UNION ALL
SELECT 'schema', nspname::text, concat_ws(' ', pg_get_userbyid(nspowner), nspacl::text, obj_description(n.oid, 'pg_namespace'))
  FROM pg_namespace n JOIN space s ON s.oid = n.oid
 ORDER BY 1, 2, 3
