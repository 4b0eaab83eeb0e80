-- Where DDL stands in a transaction's capture table: commands are rows between the rows that were
-- changed before them and those changed after.
--
-- A row is opened when its command starts, because what is captured while it is open was written by the
-- command itself, and finished when it ends, when PostgreSQL can say which objects were touched. Rows of
-- commands, told apart by `tab` and `keys`:
--   '""'                a command to replicate (recs: JSON), or certification keys alone (recs empty);
--                       a run of row changes ends and the next begins here, unless `pks` is {1}
--   'sentinel', open    a command that is running
--   'sentinel', note    what another event said about the running command
--   'sentinel', nested  a command of an extension's script that is running inside CREATE EXTENSION
--   'sentinel', local   a command that concerns this node only (temporary objects, IF EXISTS without
--                       effect): kept so that the statements of a message can be counted

CREATE OR REPLACE FUNCTION pgherd.put(
    x xid8, base int8, tab text, keys text, pks int8[], recs text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE format('INSERT INTO pgherd.capture_%1$s
                    SELECT $1, NOT EXISTS (SELECT FROM pgherd.capture_%1$s c WHERE c.xid = $1), $2, $3, $4, $5, $6',
                   pgherd.capture_side(x))
        USING x, base, tab, keys, pks, recs;
END $$;

-- A transaction's captured rows, and the number of the statement (cmin) that wrote each: their order.
CREATE OR REPLACE FUNCTION pgherd.capture_rows(
    x xid8, OUT cid int8, OUT base int8, OUT tab text, OUT keys text, OUT pks int8[], OUT recs text[])
RETURNS SETOF record
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
    RETURN QUERY EXECUTE format(
        'SELECT c.cmin::text::int8, c.base, c.tab, c.keys, c.pks, c.recs
           FROM pgherd.capture_%s c WHERE c.xid = $1', pgherd.capture_side(x)) USING x;
END $$;

-- Takes the row changes after statement `since` out, but not their certification keys.
CREATE OR REPLACE FUNCTION pgherd.empty_rows(x xid8, since int8) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
    EXECUTE format(
        'WITH gone AS (DELETE FROM pgherd.capture_%1$s c
                        WHERE c.xid = $1 AND c.cmin::text::int8 > $2
                          AND c.tab NOT IN (''sentinel'', ''""'') RETURNING c.*)
         INSERT INTO pgherd.capture_%1$s
         SELECT g.xid, false, g.base, g.tab, g.keys, ''{}'', ''{}'' FROM gone g',
        pgherd.capture_side(x)) USING x, since;
END $$;

-- Removes the row of the command that is running, with the notes about it, or that of one inside it.
CREATE OR REPLACE FUNCTION pgherd.remove_open(x xid8) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    since int8 := (SELECT max(c.cid) FROM pgherd.capture_rows(x) c
                    WHERE c.tab = 'sentinel' AND c.keys IN ('open', 'nested'));
BEGIN
    EXECUTE format('DELETE FROM pgherd.capture_%s c
                     WHERE c.xid = $1 AND c.cmin::text::int8 >= $2 AND c.tab = ''sentinel''',
                   pgherd.capture_side(x)) USING x, since;
END $$;

CREATE OR REPLACE FUNCTION pgherd.is_nested(x xid8) RETURNS bool
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
RETURN EXISTS (SELECT FROM pgherd.capture_rows(x) c WHERE c.tab = 'sentinel' AND c.keys = 'nested');

-- Ends a run of row changes: rows touched twice in it are brought to their final state (C3), while their
-- tables still have the row types under which they were captured.
CREATE OR REPLACE FUNCTION pgherd.settle(x xid8) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    since int8 := coalesce((SELECT max(c.cid) FROM pgherd.capture_rows(x) c WHERE c.tab = '""' AND c.pks <> '{1}'), -1);
    items json;
BEGIN
    IF pgherd.touches_a_row_twice(x, since) THEN
        items := concat('[', pgherd.final_state(x, since), ']');
        PERFORM pgherd.empty_rows(x, since);
        PERFORM pgherd.put(x, 0, (i -> 0)::text, '', array(SELECT json_array_elements_text(i -> 1)::int8),
                           array(SELECT json_array_elements_text(i -> 2)))
           FROM json_array_elements(items) AS i;
    END IF;
END $$;

-- The body of a writeset with DDL: everything in the order of its execution.
CREATE OR REPLACE FUNCTION pgherd.ordered_body(x xid8, OUT statements int8, OUT keys text, OUT body text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgherd.settle(x);
    SELECT count(*), string_agg(c.base || ':' || c.keys, ';') FILTER (WHERE c.keys <> '' AND c.tab <> 'sentinel'),
           string_agg(concat('[', CASE c.tab WHEN 'sentinel' THEN '""' ELSE c.tab END, ',',
                             array_to_json(c.pks), ',', array_to_json(c.recs), ']'), ',' ORDER BY c.cid)
               FILTER (WHERE c.recs <> '{}')
      INTO statements, keys, body FROM pgherd.capture_rows(x) c;
END $$;
