-- case: a09 a local table becomes a partition of a replicated one
-- on n1
CREATE TABLE lroot (id int PRIMARY KEY, v int) PARTITION BY RANGE (id);
CREATE TABLE lleaf (id int PRIMARY KEY, v int);
SELECT pgherd.set_local('lleaf');
-- apart
-- on n1
INSERT INTO lleaf VALUES (1, 1);
ALTER TABLE lroot ATTACH PARTITION lleaf FOR VALUES FROM (0) TO (100);
UPDATE lroot SET v = 2;
