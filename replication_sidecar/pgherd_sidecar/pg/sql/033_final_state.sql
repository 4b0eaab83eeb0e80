-- The final state of rows that a transaction touched more than once (C3): instead of the steps, whose order
-- is not that of their execution, what is under each key at the end.

-- The state that the rows of a transaction have at its end (C3): for the records captured of one table,
-- "E" and "I" where the row was made anew, "U" where it was only updated, "E" alone where it is gone. Only
-- those that erase are wanted, or only those that write, or both.
CREATE OR REPLACE FUNCTION pgherd.final_source(root oid) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    t pgherd.user_tables;
    c record;
BEGIN
    IF pgherd.identity_index(root) IS NULL THEN
        RETURN pgherd.final_images_source(root);
    END IF;
    SELECT * INTO t FROM pgherd.user_tables u WHERE u.relid = root;
    SELECT string_agg(format('(k.image).%s AS k%s', k.col, k.pos), ', ' ORDER BY k.pos)
               FILTER (WHERE k.in_pk) AS parsed,
           string_agg('(k.image).' || k.col, ', ' ORDER BY k.pos) FILTER (WHERE k.in_pk) AS grouped,
           string_agg(format('s.k%s AS %s', k.pos, k.col), ', ' ORDER BY k.pos) FILTER (WHERE k.in_pk) AS named,
           (array_agg(k.col ORDER BY k.pos) FILTER (WHERE k.in_pk))[1] AS first_key,
           count(*) AS width,
           string_agg(CASE WHEN k.in_pk THEN pgherd.field('n.' || k.col, k.typ)
                           WHEN k.generated THEN 'NULL'
                           ELSE format('CASE WHEN get_bit(s.bits, %s) = 1 THEN %s END', k.pos - 1,
                                       pgherd.field('n.' || k.col, k.typ)) END,
                      ', ' ORDER BY k.pos) AS changes
      INTO c FROM pgherd.columns(root) k;
    RETURN pgherd.function_source(
        format('pgherd_gen.%I(tab pg_catalog.text, recs pg_catalog.text[], erasing pg_catalog.bool, writing pg_catalog.bool)',
               'final_' || root),
        -- its arguments by number: columns of the user's may have their names
        -- one plan for each session, by the index of the identity
        'RETURNS pg_catalog.text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp'
        ' SET plan_cache_mode = force_generic_plan'
        ' SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off' || pgherd.text_settings(root),
        format($f$
BEGIN
    RETURN (
    WITH k AS (
        SELECT substr(r, strpos(r, '('))::%13$s AS image, left(r, 1) = 'U' AS updated,
               CASE WHEN left(r, 1) = 'U' THEN substr(r, 2, %2$s)::bit(%2$s) END AS bits
          FROM unnest($2) r WHERE left(r, 1) <> 'T'
    ), s AS (
        SELECT %3$s, bool_and(k.updated) AS only_updates, bit_or(k.bits) AS bits FROM k GROUP BY %11$s
    )
    SELECT '[' || $1 || ',[' || string_agg(concat_ws(',', CASE WHEN m.erased <> '' THEN m.pk END,
                                                      CASE WHEN m.written <> '' THEN m.pk END), ',')
           || '],[' || string_agg(concat_ws(',', m.erased, m.written), ',') || ']]'
      FROM (SELECT %4$s AS pk,
                   CASE WHEN $3 AND NOT (s.only_updates AND n.%5$s IS DISTINCT FROM NULL)
                        THEN to_json(concat('E', %6$s))::text END AS erased,
                   CASE WHEN NOT $4 OR n.%5$s IS NOT DISTINCT FROM NULL THEN NULL
                        WHEN s.only_updates THEN to_json(concat('U', s.bits::text, ROW(%7$s)::text))::text
                        ELSE to_json(concat('I', %8$s))::text END AS written
              FROM s CROSS JOIN LATERAL (SELECT %12$s) o LEFT JOIN %9$s%1$s n ON (%10$s)) m
     WHERE m.erased <> '' OR m.written <> '');
END $f$, t.name, c.width, c.parsed, pgherd.index_key(pgherd.identity_index(root), 'o'), c.first_key,
         pgherd.record_key(root, 'o'), c.changes, pgherd.record_full(root, 'n'),
         CASE WHEN t.partitioned THEN '' ELSE 'ONLY ' END, pgherd.key_equal(root), c.grouped, c.named,
         pgherd.row_type(root)));
