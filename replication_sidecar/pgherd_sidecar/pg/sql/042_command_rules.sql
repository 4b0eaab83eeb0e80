-- What DDL may not do, judged by the catalog as the command leaves it and not by its words, so that no
-- spelling gets past. SQLSTATE 0A000 throughout: nothing is left silently local (C22, C23).

CREATE OR REPLACE FUNCTION pgherd.refuse(message text, hint text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION '%', message USING ERRCODE = '0A000', HINT = hint;
END $$;

-- Our triggers stay as they are, and no trigger or rule of the user fires while others' rows are applied. Where it cannot
-- be told which tables a command concerns (rels is NULL), those count whose triggers or rules are as new as its
-- transaction: what a superuser has made in replica role before is his, and no reason to refuse others' commands.
CREATE OR REPLACE FUNCTION pgherd.check_triggers(rels oid[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r         record;
    concerned oid[] := coalesce(rels, array(
        SELECT t.tgrelid FROM pg_trigger t WHERE pgherd.is_new(t.xmin)
        UNION SELECT w.ev_class FROM pg_rewrite w WHERE pgherd.is_new(w.xmin)));
BEGIN
    FOR r IN SELECT t.tgname, t.tgrelid::regclass AS rel, t.tgenabled,
                    p.pronamespace IN ('pgherd'::regnamespace, 'pgherd_gen'::regnamespace) AS ours
               FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
              WHERE t.tgrelid = ANY (concerned)
                AND t.tgrelid <> ALL ('{pgherd.capture_0,pgherd.capture_1,pgherd.request,pgherd.long_commands,
                                        pgherd.long_starts}'::regclass[]::oid[]) LOOP
        IF r.ours AND r.tgenabled = 'D' THEN
            PERFORM pgherd.refuse(format('DISABLE TRIGGER would end the replication of table %s', r.rel),
                'Load a dump without --disable-triggers, and disable your own triggers by name. To keep the table'
                ' local: SELECT pgherd.set_local(''table'').');
        ELSIF r.ours AND (r.tgenabled <> 'O' OR r.tgname NOT ILIKE E'pgherd\\_%') THEN
            PERFORM pgherd.refuse(format('trigger %I of table %s belongs to replication', r.tgname, r.rel),
                'Disable your own triggers by name. To keep a table local: SELECT pgherd.set_local(''table'').');
        ELSIF r.tgname ILIKE E'pgherd\\_%' AND NOT r.ours THEN
            PERFORM pgherd.refuse(format('trigger names that begin with "pgherd_" are reserved: %I', r.tgname),
                'Give the trigger another name.');
        ELSIF r.tgenabled IN ('A', 'R') THEN
            PERFORM pgherd.refuse(format('trigger %I of table %s would fire again on every member', r.tgname, r.rel),
                'ENABLE TRIGGER without ALWAYS or REPLICA: it fires where the transaction runs.');
        END IF;
    END LOOP;
    FOR r IN SELECT w.rulename, w.ev_class::regclass AS rel FROM pg_rewrite w
              WHERE w.ev_enabled IN ('A', 'R') AND w.ev_class = ANY (concerned) LOOP
        PERFORM pgherd.refuse(format('rule %I of %s would act again on every member', r.rulename, r.rel),
            'ENABLE RULE without ALWAYS or REPLICA.');
    END LOOP;
END $$;

-- What a table must not be, have or refer to.
CREATE OR REPLACE FUNCTION pgherd.check_tables(rels oid[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE r record;
BEGIN
    FOR r IN SELECT c.oid::regclass AS rel, c.relpersistence, c.reltablespace, c.relkind FROM pg_class c
              WHERE (c.oid = ANY (rels) OR c.oid IN (SELECT i.indexrelid FROM pg_index i WHERE i.indrelid = ANY (rels)))
                AND (c.reltablespace <> 0 OR c.relkind = 'f' OR c.relpersistence = 'u'
                     AND (c.relkind = 'p' OR c.relkind = 'r' AND c.oid IN (SELECT t.relid FROM pgherd.tables t)) -- make_logged()
                     AND NOT EXISTS (SELECT FROM pgherd.local_tables l WHERE l.relid = c.oid)) LOOP
        IF r.relpersistence = 'u' THEN
            PERFORM pgherd.refuse(format('table %s is unlogged and cannot be replicated', r.rel),
                'Make it an ordinary table. Only if each member may have rows of its own (no locks, no leaders):'
                ' mark it with pgherd.set_local() first, and SET UNLOGGED then.');
        ELSIF r.relkind = 'f' THEN
            PERFORM pgherd.refuse('foreign tables are not supported',
                'Keep them in another database of the server, which is local.');
        END IF;
        PERFORM pgherd.refuse(format('%s: tablespaces are not supported', r.rel),
            'Members need not have the same tablespaces: leave it in the default one.');
    END LOOP;
    FOR r IN SELECT f.conname, f.conrelid::regclass AS child, f.confrelid::regclass AS parent FROM pg_constraint f
              WHERE f.contype = 'f' AND (f.conrelid = ANY (rels) OR f.confrelid = ANY (rels))
                AND EXISTS (SELECT FROM pgherd.local_tables l WHERE l.relid = f.conrelid)
                    <> EXISTS (SELECT FROM pgherd.local_tables l WHERE l.relid = f.confrelid) LOOP
        PERFORM pgherd.refuse(
            format('foreign key %I: of %s and %s one is local, the other replicated', r.conname, r.child, r.parent),
            'Members would not agree on which rows exist. Drop the foreign key; it can be made again when both are alike.');
    END LOOP;
END $$;

-- What is computed again whenever a row is applied, with the table it belongs to (0: a domain's).
--   decides  whether rows are equal, which values they have or whether they are allowed depends on it
CREATE OR REPLACE VIEW pgherd.row_expressions AS
SELECT 'pg_constraint'::regclass AS class, c.oid AS id, c.conrelid AS rel, c.conbin::text AS tree,
       c.xmin AS made, true AS decides
  FROM pg_constraint c WHERE c.conbin IS NOT NULL
UNION ALL
SELECT 'pg_attrdef'::regclass, d.oid, d.adrelid, d.adbin::text, d.xmin, true
  FROM pg_attrdef d -- of which there are fewer than columns
 WHERE (SELECT a.attgenerated FROM pg_attribute a WHERE a.attrelid = d.adrelid AND a.attnum = d.adnum) <> ''
UNION ALL
SELECT 'pg_class'::regclass, p.partrelid, p.partrelid, p.partexprs::text, p.xmin, true
  FROM pg_partitioned_table p WHERE p.partexprs IS NOT NULL
UNION ALL -- an index that is not unique only must not fail for one member's settings
SELECT 'pg_class'::regclass, i.indexrelid, i.indrelid, concat(i.indexprs, i.indpred), i.xmin,
       i.indisunique OR i.indisexclusion
  FROM pg_index i WHERE i.indexprs IS NOT NULL OR i.indpred IS NOT NULL;

-- Tables whose rows go to partitions by a hash that is made of oids: to others on each member. With OFFSET nobody can
-- write the catalog through it, with the rights of its owner.
CREATE OR REPLACE VIEW pgherd.unportable_partitions AS
SELECT p.partrelid AS rel
  FROM pg_partitioned_table p
 WHERE p.partstrat = 'h'
   AND EXISTS (
       SELECT FROM unnest(p.partattrs::int2[], p.partclass::oid[]) AS k(attnum, class)
         JOIN pg_opclass o ON o.oid = k.class
         LEFT JOIN pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = k.attnum AND k.attnum > 0
        WHERE NOT pgherd.hash_is_portable(coalesce(a.atttypid, o.opcintype))
           OR a.attnum IS NULL AND o.opcintype::regtype::text LIKE ANY ('{any%,record}'))
OFFSET 0;

-- What is computed again whenever a row is applied must not depend on where, when and under what settings: what is new,
-- or all of some tables.
CREATE OR REPLACE FUNCTION pgherd.check_expressions(rels oid[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE r record;
BEGIN
    FOR r IN SELECT pg_describe_object(e.class, e.id, 0) AS what FROM pgherd.row_expressions e
              WHERE CASE WHEN rels IS NULL THEN pgherd.is_new(e.made) ELSE e.rel = ANY (rels) END
                AND NOT pgherd.is_certain(e.tree) LOOP
        PERFORM pgherd.refuse(format('the expression of %s may have another value on another member', r.what),
            'Use immutable functions only (yours is VOLATILE unless declared otherwise), no system columns, no hashes of'
            ' enums, arrays or records, and no conversion between text and dates, floats, bytea or types of an extension.');
    END LOOP;
    FOR r IN SELECT u.rel::regclass AS rel FROM pgherd.unportable_partitions u
              WHERE rels IS NULL OR u.rel = ANY (rels) LOOP
        PERFORM pgherd.refuse(format('rows of %s would be in other partitions on other members', r.rel),
            'Its partition key has the hash of an enum or an oid, which is local to a server: partition BY LIST or RANGE,'
            ' or by the hash of another column.');
    END LOOP;
    FOR r IN SELECT pg_describe_object('pg_cast'::regclass, c.oid, 0) AS what FROM pg_cast c
              WHERE pgherd.is_new(c.xmin) AND c.castmethod = 'i' AND NOT pgherd.text_is_certain(c.casttarget, true) LOOP
        PERFORM pgherd.refuse(format('the %s may have another result on another member', r.what),
            'It reads dates, or names of objects, from text.');
    END LOOP;
END $$;

-- Why no row of a table may be written though its commands were never judged: it was there before this database was
-- replicated, or before this was refused. NULL if nothing speaks against it.
--   relatives  the table, with all others of its tree
CREATE OR REPLACE FUNCTION pgherd.why_uncertain(relatives oid[]) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    uncertain text[] := array( -- all partitions have those of the table above them
        SELECT t.tree
          FROM (SELECT DISTINCT e.tree FROM pgherd.row_expressions e WHERE e.decides AND e.rel = ANY (relatives) OFFSET 0) t
         WHERE NOT pgherd.is_certain(t.tree));
BEGIN
    RETURN coalesce(
        (SELECT format('its partition key %s has a hash that is local to a server', pg_get_partkeydef(u.rel))
           FROM pgherd.unportable_partitions u WHERE u.rel = ANY (relatives) ORDER BY u.rel LIMIT 1),
        (SELECT format('%s may have another value on another member', pg_describe_object(e.class, e.id, 0))
           FROM pgherd.row_expressions e
          WHERE e.decides AND e.rel = ANY (relatives) AND e.tree = ANY (uncertain)
          ORDER BY e.class, e.id LIMIT 1),
        (SELECT format('%s may have another value on another member', pg_describe_object(e.class, e.id, 0))
           FROM pgherd.row_expressions e JOIN pg_constraint c ON c.oid = e.id AND e.class = 'pg_constraint'::regclass
          WHERE e.decides AND e.rel = 0 AND e.id >= 16384 -- the others are PostgreSQL's own
            AND EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = ANY (relatives) AND a.atttypid >= 16384)
            AND relatives && pgherd.tables_of_types(ARRAY[c.contypid]) AND NOT pgherd.is_certain(e.tree)
          ORDER BY e.id LIMIT 1));
END $$;

-- Does a value of this type name objects or roles, which another member may not have?
CREATE OR REPLACE FUNCTION pgherd.names_objects(typ oid) RETURNS bool
LANGUAGE plpgsql STABLE COST 10000 SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF pgherd.is_plain_type(typ) THEN
        RETURN false;
    END IF;
    -- the last ones have no input function that would take them
    RETURN EXISTS (
        SELECT FROM pgherd.parts_of_type(typ) p
         WHERE p.typnamespace = 'pg_catalog'::regnamespace
           AND p.typname ~ '^(reg.*|aclitem|gtsvector|pg_node_tree|pg_ndistinct|pg_dependencies|pg_mcv_list|pg_brin_.*)$');
END $$;

-- Columns of such types: a temporary table's name in a row would stop the members that read it. Only new
-- columns are looked at, of `rels` where they are told, or all if a composite type has changed, too.
CREATE OR REPLACE FUNCTION pgherd.check_columns(everything bool, rels oid[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r         record;
    concerned oid[];
BEGIN
    everything := everything OR EXISTS (
        SELECT FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid AND c.relkind = 'c'
         WHERE pgherd.is_new(a.xmin) AND NOT a.attisdropped AND pgherd.names_objects(a.atttypid));
    concerned := CASE WHEN NOT everything THEN rels END;
    concerned := coalesce(concerned, array(SELECT u.relid FROM pgherd.user_tables u)); -- so that an index can be used
    FOR r IN SELECT a.attrelid::regclass AS rel, a.attname, a.atttypid::regtype AS typ
               FROM pg_attribute a JOIN pgherd.user_tables u ON u.relid = a.attrelid
              WHERE a.attrelid = ANY (concerned) AND a.attnum > 0 AND NOT a.attisdropped AND (everything OR pgherd.is_new(a.xmin))
                AND pgherd.names_objects(a.atttypid) LOOP
        PERFORM pgherd.refuse(
            format('column %I of table %s: values of type %s name objects of one member', r.attname, r.rel, r.typ),
            'Keep the name as text.');
    END LOOP;
END $$;

-- Has a table rows of its own?
CREATE OR REPLACE FUNCTION pgherd.has_rows(rel regclass) RETURNS bool
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE filled bool;
BEGIN
    EXECUTE format('SELECT EXISTS (SELECT FROM ONLY %s)', rel) INTO filled;
    RETURN filled;
EXCEPTION WHEN data_corrupted THEN
    -- An index of it is between its old and its new shape, so the planner can't look. Rows that were deleted count, too.
    RETURN pg_relation_size(rel) > 0;
END $$;

-- A column that is new and whose values the command itself computed would have others on each member (C22). A generated one
-- has been judged as an expression. Code of an ordinary user would run here without any rows: a default is computed once,
-- and constant parts of it when it is planned. Nothing there keeps such code from leaving something behind that is run
-- with the rights of replication, at COMMIT.
CREATE OR REPLACE FUNCTION pgherd.check_new_columns(rels oid[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE r record;
BEGIN
    FOR r IN SELECT a.attname, a.attrelid::regclass AS rel, c.user_code
               FROM pgherd.tables t
               JOIN pg_attribute a ON a.attrelid = t.relid AND a.attnum > t.columns
                                  AND a.attgenerated = '' AND NOT a.attisdropped
               JOIN pg_type y ON y.oid = a.atttypid
               LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
              CROSS JOIN LATERAL (SELECT coalesce(d.adbin, y.typdefaultbin)::text AS tree) e -- its own, or its domain's
              CROSS JOIN LATERAL (
                    SELECT pgherd.calls_user_code(e.tree) OR EXISTS ( -- these read views
                           SELECT FROM pgherd.functions_in(e.tree) f WHERE f.proname ~ '_to_xml') AS user_code) c
              WHERE t.relid = ANY (rels) AND (a.attidentity <> '' OR c.user_code OR NOT pgherd.is_certain(e.tree)) LOOP
        IF r.user_code THEN
            PERFORM pgherd.refuse(
                format('the default of new column %I of table %s calls code that is not a superuser''s', r.attname, r.rel),
                'In two steps: ADD COLUMN without the default; ALTER COLUMN ... SET DEFAULT.');
        ELSIF pgherd.has_rows(r.rel) THEN
            PERFORM pgherd.refuse_computed(format('the default of column %I of table %s', r.attname, r.rel));
        END IF;
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION pgherd.refuse_computed(what text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgherd.refuse(what || ' would have other values on other members',
        'In three steps: ADD COLUMN without the default; UPDATE the rows, which is replicated; SET DEFAULT.');
END $$;

-- Materialized views are filled by each member for itself, at the same GID.
CREATE OR REPLACE FUNCTION pgherd.check_materialized_views(rels oid[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE r record;
BEGIN
    FOR r IN SELECT c.oid::regclass AS rel FROM pg_class c
              WHERE c.relkind = 'm' AND c.oid = ANY (rels)
                AND NOT (SELECT bool_and(pgherd.same_everywhere(v.tree)) FROM pgherd.trees_of_view(c.oid) v(tree)) LOOP
        PERFORM pgherd.refuse(format('materialized view %s may have other contents on other members', r.rel),
            'Its query calls a function that is volatile, an ordinary user''s, or knows the time or the session;'
            ' reads dates from text; depends on the order in which rows lie (array_agg, string_agg, ARRAY(SELECT ...), LIMIT,'
            ' DISTINCT ON, row_number without ORDER BY; sums of floats: sum them as numeric) or on who has locked them'
            ' (FOR UPDATE); or reads system catalogs or local tables.');
    END LOOP;
END $$;

-- Whatever asks for the objects of ordinary roles asks for the superusers first: there are thousands of functions and
-- operators, each command looks, and superusers are few.
CREATE OR REPLACE FUNCTION pgherd.superusers() RETURNS oid[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN ARRAY(SELECT r.oid FROM pg_authid r WHERE r.rolsuper);
END $$;

CREATE OR REPLACE FUNCTION pgherd.ordinary_functions() RETURNS oid[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE super oid[] := pgherd.superusers();
BEGIN
    RETURN ARRAY(SELECT p.oid FROM pg_proc p WHERE p.proowner <> ALL (super));
END $$;

-- Commands that neither make nor change anything that computes, nor read anything in that way.
CREATE OR REPLACE FUNCTION pgherd.computes_nothing(tag text) RETURNS bool
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN tag LIKE 'DROP %' OR pgherd.defines_nothing(tag);
END $$;

-- Where functions and operators are run whenever a row is written or a query is planned, or inside COMMIT: what
-- check_user_code() and check_search_paths() look at.
--   made  the transaction that has made the use
CREATE OR REPLACE FUNCTION pgherd.evaluated_places(
    classes oid[], ids oid[], OUT class oid, OUT id oid, OUT place_class oid, OUT place oid, OUT part int, OUT made xid)
RETURNS SETOF record LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT c.class, c.id, d.classid, d.objid, d.objsubid, d.xmin
      FROM (SELECT DISTINCT u.class, u.id FROM unnest(classes, ids) AS u(class, id)) c
      JOIN pg_depend d ON d.refclassid = c.class AND d.refobjid = c.id
     WHERE CASE d.classid
               WHEN 'pg_constraint'::regclass THEN EXISTS (
                   SELECT FROM pg_constraint k
                    WHERE k.oid = d.objid
                      AND (k.contypid <> 0 OR k.conrelid IN (SELECT u.relid FROM pgherd.user_tables u)
                           OR k.conrelid IN (SELECT i.inhrelid FROM pg_inherits i)))
               WHEN 'pg_attrdef'::regclass THEN EXISTS (
                   SELECT FROM pg_attrdef f JOIN pg_attribute a ON a.attrelid = f.adrelid AND a.attnum = f.adnum
                    WHERE f.oid = d.objid AND a.attgenerated <> ''
                      AND f.adrelid IN (SELECT u.relid FROM pgherd.user_tables u))
               -- indexes and partition keys
               WHEN 'pg_class'::regclass THEN EXISTS (
                   SELECT FROM pg_class k WHERE k.oid = d.objid AND k.relkind IN ('i', 'I', 'r', 'p', 'm'))
               WHEN 'pg_statistic_ext'::regclass THEN true
               -- a deferred trigger runs inside COMMIT, where it could close the cursor that certifies it (C1)
               WHEN 'pg_trigger'::regclass THEN EXISTS (
                   SELECT FROM pg_trigger t WHERE t.oid = d.objid AND t.tgdeferrable AND NOT t.tgisinternal)
               -- casts to and from text and row types are what records travel by
               WHEN 'pg_cast'::regclass THEN true
               WHEN 'pg_amproc'::regclass THEN true
               WHEN 'pg_amop'::regclass THEN true
               WHEN 'pg_type'::regclass THEN EXISTS (
                   SELECT FROM pg_range g WHERE d.objid IN (g.rngtypid, g.rngmultitypid))
               ELSE false
           END;
END $$;

-- A foreign key across types is certified under the parent's type: the cast must be a superuser's. It may have no function
-- (WITH INOUT), so it is looked for where there are none, too.
--   everywhere  not of new foreign keys only
CREATE OR REPLACE FUNCTION pgherd.check_key_types(super oid[], everywhere bool) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE r record;
BEGIN
    FOR r IN
        SELECT f.conname AS name, f.conrelid::regclass AS place
          FROM pg_constraint f
         CROSS JOIN LATERAL ROWS FROM (unnest(f.conkey), unnest(f.confkey)) AS k(child, parent)
          JOIN pg_attribute c ON c.attrelid = f.conrelid AND c.attnum = k.child
          JOIN pg_attribute p ON p.attrelid = f.confrelid AND p.attnum = k.parent
          JOIN pg_type ct ON ct.oid = pgherd.base_type(c.atttypid)
          JOIN pg_type pt ON pt.oid = pgherd.base_type(p.atttypid)
         WHERE f.contype = 'f' AND c.atttypid <> p.atttypid AND ct.oid <> pt.oid
           AND (everywhere OR pgherd.is_new(f.xmin))
           AND NOT (ct.typowner = ANY (super) AND pt.typowner = ANY (super))
         LIMIT 1
    LOOP
        PERFORM pgherd.refuse(
            format('foreign key %I of %s compares a type that is not a superuser''s with another type', r.name, r.place),
            'Give both columns the same type.');
    END LOOP;
END $$;

-- Code that PostgreSQL runs whenever a row is written is run by the applier too, with all its rights and on
-- each member for itself; and deferred triggers run while a transaction commits. So it has to be PostgreSQL's
-- own or a superuser's: what an ordinary user wrote could take those rights over, write behind the back of
-- capture, have another result on another member, or undo what the hook has prepared.
--
-- The planner of a query computes in advance what is immutable in the expressions of a table's indexes, statistics
-- and partition key, and in the CHECKs of inheritance children. Our superuser plans queries on local tables, too,
-- and on temporary children of this session: so these are judged for every table and materialized view.
CREATE OR REPLACE FUNCTION pgherd.check_user_code(functions oid[] DEFAULT pgherd.ordinary_functions()) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    super     oid[] := pgherd.superusers();
    operators oid[] := ARRAY(SELECT p.oid FROM pg_operator p
                              WHERE p.oid >= 16384 AND (p.oprowner <> ALL (super) OR p.oprcode = ANY (functions)));
    r         record;
BEGIN
    PERFORM pgherd.check_key_types(super, functions <> '{}');
    IF functions = '{}' AND operators = '{}' THEN
        RETURN;
    END IF;
    FOR r IN
        SELECT CASE p.class WHEN 'pg_operator'::regclass THEN p.id::regoperator::text
                            ELSE p.id::regprocedure::text END AS name,
               pg_describe_object(p.place_class, p.place, p.part) AS place
          FROM pgherd.evaluated_places(
                   array_fill('pg_proc'::regclass::oid, ARRAY[cardinality(functions)])
                   || array_fill('pg_operator'::regclass::oid, ARRAY[cardinality(operators)]), functions || operators) p
         ORDER BY 1, 2 LIMIT 1
    LOOP
        PERFORM pgherd.refuse(format('%s uses %s, which is not a superuser''s', r.place, r.name),
            'Such code would run with the rights of replication: for each row, inside COMMIT, or when a query on the'
            ' table is planned. Have a superuser own it (ALTER FUNCTION ... OWNER TO), with a search path of its own'
            ' (ALTER FUNCTION ... SET search_path = ...), or use built-in functions only.');
    END LOOP;
END $$;

-- UPDATE and DELETE of a table reach the rows of its children; those of a temporary one are on this node only.
CREATE OR REPLACE FUNCTION pgherd.check_temporary_children() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE r record;
BEGIN
    FOR r IN SELECT t.child, u.name
               FROM (SELECT i.inhrelid::regclass AS child, i.inhparent AS parent
                       FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid AND c.relpersistence = 't' OFFSET 0) t
               JOIN pgherd.user_tables u ON u.relid = t.parent LOOP
        PERFORM pgherd.refuse(format('%s is temporary, and its parent %s is replicated', r.child, r.name),
            'Make the table without INHERITS: LIKE copies the columns.');
    END LOOP;
END $$;

-- Permanent objects that use temporary ones of this session, which no other member has. None is there before a
-- command, so any that is found was made by it.
CREATE OR REPLACE FUNCTION pgherd.check_temporary() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE r record;
BEGIN
    IF pg_my_temp_schema() = 0 THEN
        RETURN;
    END IF;
    FOR r IN
        WITH RECURSIVE temporary(class, id) AS (
            SELECT d.classid, d.objid FROM pg_depend d
             WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = pg_my_temp_schema()
               AND d.classid <> 'pg_default_acl'::regclass
            UNION -- and their parts
            SELECT d.classid, d.objid FROM temporary t JOIN pg_depend d ON d.refclassid = t.class AND d.refobjid = t.id
             WHERE d.deptype IN ('a', 'i', 'P', 'S')
               AND d.classid = ANY ('{pg_class,pg_type,pg_attrdef,pg_constraint,pg_trigger,pg_rewrite,pg_policy,pg_amop,
                                      pg_amproc}'::regclass[]::oid[])
        )
        SELECT pg_describe_object(d.classid, d.objid, d.objsubid) AS what, pg_describe_object(t.class, t.id, 0) AS used
          FROM temporary t JOIN pg_depend d ON d.refclassid = t.class AND d.refobjid = t.id
         WHERE NOT EXISTS (SELECT FROM temporary o WHERE o.class = d.classid AND o.id = d.objid)
    LOOP
        PERFORM pgherd.refuse(format('%s uses %s, which is temporary', r.what, r.used),
            'Other members do not have it: make it permanent.');
    END LOOP;
END $$;

-- Tables and materialized views that exist here only, because EXPLAIN ANALYZE fires no event trigger.
CREATE OR REPLACE VIEW pgherd.strays AS
SELECT a.relid, a.name FROM pgherd.all_tables a WHERE NOT EXISTS (SELECT FROM pgherd.tables t WHERE t.relid = a.relid);

-- Nobody wants to keep what he only had explained, and it must not be in the way of what is replicated. A
-- superuser's is left alone: he may have made it in replica role, and mean it.
CREATE OR REPLACE FUNCTION pgherd.drop_strays() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET session_replication_role = replica
SET enable_seqscan = on SET enable_hashjoin = on AS $$
DECLARE r record;
BEGIN
    -- Those of a kind together, since one may be made of another; and views first.
    FOR r IN SELECT CASE c.relkind WHEN 'm' THEN 'MATERIALIZED VIEW' ELSE 'TABLE' END AS kind,
                    string_agg(s.name, ', ' ORDER BY s.name) AS names
               FROM pgherd.strays s
               JOIN pg_class c ON c.oid = s.relid
               JOIN pg_roles o ON o.oid = c.relowner AND NOT o.rolsuper
              GROUP BY kind ORDER BY kind LOOP
        EXECUTE format('DROP %s %s', r.kind, r.names);
        RAISE WARNING '% was dropped: EXPLAIN ANALYZE made it, and on this node only', r.names
            USING HINT = 'Execute the command without EXPLAIN ANALYZE.';
    END LOOP;
END $$;

-- The tables that are left, their indexes and statistics, by oid.
CREATE OR REPLACE FUNCTION pgherd.note_strays() RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN (SELECT coalesce(jsonb_object_agg(p.oid::text, s.name), '{}')
              FROM pgherd.strays s
             CROSS JOIN LATERAL (SELECT s.relid
                                 UNION ALL SELECT i.indexrelid FROM pg_index i WHERE i.indrelid = s.relid
                                 UNION ALL SELECT e.oid FROM pg_statistic_ext e WHERE e.stxrelid = s.relid) p(oid));
END $$;

-- A command may drop those, which is local, and has to leave them alone otherwise: it changes none, and makes nothing that
-- depends on one. `strays`: as noted when it began.
CREATE OR REPLACE FUNCTION pgherd.check_strays(strays jsonb, rels oid[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE stray text;
BEGIN
    IF strays = '{}' THEN
        RETURN;
    END IF;
    stray := (SELECT min(strays ->> r.relid::text) FROM unnest(rels) AS r(relid));
    IF stray IS NULL THEN
        WITH RECURSIVE stray_parts(class, id, name) AS (
            SELECT 'pg_class'::regclass::oid, s.key::oid, s.value FROM jsonb_each_text(strays) s
            UNION
            SELECT d.classid, d.objid, p.name
              FROM stray_parts p JOIN pg_depend d ON d.refclassid = p.class AND d.refobjid = p.id
             WHERE d.deptype IN ('a', 'i')
        ), made_parts(class, id) AS (
            SELECT o.classid, o.objid FROM pg_event_trigger_ddl_commands() o
            UNION
            SELECT d.classid, d.objid FROM made_parts p JOIN pg_depend d ON d.refclassid = p.class AND d.refobjid = p.id
             WHERE d.deptype IN ('a', 'i')
        )
        SELECT min(s.name) INTO stray
          FROM made_parts m
          JOIN pg_depend d ON d.classid = m.class AND d.objid = m.id
          JOIN stray_parts s ON s.class = d.refclassid AND s.id = d.refobjid;
    END IF;
    IF stray <> '' THEN
        PERFORM pgherd.refuse(format('%s exists on this node only', stray),
            format('To change it, use session_replication_role = replica, in which it was made. DROP %s stays local, too.', stray));
    END IF;
END $$;

-- A copy that REINDEX CONCURRENTLY has made of an index, by the name that PostgreSQL gives it: that of the index, cut where it is
-- too long, and an end. It need not be invalid: the next plain REINDEX of the table makes it valid.
CREATE OR REPLACE FUNCTION pgherd.is_reindex_copy(idx oid, name name) RETURNS bool
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF name !~ '_cc(new|old)[0-9]*$' THEN
        RETURN false; -- nearly all
    END IF;
    RETURN EXISTS (
        SELECT FROM pg_index i
          JOIN pg_index o ON o.indrelid = i.indrelid AND o.indexrelid <> i.indexrelid
          JOIN pg_class a ON a.oid = i.indexrelid JOIN pg_class b ON b.oid = o.indexrelid AND b.relam = a.relam
         WHERE i.indexrelid = idx
           AND starts_with(b.relname, regexp_replace(name, '_cc(new|old)[0-9]*$', ''))
           AND (i.indisunique, i.indkey::text, i.indclass::text, i.indcollation::text, i.indoption::text)
               = (o.indisunique, o.indkey::text, o.indclass::text, o.indcollation::text, o.indoption::text)
           AND (pg_get_expr(i.indexprs, i.indrelid), pg_get_expr(i.indpred, i.indrelid))
               IS NOT DISTINCT FROM (pg_get_expr(o.indexprs, o.indrelid), pg_get_expr(o.indpred, o.indrelid)));
END $$;

-- Indexes that exist here only: REINDEX CONCURRENTLY, which is local, leaves one behind where it does not get to its end.
-- (Those of CREATE INDEX CONCURRENTLY are another matter: 055. Those of partitioned tables are made by commands.) Also one
-- that is being built right now.
CREATE OR REPLACE FUNCTION pgherd.broken_indexes() RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = on AS $$
#variable_conflict use_column
BEGIN
    RETURN (
        SELECT jsonb_object_agg(i.indexrelid::text, i.indisvalid)
          -- each command asks for these: one look at each catalog, and no function is called for each index of the database
          FROM (SELECT i.indexrelid, i.indrelid, i.indisvalid, c.relname
                  FROM (SELECT n.indexrelid AS idx FROM pg_index n WHERE NOT n.indisvalid
                        UNION
                        SELECT c.oid FROM pg_class c WHERE c.relkind = 'i' AND c.relname LIKE '%!_cc%' ESCAPE '!') k
                  JOIN pg_index i ON i.indexrelid = k.idx JOIN pg_class c ON c.oid = k.idx
                 WHERE c.relkind = 'i' AND c.relpersistence <> 't'
                OFFSET 0) i
         WHERE (NOT i.indisvalid OR pgherd.is_reindex_copy(i.indexrelid, i.relname))
           AND NOT EXISTS (SELECT FROM pg_inherits h WHERE h.inhrelid = i.indexrelid)
           AND NOT pgherd.is_long_index(i.indrelid, i.indexrelid)
           AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conindid = i.indexrelid));
END $$;

-- No command makes one of those that is valid, and none makes another index of it. `broken`: as when the command began; a
-- REINDEX CONCURRENTLY that ended meanwhile has made an index of one that was not valid.
CREATE OR REPLACE FUNCTION pgherd.check_reindex_copies(broken jsonb, rels oid[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    copies jsonb;
    name   text;
BEGIN
    IF broken = '{}' AND NOT EXISTS (
            SELECT FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
             WHERE i.indrelid = ANY (rels) AND c.relname ~ '_cc(new|old)[0-9]*$') THEN
        RETURN;
    END IF;
    copies := pgherd.broken_indexes();
    name := (SELECT min(i.indexrelid::regclass::text) FROM pg_index i
              WHERE i.indrelid IN (SELECT x.indrelid FROM pg_index x WHERE x.indexrelid = ANY (rels)
                                   UNION ALL SELECT unnest(rels))
                AND i.indisvalid
                AND CASE WHEN copies ? i.indexrelid::text THEN NOT broken ? i.indexrelid::text
                         ELSE (broken ->> i.indexrelid::text)::bool END);
    PERFORM pgherd.refuse_reindex_copy(name);
END $$;

CREATE OR REPLACE FUNCTION pgherd.refuse_reindex_copy(name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF name <> '' THEN
        PERFORM pgherd.refuse(
            format('index %s is taken for a copy that REINDEX CONCURRENTLY has left on one member', name),
            'Give it a name that does not end with _ccnew or _ccold, or DROP it first.');
    END IF;
END $$;

-- What is left of those, on a member that executes a command: an index of that name may have been made elsewhere. Who
-- is at work on one holds a lock on it that writers do not take.
CREATE OR REPLACE FUNCTION pgherd.drop_broken_indexes() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET session_replication_role = replica AS $$
DECLARE r record;
BEGIN
    FOR r IN SELECT b.key::oid::regclass AS name
               FROM jsonb_each(coalesce(pgherd.broken_indexes(), '{}')) AS b
              WHERE NOT EXISTS (
                    SELECT FROM pg_locks l
                     WHERE l.relation = b.key::oid AND l.pid <> pg_backend_pid()
                       AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
                       AND l.mode NOT IN ('AccessShareLock', 'RowShareLock', 'RowExclusiveLock')) LOOP
        EXECUTE format('DROP INDEX %s', r.name);
        RAISE WARNING 'index % was dropped: an interrupted REINDEX CONCURRENTLY left it on this node', r.name;
    END LOOP;
END $$;
