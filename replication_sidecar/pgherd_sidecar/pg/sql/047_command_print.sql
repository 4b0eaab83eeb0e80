-- The fingerprint of a command: what the catalog says of the objects that it concerned, as a text without oids. The
-- origin ships hashes of it with each command, each other member compares them with what it has made, before that is
-- committed.
--
-- A line of the text has two parts:
--   facts   what is stored as it is: always compared, whoever made it
--   words   what PostgreSQL writes from a stored tree (defaults, expressions, view queries). That depends on the version
--           of PostgreSQL, and is not the same after a dump was restored. So it is compared only between servers of
--           exactly one version, and only where the transaction itself has written the row of the catalog.
--
-- Left out is what may differ: what a member has for itself (temporary and local tables, invalid indexes, copies that REINDEX
-- CONCURRENTLY has left, TOAST tables, statistics, tablespaces, increments of sequences, our triggers and grants), what a
-- restored dump says otherwise (where columns and constraints are inherited from, the copies of constraints and triggers in
-- partitions, who granted), and the contents of extensions. Default privileges are not covered.

-- This and the next three are STRICT: most columns have no options, and to find that nothing is nothing takes two queries.

-- Who may do what, in order. In 17 owners have one more privilege.
CREATE OR REPLACE FUNCTION pgherd.privileges(acl aclitem[]) RETURNS text
LANGUAGE plpgsql STABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN (SELECT string_agg(DISTINCT p.line COLLATE "C", ', ' ORDER BY p.line COLLATE "C")
              FROM (SELECT format('%s %s %s', CASE a.grantee WHEN 0 THEN '' ELSE pg_get_userbyid(a.grantee) END, a.privilege_type,
                                  a.is_grantable) AS line
                      FROM aclexplode(acl) a
                     WHERE a.privilege_type <> 'MAINTAIN' AND pg_get_userbyid(a.grantee) <> 'pgherd_apply') p);
END $$;

CREATE OR REPLACE FUNCTION pgherd.column_names(rel oid, numbers int2[]) RETURNS text[]
LANGUAGE plpgsql STABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN (SELECT array_agg(a.attname::text ORDER BY k.n)
              FROM unnest(numbers) WITH ORDINALITY AS k(attnum, n)
              LEFT JOIN pg_attribute a ON a.attrelid = rel AND a.attnum = k.attnum);
END $$;

CREATE OR REPLACE FUNCTION pgherd.sorted(texts text[]) RETURNS text[]
LANGUAGE plpgsql STABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN (SELECT array_agg(u.t ORDER BY u.t COLLATE "C") FROM unnest(texts) AS u(t));
END $$;

-- Options in order; not those that PostgreSQL keeps for itself: 17.12 notes for each column where in its own log it was made.
CREATE OR REPLACE FUNCTION pgherd.options(options text[]) RETURNS text[]
LANGUAGE plpgsql STABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN pgherd.sorted(ARRAY(SELECT u.o FROM unnest(options) AS u(o) WHERE u.o !~ '^pg_'));
END $$;

-- What the catalog says of relations. which: of what words are wanted, 'own', 'all' or 'none'.
CREATE OR REPLACE FUNCTION pgherd.relation_lines(
    rels oid[], which text, OUT rel oid, OUT aspect text, OUT name text, OUT facts text, OUT words text)
RETURNS SETOF record
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET DateStyle = 'ISO, YMD' SET IntervalStyle = 'postgres'
SET TimeZone = 'UTC' SET extra_float_digits = 1 SET bytea_output = 'hex' SET lc_monetary = 'C' SET quote_all_identifiers = off AS $$
#variable_conflict use_column
DECLARE
    own_words bool := which = 'own';
    all_words bool := which = 'all';
