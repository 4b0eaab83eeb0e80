-- Who owns what. Commands change owners like everything else; REASSIGN OWNED does it too, and PostgreSQL tells no event
-- trigger of it. So every member remembers the owners that all members have. Where its catalog says otherwise somebody has
-- reassigned objects here: 049_unseen.sql has that ordered.
-- A command of another member that comes first finds the owners that all members have: it may rest on them.

-- Objects of this database, and the database, with their owners. What the bootstrap superuser owns is not listed, nor
-- are temporary tables. Nobody can write pg_shdepend through a union.
CREATE OR REPLACE VIEW pgherd.owned AS
SELECT d.classid AS class, d.objid AS object, d.refobjid AS owner, d.xmin AS written
  FROM pg_shdepend d
 WHERE d.deptype = 'o' AND d.refclassid = 'pg_authid'::regclass
   AND d.dbid = (SELECT b.oid FROM pg_database b WHERE b.datname = current_database())
   AND d.classid NOT IN ('pg_default_acl'::regclass, 'pg_largeobject'::regclass, 'pg_user_mapping'::regclass)
   AND NOT (d.classid = 'pg_class'::regclass
            AND EXISTS (SELECT FROM pg_class c WHERE c.oid = d.objid AND c.relpersistence = 't'))
UNION ALL
SELECT d.classid, d.objid, d.refobjid, d.xmin
  FROM pg_shdepend d
 WHERE d.deptype = 'o' AND d.refclassid = 'pg_authid'::regclass AND d.dbid = 0 AND d.classid = 'pg_database'::regclass
   AND d.objid = (SELECT b.oid FROM pg_database b WHERE b.datname = current_database());

-- The owners that every member has, by the numbers of this one.
DO $$
BEGIN
    IF to_regclass('pgherd.owners') IS NULL THEN
        CREATE TABLE pgherd.owners (class oid, object oid, owner oid NOT NULL, PRIMARY KEY (class, object));
        INSERT INTO pgherd.owners SELECT o.class, o.object, o.owner FROM pgherd.owned o;
    END IF;
END $$;

-- After a command, on every member: what our transaction has given an owner, and what is gone. Nobody has counted the
-- rows that a transaction of a thousand commands has made, so that the planner would loop over both sides. A database may have
-- tens of thousands of objects, and most commands leave nearly all of them as they are.
CREATE OR REPLACE FUNCTION pgherd.follow_owners() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = on SET enable_hashjoin = on
SET enable_nestloop = off AS $$
BEGIN
    IF NOT pgherd.may_have_written('pg_shdepend') THEN
        RETURN;
    END IF;
    IF pgherd.may_have_written('pg_shdepend', true) THEN
        DELETE FROM pgherd.owners k WHERE NOT EXISTS (SELECT FROM pgherd.owned o WHERE (o.class, o.object) = (k.class, k.object));
    END IF;
    INSERT INTO pgherd.owners AS k
    SELECT o.class, o.object, o.owner
      FROM pgherd.owned o LEFT JOIN pgherd.owners n ON (n.class, n.object) = (o.class, o.object)
     WHERE n.owner IS DISTINCT FROM o.owner AND pgherd.is_new(o.written)
        ON CONFLICT (class, object) DO UPDATE SET owner = EXCLUDED.owner;
END $$;

-- What has another owner here than on other members. 10 is the bootstrap superuser. The sequence of a serial or identity
-- column follows its table, and what is temporary nobody else has.
CREATE OR REPLACE FUNCTION pgherd.moved_owners(OUT class oid, OUT object oid, OUT former oid, OUT owner oid) RETURNS SETOF record
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = on SET enable_hashjoin = on
SET enable_nestloop = off AS $$
#variable_conflict use_column
BEGIN
    FOR class, object, former, owner IN
        SELECT k.class, k.object, k.owner, coalesce(o.owner, 10::oid)
          FROM pgherd.owners k LEFT JOIN pgherd.owned o USING (class, object)
         WHERE o.owner IS DISTINCT FROM k.owner
    LOOP
        IF EXISTS (SELECT FROM pg_identify_object(class, object, 0) i
                    WHERE i.identity <> '' AND coalesce(i.schema, '') !~ '^pg_(toast_)?temp')
           AND NOT EXISTS (SELECT FROM pg_depend d JOIN pg_class c ON c.oid = d.objid AND c.relkind = 'S'
                            WHERE d.classid = moved_owners.class AND d.objid = moved_owners.object
                              AND d.classid = 'pg_class'::regclass
                              AND d.refclassid = 'pg_class'::regclass AND d.deptype IN ('a', 'i')) THEN
            RETURN NEXT;
        END IF;
    END LOOP;
