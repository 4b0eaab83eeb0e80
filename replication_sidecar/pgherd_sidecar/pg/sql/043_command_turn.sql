-- Two commands exclude each other. Of two members the later one loses, but those of one member wait for their turn:
-- `pg_restore --jobs` would never get through otherwise. The turn is a lock on this table, held to the end of the
-- transaction, and so PostgreSQL finds deadlocks, and timeouts and cancels work as with any other lock.
CREATE TABLE IF NOT EXISTS pgherd.command_turn ();

CREATE OR REPLACE FUNCTION pgherd.take_turn() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    LOCK TABLE pgherd.command_turn IN EXCLUSIVE MODE;
END $$;

-- Is the command probably about temporary objects? These concern nobody, and need no turn. Only a guess, by its words:
-- a command that has not waited may lose, and that is all.
CREATE OR REPLACE FUNCTION pgherd.looks_temporary(query text) RETURNS bool
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN (
        SELECT query ~* '[[:<:]]temp(orary)?[[:>:]]'
            OR pg_my_temp_schema() <> 0
               AND EXISTS (SELECT FROM pg_class c
                            WHERE c.relnamespace = pg_my_temp_schema() AND c.relkind NOT IN ('i', 'c')
                              AND strpos(query, c.relname) > 0));
END $$;

-- ddl_command_start, before anything else: what the command sees is what the one before it has left.
CREATE OR REPLACE FUNCTION pgherd.command_turn() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_TAG <> 'REINDEX' AND NOT pgherd.is_own_command() AND NOT pgherd.looks_temporary(left(current_query(), 10000)) THEN
        PERFORM pgherd.take_turn();
    END IF;
END $$;
