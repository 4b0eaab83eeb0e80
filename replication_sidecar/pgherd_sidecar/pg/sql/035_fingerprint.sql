-- The fingerprint of a transaction's rows: a hash of the final image of each row that its writeset names. Its origin
-- ships them, each other member compares them with what it has written before that becomes visible.
--
-- Both sides ask the same function of the same records, so nothing but the rows themselves can make a difference. An
-- image is the text of the whole row under the fixed settings, generated columns included, and of a partitioned table
-- the name of the leaf in which the row lies; a key that has no row has no hash. Rows without identity have none.
--
-- Whether a transaction carries one is decided at its origin, by a hash of its xid: one of node.fingerprint_every does.
-- The xids themselves would not do: who uses a savepoint in each transaction has only odd ones. A fingerprint is an
-- item of the body like those of tables, with the name "=":
--   ["=", [0], ["[items, [table, [hash of each record, or null]], [table, rows present, sum of their hashes], ...]"]]
-- It speaks of the last `items` items before it: in a transaction with DDL of what was written after the last command,
-- because what was written before may have had another row type.

-- Up to so many records of a table are hashed one by one, so that a difference has a key.
CREATE OR REPLACE FUNCTION pgherd.fingerprint_single_rows() RETURNS int LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 1000;

-- For records of one table the hash of the row under each key, in the order of the records.
-- p: `source_parts` of the table.
CREATE OR REPLACE FUNCTION pgherd.fingerprint_source(p record) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    settings text := p.settings;
    fname    text := format('pgherd_gen.%I(pg_catalog.text[])', 'fingerprint_' || p.root);
BEGIN
    IF p.identity IS NULL THEN
        -- Who adds a row excludes nobody who takes an equal one away: how many there are depends on the order.
        RETURN pgherd.function_source(
            replace(fname, '(', '(recs '),
            'RETURNS pg_catalog.int8[] LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp',
            ' BEGIN RETURN array_fill(NULL::int8, ARRAY[cardinality(recs)]); END ')
            || format(E'GRANT EXECUTE ON FUNCTION %s TO pgherd_apply;\n', fname);
    END IF;
    IF settings = '' THEN
        settings := ' SET search_path = pg_catalog, pg_temp SET quote_all_identifiers = off';
    END IF;
    RETURN pgherd.function_source(
        replace(fname, '(', '(recs '),
        -- one plan for each session, by the index of the identity
        'RETURNS pg_catalog.int8[] LANGUAGE plpgsql STABLE SET plan_cache_mode = force_generic_plan'
        ' SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off' || settings,
        format($f$
BEGIN
    RETURN (
    WITH k AS MATERIALIZED (
        SELECT u.i, substr(u.r, strpos(u.r, '('))::%1$s AS image FROM unnest(recs) WITH ORDINALITY AS u(r, i)
    )
    SELECT array_agg(CASE WHEN n.%3$s IS DISTINCT FROM NULL
                          THEN hashtextextended((%4$sROW(n.*)::text) COLLATE "C", 0) END ORDER BY k.i)
      FROM k CROSS JOIN LATERAL (SELECT %2$s) o LEFT JOIN %5$s n ON (%6$s));
END $f$, p.row_type,
         (SELECT string_agg(format('(k.image).%1$s AS %1$s', k.col), ', ' ORDER BY k.pos)
            FROM pgherd.columns(p.root) k WHERE k.in_pk),
         p.first_key, CASE WHEN p.partitioned THEN 'n.tableoid::regclass::text || ' ELSE '' END, p.written, p.key_equal))
        || format(E'GRANT EXECUTE ON FUNCTION %s TO pgherd_apply;\n', fname);
END $$;

-- The tables of `items`, with their records; a truncation leaves no row to compare.
CREATE OR REPLACE FUNCTION pgherd.fingerprint_records(items json, OUT tab text, OUT recs text[]) RETURNS SETOF record
LANGUAGE sql IMMUTABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT t.tab, array_agg(r.rec ORDER BY t.n, r.n)
      FROM (SELECT i.item ->> 0 AS tab, i.item -> 2 AS recs, i.n
              FROM json_array_elements(items) WITH ORDINALITY AS i(item, n)
            OFFSET 0) t -- or an item, which may be large, would be read for each of its records
     CROSS JOIN LATERAL json_array_elements_text(t.recs) WITH ORDINALITY AS r(rec, n)
     WHERE r.rec <> 'T' GROUP BY t.tab;
END;

