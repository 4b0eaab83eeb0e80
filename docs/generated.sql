-- pgherd generates this for the following table, by the files 031 to 035 of
-- replication_sidecar/pgherd_sidecar/pg/sql:
--
--     CREATE TABLE example.account (id int PRIMARY KEY, owner text, balance numeric(12, 2));
--
-- The functions for DELETE, TRUNCATE and UPDATE are made like the one for INSERT, and left out.
-- In place of OID there is the table's. PGHERD_TEST_WRITES_EXAMPLE=1 writes this file:
-- pytest tests/integration/test_generated.py

CREATE OR REPLACE FUNCTION pgherd_gen.final_OID(tab text, recs text[], erasing boolean, writing boolean)
 RETURNS text
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
 SET plan_cache_mode TO 'force_generic_plan'
 SET enable_seqscan TO 'off'
 SET enable_hashjoin TO 'off'
 SET enable_mergejoin TO 'off'
AS $function$
BEGIN
    RETURN (
    WITH k AS (
        SELECT substr(r, strpos(r, '('))::example.account AS image, left(r, 1) = 'U' AS updated, left(r, 1) = 'I' AS made,
               CASE WHEN left(r, 1) = 'U' THEN substr(r, 2, 3)::bit(3) END AS bits
          FROM unnest($2) r WHERE left(r, 1) <> 'T'
    ), s AS (
        SELECT (k.image).id AS k1, bool_and(k.updated) AS only_updates,
               bool_and(k.made) AS only_made, bit_or(k.bits) AS bits FROM k GROUP BY (k.image).id
    )
    SELECT '[' || $1 || ',[' || string_agg(concat_ws(',', CASE WHEN m.erased <> '' THEN m.pk END,
                                                      CASE WHEN m.written <> '' THEN m.pk END), ',')
           || '],[' || string_agg(concat_ws(',', m.erased, m.written), ',') || ']]'
      FROM (SELECT (pg_catalog.hashint4extended(o.id, -6511599387434661820) OPERATOR(pg_catalog.&) -4) AS pk,
                   -- a table may be published for which PostgreSQL lets nobody delete: nothing ends that was not there
                   CASE WHEN $3 AND NOT s.only_made AND NOT (s.only_updates AND n.id IS DISTINCT FROM NULL)
                        THEN to_json(concat('E', ROW(o.id, NULL, NULL)::pg_catalog.text))::text END AS erased,
                   CASE WHEN NOT $4 OR n.id IS NOT DISTINCT FROM NULL THEN NULL
                        WHEN s.only_updates THEN to_json(concat('U', s.bits::text, ROW(n.id, CASE WHEN get_bit(s.bits, 1) = 1 THEN n.owner END, CASE WHEN get_bit(s.bits, 2) = 1 THEN n.balance END)::text))::text
                        ELSE to_json(concat('I', ROW(n.id, n.owner, n.balance)::pg_catalog.text))::text END AS written
              FROM s CROSS JOIN LATERAL (SELECT s.k1 AS id) o LEFT JOIN ONLY example.account n ON (o.id OPERATOR(pg_catalog.=) n.id)) m
     WHERE m.erased <> '' OR m.written <> '');
EXCEPTION WHEN data_exception THEN
    PERFORM pgherd.lose_against_a_command(SQLERRM);
END $function$;

CREATE OR REPLACE FUNCTION pgherd_gen.fingerprint_OID(recs text[])
 RETURNS bigint[]
 LANGUAGE plpgsql
 STABLE
 SET plan_cache_mode TO 'force_generic_plan'
 SET enable_seqscan TO 'off'
 SET enable_hashjoin TO 'off'
 SET enable_mergejoin TO 'off'
 SET search_path TO 'pg_catalog', 'pg_temp'
 SET quote_all_identifiers TO 'off'
AS $function$
BEGIN
    RETURN (
    WITH k AS MATERIALIZED (
        SELECT u.i, substr(u.r, strpos(u.r, '('))::example.account AS image FROM unnest(recs) WITH ORDINALITY AS u(r, i)
    )
    SELECT array_agg(CASE WHEN n.id IS DISTINCT FROM NULL
                          THEN hashtextextended((ROW(n.*)::text) COLLATE "C", 0) END ORDER BY k.i)
      FROM k CROSS JOIN LATERAL (SELECT (k.image).id AS id) o LEFT JOIN ONLY example.account n ON (o.id OPERATOR(pg_catalog.=) n.id));
END $function$;

CREATE OR REPLACE FUNCTION pgherd_gen.insert_OID()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
AS $function$
#variable_conflict use_column
<<ours>>
DECLARE
    v_xid  pg_catalog.xid8 := pg_catalog.pg_current_xact_id_if_assigned();
    v_base pg_catalog.int8;
    v_checked pg_catalog.int8;
