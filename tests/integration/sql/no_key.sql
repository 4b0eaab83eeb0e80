-- Tables without a primary key: each case leaves all members with the same rows, as many of equal ones.
-- A message ends with a line that ends in a semicolon.

-- case: an index that is not valid, and one of another collation or equality than its column, tell no rows apart
-- tables: pr, co, eq
CREATE TABLE pr (id int NOT NULL, v int) PARTITION BY RANGE (id);
CREATE TABLE pr1 PARTITION OF pr FOR VALUES FROM (0) TO (100);
ALTER TABLE ONLY pr ADD PRIMARY KEY (id);
INSERT INTO pr VALUES (1, 1), (1, 2);
UPDATE pr SET v = 5 WHERE v = 1;
DELETE FROM pr WHERE v = 2;
ALTER TABLE pr1 ADD PRIMARY KEY (id);
ALTER INDEX pr_pkey ATTACH PARTITION pr1_pkey;
UPDATE pr SET v = 6 WHERE id = 1;
CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE TABLE co (k text COLLATE ci NOT NULL, v int);
CREATE UNIQUE INDEX ON co (k COLLATE "C");
INSERT INTO co VALUES ('a', 1), ('A', 2);
UPDATE co SET v = 3 WHERE v = 1;
DELETE FROM co WHERE v = 2;
CREATE TYPE eq_pair AS (a numeric);
CREATE TABLE eq (k eq_pair NOT NULL, v int);
CREATE UNIQUE INDEX ON eq (k record_image_ops);
INSERT INTO eq VALUES (ROW(1.0), 1), (ROW(1.00), 2);
BEGIN;
UPDATE eq SET v = v + 10;
UPDATE eq SET v = v + 10;
COMMIT;
DELETE FROM eq WHERE v = 22;

-- case: identical rows, one of them is deleted
-- tables: bag
CREATE TABLE bag (v int, w text);
INSERT INTO bag VALUES (1, 'a'), (1, 'a'), (1, 'a'), (NULL, NULL), (NULL, NULL), (2, '');
DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag WHERE v = 1);
DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag WHERE v IS NULL);

-- case: updates that chain and swap
-- tables: bag
CREATE TABLE bag (v int);
INSERT INTO bag SELECT g / 2 FROM generate_series(1, 40) g;
UPDATE bag SET v = v + 1;
UPDATE bag SET v = CASE v WHEN 3 THEN 5 WHEN 5 THEN 3 ELSE v END;
UPDATE bag SET v = v;
UPDATE bag SET v = 7 WHERE ctid = (SELECT min(ctid) FROM bag WHERE v = 3);

-- case: rows touched twice in one transaction
-- tables: bag
CREATE TABLE bag (v int, w text);
INSERT INTO bag VALUES (1, 'a'), (1, 'a'), (2, 'b'), (3, 'c');
BEGIN;
INSERT INTO bag VALUES (1, 'a'), (9, 'z');
UPDATE bag SET w = w || '!' WHERE v = 1;
DELETE FROM bag WHERE v = 9;
UPDATE bag SET v = v - 1;
INSERT INTO bag VALUES (2, 'c');
DELETE FROM bag WHERE ctid = (SELECT max(ctid) FROM bag WHERE v = 2);
COMMIT;

-- case: rows touched twice before a command of temporary objects, and after it
-- tables: bag
CREATE TABLE bag (v int, w text);
INSERT INTO bag VALUES (1, 'a'), (1, 'a'), (2, 'b'), (3, 'c');
BEGIN;
UPDATE bag SET v = v + 10;
UPDATE bag SET w = 'twice' WHERE v = 12;
CREATE TEMP TABLE aside (k int);
UPDATE bag SET v = 1 WHERE v = 11;
UPDATE bag SET w = 'again' WHERE w = 'twice';
DROP TABLE aside;
COMMIT;