-- The hash of the row under the key of each record.
CREATE OR REPLACE FUNCTION pgherd.row_hashes(tab text, recs text[]) RETURNS int8[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    rel    oid := tab::regclass;
    hashes int8[];
BEGIN
    EXECUTE format('SELECT pgherd_gen.%I($1)', 'fingerprint_' || coalesce(pg_partition_root(rel)::oid, rel))
        INTO hashes USING recs;
    RETURN hashes;
END $$;

-- What a fingerprint says of one table.
CREATE OR REPLACE FUNCTION pgherd.table_fingerprint(tab text, hashes int8[]) RETURNS json
LANGUAGE sql STABLE PARALLEL SAFE
RETURN CASE WHEN cardinality(hashes) <= pgherd.fingerprint_single_rows() THEN json_build_array(tab, to_json(hashes))
            ELSE (SELECT json_build_array(tab, count(h), coalesce(sum(h), 0)) FROM unnest(hashes) AS h) END;

-- The fingerprint of a body as an item to be added to it; '' where no row is left to compare.
CREATE OR REPLACE FUNCTION pgherd.fingerprint(body text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    items json := body;
    since int := coalesce((SELECT max(i.n) FROM json_array_elements(items) WITH ORDINALITY AS i(item, n)
                            WHERE i.item ->> 0 = ''), 0);
    count int := json_array_length(items) - since;
    found text;
BEGIN
    IF since > 0 THEN
        items := (SELECT json_agg(i.item ORDER BY i.n) FROM json_array_elements(items) WITH ORDINALITY AS i(item, n)
                   WHERE i.n > since);
    END IF;
    found := (SELECT string_agg(pgherd.table_fingerprint(r.tab, pgherd.row_hashes(r.tab, r.recs))::text, ',')
                FROM pgherd.fingerprint_records(items) r);
    RETURN CASE WHEN found <> '' THEN '["=",[0],[' || to_json(concat('[', count, ',', found, ']'))::text || ']]' ELSE '' END;
EXCEPTION WHEN data_exception THEN
    RETURN ''; -- a row's type has changed since it was written, by a command that has won
END $$;

-- The key that a record names. Nothing but PostgreSQL's own code runs here: record types hold no domains.
CREATE OR REPLACE FUNCTION pgherd.key_of_record(tab text, rec text) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    rel  oid := tab::regclass;
    root oid := coalesce(pg_partition_root(rel)::oid, rel);
    key  text;
BEGIN
    EXECUTE format('SELECT concat_ws('', '', %s) FROM (SELECT ($1::%s).*) r',
                   (SELECT string_agg(format('concat(%L, r.%s)', c.col || ' = ', c.col), ', ' ORDER BY c.pos)
                      FROM pgherd.columns(root) c WHERE c.in_pk),
                   pgherd.row_type(root))
       INTO key USING substr(rec, strpos(rec, '('));
    RETURN key;
END $$;

-- What of a table is not as its origin has shipped it, in words and without values; NULL if nothing. And the primary
-- key of the first such row, where that is known.
CREATE OR REPLACE FUNCTION pgherd.row_difference(
    tab text, recs text[], shipped json, OUT words text, OUT key text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    here int8[] := pgherd.row_hashes(tab, recs);
    d    record;
BEGIN
    IF json_typeof(shipped -> 1) <> 'array' THEN
        words := (SELECT format('table %s: one of %s rows is not the same', tab, cardinality(here)) FROM unnest(here) AS h
                  HAVING (count(h), coalesce(sum(h), 0)) <> ((shipped ->> 1)::int8, (shipped ->> 2)::numeric));
        RETURN;
    END IF;
    SELECT u.i, u.here, s.there INTO d
      FROM unnest(here) WITH ORDINALITY AS u(here, i)
      LEFT JOIN (SELECT e.h::int8 AS there, e.i
                   FROM json_array_elements_text(shipped -> 1) WITH ORDINALITY AS e(h, i)) s USING (i)
     WHERE u.here IS DISTINCT FROM s.there ORDER BY u.i LIMIT 1;
    IF d.i IS NOT NULL THEN
        words := format('table %s: a row is %s', tab,
                        CASE WHEN d.here IS NULL THEN 'not here' WHEN d.there IS NULL THEN 'here, but not there'
                             ELSE 'not the same' END);
        key := pgherd.key_of_record(tab, recs[d.i]);
    END IF;
END $$;

-- Compares what was written with the fingerprint that a body carries; nothing becomes visible if there is a difference.
CREATE OR REPLACE FUNCTION pgherd.check_fingerprint(gid int8, body text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    items  json := body;
    count  int  := json_array_length(items) - 1;
    marks  json := (items -> count) -> 2 ->> 0;
    covers int  := marks ->> 0;
    found  record;
BEGIN
    IF covers < count THEN
        items := (SELECT json_agg(i.item ORDER BY i.n) FROM json_array_elements(items) WITH ORDINALITY AS i(item, n)
                   WHERE i.n > count - covers);
    END IF;
    SELECT string_agg(d.words, '; ') AS words, (array_agg(r.tab))[1] AS tab, coalesce((array_agg(d.key))[1], '') AS key
      INTO found
      FROM json_array_elements(marks) AS m(mark)
      JOIN pgherd.fingerprint_records(items) r ON json_typeof(m.mark) = 'array' AND r.tab = m.mark ->> 0
     CROSS JOIN LATERAL pgherd.row_difference(r.tab, r.recs, m.mark) d
     WHERE d.words <> '';
    IF found.words <> '' THEN -- the key is a value of a row, which no log line may hold
        RAISE EXCEPTION 'the rows of GID % are not those of its origin: %', gid, found.words
            USING ERRCODE = 'PH003', TABLE = found.tab, DETAIL = found.key;
    END IF;
END $$;

REVOKE ALL ON FUNCTION pgherd.fingerprint_single_rows(), pgherd.fingerprint_records(json), pgherd.row_hashes(text, text[]),
    pgherd.table_fingerprint(text, int8[]), pgherd.fingerprint(text), pgherd.key_of_record(text, text),
    pgherd.row_difference(text, text[], json), pgherd.check_fingerprint(int8, text) FROM PUBLIC;
