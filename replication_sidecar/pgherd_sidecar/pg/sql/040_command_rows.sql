-- Where DDL stands in a transaction's capture table: commands are rows between the rows that were
-- changed before them and those changed after.
--
-- A row is opened when its command starts, because what is captured while it is open was written by the
-- command itself, and finished when it ends, when PostgreSQL can say which objects were touched. Rows of
-- commands, told apart by `tab` and `keys`:
--   '""'                a command to replicate (recs: JSON), or certification keys alone (recs empty);
--                       a run of row changes ends and the next begins here, unless `pks` is {1}: then the run
--                       goes on, and the others execute the command before all rows of the run (047)
--   'sentinel', open    a command that is running
--   'sentinel', note    what another event said about the running command
--   'sentinel', nested  a command about an extension that is running inside the script of another (see is_nested)
--   'sentinel', end     the command, or the one inside it, that began with row `base` is not running any more:
--                       it and the notes about it count for nothing
--   'sentinel', settled the row changes between row `base` and this one have been brought to their final state,
--                       which follows: only their certification keys count
--   'sentinel', local   a command that concerns this node only (temporary objects, IF EXISTS without
--                       effect): kept so that the statements of a message can be counted
--   'sentinel', opened and closed
--                       a statement that changes rows of the table `base` begins, and ends (047)
-- Outside the order of the rows: 'sentinel' without keys (fires_early), and checks (before_checks).

