-- The pieces of SQL text of which a table's generated functions are put together.
-- `rel` is the table whose rows are captured, `root` the one under whose name they travel: the columns of a
-- partition may stand in another order, so everything is by name and in the order of `root`.

-- The table and the partitions below it. pg_partition_tree() locks them: who asks on behalf of a session that
-- has truncated them would wait for that session, which waits for the answer. With OFFSET the planner has to begin with the
-- tree, as in trees_of(): else it looks through the tree for each partition of the database.
CREATE OR REPLACE FUNCTION pgherd.partitions(root oid) RETURNS TABLE (relid oid)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
#variable_conflict use_column
BEGIN
    IF NOT EXISTS (SELECT FROM pg_partitioned_table p WHERE p.partrelid = root) THEN
        relid := root;
        RETURN NEXT;
        RETURN;
    END IF;
    RETURN QUERY
    WITH RECURSIVE tree AS (
        SELECT root AS relid
        UNION ALL
        SELECT n.relid
          FROM tree t CROSS JOIN LATERAL (SELECT h.inhrelid AS relid FROM pg_inherits h WHERE h.inhparent = t.relid OFFSET 0) n)
    SELECT t.relid FROM tree t;
END $$;

-- The same as an array; of most tables it is the table alone.
CREATE OR REPLACE FUNCTION pgherd.partition_tree(root oid) RETURNS oid[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    IF NOT EXISTS (SELECT FROM pg_partitioned_table p WHERE p.partrelid = root) THEN
        RETURN ARRAY[root];
    END IF;
    RETURN array(SELECT t.relid FROM pgherd.partitions(root) t);
END $$;

-- Does an expression or predicate of the index read the column, or the whole row? Not so INCLUDE: pg_depend knows of both.
CREATE OR REPLACE FUNCTION pgherd.reads_column(i pg_index, number int2) RETURNS bool
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN concat(i.indexprs, i.indpred) ~ format(':varattno (0|%s) ', number);
END $$;

CREATE OR REPLACE FUNCTION pgherd.columns(
    root oid, OUT pos int, OUT col text, OUT typ oid, OUT coll oid, OUT generated bool, OUT is_notnull bool,
    OUT in_pk bool, OUT in_unique bool)
RETURNS SETOF record LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    tree oid[] := pgherd.partition_tree(root);
    -- INCLUDE columns stand behind those of the key
    pk   int2[] := (SELECT (i.indkey::int2[])[0:i.indnkeyatts - 1] FROM pg_index i WHERE i.indexrelid = pgherd.identity_index(root));
    -- Columns of unique and exclusion indexes, of any partition too, with those that their expressions and predicates read.
    held name[];
    computed bool;
BEGIN
    -- An index of expressions alone has no such column.
    SELECT coalesce(array_agg(a.attname) FILTER (WHERE a.attnum IS NOT NULL), '{}'),
           coalesce(bool_or(i.indexprs IS NOT NULL OR i.indpred IS NOT NULL), false)
      INTO held, computed
      FROM pg_index i
      LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
     WHERE i.indrelid = ANY (tree) AND (i.indisunique OR i.indisexclusion);
    IF computed THEN
        held := held || array(
            SELECT a.attname FROM pg_index i
              JOIN pg_attribute a ON a.attrelid = i.indrelid AND pgherd.reads_column(i, a.attnum)
             WHERE i.indrelid = ANY (tree) AND (i.indisunique OR i.indisexclusion)
               AND (i.indexprs IS NOT NULL OR i.indpred IS NOT NULL));
    END IF;
    RETURN QUERY
    SELECT (row_number() OVER (ORDER BY a.attnum))::int, quote_ident(a.attname), a.atttypid, a.attcollation,
           a.attgenerated <> '', a.attnotnull, coalesce(a.attnum = ANY (pk), false),
           -- A change of one of these travels as delete and insert (C10), as one of an identity column, which PostgreSQL
           -- does not let anybody UPDATE.
           a.attidentity = 'a' OR a.attname = ANY (held)
           -- Other members may have an index that is not here yet (055_unique_indexes).
           OR EXISTS (SELECT FROM pgherd.long_commands l WHERE l.relid = ANY (tree) AND a.attname = ANY (l.columns))
      FROM pg_attribute a
     WHERE a.attrelid = root AND a.attnum > 0 AND NOT a.attisdropped
     ORDER BY a.attnum;
END $$;

-- "did this column change between rows o and n", exactly: not by an "=" that calls 1.0 and 1.00 equal.
CREATE OR REPLACE FUNCTION pgherd.changed(col text, typ oid, coll oid, is_notnull bool) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    equal text := CASE
        WHEN pgherd.equality_is_identity(typ, coll) THEN format('n.%1$s OPERATOR(pg_catalog.=) o.%1$s', col)
        -- its "=" forgives trailing blanks, and nothing else
        WHEN typ = 'bpchar'::regtype AND pgherd.equality_is_identity('text'::regtype, coll)
        THEN format('n.%1$s OPERATOR(pg_catalog.=) o.%1$s AND pg_catalog.octet_length(n.%1$s)'
                    ' OPERATOR(pg_catalog.=) pg_catalog.octet_length(o.%1$s)', col) END;
BEGIN
    RETURN CASE WHEN equal IS NULL
                THEN format('(ROW(n.%1$s)::pg_catalog.record OPERATOR(pg_catalog.*<>) ROW(o.%1$s)::pg_catalog.record)', col)
                WHEN is_notnull THEN format('(NOT (%s))', equal)
                ELSE format('((%2$s) IS NOT TRUE AND NOT (n.%1$s IS NULL AND o.%1$s IS NULL))', col, equal) END;
END $$;

CREATE OR REPLACE FUNCTION pgherd.plain_columns(tree oid[]) RETURNS SETOF name
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY
    SELECT a.attname FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid AND t.typstorage <> 'p'
     WHERE a.attrelid = ANY (tree) AND a.attnum > 0 AND NOT a.attisdropped AND a.attlen = -1 AND a.attstorage = 'p';
END $$;

-- Columns whose values are in an index as they are, or always in the row itself (PLAIN), and how PostgreSQL compresses text
-- that is written into them: by `pglz`, by `lz4`, by the session's method (`default`); or `otherwise`: never, or not alike in
-- all partitions.
CREATE OR REPLACE FUNCTION pgherd.compressed_columns(root oid)
RETURNS TABLE (pos int, col text, typ oid, coll oid, is_notnull bool, method text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE tree oid[] := pgherd.partition_tree(root);
BEGIN
    IF NOT EXISTS (SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey::int2[])
                    WHERE i.indrelid = ANY (tree) AND a.attlen = -1)
       AND NOT EXISTS (SELECT FROM pgherd.plain_columns(tree)) THEN
        RETURN; -- most tables have none
    END IF;
    RETURN QUERY
    SELECT c.pos, c.col, c.typ, c.coll, c.is_notnull,
           CASE WHEN min(m.method) = max(m.method) THEN min(m.method) ELSE 'otherwise' END
      FROM pgherd.columns(root) c
      JOIN pg_attribute a ON quote_ident(a.attname) = c.col AND a.attlen = -1 AND a.attrelid = ANY (tree)
      JOIN pg_class r ON r.oid = a.attrelid AND r.relkind = 'r'
     CROSS JOIN LATERAL (SELECT CASE WHEN a.attname IN (SELECT p.name FROM pgherd.plain_columns(tree) AS p(name)) THEN 'otherwise'
                                     WHEN a.attcompression = 'p' THEN 'pglz' WHEN a.attcompression = 'l' THEN 'lz4'
                                     ELSE 'default' END AS method) m
     WHERE m.method = 'otherwise' OR EXISTS (
           SELECT FROM pg_index i
             JOIN pg_class x ON x.oid = i.indexrelid
             JOIN pg_am am ON am.oid = x.relam AND am.amname NOT IN ('gin', 'hash') -- they keep something else
             JOIN pg_attribute ia ON ia.attrelid = i.indrelid AND ia.attname = a.attname
            WHERE i.indrelid = ANY (tree) AND ia.attnum = ANY (i.indkey::int2[]))
     GROUP BY c.pos, c.col, c.typ, c.coll, c.is_notnull;
END $$;

-- PostgreSQL copies a compressed value as it is, into the index too; other members compress its text by the rule of
-- the column, and it may be too large for their index. Is there such a value in row n? NULL where there can't be one.
-- `updated`: of values that do not travel, since they are what they were in row o, nobody asks. Columns that follow the
-- session are tried with both methods, one after the other: two of them must not need one each.
CREATE OR REPLACE FUNCTION pgherd.compressed_otherwise(root oid, updated bool) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN (
        WITH k AS (
            SELECT c.col, c.method, format('pg_catalog.pg_column_compression(n.%s)', c.col) AS found,
                   CASE WHEN updated THEN format(' AND (%s OR NOT (%s))', pgherd.changed(c.col, c.typ, c.coll, c.is_notnull),
                                                 pgherd.same_identity(root)) ELSE '' END AS travels
              FROM pgherd.compressed_columns(root) c
        ), terms AS (
            SELECT format(CASE k.method WHEN 'otherwise' THEN '(%1$s IS NOT NULL%3$s)'
                                        ELSE '(coalesce(%1$s, %2$L) OPERATOR(pg_catalog.<>) %2$L%3$s)' END,
                          k.found, k.method, k.travels) AS term
              FROM k WHERE k.method <> 'default'
            UNION ALL
            SELECT format('coalesce(LEAST(%1$s) OPERATOR(pg_catalog.<>) GREATEST(%1$s), false)', string_agg(
                       format('CASE WHEN true%3$s THEN coalesce(%2$s, CASE WHEN pg_catalog.pg_column_size(n.%1$s)'
                              ' OPERATOR(pg_catalog.>) 500 THEN pg_catalog.current_setting(''default_toast_compression'') END) END',
                              k.col, k.found, k.travels),
                       ', ' ORDER BY k.col))
              FROM k WHERE k.method = 'default' HAVING count(*) > 1
        )
        SELECT format('(%s)', string_agg(t.term, ' OR ' ORDER BY t.term)) FROM terms t HAVING count(*) > 0);
END $$;

CREATE OR REPLACE FUNCTION pgherd.refuse_compressed(tab regclass) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgherd.refuse(
        format('a value of table %s is compressed otherwise than text that is written there', tab),
        'It was copied, and might be too large on other members. Write text that is computed: column || ''''.');
END $$;

-- Values travel as text, and some that PostgreSQL computes cannot be read again: a circle of negative radius, an
-- interval at its limits, XML with two prologues, a NULL that an outer join makes in a domain which forbids it; or are
-- read as others: a time zone of 400 hours; or JSON that was built deeper than anybody can read. Is every value of this type read as it was written? Those of others are
-- read at the origin, too, before they count.
CREATE OR REPLACE FUNCTION pgherd.reads_back(typ oid) RETURNS bool
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    known CONSTANT oid[] := '{bool,int2,int4,int8,oid,text,varchar,bpchar,"char",name,uuid,jsonb,numeric,float4,float8,
                              money,bytea,date,time,timestamp,timestamptz,inet,cidr,macaddr,macaddr8,bit,varbit,point,pg_lsn}'
                             ::regtype[];
BEGIN
    IF typ = ANY (known) THEN -- nearly all, and no query is needed
        RETURN true;
    END IF;
    RETURN NOT EXISTS (
        SELECT FROM pgherd.parts_of_type(typ) p
         WHERE p.typtype NOT IN ('e', 'r', 'm', 'c') AND NOT (p.typtype = 'b' AND p.typcategory = 'A' AND p.typelem <> 0)
           AND p.oid <> ALL (known));
END $$;

-- The text of a value, which has been read `again` from it.
--   whole  its text does not say all of it: compare what is stored
CREATE OR REPLACE FUNCTION pgherd.sent(value anyelement, again anyelement, whole bool DEFAULT false) RETURNS text
LANGUAGE plpgsql AS $$
BEGIN
    IF value IS NOT DISTINCT FROM NULL THEN
        RETURN NULL;
    ELSIF pg_catalog.format('%s', value) OPERATOR(pg_catalog.<>) pg_catalog.format('%s', again) THEN
        PERFORM pgherd.refuse(pg_catalog.format('a value of type %s is read otherwise than it is written: %s',
                                                pg_catalog.pg_typeof(value), value),
                              'No other member could have it: store another one.');
    ELSIF whole AND NOT pg_catalog.record_image_eq(ROW(value), ROW(again)) THEN
        PERFORM pgherd.refuse(pg_catalog.format('PostgreSQL leaves out the declaration of XML in a value of type %s: %s',
                                                pg_catalog.pg_typeof(value), value),
                              'No other member could have it: store XML without a declaration, '
                              'or in a column of type xml of a table with a primary key.');
    END IF;
    RETURN pg_catalog.format('%s', value);
END $$;

-- A column's value as it travels.
--   named  it is compared with the output of the row
CREATE OR REPLACE FUNCTION pgherd.field(value text, typ oid, named bool DEFAULT false) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    IF pgherd.reads_back(typ) THEN -- nearly all, and no query is needed
        RETURN value;
    END IF;
    RETURN CASE WHEN typ = 'json'::regtype -- it is kept as it was written
                THEN format('(CASE WHEN %1$s IS DISTINCT FROM NULL THEN pg_catalog.format(''%%s'', %1$s) END)::pg_catalog.json',
                            value)
                -- its output leaves out the encoding that was declared, and its text does not
                WHEN pgherd.base_type(typ) = 'xml'::regtype AND NOT named
                THEN format('pgherd.sent(%1$s::pg_catalog.xml::pg_catalog.text,'
                            ' %1$s::pg_catalog.xml::pg_catalog.text::%2$s::pg_catalog.xml::pg_catalog.text)',
                            value, pgherd.type_name(typ))
                ELSE format('pgherd.sent(%1$s::%2$s, (CASE WHEN %1$s IS DISTINCT FROM NULL THEN pg_catalog.format(''%%s'', %1$s)'
                            ' END)::%2$s%3$s)', value, pgherd.type_name(typ),
                            CASE WHEN EXISTS (SELECT FROM pgherd.parts_of_type(typ) p WHERE p.oid = 'xml'::regtype)
                                 THEN ', true' ELSE '' END) END;
END $$;

-- Record literals: the whole row, its key, its key and what changed; and the bitmap of changed columns. A row that is
-- only named by its text need not be read `again`.
CREATE OR REPLACE FUNCTION pgherd.record_full(root oid, alias text, again bool DEFAULT true) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE by_image bool := pgherd.identity_index(root) IS NULL;
BEGIN
    RETURN (
        SELECT format('ROW(%s)::pg_catalog.text',
                      -- a key has to be whole: by it a transaction finds its rows again
                      string_agg(CASE WHEN c.generated AND NOT c.in_pk THEN 'NULL'
                                      WHEN again THEN pgherd.field(alias || '.' || c.col, c.typ, by_image)
                                      ELSE alias || '.' || c.col END, ', ' ORDER BY c.pos))
          FROM pgherd.columns(root) c);
END $$;

CREATE OR REPLACE FUNCTION pgherd.record_key(root oid, alias text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN (
        SELECT format('ROW(%s)::pg_catalog.text',
                      string_agg(CASE WHEN c.in_pk THEN pgherd.field(alias || '.' || c.col, c.typ) ELSE 'NULL' END, ', '
                                 ORDER BY c.pos))
          FROM pgherd.columns(root) c);
END $$;

CREATE OR REPLACE FUNCTION pgherd.record_changes(root oid) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN (
        WITH k AS (
            SELECT c.pos, pgherd.field('n.' || c.col, c.typ) AS value, c.in_pk, c.generated OR c.in_unique AS left_out,
                   pgherd.changed(c.col, c.typ, c.coll, c.is_notnull) AS changed
              FROM pgherd.columns(root) c
        ), c AS (
            SELECT k.pos,
                   CASE WHEN k.in_pk OR k.left_out THEN '''0'''
                        ELSE format('CASE WHEN %s THEN ''1'' ELSE ''0'' END', k.changed) END AS bit,
                   CASE WHEN k.in_pk THEN k.value
                        WHEN k.left_out THEN 'NULL'
                        ELSE format('CASE WHEN %s THEN %s END', k.changed, k.value) END AS field
              FROM k
        ), bits AS ( -- a function takes 100 arguments
            SELECT c.pos / 90 AS part, format('pg_catalog.concat(%s)', string_agg(c.bit, ', ' ORDER BY c.pos)) AS bits
              FROM c GROUP BY c.pos / 90
        )
        SELECT format('pg_catalog.concat(''U'', %s, ROW(%s)::pg_catalog.text)',
                      (SELECT string_agg(b.bits, ', ' ORDER BY b.part) FROM bits b),
                      (SELECT string_agg(c.field, ', ' ORDER BY c.pos) FROM c)));
END $$;

-- No column of a unique index differs between o and n.
CREATE OR REPLACE FUNCTION pgherd.same_identity(root oid) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN (
        SELECT coalesce('NOT (' || string_agg(pgherd.changed(c.col, c.typ, c.coll, c.is_notnull), ' OR ' ORDER BY c.pos)
                        || ')', 'true')
          FROM pgherd.columns(root) c WHERE c.in_pk OR c.in_unique);
END $$;

-- The key of a row without identity, as SQL text without mode bits: a hash of its image.
CREATE OR REPLACE FUNCTION pgherd.image_key(root oid, image text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN format('(pg_catalog.hashtextextended(%s COLLATE pg_catalog."C", %s) OPERATOR(pg_catalog.&) -4)', image,
                  pgherd.name_hash('image ' || (SELECT t.name FROM pgherd.user_tables t WHERE t.relid = root)));
END $$;

-- Keys as arguments of concat_ws, which like every function takes 100 at most. Not by nullif(), whose "=" is looked up
-- in the search_path of whoever writes the table, and runs with our rights.
CREATE OR REPLACE FUNCTION pgherd.arguments(terms text[]) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    IF cardinality(terms) <= 40 THEN
        RETURN array_to_string(terms, ', ');
    END IF;
    RETURN (SELECT string_agg(p.part, ', ' ORDER BY p.n)
              FROM (SELECT u.i / 40 AS n,
                           format('CASE WHEN pg_catalog.concat_ws('','', %1$s) OPERATOR(pg_catalog.<>) '''''
                                  ' THEN pg_catalog.concat_ws('','', %1$s) END',
                                  string_agg(u.term, ', ' ORDER BY u.i)) AS part
                      FROM unnest(terms) WITH ORDINALITY u(term, i) GROUP BY u.i / 40) p);
