-- Tables without a primary key: what a transaction in pieces changes in them.

-- case: update of all rows
CREATE TABLE bag (v int, w text);
INSERT INTO bag SELECT g, repeat('x', 100) FROM generate_series(1, 1500) g;
-- changes
UPDATE bag SET v = v + 1, w = w || 'y';
-- case: delete of all rows
CREATE TABLE bag (v int, w text);
INSERT INTO bag SELECT g, repeat('x', 100) FROM generate_series(1, 1500) g;
-- changes
DELETE FROM bag;
-- case: some of equal rows
CREATE TABLE bag (v int, w text);
INSERT INTO bag SELECT g % 3, repeat('x', 100) FROM generate_series(1, 3000) g;
-- changes
BEGIN;
UPDATE bag SET v = v + 10 WHERE ctid IN (SELECT ctid FROM bag WHERE v = 1 LIMIT 700);
DELETE FROM bag WHERE ctid IN (SELECT ctid FROM bag WHERE v = 2 LIMIT 600);
COMMIT;
-- case: update, then delete
CREATE TABLE bag (v int, w text);
INSERT INTO bag SELECT g / 2, repeat('x', 100) FROM generate_series(1, 1500) g;
-- changes
BEGIN;
UPDATE bag SET v = v + 1, w = w || 'y';
INSERT INTO bag SELECT g, repeat('z', 100) FROM generate_series(1, 300) g;
UPDATE bag SET w = w || 'a' WHERE v % 2 = 0;
DELETE FROM bag WHERE v % 3 = 0;
COMMIT;
-- case: rows move through partitions
CREATE TABLE bag (k int, v int, w text) PARTITION BY HASH (k);
CREATE TABLE bag_0 PARTITION OF bag FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE bag_1 PARTITION OF bag FOR VALUES WITH (MODULUS 2, REMAINDER 1);
INSERT INTO bag SELECT g, g, repeat('x', 100) FROM generate_series(1, 1500) g;
-- changes
UPDATE bag SET k = k + 1, w = w || 'y';
-- case: truncated, filled and changed
CREATE TABLE bag (v int, w text);
INSERT INTO bag SELECT g, repeat('x', 100) FROM generate_series(1, 1500) g;
CREATE TABLE bag_too (v int, w text);
INSERT INTO bag_too SELECT g, repeat('x', 100) FROM generate_series(1, 1500) g;
-- changes
BEGIN;
UPDATE bag_too SET v = v + 1;
TRUNCATE bag;
INSERT INTO bag SELECT g, repeat('z', 100) FROM generate_series(1, 1000) g;
UPDATE bag SET w = w || 'y' WHERE v % 2 = 0;
COMMIT;
-- case: values that have no order or no equality, generated ones, and some out of line
CREATE TABLE bag (v json, v_leaf int DEFAULT 7, v_places text, p point, x xml, g text GENERATED ALWAYS AS (w || 'g') STORED, w text);
ALTER TABLE bag ALTER COLUMN w SET STORAGE EXTERNAL;
INSERT INTO bag (v, p, x, w)
  SELECT json_build_array(g, NULL), point(g, -g), xmlelement(name a, g),
         CASE WHEN g % 100 = 0 THEN repeat('x', 2500) ELSE 'x' || g % 7 END
  FROM generate_series(1, 800) g;
-- changes
UPDATE bag SET p = point(0, 0), w = w || 'y';
