-- What a session's settings must not reach. Which these are, and what is done about each: docs/settings.md.

-- Whether a large key fits into an index depends on how it is compressed, and that on the session that wrote it, or on
-- the column it was copied from. The applier of a row tries every method (54000), so the rows that come are no matter.
-- But it cannot change how a row that is there is compressed, nor what a column asks for. Hence, where an index is made:
--   values that are there     must fit as they are, uncompressed
--   key columns               have no method of their own
CREATE OR REPLACE FUNCTION pgherd.check_large_keys(rels oid[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    i      record;
    filled bool;
BEGIN
    FOR i IN SELECT x.indexrelid::regclass AS name, x.indrelid::regclass AS rel, pgherd.is_new(x.xmin) AS made,
                    min(a.attname) FILTER (WHERE a.attcompression <> '') AS compressed,
                    string_agg(format(
                        CASE WHEN a.atttypid = ANY ('{text,varchar,bpchar,bytea}'::regtype[]::oid[])
                             THEN 'coalesce(octet_length(t.%I), 0)'
                             ELSE 'coalesce(CASE WHEN pg_column_compression(t.%1$I) IS NULL'
                                  ' THEN pg_column_size(t.%1$I) ELSE 9999 END, 0)' END, a.attname), ' + ') AS size
               FROM pg_index x
               JOIN pg_attribute a ON a.attrelid = x.indrelid AND a.attnum = ANY (x.indkey) AND a.attlen = -1
               JOIN pg_class c ON c.oid = x.indexrelid
               JOIN pg_class r ON r.oid = x.indrelid AND r.relpersistence = 'p' AND r.relkind IN ('r', 'p', 'm')
               JOIN pg_am m ON m.oid = c.relam AND m.amname <> 'hash' -- which holds no values
              WHERE x.indrelid = ANY (rels)
              GROUP BY x.indexrelid, x.indrelid, x.xmin LOOP
        IF i.compressed IS NOT NULL THEN
            PERFORM pgherd.refuse(
                format('column %I of table %s has a COMPRESSION of its own, and is in index %s',
                       i.compressed, i.rel, i.name),
                'What fits into an index must not depend on it: SET COMPRESSION default for columns of indexes.');
        END IF;
        CONTINUE WHEN NOT i.made;
        EXECUTE format('SELECT EXISTS (SELECT FROM ONLY %s t WHERE %s > 2600)', i.rel, i.size) INTO filled;
        IF filled THEN
            PERFORM pgherd.refuse(
                format('index %s would hold values of more than 2600 bytes', i.name),
                'Whether they fit depends on how each member has compressed them: make the index before the rows, or'
                ' an index of a hash: md5(column).');
        END IF;
    END LOOP;
END $$;

-- Settings under which a command has a result of its own on each member.
CREATE OR REPLACE FUNCTION pgherd.check_settings(made oid[], rels oid[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('gin_fuzzy_search_limit') <> '0'
       AND EXISTS (SELECT FROM pg_class c WHERE c.oid = ANY (made) AND c.relkind = 'm') THEN
        PERFORM pgherd.refuse('a materialized view cannot be filled under gin_fuzzy_search_limit',
            'Each member would find other rows: SET gin_fuzzy_search_limit = 0.');
    END IF;
    PERFORM pgherd.check_large_keys(rels);
END $$;
