-- The final state of rows that a transaction touched more than once (C3): instead of the steps, whose order
-- is not that of their execution, what is under each key at the end.

-- The state that the rows of a transaction have at its end (C3): for the records captured of one table,
-- "E" and "I" where the row was made anew, "U" where it was only updated, "E" alone where it is gone.
CREATE OR REPLACE FUNCTION pgherd.final_source(root oid) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    t pgherd.user_tables;
    c record;
BEGIN
    SELECT * INTO t FROM pgherd.user_tables u WHERE u.relid = root;
    SELECT string_agg(format('(k.image).%s AS k%s', k.col, k.pos), ', ' ORDER BY k.pos)
               FILTER (WHERE k.in_pk) AS parsed,
           string_agg('(k.image).' || k.col, ', ' ORDER BY k.pos) FILTER (WHERE k.in_pk) AS grouped,
           string_agg(format('s.k%s AS %s', k.pos, k.col), ', ' ORDER BY k.pos) FILTER (WHERE k.in_pk) AS named,
           (array_agg(k.col ORDER BY k.pos) FILTER (WHERE k.in_pk))[1] AS first_key,
           count(*) AS width,
           string_agg(CASE WHEN k.in_pk THEN 'n.' || k.col
                           WHEN k.generated THEN 'NULL'
                           ELSE format('CASE WHEN get_bit(s.bits, %s) = 1 THEN n.%s END', k.pos - 1, k.col) END,
                      ', ' ORDER BY k.pos) AS changes
      INTO c FROM pgherd.columns(root) k;
    RETURN pgherd.function_source(
        format('pgherd_gen.%I(recs text[], OUT pks int8[], OUT final text[])', 'final_' || root),
        -- one plan for each session, by the index of the primary key
        'LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan'
        ' SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off' || pgherd.text_settings(root),
        format($f$
BEGIN
    WITH k AS (
        SELECT substr(r, strpos(r, '('))::%13$s AS image, left(r, 1) = 'U' AS updated,
               CASE WHEN left(r, 1) = 'U' THEN substr(r, 2, %2$s)::bit(%2$s) END AS bits
          FROM unnest(recs) r WHERE left(r, 1) <> 'T'
    ), s AS (
        SELECT %3$s, bool_and(k.updated) AS only_updates, bit_or(k.bits) AS bits FROM k GROUP BY %11$s
    )
    SELECT array_agg(u.pk), array_agg(u.rec) INTO pks, final
      FROM (SELECT %4$s AS pk,
                   CASE WHEN n.%5$s IS NOT DISTINCT FROM NULL THEN ARRAY[concat('E', %6$s)]
                        WHEN s.only_updates THEN ARRAY[concat('U', s.bits::text, ROW(%7$s)::text)]
                        ELSE ARRAY[concat('E', %6$s), concat('I', %8$s)] END AS made
              FROM s CROSS JOIN LATERAL (SELECT %12$s) o LEFT JOIN %9$s%1$s n ON (%10$s)) m
     CROSS JOIN LATERAL (SELECT m.pk, unnest(m.made) AS rec) u;
END $f$, t.name, c.width, c.parsed, pgherd.index_key(pgherd.primary_index(root), 'o'), c.first_key,
         pgherd.record_key(root, 'o'), c.changes, pgherd.record_full(root, 'n'),
         CASE WHEN t.partitioned THEN '' ELSE 'ONLY ' END, pgherd.key_equal(root), c.grouped, c.named,
         pgherd.row_type(root)));
END $$;

-- The rows that a transaction captured after statement `since` as items of a body that touches no row
-- twice: final states instead of steps (C3).
DO $do$
DECLARE side int;
BEGIN
    FOR side IN 0..1 LOOP
        EXECUTE format($f$
            CREATE OR REPLACE FUNCTION pgherd.final_items_%1$s(
                x xid8, since int8, OUT tab text, OUT pks int8[], OUT recs text[])
            RETURNS SETOF record
            LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
            DECLARE
                t   record;
                rel oid;
            BEGIN
                FOR t IN SELECT c.tab, array_agg(r) AS recs FROM pgherd.capture_%1$s c, unnest(c.recs) AS r
                          WHERE c.xid = x AND c.cmin::text::int8 > since AND c.tab NOT IN ('sentinel', '""')
                          GROUP BY c.tab ORDER BY bool_or(r = 'T') DESC, c.tab LOOP
                    tab := t.tab;
                    IF 'T' = ANY (t.recs) THEN
                        pks := '{0}'; recs := '{T}';
                        RETURN NEXT;
                    END IF;
                    rel := (t.tab::json #>> '{}')::regclass;
                    EXECUTE format('SELECT * FROM pgherd_gen.%%I($1)',
                                   'final_' || coalesce(pg_partition_root(rel)::oid, rel))
                        INTO pks, recs USING t.recs;
                    IF pks IS NOT NULL THEN
                        RETURN NEXT;
                    END IF;
                END LOOP;
            END $$ $f$, side);
    END LOOP;
END $do$;

CREATE OR REPLACE FUNCTION pgherd.final_items(x xid8, since int8, OUT tab text, OUT pks int8[], OUT recs text[])
RETURNS SETOF record
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF pgherd.capture_side(x) = 0 THEN
        RETURN QUERY SELECT * FROM pgherd.final_items_0(x, since);
    ELSE
        RETURN QUERY SELECT * FROM pgherd.final_items_1(x, since);
    END IF;
END $$;

CREATE OR REPLACE FUNCTION pgherd.final_state(x xid8) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT string_agg(pgherd.item(f.tab, f.pks, f.recs), ',') FROM pgherd.final_items(x, -1) f);
END $$;