-- case: a transaction without effect
-- tables: bag, other
CREATE TABLE bag (v int);
CREATE TABLE other (v int);
INSERT INTO bag VALUES (1), (1);
BEGIN;
INSERT INTO bag VALUES (5);
DELETE FROM bag WHERE v = 5;
COMMIT;
BEGIN;
INSERT INTO bag VALUES (5);
DELETE FROM bag WHERE v = 5;
INSERT INTO other VALUES (6);
INSERT INTO other VALUES (6);
COMMIT;

-- case: savepoints
-- tables: bag
CREATE TABLE bag (v int);
INSERT INTO bag VALUES (1), (1), (2);
BEGIN;
DELETE FROM bag WHERE v = 2;
SAVEPOINT s;
DELETE FROM bag;
ROLLBACK TO s;
INSERT INTO bag VALUES (2), (2);
SAVEPOINT t;
UPDATE bag SET v = v + 10 WHERE v = 1;
RELEASE t;
COMMIT;

-- case: TRUNCATE between rows
-- tables: bag
CREATE TABLE bag (v int);
INSERT INTO bag VALUES (1), (1), (2);
BEGIN;
DELETE FROM bag WHERE v = 2;
INSERT INTO bag VALUES (1), (8);
TRUNCATE bag;
INSERT INTO bag VALUES (1), (3), (3);
DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag WHERE v = 3);
COMMIT;
TRUNCATE bag;
INSERT INTO bag VALUES (4);

-- case: a unique index that is not null is the identity, until it is not
-- tables: u
CREATE TABLE u (a int NOT NULL, b text);
INSERT INTO u VALUES (1, 'x'), (2, 'y');
CREATE UNIQUE INDEX u_a ON u (a);
UPDATE u SET b = 'z' WHERE a = 1;
BEGIN;
UPDATE u SET b = b || '!';
ALTER TABLE u ALTER a DROP NOT NULL;
UPDATE u SET b = b || '?';
INSERT INTO u VALUES (NULL, 'n'), (NULL, 'n');
COMMIT;
DELETE FROM u WHERE ctid = (SELECT min(ctid) FROM u WHERE a IS NULL);
UPDATE u SET a = a + 1 WHERE a IS NOT NULL AND a > 1;

-- case: unique values that move between rows without identity
-- tables: u
CREATE TABLE u (a int UNIQUE, b text);
INSERT INTO u VALUES (1, 'x'), (2, 'y'), (3, 'z'), (NULL, ''), (NULL, '');
BEGIN;
DELETE FROM u WHERE a = 2;
UPDATE u SET a = 2 WHERE a = 1;
UPDATE u SET a = 1 WHERE a = 3;
INSERT INTO u VALUES (3, 'y') ON CONFLICT (a) DO UPDATE SET b = 'conflict';
INSERT INTO u VALUES (1, 'y') ON CONFLICT (a) DO UPDATE SET b = 'conflict';
COMMIT;
MERGE INTO u USING (VALUES (1), (2), (4)) v (a) ON u.a = v.a
  WHEN MATCHED AND u.a = 1 THEN DELETE
  WHEN MATCHED THEN UPDATE SET b = 'merged'
  WHEN NOT MATCHED THEN INSERT VALUES (v.a, 'new');

-- case: parents and children without a primary key
-- tables: p, c
CREATE TABLE p (a int UNIQUE, b text);
CREATE TABLE c (a int REFERENCES p (a) ON UPDATE CASCADE ON DELETE SET NULL, n int);
INSERT INTO p VALUES (1, 'x'), (2, 'y'), (3, 'z');
INSERT INTO c VALUES (1, 1), (1, 1), (2, 1), (3, 1), (NULL, 1);
UPDATE p SET b = 'w' WHERE a = 1;
UPDATE p SET a = 10 WHERE a = 1;
DELETE FROM p WHERE a = 2;

