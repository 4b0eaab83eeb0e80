-- The requests that users make of pgherd, on a plain server: what they mean where there is one.
CREATE SCHEMA pgherd;
GRANT USAGE ON SCHEMA pgherd TO PUBLIC;
CREATE FUNCTION pgherd.set_local("table" regclass) RETURNS void LANGUAGE sql AS 'SELECT';
CREATE FUNCTION pgherd.set_replicated("table" regclass) RETURNS void LANGUAGE sql AS 'SELECT';
CREATE FUNCTION pgherd.setval(sequence regclass, value int8, is_called bool DEFAULT true)
    RETURNS int8 LANGUAGE sql AS 'SELECT pg_catalog.setval(sequence, value, is_called)';
CREATE FUNCTION pgherd.last_gid() RETURNS int8 LANGUAGE sql AS 'SELECT 0::int8';