BEGIN
    RETURN QUERY
    SELECT c.oid, 'relation', '',
           ROW(c.relkind, c.relpersistence, m.amname, pg_get_userbyid(c.relowner), c.relrowsecurity, c.relforcerowsecurity,
               c.relreplident, pgherd.options(c.reloptions), pgherd.options(t.reloptions), c.relispartition, c.relispopulated,
               nullif(c.reloftype, 0)::regtype)::text,
           CASE WHEN all_words OR own_words AND pgherd.is_own(c.xmin) THEN pg_get_expr(c.relpartbound, c.oid) END
      FROM pg_class c LEFT JOIN pg_am m ON m.oid = c.relam LEFT JOIN pg_class t ON t.oid = c.reltoastrelid
     WHERE c.oid = ANY (rels);
    RETURN QUERY
    SELECT p.partrelid, 'partition key', '', ROW(p.partstrat, p.partnatts, pgherd.column_names(p.partrelid, p.partattrs::int2[]))::text,
           CASE WHEN all_words OR own_words AND pgherd.is_own(p.xmin) THEN pg_get_partkeydef(p.partrelid) END
      FROM pg_partitioned_table p WHERE p.partrelid = ANY (rels);
    RETURN QUERY
    SELECT i.inhrelid, 'parents', i.inhparent::regclass::text, i.inhseqno::text, NULL
      FROM pg_inherits i WHERE i.inhrelid = ANY (rels);
    RETURN QUERY
    SELECT a.attrelid, 'columns', a.attname::text,
           ROW(row_number() OVER (PARTITION BY a.attrelid ORDER BY a.attnum), format_type(a.atttypid, a.atttypmod), a.attnotnull,
               nullif(a.attcollation, 0)::regcollation, a.attidentity, a.attgenerated, a.attstorage, a.attcompression,
               coalesce(a.attstattarget, -1), a.atthasdef, pgherd.options(a.attoptions))::text,
           CASE WHEN all_words OR own_words AND pgherd.is_own(d.xmin) THEN pg_get_expr(d.adbin, d.adrelid) END
      FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
     WHERE a.attrelid = ANY (rels) AND a.attnum > 0 AND NOT a.attisdropped;
    RETURN QUERY
    SELECT c.conrelid, 'constraints', c.conname::text,
           -- of keys it says whether they were made with their parent's or attached to it, which a dump changes
           ROW(c.contype, c.condeferrable, c.condeferred, c.convalidated,
               CASE c.contype WHEN 'c' THEN c.connoinherit
                              WHEN 'f' THEN (SELECT r.relkind <> 'p' FROM pg_class r WHERE r.oid = c.conrelid)
                              ELSE true END,
               c.confupdtype, c.confdeltype, c.confmatchtype, pgherd.column_names(c.conrelid, c.conkey), nullif(c.confrelid, 0)::regclass,
               pgherd.column_names(c.confrelid, c.confkey))::text,
           CASE WHEN all_words OR own_words AND pgherd.is_own(c.xmin) THEN pg_get_constraintdef(c.oid) END
      FROM pg_constraint c
     WHERE c.conrelid = ANY (rels) AND c.contype IN ('c', 'f', 'p', 'u', 'x') AND c.conparentid = 0;
    RETURN QUERY
    SELECT i.indrelid, 'indexes', i.indexrelid::regclass::text,
           ROW(m.amname, i.indisunique, i.indisprimary, i.indisexclusion, i.indimmediate, i.indisreplident,
               to_jsonb(i) ->> 'indnullsnotdistinct', i.indnkeyatts, pgherd.column_names(i.indrelid, i.indkey::int2[]),
               array(SELECT o.opcname::text FROM unnest(i.indclass::oid[]) WITH ORDINALITY u(oid, n)
                       JOIN pg_opclass o ON o.oid = u.oid ORDER BY u.n),
               i.indcollation::oid[]::regcollation[], i.indoption::int2[], pgherd.options(c.reloptions))::text,
           CASE WHEN all_words OR own_words AND pgherd.is_own(i.xmin) THEN pg_get_indexdef(i.indexrelid) END
      FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am m ON m.oid = c.relam
     WHERE i.indrelid = ANY (rels) AND i.indisvalid AND NOT pgherd.is_long_index(i.indrelid, i.indexrelid)
       AND NOT pgherd.is_reindex_copy(i.indexrelid, c.relname);
    RETURN QUERY
    SELECT t.tgrelid, 'triggers', t.tgname::text,
           ROW(t.tgtype, t.tgenabled, t.tgfoid::regprocedure, t.tgdeferrable, t.tginitdeferred, t.tgargs,
               pgherd.column_names(t.tgrelid, t.tgattr::int2[]), t.tgoldtable, t.tgnewtable)::text,
           CASE WHEN all_words OR own_words AND pgherd.is_own(t.xmin) THEN pg_get_triggerdef(t.oid) END
      FROM pg_trigger t
     WHERE t.tgrelid = ANY (rels) AND NOT t.tgisinternal AND t.tgparentid = 0 AND t.tgname NOT ILIKE E'pgherd\\_%';
    RETURN QUERY
    SELECT r.ev_class, 'rules', r.rulename::text, ROW(r.ev_type, r.ev_enabled, r.is_instead)::text,
           CASE WHEN all_words OR own_words AND pgherd.is_own(r.xmin) THEN pg_get_ruledef(r.oid) END
      FROM pg_rewrite r WHERE r.ev_class = ANY (rels);
    RETURN QUERY
    SELECT p.polrelid, 'policies', p.polname::text,
           ROW(p.polcmd, p.polpermissive, pgherd.sorted(array(SELECT CASE u.r WHEN 0 THEN '' ELSE pg_get_userbyid(u.r)::text END
                                                               FROM unnest(p.polroles) AS u(r))))::text,
           CASE WHEN all_words OR own_words AND pgherd.is_own(p.xmin)
                THEN ROW(pg_get_expr(p.polqual, p.polrelid), pg_get_expr(p.polwithcheck, p.polrelid))::text END
      FROM pg_policy p WHERE p.polrelid = ANY (rels);
    RETURN QUERY
    SELECT s.stxrelid, 'statistics', format('%I.%I', n.nspname, s.stxname),
           ROW(s.stxkind, pgherd.column_names(s.stxrelid, s.stxkeys::int2[]), pg_get_userbyid(s.stxowner))::text,
           CASE WHEN all_words OR own_words AND pgherd.is_own(s.xmin) THEN pg_get_statisticsobjdef(s.oid) END
      FROM pg_statistic_ext s JOIN pg_namespace n ON n.oid = s.stxnamespace WHERE s.stxrelid = ANY (rels);
    RETURN QUERY
    SELECT s.seqrelid, 'sequence', '',
           ROW(format_type(s.seqtypid, NULL), s.seqmin, s.seqmax, s.seqcache, s.seqcycle,
               (SELECT ROW(d.refobjid::regclass, pgherd.column_names(d.refobjid, ARRAY[d.refobjsubid::int2]))::text
                  FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = s.seqrelid
                                     AND d.refclassid = 'pg_class'::regclass AND d.deptype IN ('a', 'i') LIMIT 1))::text, NULL
      FROM pg_sequence s WHERE s.seqrelid = ANY (rels);
    RETURN QUERY
    SELECT c.oid, 'privileges', '', pgherd.privileges(coalesce(c.relacl, acldefault((CASE c.relkind WHEN 'S' THEN 's' ELSE 'r' END)::"char",
                                                                                   c.relowner))), NULL
      FROM pg_class c WHERE c.oid = ANY (rels) AND c.relkind <> 'c'
     UNION ALL
    SELECT a.attrelid, 'privileges', a.attname::text, pgherd.privileges(a.attacl), NULL
      FROM pg_attribute a WHERE a.attrelid = ANY (rels) AND a.attnum > 0 AND NOT a.attisdropped AND a.attacl <> '{}';