-- case: a primary key comes and goes in the transaction that writes
-- tables: k
BEGIN;
CREATE TABLE k (a int, b text);
INSERT INTO k VALUES (1, 'a'), (2, 'b'), (3, 'c');
UPDATE k SET b = b || b WHERE a > 1;
ALTER TABLE k ADD PRIMARY KEY (a);
UPDATE k SET b = 'keyed' WHERE a = 2;
UPDATE k SET b = b || '!' WHERE a = 2;
DELETE FROM k WHERE a = 3;
COMMIT;
UPDATE k SET b = 'later' WHERE a = 1;
BEGIN;
UPDATE k SET b = 'once';
ALTER TABLE k DROP CONSTRAINT k_pkey;
INSERT INTO k SELECT * FROM k;
UPDATE k SET b = 'twice' WHERE ctid = (SELECT min(ctid) FROM k WHERE a = 1);
COMMIT;
DELETE FROM k WHERE ctid = (SELECT min(ctid) FROM k WHERE a = 2);

-- case: temporary tables and local commands between rows touched twice
-- tables: bag
CREATE TABLE bag (v int);
INSERT INTO bag VALUES (1), (1);
BEGIN;
INSERT INTO bag VALUES (2);
UPDATE bag SET v = 3 WHERE v = 2;
CREATE TEMPORARY TABLE scratch (v int);
DELETE FROM bag WHERE v = 3;
UPDATE bag SET v = 4 WHERE ctid = (SELECT min(ctid) FROM bag WHERE v = 1);
DROP TABLE scratch;
CREATE TABLE made (v int);
UPDATE bag SET v = v + 1;
COMMIT;

-- case: a table made by a query, and its columns
-- tables: q
CREATE TABLE q AS SELECT g / 3 AS v, repeat('x', g) AS w FROM generate_series(1, 9) g;
DELETE FROM q WHERE v = 0;
ALTER TABLE q ADD COLUMN n int DEFAULT 7;
UPDATE q SET n = v WHERE v > 1;
ALTER TABLE q DROP COLUMN v;
INSERT INTO q (n, w) VALUES (1, 'a'), (1, 'a');
DELETE FROM q WHERE n = 7;
ALTER TABLE q RENAME TO q_other;
DELETE FROM q_other WHERE ctid = (SELECT min(ctid) FROM q_other WHERE w = 'a');
ALTER TABLE q_other RENAME TO q;
UPDATE q SET w = 'b' WHERE w = 'a';

-- case: types of every kind, generated columns, domains
-- tables: ty
CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE DOMAIN few AS int NOT NULL CHECK (VALUE < 10);
CREATE TABLE ty (f float8, n numeric, j json, b jsonb, t timestamptz, i interval, m mood, x bytea, a text[], p point,
                 r int4range, d few, c char(5), g int GENERATED ALWAYS AS (d * 2) STORED,
                 ident int GENERATED ALWAYS AS IDENTITY, "Odd ""name" xml);
INSERT INTO ty (f, n, j, b, t, i, m, x, a, p, r, d, c, "Odd ""name") VALUES
  (0.1, 1.0, '{"a": 1,  "a": 2}', '{"a": [1, null]}', '2024-02-01 12:00+03', '1 mon 2 days', 'sad', '\x00ff', '{a,"b c",NULL}', '(1,2)', '[1,5)', 1, 'a', '<a>1</a>'),
  ('-0', 1.00, NULL, NULL, 'infinity', '30 days', 'glad', '', '{}', '(0.1,-0)', 'empty', 2, 'ab', NULL),
  ('NaN', 'NaN', '[]', '1.10', NULL, NULL, NULL, NULL, NULL, NULL, NULL, 3, NULL, '');
SET DateStyle = 'SQL, DMY'; SET TimeZone = 'Asia/Tokyo'; SET IntervalStyle = 'iso_8601'; SET bytea_output = 'escape';
SET extra_float_digits = -5;
UPDATE ty SET d = d + 1 WHERE f <> 0;
UPDATE ty SET n = 1.0 WHERE n = 1;
DELETE FROM ty WHERE f = 'NaN';
RESET ALL;

