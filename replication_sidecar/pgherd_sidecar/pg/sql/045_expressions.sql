-- Expressions as the catalog stores them: what must hold so that every member computes the same with them.
-- They are judged by their trees (pg_node_tree), conservatively: what is not known to be certain is not.
-- Plans judge what is left after everything else has been looked at: that is what COST is for.
-- No pattern here holds a backslash: it would mean something else under standard_conforming_strings = off.

-- The functions that a tree calls. What looks like a function's oid counts as one.
CREATE OR REPLACE FUNCTION pgherd.functions_in(tree text) RETURNS SETOF pg_proc
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT p.* FROM regexp_matches(tree, ':(?:funcid|opfuncid|aggfnoid|winfnoid) ([0-9]+)', 'g') AS f(id)
      JOIN pg_proc p ON p.oid = f.id[1]::oid;
END $$;

-- Does a tree call what an ordinary user wrote? He may have declared it IMMUTABLE and yet look at anything.
CREATE OR REPLACE FUNCTION pgherd.calls_user_code(tree text) RETURNS bool
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN (
        SELECT EXISTS (SELECT FROM pgherd.functions_in(tree) f JOIN pg_roles o ON o.oid = f.proowner WHERE NOT o.rolsuper));
END $$;

-- Is a base type PostgreSQL's own, or of an extension whose types are known to be read and written in one way only? Others
-- are declared immutable and are not: cube is written in as many digits as a session says, isn reads what a session allows.
CREATE OR REPLACE FUNCTION pgherd.is_known_type(t pg_type) RETURNS bool
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN t.typnamespace = 'pg_catalog'::regnamespace OR EXISTS (
        SELECT FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
         WHERE d.classid = 'pg_type'::regclass AND d.objid = t.oid AND d.refclassid = 'pg_extension'::regclass
           AND e.extname = ANY ('{citext,hstore,intarray,ip4r,ltree,postgis,seg,vector}'));
END $$;

-- Does a value of this type mean the same when its text is read (`reading`), or when it is written as text, at
-- any time, on any member and under any settings? Dates are read as 'now', floats written in few digits.
CREATE OR REPLACE FUNCTION pgherd.text_is_certain(typ oid, reading bool) RETURNS bool
LANGUAGE plpgsql STABLE COST 10000 SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN NOT EXISTS (
        SELECT FROM pgherd.parts_of_type(typ) t
         WHERE NOT coalesce(CASE
             WHEN t.typtype IN ('e', 'd', 'r', 'm', 'c') OR t.typcategory = 'A' AND t.typelem <> 0 THEN true -- as its parts are
             WHEN NOT pgherd.is_known_type(t) THEN false
             WHEN reading THEN (SELECT p.provolatile = 'i' FROM pg_proc p WHERE p.oid = t.typinput)
             ELSE t.typcategory <> 'G' AND t.oid <> ALL ('{float4,float8,bytea}'::regtype[]::oid[])
                  AND (SELECT p.provolatile = 'i' FROM pg_proc p WHERE p.oid = t.typoutput)
         END, false));
END $$;

-- The conversions by text in a tree: what type's value is written, what type's is read. NULL: not to be seen.
CREATE OR REPLACE FUNCTION pgherd.conversions_in(tree text, OUT written oid, OUT read oid) RETURNS SETOF record
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT substring(c.node[1] FROM
               '^(?:RELABELTYPE :arg [{])*[[:alnum:]_]+ [^{}]*?:(?:vartype|consttype|funcresulttype|opresulttype'
               '|casetype|coalescetype|minmaxtype|refrestype|typeId|row_typeid|array_typeid) ([0-9]+)')::oid, NULL::oid
      FROM regexp_matches(tree, '[{]COERCEVIAIO :arg [{]([^{}]*(?:[{][^{}]*)?)', 'g') AS c(node)
    UNION ALL -- no other node has these fields side by side
    SELECT NULL, r.typ[1]::oid FROM regexp_matches(tree, ':resulttype ([0-9]+) :resultcollid', 'g') AS r(typ);
END $$;

