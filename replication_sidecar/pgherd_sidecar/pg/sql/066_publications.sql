-- Logical replication out of a member. A publication FOR ALL TABLES is of ours, too, and PostgreSQL refuses to update or
-- delete rows of a published table that has no identity: then this member could apply nothing more.
DO $$
DECLARE tab regclass;
BEGIN
    FOR tab IN SELECT c.oid FROM pg_class c
                WHERE c.relnamespace = 'pgherd'::regnamespace AND c.relkind = 'r' AND c.relpersistence = 'p'
                  AND c.relreplident = 'd' AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary) LOOP
        EXECUTE format('ALTER TABLE %s REPLICA IDENTITY FULL', tab);
    END LOOP;
END $$;

-- What is an UPDATE here may be a DELETE and an INSERT on other members. So a publication has to be of both or of neither:
-- otherwise subscribers of another member would get something else, and that member could not delete rows of a table that
-- has no identity.
CREATE OR REPLACE FUNCTION pgherd.check_publications() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE publication name := (SELECT min(p.pubname) FROM pg_publication p
                              WHERE pgherd.is_new(p.xmin) AND p.pubupdate <> p.pubdelete);
BEGIN
    IF publication IS DISTINCT FROM NULL THEN
        PERFORM pgherd.refuse(
            format('publication %I is of updates without deletes, or of deletes without updates', publication),
            'What is an UPDATE here may be a DELETE and an INSERT on other members: publish both or neither.');
    END IF;
END $$;

-- The tables of the publications that a command has made or changed. PostgreSQL lets nobody write some of their rows from
-- then on, so whoever has just written one of them on another member excludes the command.
CREATE OR REPLACE FUNCTION pgherd.published_by_command() RETURNS oid[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN array(
        WITH o AS (
            SELECT c.objid FROM pg_event_trigger_ddl_commands() c WHERE c.object_type LIKE 'publication%'
        )
        SELECT r.prrelid FROM pg_publication_rel r JOIN o ON r.oid = o.objid OR r.prpubid = o.objid
         UNION SELECT t.relid FROM pg_publication p JOIN o ON p.oid = o.objid CROSS JOIN pgherd.user_tables t WHERE p.puballtables
         UNION SELECT c.oid FROM pg_publication_namespace n JOIN o ON n.oid = o.objid OR n.pnpubid = o.objid
                 JOIN pg_class c ON c.relnamespace = n.pnnspid AND c.relkind IN ('r', 'p'));
END $$;
