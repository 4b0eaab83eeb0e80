-- What pgherd has to know of the user's tables, read from PostgreSQL's catalogs.
--
-- The functions here and in the files after this one are in PL/pgSQL where a table's source asks them again and again:
-- it keeps their plans, and a function in SQL is planned at each call.

-- Tables whose rows are replicated: permanent, outside the schemas of PostgreSQL and pgherd, not marked
-- local. `root_relid`: the topmost partitioned table, under whose name the rows of all partitions travel.
CREATE OR REPLACE VIEW pgherd.user_tables AS
SELECT c.oid AS relid,
       coalesce(pg_partition_root(c.oid)::oid, c.oid) AS root_relid,
       format('%I.%I', n.nspname, c.relname) AS name,
       c.relkind = 'p' AS partitioned,
       NOT c.relispartition AND c.relkind = 'r'
           AND (EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = c.oid)
                OR EXISTS (SELECT FROM pg_inherits i WHERE i.inhparent = c.oid)) AS inherits
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
   AND n.nspname NOT LIKE E'pg\\_%' AND n.nspname NOT IN ('information_schema', 'pgherd', 'pgherd_gen')
   AND NOT EXISTS (SELECT FROM pgherd.local_tables l WHERE l.name = format('%I.%I', n.nspname, c.relname));

-- The index whose columns are a row's identity: the primary key's, or else a unique one that says as much. Which of
-- several it is must be the same on all members. NULL for a table without: there a row's identity is its image,
-- the text of all its columns, and rows with equal images are interchangeable.
CREATE OR REPLACE FUNCTION pgherd.identity_index(root oid) RETURNS oid
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    -- that of a partitioned table alone is not valid: its partitions may hold a key twice
    found oid := (SELECT i.indexrelid FROM pg_index i WHERE i.indrelid = root AND i.indisprimary AND i.indisvalid);
BEGIN
    IF found IS NOT NULL THEN
        RETURN found;
    END IF;
    RETURN (
        SELECT i.indexrelid
          FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
         WHERE i.indrelid = root
           AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL
           AND NOT EXISTS (
               SELECT FROM unnest((i.indkey::int2[])[0:i.indnkeyatts - 1], (i.indcollation::oid[])[0:i.indnkeyatts - 1],
                                  (i.indclass::oid[])[0:i.indnkeyatts - 1]) AS k(attnum, coll, class)
                 JOIN pg_attribute a ON a.attrelid = root AND a.attnum = k.attnum
                WHERE NOT a.attnotnull OR a.attgenerated <> ''
                   -- rows are told apart by the column's own equality, which may be another one than the index's
                   OR k.coll <> a.attcollation
                      AND NOT (SELECT bool_and(c.collisdeterministic) FROM pg_collation c
                                WHERE c.oid IN (k.coll, a.attcollation))
                   OR NOT EXISTS (SELECT FROM pg_opclass x
                                    JOIN pg_amop e ON e.amopfamily = x.opcfamily AND e.amopstrategy = 3
                                                  AND e.amoplefttype = x.opcintype AND e.amoprighttype = x.opcintype
                                    JOIN pg_amop d ON d.amopopr = e.amopopr AND d.amopstrategy = 3
                                    JOIN pg_opclass o ON o.opcfamily = d.amopfamily AND o.opcmethod = x.opcmethod
                                                     AND o.opcintype = x.opcintype AND o.opcdefault
                                   WHERE x.oid = k.class)
                   -- from PostgreSQL 18 on a column may be marked although it still holds NULLs
                   OR EXISTS (SELECT FROM pg_constraint n WHERE n.conrelid = root AND n.contype = 'n'
                                                            AND NOT n.convalidated AND n.conkey[1] = k.attnum))
         ORDER BY i.indnkeyatts, c.relname COLLATE "C" LIMIT 1);
END $$;

-- A type and all that its values are made of: the base of a domain, the bounds of a range, the columns of a composite
-- type, the elements of an array.
CREATE OR REPLACE FUNCTION pgherd.parts_of_type(typ oid) RETURNS SETOF pg_type
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    t      pg_type;
    inside oid[];