-- Is this one of PostgreSQL's own functions that look at oids, which are local to a server, or at the text form of a
-- value, which obeys settings? Many of them are called immutable. What tells them is the catalog, not a list of names:
--   hash support functions of types that are made of oids, or may be: enums, arrays, records, ranges
--   whatever takes or gives an oid or a name of an object, but for comparisons and conversions to and from numbers
--   input and output functions
-- The order of records by their bytes has no such mark: an enum's bytes are an oid.
CREATE OR REPLACE FUNCTION pgherd.looks_at_oids(f pg_proc) RETURNS bool
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN (
        SELECT f.oid < 16384
           AND (f.pronamespace <> 'pg_catalog'::regnamespace
                OR f.proname ~ '^(record_image_(lt|le|gt|ge)|btrecordimagecmp|satisfies_hash_partition|quote_ident)$'
                OR EXISTS (
                    SELECT FROM pg_amproc h
                      JOIN pg_opfamily o ON o.oid = h.amprocfamily
                      JOIN pg_am m ON m.oid = o.opfmethod AND m.amname = 'hash'
                     WHERE h.amproc = f.oid
                       AND (NOT pgherd.hash_is_portable(h.amproclefttype)
                            OR h.amproclefttype = ANY (
                                '{anyenum,anyarray,anyrange,anymultirange,record,oid,oidvector,aclitem}'::regtype[]::oid[])))
                OR f.proname !~ '^(oid(eq|ne|lt|le|gt|ge|larger|smaller)|btoidcmp|int8|oid|min|max)$'
                   AND EXISTS (
                       SELECT FROM unnest(f.prorettype || f.proargtypes::oid[]) AS u(typ)
                        WHERE u.typ = ANY ('{cstring,oid,oidvector,aclitem,aclitem[]}'::regtype[]::oid[])
                           OR u.typ <> ALL ('{regconfig,regdictionary}'::regtype[]::oid[])
                              AND EXISTS (SELECT FROM pg_type t WHERE t.oid = u.typ AND t.typname LIKE 'reg%'))));
END $$;

-- Does the value of an expression depend on nothing but the values in it?
CREATE OR REPLACE FUNCTION pgherd.is_certain(tree text) RETURNS bool
LANGUAGE plpgsql STABLE COST 10000 SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN (
        SELECT tree !~ '[{](SQLVALUEFUNCTION|NEXTVALUEEXPR|XMLEXPR|JSONEXPR|JSONCONSTRUCTOREXPR) '
           AND tree !~ ':varattno -' -- a system column: tableoid, ctid, xmin
           AND NOT EXISTS (
               SELECT FROM pgherd.functions_in(tree) f WHERE f.provolatile <> 'i' OR pgherd.looks_at_oids(f))
           AND NOT EXISTS (
               SELECT FROM pgherd.conversions_in(tree) c
                WHERE CASE WHEN c.read IS NULL THEN NOT pgherd.text_is_certain(coalesce(c.written, 0), false)
                           ELSE NOT pgherd.text_is_certain(c.read, true) END)
           -- A user's object as a constant: its oid is local. The last three of its four bytes, the lowest first.
           AND NOT EXISTS (
               SELECT FROM regexp_matches(tree, ':consttype (?:24|2202|2203|2204|2205|2206|4089|4096|4191) [^{}]*'
                                                ':constvalue 4 [[] -?[0-9]+ (-?[0-9]+) (-?[0-9]+) (-?[0-9]+)', 'g') AS c(b)
                WHERE c.b[1]::int NOT BETWEEN 0 AND 63 OR c.b[2] <> '0' OR c.b[3] <> '0')
           -- A text search configuration or dictionary may stand there, but not be looked at as a number.
           AND NOT (tree ~ ':consttype (3734|3769) ' AND tree ~ ':resulttype 26 '));
END $$;

-- Is there an ARRAY(SELECT ...) without ORDER BY? Each query says how it is sorted behind all the queries inside it, but
-- for those in its LIMIT.
CREATE OR REPLACE FUNCTION pgherd.has_unordered_array(tree text) RETURNS bool
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    word   text;
    arrays bool[] := '{}'; -- of the queries that are open: is it an array's?
    next   bool   := false;
BEGIN
    IF strpos(tree, ':subLinkType 6 ') = 0 THEN
        RETURN false;
    END IF;
    FOR word IN SELECT m[1] FROM regexp_matches(tree, '([{]QUERY |:subLinkType 6 |:sortClause (?:<>|[(]))', 'g') AS m LOOP
        CASE left(word, 3)
            WHEN '{QU' THEN
                arrays := array_append(arrays, next);
                next := false;
            WHEN ':su' THEN
                next := true;
            ELSE
                IF arrays[cardinality(arrays)] AND word LIKE '%<>' THEN
                    RETURN true;
                END IF;
                arrays := trim_array(arrays, 1);
        END CASE;
    END LOOP;
    RETURN false;
