-- CREATE UNIQUE INDEX CONCURRENTLY. PostgreSQL looks at the keys of a row on a member from the moment on that its index takes
-- rows, and certification has to look at them between members. The places in the order:
--
-- 1. The beginning takes the keys of the table exclusively, as any command does: what was captured before, by functions that
--    do not know the index, and is ordered behind it, loses. Nobody writes the table while these functions are replaced.
--    From it on every writer carries the key of its row in the new index. So two concurrent transactions with one key exclude each other, whether or not any member has the index.
-- 2. A writer on a member that has not built the index yet carries the index's key for such writers, too: *unready*. There
--    PostgreSQL does not tell the writer of a row that has been there for long. When the index is built here, what is
--    captured from then on is without that key (ready_unique), and the member reports.
-- 3. The end takes the unready key exclusively. If a row was written on a member without the index, and it was ordered after
--    what the origin had applied, the end loses, and the index is undone everywhere. If it is ordered behind the end, that
--    writer loses. So behind the end there are no two rows with one key: of any two the later one was written on a member
--    that had the index and the other row, or the two were concurrent.
--
-- Before the end, a row may be a duplicate of one that its member knew, because it had no index yet. Where the index is
-- there already, it gives way (abandon_long); or a build fails. Then all members drop it, and the client hears 23505.

-- The key of those who write rows on a member that has not got the index yet; without mode bits.
CREATE OR REPLACE FUNCTION pgherd.unready_key(index text) RETURNS int8
LANGUAGE sql IMMUTABLE RETURN pgherd.name_hash('unready ' || index);

-- In the first transaction of the command, at the origin.
CREATE OR REPLACE FUNCTION pgherd.begin_unique(rel oid, idx oid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET DateStyle = 'ISO, YMD' SET IntervalStyle = 'postgres'
SET TimeZone = 'UTC' SET extra_float_digits = 1 SET bytea_output = 'hex' SET lc_monetary = 'C' SET xmlbinary = 'base64'
SET quote_all_identifiers = off AS $$
DECLARE
    root oid  := coalesce(pg_partition_root(rel)::oid, rel);
    key  text := pgherd.index_key(idx, 'pgherd_row');
BEGIN
    IF NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = root AND i.indisprimary) THEN
        PERFORM pgherd.refuse(format('CREATE UNIQUE INDEX CONCURRENTLY is not supported on %s, which has no primary key',
                                     root::regclass),
                              'Its rows may be known by the new index, from one place in the order on: leave CONCURRENTLY out.');
    END IF;
    IF replace(key, 'pgherd_row', 'r') <> pgherd.index_key(idx, 'r') THEN
        PERFORM pgherd.refuse('"pgherd_row" in an index is a name of replication', 'Give the column another name.');
    END IF;
    PERFORM pgherd.lock_writers_out(rel);
    UPDATE pgherd.long_commands l
       SET row_key = (SELECT pgherd.unique_key(i, root, 'pgherd_row') FROM pg_index i WHERE i.indexrelid = idx),
           columns = array(SELECT DISTINCT a.attname FROM pg_attribute a JOIN pg_index i ON i.indexrelid = idx
                            WHERE a.attrelid = rel AND a.attnum > 0 AND NOT a.attisdropped
                              AND (a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]) OR pgherd.reads_column(i, a.attnum)))
     WHERE l.token = pgherd.current_token();
END $$;

-- Until the end of the transaction nobody writes the table, so nobody's statement is captured by a function that is replaced.
-- Who writes it is waited for a fifth of a second at a time, and those who come meanwhile go on in between.
CREATE OR REPLACE FUNCTION pgherd.lock_writers_out(rel oid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms' AS $$
DECLARE tries int := 100;
BEGIN
    LOOP
        BEGIN
            EXECUTE format('LOCK TABLE ONLY %s IN SHARE MODE', rel::regclass);
            RETURN;
        EXCEPTION WHEN lock_not_available THEN
            tries := tries - 1;
            IF tries = 0 THEN
                RAISE EXCEPTION 'table % is being written by transactions that do not end', rel::regclass
                    USING ERRCODE = '55P03', HINT = 'Repeat the command when they have ended: see pg_locks.';
            END IF;
        END;
        PERFORM pg_sleep(0.2);
    END LOOP;
END $$;

-- What a writer carries for the unique indexes that are being built on tables of `tree`: see unique_arguments(). The row has
-- no other name in row_key than the one that is replaced: it was made from catalogs.
CREATE OR REPLACE FUNCTION pgherd.coming_keys(tree oid[], alias text) RETURNS SETOF text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY
    SELECT replace(l.row_key, 'pgherd_row', alias) || ' OPERATOR(pg_catalog.|) 3'
      FROM pgherd.long_commands l WHERE l.relid = ANY (tree) AND l.row_key <> ''
    UNION ALL
    SELECT pgherd.unready_key(l.index)::text
      FROM pgherd.long_commands l WHERE l.relid = ANY (tree) AND l.row_key <> '' AND NOT l.ready;
END $$;

-- The index is built here, or is not any more. `value` is for what is captured from now on.
CREATE OR REPLACE FUNCTION pgherd.ready_unique(token text, value bool) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET session_replication_role = replica SET check_function_bodies = off AS $$
DECLARE rel oid;
BEGIN
    UPDATE pgherd.long_commands l SET ready = value
     WHERE l.token = ready_unique.token AND l.row_key <> '' AND l.ready <> value RETURNING l.relid INTO rel;
    IF FOUND THEN
        IF to_regtype('pgherd_gen.row_' || coalesce(pg_partition_root(rel)::oid, rel)) IS NOT NULL THEN
            PERFORM pgherd.lock_writers_out(rel); -- the type is made anew
        END IF;
        PERFORM pgherd.reconcile(pgherd.with_relatives(ARRAY[rel]));
    END IF;
END $$;

-- Transactions that have written the table of a long command, by name.
CREATE OR REPLACE FUNCTION pgherd.writers_of_long(token text) RETURNS text[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT coalesce(array_agg(DISTINCT o.virtualtransaction), '{}')
      FROM pgherd.long_commands l
      JOIN pg_locks o ON o.locktype = 'relation' AND o.relation = l.relid AND o.mode = 'RowExclusiveLock' AND o.granted
                     AND o.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
     WHERE l.token = writers_of_long.token;
END;