BEGIN
    SELECT * INTO t FROM pg_type WHERE oid = typ;
    RETURN NEXT t;
    inside := CASE
        WHEN t.typtype = 'd' THEN ARRAY[t.typbasetype]
        WHEN t.typtype IN ('r', 'm') THEN ARRAY(
            SELECT r.rngsubtype FROM pg_range r WHERE typ IN (r.rngtypid, r.rngmultitypid))
        WHEN t.typtype = 'c' THEN ARRAY(
            SELECT a.atttypid FROM pg_attribute a WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped)
        WHEN t.typcategory = 'A' AND t.typelem <> 0 THEN ARRAY[t.typelem]
    END;
    IF inside IS NOT NULL THEN
        RETURN QUERY SELECT p.* FROM unnest(inside) AS i(oid), pgherd.parts_of_type(i.oid) p;
    END IF;
END $$;

-- One of PostgreSQL's types that most columns have: no part of it is made of oids, names an object, or is the user's.
CREATE OR REPLACE FUNCTION pgherd.is_plain_type(typ oid) RETURNS bool
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN typ = ANY ('{bool,int2,int4,int8,numeric,float4,float8,text,varchar,bpchar,uuid,date,timestamp,timestamptz,json,jsonb,
                        bytea}'::regtype[]::oid[]);
END $$;

-- May a value's hash, as PostgreSQL's operator class makes it, be compared between members? Not where
-- it is made of oids, which are local to a server (enums above all).
CREATE OR REPLACE FUNCTION pgherd.hash_is_portable(t oid) RETURNS bool
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF pgherd.is_plain_type(t) THEN
        RETURN true;
    END IF;
    RETURN NOT EXISTS (SELECT FROM pgherd.parts_of_type(t) p
                        WHERE p.typtype = 'e' OR p.oid = 'oid'::regtype OR (p.typtype = 'b' AND p.typname LIKE 'reg%'));
END $$;

-- Those of arrays, ranges and rows are made of the hashes of what is in them, and fail where that has none.
CREATE OR REPLACE FUNCTION pgherd.parts_have_hash(t oid) RETURNS bool
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF pgherd.is_plain_type(t) THEN
        RETURN true;
    END IF;
    RETURN NOT EXISTS (
        SELECT FROM pgherd.parts_of_type(t) p
         WHERE p.oid <> t AND p.typtype = 'b' AND NOT (p.typcategory = 'A' AND p.typelem <> 0)
           AND NOT EXISTS (
               SELECT FROM pg_opclass o
                 JOIN pg_am am ON am.oid = o.opcmethod AND am.amname = 'hash'
                 JOIN pg_amproc f ON f.amprocfamily = o.opcfamily AND f.amprocnum = 2 AND f.amproclefttype = o.opcintype
                WHERE o.opcdefault
                  AND (o.opcintype = p.oid
                       OR EXISTS (SELECT FROM pg_cast k WHERE k.castsource = p.oid AND k.casttarget = o.opcintype
                                                          AND k.castmethod = 'b' AND k.castcontext = 'i'))));
END $$;

CREATE OR REPLACE FUNCTION pgherd.base_type(t oid) RETURNS oid
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    base oid;
BEGIN
    IF t < 10000 THEN -- PostgreSQL's own types have these numbers, and none of them is a domain
        RETURN t;
    END IF;
    LOOP
        base := (SELECT p.typbasetype FROM pg_type p WHERE p.oid = t AND p.typtype = 'd');
        IF base IS NULL THEN
            RETURN (SELECT p.oid FROM pg_type p WHERE p.oid = t);
        END IF;
        t := base;
    END LOOP;
END $$;

-- A type's name as it means the same under every search path.
CREATE OR REPLACE FUNCTION pgherd.type_name(t oid) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN (SELECT format('%I.%I', n.nspname, p.typname)
              FROM pg_type p JOIN pg_namespace n ON n.oid = p.typnamespace WHERE p.oid = t);
END $$;

