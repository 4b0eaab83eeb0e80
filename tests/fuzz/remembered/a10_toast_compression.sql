-- case: a10 an index tuple that only one kind of compression makes small enough
-- apart
-- on n1
CREATE TABLE cmpr (id int PRIMARY KEY, k text UNIQUE);
SET default_toast_compression = 'lz4';
INSERT INTO cmpr SELECT 2, (SELECT string_agg(chr(19968 + (i * 7919) % 20000), '') FROM generate_series(1, 450) i)
    || repeat('a', 6000);
SET default_toast_compression = 'pglz';
INSERT INTO cmpr SELECT 3, (SELECT string_agg(chr(19968 + (i * 7919) % 20000), '') FROM generate_series(1, 450) i)
    || repeat('b', 6000);
