-- Which transaction wrote a row (Postgres-R, section 5.4: the transaction id of a version leads to the global one).

-- The GID of the transaction that wrote the present version of a row. `key`: its key's columns as text, in their order.
--   gid    the transaction, or the last one of those that this member has written together with it
--   since  the first of these: the same as gid where it is certain. `pgherd history` reads the log, and tells exactly
-- Both are NULL, and a NOTICE says so, where this member does not remember that any more: the links of the commit chain
-- are kept for the newest transactions only. So they are where the row was written below a savepoint, since PostgreSQL
-- tells nobody which transaction that belonged to. A command that has written the table anew counts as the writer.
--
-- It runs with the rights of the caller, who has to be able to read the table.
CREATE OR REPLACE FUNCTION pgherd.gid_of_row(tab regclass, VARIADIC key text[], OUT gid int8, OUT since int8)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    wanted text;
    columns int;
    writer xid;
BEGIN
    -- Equal is what the key's own index calls so: a type of an extension has operators of its own.
    SELECT string_agg(format('%I OPERATOR(%I.%s) $1[%s]::%s', a.attname, n.nspname, o.oprname, u.pos,
                             format_type(a.atttypid, a.atttypmod)), ' AND '), count(*)
      INTO wanted, columns
      FROM pg_index i CROSS JOIN LATERAL unnest(i.indkey::int2[], i.indclass::oid[]) WITH ORDINALITY AS u(attnum, class, pos)
      JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = u.attnum
      JOIN pg_opclass c ON c.oid = u.class
      JOIN pg_amop e ON e.amopfamily = c.opcfamily AND e.amopstrategy = 3
                    AND e.amoplefttype = c.opcintype AND e.amoprighttype = c.opcintype
      JOIN pg_operator o ON o.oid = e.amopopr JOIN pg_namespace n ON n.oid = o.oprnamespace
     WHERE i.indrelid = tab AND i.indisprimary AND i.indisvalid AND u.pos <= i.indnkeyatts;
    IF wanted IS NULL THEN
        RAISE EXCEPTION 'table % has no primary key', tab
            USING ERRCODE = '0A000', HINT = 'Its rows have no names: read pgherd changes instead.';
    ELSIF columns <> cardinality(key) THEN
        RAISE EXCEPTION 'the key of table % has % columns, and % values were given', tab, columns, cardinality(key)
            USING ERRCODE = '22023', HINT = 'Give one text for each column, in the order of the key.';
    END IF;
    EXECUTE format('SELECT t.xmin FROM %s t WHERE %s', tab, wanted) INTO writer USING key;
    IF writer IS NULL THEN
        RAISE EXCEPTION 'table % has no such row here', tab
            USING ERRCODE = 'P0002', HINT = 'pgherd history tells what became of a row that was deleted.';
    END IF;
    -- a local transaction has its id in the link, any other one has written the link itself
    SELECT a.gid, CASE WHEN a.xid IS NULL THEN a.prev + 1 ELSE a.gid END INTO gid, since
      FROM pgherd.applied a WHERE a.xid::xid = writer OR a.xid IS NULL AND a.xmin = writer
     ORDER BY a.gid DESC LIMIT 1;
    IF gid IS NULL THEN
        RAISE NOTICE 'this member does not remember which transaction wrote the row'
            USING DETAIL = format('It remembers those since GID %s; the row is older, was written below a savepoint, or is'
                                  ' this transaction''s own.', (SELECT min(a.gid) FROM pgherd.applied a)),
                  HINT = 'pgherd history reads the log, which may reach further back.';
    END IF;
END $$;
