-- Two commands exclude each other. Of two members the later one loses, but those of one member wait for their turn:
-- `pg_restore --jobs` would never get through otherwise. The turn is a lock on this table, held to the end of the
-- transaction, and so PostgreSQL finds deadlocks, and timeouts and cancels work as with any other lock.
CREATE TABLE IF NOT EXISTS pgherd.command_turn ();

-- A command of another member holds this lock to the end of its transaction. It does not wait for the turn, because the
-- session that has it loses anyway, and is kept for as long as nothing else is in the way.
CREATE TABLE IF NOT EXISTS pgherd.command_applied ();

-- Locks of those who have begun a command, to the end of their transactions: with the turn, or without it. Where names that
-- PostgreSQL has chosen for them are in the way of a command of another member, that waits for these locks, so that their
-- sessions give way. A session that still waits for the turn is in nobody's way.
CREATE TABLE IF NOT EXISTS pgherd.command_running ();
CREATE TABLE IF NOT EXISTS pgherd.command_guessed ();

CREATE OR REPLACE FUNCTION pgherd.keep_commands_waiting() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    LOCK TABLE pgherd.command_applied IN EXCLUSIVE MODE;
END $$;

-- PostgreSQL locks no function, schema or type for most commands: one that meets the applier there fails with "tuple
-- concurrently updated". So it begins when the applier's command has ended. It must not keep that lock itself, or the next
-- command of another member would wait for its transaction: what a block has locked is free when the block has failed.
-- A caught error would end a session whose errors do (exit_on_error).
CREATE OR REPLACE FUNCTION pgherd.take_turn() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET exit_on_error = off AS $$
BEGIN
    LOCK TABLE pgherd.command_turn IN EXCLUSIVE MODE;
    BEGIN
        LOCK TABLE pgherd.command_applied IN SHARE MODE;
        RAISE SQLSTATE 'PH009';
    EXCEPTION
        WHEN SQLSTATE 'PH009' THEN
            NULL;
        WHEN deadlock_detected THEN -- that command waits for what this transaction has done before
            RAISE EXCEPTION 'could not serialize access: a command of another member is applied'
                USING ERRCODE = '40001', HINT = 'Repeat the transaction.';
    END;
    LOCK TABLE pgherd.command_running IN ROW EXCLUSIVE MODE;
END $$;

-- Has another session the turn?
CREATE OR REPLACE FUNCTION pgherd.is_others_turn() RETURNS bool
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN EXISTS (SELECT FROM pg_locks l
                    WHERE l.locktype = 'relation' AND l.relation = 'pgherd.command_turn'::regclass
                      AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
                      AND l.mode = 'ExclusiveLock' AND l.granted AND l.pid <> pg_backend_pid());
END $$;

-- Does PostgreSQL choose names in such a command, for indexes, constraints, sequences or statistics? It chooses by what is
-- there, uncommitted too.
CREATE OR REPLACE FUNCTION pgherd.chooses_names(tag text) RETURNS bool
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN tag ~ '^(CREATE (TABLE|INDEX|STATISTICS|SCHEMA)|ALTER TABLE|SELECT INTO)';
END $$;

-- The turn of a command that has not waited for it, since it looked temporary. Beside a command that may still roll back it
-- may have names that no other member would choose.
--   beside  another session had the turn when the command began
CREATE OR REPLACE FUNCTION pgherd.take_turn_late(tag text, beside bool) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF pgherd.chooses_names(tag) AND (beside OR pgherd.is_others_turn()) THEN
        RAISE EXCEPTION 'could not serialize access: a command of another session has not ended'
            USING ERRCODE = '40001', HINT = 'Repeat the transaction.';
    END IF;
    PERFORM pgherd.take_turn();
END $$;

-- Is the command probably about temporary objects? These concern nobody, and need no turn. Its words are
-- all that tells.
CREATE OR REPLACE FUNCTION pgherd.looks_temporary(query text) RETURNS bool
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN (
        SELECT query ~* '[[:<:]](create|replace|into)[[:space:]]+((global|local)[[:space:]]+)?temp(orary)?[[:>:]]'
            OR pg_my_temp_schema() <> 0
               AND EXISTS (SELECT FROM pg_class c
                            WHERE c.relnamespace = pg_my_temp_schema() AND c.relkind NOT IN ('i', 'c')
                              AND (c.relname = ANY (regexp_split_to_array(query || ' ' || lower(query), '[^[:alnum:]_$]+'))
                                   OR c.relname ~ '[^[:alnum:]_$]' AND strpos(query, c.relname) > 0)));
END $$;

-- ddl_command_start, before anything else: what the command sees is what the one before it has left.
CREATE OR REPLACE FUNCTION pgherd.command_turn() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_TAG = 'REINDEX' OR pgherd.is_own_command() THEN
        RETURN;
    ELSIF pgherd.looks_temporary(left(current_query(), 10000)) THEN
        LOCK TABLE pgherd.command_guessed IN ROW EXCLUSIVE MODE;
    ELSE
        PERFORM pgherd.take_turn();
    END IF;
END $$;
