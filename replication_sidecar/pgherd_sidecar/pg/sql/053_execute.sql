-- Execution of an ordered command on a member that is not its origin.

-- Runs one statement with the rights of a role, and nothing more: inside a SECURITY DEFINER function of
-- that role PostgreSQL allows neither SET ROLE nor SET SESSION AUTHORIZATION, so functions that the
-- statement calls (a check constraint's, say) cannot come back to the superuser who called us.
-- It may have a query, of a materialized view or to check a foreign key, which is planned as any other: what suits our
-- own queries, by indexes only, would take for ever there.
CREATE OR REPLACE FUNCTION pgherd.run_as(role name, statement text, means name) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = on SET enable_bitmapscan = on SET enable_hashjoin = on SET enable_mergejoin = on
SET plan_cache_mode = auto AS $$
BEGIN
    EXECUTE pg_catalog.format(
        'CREATE OR REPLACE FUNCTION pgherd_gen.%I(statement pg_catalog.text) RETURNS pg_catalog.void'
        ' LANGUAGE plpgsql SECURITY DEFINER AS ''BEGIN EXECUTE statement; EXECUTE ''''CLOSE ALL''''; END''', means);
    EXECUTE pg_catalog.format('ALTER FUNCTION pgherd_gen.%I(pg_catalog.text) OWNER TO %I', means, role);
    EXECUTE pg_catalog.format('SELECT pgherd_gen.%I($1)', means) USING statement;
    -- DROP OWNED BY this role took it along
    EXECUTE pg_catalog.format('DROP FUNCTION IF EXISTS pgherd_gen.%I(pg_catalog.text)', means);
END $$;

-- The origin has seen that the text search configuration exists, or never used it.
CREATE OR REPLACE FUNCTION pgherd.set_for_command(setting text, value text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_catalog.set_config(setting, value, true);
EXCEPTION WHEN invalid_parameter_value THEN
    IF setting OPERATOR(pg_catalog.<>) 'default_text_search_config' THEN
        RAISE;
    END IF;
END $$;

-- Executes a statement with the settings of its session. `means`: name of a function of ours; no two transactions that
-- may run at the same time shall have the same.
CREATE OR REPLACE FUNCTION pgherd.run_statement(role name, statement text, settings jsonb, means name) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET check_function_bodies = off SET default_tablespace = '' AS $$
DECLARE
    before jsonb;
    judged text := current_setting('icu_validation_level', true);
BEGIN
    SELECT jsonb_object_agg(s.key, current_setting(s.key)) INTO before FROM jsonb_each_text(settings) s;
    PERFORM pgherd.set_for_command(s.key, s.value) FROM jsonb_each_text(settings) s;
    -- From here on names are looked up in the user's search_path first.
    IF judged IS NOT NULL THEN -- by the origin, too
        PERFORM pg_catalog.set_config('icu_validation_level', 'disabled', true);
    END IF;
    PERFORM pgherd.run_as(role, statement, means);
    PERFORM pg_catalog.set_config(s.key, s.value, true) FROM pg_catalog.jsonb_each_text(before) s;
END $$;

-- Executes a statement for a vote: can this member do it? Whoever calls this rolls back.
CREATE OR REPLACE FUNCTION pgherd.try_statement(role name, statement text, settings jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgherd.run_statement(role, statement, settings, format('try_%s', pg_backend_pid()));
END $$;

-- Executes one command of a writeset. Bodies of functions were checked at the origin, where they may name what
-- is there only: that is seen when the function is called.
CREATE OR REPLACE FUNCTION pgherd.execute_command(command jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET check_function_bodies = off
SET default_tablespace = '' AS $$
DECLARE
    rels      oid[];
    -- Evaluated here, not under the user's search_path: nothing of his may run with our rights.
    role      name := command ->> 'role';
    statement text := command ->> 'sql';
BEGIN
    PERFORM pgherd.keep_commands_waiting(), pgherd.drop_strays(), pgherd.drop_broken_indexes(), pgherd.restore_owners(),
            pgherd.change_roles('ensure_ground', command);
    IF command ? 'fill' THEN
        EXECUTE format('INSERT INTO %1$s SELECT (u.r::%1$s).* FROM unnest($1) AS u(r)', command ->> 'fill')
            USING array(SELECT jsonb_array_elements_text(command -> 'rows'));
        RETURN;
    ELSIF command ? 'act' THEN
        PERFORM pgherd.perform(command);
    ELSE
        PERFORM pgherd.run_statement(role, statement, command -> 'settings', 'run_command');
    END IF;
    SELECT array_agg(DISTINCT c.oid) INTO rels
      FROM jsonb_array_elements_text(command -> 'rels') AS r(name) JOIN pg_class c ON c.oid = to_regclass(r.name);
    PERFORM pgherd.follow_command(coalesce(rels, '{}'), coalesce((command ->> 'everything')::bool, false),
                                  coalesce((command ->> 'leaves_tables')::bool, false));
    PERFORM pgherd.check_command_print(command -> 'print');
END $$;

-- Temporary objects that any session here made of permanent ones: a view of a table, a column of a type. A command of
-- another member that changes these would fail for them. Nobody else has them, so they give way.
CREATE OR REPLACE FUNCTION pgherd.drop_temporary() RETURNS int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET session_replication_role = replica AS $$
DECLARE
    r       record;
    dropped int := 0;
BEGIN
    FOR r IN
        WITH RECURSIVE parts(class, id, root_class, root) AS (
            SELECT d.classid, d.objid, d.classid, d.objid
              FROM pg_depend d JOIN pg_namespace n ON n.oid = d.refobjid AND n.nspname ~ '^pg_temp_'
             WHERE d.refclassid = 'pg_namespace'::regclass AND d.classid <> 'pg_default_acl'::regclass
            UNION
            SELECT d.classid, d.objid, p.root_class, p.root
              FROM parts p JOIN pg_depend d ON d.refclassid = p.class AND d.refobjid = p.id
             WHERE d.deptype IN ('a', 'i', 'P', 'S')
        )
        SELECT DISTINCT p.root_class, p.root
          FROM parts p JOIN pg_depend d ON d.classid = p.class AND d.objid = p.id
         WHERE d.refobjid >= 16384 AND d.refclassid <> 'pg_namespace'::regclass
           AND NOT EXISTS (SELECT FROM parts o WHERE o.class = d.refclassid AND o.id = d.refobjid)
    LOOP
        -- one may have gone with another
        EXECUTE coalesce('DROP ' || pgherd.object_in_words(r.root_class, r.root) || ' CASCADE', 'SELECT');
        dropped := dropped + 1;
    END LOOP;
    RETURN dropped;
END $$;
