-- case: f04 a key of a domain over an enum
-- on n1
CREATE TYPE en AS ENUM ('a', 'b');
CREATE DOMAIN domen AS en;
CREATE TABLE de (k domen PRIMARY KEY, v int);
INSERT INTO de VALUES ('a', 1), ('b', 2);
-- on n2
BEGIN;
UPDATE de SET v = 3;
UPDATE de SET v = 4 WHERE v = 3;
COMMIT;
