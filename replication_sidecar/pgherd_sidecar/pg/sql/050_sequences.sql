-- Sequences are interleaved: the numbers are dealt out to the members once and for all, so they never collide
-- and nextval never waits. With step s the numbers 1 .. |s| belong to member 1, the next |s| to member 2, and so
-- on, round and round; for a descending sequence -1 .. -|s| and so on. Each sequence steps by s * slots
-- from a number of its own member, wherever the user lets it start.

-- What the user means by INCREMENT and START; the catalog holds step * slots and the member's first number.
CREATE TABLE IF NOT EXISTS pgherd.sequences (
    relid oid  PRIMARY KEY,
    step  int8 NOT NULL,
    start int8 NOT NULL
);

-- There from the first start after the server was stopped cleanly until a crash, which empties it.
CREATE UNLOGGED TABLE IF NOT EXISTS pgherd.clean_since (
    only_row bool PRIMARY KEY DEFAULT true CHECK (only_row)
);

-- Sequences to interleave: permanent, the user's, and not those of tables that are local or that this node has alone.
CREATE OR REPLACE VIEW pgherd.user_sequences AS
SELECT c.oid AS relid, o.refobjid AS owner, o.refobjsubid AS owner_column,
       s.seqincrement, s.seqstart, s.seqmin, s.seqmax, s.seqcycle
  FROM pg_sequence s JOIN pg_class c ON c.oid = s.seqrelid JOIN pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_depend o ON o.classid = 'pg_class'::regclass AND o.objid = c.oid AND o.refclassid = 'pg_class'::regclass
                       AND o.deptype IN ('a', 'i')
 WHERE c.relpersistence <> 't'
   AND n.nspname NOT LIKE E'pg\\_%' AND n.nspname NOT IN ('information_schema', 'pgherd', 'pgherd_gen')
   AND NOT EXISTS (SELECT FROM pgherd.local_tables l WHERE l.relid = o.refobjid)
   AND NOT EXISTS (SELECT FROM pgherd.strays t WHERE t.relid = o.refobjid);