END $$;

-- Does an aggregate's value show in which order it met its values?
CREATE OR REPLACE FUNCTION pgherd.keeps_order(f pg_proc) RETURNS bool
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN f.proname ~ '^(array_agg|string_agg|xmlagg|jsonb?_(object_)?agg.*)$';

-- Does a query's result depend on the order in which rows happen to lie? As far as that can be told without knowing
-- them: an aggregate that keeps it, ARRAY(SELECT ...), LIMIT, DISTINCT ON, or the number of a row, without ORDER BY.
CREATE OR REPLACE FUNCTION pgherd.depends_on_order(tree text) RETURNS bool
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT tree ~ ':sortClause <> :limitOffset ([^<]|<> :limitCount [^<])'
        OR pgherd.has_unordered_array(tree)
        OR tree ~ ':hasDistinctOn true' AND tree ~ ':distinctClause [(][^()]*[)] :sortClause <>'
        OR EXISTS (
           SELECT FROM pgherd.functions_in(tree) f
            WHERE f.prokind = 'a' AND f.proargtypes::oid[] && '{float4,float8}'::regtype[]::oid[]
                  AND f.proname ~ '^(sum|avg|stddev.*|var.*|corr|covar_.*|regr_.*)$'
               OR f.proname = 'any_value'
               OR tree ~ ':orderClause <>'
                  AND (f.prokind = 'w' AND f.proname !~ 'rank|cume_dist'
                       OR f.prokind = 'a' AND pgherd.keeps_order(f) AND tree ~ concat(':winfnoid ', f.oid, ' ')))
        OR EXISTS (
           SELECT FROM (SELECT m.part, lead(m.part) OVER (ORDER BY m.i) AS following
                          FROM regexp_matches(tree, ':(aggfnoid|aggorder) (<> :aggdistinct <>|[0-9]+|.)', 'g')
                               WITH ORDINALITY AS m(part, i)) a
             JOIN pg_proc f ON f.oid = CASE a.part[1] WHEN 'aggfnoid' THEN a.part[2]::oid END
                           AND pgherd.keeps_order(f)
            -- what follows at once is another one inside it, or its own order
            WHERE a.following[1] IS DISTINCT FROM 'aggorder' OR a.following[2] LIKE '<>%');
END;

-- Has a query the same result for every member at one GID, under the settings that travel with a command? Not
-- if it calls what knows the time, the session or the server, or reads what each member has for itself.
CREATE OR REPLACE FUNCTION pgherd.same_everywhere(tree text) RETURNS bool
LANGUAGE sql STABLE COST 10000 SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT tree !~ '[{](SQLVALUEFUNCTION|NEXTVALUEEXPR|JSONEXPR|TABLESAMPLECLAUSE) ' AND tree !~ ':varattno -'
       AND tree !~ '[{](ROWMARKCLAUSE|PLANROWMARK) ' -- which rows are locked is a member's own
       AND NOT pgherd.calls_user_code(tree)
       AND NOT EXISTS (SELECT FROM pgherd.functions_in(tree) f WHERE pgherd.looks_at_oids(f))
       AND NOT pgherd.depends_on_order(tree)
       AND NOT EXISTS (
           SELECT FROM pgherd.functions_in(tree) f
            WHERE f.provolatile = 'v'
               -- an extension's may run any query
               OR (f.provolatile = 's' AND f.pronamespace <> 'pg_catalog'::regnamespace)
               OR (f.provolatile = 's'
                   AND f.proname ~ ('^(now|statement_timestamp|transaction_timestamp|current_.*|session_user|age'
                                    '|mxid_age|inet_.*|pg_.*|version|txid_.*|has_.*|row_security_active|getpgusername'
                                    '|getdatabaseencoding|(to|from)_reg.*|reg.*|acl.*|format_type|oidvectortypes'
                                    '|(sh)?obj_description|col_description|.*_to_xml.*|.*_in'
                                    '|jsonb?_(populate|to)_record(set)?)$')))
       -- Their values name objects by oids, which are local.
       AND NOT EXISTS (
           SELECT FROM (SELECT DISTINCT t.id[1]::oid AS oid
                          FROM regexp_matches(tree, ':[a-z]+type ([0-9]+)', 'g') AS t(id)) u
            WHERE u.oid <> ALL ('{regconfig,regdictionary}'::regtype[]::oid[]) AND pgherd.names_objects(u.oid))
       AND NOT EXISTS (SELECT FROM pgherd.conversions_in(tree) c
                        WHERE c.read IS NOT NULL AND NOT pgherd.text_is_certain(c.read, true))
       AND NOT EXISTS (
           SELECT FROM regexp_matches(tree, ':relid ([0-9]+)', 'g') AS r(id)
            WHERE r.id[1]::int8 BETWEEN 1 AND 16383 OR r.id[1]::oid IN (SELECT l.relid FROM pgherd.local_tables l)
               -- where a sequence stands, and our own tables
               OR EXISTS (SELECT FROM pg_class c
                           WHERE c.oid = r.id[1]::oid
                             AND (c.relkind = 'S'
                                  OR c.relnamespace IN ('pgherd'::regnamespace, 'pgherd_gen'::regnamespace))));