END $$;

-- Likewise of functions, types and schemas, and of relations under their names.
CREATE OR REPLACE FUNCTION pgherd.catalog_lines(
    rels oid[], functions oid[], types oid[], schemas oid[], which text,
    OUT object text, OUT aspect text, OUT name text, OUT facts text, OUT words text)
RETURNS SETOF record
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET DateStyle = 'ISO, YMD' SET IntervalStyle = 'postgres'
SET TimeZone = 'UTC' SET extra_float_digits = 1 SET bytea_output = 'hex' SET lc_monetary = 'C' SET quote_all_identifiers = off AS $$
#variable_conflict use_column
DECLARE
    own_words bool := which = 'own';
    all_words bool := which = 'all';
BEGIN
    RETURN QUERY
    SELECT 'relation ' || l.rel::regclass::text, l.aspect, l.name, l.facts, l.words FROM pgherd.relation_lines(rels, which) l;
    RETURN QUERY
    SELECT 'function ' || p.oid::regprocedure::text, 'function', '',
           ROW(p.prokind, l.lanname, pg_get_userbyid(p.proowner), p.procost, p.prorows, nullif(p.provariadic, 0)::regtype,
               p.prosupport::oid::regprocedure, p.prosecdef, p.proleakproof, p.proisstrict, p.proretset, p.provolatile,
               p.proparallel, p.prorettype::regtype, coalesce(p.proallargtypes, p.proargtypes::oid[])::regtype[], p.proargnames,
               p.proargmodes, p.pronargdefaults, p.prosrc, p.probin, pgherd.sorted(p.proconfig),
               g.aggtransfn::oid::regprocedure, g.aggfinalfn::oid::regprocedure, g.aggcombinefn::oid::regprocedure,
               g.aggtranstype::regtype, g.agginitval,
               pgherd.privileges(coalesce(p.proacl, acldefault('f', p.proowner))))::text,
           CASE WHEN all_words OR own_words AND pgherd.is_own(p.xmin)
                THEN ROW(pg_get_function_sqlbody(p.oid), pg_get_expr(p.proargdefaults, 0))::text END
      FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang LEFT JOIN pg_aggregate g ON g.aggfnoid = p.oid
     WHERE p.oid = ANY (functions);
    RETURN QUERY
    SELECT 'type ' || t.oid::regtype::text, 'type', '',
           ROW(t.typtype, pg_get_userbyid(t.typowner), CASE WHEN t.typbasetype <> 0 THEN format_type(t.typbasetype, t.typtypmod) END,
               t.typnotnull, t.typcollation::regcollation,
               array(SELECT e.enumlabel::text FROM pg_enum e WHERE e.enumtypid = t.oid ORDER BY e.enumsortorder),
               r.rngsubtype::regtype, r.rngcollation::regcollation, o.opcname, r.rngcanonical::regproc, r.rngsubdiff::regproc,
               r.rngmultitypid::regtype, pgherd.privileges(coalesce(t.typacl, acldefault('T', t.typowner))))::text,
           CASE WHEN all_words OR own_words AND pgherd.is_own(t.xmin) THEN pg_get_expr(t.typdefaultbin, 0) END
      FROM pg_type t LEFT JOIN pg_range r ON r.rngtypid = t.oid LEFT JOIN pg_opclass o ON o.oid = r.rngsubopc
     WHERE t.oid = ANY (types)
     UNION ALL
    SELECT 'type ' || c.contypid::regtype::text, 'constraints', c.conname::text, ROW(c.contype, c.convalidated)::text,
           CASE WHEN all_words OR own_words AND pgherd.is_own(c.xmin) THEN pg_get_constraintdef(c.oid) END
      FROM pg_constraint c WHERE c.contypid = ANY (types) AND c.contype = 'c'
     UNION ALL
    SELECT 'type ' || t.oid::regtype::text, 'attributes', a.attname::text,
           ROW(row_number() OVER (PARTITION BY t.oid ORDER BY a.attnum), format_type(a.atttypid, a.atttypmod),
               nullif(a.attcollation, 0)::regcollation)::text, NULL
      FROM pg_type t JOIN pg_class c ON c.oid = t.typrelid AND c.relkind = 'c'
      JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
     WHERE t.oid = ANY (types);
    RETURN QUERY
    SELECT 'schema ' || s.oid::regnamespace::text, 'schema', '',
           ROW(pg_get_userbyid(s.nspowner), pgherd.privileges(coalesce(s.nspacl, acldefault('n', s.nspowner))))::text, NULL
      FROM pg_namespace s WHERE s.oid = ANY (schemas);
