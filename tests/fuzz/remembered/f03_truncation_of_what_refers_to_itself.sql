-- case: f03 a partitioned table that refers to itself is truncated
-- on n1
CREATE TABLE tp (id int PRIMARY KEY, up int REFERENCES tp) PARTITION BY RANGE (id);
CREATE TABLE tp_0 PARTITION OF tp FOR VALUES FROM (0) TO (100);
CREATE TABLE tp_1 PARTITION OF tp FOR VALUES FROM (100) TO (200) PARTITION BY LIST (id);
INSERT INTO tp VALUES (1, NULL), (2, 1);
TRUNCATE tp;
-- on n2
INSERT INTO tp VALUES (1, 1);
