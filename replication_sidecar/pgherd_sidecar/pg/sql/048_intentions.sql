-- A command that would lose for ever goes first: before it begins, its session asks the sidecar, which orders the
-- certification keys that the command is going to take (core/replication/intentions.py).

-- Commands whose tables cannot be told beforehand take the schema's key, and so exclude every writer.
CREATE OR REPLACE FUNCTION pgherd.excludes_writers(tag text) RETURNS bool
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN tag = 'DROP OWNED'
        OR tag LIKE 'ALTER %' AND tag <> ALL ('{ALTER TABLE, ALTER INDEX, ALTER VIEW, ALTER MATERIALIZED VIEW, ALTER FUNCTION,
            ALTER PROCEDURE, ALTER ROUTINE, ALTER AGGREGATE, ALTER SEQUENCE, ALTER PUBLICATION, ALTER STATISTICS,
            ALTER POLICY, ALTER TRIGGER, ALTER RULE, ALTER DEFAULT PRIVILEGES}'::text[]);
END $$;

-- Asks, and waits for at most about a second. Without an answer the command goes on: it may lose, and that is all.
CREATE OR REPLACE FUNCTION pgherd.intend(x xid8, tag text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE n pgherd.node;
BEGIN
    SELECT * INTO n FROM pgherd.node;
    IF NOT n.writable OR current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN; -- what is ordered from now on is not in its snapshot
    END IF;
    PERFORM pgherd.ask(n, 'I', concat(x, E'\n', CASE WHEN pgherd.excludes_writers(tag) THEN pgherd.name_hash('schema') | 3 END));
EXCEPTION
    WHEN connection_failure OR connection_exception OR read_only_sql_transaction THEN
        NULL;
END $$;
