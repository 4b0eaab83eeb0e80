-- case: f05 a temporary table behind rows without a key
-- on n1
CREATE TABLE q (k int, v int, t text);
INSERT INTO q VALUES (1, 1, 'a'), (2, 2, 'b'), (3, 3, 'c');
-- on n2
BEGIN;
UPDATE q SET k = k + 10;
UPDATE q SET t = 'twice' WHERE v = 2;
CREATE TEMP TABLE aside (k int PRIMARY KEY);
COMMIT;
