-- The text of a command inside a function. PostgreSQL quotes it in the stack of functions and escapes nothing, so a
-- double quote at the end of a line may be the end of the quotation, or stand in the text, as its author chooses.
-- Whoever guesses wrong executes something else on the other members. So nothing is guessed: the text has been read
-- by this server's own grammar in this very session, so it ends where that can read it. If there are two such places
-- the command is refused.

-- Can the server read this? A function with a polymorphic argument is parsed when it is made, and not analysed.
-- It is made under the session's own settings, and is gone again at once.
CREATE OR REPLACE FUNCTION pgherd.is_grammatical(candidate text) RETURNS bool
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET session_replication_role = replica
SET check_function_bodies = on SET client_min_messages = error SET exit_on_error = off AS $$
BEGIN
    EXECUTE format('CREATE FUNCTION pgherd_gen.reading_%s(anyelement) RETURNS void LANGUAGE sql AS %L',
                   pg_backend_pid(), candidate);
    RAISE EXCEPTION 'it can' USING ERRCODE = 'PH004';
EXCEPTION
    WHEN syntax_error THEN
        RETURN false;
    WHEN OTHERS THEN
        RETURN true; -- 'it can'; or something went wrong, which proves nothing
END $$;

-- The statement that the innermost entry of a stack quotes; NULL if it is none, or cannot be told.
CREATE OR REPLACE FUNCTION pgherd.quoted_statement(stack text) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    opening constant text := 'SQL statement "';
    parts     text[];
    candidate text;
    found_one text;
BEGIN
    IF starts_with(stack, opening) IS NOT TRUE THEN
        RETURN NULL;
    END IF;
    -- Each part but the last ends before a double quote at the end of a line.
    parts := string_to_array(substr(stack, length(opening) + 1) || E'\n', E'"\n');
    IF cardinality(parts) = 2 THEN
        RETURN parts[1];
    ELSIF cardinality(parts) > 32 THEN
        RETURN NULL; -- each takes a subtransaction
    END IF;
    FOR i IN 1 .. cardinality(parts) - 1 LOOP
        candidate := concat(candidate || E'"\n', parts[i]);
        IF pgherd.is_grammatical(candidate) THEN
            IF found_one IS NOT NULL THEN
                RETURN NULL;
            END IF;
            found_one := candidate;
        END IF;
    END LOOP;
    RETURN found_one;
END $$;
