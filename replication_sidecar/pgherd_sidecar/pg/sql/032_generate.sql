-- Generates the capture functions and triggers of one table: static SQL with the table's own columns, so
-- that a captured row costs one planned statement and no dynamic SQL.
--
-- For each kind of statement two forms: one row (no join, no aggregate: the common case), and a set of
-- rows in chunks of 1,000. Tables in a (non-partitioned) inheritance tree are captured row by row,
-- because a statement trigger of the parent does not tell which child a row belongs to.

-- INSERT INTO capture ... for one row or one pair of rows. Checks and values in one statement, because every
-- executor start counts: nothing is inserted if the node takes no writes or `counted` holds more rows.
-- `first` asks for the smallest xid from ours on, because only that makes the planner use the index whatever
-- it believes of a table that is empty now and then.
CREATE OR REPLACE FUNCTION pgherd.capture_one(
    side int, tab text, keys text, pks text, recs text, source text, counted text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN format(
    'INSERT INTO pgherd.capture_%1$s
     SELECT v_xid, coalesce((SELECT c.xid FROM pgherd.capture_%1$s c WHERE c.xid OPERATOR(pg_catalog.>=) v_xid ORDER BY c.xid LIMIT 1)
                     OPERATOR(pg_catalog.<>) v_xid, true),
            coalesce((SELECT a.gid FROM pgherd.applied a ORDER BY a.gid DESC LIMIT 1), 0),
            %2$L, %3$s, %4$s, %5$s
       FROM %6$s, pgherd.node s
      WHERE s.writable AND pg_catalog.current_setting(''transaction_isolation'') OPERATOR(pg_catalog.<>) ''serializable''%7$s;',
    side, tab, keys, pks, recs, source,
    CASE WHEN counted <> '' THEN format(' AND NOT EXISTS (SELECT FROM %s OFFSET 1)', counted) ELSE '' END);

-- The same for many: `keys`, `pks`, `recs` are per source row, the last two arrays of equal length.
CREATE OR REPLACE FUNCTION pgherd.capture_many(
    side int, tab text, table_keys text, keys text, pks text, recs text, source text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN format(
    'INSERT INTO pgherd.capture_%1$s
     SELECT v_xid, r.chunk OPERATOR(pg_catalog.=) 0
                   AND coalesce((SELECT c.xid FROM pgherd.capture_%1$s c WHERE c.xid OPERATOR(pg_catalog.>=) v_xid ORDER BY c.xid LIMIT 1)
                     OPERATOR(pg_catalog.<>) v_xid, true), v_base,
            %2$L, pg_catalog.concat_ws('','', %3$L, pg_catalog.string_agg(CASE WHEN u.i OPERATOR(pg_catalog.=) 1 THEN r.keys END, '','')),
            pg_catalog.array_agg(u.pk), pg_catalog.array_agg(u.rec)
       FROM (SELECT (pg_catalog.row_number() OVER () OPERATOR(pg_catalog.-) 1) OPERATOR(pg_catalog./) 1000 AS chunk,
                    %4$s AS keys, %5$s AS pks, %6$s AS recs FROM %7$s) r
      CROSS JOIN LATERAL ROWS FROM (pg_catalog.unnest(r.pks), pg_catalog.unnest(r.recs)) WITH ORDINALITY AS u(pk, rec, i)
      GROUP BY r.chunk;', side, tab, table_keys, keys, pks, recs, source);

-- A function that nobody may call. Its body is a quoted literal: the names in it are the user's, and one
-- that holds a dollar quote must not end it.
CREATE OR REPLACE FUNCTION pgherd.function_source(signature text, properties text, body text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN format(E'CREATE OR REPLACE FUNCTION %1$s %2$s AS %3$L;\nREVOKE ALL ON FUNCTION %1$s FROM PUBLIC;\n', signature, properties, body);

-- A trigger function: `one`, and where that captured nothing, why not: no row, a node that takes no writes,
-- or more rows than one, for which there is `many`. Whoever changed a row has an xid already.
CREATE OR REPLACE FUNCTION pgherd.capture_function(
    fname text, settings text, counted text, one0 text, one1 text, many0 text, many1 text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN pgherd.function_source(
    format('pgherd_gen.%I()', fname), 'RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER' || settings,
    format($f$
#variable_conflict use_variable
DECLARE
    v_xid  pg_catalog.xid8 := pg_catalog.pg_current_xact_id_if_assigned();
    v_base pg_catalog.int8;
BEGIN
    IF pgherd.capture_side(v_xid) OPERATOR(pg_catalog.=) 0 THEN
        %2$s
    ELSE
        %3$s
    END IF;
    IF FOUND%1$s THEN
        RETURN NULL;
    END IF;
    v_base := pgherd.check_capture();
    IF pgherd.capture_side(v_xid) OPERATOR(pg_catalog.=) 0 THEN
        %4$s
    ELSE
        %5$s
    END IF;
    RETURN NULL;
END $f$, CASE WHEN counted <> '' THEN format(' OR NOT EXISTS (SELECT FROM %s)', counted) ELSE '' END,
      one0, one1, coalesce(many0, 'NULL;'), coalesce(many1, 'NULL;')));

-- Everything that a statement of one kind needs: its function and its trigger.
-- kind: INSERT, UPDATE or DELETE.
CREATE OR REPLACE FUNCTION pgherd.capture_source(rel oid, root oid, kind text, by_row bool) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    name       text := (SELECT t.name FROM pgherd.user_tables t WHERE t.relid = rel);
    tab        text := to_json((SELECT t.name FROM pgherd.user_tables t WHERE t.relid = root))::text;
    table_keys text := concat(pgherd.name_hash('schema'), ',', pgherd.name_hash('table ' || (tab::json #>> '{}')));
    pk         oid  := pgherd.primary_index(root);
    fname      text := format('%s_%s', lower(kind), rel);
    parents    text := pgherd.parent_keys(root, 'n', false);
    k_ins      text := pgherd.unique_keys(root, 'n', true) || coalesce(', ' || parents, '');
    k_del      text := pgherd.unique_keys(root, 'o', false);
    k_upd      text := pgherd.index_key(pk, 'n') || ' OPERATOR(pg_catalog.|) 2' || coalesce(', ' || pgherd.parent_keys(root, 'n', true), '');
    ins_rec    text := format('pg_catalog.concat(''I'', %s)', pgherd.record_full(root, 'n'));
    del_rec    text := format('pg_catalog.concat(''D'', %s)', pgherd.record_key(root, 'o'));
    same       text := pgherd.same_identity(root);
    first_pk   text := (SELECT c.col FROM pgherd.columns(root) c WHERE c.in_pk ORDER BY c.pos LIMIT 1);
    o          text := CASE WHEN by_row THEN '(SELECT OLD.*) o' ELSE 'old_rows o' END;
    n          text := CASE WHEN by_row THEN '(SELECT NEW.*) n' ELSE 'new_rows n' END;
    keys text; pks text; recs text; source text;
    many_keys text; many_pks text; many_recs text; many_source text;
    counted    text := CASE WHEN by_row THEN '' WHEN kind = 'DELETE' THEN 'old_rows' ELSE 'new_rows' END;
BEGIN
    IF kind = 'INSERT' THEN
        keys := k_ins; pks := format('ARRAY[%s]', pgherd.index_key(pk, 'n')); recs := format('ARRAY[%s]', ins_rec); source := n;
    ELSIF kind = 'DELETE' THEN
        keys := k_del; pks := format('ARRAY[%s]', pgherd.index_key(pk, 'o')); recs := format('ARRAY[%s]', del_rec); source := o;
    ELSE
        keys := format('CASE WHEN %s THEN pg_catalog.concat_ws('','', %s) ELSE pg_catalog.concat_ws('','', %s, %s) END', same, k_upd, k_del, k_ins);
        pks := format('CASE WHEN %s THEN ARRAY[%s] ELSE ARRAY[%s, %s] END', same, pgherd.index_key(pk, 'n'), pgherd.index_key(pk, 'o'), pgherd.index_key(pk, 'n'));
        recs := format('CASE WHEN %s THEN ARRAY[%s] ELSE ARRAY[%s, %s] END', same, pgherd.record_changes(root), del_rec, ins_rec);
        source := o || ', ' || n;
    END IF;
    many_keys := format('pg_catalog.concat_ws('','', %s)', keys); many_pks := pks; many_recs := recs; many_source := source;
    IF kind = 'UPDATE' THEN
        -- Paired by key: what is new under a key is that key's final state, whichever row it was before.
        many_keys := format('CASE WHEN o.%1$s IS NOT DISTINCT FROM NULL THEN pg_catalog.concat_ws('','', %2$s) WHEN n.%1$s IS NOT DISTINCT FROM NULL THEN pg_catalog.concat_ws('','', %3$s) ELSE %4$s END', first_pk, k_ins, k_del, keys);
        many_pks := format('CASE WHEN o.%1$s IS NOT DISTINCT FROM NULL THEN ARRAY[%2$s] WHEN n.%1$s IS NOT DISTINCT FROM NULL THEN ARRAY[%3$s] ELSE %4$s END', first_pk, pgherd.index_key(pk, 'n'), pgherd.index_key(pk, 'o'), pks);
        many_recs := format('CASE WHEN o.%1$s IS NOT DISTINCT FROM NULL THEN ARRAY[%2$s] WHEN n.%1$s IS NOT DISTINCT FROM NULL THEN ARRAY[%3$s] ELSE %4$s END', first_pk, ins_rec, del_rec, recs);
        many_source := format('old_rows o FULL JOIN new_rows n ON (%s)', pgherd.key_equal(root));
    END IF;
    keys := format('pg_catalog.concat_ws('','', %L, %s)', table_keys, keys);
    RETURN pgherd.capture_function(
               fname, pgherd.text_settings(root),
               counted,
               pgherd.capture_one(0, tab, keys, pks, recs, source, counted),
               pgherd.capture_one(1, tab, keys, pks, recs, source, counted),
               CASE WHEN NOT by_row THEN pgherd.capture_many(0, tab, table_keys, many_keys, many_pks, many_recs, many_source) END,
               CASE WHEN NOT by_row THEN pgherd.capture_many(1, tab, table_keys, many_keys, many_pks, many_recs, many_source) END)
        || format(E'CREATE TRIGGER pgherd_%s AFTER %s ON %s%s FOR EACH %s EXECUTE FUNCTION pgherd_gen.%I();\n',
                  lower(kind), kind, name,
                  CASE WHEN by_row THEN ''
                       ELSE ' REFERENCING' || CASE WHEN kind <> 'INSERT' THEN ' OLD TABLE AS old_rows' ELSE '' END
                                           || CASE WHEN kind <> 'DELETE' THEN ' NEW TABLE AS new_rows' ELSE '' END END,
                  CASE WHEN by_row THEN 'ROW' ELSE 'STATEMENT' END, fname);
END $$;

-- o.key = n.key with the operators of the primary key's own index.
CREATE OR REPLACE FUNCTION pgherd.key_equal(root oid) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT string_agg(format('o.%1$I OPERATOR(%2$I.%3$s) n.%1$I', a.attname, n.nspname, p.oprname), ' AND ' ORDER BY k.pos)
      FROM pgherd.index_columns(pgherd.primary_index(root), 'n') k
      JOIN pg_attribute a ON a.attrelid = root AND a.attnum = k.attnum
      JOIN pg_operator p ON p.oid = k.equality JOIN pg_namespace n ON n.oid = p.oprnamespace;
END;

-- TRUNCATE: the table's own name (each partition fires for itself) and its key exclusively (C16).
CREATE OR REPLACE FUNCTION pgherd.truncate_source(rel oid, root oid) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    t     pgherd.user_tables;
    keys  text := concat(pgherd.name_hash('schema'), ',', pgherd.name_hash('table ' ||
                      (SELECT u.name FROM pgherd.user_tables u WHERE u.relid = root)) | 3);
    fname text := format('truncate_%s', rel);
    restart text := '';
BEGIN
    SELECT * INTO t FROM pgherd.user_tables u WHERE u.relid = rel;
    IF EXISTS (SELECT FROM pgherd.user_sequences s WHERE s.owner = rel) THEN
        restart := format(E'CREATE TRIGGER pgherd_truncate_restart AFTER TRUNCATE ON %s FOR EACH STATEMENT EXECUTE FUNCTION pgherd.capture_restart();\n', t.name);
    END IF;
    IF t.partitioned THEN
        RETURN restart;
    END IF;
    RETURN pgherd.capture_function(fname, '', '',
               pgherd.capture_one(0, to_json(t.name)::text, quote_literal(keys), 'ARRAY[0]::pg_catalog.int8[]', 'ARRAY[''T'']', '(VALUES (0)) v', ''),
               pgherd.capture_one(1, to_json(t.name)::text, quote_literal(keys), 'ARRAY[0]::pg_catalog.int8[]', 'ARRAY[''T'']', '(VALUES (0)) v', ''),
               NULL, NULL)
        || format(E'CREATE TRIGGER pgherd_truncate AFTER TRUNCATE ON %s FOR EACH STATEMENT EXECUTE FUNCTION pgherd_gen.%I();\n', t.name, fname)
        || restart;
END $$;

-- The row type in which records are read: the table's own, or one without domains, since a record leaves
-- columns NULL that a domain may not allow to be.
CREATE OR REPLACE FUNCTION pgherd.row_type(root oid) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
RETURN CASE WHEN EXISTS (SELECT FROM pgherd.columns(root) c WHERE pgherd.base_type(c.typ) <> c.typ)
            THEN format('pgherd_gen.row_%s', root)
            ELSE (SELECT t.name FROM pgherd.user_tables t WHERE t.relid = root) END;

CREATE OR REPLACE FUNCTION pgherd.row_type_source(root oid) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT format(E'DROP TYPE IF EXISTS pgherd_gen.row_%1$s;\n', root)
        || CASE WHEN bool_or(pgherd.base_type(c.typ) <> c.typ)
                THEN format(E'CREATE TYPE pgherd_gen.row_%s AS (%s);\n', root,
                            string_agg(c.col || ' ' || pgherd.type_name(pgherd.base_type(c.typ)), ', ' ORDER BY c.pos)) ELSE '' END
      FROM pgherd.columns(root) c;
END;

-- The state that the rows of a transaction have at its end (C3): for the records captured of one table,
-- "E" and "I" where the row was made anew, "U" where it was only updated, "E" alone where it is gone.
CREATE OR REPLACE FUNCTION pgherd.final_source(root oid) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    name    text := (SELECT t.name FROM pgherd.user_tables t WHERE t.relid = root);
    only_   text := (SELECT CASE WHEN t.inherits THEN 'ONLY ' ELSE '' END FROM pgherd.user_tables t WHERE t.relid = root);
    parsed  text := (SELECT string_agg(format('(k.image).%s AS k%s', c.col, c.pos), ', ' ORDER BY c.pos) FROM pgherd.columns(root) c WHERE c.in_pk);
    grouped text := (SELECT string_agg('(k.image).' || c.col, ', ' ORDER BY c.pos) FROM pgherd.columns(root) c WHERE c.in_pk);
    named   text := (SELECT string_agg(format('s.k%s AS %s', c.pos, c.col), ', ' ORDER BY c.pos) FROM pgherd.columns(root) c WHERE c.in_pk);
    first   text := (SELECT c.col FROM pgherd.columns(root) c WHERE c.in_pk ORDER BY c.pos LIMIT 1);
    width   int  := (SELECT count(*) FROM pgherd.columns(root));
    changes text := (SELECT string_agg(
                        CASE WHEN c.in_pk THEN 'n.' || c.col
                             WHEN c.generated THEN 'NULL'
                             ELSE format('CASE WHEN get_bit(s.bits, %s) = 1 THEN n.%s END', c.pos - 1, c.col) END, ', ' ORDER BY c.pos)
                       FROM pgherd.columns(root) c);
BEGIN
    RETURN pgherd.function_source(
        format('pgherd_gen.%I(recs text[], OUT pks int8[], OUT final text[])', 'final_' || root),
        'LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan' || pgherd.text_settings(root),
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
END $f$, name, width, parsed, pgherd.index_key(pgherd.primary_index(root), 'o'), first,
      pgherd.record_key(root, 'o'), changes, pgherd.record_full(root, 'n'), only_, pgherd.key_equal(root), grouped, named, pgherd.row_type(root)));
END $$;

-- A table that cannot be replicated says so on the first write.
CREATE OR REPLACE FUNCTION pgherd.refuse_without_key() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'table %.% has no primary key and cannot be replicated', quote_ident(TG_TABLE_SCHEMA), quote_ident(TG_TABLE_NAME)
        USING ERRCODE = '0A000',
              HINT = format('Add one (ALTER TABLE %I.%I ADD PRIMARY KEY ...), or keep the table local: SELECT pgherd.set_local(%L).',
                            TG_TABLE_SCHEMA, TG_TABLE_NAME, format('%I.%I', TG_TABLE_SCHEMA, TG_TABLE_NAME));
END $$;

CREATE OR REPLACE FUNCTION pgherd.refusal_source(rel oid, by_row bool) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT format(E'CREATE TRIGGER pgherd_refuse BEFORE INSERT OR UPDATE OR DELETE%s ON %s FOR EACH %s EXECUTE FUNCTION pgherd.refuse_without_key();\n',
                  CASE WHEN by_row THEN '' ELSE ' OR TRUNCATE' END, t.name, CASE WHEN by_row THEN 'ROW' ELSE 'STATEMENT' END)
      FROM pgherd.user_tables t WHERE t.relid = rel;
END;

-- All generated SQL of one table; '' for a table that is not replicated.
CREATE OR REPLACE FUNCTION pgherd.table_source(rel oid) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    t    pgherd.user_tables;
    root oid;
BEGIN
    SELECT * INTO t FROM pgherd.user_tables u WHERE u.relid = rel;
    IF t.relid IS NULL THEN
        RETURN '';
    END IF;
    root := CASE WHEN pgherd.primary_index(t.root_relid) IS NOT NULL THEN t.root_relid ELSE rel END;
    IF pgherd.primary_index(root) IS NULL THEN
        RETURN pgherd.refusal_source(rel, t.inherits);
    END IF;
    RETURN pgherd.capture_source(rel, root, 'INSERT', t.inherits)
        || pgherd.capture_source(rel, root, 'UPDATE', t.inherits)
        || pgherd.capture_source(rel, root, 'DELETE', t.inherits)
        || pgherd.truncate_source(rel, root)
        || CASE WHEN rel = root THEN pgherd.row_type_source(root) || pgherd.final_source(root) ELSE '' END;
END $$;

-- Makes what is generated agree with the catalog: for the given relations, or for all.
CREATE OR REPLACE FUNCTION pgherd.reconcile(rels oid[] DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET client_min_messages = warning AS $$
DECLARE
    r      record;
    source text;
    old    text;
    trig   text;
BEGIN
    FOR r IN SELECT c.oid AS relid, c.oid::regclass AS name FROM pg_class c
              WHERE (c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND (rels IS NULL OR c.oid = ANY (rels)))
                AND (EXISTS (SELECT FROM pgherd.user_tables u WHERE u.relid = c.oid)
                     OR EXISTS (SELECT FROM pgherd.generated g WHERE g.relid = c.oid))
              ORDER BY c.oid LOOP
        source := pgherd.table_source(r.relid);
        SELECT g.fingerprint INTO old FROM pgherd.generated g WHERE g.relid = r.relid;
        CONTINUE WHEN old IS NOT DISTINCT FROM md5(source);
        FOR trig IN SELECT t.tgname FROM pg_trigger t WHERE t.tgrelid = r.relid AND t.tgname LIKE 'pgherd\_%' LOOP
            EXECUTE format('DROP TRIGGER %I ON %s', trig, r.name);
        END LOOP;
        IF source <> '' THEN
            EXECUTE source;
        END IF;
        INSERT INTO pgherd.generated VALUES (r.relid, md5(source))
            ON CONFLICT (relid) DO UPDATE SET fingerprint = EXCLUDED.fingerprint;
    END LOOP;
    FOR r IN DELETE FROM pgherd.generated g WHERE NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = g.relid) RETURNING g.relid LOOP
        PERFORM pgherd.drop_generated(r.relid);
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION pgherd.drop_generated(rel oid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET client_min_messages = warning AS $$
DECLARE f regprocedure;
BEGIN
    FOR f IN SELECT p.oid FROM pg_proc p
              WHERE p.pronamespace = 'pgherd_gen'::regnamespace
                AND p.proname IN ('insert_' || rel, 'update_' || rel, 'delete_' || rel, 'truncate_' || rel, 'final_' || rel) LOOP
        EXECUTE format('DROP FUNCTION %s', f);
    END LOOP;
    EXECUTE format('DROP TYPE IF EXISTS pgherd_gen.row_%s', rel);
END $$;

-- The rows that a transaction captured after statement `since` as items of a body that touches no row
-- twice: final states instead of steps (C3).
CREATE OR REPLACE FUNCTION pgherd.final_items(x xid8, since int8, OUT tab text, OUT pks int8[], OUT recs text[])
RETURNS SETOF record
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    t   record;
    rel oid;
BEGIN
    FOR t IN EXECUTE format(
        'SELECT c.tab, array_agg(r ORDER BY r) AS recs FROM pgherd.capture_%s c, unnest(c.recs) r
          WHERE c.xid = $1 AND c.cmin::text::int8 > $2 AND c.tab NOT IN (''sentinel'', ''""'')
          GROUP BY c.tab ORDER BY bool_or(r = ''T'') DESC, c.tab', pgherd.capture_side(x)) USING x, since
    LOOP
        tab := t.tab;
        IF 'T' = ANY (t.recs) THEN
            pks := '{0}'; recs := '{T}';
            RETURN NEXT;
        END IF;
        rel := (t.tab::json #>> '{}')::regclass;
        EXECUTE format('SELECT * FROM pgherd_gen.%I($1)', 'final_' || coalesce(pg_partition_root(rel)::oid, rel))
            INTO pks, recs USING t.recs;
        IF pks IS NOT NULL THEN
            RETURN NEXT;
        END IF;
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION pgherd.final_state(x xid8) RETURNS text
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT string_agg(concat('[', f.tab, ',', array_to_json(f.pks), ',', array_to_json(f.recs), ']'), ',')
      FROM pgherd.final_items(x, -1) f;
END;

-- What the applier must know of a table to write it, by its name as it stands in writesets: see TableShape.
CREATE OR REPLACE FUNCTION pgherd.describe(
    tab text, OUT columns text[], OUT pk int[], OUT generated int[], OUT same_key text, OUT "only" bool, OUT row_type text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT array_agg(c.col ORDER BY c.pos),
           array_agg(c.pos - 1 ORDER BY c.pos) FILTER (WHERE c.in_pk),
           coalesce(array_agg(c.pos - 1 ORDER BY c.pos) FILTER (WHERE c.generated), '{}'),
           pgherd.key_equal(tab::regclass),
           (SELECT u.inherits FROM pgherd.user_tables u WHERE u.relid = tab::regclass),
           pgherd.row_type(tab::regclass)
      FROM pgherd.columns(tab::regclass) c;
END;
