-- Traps under the names of all that our own code calls: every function of pg_catalog that plpgsql can have the arguments
-- of, and every operator. Whoever calls one hears of it.
DO $do$
DECLARE
    r    record;
    trap text := $$ RETURNS text LANGUAGE plpgsql AS 'BEGIN RAISE ''trap %% is called'', ''%s''; END' $$;
BEGIN
    FOR r IN
        SELECT format('%I(%s)', p.proname, oidvectortypes(p.proargtypes)) AS name
          FROM pg_proc p
         WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind <> 'p'
        UNION ALL
        SELECT format('%s(text%s)', v.name, repeat(', text', n))
          FROM unnest('{format,concat,concat_ws}'::text[]) v(name), generate_series(0, 5) n
    LOOP
        BEGIN
            EXECUTE 'CREATE OR REPLACE FUNCTION traps.' || r.name || format(trap, r.name);
        EXCEPTION WHEN invalid_function_definition OR feature_not_supported THEN -- "any", internal
            NULL;
        END;
    END LOOP;
    FOR r IN
        SELECT o.oprname AS name, oprleft::regtype AS l, oprright::regtype AS r FROM pg_operator o
         WHERE o.oprnamespace = 'pg_catalog'::regnamespace AND o.oprkind = 'b'
    LOOP
        BEGIN
            EXECUTE format('CREATE OR REPLACE FUNCTION traps.operator(%s, %s)', r.l, r.r)
                    || format(trap, 'of an operator');
            EXECUTE format('CREATE OPERATOR traps.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = traps.operator)', r.name, r.l, r.r);
        EXCEPTION WHEN invalid_function_definition OR feature_not_supported THEN
            NULL;
        END;
    END LOOP;
END $do$;