-- case: partitions without a primary key
-- tables: pt, pt_a, pt_b
CREATE TABLE pt (k int, v text) PARTITION BY LIST (k);
CREATE TABLE pt_a (v text, gone int, k int);
ALTER TABLE pt_a DROP COLUMN gone;
ALTER TABLE pt ATTACH PARTITION pt_a FOR VALUES IN (1, 2);
CREATE TABLE pt_b PARTITION OF pt (PRIMARY KEY (k, v)) FOR VALUES IN (3, 4);
INSERT INTO pt VALUES (1, 'a'), (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd');
INSERT INTO pt_a (k, v) VALUES (1, 'a');
UPDATE pt SET k = 3 WHERE k = 2;
UPDATE pt_b SET v = 'e' WHERE k = 4;
DELETE FROM pt_a WHERE ctid = (SELECT min(ctid) FROM pt_a WHERE k = 1);
BEGIN;
TRUNCATE pt_b;
INSERT INTO pt VALUES (3, 'n'), (1, 'n');
UPDATE pt SET v = 'm' WHERE v = 'n';
COMMIT;

-- case: TRUNCATE of a partition behind rows of its table
-- tables: pt
-- refused
CREATE TABLE pt (k int, v text) PARTITION BY LIST (k);
CREATE TABLE pt_a PARTITION OF pt FOR VALUES IN (1);
CREATE TABLE pt_b PARTITION OF pt FOR VALUES IN (2);
INSERT INTO pt VALUES (1, 'a'), (2, 'b');
BEGIN;
INSERT INTO pt VALUES (1, 'c'), (2, 'd');
TRUNCATE pt_a;
COMMIT;

-- case: a trigger that writes rows behind the truncation of their table
-- tables: bag
-- refused
CREATE TABLE bag (v int);
CREATE FUNCTION mark() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO bag VALUES (-1); RETURN NULL; END $$;
CREATE TRIGGER aaa AFTER TRUNCATE ON bag FOR EACH STATEMENT EXECUTE FUNCTION mark();
INSERT INTO bag VALUES (1), (1);
TRUNCATE bag;

-- case: a trigger that writes rows of another table behind its truncation
-- tables: bag, first
-- refused
CREATE TABLE bag (v int UNIQUE);
CREATE TABLE first (v int REFERENCES bag (v));
CREATE FUNCTION mark() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO bag VALUES (-1); RETURN NULL; END $$;
CREATE TRIGGER zzz AFTER TRUNCATE ON first FOR EACH STATEMENT EXECUTE FUNCTION mark();
INSERT INTO bag VALUES (1), (2);
TRUNCATE first, bag;

-- case: triggers around a truncation whose rows count
-- tables: bag
CREATE TABLE bag (v int);
CREATE FUNCTION mark() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO bag VALUES (-1); RETURN NULL; END $$;
CREATE TRIGGER aaa BEFORE TRUNCATE ON bag FOR EACH STATEMENT EXECUTE FUNCTION mark();
CREATE TRIGGER zzz AFTER TRUNCATE ON bag FOR EACH STATEMENT EXECUTE FUNCTION mark();
INSERT INTO bag VALUES (1), (1);
TRUNCATE bag;

-- case: inheritance
-- tables: ONLY parent, ONLY child
CREATE TABLE parent (v int);
CREATE TABLE child (w int) INHERITS (parent);
INSERT INTO parent VALUES (1), (1);
INSERT INTO child VALUES (1, 2), (1, 2);
UPDATE parent SET v = v + 1;
DELETE FROM ONLY parent WHERE ctid = (SELECT min(ctid) FROM ONLY parent);
DELETE FROM child WHERE ctid = (SELECT min(ctid) FROM child);

-- case: a trigger that writes the rows of its own statement again
-- tables: bag
CREATE TABLE bag (v int, seen bool);
CREATE FUNCTION mark() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN UPDATE bag SET seen = true WHERE v = NEW.v; RETURN NULL; END $$;
CREATE TRIGGER mark AFTER INSERT ON bag FOR EACH ROW EXECUTE FUNCTION mark();
INSERT INTO bag VALUES (1), (1), (2);
INSERT INTO bag VALUES (1);

-- case: a table without columns that hold anything
-- tables: bag
-- refused
CREATE TABLE bag (v int);
CREATE TABLE nothing ();
INSERT INTO nothing DEFAULT VALUES;

-- case: a local table becomes replicated
-- tables: bag
CREATE TABLE bag (v int);
SELECT pgherd.set_local('bag');
SELECT pgherd.set_replicated('bag');
INSERT INTO bag VALUES (1), (1);
DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag);