END $$;

-- The same for rows without identity: of each image as many are added, or taken away, as all records say together. So
-- it does not matter in which order they were captured, but that nothing counts from before a truncation.
CREATE OR REPLACE FUNCTION pgherd.final_images_source(root oid) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
RETURN pgherd.function_source(
    format('pgherd_gen.%I(tab pg_catalog.text, recs pg_catalog.text[], erasing pg_catalog.bool, writing pg_catalog.bool)',
           'final_' || root),
    'RETURNS pg_catalog.text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp',
    format($f$
BEGIN
    RETURN (
    WITH r AS (
        SELECT u.r COLLATE "C" AS rec, u.i FROM unnest($2) WITH ORDINALITY AS u(r, i)
    ), k AS (
        SELECT substr(r.rec, 2) AS image, sum(CASE left(r.rec, 1) WHEN 'I' THEN 1 ELSE -1 END)::int8 AS added
          FROM r
         WHERE r.rec <> 'T' AND r.i > coalesce((SELECT max(c.i) FROM r c WHERE c.rec = 'T'), 0)
         GROUP BY 1
    )
    SELECT '[' || $1 || ',[' || string_agg(m.pk::text, ',') || '],[' || string_agg(m.rec, ',') || ']]'
      FROM (SELECT %1$s AS pk, to_json(concat(CASE WHEN k.added < 0 THEN 'D' ELSE 'I' END, k.image))::text AS rec
              FROM k CROSS JOIN LATERAL generate_series(1, abs(k.added))
             WHERE CASE WHEN k.added < 0 THEN $3 ELSE $4 END) m);
END $f$, pgherd.image_key(root, 'k.image')));

-- Does a key that these records name have more than one row now? A deferrable primary key allows it until COMMIT.
CREATE OR REPLACE FUNCTION pgherd.doubled_source(root oid) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT pgherd.function_source(
               format('pgherd_gen.%I(pg_catalog.text[])', 'doubled_' || root),
               'RETURNS pg_catalog.bool LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp'
               || pgherd.text_settings(root),
               format($f$
BEGIN
    RETURN EXISTS (SELECT FROM unnest($1) r CROSS JOIN LATERAL (SELECT (substr(r, strpos(r, '('))::%1$s).*) o
                    WHERE (SELECT count(*) FROM %2$s%3$s n WHERE %4$s) > 1);
END $f$, pgherd.row_type(root), CASE WHEN t.partitioned THEN '' ELSE 'ONLY ' END, t.name, pgherd.key_equal(root)))
      FROM pgherd.user_tables t JOIN pg_index i ON i.indrelid = t.relid AND i.indisprimary AND NOT i.indimmediate
     WHERE t.relid = root;
END;

-- The records captured of one table as items of a body that touches no row twice: final states instead of steps
-- (C3). A truncation comes first: what was under a key before it is gone without a word.
DROP FUNCTION IF EXISTS pgherd.final_items(text, text[]);
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
DO $do$
DECLARE side int;
BEGIN
    FOR side IN 0..1 LOOP
        EXECUTE format($f$
            CREATE OR REPLACE FUNCTION pgherd.final_state_%1$s(x xid8, since int8) RETURNS text
            LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
            BEGIN
                RETURN (SELECT string_agg(nullif(pgherd.final_items(t.tab, t.recs), ''), ',' ORDER BY t.truncated DESC)
                               FILTER (WHERE NOT t.truncated OR pgherd.may_truncate(x, since, t.tab))
                          FROM (SELECT c.tab, array_agg(u.r ORDER BY c.seq, u.i) AS recs, bool_or(u.r = 'T') AS truncated
                                  FROM pgherd.capture_%1$s c, unnest(c.recs) WITH ORDINALITY AS u(r, i)
                                 WHERE c.xid = x AND c.seq > since AND c.tab NOT IN ('sentinel', '""')
                                 GROUP BY c.tab) t);
            END $$ $f$, side);
    END LOOP;
END $do$;

CREATE OR REPLACE FUNCTION pgherd.final_state(x xid8, since int8) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN CASE WHEN pgherd.capture_side(x) = 0 THEN pgherd.final_state_0(x, since)
                ELSE pgherd.final_state_1(x, since) END;
END $$;