CREATE OR REPLACE FUNCTION pgherd.put(
    x xid8, base int8, tab text, keys text, pks int8[], recs text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    IF pgherd.capture_side(x) = 0 THEN
        INSERT INTO pgherd.capture_0
        SELECT x, 1 + greatest((SELECT CASE WHEN c.xid = x THEN c.seq END FROM pgherd.capture_0 c
                                 WHERE c.xid >= x ORDER BY c.xid, c.seq DESC LIMIT 1), 0), base, tab, keys, pks, recs;
    ELSE
        INSERT INTO pgherd.capture_1
        SELECT x, 1 + greatest((SELECT CASE WHEN c.xid = x THEN c.seq END FROM pgherd.capture_1 c
                                 WHERE c.xid >= x ORDER BY c.xid, c.seq DESC LIMIT 1), 0), base, tab, keys, pks, recs;
    END IF;
END $$;

-- A transaction's captured rows as they count, by their numbers: without what has ended, and with no row changes
-- where they are settled. A later row of its kind says so; the next one behind has the smallest `base`, because
-- what they take back does not overlap, or is nested.
DO $do$
DECLARE
    sides text[];
    side  int;
BEGIN
    FOR side IN 0..1 LOOP
        sides[side] := format(
            $q$SELECT c.seq, c.base, c.tab, c.keys, CASE WHEN c.settled THEN '{}' ELSE c.pks END,
                      CASE WHEN c.settled THEN '{}' ELSE c.recs END
                 FROM (SELECT c.*,
                              c.tab NOT IN ('sentinel', '""')
                              AND coalesce(min(c.base) FILTER (WHERE c.tab = 'sentinel' AND c.keys = 'settled') OVER later
                                           < c.seq, false) AS settled,
                              c.tab = 'sentinel' AND c.keys IN ('open', 'note', 'nested', 'end')
                              AND coalesce(min(c.base) FILTER (WHERE c.tab = 'sentinel' AND c.keys = 'end') OVER later
                                           <= c.seq, false) AS ended
                         FROM pgherd.capture_%s c WHERE c.xid = x AND c.seq >= first AND c.seq > 0
                       WINDOW later AS (ORDER BY c.seq ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING)) c
                WHERE NOT c.ended ORDER BY c.seq$q$, side);
    END LOOP;
    EXECUTE format($f$
        CREATE OR REPLACE FUNCTION pgherd.capture_rows(
            x xid8, first int8 DEFAULT 1, OUT seq int8, OUT base int8, OUT tab text, OUT keys text, OUT pks int8[], OUT recs text[])
        RETURNS SETOF record
        LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
        #variable_conflict use_column
        BEGIN
            IF pgherd.capture_side(x) = 0 THEN
                RETURN QUERY %s;
            ELSE
                RETURN QUERY %s;
            END IF;
        END $$ $f$, sides[0], sides[1]);
END $do$;

-- Those of the command that is running, from the row on with which it was opened. Only the newest one of these can be that
-- of a running command. A transaction may hold thousands of rows before it, and each command asks many times.
CREATE OR REPLACE FUNCTION pgherd.running_rows(
    x xid8, OUT seq int8, OUT base int8, OUT tab text, OUT keys text, OUT pks int8[], OUT recs text[])
RETURNS SETOF record
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE opened int8;
BEGIN
    IF pgherd.capture_side(x) = 0 THEN
        opened := (SELECT c.seq FROM pgherd.capture_0 c WHERE c.xid = x AND c.tab = 'sentinel' AND c.keys = 'open'
                    ORDER BY c.seq DESC LIMIT 1);
    ELSE
        opened := (SELECT c.seq FROM pgherd.capture_1 c WHERE c.xid = x AND c.tab = 'sentinel' AND c.keys = 'open'
                    ORDER BY c.seq DESC LIMIT 1);
    END IF;
    IF opened IS NOT NULL THEN
        RETURN QUERY SELECT * FROM pgherd.capture_rows(x, opened);
    END IF;
END $$;

-- What those rows say, in one look: each is read as JSON once, and the end of a command asks for all of it. Without a command
-- that is running `seq` is NULL. tag: of the command, or of the event of one, that asks.
--   seq, base  of the row with which it was opened
--   said       what was put there
--   notes      what other events have said about it
--   nested     see is_nested()
--   wrote      have rows been captured since it began?
CREATE OR REPLACE FUNCTION pgherd.running_command(
    x xid8, tag text, OUT seq int8, OUT base int8, OUT said jsonb, OUT notes jsonb, OUT nested bool, OUT wrote bool)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    SELECT max(c.seq) FILTER (WHERE c.keys = 'open'), max(c.base) FILTER (WHERE c.keys = 'open'),
           (max(c.recs[1]) FILTER (WHERE c.keys = 'open'))::jsonb,
           coalesce(jsonb_agg(c.recs[1]::jsonb) FILTER (WHERE c.keys = 'note'), '[]'),
           coalesce(bool_or(c.keys = 'nested'), false), coalesce(bool_or(c.tab <> 'sentinel'), false)
      INTO seq, base, said, notes, nested, wrote
      FROM pgherd.running_rows(x) c;
    nested := nested
        OR tag NOT LIKE '% EXTENSION' AND coalesce(said ->> 'tag' LIKE '% EXTENSION', false)
        OR tag <> 'REFRESH MATERIALIZED VIEW' AND coalesce(said ->> 'tag' = 'REFRESH MATERIALIZED VIEW', false);
END $$;

-- The client's message that the newest command of a transaction came with, as start_command() has named it.
CREATE OR REPLACE FUNCTION pgherd.newest_message(x xid8) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
    IF pgherd.capture_side(x) = 0 THEN
        RETURN (SELECT c.recs[1]::jsonb ->> 'message' FROM pgherd.capture_0 c
                 WHERE c.xid = x AND c.tab IN ('""', 'sentinel') AND strpos(c.recs[1], '"message": ') > 0
                 ORDER BY c.seq DESC LIMIT 1);
    END IF;
    RETURN (SELECT c.recs[1]::jsonb ->> 'message' FROM pgherd.capture_1 c
             WHERE c.xid = x AND c.tab IN ('""', 'sentinel') AND strpos(c.recs[1], '"message": ') > 0
             ORDER BY c.seq DESC LIMIT 1);
END $$;

-- The command that is running, or the one inside it, does not any more.
CREATE OR REPLACE FUNCTION pgherd.end_open(x xid8) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgherd.put(x, (SELECT max(c.seq) FROM pgherd.running_rows(x) c
                            WHERE c.tab = 'sentinel' AND c.keys IN ('open', 'nested')), 'sentinel', 'end', '{0}', '{}');
END $$;

-- Is a command, or an event of it, part of an extension's script? Scripts have thousands of commands, so those are told by
-- their tags, and leave no rows behind; only one that is about an extension itself does. REFRESH ... CONCURRENTLY has a few
-- commands about a temporary table.
CREATE OR REPLACE FUNCTION pgherd.is_nested(x xid8, tag text) RETURNS bool
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (pgherd.running_command(x, tag)).nested;
END $$;

-- The command behind which the present run of row changes began, or the row behind which it was settled last.
CREATE OR REPLACE FUNCTION pgherd.run_begin(x xid8, settled bool DEFAULT false) RETURNS int8
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
#variable_conflict use_variable
BEGIN
    IF pgherd.capture_side(x) = 0 THEN
        RETURN coalesce((SELECT c.seq FROM pgherd.capture_0 c
                          WHERE c.xid = x AND (c.tab = '""' AND c.pks <> '{1}' OR settled AND c.tab = 'sentinel' AND c.keys = 'settled')
                          ORDER BY c.seq DESC LIMIT 1), 0);
    END IF;
    RETURN coalesce((SELECT c.seq FROM pgherd.capture_1 c
                      WHERE c.xid = x AND (c.tab = '""' AND c.pks <> '{1}' OR settled AND c.tab = 'sentinel' AND c.keys = 'settled')
                      ORDER BY c.seq DESC LIMIT 1), 0);
END $$;

-- Have rows been changed in the present run?
CREATE OR REPLACE FUNCTION pgherd.run_has_rows(x xid8, since int8) RETURNS bool
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
    IF pgherd.capture_side(x) = 0 THEN
        RETURN EXISTS (SELECT FROM pgherd.capture_0 c WHERE c.xid = x AND c.seq > since AND c.tab NOT IN ('sentinel', '""'));
    END IF;
    RETURN EXISTS (SELECT FROM pgherd.capture_1 c WHERE c.xid = x AND c.seq > since AND c.tab NOT IN ('sentinel', '""'));
END $$;

-- Brings the rows that were touched twice in the present run to their final state (C3), while their tables still
-- have the row types under which they were captured.
CREATE OR REPLACE FUNCTION pgherd.settle(x xid8) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    since int8 := pgherd.run_begin(x, true);
    items json;
BEGIN
    IF pgherd.run_has_rows(x, since) AND pgherd.touches_a_row_twice(x, since) THEN
        items := concat('[', pgherd.final_state(x, since), ']');
        PERFORM pgherd.put(x, since, 'sentinel', 'settled', '{0}', '{}');
        PERFORM pgherd.put(x, 0, (i -> 0)::text, '', array(SELECT json_array_elements_text(i -> 1)::int8),
                           array(SELECT json_array_elements_text(i -> 2)))
           FROM json_array_elements(items) AS i;
    END IF;
END $$;

-- A table of which two rows that were changed in the present run have one primary key, as a deferrable one allows
-- until COMMIT. The run must not end then: which of them is meant by what follows, nobody could tell.
CREATE OR REPLACE FUNCTION pgherd.doubled_table(x xid8) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    since   int8 := pgherd.run_begin(x);
    t       record;
    doubled bool;
BEGIN
    IF NOT pgherd.run_has_rows(x, since) THEN
        RETURN NULL;
    END IF;
    FOR t IN EXECUTE format(
        $f$SELECT u.relid, u.name, d.tab
             FROM (SELECT DISTINCT c.tab FROM pgherd.capture_%s c
                    WHERE c.xid = $1 AND c.seq > $2 AND c.tab NOT IN ('sentinel', '""')) d
             JOIN pgherd.user_tables u ON u.relid = to_regclass(d.tab::json #>> '{}')
             JOIN pg_index i ON i.indrelid = u.relid AND i.indisprimary AND NOT i.indimmediate
            WHERE to_regproc('pgherd_gen.doubled_' || u.relid) IS NOT NULL$f$, pgherd.capture_side(x)) USING x, since
    LOOP
        EXECUTE format('SELECT pgherd_gen.%I(array(SELECT r FROM pgherd.capture_rows($1) c, unnest(c.recs) r
                                                   WHERE c.seq > $2 AND c.tab = $3 AND r <> ''T''))',
                       'doubled_' || t.relid) INTO doubled USING x, since, t.tab;
        IF doubled THEN
            RETURN t.name;
        END IF;
    END LOOP;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION pgherd.refuse_doubled(tab text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF tab IS NOT NULL THEN
        PERFORM pgherd.refuse(
            format('a command while rows of table %s violate its deferred primary key is not supported', tab),
            'Execute it before they do, or when their keys are unique again.');
    END IF;
END $$;

-- The body of a writeset with DDL: in the order of its execution, but that the commands in a run come before its
-- rows. Only such commands are let into a run to which that makes no difference.
CREATE OR REPLACE FUNCTION pgherd.ordered_body(x xid8, OUT statements int8, OUT keys text, OUT body text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgherd.settle(x);
    SELECT count(*), string_agg(c.base || ':' || c.keys, ';') FILTER (WHERE c.keys <> '' AND c.tab <> 'sentinel'),
           string_agg(concat('[', CASE c.tab WHEN 'sentinel' THEN '""' ELSE c.tab END, ',',
                             array_to_json(c.pks), ',', array_to_json(c.recs), ']'), ','
                      ORDER BY c.run, c.tab NOT IN ('sentinel', '""'), c.seq)
               FILTER (WHERE c.recs <> '{}')
      INTO statements, keys, body
      FROM (SELECT r.*, count(*) FILTER (WHERE r.tab = '""' AND r.pks <> '{1}') OVER (ORDER BY r.seq) AS run
              FROM pgherd.capture_rows(x) r) c;
END $$;
