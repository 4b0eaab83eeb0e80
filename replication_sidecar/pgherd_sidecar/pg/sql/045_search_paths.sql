-- Functions that find what they name by the search path of the session. Where a row is written at its origin that is the
-- user's. The applier has a safe one, under which the same function may fail, or find something else. So a function that the
-- applier runs has to bring its own search path, or has to find the same under any. That is PostgreSQL 17's rule for what
-- CREATE INDEX, REINDEX and the like evaluate.
--
-- A use is judged when it is made, and again when the function changes. Uses that are older than this rule, and work, go on.

-- Functions without a search path of their own: in SQL and procedural languages, and aggregates, which run such functions.
-- Those in C and PostgreSQL's own name nothing. "$user" is another schema for the applier. Triggers fire at the origin only.
--   bound  its names are bound already, but those in functions that it calls need not be
--   names  how a text of SQL may call it
CREATE OR REPLACE VIEW pgherd.pathless AS
SELECT p.oid, p.prosrc AS body, p.xmin AS made,
       p.prosqlbody IS NOT NULL OR p.prokind = 'a' AS bound,
       l.lanname = 'sql' AND p.prosqlbody IS NULL AS is_text_of_sql,
       ARRAY[p.proname::text]
       || CASE WHEN EXISTS (SELECT FROM pg_operator o WHERE o.oprcode = p.oid) THEN ARRAY['operator'] END AS names
  FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
 WHERE p.oid >= 16384
   AND (l.lanname NOT IN ('internal', 'c') OR p.prokind = 'a')
   AND p.prorettype <> ALL ('{trigger,event_trigger}'::regtype[]::oid[])
   AND p.pronamespace NOT IN ('pgherd'::regnamespace, 'pgherd_gen'::regnamespace)
   AND NOT EXISTS (SELECT FROM unnest(p.proconfig) AS c(setting)
                    WHERE c.setting LIKE 'search_path=%' AND strpos(c.setting, '"$user"') = 0);

-- May a text of SQL call something of one of these names? A word in a comment or a literal counts.
CREATE OR REPLACE FUNCTION pgherd.mentions(body text, names text[]) RETURNS bool
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE words text[];
BEGIN
    IF names = '{}' THEN
        RETURN false;
    END IF;
    words := regexp_split_to_array(lower(body), '[^[:alnum:]_$]+');
    RETURN EXISTS (SELECT FROM unnest(names) AS n(name)
                    WHERE CASE WHEN n.name ~ '^[[:alnum:]_$]+$' THEN lower(n.name) = ANY (words)
                               ELSE strpos(lower(body), lower(n.name)) > 0 END);
END $$;

-- Does a function without a search path find what it names under that of the applier, and does so all that it calls? Of a
-- text of SQL PostgreSQL can tell, since it looks up all names before it runs it; but it does not look into other functions,
-- so there must be none that would have to be judged as well. The names in other languages are seen when they are executed.
CREATE OR REPLACE FUNCTION pgherd.needs_no_path(f oid) RETURNS bool
LANGUAGE plpgsql SET search_path = pg_catalog SET check_function_bodies = on AS $$
DECLARE source text := (SELECT p.body FROM pgherd.pathless p WHERE p.oid = f AND p.is_text_of_sql);
BEGIN
    IF source IS NULL OR strpos(lower(source), 'u&"') > 0
       -- its names are looked up when its types are known
       OR EXISTS (SELECT FROM pg_proc p JOIN pg_type t ON t.oid = ANY (p.proargtypes::oid[]) AND t.typtype = 'p' WHERE p.oid = f)
       OR EXISTS (SELECT FROM pgherd.pathless p WHERE p.oid <> f AND pgherd.mentions(source, p.names)) THEN
        RETURN false;
    END IF;
    BEGIN
        PERFORM fmgr_sql_validator(f);
    EXCEPTION WHEN syntax_error_or_access_rule_violation OR invalid_schema_name OR data_exception OR feature_not_supported THEN
        RETURN false;
    END;
    RETURN true;
END $$;

