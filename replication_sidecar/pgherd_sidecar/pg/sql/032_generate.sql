-- Generates the capture functions and triggers of one table: static SQL with the table's own columns, so
-- that a captured row costs one planned statement and no dynamic SQL. docs/generated.sql is what comes out for a small table.
-- Long texts are put together by concat(): each value has its name in the place where it goes, and NULL adds nothing.
--
-- For each kind of statement two forms: one row (no join, no aggregate: the common case), and a set of
-- rows in chunks of 1,000. Tables in a (non-partitioned) inheritance tree are captured row by row,
-- because a statement trigger of the parent does not tell which child a row belongs to.

-- The number of the next row of the transaction `v_xid`. The smallest xid from ours on is asked for, because only
-- that makes the planner use the index whatever it believes of a table that is empty now and then.
CREATE OR REPLACE FUNCTION pgherd.next_seq(side int) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN format(
    'GREATEST((SELECT CASE WHEN c.xid OPERATOR(pg_catalog.=) ours.v_xid THEN c.seq END FROM pgherd.capture_%s c
                WHERE c.xid OPERATOR(pg_catalog.>=) ours.v_xid ORDER BY c.xid, c.seq DESC LIMIT 1), 0)
     OPERATOR(pg_catalog.+) 1', side);
END $$;

-- INSERT INTO capture ... for one row or one pair of rows, as two statements: one for each side. Checks and values in one
-- statement, because every executor start counts: nothing is inserted if the node takes no writes, `counted` holds more rows,
-- or `condition` is false. `checked`: the base that was kept, where the row needs it (needs_kept_base).
CREATE OR REPLACE FUNCTION pgherd.capture_one(
    tab text, keys text, pks text, recs text, source text, counted text, condition text, checked text)
RETURNS text[]
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    newest text := 'coalesce((SELECT a.gid FROM pgherd.applied a ORDER BY a.gid DESC LIMIT 1), 0)';
    base   text := coalesce('LEAST(' || newest || ', ' || nullif(checked, '') || ')', newest);