END $$;

-- An object's kind and name as ALTER and DROP take them; NULL if it is gone.
CREATE OR REPLACE FUNCTION pgherd.object_in_words(class oid, object oid) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT CASE i.type WHEN 'composite type' THEN 'type' WHEN 'statistics object' THEN 'statistics' ELSE i.type END || ' '
                   || CASE i.type WHEN 'aggregate' THEN regexp_replace(i.identity, E'\\(\\)$', '(*)') ELSE i.identity END
              FROM pg_identify_object(class, object, 0) i WHERE i.identity <> '');
END $$;

CREATE OR REPLACE FUNCTION pgherd.give_owner(class oid, object oid, owner name) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF class = 'pg_extension'::regclass THEN -- of which there is no ALTER ... OWNER
        PERFORM set_config('allow_system_table_mods', 'on', true);
        UPDATE pg_extension e SET extowner = r.oid FROM pg_roles r WHERE r.rolname = owner AND e.oid = object;
        UPDATE pg_shdepend d SET refobjid = r.oid
          FROM pg_database b, pg_roles r
         WHERE r.rolname = owner AND b.datname = current_database() AND d.dbid = b.oid AND d.classid = class AND d.objid = object AND d.deptype = 'o';
        PERFORM set_config('allow_system_table_mods', 'off', true);
    ELSE
        EXECUTE format('ALTER %s OWNER TO %I', pgherd.object_in_words(class, object), owner);
    END IF;
END $$;

-- On any member: gives objects their new owners. Where they have them already it takes no lock.
CREATE OR REPLACE FUNCTION pgherd.take_owners(moved jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET session_replication_role = replica AS $$
DECLARE
    m  record;
    id record;
BEGIN
    FOR m IN SELECT u.type, u.names, u.args, u.owner
               FROM jsonb_to_recordset(moved) AS u(type text, names text[], args text[], owner name) LOOP
        BEGIN
            id := pg_get_object_address(m.type, m.names, m.args);
        EXCEPTION WHEN invalid_schema_name OR undefined_object OR undefined_table OR undefined_function OR undefined_column THEN
            CONTINUE; -- a command that was ordered before has dropped it, or renamed it: on all members
        END;
        IF (SELECT r.oid FROM pg_roles r WHERE r.rolname = m.owner)
           <> coalesce((SELECT o.owner FROM pgherd.owned o WHERE (o.class, o.object) = (id.classid, id.objid)), 10::oid) THEN
            PERFORM pgherd.give_owner(id.classid, id.objid, m.owner);
        END IF;
        DELETE FROM pgherd.owners k WHERE (k.class, k.object) = (id.classid, id.objid);
        INSERT INTO pgherd.owners SELECT o.class, o.object, o.owner FROM pgherd.owned o
                                   WHERE (o.class, o.object) = (id.classid, id.objid);
    END LOOP;
END $$;

-- What was reassigned here, by names.
CREATE OR REPLACE FUNCTION pgherd.moved_owners_named() RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT coalesce(jsonb_agg(jsonb_build_object('type', a.type, 'names', a.object_names, 'args', a.object_args,
                                                         'owner', r.rolname)), '[]')
              FROM pgherd.moved_owners() m CROSS JOIN LATERAL pg_identify_object_as_address(m.class, m.object, 0) a
              JOIN pg_roles r ON r.oid = m.owner);
END $$;

-- On another member, before it executes a command: what was reassigned here and is not ordered yet is taken back.
CREATE OR REPLACE FUNCTION pgherd.restore_owners() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE m record;
BEGIN
    FOR m IN SELECT o.class, o.object, r.rolname FROM pgherd.moved_owners() o JOIN pg_roles r ON r.oid = o.former LOOP
        PERFORM pgherd.give_owner(m.class, m.object, m.rolname);
        PERFORM pgherd.tell_undone(format('the owner of %s is %s again: another member''s command came before REASSIGN OWNED was ordered',
                                          pg_describe_object(m.class, m.object, 0), m.rolname));
    END LOOP;
END $$;
