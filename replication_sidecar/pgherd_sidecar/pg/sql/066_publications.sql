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

-- An UPDATE may travel as a delete and an insert. PostgreSQL refuses to delete a row of which a publication says nothing
-- but that its deletes are published, where the table has no identity for it; the UPDATE worked at the origin.
CREATE OR REPLACE FUNCTION pgherd.check_publications() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE name text := (SELECT min(p.pubname) FROM pg_publication p WHERE p.pubdelete AND NOT p.pubupdate AND pgherd.is_new(p.xmin));
BEGIN
    IF name IS NOT NULL THEN
        PERFORM pgherd.refuse(format('publication %I publishes deletes and no updates, which is not supported', name),
            'Publish both, or none of them: other members may apply an UPDATE as a delete and an insert.');
    END IF;
END $$;
REVOKE ALL ON FUNCTION pgherd.check_publications() FROM PUBLIC;
