-- case: programs
COPY pgherd.applied TO PROGRAM 'id'
-- case: files
SELECT pg_read_file('PG_VERSION')
-- case: roles
CREATE ROLE another
-- case: itself
ALTER ROLE pgherd_apply SUPERUSER
-- case: the superuser
SET ROLE postgres
-- case: the session of the superuser
SET SESSION AUTHORIZATION postgres
-- case: code
CREATE FUNCTION pgherd.another() RETURNS int LANGUAGE sql AS 'SELECT 1'
-- case: DDL
ALTER TABLE pgherd.applied ADD COLUMN another int
-- case: catalogs
UPDATE pg_catalog.pg_authid SET rolsuper = true
-- case: settings of the server
ALTER SYSTEM SET archive_command = 'id'
-- case: catalogs by the function that truncates
SELECT pgherd.truncate(ARRAY['pg_catalog.pg_authid'::regclass])
