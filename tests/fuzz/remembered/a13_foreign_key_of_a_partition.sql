-- case: a13 a parent's delete beside a child in a partition with a foreign key of its own
-- on n1
CREATE TABLE fp (id int PRIMARY KEY);
CREATE TABLE fc (id int PRIMARY KEY, pid int) PARTITION BY RANGE (id);
CREATE TABLE fc1 PARTITION OF fc FOR VALUES FROM (0) TO (100);
ALTER TABLE fc1 ADD FOREIGN KEY (pid) REFERENCES fp;
INSERT INTO fp VALUES (1);
-- together
-- on n1 a
BEGIN;
INSERT INTO fc VALUES (1, 1);
-- on n2 b
BEGIN;
DELETE FROM fp WHERE id = 1;
-- on n1 a
COMMIT;
-- on n2 b
COMMIT;