END $$;

CREATE OR REPLACE FUNCTION pgherd.is_printed(schema oid) RETURNS bool
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN (SELECT n.nspname NOT LIKE E'pg\\_%' AND n.nspname NOT IN ('information_schema', 'pgherd', 'pgherd_gen')
              FROM pg_namespace n WHERE n.oid = schema);
END $$;

-- Relations whose print may be asked of other members.
CREATE OR REPLACE FUNCTION pgherd.printed_relations(rels oid[]) RETURNS oid[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN array(SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                  WHERE c.oid = ANY (rels) AND c.relpersistence <> 't' AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'c', 'S')
                    AND pgherd.is_printed(n.oid)
                    AND NOT EXISTS (SELECT FROM pgherd.local_tables l WHERE l.name = format('%I.%I', n.nspname, c.relname)));
END $$;

-- Hashes of facts by object and aspect; of words by object, each with its aspect and name.
CREATE OR REPLACE FUNCTION pgherd.catalog_hashes(
    rels oid[], functions oid[], types oid[], schemas oid[], which text, OUT objects jsonb, OUT words jsonb)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    WITH lines AS MATERIALIZED (
        SELECT * FROM pgherd.catalog_lines(rels, functions, types, schemas, which)
    ), aspects AS (
        SELECT l.object, l.aspect, left(md5(string_agg(ROW(l.name, l.facts)::text, E'\n' ORDER BY l.name COLLATE "C")), 16) AS hash
          FROM lines l GROUP BY l.object, l.aspect
    ), named AS (
        SELECT l.object, jsonb_agg(jsonb_build_array(l.aspect, l.name, left(md5(l.words), 16))) AS words
          FROM lines l WHERE l.words IS NOT NULL GROUP BY l.object
    )
    SELECT (SELECT jsonb_object_agg(o.object, o.hashes)
              FROM (SELECT a.object, jsonb_object_agg(a.aspect, a.hash) AS hashes FROM aspects a GROUP BY a.object) o),
           (SELECT jsonb_object_agg(n.object, n.words) FROM named n)
      INTO objects, words;
