-- A command inside a statement that is still changing rows: a trigger, or a function in INSERT ... SELECT, makes a
-- table. The statement's rows are captured when it ends, behind the command, though some were changed before it; so
-- the command must not part them. It is *hoisted*: the other members execute it before all rows of the
-- run in which it stands, and get the run as a whole, in final states. That is right if neither depends on the
-- other; what is not known to be so is refused.
--
-- A point between two statements is *clean*: all that was changed before has been captured, and the run ends at the
-- command. Nothing that a user may set says which it is:
--   a command that no function has executed stands between two of the client's statements;
--   PostgreSQL knows which tables are in use: it refuses to ALTER them. (A cursor or a deferred trigger keeps a
--   table in use as well. Then a command is hoisted though it need not be.)
--   Behind a statement, while its AFTER triggers of statements fire, the table is in use but captured. Where a user
--   has such triggers, two of ours count what has begun and what has been captured.

-- Would PostgreSQL refuse to change the table, because it is in use? The command asked changes nothing, and what it
-- locks is free again. A caught error would end a session whose errors do (exit_on_error).
CREATE OR REPLACE FUNCTION pgherd.is_in_use(rel regclass) RETURNS bool
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET session_replication_role = replica
SET lock_timeout = '1s' SET exit_on_error = off AS $$
BEGIN
    EXECUTE format('ALTER TABLE ONLY %s SET WITHOUT CLUSTER', rel);
    RAISE EXCEPTION USING ERRCODE = 'PH005';
EXCEPTION
    WHEN object_in_use OR lock_not_available THEN
        RETURN true;
    WHEN SQLSTATE 'PH005' OR wrong_object_type OR feature_not_supported THEN
        -- For a partitioned table there is no such command, which PostgreSQL finds after it has looked.
        RETURN false;
END $$;

-- Has all been captured that statements changed in the table and its family? NULL where that is not counted, or not
-- known: what cascades to another table is captured behind the triggers of this one.
CREATE OR REPLACE FUNCTION pgherd.is_captured(x xid8, rel oid) RETURNS bool
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    tree oid[] := pgherd.trees_of(ARRAY[rel]);
BEGIN
    IF NOT EXISTS (SELECT FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
                    WHERE t.tgrelid = rel AND t.tgname = 'pgherd_z' AND p.pronamespace = 'pgherd'::regnamespace)
       OR EXISTS (SELECT FROM pg_constraint f
                   WHERE f.contype = 'f' AND f.confrelid = ANY (tree)
                     AND (f.confdeltype IN ('c', 'n', 'd') OR f.confupdtype IN ('c', 'n', 'd'))) THEN
        RETURN NULL;
    END IF;
    RETURN (SELECT count(*) FILTER (WHERE c.keys = 'opened') <= count(*) FILTER (WHERE c.keys = 'closed')
              FROM pgherd.capture_rows(x) c
             WHERE c.tab = 'sentinel' AND c.keys IN ('opened', 'closed') AND c.base::oid = ANY (tree));
END $$;

-- The replicated tables of which some statement is changing rows that are not captured yet; none at a clean point.
-- context: the call stack as the function sees it that our caller is; one line if the client's own command called it.
CREATE OR REPLACE FUNCTION pgherd.tables_in_use(x xid8, context text) RETURNS oid[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF pg_trigger_depth() = 0 AND position(E'\n' IN context) = 0 THEN
        RETURN '{}';
    END IF;
    RETURN array(
        SELECT w.relid
          FROM (SELECT DISTINCT l.relation AS relid
                  FROM pg_locks l
                 WHERE l.locktype = 'relation' AND l.pid = pg_backend_pid() AND l.granted
                   AND l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
                   AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
                   AND l.relation IN (SELECT g.relid FROM pgherd.generated g)) w
         WHERE NOT coalesce(pgherd.is_captured(x, w.relid), NOT pgherd.is_in_use(w.relid)));
END $$;

-- The tables that the query of a materialized view reads.
CREATE OR REPLACE FUNCTION pgherd.tables_read(views oid[]) RETURNS oid[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT array(SELECT DISTINCT r.id[1]::oid
                   FROM pg_class c
                  CROSS JOIN LATERAL pgherd.trees_of_view(c.oid) AS v(tree)
                  CROSS JOIN LATERAL regexp_matches(v.tree, ':relid ([0-9]+)', 'g') AS r(id)
                  WHERE c.oid = ANY (views) AND c.relkind = 'm');
END;

-- Refuses a command inside a statement that changes rows, if it and the rows of the run may depend on each other:
-- if it concerns a table that rows were captured of, or one that is in use.
--   rels     what it concerns, with all relatives
--   reported what PostgreSQL reports, without them
CREATE OR REPLACE FUNCTION pgherd.check_hoisted(
    x xid8, act text, rels oid[], reported oid[], coarse bool, in_use oid[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    since int8 := pgherd.run_begin(x);
    fresh oid[];
    other text;
BEGIN
    IF coarse THEN
        PERFORM pgherd.refuse(act || ' inside a statement that changes rows is not supported',
            'Which tables it concerns cannot be told: execute it before or after the statement.');
    END IF;
    fresh := array(SELECT a.relid FROM pgherd.all_tables a
                    WHERE a.relid = ANY (reported) AND NOT EXISTS (SELECT FROM pgherd.tables t WHERE t.relid = a.relid));
    -- A new table has no rows, so those that its foreign keys refer to do not matter to it.
    IF fresh <> '{}' AND NOT EXISTS (SELECT FROM pgherd.tables t WHERE t.relid = ANY (reported)) THEN
        rels := pgherd.trees_of(fresh);
    END IF;
    rels := rels || pgherd.with_relatives(pgherd.tables_read(reported));
    SELECT min(n.name) INTO other
      FROM (SELECT t.relid, unnest(t.names) AS name FROM pgherd.tables t
            UNION SELECT a.relid, unnest(ARRAY[a.name, a.root_name]) FROM pgherd.all_tables a) n
     WHERE n.relid = ANY (rels)
       AND (n.relid = ANY (in_use)
            OR n.name IN (SELECT c.tab::json #>> '{}' FROM pgherd.capture_rows(x) c
                           WHERE c.seq > since AND c.tab NOT IN ('sentinel', '""')));
    IF other IS NOT NULL THEN
        PERFORM pgherd.refuse(
            format('%s inside a statement that changes rows is not supported where it concerns table %s,'
                   ' rows of which are changed there, too', act, other),
            'Execute it before or after the statement; in a trigger AFTER ... FOR EACH STATEMENT, give that trigger'
            ' a name that sorts after "pgherd_z".');
    END IF;
END $$;
