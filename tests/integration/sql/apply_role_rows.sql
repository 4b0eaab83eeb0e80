-- case: tables and types of which all rights were revoked
CREATE TYPE mood AS ENUM ('glad', 'sad');
CREATE TABLE t (id int PRIMARY KEY, m mood);
REVOKE ALL ON TYPE mood FROM PUBLIC;
REVOKE ALL ON t FROM PUBLIC;
-- rows
INSERT INTO t VALUES (1, 'glad'), (2, 'sad'), (3, 'sad');
UPDATE t SET m = 'glad' WHERE id = 2;
DELETE FROM t WHERE id = 3;

-- case: policies that show nothing to anybody else
CREATE TABLE t (id int PRIMARY KEY, v text);
ALTER TABLE t ENABLE ROW LEVEL SECURITY;
ALTER TABLE t FORCE ROW LEVEL SECURITY;
CREATE POLICY own ON t USING (current_user = 'app') WITH CHECK (current_user = 'app');
-- rows
INSERT INTO t VALUES (1, 'a'), (2, 'b');
UPDATE t SET v = 'c' WHERE id = 2;
DELETE FROM t WHERE id = 1;

-- case: a domain, a generated and an identity column
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, p positive, g int GENERATED ALWAYS AS (p * 2) STORED);
-- rows
INSERT INTO t (p) VALUES (1), (2);
UPDATE t SET p = 7 WHERE p = 1;

-- case: truncation of several tables
CREATE TABLE t (id int PRIMARY KEY);
CREATE TABLE "T, u" (id int PRIMARY KEY, r int REFERENCES t);
INSERT INTO t VALUES (1), (2);
INSERT INTO "T, u" VALUES (1, 2);
-- rows
TRUNCATE t, "T, u";
INSERT INTO t VALUES (3);

-- case: a function that only some may call, in a constraint
-- superuser
CREATE FUNCTION even(int) RETURNS bool LANGUAGE sql IMMUTABLE AS 'SELECT $1 % 2 = 0';
REVOKE EXECUTE ON FUNCTION even(int) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION even(int) TO app;
CREATE TABLE t (id int PRIMARY KEY, CHECK (even(id)));
CREATE INDEX ON t (even(id));
ALTER TABLE t OWNER TO app;
-- rows
INSERT INTO t VALUES (2), (4);
UPDATE t SET id = 6 WHERE id = 2;

-- case: a function that was closed when the table was there
-- superuser
CREATE FUNCTION odd(int) RETURNS bool LANGUAGE sql IMMUTABLE AS 'SELECT $1 % 2 = 1';
CREATE TABLE t (id int PRIMARY KEY, CHECK (odd(id)));
ALTER TABLE t OWNER TO app;
GRANT EXECUTE ON FUNCTION odd(int) TO app;
REVOKE EXECUTE ON FUNCTION odd(int) FROM PUBLIC;
-- rows
INSERT INTO t VALUES (1), (3);

-- case: an operator that only some may use compares the keys
-- superuser
CREATE EXTENSION seg;
REVOKE EXECUTE ON FUNCTION seg_same(seg, seg), seg_cmp(seg, seg) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION seg_same(seg, seg), seg_cmp(seg, seg) TO app;
CREATE TABLE t (id seg PRIMARY KEY, v int);
ALTER TABLE t OWNER TO app;
-- rows
INSERT INTO t VALUES ('1 .. 2', 1), ('3 .. 4', 2);
UPDATE t SET v = 3 WHERE id = '1 .. 2';
DELETE FROM t WHERE v = 2;