END;

-- The trees that a view's query consists of, with those of the views it reads and of the policies of its tables.
CREATE OR REPLACE FUNCTION pgherd.trees_of_view(rel oid) RETURNS SETOF text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH RECURSIVE reads(relid) AS (
        SELECT rel
        UNION
        SELECT d.refobjid FROM reads r
          JOIN pg_class v ON v.oid = r.relid AND (v.relkind = 'v' OR v.oid = rel)
          JOIN pg_rewrite w ON w.ev_class = v.oid
          JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = w.oid
                          AND d.refclassid = 'pg_class'::regclass
    )
    SELECT w.ev_action::text
      FROM reads r JOIN pg_class c ON c.oid = r.relid AND (c.relkind = 'v' OR c.oid = rel)
      JOIN pg_rewrite w ON w.ev_class = c.oid
    UNION ALL
    SELECT p.polqual::text FROM reads r JOIN pg_policy p ON p.polrelid = r.relid WHERE p.polqual IS NOT NULL;
END;

-- The tables and materialized views whose rows a materialized view is made of, with their partitions and inheritance
-- children: those in its query, in the views that it reads, and in the policies of its tables.
CREATE OR REPLACE FUNCTION pgherd.tables_of_view(rel oid) RETURNS oid[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH RECURSIVE reads(relid) AS (
        SELECT rel
        UNION
        SELECT n.relid FROM reads r JOIN pg_class c ON c.oid = r.relid
         CROSS JOIN LATERAL (
               SELECT d.refobjid AS relid FROM pg_rewrite w
                 JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = w.oid
                                 AND d.refclassid = 'pg_class'::regclass
                WHERE w.ev_class = c.oid AND (c.relkind = 'v' OR c.oid = rel)
               UNION ALL
               SELECT d.refobjid FROM pg_policy p
                 JOIN pg_depend d ON d.classid = 'pg_policy'::regclass AND d.objid = p.oid
                                 AND d.refclassid = 'pg_class'::regclass
                WHERE p.polrelid = c.oid
               UNION ALL
               SELECT i.inhrelid FROM pg_inherits i WHERE i.inhparent = c.oid) n
    )
    SELECT coalesce(array_agg(r.relid), '{}') FROM reads r JOIN pg_class c ON c.oid = r.relid AND c.relkind IN ('r', 'p', 'm')
     WHERE r.relid <> rel;
END;

-- Was this row of a catalog, which we see, written by our transaction or one of its subtransactions? A transaction in
-- progress whose rows are visible can be no other. A row keeps the number of its transaction for ever, and numbers come
-- again: one that nobody has had in this round is of a row from an earlier one.
CREATE OR REPLACE FUNCTION pgherd.is_own(written xid) RETURNS bool
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    own   int8 := pg_current_xact_id()::text::int8;
    wrote int8 := own + age(pg_current_xact_id()::xid) - age(written);
BEGIN
    -- Subtransactions that have not ended may have later numbers than the snapshot tells.
    IF written::text::int8 < 3 OR wrote < own OR wrote > pg_snapshot_xmax(pg_current_snapshot())::text::int8 + 1000000 THEN
        RETURN false;
    END IF;
    BEGIN
        RETURN pg_xact_status(wrote::text::xid8) = 'in progress';
    EXCEPTION WHEN invalid_parameter_value THEN
        RETURN false;
    END;
END $$;

-- The same; most rows are answered for at once. Of the functions with our rights this alone sets no search path, so
-- that it can be inlined; its names are bound already.
CREATE OR REPLACE FUNCTION pgherd.is_new(row_xmin xid) RETURNS bool
LANGUAGE sql STABLE RETURN age(row_xmin) <= age(pg_current_xact_id()::xid) AND pgherd.is_own(row_xmin);

-- May our transaction have written a catalog, or removed rows of it? If not, it has not. The counters are those of the session
-- since it last sent them, so what earlier transactions wrote counts for a second or so.
CREATE OR REPLACE FUNCTION pgherd.may_have_written(catalog regclass, removed bool DEFAULT false) RETURNS bool
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN NOT current_setting('track_counts')::bool
        OR pg_stat_get_xact_tuples_updated(catalog) + pg_stat_get_xact_tuples_deleted(catalog) > 0
        OR NOT removed AND pg_stat_get_xact_tuples_inserted(catalog) > 0;
END $$;

CREATE OR REPLACE VIEW pgherd.new_expressions AS
SELECT e.tree::text AS tree
  FROM (SELECT d.adbin AS tree, d.xmin AS made FROM pg_attrdef d
        UNION ALL SELECT c.conbin, c.xmin FROM pg_constraint c
        UNION ALL SELECT t.typdefaultbin, t.xmin FROM pg_type t
        UNION ALL SELECT c.relpartbound, c.xmin FROM pg_class c
        UNION ALL SELECT p.partexprs, p.xmin FROM pg_partitioned_table p
        UNION ALL SELECT i.indexprs, i.xmin FROM pg_index i
        UNION ALL SELECT i.indpred, i.xmin FROM pg_index i
        UNION ALL SELECT s.stxexprs, s.xmin FROM pg_statistic_ext s
        UNION ALL SELECT w.ev_action, w.xmin FROM pg_rewrite w
        UNION ALL SELECT w.ev_qual, w.xmin FROM pg_rewrite w
        UNION ALL SELECT t.tgqual, t.xmin FROM pg_trigger t
        UNION ALL SELECT p.polqual, p.xmin FROM pg_policy p
        UNION ALL SELECT p.polwithcheck, p.xmin FROM pg_policy p
        UNION ALL SELECT r.prqual, r.xmin FROM pg_publication_rel r) e
 WHERE pgherd.is_new(e.made) AND e.tree IS NOT NULL;

-- The same of functions, of which there are thousands.
CREATE OR REPLACE VIEW pgherd.new_function_expressions AS
SELECT e.tree::text AS tree
  FROM (SELECT f.proargdefaults, f.prosqlbody FROM pg_proc f WHERE pgherd.is_new(f.xmin)) f
 CROSS JOIN LATERAL (VALUES (f.proargdefaults), (f.prosqlbody)) AS e(tree)
 WHERE e.tree IS NOT NULL;

-- Is there a new constant that may have been read from 'now' or 'today'? Each member would read it for itself, at
-- another time. Whether it was, only the words of the command can tell.
-- Can a literal in a command's text be one of these words? They may be written with escapes, or in two literals on two
-- lines. Most texts hold nothing of the kind, and then the catalogs need not be searched.
CREATE OR REPLACE FUNCTION pgherd.may_name_dates(words text) RETURNS bool
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN words ~* '(now|today|tomorrow|yesterday|u&)' OR strpos(words, chr(92)) > 0
        OR strpos(words, '''') > 0 AND (strpos(words, chr(10)) > 0 OR strpos(words, chr(13)) > 0);
END $$;

CREATE OR REPLACE FUNCTION pgherd.made_dates(tag text) RETURNS bool
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    functions bool := tag ~ '(FUNCTION|PROCEDURE|ROUTINE|AGGREGATE|EXTENSION|SCHEMA|LANGUAGE|OWNED)';
BEGIN
    RETURN EXISTS (
        SELECT FROM (SELECT DISTINCT c.typ[1]::oid AS oid
                       FROM (SELECT e.tree FROM pgherd.new_expressions e
                             UNION ALL SELECT e.tree FROM pgherd.new_function_expressions e WHERE functions) e
                      CROSS JOIN LATERAL regexp_matches(e.tree, ':consttype ([0-9]+)', 'g') AS c(typ)) u
         WHERE NOT pgherd.text_is_certain(u.oid, true) AND u.oid::regtype::text NOT LIKE 'reg%');
END $$;
