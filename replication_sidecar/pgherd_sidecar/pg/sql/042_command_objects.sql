-- What a command may not leave behind in the objects that rows are stored, found and computed by, judged by the catalog as
-- in 042_command_rules.

-- What text search means, for commands that may change it; NULL for others.
CREATE OR REPLACE FUNCTION pgherd.text_search_meaning(tag text) RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF tag NOT IN ('ALTER TEXT SEARCH CONFIGURATION', 'ALTER TEXT SEARCH DICTIONARY') THEN
        RETURN NULL;
    END IF;
    RETURN (
    SELECT md5(string_agg(u.line, ';' ORDER BY u.line))
      FROM (SELECT m::text AS line FROM pg_ts_config_map m
            UNION ALL SELECT ROW('dictionary', t.oid, t.dicttemplate, t.dictinitoption)::text FROM pg_ts_dict t) u);
END $$;

-- PostgreSQL computes a generated column again only where a column is set that it reads. Other members may write the whole
-- row, or not write at all what is set to the value that it has. So what a stored value was computed by must not change
-- under it. (An ordinary index may be made anew afterwards, as always.)
CREATE OR REPLACE FUNCTION pgherd.check_text_search() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    dictionaries oid[] := array(SELECT o.objid FROM pg_event_trigger_ddl_commands() o WHERE o.classid = 'pg_ts_dict'::regclass);
    configs      oid[] := array(SELECT o.objid FROM pg_event_trigger_ddl_commands() o WHERE o.classid = 'pg_ts_config'::regclass
                                UNION SELECT m.mapcfg FROM pg_ts_config_map m WHERE m.mapdict = ANY (dictionaries));
    place        text;
BEGIN
    SELECT min(pg_describe_object(e.class, e.id, 0)) INTO place
      FROM pgherd.row_expressions e
     WHERE e.decides AND (e.rel = 0 OR e.rel IN (SELECT u.relid FROM pgherd.user_tables u))
       AND (e.tree ~ ':consttype (3735|3770) ' -- in an array they are in no book
            OR EXISTS (SELECT FROM pg_depend d
                        WHERE d.classid = e.class AND d.objid = e.id
                          AND (d.refclassid = 'pg_ts_config'::regclass AND d.refobjid = ANY (configs)
                               OR d.refclassid = 'pg_ts_dict'::regclass AND d.refobjid = ANY (dictionaries))));
    IF place IS NOT NULL THEN
        PERFORM pgherd.refuse(format('the %s was computed with it, and would be computed otherwise from now on', place),
            'Drop that column or constraint first, and add it again afterwards; or make a new configuration.');
    END IF;
END $$;

-- How a value is stored is no part of a writeset. A value that is copied from another table, or was there before, keeps
-- its form: compressed, or a pointer to its place. Other members get its text, which may not fit where the form did.
CREATE OR REPLACE FUNCTION pgherd.check_storage(rels oid[], everything bool) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r    record;
    rows bool := everything;
BEGIN
    FOR r IN
        SELECT u.name, a.attname, a.attstorage
          FROM pgherd.user_tables u
          JOIN pg_attribute a ON a.attrelid = u.relid AND a.attnum > 0 AND NOT a.attisdropped AND a.attlen = -1
          JOIN pg_type t ON t.oid = a.atttypid AND t.typstorage NOT IN ('p', a.attstorage)
         WHERE u.relid = ANY (rels)
           AND CASE a.attstorage
                   WHEN 'p' THEN everything OR pgherd.is_new(a.xmin)
                   WHEN 'e' THEN EXISTS (SELECT FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
                                           JOIN pg_am m ON m.oid = c.relam AND m.amname NOT IN ('gin', 'hash')
                                          WHERE i.indrelid = u.relid AND a.attnum = ANY (i.indkey::int2[])
                                            AND (everything OR pgherd.is_new(a.xmin) OR pgherd.is_new(i.xmin)))
                   ELSE false END
         ORDER BY 1, 2 LOOP
        IF r.attstorage = 'p' AND NOT rows THEN
            EXECUTE format('SELECT EXISTS (SELECT FROM ONLY %s)', r.name) INTO rows;
            CONTINUE WHEN NOT rows; -- compressed_columns() looks after what comes
        END IF;
        PERFORM pgherd.refuse(
            format('column %I of table %s: STORAGE %s is not supported where %s', r.attname, r.name,
                   CASE r.attstorage WHEN 'p' THEN 'PLAIN' ELSE 'EXTERNAL' END,
                   CASE r.attstorage WHEN 'p' THEN 'there are rows' ELSE 'an index holds it' END),
            'A value that is compressed or stored elsewhere already fits there, and its text does not, which is what other'
            ' members write: SET STORAGE EXTENDED or MAIN.');
    END LOOP;
END $$;

