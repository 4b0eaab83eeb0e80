-- case: insert
INSERT INTO item SELECT g, g, repeat('ü"\', 20), jsonb_build_object('g', g), g / 7.0 FROM generate_series(10001, 11000) g;
-- case: update
UPDATE item SET t = t || E'\n\t"é', v = jsonb_build_array(id, NULL), w = w + 1 WHERE id % 3 <> 0;
-- case: delete
BEGIN;
INSERT INTO part SELECT g, 'k', repeat('p', 50) FROM generate_series(1, 400) g;
DELETE FROM item;
COMMIT;
-- case: values of a unique key go round
BEGIN;
UPDATE item SET u = -u;
UPDATE item SET u = 1 + (-u) % 1000, t = repeat(t, 2);
COMMIT;
-- case: primary keys move
UPDATE item SET id = id + 100000, t = t || 'moved';
-- case: rows touched many times
BEGIN;
UPDATE item SET w = w + 1, t = t || 'a';
DELETE FROM item WHERE id % 5 = 0;
INSERT INTO item SELECT id * 5, id * 5, 'anew' FROM generate_series(1, 300) id;
UPDATE item SET t = t || 'b' WHERE id % 2 = 0;
UPDATE item SET u = u + 50000 WHERE id % 7 = 0;
INSERT INTO item SELECT g, g + 500000, repeat('c', 90) FROM generate_series(5001, 5400) g;
DELETE FROM item WHERE id BETWEEN 5300 AND 5350;
COMMIT;
-- case: two exchange their unique values
BEGIN;
UPDATE item SET u = u + 1000000;
UPDATE item SET u = 1001 - (u - 1000000), t = t || 'swapped';
COMMIT;
-- case: after a savepoint was rolled back
BEGIN;
UPDATE item SET t = t || 'kept';
SAVEPOINT s;
DELETE FROM item;
INSERT INTO item SELECT g, g, repeat('lost', 20) FROM generate_series(1, 1000) g;
ROLLBACK TO s;
UPDATE item SET w = 7 WHERE id < 10;
COMMIT;
-- case: truncate and fill
BEGIN;
TRUNCATE item;
INSERT INTO item SELECT g, g, repeat('filled', 20) FROM generate_series(1, 900) g;
COMMIT;
-- case: truncate a partitioned table and fill it
BEGIN;
TRUNCATE part;
INSERT INTO part SELECT g, 'k', repeat('filled', 20) FROM generate_series(1, 900) g;
COMMIT;
-- case: many statements of one row
DO $$ BEGIN FOR i IN 1..500 LOOP UPDATE item SET t = t || 'row' WHERE id = i; END LOOP; END $$;
-- case: partitions
BEGIN;
INSERT INTO part SELECT g, 'k' || g, repeat('p', 50) FROM generate_series(1, 1000) g;
UPDATE part SET id = id + 1, t = t || 'to the other one' WHERE id % 3 = 0;
COMMIT;
-- case: foreign keys, and a cascade
BEGIN;
INSERT INTO child SELECT g, 1 + g % 10, repeat('c', 60) FROM generate_series(1, 1000) g;
DELETE FROM parent WHERE id < 4;
COMMIT;
-- case: rows larger than a piece
INSERT INTO item SELECT g, g, repeat(md5(g::text), 5000) FROM generate_series(20001, 20008) g;
