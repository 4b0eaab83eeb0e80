-- Sets and subscriptions are tables of the herd in a schema of their own, which `pgherd set create` makes. An ordinary
-- user may make a schema of that name before. Nothing of his is read: a view would run his functions as superuser.

-- Has a superuser made the tables?
CREATE OR REPLACE FUNCTION pgherd.keeps_subscriptions() RETURNS bool
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
          JOIN pg_roles o ON o.oid = c.relowner JOIN pg_roles s ON s.oid = n.nspowner
         WHERE n.nspname = 'pgherd_subscriptions' AND c.relname = 'subscription' AND c.relkind = 'r'
           AND o.rolsuper AND s.rolsuper);
END $$;

-- Is there any subscription?
CREATE OR REPLACE FUNCTION pgherd.has_subscriptions() RETURNS bool
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT pgherd.keeps_subscriptions() THEN -- the server's log would have an error of a query that names the table
        RETURN false;
    END IF;
    RETURN EXISTS (SELECT FROM pgherd_subscriptions.subscription);
END $$;

-- What a set has of those of its tables that it has not got as a whole.
CREATE OR REPLACE FUNCTION pgherd.selections_of_set(name text) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN (SELECT coalesce(jsonb_agg(jsonb_build_object('tab', s.tab, 'columns', s.columns, 'condition', s.condition,
                                                         'reads', s.reads) ORDER BY s.tab), '[]')
              FROM pgherd_subscriptions.selection s WHERE s.set = $1);
END $$;

-- The sequences of a set.
CREATE OR REPLACE FUNCTION pgherd.sequences_of_set(name text) RETURNS text[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN array(SELECT q.seq FROM pgherd_subscriptions.set_sequence q WHERE q.set = $1 ORDER BY 1);
END $$;

-- Refuses a command about a table of a set that moves to a subscriber, or has moved: a new partition, for one, would take
-- rows that the new origin never gets. The move's own triggers are a superuser's. A feeder of this herd from there may.
CREATE OR REPLACE FUNCTION pgherd.check_moves(tag text, rels oid[], role text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE m record;
BEGIN
    IF current_setting('pgherd_subscriber.feeding', true) = 'on' OR pgherd.defines_nothing(tag)
       OR to_regclass('pgherd_subscriptions.move') IS NULL THEN
        RETURN;
    ELSIF NOT pgherd.keeps_subscriptions()
       OR tag IN ('CREATE TRIGGER', 'DROP TRIGGER') AND (SELECT r.rolsuper FROM pg_roles r WHERE r.rolname = role) THEN
        RETURN;
    END IF;
    FOR m IN SELECT v.set, t.tab FROM pgherd_subscriptions.move v JOIN pgherd_subscriptions.set_table t ON t.set = v.set
              WHERE to_regclass(t.tab) = ANY (rels) LIMIT 1 LOOP
        RAISE EXCEPTION 'table % takes no commands here: its set % moves to a subscriber', m.tab, m.set
            USING ERRCODE = '25006', HINT = 'Change it at that server, or repeat the command if the move is undone.';
    END LOOP;
END $$;