BEGIN
    RETURN array(SELECT concat('INSERT INTO pgherd.capture_', side, '
     SELECT ours.v_xid, ', pgherd.next_seq(side), ', ', base, ',
            ', quote_literal(tab), ', ', keys, ', ', pks, ', ', recs, '
       FROM ', source, ', pgherd.node s
      WHERE s.writable
        AND pg_catalog.current_setting(''transaction_isolation'') OPERATOR(pg_catalog.<>) ''serializable''',
    ' AND ' || nullif(condition, ''), ' AND NOT EXISTS (SELECT FROM ' || nullif(counted, '') || ' OFFSET 1)', ';')
      FROM generate_series(0, 1) AS side);
END $$;

-- The same for many: `keys`, `pks`, `recs` are per source row; so is `ended`: it needs the base that was kept. `arrays`: the
-- last two are arrays of equal length, since a row of UPDATE may be two rows here. To take them apart costs as much as all
-- the rest, so it is not done for the others. Rows are counted when they are records already: an old and a new row side by
-- side may have more columns than PostgreSQL can keep. `again` follows each of the two statements.
CREATE OR REPLACE FUNCTION pgherd.capture_many(
    tab text, table_keys text, keys text, pks text, recs text, source text, ended text, arrays bool,
    again text DEFAULT '') RETURNS text[]
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    base     text := CASE WHEN ended <> ''
                          THEN 'CASE WHEN pg_catalog.bool_or(r.ended) THEN LEAST(ours.v_base, ours.v_checked) ELSE ours.v_base END'
                          ELSE 'ours.v_base' END;
    row_keys text := 'r.keys';
    row_pk   text := 'r.pk';
    row_rec  text := 'r.rec';
    apart    text;
BEGIN
    IF arrays THEN
        row_keys := 'CASE WHEN u.i OPERATOR(pg_catalog.=) 1 THEN r.keys END';
        row_pk := 'u.pk';
        row_rec := 'u.rec';
        apart := '
      CROSS JOIN LATERAL ROWS FROM (pg_catalog.unnest(r.pk), pg_catalog.unnest(r.rec)) WITH ORDINALITY AS u(pk, rec, i)';
    END IF;
    RETURN array(SELECT concat('INSERT INTO pgherd.capture_', side, '
     SELECT ours.v_xid, ', pgherd.next_seq(side), ' OPERATOR(pg_catalog.+) r.chunk, ', base, ', ', quote_literal(tab), ',
            pg_catalog.concat_ws('','', ', quote_literal(table_keys), ', pg_catalog.string_agg(', row_keys, ', '','')),
            pg_catalog.array_agg(', row_pk, '), pg_catalog.array_agg(', row_rec, ')
       FROM (SELECT (pg_catalog.row_number() OVER () OPERATOR(pg_catalog.-) 1) OPERATOR(pg_catalog./) 1000 AS chunk, w.*
               FROM (SELECT ', keys, ' AS keys, ', pks, ' AS pk, ', recs, ' AS rec', ', ' || nullif(ended, '') || ' AS ended',
                    ' FROM ', source, ' OFFSET 0) w) r', apart, '
      GROUP BY r.chunk;', again)
      FROM generate_series(0, 1) AS side);
END $$;

-- A function, which reconcile() lets nobody call. Its body is a quoted literal: the names in it are the user's, and one
-- that holds a dollar quote must not end it.
-- Expressions of a user's are written in it as PostgreSQL writes them, with plain literals, whatever these mean to a session.
CREATE OR REPLACE FUNCTION pgherd.function_source(signature text, properties text, body text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN format(E'CREATE OR REPLACE FUNCTION %s %s%s AS %L;\n', signature, properties,
                  CASE WHEN strpos(body, chr(92)) > 0 THEN ' SET standard_conforming_strings = on' END, body);
END $$;

-- A trigger function: `one`, and where that captured nothing, why not: no row, a node that takes no writes,
-- or more rows than one, for which there is `many`. A transaction that changed a row has an xid already.
-- An expression of an index names columns of the user's as it likes: so they go before variables (also PL/pgSQL's own: old,
-- found, tg_op), and in a query ours are called by the name of their block.
-- `checked`: rows may need the base that was kept. `refusals`: see refusals().
CREATE OR REPLACE FUNCTION pgherd.capture_function(
    fname text, settings text, counted text, one text[], many text[],
    checked bool DEFAULT false, refusals text DEFAULT '') RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN pgherd.function_source(
    format('pgherd_gen.%I()', fname), 'RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER' || settings,
    concat($f$
#variable_conflict use_column
<<ours>>
DECLARE
    v_xid  pg_catalog.xid8 := pg_catalog.pg_current_xact_id_if_assigned();
    v_base pg_catalog.int8;
    v_checked pg_catalog.int8;
BEGIN$f$, CASE WHEN many IS NULL THEN refusals END, $f$
    IF pgherd.capture_side(v_xid) OPERATOR(pg_catalog.=) 0 THEN
        $f$, one[1], $f$
    ELSE
        $f$, one[2], $f$
    END IF;
    IF FOUND THEN
        RETURN NULL;
    END IF;$f$, E'\n    IF NOT EXISTS (SELECT FROM ' || nullif(counted, '') || E') THEN\n        RETURN NULL;\n    END IF;',
    CASE WHEN many IS NOT NULL THEN refusals END, $f$
    v_base := pgherd.check_capture();$f$, CASE WHEN checked THEN E'\n    v_checked := pgherd.base_of_checks(v_xid);' END, $f$
    IF pgherd.capture_side(v_xid) OPERATOR(pg_catalog.=) 0 THEN
        $f$, coalesce(many[1], 'NULL;'), $f$
    ELSE
        $f$, coalesce(many[2], 'NULL;'), $f$
    END IF;
    RETURN NULL;
END $f$));
END $$;

-- Refuses what compressed_otherwise() finds. The capture itself asks of a single row of a statement, so this is asked
-- where it captured none: of rows that only look `suspicious`, of which o and n are paired by `source` then. In a trigger for
-- rows it comes first, as an expression of PL/pgSQL: a query would see its parameters decompressed.
-- `sure`: the same as `suspicious` where an updated row travels as a whole.
CREATE OR REPLACE FUNCTION pgherd.refusals(
    root oid, kind text, by_row bool, suspicious text, sure text, source text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE refuse text := format('pgherd.refuse_compressed(%s)', root);
BEGIN
    RETURN CASE WHEN kind = 'DELETE' OR suspicious IS NULL THEN ''
                WHEN by_row THEN
                    format(E'\n    DECLARE\n        n ALIAS FOR NEW;%s\n    BEGIN\n        IF %s THEN\n            PERFORM %s;\n'
                           '        END IF;\n    END;', CASE kind WHEN 'UPDATE' THEN E'\n        o ALIAS FOR OLD;' ELSE '' END,
                           sure, refuse)
                WHEN suspicious = sure THEN format(E'\n    PERFORM %s FROM new_rows n WHERE %s LIMIT 1;', refuse, sure)
                ELSE format(E'\n    IF EXISTS (SELECT FROM new_rows n WHERE %s) THEN\n        PERFORM %s FROM %s WHERE %s LIMIT 1;\n'
                            '    END IF;', suspicious, refuse, source, sure) END;
END $$;

-- The capture of a row of UPDATE, one expression for each of four cases: the row is new under its key, or
-- gone; it kept its identity; or it did not (C10). `joined`: rows are paired by key, so that the first two occur.
-- p: `source_parts` of the table.
CREATE OR REPLACE FUNCTION pgherd.by_change(
    p record, joined bool, made text, gone text, kept text, replaced text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN format('CASE %sWHEN %s THEN %s ELSE %s END',
                  CASE WHEN joined THEN format('WHEN o.%1$s IS NOT DISTINCT FROM NULL THEN %2$s'
                                               ' WHEN n.%1$s IS NOT DISTINCT FROM NULL THEN %3$s ', p.first_key, made, gone)
                       ELSE '' END, p.same_identity, kept, replaced);
END $$;

-- A parent's end is certified by what was there when its foreign keys were checked, not later: a child that is
-- applied between the check and the capture has not been seen by it. Their triggers are rows' and fire in the
-- order of names, ours of statements come last; so a row's trigger before them keeps the base, among the captured
-- rows, where no user can touch it. It is kept for all that one message of the client does, whatever is nested
-- in it: an older base costs conflicts, a younger one would miss them. Its number is below those of captured rows and
-- of bases kept before, so that the first in the index tells.
CREATE OR REPLACE FUNCTION pgherd.keep_base_of_checks() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
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
END $$;

-- A deferrable unique or exclusion constraint needs it, too, and before the first row: it waits for nobody who writes the
-- same value, and leaves that to the session that comes later. If that is an applier, nobody looks.
CREATE OR REPLACE FUNCTION pgherd.before_checks() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgherd.keep_base_of_checks();
    IF TG_LEVEL = 'ROW' AND TG_WHEN = 'BEFORE' THEN
        RETURN NEW;
    END IF;
    RETURN NULL;
END $$;

-- The base that was kept for the message that is being executed. Without it the transaction can only lose.
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
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN EXISTS (SELECT FROM pg_constraint f
                    WHERE f.contype = 'f' AND f.confrelid IN (SELECT p.relid FROM pgherd.partitions(root) p));
END $$;

-- Does the table, or one of its partitions, have a deferrable unique or exclusion constraint?
CREATE OR REPLACE FUNCTION pgherd.is_checked_late(root oid) RETURNS bool
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN EXISTS (SELECT FROM pg_index i
                    WHERE NOT i.indimmediate AND i.indrelid IN (SELECT p.relid FROM pgherd.partitions(root) p));
END $$;

-- Do rows that a statement of this kind writes need the base that was kept (before_checks)? p: `source_parts` of the table.
CREATE OR REPLACE FUNCTION pgherd.needs_kept_base(p record, kind text) RETURNS bool
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN kind <> 'INSERT' AND p.referenced OR kind <> 'DELETE' AND p.checked_late;
END $$;

-- May one UPDATE of the table change a row twice? The changes of referential actions come in the transition tables of the
-- statement that they belong to, so they are captured with that.
CREATE OR REPLACE FUNCTION pgherd.is_changed_again(root oid) RETURNS bool
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    tree oid[] := pgherd.partition_tree(root);
BEGIN
    RETURN EXISTS (SELECT FROM pg_constraint f
                    WHERE f.contype = 'f'
                      AND (f.confupdtype IN ('c', 'n', 'd') AND (f.confrelid = ANY (tree) OR f.conrelid = ANY (tree))
                           OR f.confdeltype = 'd' AND f.conrelid = ANY (tree)));
END $$;

-- Their names sort before those of foreign keys, RI_ConstraintTrigger. They fire for each row of which the capture
-- asks for the base: that is gone, or has another identity.
CREATE OR REPLACE FUNCTION pgherd.checks_triggers(t pgherd.user_tables, p record) RETURNS TABLE (name text, source text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF p.checked_late THEN
        name := 'Pgherd_before';
        source := format('CREATE OR REPLACE TRIGGER "Pgherd_before" BEFORE INSERT OR UPDATE ON %s FOR EACH %s'
                         ' EXECUTE FUNCTION pgherd.before_checks()',
                         t.name, CASE WHEN t.inherits THEN 'ROW' ELSE 'STATEMENT' END);
        RETURN NEXT;
    END IF;
    IF t.partitioned OR p.checks IS NULL THEN
        RETURN;
    END IF;
    RETURN QUERY
    SELECT m.name, format('CREATE OR REPLACE TRIGGER %I AFTER %s ON %s FOR EACH ROW EXECUTE FUNCTION %s()', m.name, m.event, t.name, m.fname)
      FROM (VALUES ('Pgherd_delete', 'DELETE', 'pgherd.before_checks'),
                   -- without identity an updated row is a row that is gone, and one that is new
                   ('Pgherd_update', 'UPDATE', CASE WHEN p.identity IS NULL THEN 'pgherd.before_checks'
                                                    ELSE 'pgherd_gen.checks_' || t.relid END)) AS m(name, event, fname);
END $$;

-- Does an updated row of a table that is referenced have another key? NULL where it has none. A condition of the trigger
-- would forbid ALTER COLUMN ... TYPE. The types stand in the text so that it is another one where one of them changes:
-- PL/pgSQL keeps what it has planned.
CREATE OR REPLACE FUNCTION pgherd.checks_body(root oid) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (
        SELECT format(E'\nBEGIN\n    IF ROW(%s)::record *<> ROW(%s)::record THEN -- %s\n'
                      '        PERFORM pgherd.keep_base_of_checks();\n    END IF;\n    RETURN NULL;\nEND ',
                      string_agg('OLD.' || c.col, ', ' ORDER BY c.pos), string_agg('NEW.' || c.col, ', ' ORDER BY c.pos),
                      string_agg(c.typ::text, ', ' ORDER BY c.pos))
          FROM pgherd.columns(root) c WHERE c.in_pk OR c.in_unique HAVING count(*) > 0);
END $$;

CREATE OR REPLACE FUNCTION pgherd.checks_source(rel oid, p record) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF p.identity IS NULL OR p.checks IS NULL THEN
        RETURN '';
    END IF;
    RETURN pgherd.function_source(
        format('pgherd_gen.checks_%s()', rel),
        'RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp', p.checks);
END $$;

-- Has the user triggers that fire after a statement on one of these tables, which are all of a tree? Then two of ours on each
-- tell whether all that a statement changed has been captured: one before each statement, one behind our captures (see
-- 047_open_points.sql).
CREATE OR REPLACE FUNCTION pgherd.counts_statements(family oid[]) RETURNS bool
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN EXISTS (SELECT FROM pg_trigger u JOIN pg_proc p ON p.oid = u.tgfoid
                    WHERE u.tgrelid = ANY (family) AND NOT u.tgisinternal
                      AND u.tgtype & 67 = 0 -- neither of rows, nor BEFORE, nor INSTEAD OF
                      AND p.pronamespace NOT IN ('pgherd'::regnamespace, 'pgherd_gen'::regnamespace));
END $$;

-- PostgreSQL fires no trigger of a statement that would tell which rows a MERGE has moved to another partition: they are
-- in the transition tables of its DELETE and INSERT, which it may not have. So a MERGE that changes a column of a partition
-- key is refused; and any that updates, if a trigger of the user's may change one after ours.
CREATE OR REPLACE FUNCTION pgherd.move_triggers(t pgherd.user_tables) RETURNS TABLE (name text, source text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    own   CONSTANT text := 'pgherd_move';
    later bool;
    k     record;
BEGIN
    IF t.partitioned OR t.relid = t.root_relid THEN
        RETURN;
    END IF;
    later := EXISTS (SELECT FROM pg_trigger u JOIN pg_proc p ON p.oid = u.tgfoid
                      WHERE u.tgrelid = t.relid AND u.tgtype & 19 = 19 -- BEFORE UPDATE, of rows
                        AND u.tgname COLLATE "C" > own
                        AND p.pronamespace NOT IN ('pgherd'::regnamespace, 'pgherd_gen'::regnamespace));
    SELECT string_agg('OLD.' || c.col, ', ' ORDER BY c.col) AS old, string_agg('NEW.' || c.col, ', ' ORDER BY c.col) AS new
      INTO k
      FROM (SELECT DISTINCT quote_ident(a.attname) AS col
              FROM pg_partition_ancestors(t.relid) h JOIN pg_partitioned_table p ON p.partrelid = h.relid
              JOIN pg_attribute a ON a.attrelid = p.partrelid AND a.attnum > 0 AND NOT a.attisdropped
             WHERE a.attnum = ANY (p.partattrs::int2[])
                OR p.partexprs LIKE format('%%:varattno %s %%', a.attnum) OR p.partexprs LIKE '%:varattno 0 %') c;
    name := own;
    source := format('CREATE OR REPLACE TRIGGER %s BEFORE UPDATE ON %s FOR EACH ROW%s EXECUTE FUNCTION pgherd.refuse_move()', own, t.name,
                     CASE WHEN NOT later
                          THEN format(' WHEN (ROW(%s)::record OPERATOR(pg_catalog.*<>) ROW(%s)::record)', k.old, k.new) END);
    RETURN NEXT;
END $$;

-- Is the statement a MERGE? The word stands in its text then: in the message of the client, in a statement of a function, in
-- an SQL function, in the query of a loop or of a cursor, or in what the session has prepared. What the protocol has prepared
-- counts beside EXECUTE only, since drivers keep statements so. A statement beside which it stands is taken for one: a text that
-- a user has written cannot be told from what PostgreSQL says of the others around it.
CREATE OR REPLACE FUNCTION pgherd.refuse_move() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lc_messages = 'C' AS $$
DECLARE
    context text;
BEGIN
    GET DIAGNOSTICS context = PG_CONTEXT;
    context := substr(context, nullif(strpos(context, chr(10)), 0) + 1); -- without this function
    IF context LIKE 'SQL function "%' THEN
        context := concat(context, (SELECT string_agg(concat(p.prosrc, pg_get_function_sqlbody(p.oid)), ' ')
                                      FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang AND l.lanname = 'sql'
                                     WHERE strpos(context, format('SQL function "%s" ', p.proname)) = 1));
    ELSIF context IS NULL OR context NOT LIKE 'SQL statement "%' THEN
        -- A loop and a cursor run their query where no entry of the stack quotes it.
        context := concat(context, current_query(), ' ', (SELECT string_agg(c.statement, ' ') FROM pg_cursors c));
    END IF;
    context := concat(context, ' ', ( -- PL/pgSQL's own EXECUTE stands in the stack, too
        SELECT string_agg(s.statement, ' ') FROM pg_prepared_statements s
         WHERE s.from_sql OR replace(context, ' at EXECUTE', '') ~* E'\\mexecute\\M'));
    IF context !~* E'\\mmerge\\M' THEN
        RETURN NEW;
    END IF;
    PERFORM pgherd.refuse(
        format('MERGE that may move a row of %s to another partition is not supported', TG_RELID::regclass),
        'PostgreSQL does not say which rows it moves. Use UPDATE for these, in a message of its own.');
END $$;

CREATE OR REPLACE FUNCTION pgherd.mark_statement() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgherd.put(pg_current_xact_id(), TG_RELID::int8, 'sentinel', TG_ARGV[0], '{0}', '{}');
    RETURN NULL;
END $$;

-- All that the functions of a table and of its partitions have in common, so that it is put together once for all of them.
--
-- `written`: the table as it stands in a FROM clause; `row_type`: in which its records are read; `same_identity`, `key_equal`,
-- `new_record`, `key_record`: the functions of these names, of the new row n and of the old one o; `first_key`: a column
-- that is never NULL; `pairs`: the old and the new rows of an UPDATE, as a FROM clause; `compressed`: what refusals() finds
-- in a whole row, and `compressed_change` in what an UPDATE sends; `checks`: checks_body().
--
-- For the trigger functions, of n and of o: certification keys (k), the hash of the primary key (pk) and the record (rec);
-- and of a row that keeps its identity. Rows without identity have none of these.
DROP FUNCTION IF EXISTS pgherd.source_parts(oid); -- that of an earlier version has other columns
CREATE FUNCTION pgherd.source_parts(
    table_id oid, OUT root oid, OUT identity oid, OUT name text, OUT partitioned bool, OUT written text, OUT row_type text,
    OUT settings text, OUT referenced bool, OUT checks text, OUT checked_late bool, OUT tab text, OUT table_keys text,
    OUT compressed text, OUT compressed_change text,
    OUT same_identity text, OUT key_equal text, OUT first_key text, OUT new_record text, OUT key_record text,
    OUT k_ins text, OUT pk_new text, OUT ins_rec text, OUT k_del text, OUT pk_old text, OUT del_rec text,
    OUT k_upd text, OUT upd_rec text, OUT changed_again bool, OUT pairs text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    root := table_id;
    SELECT t.name, t.partitioned INTO name, partitioned FROM pgherd.user_tables t WHERE t.relid = root;
    identity := pgherd.identity_index(root);
    written := CASE WHEN partitioned THEN '' ELSE 'ONLY ' END || name;
    row_type := pgherd.row_type(root);
    settings := pgherd.text_settings(root);
    referenced := pgherd.is_referenced(root);
    checks := CASE WHEN referenced THEN pgherd.checks_body(root) END;
    checked_late := pgherd.is_checked_late(root);
    tab := to_json(name);
    table_keys := concat(pgherd.name_hash('schema'), ',', pgherd.name_hash('table ' || name));
    compressed := pgherd.compressed_otherwise(root, false);
    same_identity := pgherd.same_identity(root);
    new_record := pgherd.record_full(root, 'n');
    IF identity IS NULL THEN
        RETURN;
    END IF;
    compressed_change := CASE WHEN compressed <> '' THEN pgherd.compressed_otherwise(root, true) END;
    key_equal := pgherd.key_equal(root);
    first_key := (SELECT c.col FROM pgherd.columns(root) c WHERE c.in_pk ORDER BY c.pos LIMIT 1);
    key_record := pgherd.record_key(root, 'o');
    pk_new := pgherd.index_key(identity, 'n');
    pk_old := pgherd.index_key(identity, 'o');
    k_ins := concat_ws(', ', pgherd.unique_keys(root, 'n', true), pgherd.parent_keys(root, 'n', false));
    k_del := pgherd.unique_keys(root, 'o', false);
    k_upd := concat_ws(', ', pk_new || ' OPERATOR(pg_catalog.|) 2', pgherd.parent_keys(root, 'n', true));
    ins_rec := format('pg_catalog.concat(''I'', %s)', new_record);
    del_rec := format('pg_catalog.concat(''D'', %s)', key_record);
    upd_rec := pgherd.record_changes(root);
    changed_again := pgherd.is_changed_again(root);
    -- Paired by key: a row that is new under a key is that key's final state, whichever row it was before. But a row that is new
    -- under its key and changed again would seem to have been there before.
    pairs := CASE WHEN changed_again THEN pgherd.update_pairs(root, pgherd.pair_name(root))
                  ELSE format('old_rows o FULL JOIN new_rows n ON (%s)', key_equal) END;
END $$;

-- The capture of a table with identity by statements of one kind: certification keys, hashes of the primary key,
-- records and rows, of one row (`one`) and of many (`many`), as SQL text; and under which `condition` one row goes by
-- itself. `checked`, `ended`: where rows need the base that was kept, this base, and which of many ask for it.
-- kind: INSERT, UPDATE or DELETE. A single row that UPDATE gave another identity goes the way of many.
-- p: `source_parts` of the table.
CREATE OR REPLACE FUNCTION pgherd.capture_shape(
    p record, kind text, by_row bool,
    OUT one text[], OUT many text[], OUT condition text, OUT checked text, OUT ended text)
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    o          text := CASE WHEN by_row THEN '(SELECT OLD.*) o' ELSE 'old_rows o' END;
    n          text := CASE WHEN by_row THEN '(SELECT NEW.*) n' ELSE 'new_rows n' END;
    ws         text := 'pg_catalog.concat_ws('','', %s)';
    compressed text := CASE WHEN by_row THEN NULL WHEN kind = 'INSERT' THEN p.compressed
                            WHEN kind = 'UPDATE' THEN p.compressed_change END;
    kept_base  bool := pgherd.needs_kept_base(p, kind);
BEGIN
    condition := '';
    checked := CASE WHEN kept_base THEN 'pgherd.base_of_checks(ours.v_xid)' ELSE '' END;
    ended := CASE WHEN kept_base THEN 'true' ELSE '' END;
    IF kind = 'INSERT' THEN
        one := ARRAY[p.k_ins, format('ARRAY[%s]', p.pk_new), format('ARRAY[%s]', p.ins_rec), n];
        many := ARRAY[p.k_ins, p.pk_new, p.ins_rec, n];
    ELSIF kind = 'DELETE' THEN
        one := ARRAY[p.k_del, format('ARRAY[%s]', p.pk_old), format('ARRAY[%s]', p.del_rec), o];
        many := ARRAY[p.k_del, p.pk_old, p.del_rec, o];
    ELSE
        SELECT array_agg(pgherd.by_change(p, NOT by_row, c.made, c.gone, c.kept, c.replaced) ORDER BY c.i)
          INTO many
          FROM (VALUES (1, format(ws, p.k_ins), format(ws, p.k_del), format(ws, p.k_upd), format(ws, p.k_del || ', ' || p.k_ins)),
                       (2, format('ARRAY[%s]', p.pk_new), format('ARRAY[%s]', p.pk_old), format('ARRAY[%s]', p.pk_new),
                           format('ARRAY[%s, %s]', p.pk_old, p.pk_new)),
                       (3, format('ARRAY[%s]', p.ins_rec), format('ARRAY[%s]', p.del_rec), format('ARRAY[%s]', p.upd_rec),
                           format('ARRAY[%s, %s]', p.del_rec, p.ins_rec))) AS c(i, made, gone, kept, replaced);
        IF by_row THEN
            one := many || (o || ', ' || n);
            IF kept_base THEN
                checked := format('CASE WHEN NOT (%s) THEN %s END', p.same_identity, checked);
            END IF;
        ELSE
            checked := ''; -- it keeps its identity
            IF kept_base THEN
                ended := pgherd.by_change(p, true, 'true', 'true', 'false', 'true');
            END IF;
            one := ARRAY[p.k_upd, format('ARRAY[%s]', p.pk_new), format('ARRAY[%s]', p.upd_rec), o || ', ' || n];
            many := many || p.pairs;
            condition := p.same_identity;
        END IF;
    END IF;
    one[1] := format('pg_catalog.concat_ws('','', %L, %s)', p.table_keys, one[1]);
    many[1] := format(ws, many[1]);
    condition := concat_ws(' AND ', nullif(condition, ''), 'NOT ' || compressed);
END $$;

-- The rows that one statement captures count as they are, unless a hash of 0 says that one was touched twice (C3).
CREATE OR REPLACE FUNCTION pgherd.mark_twice(tab text, table_keys text, pks text, source text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN format($f$
    IF (SELECT pg_catalog.count(*) OPERATOR(pg_catalog.<>) pg_catalog.count(DISTINCT u.pk)
          FROM %s CROSS JOIN LATERAL pg_catalog.unnest(%s) AS u(pk)) THEN
        PERFORM pgherd.put(v_xid, v_base, %L, %L, '{0}', '{}');
    END IF;$f$, source, pks, tab, table_keys);
END $$;

-- The rows of a statement, one by one. A row that goes to another partition, whose BEFORE INSERT trigger lets it vanish,
-- comes as the old one only.
CREATE OR REPLACE FUNCTION pgherd.counted_rows(p record, kind text, by_row bool) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN CASE WHEN by_row THEN ''
                WHEN kind = 'DELETE' THEN 'old_rows'
                WHEN kind = 'UPDATE' AND p.partitioned THEN '((SELECT FROM old_rows) UNION ALL (SELECT FROM new_rows OFFSET 1)) c'
                ELSE 'new_rows' END;
END $$;

-- The trigger function for statements of one kind; p: `source_parts` of the table.
CREATE OR REPLACE FUNCTION pgherd.capture_source(rel oid, p record, kind text, by_row bool) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s       record := pgherd.capture_shape(p, kind, by_row);
    counted text := pgherd.counted_rows(p, kind, by_row);
    again   text := CASE WHEN kind = 'UPDATE' AND NOT by_row AND p.changed_again
                         THEN pgherd.mark_twice(p.tab, p.table_keys, s.many[2], s.many[4]) END;
BEGIN
    RETURN pgherd.capture_function(
               format('%s_%s', lower(kind), rel), p.settings, counted,
               pgherd.capture_one(p.tab, s.one[1], s.one[2], s.one[3], s.one[4], counted, s.condition, s.checked),
               CASE WHEN NOT by_row
                    THEN pgherd.capture_many(p.tab, p.table_keys, s.many[1], s.many[2], s.many[3], s.many[4], s.ended,
                                             kind = 'UPDATE', again) END,
               s.ended <> '' AND NOT by_row,
               pgherd.refusals(p.root, kind, by_row, p.compressed,
                               CASE kind WHEN 'UPDATE' THEN p.compressed_change ELSE p.compressed END, s.many[4]));
END $$;

-- The old and the new rows of an UPDATE come in the same order. Should they not, nothing could be captured.
CREATE OR REPLACE FUNCTION pgherd.unpaired() RETURNS text[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgherd.refuse('an UPDATE whose rows a BEFORE INSERT trigger of another partition lets vanish is not supported'
                          ' without a primary key', 'Add a primary key, or DELETE these rows.');
    RETURN NULL;
END $$;

-- The columns that set a row without identity to another image, in the FROM clause m.r; NULL if PostgreSQL lets nobody do that.
CREATE OR REPLACE FUNCTION pgherd.replaced_columns(root oid) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN (
        SELECT string_agg(format('%1$s = (m.r).%1$s', quote_ident(a.attname)), ', ' ORDER BY a.attnum)
          FROM pg_attribute a
         WHERE a.attrelid = root AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' AND a.attidentity <> 'a');
END $$;

-- A name that no column of the table has.
CREATE OR REPLACE FUNCTION pgherd.pair_name(root oid) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    name   text := 'pgherd_pair';
    number int  := 0;
BEGIN
    WHILE EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = root AND a.attname = name) LOOP
        number := number + 1;
        name := 'pgherd_pair' || number;
    END LOOP;
    RETURN name;
END $$;

-- The rows of an UPDATE in pairs, as o and n, by their place `pair` among the others.
CREATE OR REPLACE FUNCTION pgherd.update_pairs(root oid, pair text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN (
        WITH c AS (SELECT string_agg('x.' || c.col, ', ' ORDER BY c.pos) AS cols FROM pgherd.columns(root) c)
        SELECT format('(SELECT pg_catalog.row_number() OVER () AS %1$s, %2$s FROM old_rows x) o FULL JOIN'
                      ' (SELECT pg_catalog.row_number() OVER () AS %1$s, %2$s FROM new_rows x) n'
                      ' ON (o.%1$s OPERATOR(pg_catalog.=) n.%1$s)', pair, c.cols) FROM c);
END $$;

-- The certification keys of a row without identity, of which `image` is the text, that goes away; and of one that comes.
CREATE OR REPLACE FUNCTION pgherd.gone_keys(root oid, image text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN concat_ws(', ', pgherd.unique_arguments(root, 'o', false),
                     pgherd.image_key(root, image) || ' OPERATOR(pg_catalog.|) 3');
END $$;

CREATE OR REPLACE FUNCTION pgherd.made_keys(root oid) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN coalesce(nullif(concat_ws(', ', pgherd.unique_arguments(root, 'n', true),
                                     pgherd.parent_keys(root, 'n', false)), ''), 'NULL');
END $$;

-- The same for a table whose rows have no identity. A session that takes a row away excludes others that take one with the
-- same image. Rows that are only added exclude nobody: as many equal rows are there in the end, in whatever order
-- they come. An updated row comes as two records: what it was, and what it has become. It is updated in place
-- elsewhere, too, so that a session that waits for its lock at READ COMMITTED finds the new version, and not that it has gone;
-- unless a column of a unique index has changed (C10).
CREATE OR REPLACE FUNCTION pgherd.capture_image_source(rel oid, p record, kind text, by_row bool) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    root       oid  := p.root;
    -- computed once, though it is used twice
    o_image    text := format(' CROSS JOIN LATERAL (SELECT %s AS image OFFSET 0) oi', pgherd.record_full(root, 'o', false));
    n_image    text := format(' CROSS JOIN LATERAL (SELECT %s AS image OFFSET 0) ni', p.new_record);
    o          text := CASE WHEN by_row THEN '(SELECT OLD.*) o' ELSE 'old_rows o' END;
    n          text := CASE WHEN by_row THEN '(SELECT NEW.*) n' ELSE 'new_rows n' END;
    pair       text := pgherd.pair_name(root);
    counted    text := pgherd.counted_rows(p, kind, by_row);
    kept_base  bool := pgherd.needs_kept_base(p, kind);
    gone_keys  text := pgherd.gone_keys(root, 'oi.image');
    made_keys  text := pgherd.made_keys(root);
    gone_pk    text := pgherd.image_key(root, 'oi.image');
    made_pk    text := pgherd.image_key(root, 'ni.image');
    become     text := CASE WHEN pgherd.replaced_columns(root) IS NULL THEN '''D'''
                            ELSE format('CASE WHEN %s THEN ''R'' ELSE ''D'' END', p.same_identity) END;
    condition  text := CASE WHEN kind <> 'DELETE' AND NOT by_row THEN coalesce('NOT ' || p.compressed, '')
                            ELSE '' END;
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
                          ' THEN pgherd.unpaired() ELSE %2$s END', pair, one[3]),
                   concat(pgherd.update_pairs(root, pair), o_image, n_image)] END;
    one[1] := format('pg_catalog.concat_ws('','', %L, %s)', p.table_keys, one[1]);
    -- a statement of many rows may have none of these keys
    many[1] := format(CASE WHEN made_keys = 'NULL' AND kind = 'INSERT' THEN 'NULL'
                           WHEN kind = 'INSERT' THEN 'CASE WHEN pg_catalog.concat_ws('','', %1$s) OPERATOR(pg_catalog.<>)'
                                                     ' '''' THEN pg_catalog.concat_ws('','', %1$s) END'
                           ELSE 'pg_catalog.concat_ws('','', %s)' END, many[1]);
    RETURN pgherd.capture_function(
               format('%s_%s', lower(kind), rel), p.settings, counted,
               pgherd.capture_one(p.tab, one[1], one[2], one[3], one[4], counted, condition,
                                  CASE WHEN kept_base THEN 'pgherd.base_of_checks(ours.v_xid)' ELSE '' END),
               CASE WHEN NOT by_row
                    THEN pgherd.capture_many(p.tab, p.table_keys, many[1], many[2], many[3], many[4],
                                             CASE WHEN kept_base THEN 'true' ELSE '' END, kind = 'UPDATE') END,
               kept_base AND NOT by_row, pgherd.refusals(root, kind, by_row, p.compressed, p.compressed, many[4]));
END $$;

CREATE OR REPLACE FUNCTION pgherd.capture_trigger(t pgherd.user_tables, kind text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN concat('CREATE OR REPLACE TRIGGER pgherd_', lower(kind), ' AFTER ', kind, ' ON ', t.name,
                  CASE WHEN NOT t.inherits THEN ' REFERENCING' END,
                  CASE WHEN NOT t.inherits AND kind <> 'INSERT' THEN ' OLD TABLE AS old_rows' END,
                  CASE WHEN NOT t.inherits AND kind <> 'DELETE' THEN ' NEW TABLE AS new_rows' END,
                  ' FOR EACH ', CASE WHEN t.inherits THEN 'ROW' ELSE 'STATEMENT' END, ' EXECUTE FUNCTION ',
                  CASE WHEN pgherd.is_captured_natively(t.relid, t.inherits) THEN 'pgherd.native_capture'
                       ELSE format('pgherd_gen.%s_%s', lower(kind), t.relid) END, '()');
END $$;

-- o.key = n.key with the operators of the identity's own index; NULL where there is none.
CREATE OR REPLACE FUNCTION pgherd.key_equal(root oid) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN (
        SELECT string_agg(format(CASE WHEN pgherd.base_type(a.atttypid) = a.atttypid THEN 'o.%1$I OPERATOR(%2$I.%3$s) n.%1$I'
                                      -- "=" of enums, arrays or ranges wants one type on both sides
                                      ELSE '(o.%1$I)::%4$s OPERATOR(%2$I.%3$s) (n.%1$I)::%4$s' END,
                                 a.attname, n.nspname, p.oprname, pgherd.type_name(pgherd.base_type(a.atttypid))), ' AND '
                          ORDER BY k.pos)
          FROM pgherd.index_columns(pgherd.identity_index(root), 'n') k
          JOIN pg_attribute a ON a.attrelid = root AND a.attnum = k.attnum
          JOIN pg_operator p ON p.oid = k.equality JOIN pg_namespace n ON n.oid = p.oprnamespace);
END $$;

-- TRUNCATE: the table's own name (each partition fires for itself) and its key exclusively (C16).
CREATE OR REPLACE FUNCTION pgherd.truncate_source(t pgherd.user_tables, p record) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    tab  text := to_json(t.name);
    keys text := quote_literal(concat(pgherd.name_hash('schema'), ',', pgherd.name_hash('table ' || p.name) | 3));
BEGIN
    IF t.partitioned THEN
        RETURN '';
    END IF;
    RETURN pgherd.capture_function('truncate_' || t.relid, '', '',
               pgherd.capture_one(tab, keys, 'ARRAY[0]::pg_catalog.int8[]', 'ARRAY[''T'']', '(VALUES (0)) v', '', '', ''),
               NULL);
END $$;

-- A table without identity that has rows behind its truncation got them from a trigger that fired before ours. They were
-- captured before the truncation then, and nobody could tell them from those that it removed.
CREATE OR REPLACE FUNCTION pgherd.refuse_rows_behind_truncate() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET row_security = off AS $$
BEGIN
    IF pgherd.has_rows(TG_RELID) THEN
        PERFORM pgherd.refuse(
            format('an AFTER TRUNCATE trigger that writes rows of %s, which has no primary key, is not supported',
                   TG_RELID::regclass),
            'Add a primary key, or write these rows in a command of their own.');
    END IF;
    RETURN NULL;
END $$;

-- It is looked for by what depends on the table, since there may be thousands of sequences.
CREATE OR REPLACE FUNCTION pgherd.owns_sequences(rel oid) RETURNS bool
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN EXISTS (SELECT FROM pg_depend d CROSS JOIN LATERAL (
                          SELECT FROM pgherd.user_sequences s WHERE s.relid = d.objid AND s.owner = rel OFFSET 0) s
                    WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid = rel AND d.classid = 'pg_class'::regclass
                      AND d.deptype IN ('a', 'i'));
END $$;

CREATE OR REPLACE FUNCTION pgherd.truncate_triggers(t pgherd.user_tables, p record) RETURNS TABLE (name text, source text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY
    SELECT m.name, format('CREATE OR REPLACE TRIGGER %s %s TRUNCATE ON %s FOR EACH STATEMENT EXECUTE FUNCTION %s()',
                          m.name, m.moment, t.name, m.fname)
      FROM (VALUES ('pgherd_truncate', 'AFTER', 'pgherd_gen.truncate_' || t.relid, NOT t.partitioned),
                   ('pgherd_truncate_before', 'BEFORE', 'pgherd.close_old_cursor', NOT t.partitioned),
                   ('pgherd_truncate_empty', 'AFTER', 'pgherd.refuse_rows_behind_truncate', NOT t.partitioned AND p.identity IS NULL),
                   ('pgherd_truncate_restart', 'AFTER', 'pgherd.capture_restart', pgherd.owns_sequences(t.relid)))
                   AS m(name, moment, fname, wanted)
     WHERE m.wanted;
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

CREATE OR REPLACE FUNCTION pgherd.refusal_triggers(t pgherd.user_tables, why text) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT jsonb_object_agg(m.name, format('CREATE OR REPLACE TRIGGER %s BEFORE %s ON %s FOR EACH %s'
                                                   ' EXECUTE FUNCTION pgherd.refuse_without_key(%s)',
                                                   m.name, m.events, t.name, m.level, quote_literal(why)))
              FROM (VALUES ('pgherd_refuse', 'INSERT OR UPDATE OR DELETE OR TRUNCATE', 'STATEMENT', NOT t.inherits),
                           ('pgherd_refuse', 'INSERT OR UPDATE OR DELETE', 'ROW', t.inherits),
                           ('pgherd_refuse_truncate', 'TRUNCATE', 'STATEMENT', t.inherits)) AS m(name, events, level, wanted)
             WHERE m.wanted);
END $$;

-- Where the rows of a table without identity are, for the rest of a transaction in pieces (erase_source()): one row for
-- each, and one more for each that was the last of equal ones to be `taken`.
CREATE OR REPLACE FUNCTION pgherd.places_name(root oid) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN 'pg_temp.pgherd_places_' || root;

-- Makes that table, empty, or the index that is made when it is `filled`. The applier's role may be without the right to
-- make temporary tables, and an administrator may have limited the room to sort in.
CREATE OR REPLACE FUNCTION pgherd.note_places(root oid, filled bool) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET client_min_messages = warning
SET temp_file_limit = -1 AS $$
DECLARE places text := pgherd.places_name(root);
BEGIN
    IF filled THEN
        EXECUTE format('CREATE INDEX ON %s (hash, taken, leaf, place)', places);
    ELSE
        EXECUTE format('DROP TABLE IF EXISTS %s', places);
        EXECUTE format('CREATE TEMP TABLE %s (hash int8, taken bool, leaf oid, place tid) ON COMMIT DROP', places);
    END IF;
END $$;

-- Takes away rows without identity, as many of equal ones as there are records with their image; or, where every
-- other record says what the one before it has become, updates them. Returns how many there were. The images are joined
-- to the table in one pass, whatever the planner is told to do otherwise.
--
-- A transaction in pieces calls it once for each piece, and one pass for each would cost the square of the table's size.
-- So after two passes its session notes where each row is, by a hash of the image, and later pieces look there; to take
-- that down costs about two passes more. The notes need not be true any more: earlier pieces, a truncation and other
-- transactions change rows. So a row counts only if it is still at its place with its image. If too few do, the table is
-- read after all, and after two such passes all is noted anew. The other way, to collect the images and take them away at the
-- end, would hold whole rows in place of 100 bytes for each, and leave all work to when everybody waits for it.
CREATE OR REPLACE FUNCTION pgherd.erase_source(p record) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    settings text := p.settings;
    fname    text := format('pgherd_gen.%I(pg_catalog.text[], pg_catalog.bool)', 'erase_' || p.root);
    places   text := pgherd.places_name(p.root);
    passes   text := quote_literal('pgherd.passes_' || p.root);
    image    text;
    replaced text;
BEGIN
    IF p.identity IS NOT NULL THEN
        RETURN '';
    ELSIF settings = '' THEN
        settings := ' SET search_path = pg_catalog, pg_temp SET quote_all_identifiers = off';
    END IF;
    image := pgherd.record_full(p.root, 'n', false) || ' COLLATE "C"';
    replaced := coalesce(pgherd.replaced_columns(p.root), 'none = NULL');
    RETURN pgherd.function_source(
        fname,
        'RETURNS pg_catalog.int8 LANGUAGE plpgsql SET plan_cache_mode = auto SET enable_seqscan = off'
        ' SET enable_hashjoin = off SET enable_hashagg = on SET enable_tidscan = on SET enable_nestloop = on' || settings,
        concat($f$
#variable_conflict use_column
DECLARE
    v_wanted int8 := cardinality($1) / CASE WHEN $2 THEN 2 ELSE 1 END;
    v_large  bool := current_setting('application_name') = 'pgherd large'; -- it writes a transaction in pieces
    -- The owner of the database may have given the setting any value.
    v_passes int  := CASE WHEN v_large THEN coalesce(array_position('{1,2}'::text[], current_setting($f$, passes, $f$, true)), 0) END;
    v_leaves oid[];
    v_places tid[];
    v_made   text[];
    v_leaf   oid;
    v_erased int8;
    v_result int8 := 0;
BEGIN
    IF v_passes = 2 THEN
        PERFORM pgherd.note_places($f$, p.root, $f$, false);
        INSERT INTO $f$, places, $f$ SELECT hashtextextended($f$, image, $f$, 0), false, n.tableoid, n.ctid FROM $f$, p.written, $f$ n;
        PERFORM pgherd.note_places($f$, p.root, $f$, true);
        v_passes := 0;
    END IF;
    IF to_regclass($f$, quote_literal(places), $f$) IS DISTINCT FROM NULL THEN
        -- The equal rows up to the last one that was taken are passed over. One more than wanted tells whether that
        -- is to be noted.
        WITH u AS (
            SELECT u.v COLLATE "C" AS image, lead(u.v) OVER (ORDER BY u.n) AS made, u.n
              FROM unnest($1) WITH ORDINALITY AS u(v, n)
        ), k AS (
            SELECT u.image, hashtextextended(u.image, 0) AS hash, array_agg(u.made) AS made, count(*) AS wanted
              FROM u WHERE u.n % 2 = 1 OR NOT $2 GROUP BY u.image
        ), f AS (
            SELECT k.hash, k.made, k.wanted, c.leaves, c.places
              FROM k LEFT JOIN LATERAL (
                   SELECT t.leaf, t.place FROM $f$, places, $f$ t
                    WHERE t.hash = k.hash AND t.taken
                    ORDER BY t.hash DESC, t.taken DESC, t.leaf DESC, t.place DESC LIMIT 1) t ON true
             CROSS JOIN LATERAL (
                   SELECT array_agg(c.leaf) AS leaves, array_agg(c.place) AS places
                     FROM (SELECT p.leaf, p.place
                             FROM $f$, places, $f$ p
                             JOIN $f$, p.written, $f$ n ON n.tableoid = p.leaf AND n.ctid = p.place
                            WHERE p.hash = k.hash AND NOT p.taken
                              AND (p.leaf, p.place) > (coalesce(t.leaf, 0::oid), coalesce(t.place, '(0,0)'::tid))
                              AND $f$, image, $f$ = k.image
                            ORDER BY p.hash, p.taken, p.leaf, p.place LIMIT k.wanted + 1) c) c
        ), taken AS (
            INSERT INTO $f$, places, $f$
            SELECT f.hash, true, f.leaves[f.wanted], f.places[f.wanted] FROM f WHERE cardinality(f.places) > f.wanted
        )
        SELECT array_agg(r.leaf), array_agg(r.place), array_agg(r.made) INTO v_leaves, v_places, v_made
          FROM f CROSS JOIN LATERAL unnest(f.leaves, f.places, f.made) WITH ORDINALITY AS r(leaf, place, made, i)
         WHERE r.place IS DISTINCT FROM NULL AND r.i <= f.wanted;
    END IF;
    IF cardinality(v_places) IS DISTINCT FROM v_wanted THEN
        PERFORM set_config('enable_nestloop', 'off', true), set_config('enable_hashjoin', 'on', true),
                set_config('enable_seqscan', 'on', true);
        WITH u AS (
            SELECT u.v COLLATE "C" AS image, lead(u.v) OVER (ORDER BY u.n) AS made, u.n
              FROM unnest($1) WITH ORDINALITY AS u(v, n)
        ), w AS (
            SELECT u.image, u.made, row_number() OVER (PARTITION BY u.image ORDER BY u.n) AS i
              FROM u WHERE u.n % 2 = 1 OR NOT $2
        ), f AS (
            SELECT n.tableoid AS leaf, n.ctid AS place, k.image, row_number() OVER (PARTITION BY k.image) AS i
              FROM (SELECT DISTINCT w.image FROM w) k JOIN $f$, p.written, $f$ n ON $f$, image, $f$ = k.image
        )
        SELECT array_agg(f.leaf), array_agg(f.place), array_agg(w.made) INTO v_leaves, v_places, v_made
          FROM w JOIN f ON f.image = w.image AND f.i = w.i;
        PERFORM set_config('enable_nestloop', 'on', true), set_config('enable_hashjoin', 'off', true),
                set_config('enable_seqscan', 'off', true);
        v_passes := v_passes + 1;
    END IF;
    IF v_large THEN
        PERFORM set_config($f$, passes, $f$, v_passes::text, true);
    END IF;
    IF $2 THEN
        UPDATE $f$, p.written, $f$ o SET $f$, replaced, $f$
          FROM (SELECT p.leaf, p.place, p.made::$f$, p.row_type, $f$ AS r FROM unnest(v_leaves, v_places, v_made) AS p(leaf, place, made)
                OFFSET 0) m
         WHERE o.tableoid = m.leaf AND o.ctid = m.place;
        GET DIAGNOSTICS v_result = ROW_COUNT;
    ELSE
        FOR v_leaf IN SELECT DISTINCT l FROM unnest(v_leaves) l LOOP
            EXECUTE format('DELETE FROM ONLY %s o WHERE o.ctid = ANY ($1)', v_leaf::regclass)
                USING array(SELECT p.place FROM unnest(v_leaves, v_places) AS p(leaf, place) WHERE p.leaf = v_leaf);
            GET DIAGNOSTICS v_erased = ROW_COUNT;
            v_result := v_result + v_erased;
        END LOOP;
    END IF;
    RETURN v_result;
END $f$))
        || format(E'GRANT EXECUTE ON FUNCTION %s TO pgherd_apply;\n', fname);
END $$;

-- All generated functions and types of a table of which rows can be captured, unless it is uncertain `why`; p: `source_parts`
-- of the table that they are captured for.
CREATE OR REPLACE FUNCTION pgherd.table_source(t pgherd.user_tables, p record, why text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    source text := '';
    kind   text;
BEGIN
    IF why IS NULL THEN -- what is in the log already is applied all the same
        FOREACH kind IN ARRAY '{INSERT,UPDATE,DELETE}'::text[] LOOP
            source := source || CASE WHEN p.identity IS NULL THEN pgherd.capture_image_source(t.relid, p, kind, t.inherits)
                                     ELSE pgherd.capture_source(t.relid, p, kind, t.inherits) END;
        END LOOP;
        source := source || pgherd.truncate_source(t, p) || pgherd.checks_source(t.relid, p);
    END IF;
    RETURN source
        || CASE WHEN t.relid = p.root
                THEN pgherd.row_type_source(p.root) || pgherd.final_source(p)
                     || CASE WHEN why IS NULL THEN coalesce(pgherd.doubled_source(p), '') ELSE '' END
                     || pgherd.fingerprint_source(p) || pgherd.erase_source(p)
                ELSE '' END;
END $$;

-- All our triggers on one table of which rows can be captured; p: as above; counted: see counts_statements().
CREATE OR REPLACE FUNCTION pgherd.table_triggers(t pgherd.user_tables, p record, counted bool) RETURNS TABLE (name text, source text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY
    SELECT 'pgherd_' || lower(k.kind), pgherd.capture_trigger(t, k.kind)
      FROM (VALUES ('INSERT'), ('UPDATE'), ('DELETE')) AS k(kind)
    UNION ALL SELECT f.* FROM pgherd.truncate_triggers(t, p) f
    UNION ALL SELECT f.* FROM pgherd.checks_triggers(t, p) f
    UNION ALL SELECT f.* FROM pgherd.move_triggers(t) f
    UNION ALL
    SELECT m.name, format('CREATE OR REPLACE TRIGGER %s %s INSERT OR UPDATE OR DELETE OR TRUNCATE ON %s FOR EACH STATEMENT'
                          ' EXECUTE FUNCTION pgherd.mark_statement(%L)', m.name, m.moment, t.name, m.mark)
      FROM (VALUES ('pgherd_a', 'BEFORE', 'opened'), ('pgherd_z', 'AFTER', 'closed')) AS m(name, moment, mark)
     WHERE counted;
END $$;

-- A table that was an inheritance child becomes a partition. A session that waits to write its former parent goes on to write
-- it as a child, so it must not find both changes at once.
CREATE OR REPLACE FUNCTION pgherd.refuse_to_attach(rel regclass) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM pgherd.capture_rows(pg_current_xact_id()) c
                WHERE c.tab = '""' AND c.recs <> '{}' AND c.recs[1]::jsonb -> 'rels' ? rel::text) THEN
        PERFORM pgherd.refuse(format('%s was changed in this transaction and inherited from another table', rel),
                              'ATTACH PARTITION in a transaction of its own.');
    END IF;
END $$;

-- Makes the triggers of a table, which are those of `had`, the `wanted` ones: the statements that make them, by name. Returns
-- what it has now. To drop one locks out readers, so that is done only where nothing takes its place.
-- by_row: its rows are captured one by one.
CREATE OR REPLACE FUNCTION pgherd.make_triggers(rel regclass, by_row bool, had jsonb, wanted jsonb) RETURNS jsonb
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    trig record;
    has  jsonb := wanted;
BEGIN
    FOR trig IN SELECT t.tgname AS name, wanted ->> t.tgname AS wanted
                  FROM pg_trigger t
                 WHERE t.tgrelid = rel AND t.tgname ILIKE E'pgherd\\_%'
                   AND (NOT wanted ? t.tgname
                        -- it has become part of an inheritance tree, or ceased to be one
                        OR t.tgname IN ('pgherd_insert', 'pgherd_update', 'pgherd_delete', 'pgherd_refuse', 'Pgherd_before')
                           AND (t.tgtype & 1 = 1) <> by_row) LOOP
        IF trig.name = 'pgherd_insert' AND trig.wanted <> '' AND NOT by_row THEN
            PERFORM pgherd.refuse_to_attach(rel);
        END IF;
        BEGIN
            EXECUTE format('DROP TRIGGER %I ON %s', trig.name, rel);
        EXCEPTION WHEN object_in_use THEN
            IF trig.wanted <> '' THEN
                RAISE;
            END IF;
            -- The statement around this command changes the table. It may stay until the next time.
            has := has || jsonb_build_object(trig.name, 'in use');
        END;
    END LOOP;
    FOR trig IN SELECT w.value AS source FROM jsonb_each_text(wanted) AS w
                 WHERE had ->> w.key IS DISTINCT FROM w.value
                    OR NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = rel AND t.tgname = w.key) LOOP
        EXECUTE trig.source;
    END LOOP;
    RETURN has;
END $$;

-- The generated functions of a table.
CREATE OR REPLACE FUNCTION pgherd.generated_functions(rel oid) RETURNS oid[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN array(SELECT p.oid FROM pg_proc p
                  WHERE p.proname = ANY (ARRAY['insert_' || rel, 'update_' || rel, 'delete_' || rel, 'truncate_' || rel,
                                               'checks_' || rel, 'final_' || rel, 'doubled_' || rel,
                                               'fingerprint_' || rel, 'erase_' || rel])
                    AND p.pronamespace = 'pgherd_gen'::regnamespace);
END $$;

-- Takes from everybody the right to call those that are new.
CREATE OR REPLACE FUNCTION pgherd.revoke_generated(rel oid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    names text := (SELECT string_agg(p.oid::regprocedure::text, ', ') FROM pg_proc p
                    WHERE p.oid = ANY (pgherd.generated_functions(rel))
                      AND EXISTS (SELECT FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a WHERE a.grantee = 0));
BEGIN
    IF names <> '' THEN
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', names);
    END IF;
END $$;

-- A hash of all that what is generated for a table is made of. NULL where other relations and types have a part in it: for
-- partitions and inheritance trees, columns of types that are made of others, and indexes that are being built. Of functions,
-- enums, operator classes and collations nothing is told. A command that changes one of these may concern any table.
CREATE OR REPLACE FUNCTION pgherd.source_inputs(t pgherd.user_tables) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF t.relid <> t.root_relid OR t.partitioned OR t.inherits
       OR EXISTS (SELECT FROM pg_attribute a JOIN pg_type y ON y.oid = a.atttypid
                   WHERE a.attrelid = t.relid AND a.attnum > 0 AND y.oid >= 16384 AND y.typtype <> 'e')
       OR EXISTS (SELECT FROM pgherd.long_commands l WHERE l.relid = t.relid) THEN
        RETURN NULL;
    END IF;
    RETURN md5(concat_ws(
        '|', t.name, (SELECT m.native FROM pgherd.capture_mode m), pgherd.counts_statements(ARRAY[t.relid]),
        pgherd.owns_sequences(t.relid),
        (SELECT string_agg(concat_ws(',', a.attnum, quote_ident(a.attname), a.atttypid, a.attcollation, a.attnotnull, a.attgenerated,
                                     a.attidentity, a.attcompression, a.attstorage, d.adbin), ';' ORDER BY a.attnum)
           FROM pg_attribute a
           LEFT JOIN pg_attrdef d ON a.attgenerated <> '' AND d.adrelid = a.attrelid AND d.adnum = a.attnum
          WHERE a.attrelid = t.relid AND a.attnum > 0 AND NOT a.attisdropped),
        -- of an index that forbids nothing only how it keeps a value that is compressed
        (SELECT string_agg(CASE WHEN i.indisunique OR i.indisexclusion OR i.indexprs IS NOT NULL OR i.indpred IS NOT NULL
                                THEN concat_ws(',', i::text, pgherd.index_seed(i.indexrelid), quote_ident(c.relname))
                                ELSE concat_ws(',', c.relam, i.indkey) END, ';' ORDER BY i.indexrelid)
           FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
          WHERE i.indrelid = t.relid
            AND (i.indisunique OR i.indisexclusion OR i.indexprs IS NOT NULL OR i.indpred IS NOT NULL
                 OR EXISTS (SELECT FROM pg_attribute a
                             WHERE a.attrelid = t.relid AND a.attnum = ANY (i.indkey::int2[]) AND a.attlen = -1))),
        (SELECT string_agg(f::text, ';' ORDER BY f.oid) FROM pg_constraint f WHERE f.conrelid = t.relid AND f.contype <> 'f'),
        -- foreign keys of the table, and to it: each has a trigger there
        (SELECT string_agg(concat_ws(',', f::text, x::text, pgherd.index_seed(x.indexrelid), n.nspname, c.relname, (
                               SELECT string_agg(concat_ws(',', a.attrelid, a.attnum, a.atttypid, a.attcollation), ';'
                                                 ORDER BY a.attrelid, a.attnum)
                                 FROM pg_attribute a
                                WHERE a.attrelid = x.indexrelid OR a.attrelid = f.confrelid AND a.attnum = ANY (f.confkey))), ';'
                           ORDER BY f.oid)
           FROM pg_constraint f
           LEFT JOIN pg_index x ON f.conrelid = t.relid AND x.indexrelid = f.conindid
           LEFT JOIN pg_class c ON c.oid = coalesce(pg_partition_root(x.indrelid)::oid, x.indrelid)
           LEFT JOIN pg_namespace n ON n.oid = c.relnamespace
          WHERE f.contype = 'f' AND f.oid IN (SELECT r.tgconstraint FROM pg_trigger r WHERE r.tgrelid = t.relid))));
END $$;

-- Has a type, a function, an operator or a collation that is not PostgreSQL's own a part in the columns, constraints or indexes
-- of a table, or in an index to which a foreign key of it refers?
CREATE OR REPLACE FUNCTION pgherd.is_made_of_others(rel oid) RETURNS bool
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM (SELECT 'pg_class'::regclass AS class, rel AS id
                     UNION ALL SELECT 'pg_class'::regclass, i.indexrelid FROM pg_index i WHERE i.indrelid = rel
                     UNION ALL SELECT 'pg_constraint'::regclass, c.oid FROM pg_constraint c WHERE c.conrelid = rel
                     UNION ALL SELECT 'pg_class'::regclass, f.conindid FROM pg_constraint f WHERE f.conrelid = rel AND f.contype = 'f'
                     UNION ALL SELECT 'pg_attrdef'::regclass, f.oid FROM pg_attrdef f WHERE f.adrelid = rel) p
          JOIN pg_depend d ON d.classid = p.class AND d.objid = p.id
         WHERE d.refclassid NOT IN ('pg_class'::regclass, 'pg_constraint'::regclass, 'pg_namespace'::regclass));
END $$;

-- Makes what is generated agree with the catalog: for the given relations, or for all. Those are left as they are whose `inputs`
-- have not changed, unless all are made `anew`: most relatives of a table that has changed, the table itself if only a default
-- has, and most tables after a command that may concern any. Most commands change the functions of a table, and not its triggers.
-- Constants in expressions of indexes, and bounds of partitions, are written as the functions read them (text_settings), however
-- the session writes values.
DROP FUNCTION IF EXISTS pgherd.reconcile(oid[]); -- that of an earlier version made all anew
CREATE OR REPLACE FUNCTION pgherd.reconcile(rels oid[] DEFAULT NULL, anew bool DEFAULT true) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET client_min_messages = warning SET DateStyle = 'ISO, YMD'
SET IntervalStyle = 'postgres' SET TimeZone = 'UTC' SET extra_float_digits = 1 SET bytea_output = 'hex' SET lc_monetary = 'C'
SET xmlbinary = 'base64' SET standard_conforming_strings = on AS $$
DECLARE
    r       record;
    t       pgherd.user_tables;
    root    oid;
    parts   record; -- of `root`
    family  oid[] := '{}'; -- all tables of a tree, which have these two in common
    unsure  text;
    counted bool;
    why     text;
    source  text;
    wanted  jsonb; -- triggers
    made_of text; -- the table's `inputs`
    had     pgherd.generated;
BEGIN
    FOR r IN SELECT c.oid AS relid, c.oid::regclass AS name, u AS tab,
                    EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = u.root_relid AND a.attnum > 0
                                                         AND NOT a.attisdropped AND a.attgenerated = '') AS holds_values
               FROM pg_class c
               LEFT JOIN pgherd.user_tables u ON u.relid = c.oid AND EXISTS (SELECT FROM pgherd.tables k WHERE k.relid = c.oid)
              WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND (rels IS NULL OR c.oid = ANY (rels))
                AND (u.relid IS NOT NULL OR EXISTS (SELECT FROM pgherd.generated g WHERE g.relid = c.oid))
              ORDER BY u.root_relid, c.oid LOOP
        t := r.tab; -- NULL for one that is not replicated any more
        -- A session that has begun to write a parent goes on to write its child when that is none any more. It fires the
        -- child's triggers of rows then, and none of statements.
        t.inherits := t.inherits OR t.relid = t.root_relid AND NOT t.partitioned AND EXISTS (
            SELECT FROM pg_trigger p WHERE p.tgrelid = t.relid AND p.tgname = 'pgherd_insert' AND p.tgtype & 1 = 1);
        made_of := CASE WHEN r.holds_values THEN pgherd.source_inputs(t) END;
        SELECT * INTO had FROM pgherd.generated g WHERE g.relid = r.relid;
        CONTINUE WHEN NOT anew AND had.inputs = made_of AND (rels IS NOT NULL OR NOT pgherd.is_made_of_others(r.relid));
        source := '';
        why := NULL;
        wanted := '{}';
        IF r.holds_values THEN
            IF t.root_relid IS DISTINCT FROM root THEN -- partitions come one after the other
                root := t.root_relid;
                parts := pgherd.source_parts(root);
            END IF;
            IF t.relid <> ALL (family) THEN
                family := pgherd.trees_of(ARRAY[t.relid]);
                unsure := pgherd.why_uncertain(family);
                counted := pgherd.counts_statements(family);
            END IF;
            why := unsure;
            source := pgherd.table_source(t, parts, why);
        END IF;
        IF r.holds_values AND why IS NULL THEN
            wanted := (SELECT jsonb_object_agg(f.name, f.source) FROM pgherd.table_triggers(t, parts, counted) f);
        ELSIF t.relid IS NOT NULL THEN
            wanted := pgherd.refusal_triggers(t, why);
        END IF;
        IF had.fingerprint = md5(source) AND had.triggers = wanted THEN
            UPDATE pgherd.generated g SET inputs = made_of WHERE g.relid = r.relid AND g.inputs IS DISTINCT FROM made_of;
            CONTINUE;
        END IF;
        IF source <> '' AND had.fingerprint IS DISTINCT FROM md5(source) THEN
            EXECUTE source;
            PERFORM pgherd.revoke_generated(r.relid);
        END IF;
        IF had.triggers IS DISTINCT FROM wanted THEN
            had.triggers := pgherd.make_triggers(r.name, t.inherits, had.triggers, wanted);
        END IF;
        DELETE FROM pgherd.capture_plans c WHERE c.relid = r.relid;
        IF r.holds_values AND why IS NULL AND pgherd.is_captured_natively(t.relid, t.inherits) THEN
            PERFORM pgherd.plan_native_capture(r.relid, parts);
        END IF;
        INSERT INTO pgherd.generated VALUES (r.relid, md5(source), had.triggers, CASE WHEN had.triggers = wanted THEN made_of END)
            ON CONFLICT (relid) DO UPDATE
           SET fingerprint = EXCLUDED.fingerprint, triggers = EXCLUDED.triggers, inputs = EXCLUDED.inputs;
    END LOOP;
    FOR r IN DELETE FROM pgherd.generated g
              WHERE NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = g.relid) RETURNING g.relid LOOP
        PERFORM pgherd.drop_generated(r.relid);
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION pgherd.drop_generated(rel oid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET client_min_messages = warning AS $$
DECLARE
    names text := (SELECT string_agg(f.oid::regprocedure::text, ', ') FROM unnest(pgherd.generated_functions(rel)) AS f(oid));
BEGIN
    IF names <> '' THEN
        EXECUTE 'DROP FUNCTION ' || names;
    END IF;
    IF to_regtype('pgherd_gen.row_' || rel) IS NOT NULL THEN
        EXECUTE format('DROP TYPE pgherd_gen.row_%s', rel);
    END IF;
    DELETE FROM pgherd.capture_plans p WHERE p.relid = rel;
END $$;

-- All that the applier must know of a table to write it, by its name as it stands in writesets: see TableShape.
-- It should take no lock that a session may hold which waits for the answer; if it does, it gives up.
DROP FUNCTION IF EXISTS pgherd.describe(text); -- that of an earlier version returns less
CREATE FUNCTION pgherd.describe(
    tab text, OUT columns text[], OUT pk int[], OUT generated int[], OUT same_key text, OUT "only" bool,
    OUT row_type text, OUT erase text, OUT updatable bool, OUT fixed int[])
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s'
BEGIN ATOMIC
    SELECT array_agg(c.col ORDER BY c.pos),
           coalesce(array_agg(c.pos - 1 ORDER BY c.pos) FILTER (WHERE c.in_pk), '{}'),
           coalesce(array_agg(c.pos - 1 ORDER BY c.pos) FILTER (WHERE c.generated), '{}'),
           coalesce(pgherd.key_equal(tab::regclass), ''),
           (SELECT u.inherits FROM pgherd.user_tables u WHERE u.relid = tab::regclass),
           pgherd.row_type(tab::regclass),
           CASE WHEN pgherd.identity_index(tab::regclass) IS NULL
                THEN format('pgherd_gen.erase_%s', tab::regclass::oid) ELSE '' END,
           bool_and(c.in_pk OR a.attidentity <> 'a')
           -- ON CONFLICT judges by all unique keys of the identity's columns, and refuses one that is deferrable
           AND coalesce((SELECT bool_and(k.indimmediate) FROM pg_index i JOIN pg_index k ON k.indrelid = i.indrelid AND k.indisunique
                          WHERE i.indexrelid = pgherd.identity_index(tab::regclass)
                            AND (k.indkey::int2[])[0:k.indnkeyatts - 1] @> (i.indkey::int2[])[0:i.indnkeyatts - 1]
                            AND (k.indkey::int2[])[0:k.indnkeyatts - 1] <@ (i.indkey::int2[])[0:i.indnkeyatts - 1]), false)
           -- ON CONFLICT refuses such tables, though their rules are silent
           AND NOT EXISTS (SELECT FROM pg_rewrite r WHERE r.ev_class = tab::regclass AND r.ev_type IN ('2', '3')),
           -- a subscriber to inserts alone would miss a row that is made of a deleted one
           coalesce(array_agg(c.pos - 1 ORDER BY c.pos) FILTER (
               WHERE a.attidentity = 'a' OR EXISTS (SELECT FROM pg_publication p WHERE p.pubinsert AND NOT p.pubupdate)), '{}')
      FROM pgherd.columns(tab::regclass) c
      JOIN pg_attribute a ON a.attrelid = tab::regclass AND NOT a.attisdropped AND quote_ident(a.attname) = c.col;
END;
