-- The final state of rows that a transaction touched more than once (C3): instead of the steps, whose order
-- is not that of their execution, what is under each key at the end.

-- A record is text, and a value in it may have another name since it was captured: ALTER TYPE of another member waits
-- for nobody who writes the table. Certification would find that the transaction has lost against the command.
CREATE OR REPLACE FUNCTION pgherd.lose_against_a_command(cause text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'could not serialize access: a type has changed since rows were written'
        USING ERRCODE = '40001', DETAIL = cause, HINT = 'Repeat the transaction.';
END $$;

-- The state that the rows of a transaction have at its end (C3): for the records captured of one table,
-- "E" and "I" where the row was made anew, "U" where it was only updated, "E" alone where it is gone. Only
-- those that erase are wanted, or only those that write, or both.
-- p: `source_parts` of the table.
CREATE OR REPLACE FUNCTION pgherd.final_source(p record) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    c record;
BEGIN
    IF p.identity IS NULL THEN
        RETURN pgherd.final_images_source(p);
    END IF;
    SELECT string_agg(format('(k.image).%s AS k%s', k.col, k.pos), ', ' ORDER BY k.pos)
               FILTER (WHERE k.in_pk) AS parsed,
           string_agg('(k.image).' || k.col, ', ' ORDER BY k.pos) FILTER (WHERE k.in_pk) AS grouped,
           string_agg(format('s.k%s AS %s', k.pos, k.col), ', ' ORDER BY k.pos) FILTER (WHERE k.in_pk) AS named,
           count(*) AS width,
           string_agg(CASE WHEN k.in_pk THEN pgherd.field('n.' || k.col, k.typ)
                           WHEN k.generated THEN 'NULL'
                           ELSE format('CASE WHEN get_bit(s.bits, %s) = 1 THEN %s END', k.pos - 1,
                                       pgherd.field('n.' || k.col, k.typ)) END,
                      ', ' ORDER BY k.pos) AS changes
      INTO c FROM pgherd.columns(p.root) k;
    RETURN pgherd.function_source(
        format('pgherd_gen.%I(tab pg_catalog.text, recs pg_catalog.text[], erasing pg_catalog.bool, writing pg_catalog.bool)',
               'final_' || p.root),
        -- its arguments by number: columns of the user's may have their names
        -- one plan for each session, by the index of the identity
        'RETURNS pg_catalog.text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp'
        ' SET plan_cache_mode = force_generic_plan'
        ' SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off' || p.settings,
        concat($f$
BEGIN
    RETURN (
    WITH k AS (
        SELECT substr(r, strpos(r, '('))::$f$, p.row_type, $f$ AS image, left(r, 1) = 'U' AS updated, left(r, 1) = 'I' AS made,
               CASE WHEN left(r, 1) = 'U' THEN substr(r, 2, $f$, c.width, $f$)::bit($f$, c.width, $f$) END AS bits
          FROM unnest($2) r WHERE left(r, 1) <> 'T'
    ), s AS (
        SELECT $f$, c.parsed, $f$, bool_and(k.updated) AS only_updates,
               bool_and(k.made) AS only_made, bit_or(k.bits) AS bits FROM k GROUP BY $f$, c.grouped, $f$
    )
    SELECT '[' || $1 || ',[' || string_agg(concat_ws(',', CASE WHEN m.erased <> '' THEN m.pk END,
                                                      CASE WHEN m.written <> '' THEN m.pk END), ',')
           || '],[' || string_agg(concat_ws(',', m.erased, m.written), ',') || ']]'
      FROM (SELECT $f$, p.pk_old, $f$ AS pk,
                   -- a table may be published for which PostgreSQL lets nobody delete: nothing ends that was not there
                   CASE WHEN $3 AND NOT s.only_made AND NOT (s.only_updates AND n.$f$, p.first_key, $f$ IS DISTINCT FROM NULL)
                        THEN to_json(concat('E', $f$, p.key_record, $f$))::text END AS erased,
                   CASE WHEN NOT $4 OR n.$f$, p.first_key, $f$ IS NOT DISTINCT FROM NULL THEN NULL
                        WHEN s.only_updates THEN to_json(concat('U', s.bits::text, ROW($f$, c.changes, $f$)::text))::text
                        ELSE to_json(concat('I', $f$, p.new_record, $f$))::text END AS written
              FROM s CROSS JOIN LATERAL (SELECT $f$, c.named, $f$) o LEFT JOIN $f$, p.written, $f$ n ON ($f$, p.key_equal, $f$)) m
     WHERE m.erased <> '' OR m.written <> '');
EXCEPTION WHEN data_exception THEN
    PERFORM pgherd.lose_against_a_command(SQLERRM);
END $f$));
END $$;

-- The same for rows without identity. Which row a record means only its image tells: the one that was last made equal
-- to it in this transaction, or else one that was there before. So each row is followed through its updates. Nothing
-- counts from before a truncation.
CREATE OR REPLACE FUNCTION pgherd.final_images_source(p record) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    image_key     text := pgherd.image_key(p.root, 'm.image');
    same_identity text := 'false';
BEGIN
    IF pgherd.replaced_columns(p.root) IS NOT NULL THEN
        same_identity := format('(SELECT %1$s FROM (SELECT (f.was::%2$s).*) o, (SELECT (f.became::%2$s).*) n)',
                                p.same_identity, p.row_type);
    END IF;
    RETURN pgherd.function_source(
    format('pgherd_gen.%I(tab pg_catalog.text, recs pg_catalog.text[], erasing pg_catalog.bool, writing pg_catalog.bool)',
           'final_' || p.root),
    'RETURNS pg_catalog.text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp' || p.settings,
    concat($f$
#variable_conflict use_column
DECLARE
    v_ops    text[];
    v_ids    int[];  -- of the images, one for each record
    v_images text[]; -- by id
    v_was    int[];  -- of each row that was met: what it was before the transaction, 0: not there
    v_is     int[];  -- and what it is now
    v_there  int[];  -- by id: the first of the rows that are so now by a record
    v_next   int[];  -- the next of these
    v_rows   int := 0;
    v_row    int;
    v_other  int;
    v_i      int := 1;
    v_id     int;
BEGIN
    WITH r AS (
        SELECT u.r, u.i FROM unnest($2) WITH ORDINALITY AS u(r, i)
    ), k AS (
        SELECT left(r.r, 1) AS op, substr(r.r, 2) COLLATE "C" AS image, r.i
          FROM r WHERE r.r <> 'T' AND r.i > coalesce((SELECT max(c.i) FROM r c WHERE c.r = 'T'), 0)
    ), d AS (
        SELECT k.op, k.image, k.i, dense_rank() OVER (ORDER BY k.image)::int AS id FROM k
    )
    SELECT array_agg(d.op ORDER BY d.i), array_agg(d.id ORDER BY d.i),
           (SELECT array_agg(i.image ORDER BY i.id) FROM (SELECT DISTINCT d.image, d.id FROM d) i)
      INTO v_ops, v_ids, v_images FROM d;
    IF v_ops IS NOT DISTINCT FROM NULL THEN
        RETURN NULL;
    END IF;
    v_was := array_fill(0, ARRAY[cardinality(v_ops)]);
    v_is := v_was;
    v_next := v_was;
    v_there := array_fill(0, ARRAY[cardinality(v_images)]);
    WHILE v_i <= cardinality(v_ops) LOOP
        v_id := v_ids[v_i];
        IF v_ops[v_i] = 'I' THEN
            v_rows := v_rows + 1;
            v_row := v_rows;
        ELSE
            v_row := v_there[v_id];
            IF v_row > 0 THEN
                v_there[v_id] := v_next[v_row];
            ELSE
                v_rows := v_rows + 1;
                v_row := v_rows;
                v_was[v_row] := v_id;
            END IF;
            IF v_ops[v_i] = 'R' AND v_ops[v_i + 1] = 'I' THEN
                v_i := v_i + 1;
                v_id := v_ids[v_i];
            ELSE
                v_id := 0;
            END IF;
        END IF;
        v_is[v_row] := v_id;
        IF v_id > 0 THEN
            v_next[v_row] := v_there[v_id];
            v_there[v_id] := v_row;
        END IF;
        v_i := v_i + 1;
    END LOOP;
    -- A statement inside another one is captured first, so a row may seem to have been there that was made only then.
    -- One that is the same before as another one is after goes on where that began.
    FOR v_row IN 1 .. v_rows LOOP
        WHILE v_was[v_row] > 0 AND v_was[v_row] <> v_is[v_row] AND v_there[v_was[v_row]] > 0 LOOP
            v_other := v_there[v_was[v_row]];
            v_there[v_was[v_row]] := v_next[v_other];
            v_was[v_row] := v_was[v_other];
            v_was[v_other] := 0;
            v_is[v_other] := 0;
        END LOOP;
    END LOOP;
    RETURN (
    WITH f AS (
        SELECT u.i, v_images[u.was] AS was, v_images[u.became] AS became
          FROM unnest(v_was, v_is) WITH ORDINALITY AS u(was, became, i) WHERE u.was <> u.became
    ), p AS (
        SELECT f.*, $3 AND $4 AND f.was IS DISTINCT FROM NULL AND f.became IS DISTINCT FROM NULL AND $f$, same_identity, $f$ AS pair FROM f
    )
    SELECT '[' || $1 || ',[' || string_agg($f$, image_key, $f$::text, ',' ORDER BY m.i, m.op DESC) || '],['
           || string_agg(to_json(concat(m.op, m.image))::text, ',' ORDER BY m.i, m.op DESC) || ']]'
      FROM (SELECT CASE WHEN p.pair THEN 'R' ELSE 'D' END AS op, p.was AS image, p.i FROM p
             WHERE $3 AND p.was IS DISTINCT FROM NULL
            UNION ALL
            SELECT 'I', p.became, p.i FROM p WHERE $4 AND p.became IS DISTINCT FROM NULL) m);
END $f$));
END $$;

-- Does a key that these records name have more than one row now? A deferrable primary key allows it until COMMIT.
CREATE OR REPLACE FUNCTION pgherd.doubled_source(p record) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (
    SELECT pgherd.function_source(
               format('pgherd_gen.%I(pg_catalog.text[])', 'doubled_' || p.root),
               'RETURNS pg_catalog.bool LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp' || p.settings,
               format($f$
BEGIN
    RETURN EXISTS (SELECT FROM unnest($1) r CROSS JOIN LATERAL (SELECT (substr(r, strpos(r, '('))::%1$s).*) o
                    WHERE (SELECT count(*) FROM %2$s n WHERE %3$s) > 1);
END $f$, p.row_type, p.written, p.key_equal))
      FROM pg_index i WHERE i.indexrelid = p.identity AND i.indisprimary AND NOT i.indimmediate);
END $$;

-- The records captured of one table as items of a body that touches no row twice: final states instead of steps
-- (C3). A truncation comes first: what was under a key before it is gone without a word.
CREATE OR REPLACE FUNCTION pgherd.final_items(
    tab text, recs text[], erasing bool DEFAULT true, writing bool DEFAULT true) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    rel   oid := (tab::json #>> '{}')::regclass;
    items text;
BEGIN
    IF recs <> '{T}' THEN
        EXECUTE format('SELECT pgherd_gen.%I($1, $2, $3, $4)', 'final_' || coalesce(pg_partition_root(rel)::oid, rel))
            INTO items USING tab, recs, erasing, writing;
    END IF;
    RETURN concat_ws(',', CASE WHEN 'T' = ANY (recs) THEN pgherd.item(tab, '{0}', '{T}') END, items);
END $$;

-- Which of the rows without identity that a transaction wrote into a partitioned table have gone with one of its
-- partitions, nobody could tell: their records do not name it.
CREATE OR REPLACE FUNCTION pgherd.may_truncate(x xid8, since int8, tab text) RETURNS bool
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    rel     oid := (tab::json #>> '{}')::regclass;
    root    oid := pg_partition_root(rel);
    written bool;
BEGIN
    IF root <> rel AND pgherd.identity_index(root) IS NULL THEN
        EXECUTE format('SELECT EXISTS (SELECT FROM pgherd.capture_%1$s t JOIN pgherd.capture_%1$s c ON c.xid = t.xid'
                       ' WHERE t.xid = $1 AND t.seq > $2 AND t.tab = $3 AND t.recs = ''{T}'''
                       ' AND c.seq > $2 AND c.seq < t.seq AND c.tab = $4)', pgherd.capture_side(x))
            INTO written USING x, since, tab, (SELECT to_json(u.name)::text FROM pgherd.user_tables u WHERE u.relid = root);
        IF written THEN
            PERFORM pgherd.refuse(
                format('TRUNCATE of %s in a transaction that has written rows of %s, which has no primary key,'
                       ' is not supported', rel::regclass, root::regclass),
                'Truncate first, or in a transaction of its own, or add a primary key.');
        END IF;
    END IF;
    RETURN true;
END $$;

-- The same of all rows that a transaction captured after the one with number `since`.
CREATE OR REPLACE FUNCTION pgherd.final_state(x xid8, since int8) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE items text;
BEGIN
    EXECUTE format(
        $f$SELECT string_agg(nullif(pgherd.final_items(t.tab, t.recs), ''), ',' ORDER BY t.truncated DESC)
                  FILTER (WHERE NOT t.truncated OR pgherd.may_truncate($1, $2, t.tab))
             FROM (SELECT c.tab, array_agg(u.r ORDER BY c.seq, u.i) AS recs, bool_or(u.r = 'T') AS truncated
                     FROM pgherd.capture_%s c, unnest(c.recs) WITH ORDINALITY AS u(r, i)
                    WHERE c.xid = $1 AND c.seq > $2 AND c.tab NOT IN ('sentinel', '""')
                    GROUP BY c.tab) t$f$, pgherd.capture_side(x))
       INTO items USING x, since;
    RETURN items;
END $$;
