-- Generates the capture functions and triggers of one table: static SQL with the table's own columns, so
-- that a captured row costs one planned statement and no dynamic SQL.
--
-- For each kind of statement two forms: one row (no join, no aggregate: the common case), and a set of
-- rows in chunks of 1,000. Tables in a (non-partitioned) inheritance tree are captured row by row,
-- because a statement trigger of the parent does not tell which child a row belongs to.

-- INSERT INTO capture ... for one row or one pair of rows. Checks and values in one statement, because every
-- executor start counts: nothing is inserted if the node takes no writes, `counted` holds more rows, or
-- `condition` is false.
-- `first` asks for the smallest xid from ours on, because only that makes the planner use the index whatever
-- it believes of a table that is empty now and then.
CREATE OR REPLACE FUNCTION pgherd.capture_one(
    side int, tab text, keys text, pks text, recs text, source text, counted text, condition text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN format(
    'INSERT INTO pgherd.capture_%1$s
     SELECT v_xid, coalesce((SELECT c.xid FROM pgherd.capture_%1$s c
                              WHERE c.xid OPERATOR(pg_catalog.>=) v_xid ORDER BY c.xid LIMIT 1)
                            OPERATOR(pg_catalog.<>) v_xid, true),
            least(coalesce((SELECT a.gid FROM pgherd.applied a ORDER BY a.gid DESC LIMIT 1), 0), v_checked),
            %2$L, %3$s, %4$s, %5$s
       FROM %6$s, pgherd.node s
      WHERE s.writable
        AND pg_catalog.current_setting(''transaction_isolation'') OPERATOR(pg_catalog.<>) ''serializable''%7$s;',
    side, tab, keys, pks, recs, source,
    CASE WHEN condition <> '' THEN format(' AND %s', condition) ELSE '' END
    || CASE WHEN counted <> '' THEN format(' AND NOT EXISTS (SELECT FROM %s OFFSET 1)', counted) ELSE '' END);

-- The same for many: `keys`, `pks`, `recs` are per source row, the last two arrays of equal length.
CREATE OR REPLACE FUNCTION pgherd.capture_many(
    side int, tab text, table_keys text, keys text, pks text, recs text, source text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN format(
    'INSERT INTO pgherd.capture_%1$s
     SELECT v_xid, r.chunk OPERATOR(pg_catalog.=) 0
                   AND coalesce((SELECT c.xid FROM pgherd.capture_%1$s c
                                  WHERE c.xid OPERATOR(pg_catalog.>=) v_xid ORDER BY c.xid LIMIT 1)
                                OPERATOR(pg_catalog.<>) v_xid, true), least(v_base, v_checked), %2$L,
            pg_catalog.concat_ws('','', %3$L,
                pg_catalog.string_agg(CASE WHEN u.i OPERATOR(pg_catalog.=) 1 THEN r.keys END, '','')),
            pg_catalog.array_agg(u.pk), pg_catalog.array_agg(u.rec)
       FROM (SELECT (pg_catalog.row_number() OVER () OPERATOR(pg_catalog.-) 1) OPERATOR(pg_catalog./) 1000 AS chunk,
                    %4$s AS keys, %5$s AS pks, %6$s AS recs FROM %7$s) r
      CROSS JOIN LATERAL ROWS FROM (pg_catalog.unnest(r.pks), pg_catalog.unnest(r.recs))
                         WITH ORDINALITY AS u(pk, rec, i)
      GROUP BY r.chunk;', side, tab, table_keys, keys, pks, recs, source);

-- A function that nobody may call. Its body is a quoted literal: the names in it are the user's, and one
-- that holds a dollar quote must not end it.
CREATE OR REPLACE FUNCTION pgherd.function_source(signature text, properties text, body text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN format(E'CREATE OR REPLACE FUNCTION %1$s %2$s AS %3$L;\nREVOKE ALL ON FUNCTION %1$s FROM PUBLIC;\n',
              signature, properties, body);

-- A trigger function: `one`, and where that captured nothing, why not: no row, a node that takes no writes,
-- or more rows than one, for which there is `many`. Whoever changed a row has an xid already.
-- `checked`: the rows may be parents.
DROP FUNCTION IF EXISTS pgherd.capture_function(text, text, text, text, text, text, text);
CREATE OR REPLACE FUNCTION pgherd.capture_function(
    fname text, settings text, counted text, one0 text, one1 text, many0 text, many1 text,
    checked bool DEFAULT false) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN pgherd.function_source(
    format('pgherd_gen.%I()', fname), 'RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER' || settings,
    format($f$
#variable_conflict use_variable
DECLARE
    v_xid  pg_catalog.xid8 := pg_catalog.pg_current_xact_id_if_assigned();
    v_base pg_catalog.int8;
    v_checked pg_catalog.int8%6$s;
BEGIN
    IF pgherd.capture_side(v_xid) OPERATOR(pg_catalog.=) 0 THEN
        %2$s
    ELSE
        %3$s
    END IF;
    IF FOUND THEN
        RETURN NULL;
    END IF;%1$s
    v_base := pgherd.check_capture();
    IF pgherd.capture_side(v_xid) OPERATOR(pg_catalog.=) 0 THEN
        %4$s
    ELSE
        %5$s
    END IF;
    RETURN NULL;
END $f$, CASE WHEN counted <> '' THEN format(E'\n    IF NOT EXISTS (SELECT FROM %s) THEN\n        RETURN NULL;\n    END IF;', counted)
           ELSE '' END,
      one0, one1, coalesce(many0, 'NULL;'), coalesce(many1, 'NULL;'),
      CASE WHEN checked THEN ' := pgherd.base_of_checks()' ELSE '' END));

-- What is captured of a row of UPDATE, one expression for each of four cases: the row is new under its key, or
-- gone; it kept its identity; or it did not (C10). `joined`: rows are paired by key, so that the first two occur.
CREATE OR REPLACE FUNCTION pgherd.by_change(
    root oid, joined bool, made text, gone text, kept text, replaced text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT format('CASE %sWHEN %s THEN %s ELSE %s END',
                  CASE WHEN joined THEN format('WHEN o.%1$s IS NOT DISTINCT FROM NULL THEN %2$s'
                                               ' WHEN n.%1$s IS NOT DISTINCT FROM NULL THEN %3$s ', c.col, made, gone)
                       ELSE '' END, pgherd.same_identity(root), kept, replaced)
      FROM pgherd.columns(root) c WHERE c.in_pk ORDER BY c.pos LIMIT 1;
END;

-- A parent's end is certified by what was there when its foreign keys were checked, not later: a child that is
-- applied between the check and the capture has not been seen by it. Their triggers are rows' and fire in the
-- order of names, ours of statements come last; so a row's trigger before them keeps the base. One for each depth
-- of triggers, because what cascades is captured in between. Whoever sets it by hand can only lose for it.
CREATE OR REPLACE FUNCTION pgherd.before_checks() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE kept text := 'pgherd.base_' || pg_trigger_depth();
BEGIN
    IF coalesce(current_setting(kept, true), '') = '' THEN
        PERFORM set_config(kept, pgherd.last_gid()::text, true);
    END IF;
    RETURN NULL;
END $$;

-- What was kept for the statement that is being captured; NULL if nothing was.
CREATE OR REPLACE FUNCTION pgherd.base_of_checks() RETURNS int8
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    kept text := 'pgherd.base_' || pg_trigger_depth();
    base int8 := nullif(current_setting(kept, true), '');
BEGIN
    IF base IS NOT NULL THEN
        PERFORM set_config(kept, '', true);
    END IF;
    RETURN base;
END $$;

-- Columns of a table, or of its partitions, that foreign keys refer to.
CREATE OR REPLACE FUNCTION pgherd.referenced(rel oid) RETURNS TABLE (relid oid, col text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT DISTINCT f.confrelid, quote_ident(a.attname)
      FROM pg_constraint f JOIN pg_attribute a ON a.attrelid = f.confrelid AND a.attnum = ANY (f.confkey)
     WHERE f.contype = 'f' AND (f.confrelid = rel
           OR f.confrelid IN (SELECT p.relid::oid FROM pg_partition_tree(rel::regclass) p));
END;

-- Their names sort before those of foreign keys, RI_ConstraintTrigger.
CREATE OR REPLACE FUNCTION pgherd.checks_source(rel oid) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT format(E'CREATE TRIGGER "Pgherd_delete" AFTER DELETE ON %1$s FOR EACH ROW'
                           ' EXECUTE FUNCTION pgherd.before_checks();\n'
                           'CREATE TRIGGER "Pgherd_update" AFTER UPDATE ON %1$s FOR EACH ROW WHEN (%2$s)'
                           ' EXECUTE FUNCTION pgherd.before_checks();\n', min(t.name),
                           string_agg(format('ROW(OLD.%1$s)::record OPERATOR(pg_catalog.*<>) ROW(NEW.%1$s)::record', r.col),
                                      ' OR ' ORDER BY r.col))
      FROM pgherd.user_tables t JOIN pgherd.referenced(rel) r USING (relid)
     WHERE t.relid = rel AND NOT t.partitioned
    HAVING count(*) > 0;
END;

-- Everything that a statement of one kind needs: its function and its trigger.
-- kind: INSERT, UPDATE or DELETE. A single row that UPDATE gave another identity goes the way of many.
CREATE OR REPLACE FUNCTION pgherd.capture_source(rel oid, root oid, kind text, by_row bool) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    tab        text := to_json((SELECT t.name FROM pgherd.user_tables t WHERE t.relid = root))::text;
    table_keys text := concat(pgherd.name_hash('schema'), ',', pgherd.name_hash('table ' || (tab::json #>> '{}')));
    pk         oid  := pgherd.primary_index(root);
    fname      text := format('%s_%s', lower(kind), rel);
    settings   text := pgherd.text_settings(root);
    k_ins      text := concat_ws(', ', pgherd.unique_keys(root, 'n', true), pgherd.parent_keys(root, 'n', false));
    k_del      text := pgherd.unique_keys(root, 'o', false);
    pk_old     text := pgherd.index_key(pk, 'o');
    pk_new     text := pgherd.index_key(pk, 'n');
    k_upd      text := concat_ws(', ', pk_new || ' OPERATOR(pg_catalog.|) 2', pgherd.parent_keys(root, 'n', true));
    ins_rec    text := format('pg_catalog.concat(''I'', %s)', pgherd.record_full(root, 'n'));
    del_rec    text := format('pg_catalog.concat(''D'', %s)', pgherd.record_key(root, 'o'));
    upd_rec    text := pgherd.record_changes(root);
    o          text := CASE WHEN by_row THEN '(SELECT OLD.*) o' ELSE 'old_rows o' END;
    n          text := CASE WHEN by_row THEN '(SELECT NEW.*) n' ELSE 'new_rows n' END;
    counted    text := CASE WHEN by_row THEN '' WHEN kind = 'DELETE' THEN 'old_rows' ELSE 'new_rows' END;
    ws         text := 'pg_catalog.concat_ws('','', %s)';
    -- certification keys, hashes of the primary key, records, rows: of one row, and of many
    one        text[];
    many       text[];
    condition  text := '';
BEGIN
    IF kind = 'INSERT' THEN
        one := ARRAY[k_ins, format('ARRAY[%s]', pk_new), format('ARRAY[%s]', ins_rec), n];
    ELSIF kind = 'DELETE' THEN
        one := ARRAY[k_del, format('ARRAY[%s]', pk_old), format('ARRAY[%s]', del_rec), o];
    ELSE
        SELECT array_agg(pgherd.by_change(root, NOT by_row, p.made, p.gone, p.kept, p.replaced) ORDER BY p.i)
          INTO many
          FROM (VALUES (1, format(ws, k_ins), format(ws, k_del), format(ws, k_upd), format(ws, k_del || ', ' || k_ins)),
                       (2, format('ARRAY[%s]', pk_new), format('ARRAY[%s]', pk_old), format('ARRAY[%s]', pk_new),
                           format('ARRAY[%s, %s]', pk_old, pk_new)),
                       (3, format('ARRAY[%s]', ins_rec), format('ARRAY[%s]', del_rec), format('ARRAY[%s]', upd_rec),
                           format('ARRAY[%s, %s]', del_rec, ins_rec))) AS p(i, made, gone, kept, replaced);
        IF by_row THEN
            one := many || (o || ', ' || n);
        ELSE
            one := ARRAY[k_upd, format('ARRAY[%s]', pk_new), format('ARRAY[%s]', upd_rec), o || ', ' || n];
            -- Paired by key: what is new under a key is that key's final state, whichever row it was before.
            many := many || format('old_rows o FULL JOIN new_rows n ON (%s)', pgherd.key_equal(root));
            condition := pgherd.same_identity(root);
        END IF;
    END IF;
    many := coalesce(many, one);
    one[1] := format('pg_catalog.concat_ws('','', %L, %s)', table_keys, one[1]);
    many[1] := format(ws, many[1]);
    RETURN pgherd.capture_function(
               fname, settings, counted,
               pgherd.capture_one(0, tab, one[1], one[2], one[3], one[4], counted, condition),
               pgherd.capture_one(1, tab, one[1], one[2], one[3], one[4], counted, condition),
               CASE WHEN NOT by_row
                    THEN pgherd.capture_many(0, tab, table_keys, many[1], many[2], many[3], many[4]) END,
               CASE WHEN NOT by_row
                    THEN pgherd.capture_many(1, tab, table_keys, many[1], many[2], many[3], many[4]) END,
               kind <> 'INSERT' AND EXISTS (SELECT FROM pgherd.referenced(rel)))
        || pgherd.trigger_source(rel, kind, by_row, fname);
END $$;

CREATE OR REPLACE FUNCTION pgherd.trigger_source(rel oid, kind text, by_row bool, fname text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT format(E'CREATE TRIGGER pgherd_%s AFTER %s ON %s%s FOR EACH %s EXECUTE FUNCTION pgherd_gen.%I();\n',
                  lower(kind), kind, t.name,
                  CASE WHEN by_row THEN ''
                       ELSE ' REFERENCING' || CASE WHEN kind <> 'INSERT' THEN ' OLD TABLE AS old_rows' ELSE '' END
                                           || CASE WHEN kind <> 'DELETE' THEN ' NEW TABLE AS new_rows' ELSE '' END END,
                  CASE WHEN by_row THEN 'ROW' ELSE 'STATEMENT' END, fname)
      FROM pgherd.user_tables t WHERE t.relid = rel;
END;

-- o.key = n.key with the operators of the primary key's own index.
CREATE OR REPLACE FUNCTION pgherd.key_equal(root oid) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT string_agg(format('o.%1$I OPERATOR(%2$I.%3$s) n.%1$I', a.attname, n.nspname, p.oprname), ' AND '
                      ORDER BY k.pos)
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
        restart := format(E'CREATE TRIGGER pgherd_truncate_restart AFTER TRUNCATE ON %s FOR EACH STATEMENT'
                          ' EXECUTE FUNCTION pgherd.capture_restart();\n', t.name);
    END IF;
    IF t.partitioned THEN
        RETURN restart;
    END IF;
    RETURN pgherd.capture_function(fname, '', '',
               pgherd.capture_one(0, to_json(t.name)::text, quote_literal(keys),
                                  'ARRAY[0]::pg_catalog.int8[]', 'ARRAY[''T'']', '(VALUES (0)) v', '', ''),
               pgherd.capture_one(1, to_json(t.name)::text, quote_literal(keys),
                                  'ARRAY[0]::pg_catalog.int8[]', 'ARRAY[''T'']', '(VALUES (0)) v', '', ''),
               NULL, NULL)
        || format(E'CREATE TRIGGER pgherd_truncate AFTER TRUNCATE ON %s FOR EACH STATEMENT'
                  ' EXECUTE FUNCTION pgherd_gen.%I();\n', t.name, fname)
        || restart;
END $$;

-- A table that cannot be replicated says so on the first write.
CREATE OR REPLACE FUNCTION pgherd.refuse_without_key() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE tab text := format('%I.%I', TG_TABLE_SCHEMA, TG_TABLE_NAME);
BEGIN
    RAISE EXCEPTION 'table % has no primary key and cannot be replicated', tab
        USING ERRCODE = '0A000',
              HINT = format('Add one (ALTER TABLE %s ADD PRIMARY KEY ...),'
                            ' or keep the table local: SELECT pgherd.set_local(%L).', tab, tab);
END $$;

CREATE OR REPLACE FUNCTION pgherd.refusal_source(rel oid, by_row bool) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT format(E'CREATE TRIGGER pgherd_refuse BEFORE INSERT OR UPDATE OR DELETE%s ON %s FOR EACH %s'
                  ' EXECUTE FUNCTION pgherd.refuse_without_key();\n',
                  CASE WHEN by_row THEN '' ELSE ' OR TRUNCATE' END, t.name,
                  CASE WHEN by_row THEN 'ROW' ELSE 'STATEMENT' END)
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
        || coalesce(pgherd.checks_source(rel), '')
        || CASE WHEN rel = root THEN pgherd.row_type_source(root) || pgherd.final_source(root)
                                     || pgherd.fingerprint_source(root) ELSE '' END;
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
        FOR trig IN SELECT t.tgname FROM pg_trigger t WHERE t.tgrelid = r.relid AND t.tgname ILIKE E'pgherd\\_%' LOOP
            EXECUTE format('DROP TRIGGER %I ON %s', trig, r.name);
        END LOOP;
        IF source <> '' THEN
            EXECUTE source;
        END IF;
        INSERT INTO pgherd.generated VALUES (r.relid, md5(source))
            ON CONFLICT (relid) DO UPDATE SET fingerprint = EXCLUDED.fingerprint;
    END LOOP;
    FOR r IN DELETE FROM pgherd.generated g
              WHERE NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = g.relid) RETURNING g.relid LOOP
        PERFORM pgherd.drop_generated(r.relid);
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION pgherd.drop_generated(rel oid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET client_min_messages = warning AS $$
DECLARE f regprocedure;
BEGIN
    FOR f IN SELECT p.oid FROM pg_proc p
              WHERE p.pronamespace = 'pgherd_gen'::regnamespace
                AND p.proname IN ('insert_' || rel, 'update_' || rel, 'delete_' || rel, 'truncate_' || rel,
                                  'final_' || rel, 'fingerprint_' || rel) LOOP
        EXECUTE format('DROP FUNCTION %s', f);
    END LOOP;
    EXECUTE format('DROP TYPE IF EXISTS pgherd_gen.row_%s', rel);
END $$;

-- What the applier must know of a table to write it, by its name as it stands in writesets: see TableShape.
-- It should take no lock that a session may hold which waits for the answer; if it does, it gives up.
CREATE OR REPLACE FUNCTION pgherd.describe(
    tab text, OUT columns text[], OUT pk int[], OUT generated int[], OUT same_key text, OUT "only" bool,
    OUT row_type text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s'
BEGIN ATOMIC
    SELECT array_agg(c.col ORDER BY c.pos),
           array_agg(c.pos - 1 ORDER BY c.pos) FILTER (WHERE c.in_pk),
           coalesce(array_agg(c.pos - 1 ORDER BY c.pos) FILTER (WHERE c.generated), '{}'),
           pgherd.key_equal(tab::regclass),
           (SELECT u.inherits FROM pgherd.user_tables u WHERE u.relid = tab::regclass),
           pgherd.row_type(tab::regclass)
      FROM pgherd.columns(tab::regclass) c;
END;
