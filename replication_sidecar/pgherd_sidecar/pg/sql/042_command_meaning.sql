-- Commands that change nothing by which rows are written: comments, privileges, owners, new functions. A dump has some of them
-- for each object. What is made for tables need not be made anew behind them, on any member, which costs
-- most of what a command does; and an owner's change need not exclude writers.

CREATE OR REPLACE FUNCTION pgherd.defines_nothing(tag text) RETURNS bool
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN tag = ANY ('{COMMENT, GRANT, REVOKE, ALTER DEFAULT PRIVILEGES, SECURITY LABEL}'::text[]);
END $$;

-- What pg_dump gives an owner to with a command whose tables cannot be told.
CREATE OR REPLACE FUNCTION pgherd.may_change_owner_only(tag text) RETURNS bool
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN tag = ANY ('{ALTER SCHEMA, ALTER TYPE, ALTER DOMAIN, ALTER COLLATION, ALTER OPERATOR, ALTER OPERATOR CLASS,
        ALTER OPERATOR FAMILY, ALTER TEXT SEARCH CONFIGURATION, ALTER TEXT SEARCH DICTIONARY}'::text[]);
END $$;

-- All that such a command can change, but for owners and privileges; NULL for other commands.
CREATE OR REPLACE FUNCTION pgherd.meaning(tag text) RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT pgherd.may_change_owner_only(tag) THEN
        RETURN NULL;
    END IF;
    -- A row that is as it was is the same version of it. Rows that hold an owner are compared by their other columns.
    RETURN (
    SELECT sum(u.hash)
      FROM (SELECT hash_record_extended(ROW(n.oid, n.nspname), 1) AS hash FROM pg_namespace n
            UNION ALL
            SELECT hash_record_extended(
                       ROW(t.oid, t.typname, t.typnamespace, t.typlen, t.typbyval, t.typtype, t.typcategory,
                           t.typispreferred, t.typisdefined, t.typdelim, t.typrelid, t.typsubscript, t.typelem, t.typarray,
                           t.typinput, t.typoutput, t.typreceive, t.typsend, t.typmodin, t.typmodout, t.typanalyze, t.typalign,
                           t.typstorage, t.typnotnull, t.typbasetype, t.typtypmod, t.typndims, t.typcollation,
                           t.typdefaultbin::text, t.typdefault), 2)
              FROM pg_type t WHERE t.oid >= 16384
            UNION ALL
            SELECT hash_record_extended(
                       ROW(c.oid, c.relname, c.relnamespace, c.reltype, c.reloftype, c.relam, c.relfilenode,
                           c.relpersistence, c.relkind, c.relnatts, c.relchecks, c.relispartition, c.reloptions), 3)
              FROM pg_class c WHERE c.oid >= 16384
            UNION ALL
            SELECT hash_record_extended(
                       ROW(c.oid, c.collname, c.collnamespace, c.collprovider, c.collisdeterministic,
                           c.collencoding, c.collcollate, c.collctype, c.collversion), 4)
              FROM pg_collation c WHERE c.oid >= 16384
            UNION ALL
            SELECT hash_record_extended(
                       ROW(o.oid, o.oprname, o.oprnamespace, o.oprkind, o.oprcanmerge, o.oprcanhash, o.oprleft,
                           o.oprright, o.oprresult, o.oprcom, o.oprnegate, o.oprcode, o.oprrest, o.oprjoin), 5)
              FROM pg_operator o WHERE o.oid >= 16384
            UNION ALL
            SELECT hash_record_extended(
                       ROW(o.oid, o.opcmethod, o.opcname, o.opcnamespace, o.opcfamily, o.opcintype,
                           o.opcdefault, o.opckeytype), 6)
              FROM pg_opclass o WHERE o.oid >= 16384
            UNION ALL SELECT hash_record_extended(ROW(o.oid, o.opfmethod, o.opfname, o.opfnamespace), 7) FROM pg_opfamily o
            UNION ALL
            SELECT hash_record_extended(ROW(t.oid, t.cfgname, t.cfgnamespace, t.cfgparser), 8) FROM pg_ts_config t
            UNION ALL
            SELECT hash_record_extended(ROW(t.oid, t.dictname, t.dictnamespace, t.dicttemplate, t.dictinitoption), 9)
              FROM pg_ts_dict t
            UNION ALL
            SELECT hash_record_extended(ROW(v.tableoid, v.xmin, v.ctid), 10)
              FROM (SELECT a.tableoid, a.xmin, a.ctid FROM pg_attribute a WHERE a.attrelid >= 16384
                    UNION ALL SELECT d.tableoid, d.xmin, d.ctid FROM pg_attrdef d
                    UNION ALL SELECT e.tableoid, e.xmin, e.ctid FROM pg_enum e
                    UNION ALL SELECT r.tableoid, r.xmin, r.ctid FROM pg_range r
                    UNION ALL SELECT c.tableoid, c.xmin, c.ctid FROM pg_constraint c
                    UNION ALL SELECT i.tableoid, i.xmin, i.ctid FROM pg_index i WHERE i.indexrelid >= 16384
                    UNION ALL SELECT m.tableoid, m.xmin, m.ctid FROM pg_amop m WHERE m.oid >= 16384
                    UNION ALL SELECT m.tableoid, m.xmin, m.ctid FROM pg_amproc m WHERE m.oid >= 16384
                    UNION ALL SELECT m.tableoid, m.xmin, m.ctid FROM pg_ts_config_map m) v) u);
END $$;

-- Has the command left all tables as they were? `meaning`: what there was when it began. `coarse`: it concerns them all.
CREATE OR REPLACE FUNCTION pgherd.leaves_tables(tag text, meaning text, coarse bool) RETURNS bool
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    IF pgherd.defines_nothing(tag) THEN
        RETURN true;
    END IF;
    RETURN -- A function that is replaced may be part of an expression of a table.
        tag = ANY ('{CREATE FUNCTION, CREATE PROCEDURE, CREATE AGGREGATE}'::text[]) AND NOT coarse
           AND NOT EXISTS (SELECT FROM pg_proc p JOIN pg_depend d ON d.refclassid = 'pg_proc'::regclass AND d.refobjid = p.oid
                            WHERE p.oid >= 16384 AND p.pronamespace NOT IN ('pgherd'::regnamespace, 'pgherd_gen'::regnamespace)
                              AND pgherd.is_own(p.xmin))
        OR coalesce(meaning = pgherd.meaning(tag), false);
END $$;
