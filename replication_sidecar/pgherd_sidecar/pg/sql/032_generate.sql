-- Generates the capture functions and triggers of one table: static SQL with the table's own columns, so
-- that a captured row costs one planned statement and no dynamic SQL.
--
-- For each kind of statement two forms: one row (no join, no aggregate: the common case), and a set of
-- rows in chunks of 1,000. Tables in a (non-partitioned) inheritance tree are captured row by row,
-- because a statement trigger of the parent does not tell which child a row belongs to.

-- The number of the next row of the transaction `v_xid`. The smallest xid from ours on is asked for, because only
-- that makes the planner use the index whatever it believes of a table that is empty now and then.
CREATE OR REPLACE FUNCTION pgherd.next_seq(side int) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN format(
    'GREATEST((SELECT CASE WHEN c.xid OPERATOR(pg_catalog.=) v_xid THEN c.seq END FROM pgherd.capture_%s c
                WHERE c.xid OPERATOR(pg_catalog.>=) v_xid ORDER BY c.xid, c.seq DESC LIMIT 1), 0)
     OPERATOR(pg_catalog.+) 1', side);

-- INSERT INTO capture ... for one row or one pair of rows. Checks and values in one statement, because every
-- executor start counts: nothing is inserted if the node takes no writes, `counted` holds more rows, or
-- `condition` is false. `checked`: the base of the foreign keys' checks, where the row may be a parent's.
DROP FUNCTION IF EXISTS pgherd.capture_one(int, text, text, text, text, text, text, text);
CREATE OR REPLACE FUNCTION pgherd.capture_one(
    side int, tab text, keys text, pks text, recs text, source text, counted text, condition text, checked text)
RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN format(
    'INSERT INTO pgherd.capture_%1$s
     SELECT v_xid, %8$s, %9$s,
            %2$L, %3$s, %4$s, %5$s
       FROM %6$s, pgherd.node s
      WHERE s.writable
        AND pg_catalog.current_setting(''transaction_isolation'') OPERATOR(pg_catalog.<>) ''serializable''%7$s;',
    side, tab, keys, pks, recs, source,
    CASE WHEN condition <> '' THEN format(' AND %s', condition) ELSE '' END
    || CASE WHEN counted <> '' THEN format(' AND NOT EXISTS (SELECT FROM %s OFFSET 1)', counted) ELSE '' END,
    pgherd.next_seq(side),
    format(CASE WHEN checked <> '' THEN 'LEAST(%s, %s)' ELSE '%s' END,
           'coalesce((SELECT a.gid FROM pgherd.applied a ORDER BY a.gid DESC LIMIT 1), 0)', checked));

-- The same for many: `keys`, `pks`, `recs` are per source row; so is `ended`: something that a foreign key may refer to
-- has gone. `arrays`: the last two are arrays of equal length, since a row of UPDATE may be two rows here. To take them
-- apart costs as much as all the rest, so it is not done for the others. Rows are counted when they are records already:
-- an old and a new row side by side may have more columns than PostgreSQL can keep.
DROP FUNCTION IF EXISTS pgherd.capture_many(int, text, text, text, text, text, text);
DROP FUNCTION IF EXISTS pgherd.capture_many(int, text, text, text, text, text, text, text);
CREATE OR REPLACE FUNCTION pgherd.capture_many(
    side int, tab text, table_keys text, keys text, pks text, recs text, source text, ended text, arrays bool) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN format(
    'INSERT INTO pgherd.capture_%1$s
     SELECT v_xid, %8$s OPERATOR(pg_catalog.+) r.chunk, %9$s, %2$L,
            pg_catalog.concat_ws('','', %3$L, pg_catalog.string_agg(%11$s, '','')),
            pg_catalog.array_agg(%12$s), pg_catalog.array_agg(%13$s)
       FROM (SELECT (pg_catalog.row_number() OVER () OPERATOR(pg_catalog.-) 1) OPERATOR(pg_catalog./) 1000 AS chunk, w.*
               FROM (SELECT %4$s AS keys, %5$s AS pk, %6$s AS rec%10$s FROM %7$s OFFSET 0) w) r%14$s
      GROUP BY r.chunk;', side, tab, table_keys, keys, pks, recs, source, pgherd.next_seq(side),
    CASE WHEN ended <> '' THEN 'CASE WHEN pg_catalog.bool_or(r.ended) THEN LEAST(v_base, v_checked) ELSE v_base END'
         ELSE 'v_base' END,
    CASE WHEN ended <> '' THEN format(', %s AS ended', ended) ELSE '' END,
    CASE WHEN arrays THEN 'CASE WHEN u.i OPERATOR(pg_catalog.=) 1 THEN r.keys END' ELSE 'r.keys' END,
    CASE WHEN arrays THEN 'u.pk' ELSE 'r.pk' END,
    CASE WHEN arrays THEN 'u.rec' ELSE 'r.rec' END,
    CASE WHEN arrays THEN '
      CROSS JOIN LATERAL ROWS FROM (pg_catalog.unnest(r.pk), pg_catalog.unnest(r.rec)) WITH ORDINALITY AS u(pk, rec, i)'
         ELSE '' END);

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
    v_checked pg_catalog.int8;