-- case: a large transaction, touched once
-- tables: big
CREATE TABLE big (v int, w text);
INSERT INTO big SELECT g % 1000, repeat('x', 100) FROM generate_series(1, 30000) g;
DELETE FROM big WHERE v < 500;

-- case: a large transaction, touched twice, with a truncation
-- tables: big
CREATE TABLE big (v int, w text);
INSERT INTO big SELECT g % 100, 'first' FROM generate_series(1, 1000) g;
BEGIN;
DELETE FROM big WHERE v < 50;
INSERT INTO big SELECT g % 100, repeat('y', 100) FROM generate_series(1, 3000) g;
TRUNCATE big;
INSERT INTO big SELECT g % 1000, repeat('x', 100) FROM generate_series(1, 30000) g;
DELETE FROM big WHERE v < 500 AND ctid IN (SELECT min(ctid) FROM big GROUP BY v);
UPDATE big SET w = 'short' WHERE v = 700;
COMMIT;
UPDATE big SET v = v + 1;

-- case: rows from before a domain forbade them
-- tables: bag
CREATE DOMAIN few AS int;
CREATE TABLE bag (v few, w int);
INSERT INTO bag VALUES (-1, 1), (-1, 1), (1, 1), (2, 2);
ALTER DOMAIN few ADD CHECK (VALUE > 0) NOT VALID;
DELETE FROM bag WHERE w = 2;
DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag WHERE v = -1);

-- case: rows that are updated in place elsewhere
-- tables: bag, pairs, own
CREATE TABLE bag (gone int, v int, pgherd_pair text, "Odd name" numeric, leaf int, place int, made int, r int, was int, i int);
ALTER TABLE bag DROP COLUMN gone;
INSERT INTO bag (v, "Odd name", was) SELECT g % 4, g, g FROM generate_series(1, 30) g;
UPDATE bag SET v = v + 1;
UPDATE bag SET v = v + 1, "Odd name" = 1.0 WHERE v = 2;
UPDATE bag SET "Odd name" = 1.00 WHERE v = 3;
CREATE TABLE pairs (u int UNIQUE, v int);
INSERT INTO pairs VALUES (1, 1), (2, 2), (NULL, 3), (NULL, 3);
UPDATE pairs SET u = u + 10, v = v + 1;
UPDATE pairs SET u = u - 9 WHERE u = 11;
UPDATE pairs SET v = v + 1;
CREATE TABLE own (id int GENERATED ALWAYS AS IDENTITY, v int);
INSERT INTO own (v) VALUES (1), (1);
UPDATE own SET v = 2;
UPDATE own SET id = DEFAULT WHERE v = 2;

-- case: rows that are followed through a transaction
-- tables: bag, alone
CREATE TABLE bag (v int, w int UNIQUE);
INSERT INTO bag VALUES (1, 1), (1, 2), (1, NULL), (1, NULL), (5, NULL);
BEGIN;
UPDATE bag SET v = v + 1;
INSERT INTO bag VALUES (2, NULL), (7, NULL);
UPDATE bag SET v = v + 1 WHERE v = 2;
DELETE FROM bag WHERE v = 7;
UPDATE bag SET w = w + 10, v = 8 WHERE w IS NOT NULL;
INSERT INTO bag VALUES (1, NULL), (5, NULL);
UPDATE bag SET v = 1 WHERE ctid = (SELECT max(ctid) FROM bag WHERE v = 3);
COMMIT;
CREATE TABLE alone (id int GENERATED ALWAYS AS IDENTITY);
INSERT INTO alone DEFAULT VALUES;
BEGIN;
UPDATE alone SET id = DEFAULT;
UPDATE alone SET id = DEFAULT;
COMMIT;
