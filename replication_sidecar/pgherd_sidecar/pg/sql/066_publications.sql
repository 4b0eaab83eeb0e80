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