BEGIN
    IF pgherd.capture_side(v_xid) OPERATOR(pg_catalog.=) 0 THEN
        %2$s
    ELSE
        %3$s
    END IF;
    IF FOUND THEN
        RETURN NULL;
    END IF;%1$s
    v_base := pgherd.check_capture();%6$s
    IF pgherd.capture_side(v_xid) OPERATOR(pg_catalog.=) 0 THEN
        %4$s
    ELSE
        %5$s
    END IF;
    RETURN NULL;
END $f$, CASE WHEN counted <> '' THEN format(E'\n    IF NOT EXISTS (SELECT FROM %s) THEN\n        RETURN NULL;\n    END IF;', counted)
           ELSE '' END,
      one0, one1, coalesce(many0, 'NULL;'), coalesce(many1, 'NULL;'),
      CASE WHEN checked THEN E'\n    v_checked := pgherd.base_of_checks(v_xid);' ELSE '' END));

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
-- order of names, ours of statements come last; so a row's trigger before them keeps the base, among the captured
-- rows, where no user can touch it. It is kept for all that one message of the client does, whatever is nested
-- in it: an older base costs conflicts, a younger one would miss them. Its number is below those of captured rows and
-- of bases kept before, so that the first in the index tells.
CREATE OR REPLACE FUNCTION pgherd.before_checks() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    x    xid8 := pg_current_xact_id();
    at   int8 := extract(epoch FROM statement_timestamp()) * -1000000;
    side int  := pgherd.capture_side(x);
BEGIN
    IF side = 0 AND (SELECT c.xid = x AND c.seq <= at FROM pgherd.capture_0 c
                      WHERE c.xid <= x ORDER BY c.xid DESC, c.seq LIMIT 1) IS NOT TRUE THEN
        INSERT INTO pgherd.capture_0 VALUES (x, at, pgherd.last_gid(), 'sentinel', 'checks', '{0}', '{}');
    ELSIF side = 1 AND (SELECT c.xid = x AND c.seq <= at FROM pgherd.capture_1 c
                         WHERE c.xid <= x ORDER BY c.xid DESC, c.seq LIMIT 1) IS NOT TRUE THEN
        INSERT INTO pgherd.capture_1 VALUES (x, at, pgherd.last_gid(), 'sentinel', 'checks', '{0}', '{}');
    END IF;
    RETURN NULL;
END $$;

-- What was kept for the message that is being executed. Without it the transaction can only lose.
DROP FUNCTION IF EXISTS pgherd.base_of_checks();
CREATE OR REPLACE FUNCTION pgherd.base_of_checks(x xid8) RETURNS int8
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    at   int8 := extract(epoch FROM statement_timestamp()) * -1000000;
    kept record;
BEGIN
    IF pgherd.capture_side(x) = 0 THEN
        SELECT c.xid, c.seq, c.base INTO kept FROM pgherd.capture_0 c WHERE c.xid <= x ORDER BY c.xid DESC, c.seq LIMIT 1;
    ELSE
        SELECT c.xid, c.seq, c.base INTO kept FROM pgherd.capture_1 c WHERE c.xid <= x ORDER BY c.xid DESC, c.seq LIMIT 1;
    END IF;
    RETURN CASE WHEN kept.xid = x AND kept.seq <= at THEN kept.base ELSE 0 END;
END $$;

-- Does a foreign key refer to the table, or to one of its partitions?
CREATE OR REPLACE FUNCTION pgherd.is_referenced(root oid) RETURNS bool
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
RETURN EXISTS (SELECT FROM pg_constraint f
                WHERE f.contype = 'f' AND f.confrelid IN (SELECT p.relid FROM pgherd.partitions(root) p));