END $$;

-- The print of the command that is ending, at its origin. PostgreSQL does not say what GRANT and REVOKE have changed:
-- that is looked for. Comments, labels and default privileges are in no print, so a command about these has none. Types
-- without a definition are in none either, nor functions that take such: PostgreSQL finds them by no name.
CREATE OR REPLACE FUNCTION pgherd.command_print(tag text, rels oid[]) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    made  record;
    found record;
BEGIN
    IF tag IN ('COMMENT', 'SECURITY LABEL', 'ALTER DEFAULT PRIVILEGES') THEN
        RETURN '{}';
    END IF;
    SELECT array_agg(o.objid) FILTER (WHERE o.classid = 'pg_proc'::regclass) AS functions,
           array_agg(coalesce(nullif(k.contypid, 0), o.objid))
               FILTER (WHERE o.classid = 'pg_type'::regclass OR k.contypid <> 0) AS types,
           array_agg(o.objid) FILTER (WHERE o.classid = 'pg_namespace'::regclass) AS schemas, array_agg(o.object_type) AS kinds
      INTO made
      FROM pg_event_trigger_ddl_commands() o
      LEFT JOIN pg_constraint k ON o.classid = 'pg_constraint'::regclass AND k.oid = o.objid;
    IF tag IN ('GRANT', 'REVOKE') THEN
        -- Not in the catalogs of another kind of object than the command is about. Those of functions and columns are large.
        IF (made.kinds <@ '{TABLE,SEQUENCE}'::text[]) IS NOT TRUE THEN
            made.functions := array(SELECT p.oid FROM pg_proc p WHERE pgherd.is_new(p.xmin));
            made.types := array(SELECT t.oid FROM pg_type t
                                 WHERE pgherd.is_new(t.xmin) AND t.typtype IN ('d', 'e', 'r') AND t.typcategory <> 'A');
            made.schemas := array(SELECT n.oid FROM pg_namespace n WHERE pgherd.is_new(n.xmin));
        END IF;
        IF (made.kinds <@ '{FUNCTION,PROCEDURE,ROUTINE,TYPE,DOMAIN,SCHEMA}'::text[]) IS NOT TRUE THEN
            rels := rels || array(SELECT c.oid FROM pg_class c WHERE pgherd.is_new(c.xmin))
                         || array(SELECT a.attrelid FROM pg_attribute a WHERE pgherd.is_new(a.xmin));
        END IF;
    END IF;
    SELECT * INTO found FROM pgherd.catalog_hashes(
        pgherd.printed_relations(rels),
        array(SELECT p.oid FROM pg_proc p WHERE p.oid = ANY (made.functions) AND pgherd.is_printed(p.pronamespace)
                 AND NOT EXISTS (SELECT FROM pg_type t WHERE t.oid = ANY (p.proargtypes::oid[]) AND NOT t.typisdefined)),
        array(SELECT t.oid FROM pg_type t WHERE t.oid = ANY (made.types) AND pgherd.is_printed(t.typnamespace) AND t.typisdefined),
        array(SELECT n.oid FROM pg_namespace n WHERE n.oid = ANY (made.schemas) AND pgherd.is_printed(n.oid)), 'own');
    RETURN jsonb_build_object('print', jsonb_strip_nulls(jsonb_build_object(
        'version', current_setting('server_version_num'), 'objects', found.objects, 'words', found.words)));
