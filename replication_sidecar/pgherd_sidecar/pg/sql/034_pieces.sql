-- Transactions that are too large for one writeset: certify() reads what was captured with cursors and sends it
-- piece by piece on the session's connection to the sidecar, first the certification keys, then the rows. Each
-- call returns when the piece has its place in the log, which bounds what is under way. At most a few pieces are
-- in memory, or one row.
--
-- The pieces are applied in their order, one by one, so what frees a unique key travels before what takes it (C10):
-- truncations, then deletes, then the rest.

-- Sends what is in `parts`, joined, if it is enough for a piece; returns what is left over.
CREATE OR REPLACE FUNCTION pgherd.send_piece(
    conn text, head text, separator text, parts text[], size int8, most int8) RETURNS text[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF size < most OR parts = '{}' THEN
        RETURN parts;
    END IF;
    PERFORM pgherd.dblink_exec(conn, CASE separator WHEN ',' THEN concat(head, '[', array_to_string(parts, ','), ']')
                                                    ELSE concat(head, array_to_string(parts, separator)) END);
    RETURN '{}';
END $$;

-- The certification groups.
CREATE OR REPLACE FUNCTION pgherd.send_keys(x xid8, conn text, head text, most int8) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    groups text[] := '{}';
    size   int8 := 0;
    c      record;
BEGIN
    FOR c IN EXECUTE format('SELECT c.base, c.keys FROM pgherd.capture_%s c WHERE c.xid = $1 AND c.tab <> ''sentinel'''
                            ' AND c.keys <> ''''', pgherd.capture_side(x)) USING x LOOP
        groups := array_append(groups, concat(c.base, ':', c.keys));
        size := size + octet_length(c.keys);
        IF size >= most THEN
            groups := pgherd.send_piece(conn, head, ';', groups, size, most);
            size := 0;
        END IF;
    END LOOP;
    PERFORM pgherd.send_piece(conn, head, ';', groups, 1, 1);
END $$;

-- Captured rows of one statement, those that erase or the others, in parts of about `most` bytes. What a row without
-- identity has become goes with what it was: it frees and takes no unique key.
CREATE OR REPLACE FUNCTION pgherd.parts_of(pks int8[], recs text[], erasing bool, most int8)
RETURNS TABLE (part_pks int8[], part_recs text[])
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT array_agg(s.pk ORDER BY s.i), array_agg(s.rec ORDER BY s.i)
      FROM (SELECT r.*, sum(octet_length(r.rec)) OVER (ORDER BY r.i) / most AS part
              FROM (SELECT u.*, left(u.rec, 1) IN ('D', 'R') OR lag(left(u.rec, 1), 1, '') OVER (ORDER BY u.i) = 'R' AS erases
                      FROM unnest(pks, recs) WITH ORDINALITY u(pk, rec, i)) r
             WHERE r.erases = erasing) s
     GROUP BY s.part ORDER BY s.part;
END;

-- Whether all that the transaction captured after the row with number `since` are inserts. Then it has touched no row
-- twice: of one key there is one, and of equal rows without identity each counts.
CREATE OR REPLACE FUNCTION pgherd.only_inserts(x xid8, since int8) RETURNS bool
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE others bool;
BEGIN
    EXECUTE format('SELECT EXISTS (SELECT FROM pgherd.capture_%s c, unnest(c.recs) r'
                   ' WHERE c.xid = $1 AND c.seq > $2 AND c.tab <> ''sentinel'' AND NOT r ^@ ''I'')', pgherd.capture_side(x))
       INTO others USING x, since;
    RETURN NOT others;
END $$;

-- The rows of a transaction that has only inserted, as lines of text: what they say of their table, and then record for
-- record. Members hand them to COPY.
CREATE OR REPLACE FUNCTION pgherd.send_lines(x xid8, since int8, conn text, head text, most int8) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    tab   text;
    lines text[] := '{}';
    rows  int8 := 0;
    size  int8 := 0;
    c     record;
BEGIN
    FOR c IN EXECUTE format($f$SELECT c.tab, p.rows, p.lines, octet_length(p.lines) AS size
                                 FROM pgherd.capture_%s c
                                CROSS JOIN LATERAL (
                                      SELECT cardinality(c.recs) AS rows, array_to_string(c.recs, E'\n') AS lines
                                       WHERE pg_column_size(c.recs) <= $2
                                      UNION ALL
                                      SELECT cardinality(s.part_recs), array_to_string(s.part_recs, E'\n')
                                        FROM pgherd.parts_of(c.pks, c.recs, false, $2) s
                                       WHERE pg_column_size(c.recs) > $2) p
                                WHERE c.xid = $1 AND c.seq > $3 AND c.tab <> 'sentinel'$f$,
                            pgherd.capture_side(x)) USING x, most, since LOOP
        IF size >= most OR c.tab <> tab THEN
            PERFORM pgherd.send_piece(conn, concat(head, tab, ',', rows, E'\n'), E'\n', lines, 1, 1);
            lines := '{}';
            rows := 0;
            size := 0;
        END IF;
        tab := c.tab;
        lines := array_append(lines, c.lines);
        rows := rows + c.rows;
        size := size + c.size;
    END LOOP;
    PERFORM pgherd.send_piece(conn, concat(head, tab, ',', rows, E'\n'), E'\n', lines, 1, 1);
END $$;

-- The rows of a transaction that touched each once, after the captured one with number `since`: those that erase, or
-- the others.
CREATE OR REPLACE FUNCTION pgherd.send_rows(x xid8, since int8, conn text, head text, erasing bool, most int8) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    items text[] := '{}';
    size  int8 := 0;
    item  text;
    c     record;
BEGIN
    -- Most statements only add rows and fit into a piece: these are sent as they are.
    FOR c IN EXECUTE format($f$SELECT c.tab, c.pks, c.recs, c.erases, c.erases OR pg_column_size(c.recs) > $2 AS split
                                 FROM (SELECT c.*, EXISTS (SELECT FROM unnest(c.recs) r WHERE r ^@ 'D' OR r ^@ 'R') AS erases
                                         FROM pgherd.capture_%s c
                                        WHERE c.xid = $1 AND c.seq > $3 AND c.tab <> 'sentinel') c$f$,
                            pgherd.capture_side(x)) USING x, most, since LOOP
        CONTINUE WHEN erasing AND NOT c.erases;
        FOR item IN SELECT pgherd.item(c.tab, p.part_pks, p.part_recs)
                      FROM pgherd.parts_of(c.pks, c.recs, erasing, most) p WHERE c.split
                     UNION ALL SELECT pgherd.item(c.tab, c.pks, c.recs) WHERE NOT c.split LOOP
            items := array_append(items, item);
            size := size + octet_length(item);
            IF size >= most THEN
                items := pgherd.send_piece(conn, head, ',', items, size, most);
                size := 0;
            END IF;
        END LOOP;
    END LOOP;
    PERFORM pgherd.send_piece(conn, head, ',', items, 1, 1);
END $$;

-- The final states of the rows of a transaction that touched some more than once (C3): all that was captured under
-- one key goes into one part.
CREATE OR REPLACE FUNCTION pgherd.send_final_rows(x xid8, since int8, conn text, head text, erasing bool, most int8) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_hashagg = off AS $$
DECLARE
    items text[] := '{}';
    size  int8 := 0;
    item  text;
    c     record;
BEGIN
    FOR c IN EXECUTE format(
        $f$SELECT s.tab, array_agg(s.rec) AS recs
             FROM (SELECT c.tab, u.rec, sum(octet_length(u.rec)) OVER (PARTITION BY c.tab ORDER BY u.pk) / $2 AS part
                     FROM pgherd.capture_%1$s c
                     LEFT JOIN (SELECT t.tab, max(t.seq) AS seq FROM pgherd.capture_%1$s t
                                 WHERE t.xid = $1 AND t.seq > $3
                                   AND CASE WHEN t.recs = '{T}'
                                            THEN pgherd.identity_index((t.tab::json #>> '{}')::regclass) IS NULL END
                                 GROUP BY t.tab) t ON t.tab = c.tab,
                          unnest(c.pks, c.recs) u(pk, rec)
                    -- of rows without identity nothing counts from before a truncation
                    WHERE c.xid = $1 AND c.seq > coalesce(t.seq, $3) AND c.tab <> 'sentinel' AND u.rec <> 'T') s
            GROUP BY s.tab, s.part$f$, pgherd.capture_side(x)) USING x, most, since LOOP
        item := pgherd.final_items(c.tab, c.recs, erasing, NOT erasing);
        CONTINUE WHEN item = '';
        items := array_append(items, item);
        size := size + octet_length(item);
        items := pgherd.send_piece(conn, head, ',', items, size, most);
        IF items = '{}' THEN
            size := 0;
        END IF;
    END LOOP;
    PERFORM pgherd.send_piece(conn, head, ',', items, 1, 1);
END $$;

-- Sends all of a transaction, `most` bytes at a time; returns the request for the writeset that ends it. If that
-- fails or is interrupted nothing is ordered but pieces, which the sidecar gives up when the connection ends.
CREATE OR REPLACE FUNCTION pgherd.send_pieces(x xid8, conn text, secret text, most int8) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    whose     text := concat(secret, ' ', pg_backend_pid(), ' ', x);
    head      text := concat('B ', whose, E' 0\n');
    tables    text;
    truncated text[];
    since     int8 := pgherd.run_begin(x, true);
BEGIN
    PERFORM pgherd.send_keys(x, conn, concat('B ', whose, E' 1\n'), most / 2);
    IF pgherd.only_inserts(x, since) THEN
        PERFORM pgherd.send_lines(x, since, conn, head, most);
    ELSIF pgherd.touches_a_row_twice(x, since) THEN
        EXECUTE format('SELECT array_agg(pgherd.item(t.tab, ''{0}'', ''{T}'')) FROM (SELECT DISTINCT c.tab FROM pgherd.capture_%s c'
                       ' WHERE c.xid = $1 AND c.seq > $2 AND c.recs = ''{T}'') t WHERE pgherd.may_truncate($1, $2, t.tab)',
                       pgherd.capture_side(x)) INTO truncated USING x, since;
        PERFORM pgherd.send_piece(conn, head, ',', coalesce(truncated, '{}'), 1, 1);
        PERFORM pgherd.send_final_rows(x, since, conn, head, true, most);
        PERFORM pgherd.send_final_rows(x, since, conn, head, false, most);
    ELSE
        PERFORM pgherd.send_rows(x, since, conn, head, true, most);
        PERFORM pgherd.send_rows(x, since, conn, head, false, most);
    END IF;
    EXECUTE format('SELECT json_agg(t.tab::json) FROM (SELECT DISTINCT c.tab FROM pgherd.capture_%s c'
                   ' WHERE c.xid = $1 AND c.tab <> ''sentinel'') t', pgherd.capture_side(x)) INTO tables USING x;
    RETURN concat('W ', whose, E' 2\n\n', tables);
EXCEPTION
    WHEN connection_failure THEN -- it is the sidecar's that has failed, not the client's; nothing was decided
        PERFORM pgherd.dblink_disconnect(conn);
        PERFORM pgherd.refuse_write('its sidecar does not answer');
    WHEN OTHERS OR query_canceled THEN
        PERFORM pgherd.dblink_disconnect(conn);
        RAISE;
END $$;