-- Their names sort before those of foreign keys, RI_ConstraintTrigger. They fire for each row of which the capture
-- asks for the base: that is gone, or has another identity.
DROP FUNCTION IF EXISTS pgherd.checks_source(oid);
DROP FUNCTION IF EXISTS pgherd.referenced(oid);
CREATE OR REPLACE FUNCTION pgherd.checks_triggers(rel oid, root oid) RETURNS TABLE (name text, source text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH k AS (
        SELECT t.name, string_agg('OLD.' || c.col, ', ' ORDER BY c.pos) AS old,
               string_agg('NEW.' || c.col, ', ' ORDER BY c.pos) AS new
          FROM pgherd.user_tables t CROSS JOIN pgherd.columns(root) c
         WHERE t.relid = rel AND NOT t.partitioned AND (c.in_pk OR c.in_unique) AND pgherd.is_referenced(root)
         GROUP BY t.name
    )
    SELECT 'Pgherd_delete', format('CREATE TRIGGER "Pgherd_delete" AFTER DELETE ON %s FOR EACH ROW'
                                   ' EXECUTE FUNCTION pgherd.before_checks()', k.name) FROM k
    UNION ALL
    SELECT 'Pgherd_update', format('CREATE TRIGGER "Pgherd_update" AFTER UPDATE ON %s FOR EACH ROW%s'
                                   ' EXECUTE FUNCTION pgherd.before_checks()', k.name,
                                   -- without identity an updated row is a row that is gone, and one that is new
                                   CASE WHEN pgherd.identity_index(root) IS NULL THEN ''
                                        ELSE format(' WHEN (ROW(%s)::record OPERATOR(pg_catalog.*<>) ROW(%s)::record)',
                                                    k.old, k.new) END) FROM k;
END;

-- All tables that are tied to this one by inheritance or partitioning, this one with them.
CREATE OR REPLACE FUNCTION pgherd.family(rel oid) RETURNS oid[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH RECURSIVE tree(relid) AS (
        SELECT rel
        UNION
        SELECT CASE WHEN i.inhrelid = t.relid THEN i.inhparent ELSE i.inhrelid END
          FROM tree t JOIN pg_inherits i ON t.relid IN (i.inhrelid, i.inhparent))
    SELECT array_agg(t.relid) FROM tree t;
END;

-- Where the user has triggers that fire after a statement, two of ours tell whether all that a statement changed
-- has been captured: one before each statement, one behind our captures (see 047_open_points.sql).
CREATE OR REPLACE FUNCTION pgherd.statement_triggers(rel oid) RETURNS TABLE (name text, source text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT m.name, format('CREATE TRIGGER %s %s INSERT OR UPDATE OR DELETE OR TRUNCATE ON %s FOR EACH STATEMENT'
                          ' EXECUTE FUNCTION pgherd.mark_statement(%L)', m.name, m.moment, t.name, m.mark)
      FROM pgherd.user_tables t
     CROSS JOIN (VALUES ('pgherd_a', 'BEFORE', 'opened'), ('pgherd_z', 'AFTER', 'closed')) AS m(name, moment, mark)
     WHERE t.relid = rel
       AND EXISTS (SELECT FROM pg_trigger u JOIN pg_proc p ON p.oid = u.tgfoid
                    WHERE u.tgrelid = ANY (pgherd.family(rel)) AND NOT u.tgisinternal
                      AND u.tgtype & 67 = 0 -- neither of rows, nor BEFORE, nor INSTEAD OF
                      AND p.pronamespace NOT IN ('pgherd'::regnamespace, 'pgherd_gen'::regnamespace));
END;

CREATE OR REPLACE FUNCTION pgherd.mark_statement() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgherd.put(pg_current_xact_id(), TG_RELID::int8, 'sentinel', TG_ARGV[0], '{0}', '{}');
    RETURN NULL;
END $$;

-- The trigger function for statements of one kind.
-- kind: INSERT, UPDATE or DELETE. A single row that UPDATE gave another identity goes the way of many.
CREATE OR REPLACE FUNCTION pgherd.capture_source(rel oid, root oid, kind text, by_row bool) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    tab        text := to_json((SELECT t.name FROM pgherd.user_tables t WHERE t.relid = root))::text;
    table_keys text := concat(pgherd.name_hash('schema'), ',', pgherd.name_hash('table ' || (tab::json #>> '{}')));
    pk         oid  := pgherd.identity_index(root);
    fname      text := format('%s_%s', lower(kind), rel);
    settings   text := pgherd.text_settings(root);
    -- of the new row and of the old one: certification keys, the hash of the primary key, the record
    k_ins      text := CASE WHEN kind <> 'DELETE' THEN
                           concat_ws(', ', pgherd.unique_keys(root, 'n', true), pgherd.parent_keys(root, 'n', false)) END;
    pk_new     text := CASE WHEN kind <> 'DELETE' THEN pgherd.index_key(pk, 'n') END;
    ins_rec    text := CASE WHEN kind <> 'DELETE' THEN format('pg_catalog.concat(''I'', %s)', pgherd.record_full(root, 'n')) END;
    k_del      text := CASE WHEN kind <> 'INSERT' THEN pgherd.unique_keys(root, 'o', false) END;
    pk_old     text := CASE WHEN kind <> 'INSERT' THEN pgherd.index_key(pk, 'o') END;
    del_rec    text := CASE WHEN kind <> 'INSERT' THEN format('pg_catalog.concat(''D'', %s)', pgherd.record_key(root, 'o')) END;
    -- of a row that keeps its identity
    k_upd      text := CASE WHEN kind = 'UPDATE' THEN
                           concat_ws(', ', pk_new || ' OPERATOR(pg_catalog.|) 2', pgherd.parent_keys(root, 'n', true)) END;
    upd_rec    text := CASE WHEN kind = 'UPDATE' THEN pgherd.record_changes(root) END;
    o          text := CASE WHEN by_row THEN '(SELECT OLD.*) o' ELSE 'old_rows o' END;
    n          text := CASE WHEN by_row THEN '(SELECT NEW.*) n' ELSE 'new_rows n' END;
    counted    text := CASE WHEN by_row THEN '' WHEN kind = 'DELETE' THEN 'old_rows' ELSE 'new_rows' END;
    ws         text := 'pg_catalog.concat_ws('','', %s)';
    -- certification keys, hashes of the primary key, records, rows: of one row, and of many
    one        text[];
    many       text[];
    condition  text := '';
    referenced bool := kind <> 'INSERT' AND pgherd.is_referenced(root);
    -- the base of the checks: of one row, and which of many rows ask for it
    checked    text := CASE WHEN referenced THEN 'pgherd.base_of_checks(v_xid)' ELSE '' END;
    ended      text := CASE WHEN referenced THEN 'true' ELSE '' END;
BEGIN
    IF kind = 'INSERT' THEN
        one := ARRAY[k_ins, format('ARRAY[%s]', pk_new), format('ARRAY[%s]', ins_rec), n];
        many := ARRAY[k_ins, pk_new, ins_rec, n];
    ELSIF kind = 'DELETE' THEN
        one := ARRAY[k_del, format('ARRAY[%s]', pk_old), format('ARRAY[%s]', del_rec), o];
        many := ARRAY[k_del, pk_old, del_rec, o];
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
            IF referenced THEN
                checked := format('CASE WHEN NOT (%s) THEN %s END', pgherd.same_identity(root), checked);
            END IF;
        ELSE
            checked := ''; -- it keeps its identity
            IF referenced THEN
                ended := pgherd.by_change(root, true, 'true', 'true', 'false', 'true');
            END IF;
            one := ARRAY[k_upd, format('ARRAY[%s]', pk_new), format('ARRAY[%s]', upd_rec), o || ', ' || n];
            -- Paired by key: what is new under a key is that key's final state, whichever row it was before.
            many := many || format('old_rows o FULL JOIN new_rows n ON (%s)', pgherd.key_equal(root));
            condition := pgherd.same_identity(root);
        END IF;
    END IF;
    one[1] := format('pg_catalog.concat_ws('','', %L, %s)', table_keys, one[1]);
    many[1] := format(ws, many[1]);
    RETURN pgherd.capture_function(
               fname, settings, counted,
               pgherd.capture_one(0, tab, one[1], one[2], one[3], one[4], counted, condition, checked),
               pgherd.capture_one(1, tab, one[1], one[2], one[3], one[4], counted, condition, checked),
               CASE WHEN NOT by_row
                    THEN pgherd.capture_many(0, tab, table_keys, many[1], many[2], many[3], many[4], ended, kind = 'UPDATE') END,
               CASE WHEN NOT by_row
                    THEN pgherd.capture_many(1, tab, table_keys, many[1], many[2], many[3], many[4], ended, kind = 'UPDATE') END,
               referenced AND NOT by_row);
END $$;

-- The old and the new rows of an UPDATE come in the same order. Should they not, nothing could be captured.
CREATE OR REPLACE FUNCTION pgherd.unpaired() RETURNS text[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'an UPDATE has not as many new rows as old ones' USING ERRCODE = 'internal_error';
END $$;

-- What sets a row without identity to another image, in the FROM clause m.r; NULL where PostgreSQL lets nobody do that.
CREATE OR REPLACE FUNCTION pgherd.replaced_columns(root oid) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT string_agg(format('%1$s = (m.r).%1$s', quote_ident(a.attname)), ', ' ORDER BY a.attnum)
      FROM pg_attribute a
     WHERE a.attrelid = root AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' AND a.attidentity <> 'a';
END;

-- The rows of an UPDATE in pairs, as o and n, by their place `pair` among the others.
CREATE OR REPLACE FUNCTION pgherd.update_pairs(root oid, pair text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH c AS (SELECT string_agg('x.' || c.col, ', ' ORDER BY c.pos) AS cols FROM pgherd.columns(root) c)
    SELECT format('(SELECT pg_catalog.row_number() OVER () AS %1$s, %2$s FROM old_rows x) o FULL JOIN'
                  ' (SELECT pg_catalog.row_number() OVER () AS %1$s, %2$s FROM new_rows x) n'
                  ' ON (o.%1$s OPERATOR(pg_catalog.=) n.%1$s)', pair, c.cols) FROM c;
END;

-- The same for a table whose rows have no identity. Who takes a row away excludes the others who take one with the
-- same image. Rows that are only added exclude nobody: of equal rows as many are there in the end, in whatever order
-- they come. An updated row comes as two records: what it was, and what it has become. It is updated in place
-- elsewhere, too, so that who waits for its lock at READ COMMITTED finds the new version, and not that it has gone;
-- unless a column of a unique index has changed (C10).
CREATE OR REPLACE FUNCTION pgherd.capture_image_source(rel oid, root oid, kind text, by_row bool) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    tab        text := to_json((SELECT t.name FROM pgherd.user_tables t WHERE t.relid = root))::text;
    table_keys text := concat(pgherd.name_hash('schema'), ',', pgherd.name_hash('table ' || (tab::json #>> '{}')));
    -- computed once, though it is used twice
    o_image    text := format(' CROSS JOIN LATERAL (SELECT %s AS image OFFSET 0) oi', pgherd.record_full(root, 'o', false));
    n_image    text := format(' CROSS JOIN LATERAL (SELECT %s AS image OFFSET 0) ni', pgherd.record_full(root, 'n'));
    o          text := CASE WHEN by_row THEN '(SELECT OLD.*) o' ELSE 'old_rows o' END;
    n          text := CASE WHEN by_row THEN '(SELECT NEW.*) n' ELSE 'new_rows n' END;
    pair       text := (SELECT rpad('pgherd_pair', greatest(11, max(length(a.attname)) + 1), '_')
                          FROM pg_attribute a WHERE a.attrelid = root AND a.attname ~ '^pgherd_pair');
    counted    text := CASE WHEN by_row THEN '' WHEN kind = 'DELETE' THEN 'old_rows' ELSE 'new_rows' END;
    referenced bool := kind <> 'INSERT' AND pgherd.is_referenced(root);
    gone_keys  text := concat_ws(', ', pgherd.unique_arguments(root, 'o', false),
                                 pgherd.image_key(root, 'oi.image') || ' OPERATOR(pg_catalog.|) 3');
    made_keys  text := coalesce(nullif(concat_ws(', ', pgherd.unique_arguments(root, 'n', true),
                                                 pgherd.parent_keys(root, 'n', false)), ''), 'NULL');
    gone_pk    text := pgherd.image_key(root, 'oi.image');
    made_pk    text := pgherd.image_key(root, 'ni.image');
    become     text := CASE WHEN pgherd.replaced_columns(root) IS NULL THEN '''D'''
                            ELSE format('CASE WHEN %s THEN ''R'' ELSE ''D'' END', pgherd.same_identity(root)) END;
    -- certification keys, hashes of the images, records, rows
    one        text[];
    many       text[];
BEGIN
    one := CASE kind
        WHEN 'INSERT' THEN ARRAY[made_keys, format('ARRAY[%s]', made_pk),
                                 'ARRAY[pg_catalog.concat(''I'', ni.image)]', n || n_image]
        WHEN 'DELETE' THEN ARRAY[gone_keys, format('ARRAY[%s]', gone_pk),
                                 'ARRAY[pg_catalog.concat(''D'', oi.image)]', o || o_image]
        ELSE ARRAY[concat_ws(', ', gone_keys, made_keys), format('ARRAY[%s, %s]', gone_pk, made_pk),
                   format('ARRAY[pg_catalog.concat(%s, oi.image), pg_catalog.concat(''I'', ni.image)]', become),
                   concat(o, o_image, ' CROSS JOIN ', n, n_image)] END;
    many := CASE kind
        WHEN 'INSERT' THEN ARRAY[made_keys, made_pk, 'pg_catalog.concat(''I'', ni.image)', n || n_image]
        WHEN 'DELETE' THEN ARRAY[gone_keys, gone_pk, 'pg_catalog.concat(''D'', oi.image)', o || o_image]
        ELSE ARRAY[one[1], one[2],
                   format('CASE WHEN o.%1$s IS NOT DISTINCT FROM NULL OR n.%1$s IS NOT DISTINCT FROM NULL'
                          ' THEN pgherd.unpaired() ELSE %2$s END', coalesce(pair, 'pgherd_pair'), one[3]),
                   concat(pgherd.update_pairs(root, coalesce(pair, 'pgherd_pair')), o_image, n_image)] END;
    one[1] := format('pg_catalog.concat_ws('','', %L, %s)', table_keys, one[1]);
    -- a statement of many rows may have none of these keys
    many[1] := format(CASE WHEN made_keys = 'NULL' AND kind = 'INSERT' THEN 'NULL'
                           WHEN kind = 'INSERT' THEN 'CASE WHEN pg_catalog.concat_ws('','', %1$s) OPERATOR(pg_catalog.<>)'
                                                     ' '''' THEN pg_catalog.concat_ws('','', %1$s) END'
                           ELSE 'pg_catalog.concat_ws('','', %s)' END, many[1]);
    RETURN pgherd.capture_function(
               format('%s_%s', lower(kind), rel), pgherd.text_settings(root), counted,
               pgherd.capture_one(0, tab, one[1], one[2], one[3], one[4], counted, '',
                                  CASE WHEN referenced THEN 'pgherd.base_of_checks(v_xid)' ELSE '' END),
               pgherd.capture_one(1, tab, one[1], one[2], one[3], one[4], counted, '',
                                  CASE WHEN referenced THEN 'pgherd.base_of_checks(v_xid)' ELSE '' END),
               CASE WHEN NOT by_row
                    THEN pgherd.capture_many(0, tab, table_keys, many[1], many[2], many[3], many[4],
                                             CASE WHEN referenced THEN 'true' ELSE '' END, kind = 'UPDATE') END,
               CASE WHEN NOT by_row
                    THEN pgherd.capture_many(1, tab, table_keys, many[1], many[2], many[3], many[4],
                                             CASE WHEN referenced THEN 'true' ELSE '' END, kind = 'UPDATE') END,
               referenced AND NOT by_row);
END $$;

DROP FUNCTION IF EXISTS pgherd.trigger_source(oid, text, bool, text);
CREATE OR REPLACE FUNCTION pgherd.capture_trigger(rel oid, kind text, by_row bool) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN (
        SELECT format('CREATE TRIGGER pgherd_%1$s AFTER %2$s ON %3$s%4$s FOR EACH %5$s EXECUTE FUNCTION pgherd_gen.%1$s_%6$s()',
                      lower(kind), kind, t.name,
                      CASE WHEN by_row THEN ''
                           ELSE ' REFERENCING' || CASE WHEN kind <> 'INSERT' THEN ' OLD TABLE AS old_rows' ELSE '' END
                                               || CASE WHEN kind <> 'DELETE' THEN ' NEW TABLE AS new_rows' ELSE '' END END,
                      CASE WHEN by_row THEN 'ROW' ELSE 'STATEMENT' END, rel)
          FROM pgherd.user_tables t WHERE t.relid = rel);
END $$;

-- o.key = n.key with the operators of the identity's own index; NULL where there is none.
CREATE OR REPLACE FUNCTION pgherd.key_equal(root oid) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT string_agg(format(CASE WHEN pgherd.base_type(a.atttypid) = a.atttypid THEN 'o.%1$I OPERATOR(%2$I.%3$s) n.%1$I'
                                  -- "=" of enums, arrays or ranges wants one type on both sides
                                  ELSE '(o.%1$I)::%4$s OPERATOR(%2$I.%3$s) (n.%1$I)::%4$s' END,
                             a.attname, n.nspname, p.oprname, pgherd.type_name(pgherd.base_type(a.atttypid))), ' AND '
                      ORDER BY k.pos)
      FROM pgherd.index_columns(pgherd.identity_index(root), 'n') k
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
BEGIN
    SELECT * INTO t FROM pgherd.user_tables u WHERE u.relid = rel;
    IF t.partitioned THEN
        RETURN '';
    END IF;
    RETURN pgherd.capture_function('truncate_' || rel, '', '',
               pgherd.capture_one(0, to_json(t.name)::text, quote_literal(keys),
                                  'ARRAY[0]::pg_catalog.int8[]', 'ARRAY[''T'']', '(VALUES (0)) v', '', '', ''),
               pgherd.capture_one(1, to_json(t.name)::text, quote_literal(keys),
                                  'ARRAY[0]::pg_catalog.int8[]', 'ARRAY[''T'']', '(VALUES (0)) v', '', '', ''),
               NULL, NULL);
END $$;

CREATE OR REPLACE FUNCTION pgherd.truncate_triggers(rel oid) RETURNS TABLE (name text, source text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY
    SELECT 'pgherd_truncate', format('CREATE TRIGGER pgherd_truncate AFTER TRUNCATE ON %s FOR EACH STATEMENT'
                                     ' EXECUTE FUNCTION pgherd_gen.truncate_%s()', t.name, rel)
      FROM pgherd.user_tables t WHERE t.relid = rel AND NOT t.partitioned
    UNION ALL
    SELECT 'pgherd_truncate_before', format('CREATE TRIGGER pgherd_truncate_before BEFORE TRUNCATE ON %s'
                                            ' FOR EACH STATEMENT EXECUTE FUNCTION pgherd.close_old_cursor()', t.name)
      FROM pgherd.user_tables t WHERE t.relid = rel AND NOT t.partitioned
    UNION ALL
    SELECT 'pgherd_truncate_restart',
           format('CREATE TRIGGER pgherd_truncate_restart AFTER TRUNCATE ON %s FOR EACH STATEMENT'
                  ' EXECUTE FUNCTION pgherd.capture_restart()', t.name)
      FROM pgherd.user_tables t
     WHERE t.relid = rel AND EXISTS (SELECT FROM pgherd.user_sequences s WHERE s.owner = rel);
END $$;

-- A table that cannot be replicated says so on the first write.
CREATE OR REPLACE FUNCTION pgherd.refuse_without_key() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE tab text := format('%I.%I', TG_TABLE_SCHEMA, TG_TABLE_NAME);
BEGIN
    IF TG_NARGS > 0 THEN
        RAISE EXCEPTION 'table % cannot be replicated: %', tab, TG_ARGV[0]
            USING ERRCODE = '0A000',
                  HINT = format('Change or drop that, or keep the table local: SELECT pgherd.set_local(%L).', tab);
    END IF;
    RAISE EXCEPTION 'table % has no columns that hold anything, and cannot be replicated', tab
        USING ERRCODE = '0A000',
              HINT = format('Add one that is not generated, or keep the table local: SELECT pgherd.set_local(%L).', tab);
END $$;

DROP FUNCTION IF EXISTS pgherd.refusal_source(oid, bool);
DROP FUNCTION IF EXISTS pgherd.refusal_trigger(oid, bool);
CREATE OR REPLACE FUNCTION pgherd.refusal_trigger(rel oid, by_row bool, why text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT format('CREATE TRIGGER pgherd_refuse BEFORE INSERT OR UPDATE OR DELETE%s ON %s FOR EACH %s'
                  ' EXECUTE FUNCTION pgherd.refuse_without_key(%s)',
                  CASE WHEN by_row THEN '' ELSE ' OR TRUNCATE' END, t.name,
                  CASE WHEN by_row THEN 'ROW' ELSE 'STATEMENT' END, quote_literal(why))
      FROM pgherd.user_tables t WHERE t.relid = rel;
END;

-- The table that a table's rows are captured for: itself, or the partitioned one; NULL if it is not replicated, or
-- has nothing that could be written.
CREATE OR REPLACE FUNCTION pgherd.captured_for(rel oid) RETURNS oid
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN (SELECT t.root_relid FROM pgherd.user_tables t
             WHERE t.relid = rel
               AND EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = t.root_relid AND a.attnum > 0
                                                        AND NOT a.attisdropped AND a.attgenerated = ''));
END $$;

-- Takes away rows without identity, as many of equal ones as there are records with their image; or, where every
-- other record says what the one before it has become, updates them. Returns how many there were. The images are joined
-- to the table in one pass, whatever the planner is told to do otherwise.
CREATE OR REPLACE FUNCTION pgherd.erase_source(root oid) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    settings text := pgherd.text_settings(root);
    fname    text := format('pgherd_gen.%I(pg_catalog.text[], pg_catalog.bool)', 'erase_' || root);
    t        pgherd.user_tables;
    rel      text;
BEGIN
    IF pgherd.identity_index(root) IS NOT NULL THEN
        RETURN '';
    ELSIF settings = '' THEN
        settings := ' SET search_path = pg_catalog, pg_temp SET quote_all_identifiers = off';
    END IF;
    SELECT * INTO t FROM pgherd.user_tables u WHERE u.relid = root;
    rel := CASE WHEN t.partitioned THEN '' ELSE 'ONLY ' END || t.name;
    RETURN pgherd.function_source(
        fname,
        'RETURNS pg_catalog.int8 LANGUAGE plpgsql SET plan_cache_mode = auto SET enable_seqscan = on'
        ' SET enable_hashjoin = on SET enable_hashagg = on SET enable_tidscan = on SET enable_nestloop = off' || settings,
        format($f$
#variable_conflict use_column
DECLARE
    v_leaves oid[];
    v_places tid[];
    v_made   text[];
    v_leaf   oid;
    v_erased int8;
    v_result int8 := 0;
BEGIN
    WITH u AS (
        SELECT u.v COLLATE "C" AS image, lead(u.v) OVER (ORDER BY u.n) AS made, u.n
          FROM unnest($1) WITH ORDINALITY AS u(v, n)
    ), w AS (
        SELECT u.image, u.made, row_number() OVER (PARTITION BY u.image ORDER BY u.n) AS i
          FROM u WHERE u.n %% 2 = 1 OR NOT $2
    ), f AS (
        SELECT n.tableoid AS leaf, n.ctid AS place, k.image, row_number() OVER (PARTITION BY k.image) AS i
          FROM (SELECT DISTINCT w.image FROM w) k JOIN %1$s n ON %2$s COLLATE "C" = k.image
    )
    SELECT array_agg(f.leaf), array_agg(f.place), array_agg(w.made) INTO v_leaves, v_places, v_made
      FROM w JOIN f ON f.image = w.image AND f.i = w.i;
    IF $2 THEN
        PERFORM set_config('enable_nestloop', 'on', true), set_config('enable_hashjoin', 'off', true),
                set_config('enable_seqscan', 'off', true);
        UPDATE %1$s o SET %3$s
          FROM (SELECT p.leaf, p.place, p.made::%4$s AS r FROM unnest(v_leaves, v_places, v_made) AS p(leaf, place, made)
                OFFSET 0) m
         WHERE o.tableoid = m.leaf AND o.ctid = m.place;
        GET DIAGNOSTICS v_result = ROW_COUNT;
    ELSE
        FOR v_leaf IN SELECT DISTINCT l FROM unnest(v_leaves) l LOOP
            EXECUTE format('DELETE FROM ONLY %%s o WHERE o.ctid = ANY ($1)', v_leaf::regclass)
                USING array(SELECT p.place FROM unnest(v_leaves, v_places) AS p(leaf, place) WHERE p.leaf = v_leaf);
            GET DIAGNOSTICS v_erased = ROW_COUNT;
            v_result := v_result + v_erased;
        END LOOP;
    END IF;
    RETURN v_result;
END $f$, rel, pgherd.record_full(root, 'n', false),
            coalesce(pgherd.replaced_columns(root), 'none = NULL'), pgherd.row_type(root)))
        || format(E'GRANT EXECUTE ON FUNCTION %s TO pgherd_apply;\n', fname);
END $$;

-- All generated functions and types of one table; '' for a table that has none.
CREATE OR REPLACE FUNCTION pgherd.table_source(rel oid) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    root   oid  := pgherd.captured_for(rel);
    by_row bool := (SELECT t.inherits FROM pgherd.user_tables t WHERE t.relid = rel);
BEGIN
    IF root IS NULL THEN
        RETURN '';
    END IF;
    IF pgherd.why_uncertain(rel) IS NOT NULL THEN -- what is in the log already is applied all the same
        RETURN CASE WHEN rel = root THEN pgherd.row_type_source(root) || pgherd.final_source(root)
                                         || pgherd.fingerprint_source(root) || pgherd.erase_source(root) ELSE '' END;
    END IF;
    RETURN (SELECT string_agg(CASE WHEN pgherd.identity_index(root) IS NULL
                                   THEN pgherd.capture_image_source(rel, root, k.kind, by_row)
                                   ELSE pgherd.capture_source(rel, root, k.kind, by_row) END, '' ORDER BY k.i)
              FROM unnest('{INSERT,UPDATE,DELETE}'::text[]) WITH ORDINALITY AS k(kind, i))
        || pgherd.truncate_source(rel, root)
        || CASE WHEN rel = root
                THEN pgherd.row_type_source(root) || pgherd.final_source(root) || coalesce(pgherd.doubled_source(root), '')
                     || pgherd.fingerprint_source(root) || pgherd.erase_source(root)
                ELSE '' END;
END $$;

-- All our triggers on one table; none on a table that is not replicated.
CREATE OR REPLACE FUNCTION pgherd.table_triggers(rel oid) RETURNS TABLE (name text, source text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    root   oid  := pgherd.captured_for(rel);
    by_row bool := (SELECT t.inherits FROM pgherd.user_tables t WHERE t.relid = rel);
    why    text := CASE WHEN root IS NOT NULL THEN pgherd.why_uncertain(rel) END;
BEGIN
    IF root IS NOT NULL AND why IS NULL THEN
        RETURN QUERY
        SELECT 'pgherd_' || lower(k.kind), pgherd.capture_trigger(rel, k.kind, by_row)
          FROM (VALUES ('INSERT'), ('UPDATE'), ('DELETE')) AS k(kind)
        UNION ALL SELECT t.* FROM pgherd.truncate_triggers(rel) t
        UNION ALL SELECT t.* FROM pgherd.checks_triggers(rel, root) t
        UNION ALL SELECT t.* FROM pgherd.statement_triggers(rel) t;
    ELSIF by_row IS NOT NULL THEN
        RETURN QUERY SELECT 'pgherd_refuse', pgherd.refusal_trigger(rel, by_row, why);
    END IF;
END $$;

-- Makes what is generated agree with the catalog: for the given relations, or for all.
CREATE OR REPLACE FUNCTION pgherd.reconcile(rels oid[] DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET client_min_messages = warning AS $$
DECLARE
    r      record;
    source text;
    wanted text;
    old    text;
    trig   text;
BEGIN
    FOR r IN SELECT c.oid AS relid, c.oid::regclass AS name FROM pg_class c
              WHERE (c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND (rels IS NULL OR c.oid = ANY (rels)))
                AND (EXISTS (SELECT FROM pgherd.user_tables u WHERE u.relid = c.oid)
                     OR EXISTS (SELECT FROM pgherd.generated g WHERE g.relid = c.oid))
              ORDER BY c.oid LOOP
        source := pgherd.table_source(r.relid);
        wanted := md5(source || (SELECT coalesce(string_agg(t.source, ';' ORDER BY t.name), '')
                                   FROM pgherd.table_triggers(r.relid) t));
        SELECT g.fingerprint INTO old FROM pgherd.generated g WHERE g.relid = r.relid;
        CONTINUE WHEN old IS NOT DISTINCT FROM wanted;
        BEGIN
            FOR trig IN SELECT t.tgname FROM pg_trigger t WHERE t.tgrelid = r.relid AND t.tgname ILIKE E'pgherd\\_%' LOOP
                EXECUTE format('DROP TRIGGER %I ON %s', trig, r.name);
            END LOOP;
        EXCEPTION WHEN object_in_use THEN
            -- The statement around this command changes the table: a new foreign key refers to it. The triggers that
            -- it has are the right ones, some may be missing; those that it needs no more may stay until the next time.
            wanted := wanted || ' in use';
            IF EXISTS (SELECT FROM pg_trigger t JOIN pgherd.user_tables u ON u.relid = t.tgrelid
                        WHERE t.tgrelid = r.relid AND t.tgname = 'pgherd_insert' AND (t.tgtype & 1 = 1) <> u.inherits) THEN
                RAISE; -- it has become part of an inheritance tree, or ceased to be one
            END IF;
        END;
        IF source <> '' THEN
            EXECUTE source;
        END IF;
        FOR trig IN SELECT t.source FROM pgherd.table_triggers(r.relid) t
                     WHERE NOT EXISTS (SELECT FROM pg_trigger p WHERE p.tgrelid = r.relid AND p.tgname = t.name) LOOP
            EXECUTE trig;
        END LOOP;
        INSERT INTO pgherd.generated VALUES (r.relid, wanted)
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
                                  'final_' || rel, 'doubled_' || rel, 'fingerprint_' || rel, 'erase_' || rel) LOOP
        EXECUTE format('DROP FUNCTION %s', f);
    END LOOP;
    EXECUTE format('DROP TYPE IF EXISTS pgherd_gen.row_%s', rel);
END $$;

-- What the applier must know of a table to write it, by its name as it stands in writesets: see TableShape.
-- It should take no lock that a session may hold which waits for the answer; if it does, it gives up.
DROP FUNCTION IF EXISTS pgherd.describe(text);
CREATE FUNCTION pgherd.describe(
    tab text, OUT columns text[], OUT pk int[], OUT generated int[], OUT same_key text, OUT "only" bool,
    OUT row_type text, OUT erase text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s'
BEGIN ATOMIC
    SELECT array_agg(c.col ORDER BY c.pos),
           coalesce(array_agg(c.pos - 1 ORDER BY c.pos) FILTER (WHERE c.in_pk), '{}'),
           coalesce(array_agg(c.pos - 1 ORDER BY c.pos) FILTER (WHERE c.generated), '{}'),
           coalesce(pgherd.key_equal(tab::regclass), ''),
           (SELECT u.inherits FROM pgherd.user_tables u WHERE u.relid = tab::regclass),
           pgherd.row_type(tab::regclass),
           CASE WHEN pgherd.identity_index(tab::regclass) IS NULL
                THEN format('pgherd_gen.erase_%s', tab::regclass::oid) ELSE '' END
      FROM pgherd.columns(tab::regclass) c;
END;
