-- What the hostile cases write to, and a schema full of traps.
CREATE TABLE plain (id int PRIMARY KEY, v text);
CREATE TABLE keyed (a text, b int8, c numeric, d timestamptz, e varchar(9), UNIQUE (e), PRIMARY KEY (a, b));
CREATE UNIQUE INDEX ON keyed (lower(a), (b % 1000000));
ALTER TABLE keyed ADD f int4 REFERENCES plain;
-- So many keys that they are put together in groups.
CREATE TABLE wide (id int PRIMARY KEY);
DO $do$ BEGIN FOR i IN 1..41 LOOP CREATE UNIQUE INDEX ON wide (id); END LOOP; END $do$;
INSERT INTO plain VALUES (1, 'one'), (2, 'two');
DO $do$
DECLARE evil text := current_schema() || '_evil'; worse text := current_schema() || '_worse';
BEGIN
    -- Texts are compared by the statements of users, too.
    EXECUTE format('CREATE SCHEMA %I', worse);
    EXECUTE format('SET LOCAL search_path = %I, pg_catalog', worse);
    CREATE FUNCTION trapt(a text, b text) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE 'trap %', current_user; RETURN true; END $$;
    CREATE OPERATOR = (LEFTARG = text, RIGHTARG = text, FUNCTION = trapt);
    EXECUTE format('CREATE SCHEMA %I', evil);
    EXECUTE format('SET LOCAL search_path = %I, pg_catalog', evil);
    CREATE FUNCTION trap(a int8, b int4) RETURNS int8 LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE 'trap %', current_user; RETURN 0; END $$;
    CREATE FUNCTION trap8(a int8, b int8) RETURNS int8 LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE 'trap %', current_user; RETURN 0; END $$;
    CREATE FUNCTION trapb(a int8, b int8) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE 'trap %', current_user; RETURN true; END $$;
    CREATE FUNCTION neg(a int8) RETURNS int8 LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE 'trap %', current_user; RETURN 0; END $$;
    CREATE OPERATOR & (LEFTARG = int8, RIGHTARG = int4, FUNCTION = trap);
    CREATE OPERATOR | (LEFTARG = int8, RIGHTARG = int4, FUNCTION = trap);
    CREATE OPERATOR & (LEFTARG = int8, RIGHTARG = int8, FUNCTION = trap8);
    CREATE OPERATOR = (LEFTARG = int8, RIGHTARG = int8, FUNCTION = trapb);
    CREATE OPERATOR - (RIGHTARG = int8, FUNCTION = neg);
    CREATE FUNCTION lower(a text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN RAISE NOTICE 'trap %', current_user; RETURN ''; END $$;
    CREATE FUNCTION trapmod(a int8, b int4) RETURNS int8 LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN RAISE NOTICE 'trap %', current_user; RETURN 0; END $$;
    CREATE OPERATOR % (LEFTARG = int8, RIGHTARG = int4, FUNCTION = trapmod);
    CREATE FUNCTION concat_ws(text, VARIADIC text[]) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE 'trap %', current_user; RETURN ''; END $$;
    CREATE DOMAIN text AS pg_catalog.text CHECK (VALUE IS NULL);
    CREATE DOMAIN int8 AS pg_catalog.int8 CHECK (VALUE IS NULL);
    CREATE DOMAIN xid8 AS pg_catalog.xid8 CHECK (VALUE IS NULL);
    CREATE TYPE record AS (a int);
    CREATE COLLATION "C" (provider = icu, locale = 'und', deterministic = false);
END $do$;