-- Which attributes a composite type has decides how its values are hashed, ordered and told apart. PostgreSQL leaves rows,
-- and entries of indexes, where they were by the former ones; who looks for them on another member goes elsewhere.
CREATE OR REPLACE FUNCTION pgherd.check_attributes(made oid[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    changed oid[] := array(SELECT DISTINCT a.attrelid FROM pg_attribute a WHERE a.attrelid = ANY (made) AND pgherd.is_new(a.xmin));
    holders oid[] := CASE WHEN changed <> '{}' THEN pgherd.holders_of_rows(changed) END;
    r       record;
BEGIN
    IF coalesce(holders, '{}') = '{}' THEN
        RETURN;
    END IF;
    FOR r IN
        SELECT a.attname, a.attrelid::regclass AS rel
          FROM (SELECT i.indrelid AS rel, i.indkey::int2[] AS attnums FROM pg_index i WHERE i.indrelid = ANY (holders)
                UNION ALL
                SELECT p.partrelid, p.partattrs::int2[] FROM pg_partitioned_table p WHERE p.partrelid = ANY (holders)) k
          JOIN pg_attribute a ON a.attrelid = k.rel AND a.attnum = ANY (k.attnums) AND a.attnum > 0
         WHERE k.rel IN (SELECT u.relid FROM pgherd.user_tables u)
           AND EXISTS (SELECT FROM pgherd.parts_of_type(a.atttypid) p WHERE p.typrelid = ANY (changed))
         ORDER BY 2, 1 LIMIT 1 LOOP
        PERFORM pgherd.refuse(
            format('other attributes for the type of column %I of table %s, which is in an index or a partition key', r.attname, r.rel),
            'Rows would not be found where they are. Make a new type and a new column, and move the values.');
    END LOOP;
END $$;

-- An index takes compressed values as they are. Those that a session compressed otherwise than the other members do may be
-- larger there, and too large for an index that is made afterwards.
CREATE OR REPLACE FUNCTION pgherd.check_new_indexes(rels oid[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r     record;
    found bool;
BEGIN
    FOR r IN
        SELECT DISTINCT u.name, a.attname, CASE a.attcompression WHEN 'l' THEN 'lz4' ELSE 'pglz' END AS method
          FROM pgherd.user_tables u
          JOIN pg_index i ON i.indrelid = u.relid AND pgherd.is_new(i.xmin)
          JOIN pg_class c ON c.oid = i.indexrelid
          JOIN pg_am m ON m.oid = c.relam AND m.amname NOT IN ('gin', 'hash')
          JOIN pg_attribute a ON a.attrelid = u.relid AND a.attnum = ANY (i.indkey::int2[]) AND a.attlen = -1
                             AND a.attstorage IN ('x', 'm')
         WHERE u.relid = ANY (rels) AND NOT u.partitioned ORDER BY 1, 2 LOOP
        EXECUTE format('SELECT EXISTS (SELECT FROM ONLY %s t WHERE pg_column_compression(t.%I) <> %L)', r.name, r.attname, r.method)
            INTO found;
        IF found THEN
            PERFORM pgherd.refuse(
                format('an index of column %I of table %s, where a value is not compressed with %s, may fail on other members',
                       r.attname, r.name, r.method),
                format('SET default_toast_compression = %s, and write these rows again: UPDATE %s SET %I = %I || '''' WHERE'
                       ' pg_column_compression(%I) <> %L.', r.method, r.name, r.attname, r.attname, r.attname, r.method));
        END IF;
    END LOOP;
END $$;

-- Objects that use ours, which every newer version makes anew. Functions that everybody may call stay.
CREATE OR REPLACE FUNCTION pgherd.check_dependents() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    schemas oid[] := '{pgherd,pgherd_gen}'::regnamespace[];
    r       record;
BEGIN
    FOR r IN
        WITH made AS (
            SELECT o.classid, o.objid FROM pg_event_trigger_ddl_commands() o
        ), parts AS (
            SELECT m.classid, m.objid FROM made m
            UNION
            SELECT d.classid, d.objid FROM made m JOIN pg_depend d ON d.refclassid = m.classid AND d.refobjid = m.objid
             WHERE d.deptype IN ('a', 'i')
               AND d.classid = ANY ('{pg_rewrite,pg_attrdef,pg_constraint,pg_policy}'::regclass[]::oid[])
        )
        SELECT pg_describe_object(d.classid, d.objid, 0) AS what, pg_describe_object(d.refclassid, d.refobjid, 0) AS used
          FROM parts p JOIN pg_depend d ON d.classid = p.classid AND d.objid = p.objid
         WHERE d.deptype = 'n'
           AND CASE d.refclassid
                   WHEN 'pg_class'::regclass THEN (SELECT c.relnamespace FROM pg_class c WHERE c.oid = d.refobjid)
                   WHEN 'pg_type'::regclass THEN (SELECT t.typnamespace FROM pg_type t WHERE t.oid = d.refobjid)
                   WHEN 'pg_proc'::regclass THEN (SELECT f.pronamespace FROM pg_proc f WHERE f.oid = d.refobjid
                                                     AND NOT has_function_privilege('public', f.oid, 'EXECUTE'))
               END = ANY (schemas)
         LIMIT 1 LOOP
        PERFORM pgherd.refuse(format('%s uses %s, which belongs to replication', r.what, r.used),
            'A newer version of pgherd could not replace it. Only functions that everybody may call can be used.');
    END LOOP;
END $$;