-- The schemas in which a command's session looked, as a function may name them for itself. PostgreSQL looks into pg_catalog
-- first where it is not named, and into the session's temporary schema, too. NULL: not known.
CREATE OR REPLACE FUNCTION pgherd.lasting_path(command jsonb) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF command IS NULL THEN
        RETURN NULL;
    END IF;
    RETURN ( -- read with our own path, and executed with the other one
        SELECT coalesce(string_agg(quote_ident(s.name), ', ' ORDER BY s.place), 'pg_catalog') || ', pg_temp'
          FROM (SELECT set_config('search_path', replace(command -> 'settings' ->> 'search_path', '"$user"',
                                                         quote_ident(command ->> 'role')), true) AS value OFFSET 0) p
         CROSS JOIN LATERAL unnest(current_schemas(p.value IS NULL)) WITH ORDINALITY AS s(name, place)
         WHERE s.name NOT LIKE 'pg!_temp!_%' ESCAPE '!');
END $$;

-- Refuses functions without a search path where they are new, in a place that is new, or in a place of `rels`. A function that
-- is in use elsewhere for long is not judged for the sake of one more place: partitions are made each day.
CREATE OR REPLACE FUNCTION pgherd.check_search_paths(rels oid[], command jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    pathless oid[] := array(SELECT p.oid FROM pgherd.pathless p WHERE NOT p.bound);
    changed  text[];
    roots    oid[];
    classes  oid[];
    ids      oid[];
    fresh    bool[];
    r        record;
BEGIN
    IF pathless = '{}' THEN
        RETURN;
    END IF;
    changed := array(SELECT unnest(p.names) FROM pgherd.pathless p WHERE pgherd.is_new(p.made));
    -- these functions, and what calls them without a search path of its own
    WITH RECURSIVE code(root, class, id, fresh) AS (
        SELECT p.oid, 'pg_proc'::regclass::oid, p.oid, pgherd.is_new(p.made)
          FROM pgherd.pathless p WHERE p.oid = ANY (pathless)
        UNION
        SELECT c.root, d.classid, d.objid, c.fresh OR pgherd.is_new(d.xmin)
          FROM code c JOIN pg_depend d ON d.refclassid = c.class AND d.refobjid = c.id
         WHERE d.classid = 'pg_operator'::regclass
            OR d.classid = 'pg_proc'::regclass AND EXISTS (SELECT FROM pgherd.pathless p WHERE p.oid = d.objid)
    )
    SELECT array_agg(c.root), array_agg(c.class), array_agg(c.id), array_agg(c.fresh) INTO roots, classes, ids, fresh
      FROM code c;
    FOR r IN
        SELECT c.root::regprocedure AS f, min(pg_describe_object(p.place_class, p.place, p.part)) AS place
          FROM unnest(roots, classes, ids, fresh) AS c(root, class, id, fresh)
          JOIN pgherd.evaluated_places(classes, ids) p ON p.class = c.class AND p.id = c.id
         CROSS JOIN LATERAL pgherd.relation_of(p.place_class, p.place) AS t(relid)
         WHERE p.place_class <> 'pg_trigger'::regclass
           AND (t.relid IS NULL OR t.relid IN (SELECT u.relid FROM pgherd.user_tables u))
           -- what an extension has made for itself nobody could make otherwise
           AND NOT EXISTS (SELECT FROM pg_depend e
                            WHERE e.classid = p.place_class AND e.objid = p.place AND e.deptype = 'e')
         GROUP BY c.root
        HAVING bool_or(c.fresh) OR bool_and(pgherd.is_new(p.made)) OR bool_or(t.relid = ANY (rels))
            OR EXISTS (SELECT FROM pgherd.pathless f -- only of what is in use: to read all texts takes long
                        WHERE f.oid = c.root AND f.is_text_of_sql AND pgherd.mentions(f.body, changed))
         ORDER BY 2
    LOOP
        CONTINUE WHEN pgherd.needs_no_path(r.f);
        PERFORM pgherd.refuse(format('%s uses %s, which has no search path of its own', r.place, r.f),
            'Other members evaluate it under another search path than yours, and may not find what it names. '
            || CASE WHEN EXISTS (SELECT FROM pg_depend e WHERE e.classid = 'pg_proc'::regclass AND e.objid = r.f AND e.deptype = 'e')
                    THEN 'It belongs to an extension: use a function of your own that calls it, with SET search_path = '
                    ELSE format('As a superuser: ALTER FUNCTION %s SET search_path = ', r.f) END
            || coalesce(pgherd.lasting_path(command), '..., pg_temp') || ';');
    END LOOP;
END $$;
