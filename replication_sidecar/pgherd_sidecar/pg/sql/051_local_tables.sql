-- Tables that the user keeps local: their structure is replicated, their rows are not.

-- Keeps the marks right after DDL: names, dropped tables, new partitions of a local table.
CREATE OR REPLACE FUNCTION pgherd.follow_local_tables() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE pgherd.local_tables l SET relid = to_regclass(l.name) WHERE l.relid IS NULL;
    DELETE FROM pgherd.local_tables l WHERE NOT EXISTS (SELECT FROM pgherd.all_tables a WHERE a.relid = l.relid);
    UPDATE pgherd.local_tables l SET name = a.name
      FROM pgherd.all_tables a WHERE a.relid = l.relid AND a.name <> l.name;
    INSERT INTO pgherd.local_tables (name, relid)
    SELECT DISTINCT a.name, a.relid
      FROM pgherd.local_tables l
     CROSS JOIN LATERAL pg_partition_tree(l.relid) p JOIN pgherd.all_tables a ON a.relid = p.relid
        ON CONFLICT DO NOTHING;
END $$;

CREATE OR REPLACE FUNCTION pgherd.mark_local(rel oid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET session_replication_role = replica AS $$
BEGIN
    PERFORM pgherd.release_sequence(s) FROM pgherd.user_sequences s WHERE s.owner = rel;
    INSERT INTO pgherd.local_tables (name, relid) SELECT a.name, a.relid FROM pgherd.all_tables a WHERE a.relid = rel
        ON CONFLICT DO NOTHING;
END $$;

-- What the members hold of a local table has nothing in common: it begins empty everywhere.
CREATE OR REPLACE FUNCTION pgherd.mark_replicated(rel oid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET session_replication_role = replica AS $$
BEGIN
    EXECUTE format('DELETE FROM %s', rel::regclass);
    DELETE FROM pgherd.local_tables l WHERE l.relid = rel OR l.relid IN (SELECT p.relid FROM pg_partition_tree(rel) p);
END $$;

-- May this role change how the table is kept, and does it make sense?
CREATE OR REPLACE FUNCTION pgherd.check_mark(role name, rel oid, act text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    c      pg_class;
    filled bool;
BEGIN
    SELECT * INTO c FROM pg_class p
     WHERE p.oid = rel AND p.relkind IN ('r', 'p') AND p.oid IN (SELECT t.relid FROM pgherd.tables t);
    IF c.oid IS NULL THEN
        RAISE EXCEPTION '% is not a table that could be replicated', rel::regclass USING ERRCODE = '42809';
    ELSIF NOT pg_has_role(role, c.relowner, 'USAGE') THEN
        RAISE EXCEPTION 'must be owner of table %', rel::regclass USING ERRCODE = '42501';
    ELSIF c.relispartition THEN
        PERFORM pgherd.refuse(format('%s is a partition', rel::regclass),
                              'Mark the partitioned table: its partitions follow.');
    ELSIF act = 'set_replicated' THEN
        EXECUTE format('SELECT EXISTS (SELECT FROM %s)', rel::regclass) INTO filled;
        IF filled THEN
            PERFORM pgherd.refuse(format('table %s is not empty', rel::regclass),
                                  'A table begins empty when it becomes replicated, also on the other members:'
                                  ' save its rows elsewhere first.');
        END IF;
    END IF;
END $$;
