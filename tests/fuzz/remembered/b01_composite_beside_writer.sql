-- case: b01 an attribute dropped beside an open writer
-- on n1
CREATE TYPE ct AS (a int, b int);
CREATE TABLE tct (id int PRIMARY KEY, c ct);
-- together
-- on n1 a
BEGIN;
INSERT INTO tct VALUES (1, ROW(1, 2));
-- on n2 b
ALTER TYPE ct DROP ATTRIBUTE b;
-- on n1 a
COMMIT;
-- case: b01 an attribute dropped and another added, in an array, beside an open writer
-- on n1
CREATE TYPE ct AS (a int, b int);
CREATE TABLE tct (id int PRIMARY KEY, c ct[]);
-- together
-- on n1 a
BEGIN;
INSERT INTO tct VALUES (1, ARRAY[ROW(1, 2)::ct]);
-- on n2 b
ALTER TYPE ct DROP ATTRIBUTE b, ADD ATTRIBUTE c int;
-- on n1 a
COMMIT;
-- case: b01 a column dropped whose table is a type, beside an open writer
-- on n1
CREATE TABLE ct (a int PRIMARY KEY, b int);
CREATE TABLE tct (id int PRIMARY KEY, c ct[]);
-- together
-- on n1 a
BEGIN;
INSERT INTO tct VALUES (1, ARRAY[ROW(1, 2)::ct]);
-- on n2 b
ALTER TABLE ct DROP COLUMN b;
-- on n1 a
COMMIT;
