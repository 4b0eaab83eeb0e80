-- case: a16 columns named like variables of ours
-- on n1
CREATE TABLE exam (id int PRIMARY KEY, writing int, erasing int);
BEGIN;
INSERT INTO exam VALUES (1, 1, 1);
UPDATE exam SET writing = 2;
COMMIT;