-- The hash of one key column as SQL text, chained from `seed`; NULL when there is no portable hash.
-- It is the extended hash function of the hash operator family that shares the index's equality operator,
-- so it is equal exactly where the index says equal (C6): 1.0 and 1.00, citext, -0, int4 and int8.
CREATE OR REPLACE FUNCTION pgherd.hash_term(expr text, typ oid, coll oid, equality oid, seed text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    base oid := pgherd.base_type(typ);
    hash text;
BEGIN
    IF (SELECT t.typtype = 'e' FROM pg_type t WHERE t.oid = base) THEN
        RETURN format('pg_catalog.hashtextextended(CASE WHEN %1$s IS NOT NULL THEN pg_catalog.format(''%%s'', %1$s) END'
                      ' COLLATE pg_catalog."C", %2$s)', expr, seed);
    END IF;
    IF NOT pgherd.hash_is_portable(base) OR NOT pgherd.parts_have_hash(base) THEN
        RETURN NULL;
    END IF;
    SELECT CASE WHEN p.proargtypes[0] = o.amoplefttype OR p.proargtypes[0]::regtype::text LIKE 'any%'
                     OR EXISTS (SELECT FROM pg_cast k
                                 WHERE k.castsource = o.amoplefttype AND k.casttarget = p.proargtypes[0]
                                   AND k.castmethod = 'b' AND k.castcontext = 'i')
                THEN format('%I.%I(%%s, %%s)', n.nspname, p.proname)
                -- date, timestamptz, bool, bytea: SQL may not call the function, a record's hash does.
                ELSE 'CASE WHEN %1$s IS NOT NULL THEN pg_catalog.hash_record_extended(ROW(%1$s), %2$s) END'
           END INTO hash
      FROM pg_amop o
      JOIN pg_am am ON am.oid = o.amopmethod AND am.amname = 'hash'
      JOIN pg_amproc f ON f.amprocfamily = o.amopfamily AND f.amprocnum = 2
                      AND f.amproclefttype = o.amoplefttype AND f.amprocrighttype = o.amoplefttype
      JOIN pg_proc p ON p.oid = f.amproc
      JOIN pg_namespace n ON n.oid = p.pronamespace
     WHERE o.amopopr = equality AND o.amopstrategy = 1 AND o.amoplefttype = o.amoprighttype
     ORDER BY o.oid LIMIT 1;
    IF coll <> 0 THEN
        expr := expr || (SELECT format(' COLLATE %I.%I', n.nspname, c.collname)
                           FROM pg_collation c JOIN pg_namespace n ON n.oid = c.collnamespace
                          WHERE c.oid = coll AND c.collname <> 'default' UNION ALL SELECT '' LIMIT 1);
    END IF;
    RETURN format(hash, expr, seed);
END $$;

CREATE OR REPLACE FUNCTION pgherd.name_hash(name text) RETURNS int8
LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN hashtextextended(name COLLATE "C", 20060112) & -4;
END $$;

-- The name under which the keys of an index are hashed: that of the partitioned index it belongs to.
CREATE OR REPLACE FUNCTION pgherd.index_seed(idx oid) RETURNS int8
LANGUAGE plpgsql STABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN (
        SELECT pgherd.name_hash(format('index %I.%I', n.nspname, c.relname))
          FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE c.oid = coalesce(pg_partition_root(idx)::oid, idx));
END $$;

-- Key columns of an index: expression over the row `alias` (NULL: must not be evaluated here, because the
-- user's own functions never run with our rights), type, collation, equality operator.
CREATE OR REPLACE FUNCTION pgherd.index_columns(
    idx oid, alias text, OUT pos int, OUT attnum int2, OUT expr text, OUT typ oid, OUT coll oid, OUT equality oid)
RETURNS SETOF record LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT k.pos::int, k.attnum,
           CASE WHEN k.attnum <> 0 THEN format('%s.%I', alias, ta.attname)
                WHEN NOT EXISTS (SELECT FROM pg_depend d
                                  WHERE d.classid = 'pg_class'::regclass AND d.objid = idx AND d.refclassid IN
                                        ('pg_proc'::regclass, 'pg_operator'::regclass, 'pg_type'::regclass))
                     AND NOT pgherd.reads_column(i, 0::int2) -- it names the table, which is not there
                -- where its predicate does not hold, the expression may have no value
                THEN format('(SELECT %s FROM (SELECT %s.*) r)',
                            CASE WHEN i.indpred IS NULL THEN pg_get_indexdef(idx, k.pos::int, false)
                                 ELSE format('CASE WHEN %s THEN %s END', pg_get_expr(i.indpred, i.indrelid),
                                             pg_get_indexdef(idx, k.pos::int, false)) END, alias)
           END,
           ia.atttypid, i.indcollation[k.pos - 1], o.amopopr
      FROM pg_index i
     CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, pos)
      JOIN pg_opclass oc ON oc.oid = i.indclass[k.pos - 1]
      LEFT JOIN pg_amop o ON o.amopfamily = oc.opcfamily AND o.amopstrategy = 3
                         AND o.amoplefttype = oc.opcintype AND o.amoprighttype = oc.opcintype
      JOIN pg_attribute ia ON ia.attrelid = idx AND ia.attnum = k.pos
      LEFT JOIN pg_attribute ta ON ta.attrelid = i.indrelid AND ta.attnum = k.attnum AND k.attnum > 0
     WHERE i.indexrelid = idx AND k.pos <= i.indnkeyatts;
END $$;

-- The certification key under which an index knows these values of its columns, as SQL text without mode bits;
-- its value is NULL for a row that can conflict with no other. Where no exact hash exists, or a value is not
-- known (NULL): one key for the whole index, which only means more conflicts, never fewer.
CREATE OR REPLACE FUNCTION pgherd.key_of_values(idx oid, exprs text[]) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    c          record;
    term       text;
    coarse     text := pgherd.index_seed(idx)::text;
    result     text := coarse;
    null_is_eq bool := (SELECT to_jsonb(i) ->> 'indnullsnotdistinct' = 'true' FROM pg_index i WHERE i.indexrelid = idx);
BEGIN
    FOR c IN SELECT * FROM pgherd.index_columns(idx, '') ORDER BY pos LOOP
        term := CASE WHEN exprs[c.pos] IS NOT NULL
                     THEN pgherd.hash_term(exprs[c.pos], c.typ, c.coll, c.equality, result) END;
        IF term IS NULL THEN
            RETURN coarse;
        ELSIF null_is_eq THEN
            term := format('coalesce(%s, pg_catalog.hashint8extended(%s, 1))', term, result);
        END IF;
        result := term;
    END LOOP;
    RETURN format('(%s OPERATOR(pg_catalog.&) -4)', result);
END $$;

-- The key of the row `alias` in an index of its table.
CREATE OR REPLACE FUNCTION pgherd.index_key(idx oid, alias text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN (
        SELECT CASE WHEN i.indisexclusion THEN pgherd.index_seed(idx)::text
                    ELSE pgherd.key_of_values(idx, array(
                             SELECT c.expr FROM pgherd.index_columns(idx, alias) c ORDER BY c.pos)) END
          FROM pg_index i WHERE i.indexrelid = idx);
END $$;

CREATE OR REPLACE FUNCTION pgherd.crosses_collations(f pg_constraint) RETURNS bool
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM unnest(f.conkey, f.confkey) AS k(child, parent)
          JOIN pg_attribute a ON a.attrelid = f.conrelid AND a.attnum = k.child
          JOIN pg_attribute b ON b.attrelid = f.confrelid AND b.attnum = k.parent
          JOIN pg_index i ON i.indexrelid = f.conindid
         CROSS JOIN LATERAL (SELECT (i.indcollation::oid[])[array_position(i.indkey::int2[], k.parent)] AS coll) x
         WHERE (a.attcollation <> x.coll OR b.attcollation <> x.coll)
           AND EXISTS (SELECT FROM pg_collation c
                        WHERE c.oid IN (a.attcollation, b.attcollation, x.coll) AND NOT c.collisdeterministic));
END $$;

-- The key of the parent row that a foreign key of `alias` names: the same value as index_key() of the parent.
-- Which parent that is may depend on the session (timestamptz and date are compared in its TimeZone), or on a collation that
-- has other equals than the parent's key: then the parent's whole table excludes its other writers.
CREATE OR REPLACE FUNCTION pgherd.foreign_key(con oid, alias text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN (
        SELECT CASE WHEN EXISTS (SELECT FROM unnest(f.conpfeqop) AS e(op) JOIN pg_operator o ON o.oid = e.op
                                   JOIN pg_proc p ON p.oid = o.oprcode WHERE p.provolatile <> 'i')
                         OR pgherd.crosses_collations(f)
                    THEN (pgherd.name_hash('table ' || (
                             SELECT format('%I.%I', n.nspname, c.relname)
                               FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                              WHERE c.oid = coalesce(pg_partition_root(f.confrelid)::oid, f.confrelid))) | 3)::text
                    ELSE pgherd.key_of_values(f.conindid, array(
                   SELECT format(CASE WHEN pgherd.base_type(a.atttypid) = pgherd.base_type(c.typ) THEN '%s.%I'
                                      ELSE '(%s.%I)::%s' END, alias, a.attname, pgherd.type_name(pgherd.base_type(c.typ)))
                     FROM (SELECT i.pos, i.attnum, -- an index stores a name as cstring
                                  CASE i.typ WHEN 'cstring'::regtype THEN 'name'::regtype ELSE i.typ END AS typ
                             FROM pgherd.index_columns(f.conindid, alias) i) c
                     JOIN pg_attribute a ON a.attrelid = f.conrelid
                                        AND a.attnum = f.conkey[array_position(f.confkey, c.attnum)]
                    ORDER BY c.pos)) END
          FROM pg_constraint f WHERE f.oid = con);
END $$;

-- Settings under which the text form of the columns is the same in every session, and can be read back
-- (C6); '' when none matters. An expression of an index is the one piece of generated text that is not
-- qualified name by name, so there the search path is fixed too: what it finds runs with our rights.
CREATE OR REPLACE FUNCTION pgherd.text_settings(rel oid) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN (
        SELECT CASE WHEN bool_and(pgherd.base_type(a.atttypid) = ANY (
                            '{bool,int2,int4,int8,numeric,text,varchar,bpchar,name,uuid,json,jsonb,inet,cidr,bit,varbit}'
                            ::regtype[]::oid[]))
                         AND NOT EXISTS (
                             SELECT FROM pg_index i
                              WHERE i.indrelid IN (SELECT rel UNION ALL SELECT t.relid FROM pg_partition_tree(rel) t)
                                AND i.indexprs IS NOT NULL AND (i.indisunique OR i.indisexclusion))
                         AND NOT EXISTS ( -- an index that is built elsewhere already
                             SELECT FROM pgherd.long_commands l WHERE l.row_key <> ''
                                AND l.relid IN (SELECT rel UNION ALL SELECT t.relid FROM pg_partition_tree(rel) t))
                    THEN ''
                    ELSE ' SET search_path = pg_catalog, pg_temp'
                         ' SET DateStyle = ''ISO, YMD'' SET IntervalStyle = ''postgres'' SET TimeZone = ''UTC'''
                         ' SET extra_float_digits = 1 SET bytea_output = ''hex'' SET lc_monetary = ''C'''
                         ' SET xmloption = content SET array_nulls = on SET quote_all_identifiers = off'
               END
          FROM pg_attribute a WHERE a.attrelid = rel AND a.attnum > 0 AND NOT a.attisdropped);
END $$;

-- True for types where the default "=" says equal only if the stored bytes are the same.
CREATE OR REPLACE FUNCTION pgherd.equality_is_identity(typ oid, coll oid) RETURNS bool
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF typ = ANY ('{bool,int2,int4,int8,oid,date,timestamp,timestamptz,time,uuid,name,macaddr}'::regtype[]::oid[]) THEN
        RETURN true;
    ELSIF typ <> ALL ('{text,varchar}'::regtype[]::oid[]) THEN
        RETURN false;
    END IF;
    RETURN coalesce((SELECT c.collisdeterministic FROM pg_collation c WHERE c.oid = coll), false);
END $$;
