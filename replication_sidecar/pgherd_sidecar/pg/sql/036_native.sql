-- The native module: a library in C that captures rows and is the pre-commit hook, where it is installed
-- (docs/native.md). It sends the same request, so other members notice nothing, and it leaves all that is not the usual
-- case to the functions of the files before this one.
--
-- Its expressions are those of the generated functions, as text; it computes no key and no record of its own.

-- How this node captures; `reason`: why not natively, '' if it does.
CREATE TABLE IF NOT EXISTS pgherd.capture_mode (
    only_row bool PRIMARY KEY DEFAULT true CHECK (only_row),
    native   bool NOT NULL,
    reason   text NOT NULL
);
INSERT INTO pgherd.capture_mode (native, reason) VALUES (false, 'it has never been started') ON CONFLICT DO NOTHING;

-- For each table that is captured natively, and each kind of statement: the generated function for all that the module
-- leaves to it; the table as a JSON string, and its keys; and expressions over a row `o` or `n`, or over `o` that has become
-- `n`. These are NULL where the function does it all.
--   image      of a table without identity, the text that is $1 in the others
--   condition  has to hold for each row, or the function captures them all; NULL: it does
--   keys       certification keys; NULL or '' if there are none
--   pk, rec    the hash of the primary key, and the record
--   many       may one statement have several rows? If not, the function captures these.
CREATE TABLE IF NOT EXISTS pgherd.capture_plans (
    relid      oid  NOT NULL,
    kind       text NOT NULL,
    function   oid  NOT NULL,
    tab        text,
    table_keys text,
    image      text,
    condition  text,
    keys       text,
    pk         text,
    rec        text,
    many       bool,
    PRIMARY KEY (relid, kind)
);

CREATE OR REPLACE FUNCTION pgherd.is_captured_natively(rel oid, by_row bool) RETURNS bool
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN NOT by_row AND (SELECT m.native FROM pgherd.capture_mode m);
END $$;

-- Writes down how a table is captured natively; p: `source_parts` of the table that it is captured for.
--
-- The function captures what needs a base that was kept (before_checks): a row that a foreign key refers to and that may be
-- gone, or one that a deferrable constraint has not checked yet; and an UPDATE without identity, which is two records. The rows of an UPDATE come in pairs, of
-- which each must have kept its identity; so none has been changed twice unless referential actions do that.
CREATE OR REPLACE FUNCTION pgherd.plan_native_capture(rel oid, p record) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    k    text;
    s    record;
    plan pgherd.capture_plans;
BEGIN
    FOREACH k IN ARRAY '{INSERT,UPDATE,DELETE}'::text[] LOOP
        plan := NULL;
        plan.relid := rel;
        plan.kind := k;
        plan.function := to_regprocedure(format('pgherd_gen.%I()', lower(k) || '_' || rel));
        plan.tab := p.tab;
        plan.table_keys := p.table_keys;
        plan.many := NOT (k = 'UPDATE' AND coalesce(p.changed_again, false));
        IF p.identity IS NULL AND k <> 'UPDATE' AND NOT pgherd.needs_kept_base(p, k) THEN
            plan.image := CASE k WHEN 'INSERT' THEN p.new_record ELSE pgherd.record_full(p.root, 'o', false) END;
            plan.condition := CASE k WHEN 'INSERT' THEN 'NOT ' || p.compressed END;
            plan.keys := CASE k WHEN 'INSERT' THEN pgherd.made_keys(p.root) ELSE pgherd.gone_keys(p.root, '$1') END;
            plan.pk := pgherd.image_key(p.root, '$1');
            plan.rec := format('pg_catalog.concat(%L, $1)', left(k, 1));
        ELSIF p.identity IS NOT NULL THEN
            s := pgherd.capture_shape(p, k, false);
            IF s.checked = '' THEN
                plan.condition := nullif(s.condition, '');
                plan.keys := CASE k WHEN 'INSERT' THEN p.k_ins WHEN 'UPDATE' THEN p.k_upd ELSE p.k_del END;
                plan.pk := CASE k WHEN 'DELETE' THEN p.pk_old ELSE p.pk_new END;
                plan.rec := CASE k WHEN 'INSERT' THEN p.ins_rec WHEN 'UPDATE' THEN p.upd_rec ELSE p.del_rec END;
            END IF;
        END IF;
        plan.keys := 'pg_catalog.concat_ws('','', ' || plan.keys || ')';
        INSERT INTO pgherd.capture_plans SELECT plan.*;
    END LOOP;