END $$;

-- What is not as a print says: the object, the aspect, and the name of what is in it where that is known.
CREATE OR REPLACE FUNCTION pgherd.print_difference(
    print jsonb, objects jsonb, words jsonb, OUT object text, OUT aspect text, OUT name text) RETURNS SETOF record
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT o.key, a.aspect, NULL
      FROM jsonb_each(print -> 'objects') o
     CROSS JOIN LATERAL jsonb_object_keys(o.value || coalesce(objects -> o.key, '{}')) AS a(aspect)
     WHERE o.value ->> a.aspect IS DISTINCT FROM objects -> o.key ->> a.aspect
     UNION ALL
    SELECT w.key, l.line ->> 0, l.line ->> 1
      FROM jsonb_each(print -> 'words') w CROSS JOIN LATERAL jsonb_array_elements(w.value) AS l(line)
     WHERE print ->> 'version' = current_setting('server_version_num')
       AND NOT coalesce(words -> w.key @> jsonb_build_array(l.line), false);
END $$;

-- Compares what a command has made here with its print, if it has one.
CREATE OR REPLACE FUNCTION pgherd.check_command_print(print jsonb) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    k     record;
    here  record;
    d     record;
    lines text;
BEGIN
    IF print -> 'objects' IS NULL THEN
        RETURN;
    END IF;
    SELECT array_agg(to_regclass(o.name)::oid) FILTER (WHERE o.kind = 'relation') AS relations,
           array_agg(to_regprocedure(o.name)::oid) FILTER (WHERE o.kind = 'function') AS functions,
           array_agg(to_regtype(o.name)::oid) FILTER (WHERE o.kind = 'type') AS types,
           array_agg(to_regnamespace(o.name)::oid) FILTER (WHERE o.kind = 'schema') AS schemas
      INTO k
      FROM (SELECT split_part(j.key, ' ', 1) AS kind, substr(j.key, strpos(j.key, ' ') + 1) AS name
              FROM jsonb_object_keys(print -> 'objects') AS j(key)) o;
    SELECT * INTO here FROM pgherd.catalog_hashes(k.relations, k.functions, k.types, k.schemas,
                                                  CASE WHEN print ? 'words' THEN 'all' ELSE 'none' END);
    SELECT * INTO d FROM pgherd.print_difference(print, here.objects, here.words) LIMIT 1;
    IF FOUND THEN
        SELECT left(string_agg(concat_ws(' ', nullif(l.name, ''), l.facts, l.words), '; ' ORDER BY l.name COLLATE "C"), 500)
          INTO lines
          FROM pgherd.catalog_lines(k.relations, k.functions, k.types, k.schemas, 'all') l
         WHERE l.object = d.object AND l.aspect = d.aspect AND (d.name IS NULL OR l.name = d.name);
        RAISE EXCEPTION '% is not what the command made of it at its origin: its % here: %', d.object,
            concat_ws(' ', d.aspect, nullif(d.name, '')), coalesce(lines, 'none') USING ERRCODE = 'PH003';
    END IF;
END $$;