-- The sequences that come after one, in the order of their oids: as many as a transaction can lock together with the
-- tables that own them; NULL at the end. A partitioned table is many tables, so a sequence of one is the last.
CREATE OR REPLACE FUNCTION pgherd.next_sequences(after oid) RETURNS oid[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT array_agg(p.relid ORDER BY p.relid)
      FROM (SELECT q.relid, bool_or(q.parted) OVER (ORDER BY q.relid ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS past
              FROM (SELECT s.seqrelid AS relid,
                           EXISTS (SELECT FROM pg_depend o JOIN pg_class c ON c.oid = o.refobjid AND c.relkind = 'p'
                                    WHERE o.classid = 'pg_class'::regclass AND o.objid = s.seqrelid
                                      AND o.refclassid = 'pg_class'::regclass AND o.deptype IN ('a', 'i')) AS parted
                      FROM pg_sequence s WHERE s.seqrelid > after ORDER BY s.seqrelid LIMIT 100) q) p
     WHERE p.past IS NOT TRUE;
END;

-- The first of v, v + step, v + 2 * step, ... that belongs to this member.
CREATE OR REPLACE FUNCTION pgherd.first_own(v numeric, step int8) RETURNS numeric
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN (
        SELECT v + step * mod(mod(n.member - 1 - floor_run.r, n.slots) + n.slots, n.slots)
          FROM pgherd.node n
         CROSS JOIN LATERAL (SELECT v * sign(step::numeric) - 1 AS u, abs(step)::numeric AS width) d
         CROSS JOIN LATERAL (SELECT div(d.u - mod(mod(d.u, d.width) + d.width, d.width), d.width) AS r) floor_run);
END $$;

-- The last number, in the direction of the sequence, that the column owning it holds; NULL if nothing owns it.
-- own: only numbers that this member gave out. Who has not written for long has his below millions of the others': after
-- ten thousand of these the place is good enough, since his own come before it.
CREATE OR REPLACE FUNCTION pgherd.last_in_column(s pgherd.user_sequences, step int8, own bool) RETURNS int8
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    col  text;
    last int8;
BEGIN
    -- A view may own a sequence too, but to read one is to run somebody's query with our rights.
    SELECT format('%I', a.attname) INTO col
      FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid AND c.relkind IN ('r', 'p')
     WHERE a.attrelid = s.owner AND a.attnum = s.owner_column
       AND a.atttypid IN ('int2'::regtype, 'int4'::regtype, 'int8'::regtype);
    IF col IS NOT NULL THEN
        EXECUTE format('SELECT p.at
                          FROM (SELECT o.at, row_number() OVER (ORDER BY o.at %3$s) AS place
                                  FROM (SELECT t.%1$s AS at FROM %2$s t WHERE t.%1$s IS NOT NULL
                                         ORDER BY t.%1$s %3$s LIMIT 10000) o) p
                         WHERE NOT $2 OR p.place = 10000 OR pgherd.first_own(p.at, $1) = p.at
                         ORDER BY p.at %3$s LIMIT 1',
                       col, s.owner::regclass, CASE WHEN step > 0 THEN 'DESC' ELSE 'ASC' END)
            INTO last USING step, own;
    END IF;
    RETURN last;
END $$;

-- Puts a sequence where the next number it gives is `v` or the first of this member's own after it.
CREATE OR REPLACE FUNCTION pgherd.move_sequence(rel regclass, v numeric, step int8, low int8, high int8) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE own numeric := pgherd.first_own(v, step);
BEGIN
    IF own BETWEEN low AND high THEN
        EXECUTE format('ALTER SEQUENCE %s RESTART WITH %s', rel, own);
    ELSE
        PERFORM pgherd.local_setval(rel, CASE WHEN step > 0 THEN high ELSE low END, true); -- nothing is left of its share
    END IF;
END $$;

-- Interleaves one sequence: after CREATE, after ALTER, and again at any time without effect.
CREATE OR REPLACE FUNCTION pgherd.align_sequence(s pgherd.user_sequences) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    slots int := (SELECT n.slots FROM pgherd.node n);
    known pgherd.sequences;
    step  int8;
    start int8;     -- the user's
    own   numeric;  -- this member's
    at    record;
    next  numeric;
BEGIN
    SELECT * INTO known FROM pgherd.sequences k WHERE k.relid = s.relid;
    step := CASE WHEN s.seqincrement = known.step * slots THEN known.step ELSE s.seqincrement END;
    start := CASE WHEN s.seqstart = pgherd.first_own(known.start, known.step) THEN known.start ELSE s.seqstart END;
    own := pgherd.first_own(start, step);
    IF s.seqcycle THEN
        PERFORM pgherd.refuse(format('sequence %s: CYCLE is not supported', s.relid::regclass),
                              'Members would give out each other''s numbers again.');
    ELSIF NOT start + step::numeric * (slots - 1) BETWEEN s.seqmin AND s.seqmax THEN -- the same on every member
        PERFORM pgherd.refuse(format('sequence %s has no numbers for every member', s.relid::regclass),
                              format('Its range must hold %s numbers from START on.', slots));
    END IF;
    EXECUTE format('SELECT q.last_value AS value, q.is_called AS called FROM %s q', s.relid::regclass) INTO at;
    next := at.value + CASE WHEN at.called THEN step::numeric ELSE 0 END; -- it may have given its last number
    IF known.step <> step THEN
        -- The shares are dealt anew: past all that was given out before.
        next := CASE WHEN step > 0 THEN greatest(next, pgherd.last_in_column(s, step, false)::numeric + step)
                     ELSE least(next, pgherd.last_in_column(s, step, false)::numeric + step) END;
    END IF;
    IF s.seqincrement <> step * slots OR s.seqstart <> own THEN
        EXECUTE format('ALTER SEQUENCE %s INCREMENT BY %s START WITH %s', s.relid::regclass, step * slots, own);
    END IF;
    IF known.step IS DISTINCT FROM step OR pgherd.first_own(at.value, step) <> at.value THEN
        PERFORM pgherd.move_sequence(s.relid, next, step, s.seqmin, s.seqmax);
    END IF;
    INSERT INTO pgherd.sequences VALUES (s.relid, step, start)
        ON CONFLICT (relid) DO UPDATE SET step = EXCLUDED.step, start = EXCLUDED.start;
END $$;

-- Gives a sequence back to the user as he made it.
CREATE OR REPLACE FUNCTION pgherd.release_sequence(s pgherd.user_sequences) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    k    pgherd.sequences;
    used bool;
BEGIN
    DELETE FROM pgherd.sequences d WHERE d.relid = s.relid RETURNING * INTO k;
    IF FOUND THEN
        EXECUTE format('SELECT q.is_called FROM %s q', s.relid::regclass) INTO used;
        EXECUTE format('ALTER SEQUENCE %s INCREMENT BY %s START WITH %s', s.relid::regclass, k.step, k.start)
             || CASE WHEN NOT used THEN ' RESTART' ELSE '' END;
    END IF;
END $$;

-- Interleaves the sequences among `rels` and those their tables own; with `everything`, all.
CREATE OR REPLACE FUNCTION pgherd.align_sequences(rels oid[], everything bool) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF pgherd.may_have_written('pg_sequence', true) THEN
        DELETE FROM pgherd.sequences k WHERE NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = k.relid);
    END IF;
    PERFORM pgherd.align_sequence(s) FROM pgherd.user_sequences s CROSS JOIN pgherd.node
      WHERE everything OR s.relid = ANY (rels) OR s.owner = ANY (rels);
END $$;

-- TRUNCATE ... RESTART IDENTITY: a sequence that is new in this transaction, and nobody has used, is started anew
-- by the other members too. (It may be new for another reason: to start it again does no harm then.) The run of
-- row changes goes on, so that tables truncated by one command stay together; its rows come after this.
-- Which sequences a table has, the index tells that PostgreSQL finds dependents by: to ask all would take long for many
-- tables at once.
CREATE OR REPLACE FUNCTION pgherd.capture_restart() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET seq_page_cost = 0.1 SET random_page_cost = 0.1 SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    x         xid8 := pg_current_xact_id();
    s         record;
    restarted bool;
BEGIN
    FOR s IN SELECT u.relid::regclass AS rel, u.seqstart
               FROM pg_depend d JOIN pg_class c ON c.oid = d.objid AND pgherd.is_new(c.xmin)
               JOIN pgherd.user_sequences u ON u.relid = c.oid AND u.owner = TG_RELID
              WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid = TG_RELID AND d.classid = 'pg_class'::regclass
                AND d.deptype IN ('a', 'i') LOOP
        EXECUTE format('SELECT NOT q.is_called AND q.last_value = $1 FROM %s q', s.rel) INTO restarted USING s.seqstart;
        IF restarted THEN
            PERFORM pgherd.put(x, pgherd.last_gid(), '""', '', '{1}',
                               ARRAY[json_build_object('act', 'restart', 'object', s.rel::text, 'leaves_tables', true)::text]);
        END IF;
    END LOOP;
    RETURN NULL;
END $$;

-- At each start of the sidecar, before the node takes writes. What nextval gave out since the last flush
-- of the log is forgotten by a crash and would be given out again (C12): numbers that came into rows are
-- found there, for others there is a jump that no node makes within the time of one flush.
-- It does a part of the sequences, those after `after`, and returns the last of them; NULL when all are done. The caller
-- commits in between: the locks of all are more than the server has room for. If it breaks off, all is done again.
CREATE OR REPLACE FUNCTION pgherd.sequences_after_crash(after oid) RETURNS oid
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET session_replication_role = replica
SET row_security = off AS $$
DECLARE
    rels oid[] := pgherd.next_sequences(after);
    s    pgherd.user_sequences;
    step int8;
    at   int8;
    jump numeric;
BEGIN
    IF EXISTS (SELECT FROM pgherd.clean_since) THEN
        RETURN NULL;
    END IF;
    PERFORM pgherd.align_sequence(u) FROM pgherd.user_sequences u WHERE u.relid = ANY (rels);
    FOR s IN SELECT * FROM pgherd.user_sequences u WHERE u.relid = ANY (rels) LOOP
        step := (SELECT k.step FROM pgherd.sequences k WHERE k.relid = s.relid);
        EXECUTE format('SELECT q.last_value FROM %s q', s.relid::regclass) INTO at;
        jump := least(32768, div(s.seqmax::numeric - s.seqmin, abs(s.seqincrement)) / 10000);
        PERFORM pgherd.move_sequence(
            s.relid, CASE WHEN step > 0 THEN greatest(at, pgherd.last_in_column(s, step, true))
                          ELSE least(at, pgherd.last_in_column(s, step, true)) END + s.seqincrement * (1 + floor(jump)),
            step, s.seqmin, s.seqmax);
    END LOOP;
    IF rels IS NULL THEN
        INSERT INTO pgherd.clean_since DEFAULT VALUES;
    END IF;
    RETURN rels[cardinality(rels)];
END $$;

-- The ranges of all sequences, those of local tables too, as the event triggers have last seen them. Each member stands
-- somewhere else in it, so a smaller range may be refused by one and not by another.
DO $$
BEGIN
    IF to_regclass('pgherd.sequence_ranges') IS NULL THEN
        CREATE TABLE pgherd.sequence_ranges (relid oid PRIMARY KEY, low int8 NOT NULL, high int8 NOT NULL, made xid8);
        INSERT INTO pgherd.sequence_ranges SELECT s.seqrelid, s.seqmin, s.seqmax FROM pg_sequence s;
    END IF;
END $$;

-- `made`: the transaction that made it here: on other members nobody can have used it.
CREATE OR REPLACE FUNCTION pgherd.note_sequence_ranges() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_hashjoin = on SET enable_nestloop = off AS $$
#variable_conflict use_column
BEGIN
    IF pgherd.may_have_written('pg_sequence', true) THEN
        DELETE FROM pgherd.sequence_ranges r WHERE NOT EXISTS (SELECT FROM pg_sequence s WHERE s.seqrelid = r.relid);
    END IF;
    INSERT INTO pgherd.sequence_ranges AS r
    SELECT s.seqrelid, s.seqmin, s.seqmax, pg_current_xact_id()
      FROM pg_sequence s JOIN pg_class c ON c.oid = s.seqrelid AND c.relpersistence <> 't'
      LEFT JOIN pgherd.sequence_ranges k ON k.relid = s.seqrelid
     WHERE (k.low, k.high) IS DISTINCT FROM (s.seqmin, s.seqmax)
        ON CONFLICT (relid) DO UPDATE SET low = EXCLUDED.low, high = EXCLUDED.high;
END $$;

-- Has the running command made the range of a sequence smaller?
CREATE OR REPLACE FUNCTION pgherd.shrinks_sequence() RETURNS bool
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN (
        SELECT EXISTS (SELECT FROM pgherd.sequence_ranges r JOIN pg_sequence s ON s.seqrelid = r.relid
                        WHERE (s.seqmin > r.low OR s.seqmax < r.high)
                          AND r.made IS DISTINCT FROM pg_current_xact_id()));
END $$;