END $$;

-- Can this server's sessions load the module, and is it of this version? NULL if so, or else why not.
CREATE OR REPLACE FUNCTION pgherd.why_not_native() RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET client_min_messages = warning AS $$
DECLARE
    wanted CONSTANT int := 5; -- PGHERD_NATIVE_INTERFACE in native/pgherd_native.h
    found  int;
BEGIN
    EXECUTE 'CREATE OR REPLACE FUNCTION pgherd.native_interface() RETURNS int LANGUAGE c'
            ' AS ''$libdir/pgherd_native'', ''pgherd_native_interface''';
    EXECUTE 'REVOKE ALL ON FUNCTION pgherd.native_interface() FROM PUBLIC';
    EXECUTE 'SELECT pgherd.native_interface()' INTO found;
    IF found <> wanted THEN
        RETURN format('the native module has interface %s, this sidecar needs %s: build both from one source', found, wanted);
    END IF;
    RETURN NULL;
EXCEPTION
    WHEN undefined_file THEN
        RETURN 'the native module is not installed';
    WHEN OTHERS THEN
        RETURN SQLERRM;
END $$;

-- The trigger of the capture tables that arms the pre-commit hook: see 020_hook.sql, or the module. The module is armed by
-- the note that checks have begun (032), too: a cascade may be in the way of others (give_way() in 060) before it is captured.
CREATE OR REPLACE FUNCTION pgherd.make_arm_triggers(native bool) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET client_min_messages = warning AS $$
DECLARE side int;
BEGIN
    FOR side IN 0..1 LOOP
        EXECUTE format('DROP TRIGGER IF EXISTS arm ON pgherd.capture_%s', side);
        EXECUTE format(CASE WHEN native
                            THEN 'CREATE TRIGGER arm BEFORE INSERT ON pgherd.capture_%s FOR EACH ROW WHEN (NEW.seq <= 1)'
                                 ' EXECUTE FUNCTION pgherd.native_arm()'
                            ELSE 'CREATE CONSTRAINT TRIGGER arm AFTER INSERT ON pgherd.capture_%s'
                                 ' DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.seq = 1)'
                                 ' EXECUTE FUNCTION pgherd.arm()' END, side);
    END LOOP;
END $$;

-- Has the node capture natively, if that is `wanted` and possible, or else in SQL. `anew`: the files were just run.
-- Returns the reason for SQL, '' if there is none. No library is needed to go back to SQL.
CREATE OR REPLACE FUNCTION pgherd.choose_capture(wanted bool, anew bool) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET client_min_messages = warning AS $$
DECLARE
    why text := CASE WHEN wanted THEN coalesce(pgherd.why_not_native(), '') ELSE 'it is configured so' END;
    was bool := (SELECT m.native FROM pgherd.capture_mode m);
    now bool := why = '';
BEGIN
    UPDATE pgherd.capture_mode m SET native = now, reason = why WHERE (m.native, m.reason) <> (now, why);
    IF now AND (anew OR NOT was) THEN
        EXECUTE 'CREATE OR REPLACE FUNCTION pgherd.native_arm() RETURNS trigger LANGUAGE c'
                ' AS ''$libdir/pgherd_native'', ''pgherd_native_arm''';
        EXECUTE 'CREATE OR REPLACE FUNCTION pgherd.native_capture() RETURNS trigger LANGUAGE c'
                ' AS ''$libdir/pgherd_native'', ''pgherd_native_capture''';
        EXECUTE 'REVOKE ALL ON FUNCTION pgherd.native_arm(), pgherd.native_capture() FROM PUBLIC';
    END IF;
    IF anew OR was <> now THEN
        PERFORM pgherd.make_arm_triggers(now);
        PERFORM pgherd.reconcile();
    END IF;
    IF NOT now THEN -- PostgreSQL upgrades no server that has functions of a library which is not there
        DROP FUNCTION IF EXISTS pgherd.native_interface(), pgherd.native_arm(), pgherd.native_capture();
    END IF;
    RETURN why;
END $$;