BEGIN
    IF pgherd.capture_side(v_xid) OPERATOR(pg_catalog.=) 0 THEN
        INSERT INTO pgherd.capture_0
     SELECT ours.v_xid, GREATEST((SELECT CASE WHEN c.xid OPERATOR(pg_catalog.=) ours.v_xid THEN c.seq END FROM pgherd.capture_0 c
                WHERE c.xid OPERATOR(pg_catalog.>=) ours.v_xid ORDER BY c.xid, c.seq DESC LIMIT 1), 0)
     OPERATOR(pg_catalog.+) 1, coalesce((SELECT a.gid FROM pgherd.applied a ORDER BY a.gid DESC LIMIT 1), 0),
            '"example.account"', pg_catalog.concat_ws(',', '-4669729358579269784,-7040118988972007136', pg_catalog.concat_ws(',', (pg_catalog.hashint4extended(n.id, -6511599387434661820) OPERATOR(pg_catalog.&) -4) OPERATOR(pg_catalog.|) 3)), ARRAY[(pg_catalog.hashint4extended(n.id, -6511599387434661820) OPERATOR(pg_catalog.&) -4)], ARRAY[pg_catalog.concat('I', ROW(n.id, n.owner, n.balance)::pg_catalog.text)]
       FROM new_rows n, pgherd.node s
      WHERE s.writable
        AND pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.<>) 'serializable' AND NOT EXISTS (SELECT FROM new_rows OFFSET 1);
    ELSE
        INSERT INTO pgherd.capture_1
     SELECT ours.v_xid, GREATEST((SELECT CASE WHEN c.xid OPERATOR(pg_catalog.=) ours.v_xid THEN c.seq END FROM pgherd.capture_1 c
                WHERE c.xid OPERATOR(pg_catalog.>=) ours.v_xid ORDER BY c.xid, c.seq DESC LIMIT 1), 0)
     OPERATOR(pg_catalog.+) 1, coalesce((SELECT a.gid FROM pgherd.applied a ORDER BY a.gid DESC LIMIT 1), 0),
            '"example.account"', pg_catalog.concat_ws(',', '-4669729358579269784,-7040118988972007136', pg_catalog.concat_ws(',', (pg_catalog.hashint4extended(n.id, -6511599387434661820) OPERATOR(pg_catalog.&) -4) OPERATOR(pg_catalog.|) 3)), ARRAY[(pg_catalog.hashint4extended(n.id, -6511599387434661820) OPERATOR(pg_catalog.&) -4)], ARRAY[pg_catalog.concat('I', ROW(n.id, n.owner, n.balance)::pg_catalog.text)]
       FROM new_rows n, pgherd.node s
      WHERE s.writable
        AND pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.<>) 'serializable' AND NOT EXISTS (SELECT FROM new_rows OFFSET 1);
    END IF;
    IF FOUND THEN
        RETURN NULL;
    END IF;
    IF NOT EXISTS (SELECT FROM new_rows) THEN
        RETURN NULL;
    END IF;
    v_base := pgherd.check_capture();
    IF pgherd.capture_side(v_xid) OPERATOR(pg_catalog.=) 0 THEN
        INSERT INTO pgherd.capture_0
     SELECT ours.v_xid, GREATEST((SELECT CASE WHEN c.xid OPERATOR(pg_catalog.=) ours.v_xid THEN c.seq END FROM pgherd.capture_0 c
                WHERE c.xid OPERATOR(pg_catalog.>=) ours.v_xid ORDER BY c.xid, c.seq DESC LIMIT 1), 0)
     OPERATOR(pg_catalog.+) 1 OPERATOR(pg_catalog.+) r.chunk, ours.v_base, '"example.account"',
            pg_catalog.concat_ws(',', '-4669729358579269784,-7040118988972007136', pg_catalog.string_agg(r.keys, ',')),
            pg_catalog.array_agg(r.pk), pg_catalog.array_agg(r.rec)
       FROM (SELECT (pg_catalog.row_number() OVER () OPERATOR(pg_catalog.-) 1) OPERATOR(pg_catalog./) 1000 AS chunk, w.*
               FROM (SELECT pg_catalog.concat_ws(',', pg_catalog.concat_ws(',', (pg_catalog.hashint4extended(n.id, -6511599387434661820) OPERATOR(pg_catalog.&) -4) OPERATOR(pg_catalog.|) 3)) AS keys, (pg_catalog.hashint4extended(n.id, -6511599387434661820) OPERATOR(pg_catalog.&) -4) AS pk, pg_catalog.concat('I', ROW(n.id, n.owner, n.balance)::pg_catalog.text) AS rec FROM new_rows n OFFSET 0) w) r
      GROUP BY r.chunk;
    ELSE
        INSERT INTO pgherd.capture_1
     SELECT ours.v_xid, GREATEST((SELECT CASE WHEN c.xid OPERATOR(pg_catalog.=) ours.v_xid THEN c.seq END FROM pgherd.capture_1 c
                WHERE c.xid OPERATOR(pg_catalog.>=) ours.v_xid ORDER BY c.xid, c.seq DESC LIMIT 1), 0)
     OPERATOR(pg_catalog.+) 1 OPERATOR(pg_catalog.+) r.chunk, ours.v_base, '"example.account"',
            pg_catalog.concat_ws(',', '-4669729358579269784,-7040118988972007136', pg_catalog.string_agg(r.keys, ',')),
            pg_catalog.array_agg(r.pk), pg_catalog.array_agg(r.rec)
       FROM (SELECT (pg_catalog.row_number() OVER () OPERATOR(pg_catalog.-) 1) OPERATOR(pg_catalog./) 1000 AS chunk, w.*
               FROM (SELECT pg_catalog.concat_ws(',', pg_catalog.concat_ws(',', (pg_catalog.hashint4extended(n.id, -6511599387434661820) OPERATOR(pg_catalog.&) -4) OPERATOR(pg_catalog.|) 3)) AS keys, (pg_catalog.hashint4extended(n.id, -6511599387434661820) OPERATOR(pg_catalog.&) -4) AS pk, pg_catalog.concat('I', ROW(n.id, n.owner, n.balance)::pg_catalog.text) AS rec FROM new_rows n OFFSET 0) w) r
      GROUP BY r.chunk;
    END IF;
    RETURN NULL;
END $function$;