END $$;

-- Does the row `alias` belong to a partition? As SQL text; NULL where that must not be computed here, because it could be
-- code of a user's, or because it names a table by its number, as HASH does.
CREATE OR REPLACE FUNCTION pgherd.in_partition(rel oid, alias text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN CASE WHEN NOT EXISTS (
        SELECT FROM pg_partition_ancestors(rel) a
          JOIN pg_partitioned_table p ON p.partrelid = a.relid AND p.partrelid <> rel
         CROSS JOIN LATERAL unnest(p.partclass::oid[]) AS o(class)
         WHERE p.partstrat = 'h' OR p.partexprs IS NOT NULL OR o.class >= 16384)
    -- a default partition without another one has no constraint
    THEN format('(SELECT %s FROM (SELECT %s.*) r)', coalesce(pg_get_partition_constraintdef(rel), 'true'), alias) END;
END $$;

-- The key of a row in a unique index, as SQL text (mode UPDATE). An expression may have no value for a row of another partition
-- than the index's, and none for a row that kept the index from being valid: then all rows of the partition have one key.
-- Where each has its own, they also carry that one, as KEY SHARE: other rows exclude it that were written while the index was
-- built.
CREATE OR REPLACE FUNCTION pgherd.unique_key(i pg_index, root oid, alias text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    key    text := pgherd.index_key(i.indexrelid, alias) || ' OPERATOR(pg_catalog.|) 3';
    seed   int8 := pgherd.index_seed(i.indexrelid);
    inside text;
BEGIN
    IF i.indexprs IS NULL OR i.indrelid = root THEN
        RETURN key;
    END IF;
    inside := pgherd.in_partition(i.indrelid, alias);
    RETURN CASE WHEN inside IS NULL THEN (seed | 3)::text
                WHEN i.indisvalid THEN format('CASE WHEN %s THEN pg_catalog.concat_ws('','', %s, %s) END', inside, key, seed)
                ELSE format('CASE WHEN %s THEN %s END', inside, seed | 3) END;
END $$;

-- Unique keys of a row (mode UPDATE) as arguments of concat_ws: every unique index of the table, and those of single
-- partitions; NULL when it has none. An index of a partitioned table is not valid before each partition has one, and says
-- nothing of any row until then: each of these says what it says alone. An exclusion constraint has one key for all; it can
-- only be violated by what is inserted.
CREATE OR REPLACE FUNCTION pgherd.unique_arguments(root oid, alias text, inserted bool) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE tree oid[] := pgherd.partition_tree(root);
BEGIN
    RETURN (
        SELECT pgherd.arguments(array_agg(DISTINCT k.term))
          FROM (SELECT pgherd.unique_key(i, root, alias) AS term
                  FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
                 WHERE i.indrelid = ANY (tree) AND (i.indisunique OR (i.indisexclusion AND inserted))
                   AND (c.relkind = 'i' OR i.indisvalid)
                   AND NOT EXISTS (SELECT FROM pg_partition_ancestors(i.indexrelid) a
                                     JOIN pg_index p ON p.indexrelid = a.relid AND p.indisvalid
                                    WHERE a.relid <> i.indexrelid)
                UNION ALL
                SELECT c.term FROM pgherd.coming_keys(tree, alias) c(term)) k
        HAVING count(*) > 0);
END $$;

-- The same as one text.
CREATE OR REPLACE FUNCTION pgherd.unique_keys(root oid, alias text, inserted bool) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN format('pg_catalog.concat_ws('','', %s)', pgherd.unique_arguments(root, alias, inserted));
END $$;

-- Foreign keys of a row (mode KEY SHARE on the parent's key), those of single partitions too: a key that is
-- not the row's only costs conflicts. NULL when the table has none.
-- `only_changed`: those whose columns differ between o and n.
CREATE OR REPLACE FUNCTION pgherd.parent_keys(root oid, alias text, only_changed bool) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN (
        SELECT pgherd.arguments(array_agg(DISTINCT
                   CASE WHEN only_changed
                        THEN format('CASE WHEN %s THEN %s END',
                                    (SELECT string_agg(pgherd.changed(quote_ident(a.attname), a.atttypid, a.attcollation,
                                                                      a.attnotnull), ' OR ' ORDER BY a.attnum)
                                       FROM pg_attribute a JOIN pg_attribute c ON c.attname = a.attname
                                      WHERE a.attrelid = root AND c.attrelid = f.conrelid AND c.attnum = ANY (f.conkey)),
                                    pgherd.foreign_key(f.oid, alias))
                        ELSE pgherd.foreign_key(f.oid, alias) END))
          FROM pg_constraint f
         WHERE f.conrelid IN (SELECT t.relid FROM pgherd.partitions(root) t) AND f.contype = 'f' AND f.conparentid = 0);
END $$;

-- The row type in which records are read: the table's own, or one without domains, since a record leaves
-- columns NULL that a domain may not allow to be. Its columns have the collations of the table's, which say what keys are equal.
CREATE OR REPLACE FUNCTION pgherd.row_type(root oid) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN CASE WHEN EXISTS (SELECT FROM pgherd.columns(root) c WHERE pgherd.base_type(c.typ) <> c.typ)
                THEN format('pgherd_gen.row_%s', root)
                ELSE (SELECT t.name FROM pgherd.user_tables t WHERE t.relid = root) END;
END $$;

CREATE OR REPLACE FUNCTION pgherd.row_type_source(root oid) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE dropped text := format(E'DROP TYPE IF EXISTS pgherd_gen.row_%s;\n', root);
BEGIN
    IF NOT EXISTS (SELECT FROM pgherd.columns(root) c WHERE pgherd.base_type(c.typ) <> c.typ) THEN
        RETURN dropped; -- most tables have no domain, and the names of their types are not needed
    END IF;
    RETURN dropped || (
        SELECT format(E'CREATE TYPE pgherd_gen.row_%s AS (%s);\n', root,
                      string_agg(concat(c.col, ' ', pgherd.type_name(pgherd.base_type(c.typ)),
                                        ' COLLATE ' || nullif(c.coll, 0)::regcollation), ', ' ORDER BY c.pos))
          FROM pgherd.columns(root) c);
END $$;
