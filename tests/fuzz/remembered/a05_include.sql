-- case: a05 a primary key with INCLUDE, a row touched twice
-- on n1
CREATE TABLE ki (id int, v int, PRIMARY KEY (id) INCLUDE (v));
BEGIN;
INSERT INTO ki VALUES (1, 1);
UPDATE ki SET v = 2 WHERE id = 1;
COMMIT;
BEGIN;
UPDATE ki SET v = 3 WHERE id = 1;
UPDATE ki SET v = 4 WHERE id = 1;
DELETE FROM ki;
COMMIT;
